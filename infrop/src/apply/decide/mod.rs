//! What to do next: a pure function of what is.

mod first;
mod shrink;
#[cfg(test)]
mod tests;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use common::{KubernetesVersion, annotations, metadata::NodeName, plan::Plan};
use semver::Version;

pub use self::{
    shrink::{leaving, too_few_without},
    turns::exclusive,
};
use super::snapshot::{Cluster, ClusterView, Group, Host, Role, Snapshot};
use crate::{
    bootstrap::host::{HostReport, KubeadmState},
    cluster::{NodeView, Removing},
    provider::{Ownership, Power, Spares},
};

/// kubeadm is started anew this often on a host before it is left alone.
const KUBEADM_ATTEMPTS: u32 = 3;

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Make a compute.
    Create {
        /// The group, as an index.
        group: usize,
        /// Its name.
        name: NodeName,
    },
    /// Switch a compute on.
    PowerOn(NodeName),
    /// Wait until a host answers.
    Connect(NodeName),
    /// Put node-agent and metadata on a host.
    Deliver(NodeName),
    /// Wait until a host's agent reached its metadata's plan.
    AwaitInitialized(NodeName),
    /// Remove what a kubeadm left that did not end well.
    Reset(NodeName),
    /// Make the cluster.
    Init(NodeName),
    /// Join the cluster.
    Join(NodeName, Role),
    /// Wait for a kubeadm that an earlier run started.
    AwaitKubeadm(NodeName),
    /// Wait until the API answers.
    AwaitApi,
    /// Apply objects.
    Apply,
    /// Give a Node its labels, and the plan it came with.
    Register(NodeName),
    /// Wait until a Node is Ready.
    AwaitReady(NodeName),
    /// Let pods come again to a node that was to go and is wanted again.
    Keep(NodeName),
    /// Take a node out of the cluster and give its compute back.
    Remove(NodeName),
}

impl Action {
    /// The host it is about.
    pub fn host(&self) -> Option<&NodeName> {
        match self {
            Self::Create { name, .. }
            | Self::PowerOn(name)
            | Self::Connect(name)
            | Self::Deliver(name)
            | Self::AwaitInitialized(name)
            | Self::Reset(name)
            | Self::Init(name)
            | Self::Join(name, _)
            | Self::AwaitKubeadm(name)
            | Self::Register(name)
            | Self::AwaitReady(name)
            | Self::Keep(name)
            | Self::Remove(name) => Some(name),
            Self::AwaitApi | Self::Apply => None,
        }
    }

    /// Whose turn it is where not all can be worked on at once: the cluster's, that of hosts that were begun, of others, and
    /// last of workers that could join. A worker that has joined works for the cluster, and where hosts share a computer,
    /// the others wait for it.
    fn turn(&self) -> u8 {
        match self {
            Self::Create { .. } => 1,
            Self::Join(_, Role::Worker) => 2,
            _ => 0,
        }
    }

    /// Whether it only waits.
    pub fn is_wait(&self) -> bool {
        matches!(
            self,
            Self::Connect(_)
                | Self::AwaitInitialized(_)
                | Self::AwaitKubeadm(_)
                | Self::AwaitApi
                | Self::AwaitReady(_)
        )
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { name, .. } => write!(f, "create {name}"),
            Self::PowerOn(name) => write!(f, "switch {name} on"),
            Self::Connect(name) => write!(f, "wait until {name} answers"),
            Self::Deliver(name) => write!(f, "install node-agent on {name}"),
            Self::AwaitInitialized(name) => write!(f, "wait until {name} has its software"),
            Self::Reset(name) => write!(f, "remove what an unfinished kubeadm left on {name}"),
            Self::Init(name) => write!(f, "make the cluster on {name}"),
            Self::Join(name, Role::ControlPlane) => write!(f, "join {name} as a control plane"),
            Self::Join(name, Role::Worker) => write!(f, "join {name} as a worker"),
            Self::AwaitKubeadm(name) => write!(f, "wait for kubeadm on {name}"),
            Self::AwaitApi => f.write_str("wait until the API answers"),
            Self::Apply => f.write_str("apply objects"),
            Self::Register(name) => write!(f, "register {name}"),
            Self::AwaitReady(name) => write!(f, "wait until {name} is Ready"),
            Self::Keep(name) => write!(f, "keep {name}"),
            Self::Remove(name) => write!(f, "remove {name}"),
        }
    }
}

