//! What a run works with: the document, its providers, and what hosts are to be given.

#[cfg(test)]
pub(super) mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
};

use anyhow::Context as _;
use common::{
    images::is_for_control_planes,
    metadata::{self, Configuration, Hostname, Metadata},
};
use serde_json::{Map, Value, json};

use super::snapshot::{Group, Host, Peers, Role, Snapshot};
use crate::{
    bootstrap::{
        agent::{AgentPackage, Delivery},
        endpoint::{self, Carried},
        kubeadm::{API_PORT, ClusterConfiguration, LocalEndpoint, Networking, NodeRegistration, component},
        ssh::Connections,
    },
    cluster::Manifests,
    desired::{Infrastructure, PoolName, Probe, ProviderName},
    provider::{EndpointDefaults, HostDefaults, Ownership, Pool, Provider, Spares},
};

/// Objects every cluster of infrop has.
const POLICIES: &str = include_str!("../../manifests/admission.yaml");

/// Hosts that are worked on at once: some connections, and a few processes here for each.
const AT_ONCE: usize = 32;

/// What a run works with.
#[derive(Debug)]
pub struct Context {
    /// What is wanted.
    pub infrastructure: Infrastructure,
    /// Who has computes.
    pub providers: BTreeMap<ProviderName, Box<dyn Provider>>,
    /// Ways to hosts.
    pub connections: Arc<Connections>,
    /// node-agent.
    pub package: AgentPackage,
    /// Objects that the cluster is to have.
    pub manifests: Manifests,
    /// What a run would build or install on this computer before it begins: nothing is, for who only looks. Until then
    /// what hosts are to have is known only roughly.
    pub unbuilt: Vec<String>,
}

impl Context {
    /// Of a document; files it names are relative to `directory`.
    pub fn new(
        mut infrastructure: Infrastructure,
        directory: &Path,
        providers: BTreeMap<ProviderName, Box<dyn Provider>>,
        connections: Arc<Connections>,
        package: AgentPackage,
    ) -> anyhow::Result<Self> {
        let mut manifests = Manifests::default();
        manifests.add("infrop's own policies", POLICIES)?;
        for file in &infrastructure.cluster.networking.manifests {
            manifests.read(&directory.join(file))?;
        }
        for check in infrastructure.checks_mut() {
            if let Probe::Job(file) = &mut check.probe {
                *file = directory.join(&file);
            }
        }
        Ok(Self { infrastructure, providers, connections, package, manifests, unbuilt: Vec::new() })
    }

    /// How many hosts are worked on at once, unless someone knows better.
    pub fn at_once(&self) -> usize {
        self.providers.values().map(|provider| provider.at_once()).fold(AT_ONCE, usize::min)
    }

    /// The provider of that name. The document was checked, so it is there.
    pub fn provider(&self, name: &ProviderName) -> anyhow::Result<&dyn Provider> {
        let provider = self.providers.get(name).with_context(|| format!("there is no provider {name}"))?;
        Ok(provider.as_ref())
    }

    /// The groups that are wanted, with what pools could still give, and those that are left of another document.
    pub fn groups(&self, pools: &[Pool]) -> Vec<Group> {
        let cluster = &self.infrastructure.cluster;
        let spares = |provider: &ProviderName, pool: &PoolName| {
            let found = pools.iter().find(|known| known.provider == *provider && known.name == *pool);
            found.map_or(Spares::Listed(Vec::new()), |pool| pool.spares.clone())
        };
        let planes = &cluster.control_plane;
        let given = || {
            let addresses = self.provider(&planes.provider).ok()?.addresses(&planes.pool)?;
            Some(Peers::Given(addresses))
        };
        let peers = self.carried().map(|_| given().unwrap_or(Peers::Computes));
        let mut groups = vec![Group {
            provider: planes.provider.clone(),
            pool: planes.pool.clone(),
            role: Role::ControlPlane,
            count: usize::from(planes.nodes.0),
            labels: planes.labels.clone(),
            taints: planes.taints.clone(),
            spares: spares(&planes.provider, &planes.pool),
            peers,
        }];
        groups.extend(cluster.workers.iter().map(|workers| Group {
            provider: workers.provider.clone(),
            pool: workers.pool.clone(),
            role: Role::Worker,
            count: usize::from(workers.nodes.0),
            labels: workers.labels.clone(),
            taints: (!workers.taints.is_empty()).then(|| workers.taints.clone()),
            spares: spares(&workers.provider, &workers.pool),
            peers: None,
        }));
        // A group that was taken out of the document is one of which nothing is wanted any more.
        let is_left = |pool: &&Pool| {
            pool.computes.iter().any(|compute| compute.ownership == Ownership::Ours)
                && !groups.iter().any(|group| group.provider == pool.provider && group.pool == pool.name)
        };
        let left: Vec<Group> = pools.iter().filter(is_left).map(of_nobody).collect();
        groups.extend(left);
        groups
    }

