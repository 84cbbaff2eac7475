//! What `status` shows, made of what was seen and what would be decided.

use std::collections::BTreeMap;

use common::{
    annotations,
    metadata::NodeName,
    state::{Phase, State},
};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    apply::{self, Action, Cluster, Decision, Host, Role, Snapshot},
    bootstrap::host::KubeadmState,
    cluster::{Cordon, NodeView},
    provider::{Ownership, Power},
    writer::Entry,
};

/// Everything.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) infrastructure: String,
    pub(super) cluster: ClusterReport,
    pub(super) nodes: Vec<Row>,
    /// What concerns no single node, by subject.
    pub(super) problems: BTreeMap<String, String>,
}

/// The cluster as a whole.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClusterReport {
    /// `host:port` of the API; none before a first control plane has an address.
    pub(super) endpoint: Option<String>,
    /// Whether the API answers.
    pub(super) answers: bool,
    /// Why it does not.
    pub(super) problem: Option<String>,
    /// Paused nodes, with the reason.
    pub(super) paused: BTreeMap<NodeName, String>,
    /// Who changes the infrastructure now.
    pub(super) writer: Option<Entry>,
}

/// A compute, its node, or both.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) name: NodeName,
    pub(super) provider: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) role: Option<&'static str>,
    pub(super) address: Option<String>,
    pub(super) phase: String,
    pub(super) since: Option<Timestamp>,
    pub(super) reason: Option<String>,
    pub(super) kubelet: Option<String>,
    pub(super) cordoned: bool,
    pub(super) cordoned_by: Option<String>,
    pub(super) paused: Option<String>,
    pub(super) agent: Option<State>,
    /// Versions that node-agent verified.
    pub(super) software: BTreeMap<String, String>,
}

pub(super) fn report(
    infrastructure: String,
    endpoint: Option<String>,
    snapshot: &Snapshot,
    decision: &Decision,
    writer: Option<Entry>,
) -> Report {
    let mut nodes: Vec<Row> =
        snapshot.hosts.iter().map(|(name, host)| of_host(snapshot, decision, name, host)).collect();
    let missing = decision.actions.iter().filter_map(|action| match action {
        Action::Create { group, name } => Some((*group, name)),
        _ => None,
    });
    nodes.extend(missing.map(|(group, name)| {
        let group = snapshot.groups.get(group);
        Row {
            provider: group.map(|group| group.provider.to_string()),
            pool: group.map(|group| group.pool.to_string()),
            role: group.map(|group| role(group.role)),
            reason: Some("`infrop apply` makes it".to_owned()),
            ..bare_row(name, "Missing")
        }
    }));
    let view = match &snapshot.cluster {
        Cluster::There(view) => Some(view),
        Cluster::None | Cluster::Silent(_) => None,
    };
    let lone =
        view.iter().flat_map(|view| &view.nodes).filter(|(name, _)| !snapshot.hosts.contains_key(*name));
    nodes.extend(lone.map(|(name, node)| {
        let mut row = with_node(bare_row(name, if node.ready.is_ok() { "Ready" } else { "NotReady" }), node);
        row.reason = decision.blocked.get(name.as_str()).cloned();
        row
    }));
    let shown = |subject: &str| nodes.iter().any(|row| row.name.as_str() == subject);
    let problems = decision.blocked.iter().filter(|(subject, _)| !shown(subject));
    let problems = problems.map(|(subject, why)| (subject.clone(), why.clone())).collect();
    let cluster = ClusterReport {
        endpoint,
        answers: view.is_some(),
        problem: match &snapshot.cluster {
            Cluster::There(_) => None,
            Cluster::None => Some("there is no cluster yet".to_owned()),
            Cluster::Silent(why) => Some(why.clone()),
        },
        paused: nodes.iter().filter_map(|row| Some((row.name.clone(), row.paused.clone()?))).collect(),
        writer,
    };
    nodes.sort_by_key(|row| apply::natural(&row.name));
    Report { infrastructure, cluster, nodes, problems }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::ControlPlane => "control-plane",
        Role::Worker => "worker",
    }
}

fn bare_row(name: &NodeName, phase: &str) -> Row {
    Row {
        name: name.clone(),
        provider: None,
        pool: None,
        role: None,
        address: None,
        phase: phase.to_owned(),
        since: None,
        reason: None,
        kubelet: None,
        cordoned: false,
        cordoned_by: None,
        paused: None,
        agent: None,
        software: BTreeMap::new(),
    }
}

