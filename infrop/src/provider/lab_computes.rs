//! Lab hosts as computes: one lab per infrastructure, of the same name, on this computer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use common::{
    KubernetesVersion,
    metadata::{Configuration, Key, NodeName, Repository},
};
use futures::future::LocalBoxFuture;
use images::{
    kubernetes::{Bundle, Manifest, containerd_for},
    repository::KEY_FILE,
    site,
    steps::Steps,
};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::{
    Compute, EndpointDefaults, Error, HostDefaults, Ownership, Pool, Power, Provider, Spares,
    defaults::{Containerd, images, pause},
    lab::{self, Lab, LabName, Lifetime, Plan, SITE, Store},
};
use crate::{
    bootstrap::ssh::Access,
    cluster::Route,
    desired::{InfrastructureName, LabProvider, PoolName, ProviderName},
    writer::{FileRecord, Record},
};

/// Where hosts see bundles.
const BUNDLES: &str = "/opt/infrop/bundles";

/// What a lab needs of this computer.
#[derive(Debug, Clone)]
pub struct Means {
    /// All labs.
    pub store: Store,
    /// What hosts are made of; none for who only looks at them or ends them, for it takes minutes to build.
    pub parts: Option<Parts>,
    /// The infrop program, which supervises labs.
    pub infrop: PathBuf,
    /// Where progress goes.
    pub steps: Steps,
}

/// What lab hosts are made of.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Their root file system.
    pub root: PathBuf,
    /// Kubernetes.
    pub bundle: Bundle,
    /// Packages that carry the API's address, if control planes do.
    pub site: Option<PathBuf>,
}

/// Lab hosts as computes.
#[derive(Debug)]
pub struct LabComputes {
    provider: ProviderName,
    owner: InfrastructureName,
    lab: LabName,
    pools: BTreeSet<PoolName>,
    means: Means,
    defaults: HostDefaults,
    /// Making the lab, or starting it, is done by one at a time.
    making: Mutex<()>,
}

impl LabComputes {
    /// Of a provider of the document, with the bundle of that Kubernetes version and the packages that carry the API's
    /// address, as far as they are there: without them, what hosts are to have is known only roughly.
    pub fn new(
        provider: ProviderName,
        owner: InfrastructureName,
        wanted: &LabProvider,
        means: Means,
        kubernetes: &KubernetesVersion,
        bundle: Option<&Bundle>,
        site: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let lab = owner.as_str().parse()?;
        let endpoint = site.map(endpoint_defaults).transpose()?.unwrap_or_default();
        let defaults = HostDefaults { endpoint, ..defaults(kubernetes, bundle.map(Bundle::manifest))? };
        let pools = wanted.pools.keys().cloned().collect();
        Ok(Self { provider, owner, lab, pools, means, defaults, making: Mutex::default() })
    }

    fn error(&self, what: impl Into<String>) -> impl FnOnce(anyhow::Error) -> Error {
        let (provider, what) = (self.provider.clone(), what.into());
        move |source| Error { provider, what, source }
    }

    /// The lab, if there is one and it is ours.
    fn find(&self) -> anyhow::Result<Option<lab::Summary>> {
        let summary = match self.means.store.summary(&self.lab) {
            Err(lab::Error::NoLab(_)) => return Ok(None),
            summary => summary?,
        };
        match &summary.definition.owner {
            Some(owner) if owner == self.owner.as_str() => Ok(Some(summary)),
            _ => bail!(
                "there is a lab {} that was not made for this infrastructure: rename the infrastructure, or end the \
                 lab with `infrop lab destroy {}`",
                self.lab,
                self.lab
            ),
        }
    }

    /// The lab, running; it is made or started if need be.
    async fn ensure(&self) -> anyhow::Result<Lab> {
        let _making = self.making.lock().await;
        let Means { store, parts, infrop, steps } = &self.means;
        let Some(Parts { root, bundle, site }) = parts else {
            bail!("this command makes no hosts: what they are made of was not built");
        };
        lab::raise_limits(steps);
        let lab = match self.find()? {
            Some(summary) if summary.running => Lab::open(store, &self.lab)?,
            Some(_) => Lab::start(store, &self.lab).await?,
            None => {
                let plan = Plan {
                    name: self.lab.clone(),
                    owner: Some(self.owner.to_string()),
                    hosts: Vec::new(),
                    root: root.clone(),
                    lifetime: Lifetime::Kept,
                    infrop: infrop.clone(),
                };
                Lab::create(store, plan, steps).await?
            }
        };
        lab.offer(&bundle.manifest().kubernetes.to_string(), bundle.path()).await?;
        if let Some(site) = site {
            lab.offer(SITE, site).await?;
        }
        Ok(lab)
    }

