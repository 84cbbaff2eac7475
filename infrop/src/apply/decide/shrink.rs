//! Which hosts go, and whether they may.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use common::metadata::NodeName;

use super::{
    super::snapshot::{Cluster, ClusterView, Group, Host, Role, Snapshot},
    Action, Decision, natural, paused, turns,
};
use crate::{
    bootstrap::host::KubeadmState,
    cluster::{NodeView, REMOVING, Removing},
    provider::Ownership,
};

/// The hosts that are to go, whether they may or not.
pub fn leaving(snapshot: &Snapshot) -> Vec<NodeName> {
    let groups = snapshot.groups.iter().enumerate();
    groups.flat_map(|(index, group)| victims(snapshot, index, group)).collect()
}

/// Decides which hosts are to go; gives all of them, also those that have to wait.
pub(super) fn shrink(snapshot: &Snapshot, decision: &mut Decision) -> BTreeSet<NodeName> {
    let leaving = leaving(snapshot);
    let (under_way, others): (Vec<_>, Vec<_>) =
        leaving.iter().partition(|name| snapshot.busy.contains(*name));
    let mut planned = Vec::new();
    for name in others {
        match objection(snapshot, name) {
            None => planned.push(name),
            Some(why) => drop(decision.blocked.insert(name.to_string(), why)),
        }
    }
    let removals = &snapshot.removals;
    // Those under way were counted when they began.
    if removals.done + under_way.len() + planned.len() > removals.limit {
        for name in &planned {
            let why = format!(
                "it would be removed, and with it {}, but --max-delete allows {} in this run",
                planned.len(),
                removals.limit
            );
            decision.blocked.insert(name.to_string(), why);
        }
        return leaving.into_iter().collect();
    }
    for name in planned {
        match obstacle(snapshot, name, decision) {
            None => decision.actions.push(Action::Remove(name.clone())),
            Some(Obstacle::Wait(why)) => {
                decision.waiting.insert(name.clone(), why);
            }
            Some(Obstacle::Block(why)) => {
                decision.blocked.insert(name.to_string(), why);
            }
        }
    }
    leaving.into_iter().collect()
}

/// Why a host stays, whatever else goes.
fn objection(snapshot: &Snapshot, name: &NodeName) -> Option<String> {
    if let Some(why) = paused(snapshot, name) {
        return Some(format!("it would be removed, but {why}"));
    }
    if !snapshot.removals.agreed.covers(name) {
        return Some("it would be removed, and nobody agreed to that: repeat it with --yes".to_owned());
    }
    snapshot.failed.get(name).cloned()
}

/// The hosts of a group that are to go. The choice is the same after a crash in the middle: what was begun is gone on
/// with, then what is not in the cluster goes, then the highest number.
fn victims(snapshot: &Snapshot, index: usize, group: &Group) -> Vec<NodeName> {
    let mut members: Vec<(&NodeName, &Host)> = snapshot
        .hosts
        .iter()
        .filter(|(name, host)| host.group == index && is_known_as_ours(snapshot, name, host))
        .collect();
    members.sort_by_key(|(name, host)| {
        let chosen = snapshot.removals.replace.contains(*name);
        let begun = is_leaving(snapshot, name);
        (
            !chosen,
            begun != Some(Removing::ForGood),
            begun.is_none(),
            is_in_cluster(snapshot, name, host),
            Reverse(natural(name)),
        )
    });
    let replaced = members.iter().filter(|(name, _)| snapshot.removals.replace.contains(*name)).count();
    let for_good = |name| is_leaving(snapshot, name) == Some(Removing::ForGood);
    let begun = members.iter().filter(|(name, _)| for_good(name)).count();
    let surplus = members.len().saturating_sub(group.count);
    members.into_iter().take(surplus.max(replaced).max(begun)).map(|(name, _)| name.clone()).collect()
}

/// Whether it is ours. A host that is dead cannot say so itself; if a person gives it up, its Node says it.
fn is_known_as_ours(snapshot: &Snapshot, name: &NodeName, host: &Host) -> bool {
    match host.compute.ownership {
        Ownership::Ours => true,
        Ownership::Foreign(_) => false,
        Ownership::Unknown(_) => {
            snapshot.removals.replace.contains(name) && snapshot.cluster.node(name).is_some()
        }
    }
}

fn view(snapshot: &Snapshot) -> Option<&ClusterView> {
    match &snapshot.cluster {
        Cluster::There(view) => Some(view),
        Cluster::None | Cluster::Silent(_) => None,
    }
}

/// How far its removal is, if it was begun.
pub(super) fn is_leaving(snapshot: &Snapshot, name: &NodeName) -> Option<Removing> {
    snapshot.cluster.node(name)?.annotations.get(REMOVING).map(|value| Removing::of(value))
}

/// Whether the cluster knows it. As long as nobody can tell, it does.
fn is_in_cluster(snapshot: &Snapshot, name: &NodeName, host: &Host) -> bool {
    match (view(snapshot), host.seen()) {
        (Some(view), Some(report)) => report.kubeadm != KubeadmState::None && view.nodes.contains_key(name),
        _ => true,
    }
}

enum Obstacle {
    Wait(String),
    Block(String),
}

/// Why a host cannot go now.
fn obstacle(snapshot: &Snapshot, name: &NodeName, decision: &Decision) -> Option<Obstacle> {
    let host = snapshot.hosts.get(name)?;
    let group = snapshot.groups.get(host.group)?;
    let given_up = snapshot.removals.replace.contains(name);
    if host.seen().is_none() && !given_up {
        return Some(Obstacle::Block(format!(
            "it is to go, but does not answer: switch it on, or give it up with `infrop node replace {name}`"
        )));
    }
    let view = match &snapshot.cluster {
        Cluster::None => return None,
        Cluster::Silent(why) => return Some(Obstacle::Wait(format!("the API does not answer: {why}"))),
        Cluster::There(view) => view,
    };
    if group.role != Role::ControlPlane {
        return None;
    }
    if let Some(why) = turns::others_unfinished(snapshot, name, decision) {
        return Some(Obstacle::Wait(why));
    }
    too_few_without(&view.nodes, name).map(Obstacle::Block)
}

/// Why a control plane may not leave the others alone. What is left has to be able to decide: a majority of those that
/// stay has to be well.
pub fn too_few_without(nodes: &BTreeMap<NodeName, NodeView>, name: &NodeName) -> Option<String> {
    let others = nodes.values().filter(|node| node.control_plane && node.name != *name);
    let (stay, well) =
        others.fold((0, 0), |(stay, well), node| (stay + 1, well + usize::from(node.ready.is_ok())));
    if stay == 0 {
        return Some("it is the last control plane: `infrop destroy` ends a cluster".to_owned());
    }
    let needed = stay / 2 + 1;
    (well < needed)
        .then(|| format!("without it {well} of {stay} control planes would be well, and etcd needs {needed}"))
}
