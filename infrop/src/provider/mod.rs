//! Who has computes.

mod defaults;
pub mod lab;
pub mod lab_computes;
pub mod static_computes;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use common::{
    metadata::{Configuration, NodeName, Repository, Template},
    software::{SoftwareName, SoftwareVersion},
};
use futures::future::LocalBoxFuture;
use serde_json::{Map, Value};

use crate::{
    bootstrap::ssh::Access,
    cluster::Route,
    desired::{PoolName, ProviderName},
    writer::Record,
};

/// A compute at a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compute {
    /// Its name, which becomes the Node's.
    pub name: NodeName,
    /// The pool it is of.
    pub pool: PoolName,
    /// Its address.
    pub address: IpAddr,
    /// Who has it, as far as the provider can tell.
    pub ownership: Ownership,
    /// Whether it is switched on.
    pub power: Power,
}

/// Whether a compute is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// It is.
    On,
    /// It is not.
    Off,
    /// The provider cannot tell.
    Unknown,
}

/// Who has a compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// This infrastructure.
    Ours,
    /// Someone else, whose name stands on it.
    Foreign(String),
    /// Nobody knows, so it is not free.
    Unknown(String),
}

/// What a pool could still give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spares {
    /// As many as wanted, called `<pool>-<number>`.
    Numbered,
    /// These, which are free.
    Listed(Vec<NodeName>),
}

/// A pool as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its provider's name in the document.
    pub provider: ProviderName,
    /// Its name.
    pub name: PoolName,
    /// Its computes that are in use or that nobody knows about.
    pub computes: Vec<Compute>,
    /// What it could still give.
    pub spares: Spares,
}

/// What hosts of a provider need beside what the document says.
#[derive(Debug, Clone, Default)]
pub struct HostDefaults {
    /// Fields of `KubeletConfiguration`.
    pub kubelet: Map<String, Value>,
    /// Fields of `KubeProxyConfiguration`.
    pub kube_proxy: Map<String, Value>,
    /// Checks of kubeadm that cannot succeed there.
    pub ignore_preflight_errors: Vec<String>,
    /// Versions of software.
    pub versions: BTreeMap<SoftwareName, SoftwareVersion>,
    /// Where packages come from.
    pub repositories: Vec<Repository>,
    /// Where images come from.
    pub bundle: Option<Template>,
    /// Contents.
    pub configuration: Configuration,
    /// What control planes that carry the API's address need beside that.
    pub endpoint: EndpointDefaults,
}

/// What hosts need to carry the API's address.
#[derive(Debug, Clone, Default)]
pub struct EndpointDefaults {
    /// Versions of what carries it.
    pub versions: BTreeMap<SoftwareName, SoftwareVersion>,
    /// Where that comes from.
    pub repositories: Vec<Repository>,
}

/// What a provider cannot do, and why.
#[derive(Debug, thiserror::Error)]
#[error("provider {provider}: cannot {what}")]
pub struct Error {
    /// Its name in the document.
    pub provider: ProviderName,
    /// What was attempted.
    pub what: String,
    /// Why not.
    #[source]
    pub source: anyhow::Error,
}

/// Who has computes. Every call can be made again after a crash in the middle of it.
pub trait Provider: fmt::Debug {
    /// Its pools and computes as they are; where each has to be asked, up to `at_once` of them together. Changes nothing.
    fn observe(&self, at_once: usize) -> LocalBoxFuture<'_, Result<Vec<Pool>, Error>>;

    /// Addresses of all hosts that a pool has or could give; none if that is only known of computes that are there.
    fn addresses(&self, pool: &PoolName) -> Option<BTreeSet<IpAddr>>;

    /// Makes a compute ours.
    fn create<'a>(
        &'a self,
        pool: &'a PoolName,
        name: &'a NodeName,
    ) -> LocalBoxFuture<'a, Result<Compute, Error>>;

    /// Gives a compute back; whatever was on it is lost.
    fn delete<'a>(&'a self, compute: &'a Compute) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Whether a compute that is given back loses what was on it. If not, what was a node is reset first.
    fn erases(&self) -> bool;

    /// Switches a compute, without asking what runs on it: a host that can be asked is asked itself.
    fn power<'a>(&'a self, compute: &'a Compute, power: Power) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Gives back what the provider kept for the infrastructure beside computes, when it has none left.
    fn release(&self) -> LocalBoxFuture<'_, Result<(), Error>>;

    /// The end of what a compute's console showed and where all of it is, in one line; none where there is no console
    /// that could be read. For a host that does not answer, and so cannot be asked itself.
    fn console<'a>(&'a self, _compute: &'a Compute) -> LocalBoxFuture<'a, Option<String>> {
        Box::pin(async { None })
    }

    /// How a compute is reached.
    fn access(&self, compute: &Compute) -> Result<Access, Error>;

    /// Makes the way from here to the API at `address`, if one has to be made, and gives it.
    fn route(&self, address: SocketAddr) -> LocalBoxFuture<'_, Result<Route, Error>>;

    /// Where the provider keeps who works on the infrastructure while there is no cluster that could: at least one
    /// place, or why there is none. Control planes are of `pool`.
    fn records<'a>(&'a self, pool: &'a PoolName) -> LocalBoxFuture<'a, Result<Vec<Box<dyn Record>>, Error>>;

    /// Gives hosts that are there access to what their defaults speak of.
    fn supply(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// How many of its computes are worked on at once, where one more would only slow down the others.
    fn at_once(&self) -> usize {
        usize::MAX
    }

    /// What its hosts need.
    fn defaults(&self) -> &HostDefaults;
}