    /// The lab as it is, running, if there is one. Nothing is made for it.
    async fn present(&self) -> anyhow::Result<Option<Lab>> {
        let _making = self.making.lock().await;
        Ok(match self.find()? {
            None => None,
            Some(summary) if summary.running => Some(Lab::open(&self.means.store, &self.lab)?),
            Some(_) => Some(Lab::start(&self.means.store, &self.lab).await?),
        })
    }

    async fn look(&self) -> anyhow::Result<Vec<Compute>> {
        let Some(summary) = self.find()? else { return Ok(Vec::new()) };
        let status = if summary.running {
            Some(Lab::open(&self.means.store, &self.lab)?.status().await?)
        } else {
            None
        };
        let mut computes = Vec::new();
        for host in &summary.definition.hosts {
            let running = status
                .iter()
                .flat_map(|status| &status.hosts)
                .any(|seen| seen.name == host.name && seen.running);
            let name = host.name.as_str();
            let Some(pool) = self.pools.iter().find(|pool| is_of(pool, name)) else {
                bail!(
                    "the lab {} has a host {name} that is of no pool of the document: leave its pool there until its \
                     hosts are gone; without a group of workers they go",
                    self.lab
                );
            };
            computes.push(Compute {
                name: name.parse()?,
                pool: pool.clone(),
                address: IpAddr::V4(host.address),
                ownership: Ownership::Ours,
                power: if running { Power::On } else { Power::Off },
            });
        }
        Ok(computes)
    }
}

/// Whether a host is of a pool, by its name.
fn is_of(pool: &PoolName, host: &str) -> bool {
    let number = host.strip_prefix(pool.as_str()).and_then(|rest| rest.strip_prefix('-'));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

impl Provider for LabComputes {
    fn observe(&self, _at_once: usize) -> LocalBoxFuture<'_, Result<Vec<Pool>, Error>> {
        Box::pin(async {
            let computes = self.look().await.map_err(self.error("look at the lab"))?;
            let pool = |name: &PoolName| Pool {
                provider: self.provider.clone(),
                name: name.clone(),
                computes: computes.iter().filter(|compute| compute.pool == *name).cloned().collect(),
                spares: Spares::Numbered,
            };
            Ok(self.pools.iter().map(pool).collect())
        })
    }

    fn addresses(&self, _pool: &PoolName) -> Option<BTreeSet<IpAddr>> {
        None
    }

    fn create<'a>(
        &'a self,
        pool: &'a PoolName,
        name: &'a NodeName,
    ) -> LocalBoxFuture<'a, Result<Compute, Error>> {
        Box::pin(async move {
            let made = async {
                let host = self.ensure().await?.add_host(&name.as_str().parse()?).await?;
                anyhow::Ok(Compute {
                    name: name.clone(),
                    pool: pool.clone(),
                    address: IpAddr::V4(host.address),
                    ownership: Ownership::Ours,
                    power: Power::On,
                })
            };
            made.await.map_err(self.error(format!("make {name}")))
        })
    }

    fn delete<'a>(&'a self, compute: &'a Compute) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let removed = async {
                if let Some(lab) = self.present().await? {
                    lab.remove_host(&compute.name.as_str().parse()?).await?;
                }
                anyhow::Ok(())
            };
            removed.await.map_err(self.error(format!("remove {}", compute.name)))
        })
    }

    fn erases(&self) -> bool {
        true
    }

    fn power<'a>(&'a self, compute: &'a Compute, power: Power) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let switched = async {
                let switch = match power {
                    Power::On => lab::Power::On,
                    // As a BMC does it. In order, a host with pods takes up to 90 s.
                    Power::Off => lab::Power::Cut,
                    Power::Unknown => bail!("nobody can switch a host to that"),
                };
                self.ensure().await?.power(&compute.name.as_str().parse()?, switch).await?;
                Ok(())
            };
            switched.await.map_err(self.error(format!("switch {}", compute.name)))
        })
    }

    fn release(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let released = async {
                if self.find()?.is_some() {
                    Lab::destroy(&self.means.store, &self.lab).await?;
                }
                anyhow::Ok(())
            };
            released.await.map_err(self.error("end the lab"))
        })
    }

    fn console<'a>(&'a self, compute: &'a Compute) -> LocalBoxFuture<'a, Option<String>> {
        Box::pin(async {
            let lab = Lab::open(&self.means.store, &self.lab).ok()?;
            let file = lab.console(&compute.name.as_str().parse().ok()?);
            let end = lab::last_words(&file)?;
            Some(format!("its console ({}) ends with: {end}", file.display()))
        })
    }

    fn access(&self, compute: &Compute) -> Result<Access, Error> {
        let lab = Lab::open(&self.means.store, &self.lab).map_err(anyhow::Error::from);
        let lab = lab.map_err(self.error(format!("reach {}", compute.name)))?;
        let destination = compute.name.to_string();
        Ok(Access { destination, config: Some(lab.ssh_config()), ..Access::default() })
    }

    fn route(&self, address: SocketAddr) -> LocalBoxFuture<'_, Result<Route, Error>> {
        Box::pin(async move {
            let led = async {
                let lab = Lab::open(&self.means.store, &self.lab)?;
                let SocketAddr::V4(address) = address else { bail!("lab hosts have no addresses of IPv6") };
                lab.lead_api(address).await?;
                anyhow::Ok(Route::Port(lab.status().await?.api_port))
            };
            led.await.map_err(self.error("lead a port to the API"))
        })
    }

    fn records<'a>(&'a self, _pool: &'a PoolName) -> LocalBoxFuture<'a, Result<Vec<Box<dyn Record>>, Error>> {
        Box::pin(async {
            // Beside the labs, for this one may not be there yet.
            let file = self.means.store.root().join(".writers").join(format!("{}.json", self.lab));
            Ok(vec![Box::new(FileRecord::new(file)) as Box<dyn Record>])
        })
    }

    fn supply(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        // Hosts of an earlier run saw the bundle of an earlier version.
        Box::pin(async { self.ensure().await.map(|_| ()).map_err(self.error("show the bundle to hosts")) })
    }

    fn at_once(&self) -> usize {
        // Enough that some work while others wait. With more, 20 hosts on 2 cores took a tenth longer each.
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        4 * cores
    }

    fn defaults(&self) -> &HostDefaults {
        &self.defaults
    }
}