/// What is to be done, what has to wait, and what cannot be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// To be done now, all at once.
    pub actions: Vec<Action>,
    /// What waits for something else, and for what.
    pub waiting: BTreeMap<NodeName, String>,
    /// What stays as it is until a person does something, and why.
    pub blocked: BTreeMap<String, String>,
}

/// Decides.
pub fn decide(snapshot: &Snapshot) -> Decision {
    let mut decision = Decision::default();
    for (index, group) in snapshot.groups.iter().enumerate() {
        grow(snapshot, index, group, &mut decision);
    }
    cluster(snapshot, &mut decision);
    let leaving = shrink::shrink(snapshot, &mut decision);
    for (name, host) in &snapshot.hosts {
        if snapshot.busy.contains(name) || leaving.contains(name) {
            continue;
        }
        if let Some(why) = snapshot.failed.get(name) {
            decision.blocked.insert(name.to_string(), why.clone());
            continue;
        }
        let Some(group) = snapshot.groups.get(host.group) else { continue };
        match next(snapshot, name, host, group, &decision) {
            Next::Done => {}
            Next::Do(action) => match paused(snapshot, name) {
                // Also nothing that only waits: whoever paused it may have switched it off.
                Some(why) => {
                    decision.blocked.insert(name.to_string(), format!("cannot {action}: {why}"));
                }
                None => decision.actions.push(action),
            },
            Next::Wait(why) => {
                decision.waiting.insert(name.clone(), why);
            }
            Next::Blocked(why) => {
                decision.blocked.insert(name.to_string(), why);
            }
        }
    }
    hold(snapshot, &mut decision);
    decision.actions.sort_by_key(Action::turn);
    decision
}

/// Who is at work stands in the cluster. While it does not answer, for instance because its only control plane is being
/// upgraded, nothing is changed but what may bring it back.
fn hold(snapshot: &Snapshot, decision: &mut Decision) {
    let Cluster::Silent(why) = &snapshot.cluster else { return };
    if !snapshot.unsure {
        return;
    }
    let harmless = |action: &Action| action.is_wait() || matches!(action, Action::PowerOn(_));
    let (go_on, held) = std::mem::take(&mut decision.actions).into_iter().partition(harmless);
    decision.actions = go_on;
    for action in held {
        let Some(host) = action.host() else { continue };
        let why = format!(
            "cannot {action} while the API does not answer, for there stands who is at work ({why}); with --take-over \
             it goes on, if you know that nobody is"
        );
        decision.waiting.insert(host.clone(), why);
    }
}

/// Why nothing may be changed on a node, if a person paused it.
fn paused(snapshot: &Snapshot, name: &NodeName) -> Option<String> {
    let reason = snapshot.cluster.node(name)?.annotations.get(annotations::PAUSED)?;
    Some(format!("it is paused ({}): `infrop resume --node {name}` ends that", annotations::shorten(reason)))
}

/// Computes that are missing in a group.
fn grow(snapshot: &Snapshot, index: usize, group: &Group, decision: &mut Decision) {
    // One that nobody knows about counts: it may be ours.
    let members: BTreeSet<&NodeName> = snapshot
        .hosts
        .iter()
        .filter(|(_, host)| host.group == index && !matches!(host.compute.ownership, Ownership::Foreign(_)))
        .map(|(name, _)| name)
        .collect();
    // Names that are being created count: they are busy before they are hosts.
    let prefix = format!("{}-", group.pool);
    let coming = snapshot.busy.iter().filter(|name| !snapshot.hosts.contains_key(*name)).filter(|name| {
        match &group.spares {
            Spares::Numbered => {
                name.as_str().strip_prefix(&prefix).is_some_and(|rest| rest.parse::<u32>().is_ok())
            }
            Spares::Listed(spares) => spares.contains(name),
        }
    });
    let coming: BTreeSet<&NodeName> = coming.collect();
    let missing = group.count.saturating_sub(members.len() + coming.len());
    let names: Vec<NodeName> = match &group.spares {
        Spares::Numbered => (1..)
            .filter_map(|number: u32| format!("{prefix}{number}").parse().ok())
            .filter(|name| !snapshot.hosts.contains_key(name) && !coming.contains(name))
            .take(missing)
            .collect(),
        Spares::Listed(spares) => spares
            .iter()
            .filter(|name| !snapshot.hosts.contains_key(*name) && !coming.contains(name))
            .take(missing)
            .cloned()
            .collect(),
    };
    if names.len() < missing {
        let why = format!(
            "{} more hosts are wanted than pool {} of provider {} has free",
            missing - names.len(),
            group.pool,
            group.provider
        );
        decision.blocked.insert(format!("pool {}", group.pool), why);
    }
    for name in names {
        match snapshot.failed.get(&name) {
            Some(why) => {
                decision.blocked.insert(name.to_string(), why.clone());
            }
            None => decision.actions.push(Action::Create { group: index, name }),
        }
    }
}