/// The same with what stands on the Node.
fn with_node(row: Row, node: &NodeView) -> Row {
    let annotation = |key: &str| node.annotations.get(key).cloned();
    Row {
        since: node.since,
        kubelet: Some(node.kubelet.clone()),
        cordoned: node.cordoned,
        cordoned_by: annotation(annotations::CORDONED_BY).filter(|_| node.cordoned),
        paused: annotation(annotations::PAUSED).map(|text| annotations::shorten(&text)),
        agent: annotation(annotations::STATE).and_then(|text| serde_json::from_str(&text).ok()),
        software: annotations::read_current(&node.annotations),
        ..row
    }
}

fn of_host(snapshot: &Snapshot, decision: &Decision, name: &NodeName, host: &Host) -> Row {
    let node = snapshot.cluster.node(name);
    let group = snapshot.groups.get(host.group);
    let mut row = Row {
        provider: group.map(|group| group.provider.to_string()),
        pool: group.map(|group| group.pool.to_string()),
        role: group.map(|group| role(group.role)),
        address: Some(host.compute.address.to_string()),
        ..bare_row(name, "")
    };
    if let Some(node) = node {
        row = with_node(row, node);
    }
    // Before there is a Node, the host itself says what its agent does.
    row.agent = row.agent.or_else(|| host.seen().and_then(|report| report.agent.clone()));
    let busy = row.agent.as_ref().filter(|state| state.phase != Phase::Idle);
    let (phase, told_by_agent) = match phase(host, node, busy) {
        Some(phase) => (phase.to_owned(), false),
        None => (busy.map(|state| state.phase.to_string()).unwrap_or_default(), true),
    };
    row.reason = why(decision, name, node, busy);
    if told_by_agent {
        row.since = busy.map(|state| state.since);
    } else if !matches!(phase.as_str(), "Ready" | "NotReady") {
        // Nothing tells since when.
        row.since = None;
    }
    row.phase = phase;
    row
}

/// Where a host is on its way; none if its agent's phase says it better.
fn phase(host: &Host, node: Option<&NodeView>, busy: Option<&State>) -> Option<&'static str> {
    match &host.compute.ownership {
        Ownership::Ours => {}
        Ownership::Foreign(_) => return Some("Foreign"),
        Ownership::Unknown(_) => return Some("Unknown"),
    }
    if host.compute.power == Power::Off {
        return Some("Off");
    }
    let Some(report) = host.seen() else { return Some("Silent") };
    match (&report.kubeadm, node) {
        (KubeadmState::Running, _) => Some("Joining"),
        (KubeadmState::Failed(_), _) => Some("Failed"),
        (KubeadmState::None, _) if report.delivered.is_none() => Some("Bare"),
        (_, Some(node)) if node.ready.is_err() => Some("NotReady"),
        _ if busy.is_some() => None,
        (KubeadmState::None, _) => Some(if report.initialized.is_some() { "Prepared" } else { "Preparing" }),
        (KubeadmState::Done, None) => Some("Joining"),
        (KubeadmState::Done, Some(_)) => Some("Ready"),
    }
}

/// What keeps it, what it waits for, or what is next.
fn why(
    decision: &Decision,
    name: &NodeName,
    node: Option<&NodeView>,
    busy: Option<&State>,
) -> Option<String> {
    let blocked = || decision.blocked.get(name.as_str()).cloned();
    let agent = || busy.map(|state| format!("{}: {}", state.reason, state.message));
    let waiting = || decision.waiting.get(name).cloned();
    let not_ready = || node.and_then(|node| node.ready.clone().err());
    let next = || {
        let action = decision.actions.iter().find(|action| action.host() == Some(name))?;
        Some(format!("next for `infrop apply`: {action}"))
    };
    let paused = || {
        let reason = node?.annotations.get(annotations::PAUSED)?;
        Some(format!("paused: {}", annotations::shorten(reason)))
    };
    let cordoned = || {
        let node = node?;
        match Cordon::of(node.cordoned, node.annotations.get(annotations::CORDONED_BY).map(String::as_str)) {
            Cordon::None => None,
            Cordon::Marked(mark) => Some(format!("cordoned by {}", annotations::shorten(&mark))),
            Cordon::Foreign => Some("cordoned by a person".to_owned()),
        }
    };
    blocked()
        .or_else(agent)
        .or_else(waiting)
        .or_else(not_ready)
        .or_else(next)
        .or_else(paused)
        .or_else(cordoned)
}
