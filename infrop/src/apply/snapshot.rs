//! What is, beside what is wanted: all that a decision is made of.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use anyhow::Context as _;
use common::{KubernetesVersion, metadata::NodeName, plan::Plan};
use semver::Version;

use crate::{
    bootstrap::host::HostReport,
    cluster::NodeView,
    desired::{PoolName, ProviderName, Taint},
    provider::{Compute, Ownership, Spares},
};

/// What a group of hosts is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Kubernetes itself.
    ControlPlane,
    /// Everything else.
    Worker,
}

/// Hosts of one pool with one purpose, as wanted, and what the pool could still give.
#[derive(Debug, Clone)]
pub struct Group {
    /// The provider's name.
    pub provider: ProviderName,
    /// The pool's name.
    pub pool: PoolName,
    /// What for.
    pub role: Role,
    /// How many.
    pub count: usize,
    /// Labels of its Nodes.
    pub labels: BTreeMap<String, String>,
    /// Taints its Nodes begin with; none for kubeadm's default.
    pub taints: Option<Vec<Taint>>,
    /// What the pool could still give.
    pub spares: Spares,
    /// Whom its hosts lead calls to, if they carry the API's address.
    pub peers: Option<Peers>,
}

/// All hosts of a group, as each of them has to know them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// Known ahead, spares included.
    Given(BTreeSet<IpAddr>),
    /// The computes there are, once there are as many as wanted.
    Computes,
}

/// A compute, and what is known of the host on it.
#[derive(Debug, Clone)]
pub struct Host {
    /// The compute.
    pub compute: Compute,
    /// Its group, as an index.
    pub group: usize,
    /// What it says of itself; none before it was asked, an error's text if it did not answer.
    pub report: Option<Result<HostReport, String>>,
    /// What it is to have: the digest of a delivery, and the plan in it. None before it said what it is and its peers
    /// are known, an error's text if nothing can be made for it.
    pub wanted: Option<Result<(String, Plan), String>>,
}

impl Host {
    /// What it says of itself, if it answers.
    pub fn seen(&self) -> Option<&HostReport> {
        self.report.as_ref()?.as_ref().ok()
    }
}

/// The cluster.
#[derive(Debug, Clone, Default)]
pub enum Cluster {
    /// No control plane of ours ever had one.
    #[default]
    None,
    /// There is one, and it does not answer.
    Silent(String),
    /// There is one.
    There(ClusterView),
}

impl Cluster {
    /// Its Node of that name, as far as it can be seen.
    pub fn node(&self, name: &NodeName) -> Option<&NodeView> {
        match self {
            Self::There(view) => view.nodes.get(name),
            Self::None | Self::Silent(_) => None,
        }
    }
}

/// A cluster that answers.
#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    /// Its Nodes.
    pub nodes: BTreeMap<NodeName, NodeView>,
    /// Objects that it does not have yet in the wanted form, by title.
    pub pending: Vec<String>,
}

/// Everything.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// What is wanted.
    pub groups: Vec<Group>,
    /// The hosts there are, by name.
    pub hosts: BTreeMap<NodeName, Host>,
    /// The cluster.
    pub cluster: Cluster,
    /// Hosts that something is being done with.
    pub busy: BTreeSet<NodeName>,
    /// Whether objects are being applied.
    pub applying: bool,
    /// Control planes that come or go in this moment: others have to wait for them.
    pub busy_control_planes: BTreeSet<NodeName>,
    /// Hosts that are given up in this run, with the reason.
    pub failed: BTreeMap<NodeName, String>,
    /// Why the cluster as a whole is given up in this run.
    pub cluster_failed: Option<String>,
    /// Hosts on which this run may have begun a kubeadm that nobody has seen since.
    pub unclear: BTreeSet<NodeName>,
    /// How often kubeadm failed on a host in this run.
    pub kubeadm_failures: BTreeMap<NodeName, u32>,
    /// Whether someone may be at work whom the cluster's Lease would name: this run has not had it yet.
    pub unsure: bool,
    /// What may be taken away.
    pub removals: Removals,
    /// The Kubernetes version that hosts come with; none before the document was read.
    pub kubernetes: Option<KubernetesVersion>,
    /// The version of node-agent that this infrop brings; none if nobody can tell.
    pub agent_version: Option<Version>,
}

impl Snapshot {
    /// The group of a host. Hosts are only ever taken in with one that is there.
    pub fn group(&self, host: &Host) -> anyhow::Result<&Group> {
        self.groups.get(host.group).with_context(|| format!("{} is of no group", host.compute.name))
    }

    /// Forgets what a host said before something was done there that did not come to its end: what it said then is not
    /// true any more, and nothing is decided before it was looked at anew.
    pub fn doubt(&mut self, name: &NodeName) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        host.report = None;
        self.unclear.insert(name.clone());
    }

    /// Whether a host is meant to run Kubernetes itself.
    pub fn is_control_plane(&self, host: &Host) -> bool {
        self.groups.get(host.group).is_some_and(|group| group.role == Role::ControlPlane)
    }

    /// The addresses that hosts of a group lead calls to; none before all are known, or if they lead nowhere.
    pub fn peers(&self, group: usize) -> Option<BTreeSet<IpAddr>> {
        let Group { count, peers, .. } = self.groups.get(group)?;
        match peers.as_ref()? {
            Peers::Given(addresses) => Some(addresses.clone()),
            Peers::Computes => {
                let members = self.hosts.values().filter(|host| {
                    host.group == group && !matches!(host.compute.ownership, Ownership::Foreign(_))
                });
                let addresses: BTreeSet<IpAddr> = members.map(|host| host.compute.address).collect();
                (addresses.len() >= *count).then_some(addresses)
            }
        }
    }
}

/// What a run may take away.
#[derive(Debug, Clone, Default)]
pub struct Removals {
    /// How many computes in all.
    pub limit: usize,
    /// How many it took away so far.
    pub done: usize,
    /// Hosts that are to go although their group is not too large: others come in their place.
    pub replace: BTreeSet<NodeName>,
    /// What a person agreed to.
    pub agreed: Agreed,
}

/// What a person agreed to be taken away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Agreed {
    /// Nothing.
    #[default]
    Nothing,
    /// These hosts.
    These(BTreeSet<NodeName>),
    /// Whatever the document no longer asks for.
    All,
}

impl Agreed {
    /// Whether a host may go.
    pub fn covers(&self, name: &NodeName) -> bool {
        match self {
            Self::Nothing => false,
            Self::These(names) => names.contains(name),
            Self::All => true,
        }
    }
}