    /// The API's address, if the control planes carry it.
    fn carried(&self) -> Option<Carried> {
        self.infrastructure.cluster.endpoint.as_ref().and_then(Carried::of)
    }

    /// What a host is to be given; none before it said what it is and its peers are known.
    pub fn delivery(&self, snapshot: &Snapshot, host: &Host) -> anyhow::Result<Option<Delivery>> {
        let group = snapshot.group(host)?;
        let defaults = self.provider(&group.provider)?.defaults();
        let Some(metadata) = self.host_metadata(snapshot, host, group, defaults)? else { return Ok(None) };
        let carried = self.carried().filter(|_| group.role == Role::ControlPlane);
        let settings = json!({
            "endpointAddress": carried.map(|carried| carried.agent_address(host.compute.address)),
            "kubeadm": { "ignorePreflightErrors": self.ignored_checks(defaults) },
        });
        let settings = serde_yaml::to_string(&settings)?;
        Ok(Some(Delivery::new(self.package.clone(), settings, &metadata)?))
    }

    /// The metadata of a host, with what its role asks for.
    fn host_metadata(
        &self,
        snapshot: &Snapshot,
        host: &Host,
        group: &Group,
        defaults: &HostDefaults,
    ) -> anyhow::Result<Option<Metadata>> {
        let Some(report) = host.seen() else { return Ok(None) };
        let mut metadata = self.metadata(defaults, host, group.role)?;
        match (self.carried(), group.role) {
            (None, _) => {}
            (Some(_), Role::Worker) => {
                metadata.software.retain(|name, _| !endpoint::SOFTWARE.contains(&name.as_str()));
            }
            (Some(carried), Role::ControlPlane) => {
                let Some(peers) = snapshot.peers(host.group) else { return Ok(None) };
                let address = host.compute.address;
                let interface = report.interfaces.get(&address).with_context(|| {
                    format!("none of its interfaces has {address}, so it cannot carry the API's address")
                })?;
                self.add_endpoint(&mut metadata, defaults, carried, &peers, interface);
            }
        }
        Ok(Some(metadata))
    }

    /// What a control plane needs to carry the API's address.
    fn add_endpoint(
        &self,
        metadata: &mut Metadata,
        defaults: &HostDefaults,
        carried: Carried,
        peers: &BTreeSet<IpAddr>,
        interface: &str,
    ) {
        let EndpointDefaults { versions, repositories } = &defaults.endpoint;
        for (name, version) in versions {
            metadata.software.entry(name.clone()).or_insert_with(|| version.clone());
        }
        let named = &self.infrastructure.software.repositories;
        let ours = repositories.iter().filter(|ours| named.iter().all(|other| other.name != ours.name));
        metadata.repositories.extend(ours.cloned());
        let configuration = &mut metadata.configuration;
        configuration.haproxy_config = Some(carried.haproxy(peers));
        configuration.keepalived_config =
            configuration.hostname.as_ref().map(|host| carried.keepalived(host.address, interface));
    }

    fn metadata(&self, defaults: &HostDefaults, host: &Host, role: Role) -> anyhow::Result<Metadata> {
        let (name, address) = (&host.compute.name, host.compute.address);
        let wanted = &self.infrastructure.software;
        let mut software = defaults.versions.clone();
        software.extend(wanted.versions.clone());
        for package in ["kubeadm", "kubelet", "kubectl"] {
            software.insert(package.parse()?, wanted.kubernetes.to_string().parse()?);
        }
        let mut repositories = defaults.repositories.clone();
        repositories.retain(|known| wanted.repositories.iter().all(|other| other.name != known.name));
        repositories.extend(wanted.repositories.clone());
        let mut configuration = overlay(&of_role(&defaults.configuration, role), &wanted.configuration)?;
        configuration.hostname = Some(Hostname { name: name.clone(), address });
        Ok(Metadata {
            api_version: metadata::ApiVersion::V1Alpha1,
            kind: metadata::Kind::NodeMetadata,
            node: name.clone(),
            ironic: None,
            software,
            repositories,
            bundle: wanted.bundle.clone().or_else(|| defaults.bundle.clone()),
            configuration,
        })
    }