/// What hosts that share this computer's kernel need: no systemd above them, perhaps cgroup v1, swap unknown, and
/// everything from the bundle.
fn defaults(kubernetes: &KubernetesVersion, bundle: Option<&Manifest>) -> anyhow::Result<HostDefaults> {
    let apt = format!("{BUNDLES}/{{kubernetes}}/apt");
    let repository = Repository {
        name: "bundle".parse()?,
        uri: format!("file:{apt}").parse()?,
        suite: "./".parse()?,
        components: Vec::new(),
        key: Key::KeyFile(format!("{apt}/repository.asc").parse()?),
    };
    let containerd = match bundle {
        Some(bundle) => bundle.components.get("containerd").context("the bundle has no containerd")?,
        None => containerd_for(kubernetes),
    };
    let pause = bundle.map(pause).transpose()?;
    let containerd_config = Containerd { pause, systemd: false, shared: true };
    let directory = Path::new(BUNDLES).join(kubernetes.to_string());
    let configuration = Configuration {
        containerd_config: Some(containerd_config.config()),
        images: bundle.map(|bundle| images(bundle, &directory)).transpose()?,
        ..Configuration::default()
    };
    Ok(HostDefaults {
        kubelet: fields(json!({
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": false,
            "failSwapOn": false,
            "localStorageCapacityIsolation": false,
        })),
        // nf_conntrack_max is the computer's.
        kube_proxy: fields(json!({ "conntrack": { "maxPerCore": 0, "min": 0 } })),
        ignore_preflight_errors: [
            "FileContent--proc-sys-net-bridge-bridge-nf-call-iptables",
            "Swap",
            "SystemVerification",
        ]
        .map(str::to_owned)
        .to_vec(),
        versions: [("containerd".parse()?, containerd.parse()?)].into(),
        repositories: vec![repository],
        bundle: Some(format!("{BUNDLES}/{{kubernetes}}").parse()?),
        configuration,
        endpoint: EndpointDefaults::default(),
    })
}

/// What control planes of a lab need to carry the API's address, from the packages in `site`.
fn endpoint_defaults(site: &Path) -> anyhow::Result<EndpointDefaults> {
    let path = format!("{BUNDLES}/{SITE}");
    let repository = Repository {
        name: SITE.parse()?,
        uri: format!("file:{path}").parse()?,
        suite: "./".parse()?,
        components: Vec::new(),
        key: Key::KeyFile(format!("{path}/{KEY_FILE}").parse()?),
    };
    let mut versions = BTreeMap::new();
    for (name, version) in site::versions(site)? {
        versions.insert(name.parse()?, version.parse()?);
    }
    Ok(EndpointDefaults { versions, repositories: vec![repository] })
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
