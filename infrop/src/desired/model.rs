//! The document's fields. What cannot be right is refused by these types; what is only wrong beside something else,
//! by the checks that follow.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use common::{
    KubernetesVersion,
    metadata::{Configuration, NodeName, Repository, Template},
    software::{SoftwareName, SoftwareVersion},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    names::{Count, HostKey, InfrastructureName, PoolName, ProviderName, Subnet},
    rollout::{Check, ControlPlaneRollout, GroupRollout, Rollout},
};

/// The document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Infrastructure {
    /// The form of this document.
    pub api_version: ApiVersion,
    /// What it is.
    pub kind: Kind,
    /// How it is called.
    pub metadata: Title,
    /// Who has computes, by a name of your choice.
    #[schemars(extend("propertyNames" = { "format": "name" }))]
    pub providers: BTreeMap<ProviderName, Provider>,
    /// The cluster that runs on them.
    pub cluster: Cluster,
    /// What runs on every host, in which version, and where it comes from.
    pub software: Software,
    /// How hosts of static providers are reached.
    #[serde(default)]
    pub ssh: Ssh,
    /// How nodes are taken to other versions.
    #[serde(default)]
    pub rollout: Rollout,
}

impl Infrastructure {
    /// All that is checked on nodes.
    pub fn checks_mut(&mut self) -> impl Iterator<Item = &mut Check> {
        let Cluster { control_plane, workers, .. } = &mut self.cluster;
        let workers = workers.iter_mut().filter_map(|workers| workers.rollout.checks.as_mut());
        let groups = workers.chain(control_plane.rollout.checks.as_mut());
        groups.flatten().chain(&mut self.rollout.checks)
    }
}

/// The form of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApiVersion {
    /// The only one so far.
    #[serde(rename = "infrop.caos.ch/v1alpha1")]
    V1Alpha1,
}

/// What the document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Kind {
    /// An infrastructure.
    Infrastructure,
}

/// How the infrastructure is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Title {
    /// Its name: the cluster's name, and the mark of ownership on computes. It never changes.
    pub name: InfrastructureName,
}

/// Who has computes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Provider {
    /// Hosts on this computer, made when they are needed.
    Lab(LabProvider),
    /// Hosts that are there, reached by SSH.
    Static(StaticProvider),
}

/// Hosts on this computer. They see the bundle of the document's Kubernetes version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LabProvider {
    /// Hosts of one shape, by a name of your choice; the hosts are called `<pool>-<number>`.
    #[schemars(extend("propertyNames" = { "format": "name" }))]
    #[expect(clippy::zero_sized_map_values, reason = "a pool is a map of fields, for those to come")]
    pub pools: BTreeMap<PoolName, LabPool>,
}

/// Hosts of one shape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LabPool {}

/// Hosts that are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StaticProvider {
    /// Hosts of one shape, by a name of your choice.
    #[schemars(extend("propertyNames" = { "format": "name" }))]
    pub pools: BTreeMap<PoolName, Vec<StaticHost>>,
}

/// A host that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StaticHost {
    /// The name of its Node.
    pub name: NodeName,
    /// Where it is reached, and the address its kubelet has.
    pub address: IpAddr,
    /// The port of sshd, if it is not that of `ssh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Its public host keys, as `ssh-keyscan` prints them after the name. Without them the host has to be in
    /// `ssh.knownHosts`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_keys: Vec<HostKey>,
}

/// The cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Cluster {
    /// The hosts that run Kubernetes itself.
    pub control_plane: ControlPlane,
    /// The hosts that run everything else.
    #[serde(default)]
    pub workers: Vec<Workers>,
    /// Where the API answers. With one control plane it may be left out: then it is that host's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// Addresses of pods and services.
    #[serde(default)]
    pub networking: Networking,
    /// Fields of the `KubeletConfiguration` that kubeadm gives to every kubelet.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub kubelet: serde_json::Map<String, serde_json::Value>,
    /// Fields of the `KubeProxyConfiguration` that kubeadm gives to every kube-proxy.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub kube_proxy: serde_json::Map<String, serde_json::Value>,
    /// Checks of kubeadm that may fail, for example `Swap`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("items" = { "type": "string", "format": "word" }))]
    pub ignore_preflight_errors: Vec<String>,
    /// More names and addresses that the API server's certificate is for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("items" = { "type": "string", "format": "host" }))]
    pub certificate_names: Vec<String>,
}