    fn ignored_checks(&self, defaults: &HostDefaults) -> Vec<String> {
        let mut checks = defaults.ignore_preflight_errors.clone();
        checks.extend(self.infrastructure.cluster.ignore_preflight_errors.clone());
        checks.sort();
        checks.dedup();
        checks
    }

    /// How a host registers itself.
    pub fn registration(&self, host: &Host, group: &Group) -> anyhow::Result<NodeRegistration> {
        let ignored = self.ignored_checks(self.provider(&group.provider)?.defaults());
        let compute = &host.compute;
        Ok(NodeRegistration::new(compute.name.clone(), compute.address, group.taints.clone(), &ignored))
    }

    /// `host:port` of the API for hosts, if `first` is the first control plane.
    pub fn endpoint(&self, first: IpAddr) -> String {
        match &self.infrastructure.cluster.endpoint {
            Some(endpoint) => match endpoint.host.parse() {
                // One of IPv6 stands in brackets.
                Ok(address) => SocketAddr::new(address, endpoint.port).to_string(),
                Err(_) => format!("{}:{}", endpoint.host, endpoint.port),
            },
            None => SocketAddr::new(first, API_PORT).to_string(),
        }
    }

    /// Where the API server of a control plane listens.
    pub fn api_server(&self, host: &Host) -> LocalEndpoint {
        let port = self.carried().map_or(API_PORT, Carried::api_server_port);
        LocalEndpoint::new(host.compute.address, port)
    }

    /// Where the API is for us, if `first` is a control plane; with a name as endpoint, on that control plane.
    pub fn api_address(&self, first: IpAddr) -> SocketAddr {
        let endpoint = self.infrastructure.cluster.endpoint.as_ref();
        let known =
            endpoint.and_then(|endpoint| Some(SocketAddr::new(endpoint.host.parse().ok()?, endpoint.port)));
        known.unwrap_or_else(|| SocketAddr::new(first, API_PORT))
    }

    /// The cluster as kubeadm is told, and its components' configurations.
    pub fn cluster_documents(&self, first: &Host, group: &Group) -> anyhow::Result<Vec<Value>> {
        let Infrastructure { metadata, cluster, software, .. } = &self.infrastructure;
        let networking = Networking {
            pod_subnet: cluster.networking.pod_subnet.to_string(),
            service_subnet: cluster.networking.service_subnet.to_string(),
            dns_domain: cluster.networking.dns_domain.clone(),
        };
        let configuration = ClusterConfiguration::new(
            metadata.name.to_string(),
            software.kubernetes.tag(),
            self.endpoint(first.compute.address),
            networking,
            cluster.certificate_names.clone(),
        );
        let defaults = self.provider(&group.provider)?.defaults();
        let merged = |below: &Map<String, Value>, above: &Map<String, Value>| {
            let mut fields = below.clone();
            fields.extend(above.clone());
            fields
        };
        let kubelet = merged(&defaults.kubelet, &cluster.kubelet);
        let proxy = merged(&defaults.kube_proxy, &cluster.kube_proxy);
        let mut documents = vec![serde_json::to_value(configuration)?];
        documents.extend(component("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration", &kubelet));
        documents.extend(component("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration", &proxy));
        Ok(documents)
    }
}

/// The group of a pool that no group of the document has.
fn of_nobody(pool: &Pool) -> Group {
    Group {
        provider: pool.provider.clone(),
        pool: pool.name.clone(),
        role: Role::Worker,
        count: 0,
        labels: BTreeMap::new(),
        taints: None,
        spares: pool.spares.clone(),
        peers: None,
    }
}

/// The contents that hosts of a role have a use for.
fn of_role(defaults: &Configuration, role: Role) -> Configuration {
    let mut configuration = defaults.clone();
    if let (Some(images), Role::Worker) = (&mut configuration.images, role) {
        images.retain(|image| !is_for_control_planes(image.name.as_str()));
    }
    configuration
}

/// The contents of both; where both have one, that of the document.
fn overlay(below: &Configuration, above: &Configuration) -> anyhow::Result<Configuration> {
    let (Value::Object(mut all), Value::Object(over)) =
        (serde_json::to_value(below)?, serde_json::to_value(above)?)
    else {
        return Ok(above.clone());
    };
    all.extend(over);
    Ok(serde_json::from_value(Value::Object(all))?)
}