/// What concerns the cluster as a whole.
fn cluster(snapshot: &Snapshot, decision: &mut Decision) {
    if let Some(why) = &snapshot.cluster_failed {
        decision.blocked.insert("cluster".to_owned(), why.clone());
    }
    let idle = !snapshot.applying && snapshot.cluster_failed.is_none();
    match &snapshot.cluster {
        Cluster::None => {}
        Cluster::Silent(_) => {
            if idle {
                decision.actions.push(Action::AwaitApi);
            }
        }
        Cluster::There(ClusterView { nodes, pending }) => {
            if !pending.is_empty() && idle {
                decision.actions.push(Action::Apply);
            }
            for (name, node) in nodes {
                if !snapshot.hosts.contains_key(name) && !snapshot.busy.contains(name) {
                    let state = if node.ready.is_ok() { "Ready" } else { "there" };
                    let why = format!(
                        "the Node is {state}, but no pool of the document has a compute of that name: delete the Node if its \
                         machine is gone for good, or add it to the document"
                    );
                    decision.blocked.insert(name.to_string(), why);
                }
            }
        }
    }
}

enum Next {
    Done,
    Do(Action),
    Wait(String),
    Blocked(String),
}

/// The next step of one host.
fn next(snapshot: &Snapshot, name: &NodeName, host: &Host, group: &Group, decision: &Decision) -> Next {
    match &host.compute.ownership {
        Ownership::Ours => {}
        Ownership::Foreign(owner) => {
            return Next::Blocked(format!(
                "it belongs to {owner}: take it out of the document, or release it there"
            ));
        }
        Ownership::Unknown(why) => return Next::Blocked(format!("nobody knows what is on it: {why}")),
    }
    // One that has lost more than its pods waits for its turn to go.
    if shrink::is_leaving(snapshot, name) == Some(Removing::Surplus) {
        return Next::Do(Action::Keep(name.clone()));
    }
    if host.compute.power == Power::Off {
        return Next::Do(Action::PowerOn(name.clone()));
    }
    let Some(report) = host.seen() else { return Next::Do(Action::Connect(name.clone())) };
    if report.joined && report.kubeadm == KubeadmState::None {
        return Next::Blocked(
            "it is part of a cluster that infrop did not make: run `kubeadm reset` there if that cluster is no more"
                .to_owned(),
        );
    }
    if group.peers.is_some() && snapshot.peers(host.group).is_none() && report.kubeadm == KubeadmState::None {
        return Next::Wait("it waits until all control planes have an address".to_owned());
    }
    if let Some(Err(why)) = &host.wanted {
        return Next::Blocked(why.clone());
    }
    if let Some(Ok((digest, plan))) = &host.wanted {
        if report.delivered.as_ref() != Some(digest) {
            if let Some(why) = newer_agent(snapshot, report) {
                return Next::Blocked(why);
            }
            return Next::Do(Action::Deliver(name.clone()));
        }
        let initialized = report.initialized.as_ref().is_some_and(|mark| mark.plan == plan.id());
        if report.kubeadm == KubeadmState::None && !initialized {
            return Next::Do(Action::AwaitInitialized(name.clone()));
        }
    }
    match &report.kubeadm {
        KubeadmState::Running => Next::Do(Action::AwaitKubeadm(name.clone())),
        KubeadmState::Failed(log) => failed(snapshot, name, group, log, decision),
        KubeadmState::None => enter(snapshot, name, group, decision),
        KubeadmState::Done => settle(snapshot, name, report, group),
    }
}