/// The hosts that run Kubernetes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ControlPlane {
    /// The provider of the hosts.
    pub provider: ProviderName,
    /// The pool of the hosts; no other group uses it.
    pub pool: PoolName,
    /// How many: 1, 3 or 5. etcd needs a majority, and an even number bears no more failures than one less.
    #[schemars(extend("enum" = [1, 3, 5]))]
    pub nodes: Count,
    /// Labels of the Nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("propertyNames" = { "format": "label-key" }))]
    #[schemars(extend("additionalProperties" = { "type": "string", "format": "label-value" }))]
    pub labels: BTreeMap<String, String>,
    /// Taints of the Nodes, instead of the one that keeps workloads away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<Taint>>,
    /// How they are taken to other versions, where it is not as `rollout` says for all.
    #[serde(default)]
    pub rollout: ControlPlaneRollout,
}

/// A group of worker hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Workers {
    /// The provider of the hosts.
    pub provider: ProviderName,
    /// The pool of the hosts; no other group uses it.
    pub pool: PoolName,
    /// How many.
    pub nodes: Count,
    /// Labels of the Nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("propertyNames" = { "format": "label-key" }))]
    #[schemars(extend("additionalProperties" = { "type": "string", "format": "label-value" }))]
    pub labels: BTreeMap<String, String>,
    /// Taints of the Nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// How they are taken to other versions, where it is not as `rollout` says for all.
    #[serde(default)]
    pub rollout: GroupRollout,
}

/// A taint of Nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Taint {
    /// Its key.
    #[schemars(extend("format" = "label-key"))]
    pub key: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("format" = "label-value"))]
    pub value: String,
    /// What it does to pods.
    pub effect: TaintEffect,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// They do not come.
    NoSchedule,
    /// They come if there is no other place.
    PreferNoSchedule,
    /// They do not come, and those there go.
    NoExecute,
}

/// Where the API answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Endpoint {
    /// The address; if it is external, also a name that resolves to it.
    #[schemars(extend("format" = "host"))]
    pub host: String,
    /// The port.
    #[serde(default = "Endpoint::default_port")]
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Whether someone else leads the address to the control planes. If not, they carry it themselves, with keepalived
    /// and haproxy.
    #[serde(default)]
    pub external: bool,
}

impl Endpoint {
    fn default_port() -> u16 {
        6443
    }
}

/// Addresses of pods and services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Networking {
    /// Addresses of pods.
    pub pod_subnet: Subnet,
    /// Addresses of services.
    pub service_subnet: Subnet,
    /// The domain of services.
    #[schemars(extend("format" = "dns-name"))]
    pub dns_domain: String,
    /// Files with what connects pods (a CNI), relative to the document; applied once the API answers.
    #[schemars(extend("items" = { "type": "string", "format": "path" }))]
    pub manifests: Vec<PathBuf>,
}

/// What runs on every host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Software {
    /// The version of kubeadm, kubelet, kubectl and of all that kubeadm runs.
    pub kubernetes: KubernetesVersion,
    /// Versions of other software under care, by name: `containerd: 2.4.2`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("propertyNames" = { "format": "software-name" }))]
    pub versions: BTreeMap<SoftwareName, SoftwareVersion>,
    /// Where packages come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<Repository>,
    /// A directory on the hosts with a bundle, where there is no registry: `/opt/infrop/bundles/{kubernetes}`. Hosts
    /// of a lab have one without asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<Template>,
    /// Contents that every host is to have, as in node-agent's metadata.
    #[serde(default)]
    pub configuration: Configuration,
}

/// How hosts of static providers are reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Ssh {
    /// Who infrop is there. If not root, it becomes root with `sudo` that asks for no password.
    #[schemars(extend("format" = "user-name"))]
    pub user: String,
    /// The port of sshd.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// The private key; without it, what ssh itself finds (its agent, its default files).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<SecretReference>,
    /// A file with host keys in the form of ssh, relative to the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "path"))]
    pub known_hosts: Option<PathBuf>,
}

/// Where a secret is. Never the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SecretReference {
    /// In a file, relative to the document.
    #[schemars(extend("format" = "path"))]
    File(PathBuf),
    /// In a variable of infrop's environment.
    #[schemars(extend("format" = "environment-variable"))]
    Environment(String),
    /// In a Secret of the cluster that `KUBECONFIG` leads to.
    Secret(SecretSource),
}

/// A key of a Kubernetes Secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SecretSource {
    /// Its namespace.
    #[schemars(extend("format" = "dns-name"))]
    pub namespace: String,
    /// Its name.
    #[schemars(extend("format" = "dns-name"))]
    pub name: String,
    /// The key in it.
    #[schemars(extend("format" = "secret-key"))]
    pub key: String,
}

impl Default for Networking {
    fn default() -> Self {
        Self {
            pod_subnet: Subnet::PODS,
            service_subnet: Subnet::SERVICES,
            dns_domain: "cluster.local".to_owned(),
            manifests: Vec::new(),
        }
    }
}

impl Default for Ssh {
    fn default() -> Self {
        Self { user: "root".to_owned(), port: 22, private_key: None, known_hosts: None }
    }
}