/// Why a delivery would be a step back: an infrop newer than this one delivered before.
fn newer_agent(snapshot: &Snapshot, report: &HostReport) -> Option<String> {
    report.delivered.as_ref()?;
    let ours = snapshot.agent_version.as_ref()?;
    // Packages of infrop have plain versions. Of any other text nobody can tell whether it is newer, and a host must not
    // be kept from its updates for good because of it: it counts as not newer.
    let theirs = Version::parse(report.agent_package.as_ref()?).ok()?;
    theirs.cmp_precedence(ours).is_gt().then(|| {
        format!("it has node-agent {theirs}, and this infrop brings {ours}: use an infrop as new as that")
    })
}

fn failed(snapshot: &Snapshot, name: &NodeName, group: &Group, log: &str, decision: &Decision) -> Next {
    let failures = snapshot.kubeadm_failures.get(name).copied().unwrap_or(0);
    if failures >= KUBEADM_ATTEMPTS {
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it left no log");
        return Next::Blocked(format!("kubeadm failed {failures} times: {}", last.trim()));
    }
    if group.role == Role::ControlPlane
        && let Some(why) = turns::others_at_work(snapshot, name, decision)
    {
        return Next::Wait(why);
    }
    Next::Do(Action::Reset(name.clone()))
}

/// A host that is ready for kubeadm.
fn enter(snapshot: &Snapshot, name: &NodeName, group: &Group, decision: &Decision) -> Next {
    if let Some(why) = older_control_plane(snapshot) {
        return Next::Wait(why);
    }
    match (&snapshot.cluster, group.role) {
        (Cluster::Silent(why), _) => Next::Wait(format!("the API does not answer: {why}")),
        (Cluster::None, Role::Worker) => Next::Wait("there is no cluster to join yet".to_owned()),
        (Cluster::None, Role::ControlPlane) => first::first(snapshot, name),
        (Cluster::There(_), Role::Worker) => Next::Do(Action::Join(name.clone(), Role::Worker)),
        (Cluster::There(_), Role::ControlPlane) => match turns::others_unfinished(snapshot, name, decision) {
            Some(why) => Next::Wait(why),
            None => Next::Do(Action::Join(name.clone(), Role::ControlPlane)),
        },
    }
}

/// Why a host cannot join with its versions yet: a kubelet is never newer than an API server.
fn older_control_plane(snapshot: &Snapshot) -> Option<String> {
    let Cluster::There(view) = &snapshot.cluster else { return None };
    let ours = snapshot.kubernetes.as_ref()?;
    let mut planes = view.nodes.values().filter(|node| node.control_plane);
    let older =
        planes.find(|node| node.kubelet.parse::<KubernetesVersion>().is_ok_and(|version| version < *ours))?;
    Some(format!(
        "it comes with Kubernetes {ours}, and {} has {}: it joins after the rollout",
        older.name, older.kubelet
    ))
}

/// Sorts cp-2 before cp-10.
pub fn natural(name: &NodeName) -> (String, u64, String) {
    let (prefix, number, text) = natural_parts(name);
    (prefix.to_owned(), number, text.to_owned())
}

/// The same, of a name that stays where it is.
pub fn natural_parts(name: &NodeName) -> (&str, u64, &str) {
    let text = name.as_str();
    let digits = text.len() - text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (prefix, number) = text.split_at(text.len() - digits);
    (prefix, number.parse().unwrap_or(0), text)
}

/// The plan that a new Node is to have: that of the metadata with which its host was brought up.
pub fn first_plan<'a>(node: &NodeView, host: Option<&'a Host>) -> Option<&'a Plan> {
    let (_, plan) = host?.wanted.as_ref()?.as_ref().ok()?;
    let reached = host?.seen()?.initialized.as_ref()?.plan == plan.id();
    (reached && !node.annotations.contains_key(annotations::PLAN)).then_some(plan)
}

/// A host that joined.
fn settle(snapshot: &Snapshot, name: &NodeName, report: &HostReport, group: &Group) -> Next {
    let Cluster::There(view) = &snapshot.cluster else {
        return Next::Wait("the API does not answer".to_owned());
    };
    let Some(node) = view.nodes.get(name) else { return Next::Do(Action::AwaitReady(name.clone())) };
    let labelled = group.labels.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    if !labelled || first_plan(node, snapshot.hosts.get(name)).is_some() {
        return Next::Do(Action::Register(name.clone()));
    }
    // What a Node says of the boot before is not true any more.
    if node.ready.is_err() || node.boot_id != report.boot_id {
        return Next::Do(Action::AwaitReady(name.clone()));
    }
    Next::Done
}
