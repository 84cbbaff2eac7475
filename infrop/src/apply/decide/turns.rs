//! Control planes come and go one at a time: each that does changes who votes in etcd.

use common::metadata::NodeName;

use super::{
    super::snapshot::{Host, Role, Snapshot},
    Action, Decision,
};
use crate::bootstrap::host::KubeadmState;

/// The control plane that others have to wait for while this is done.
pub fn exclusive(snapshot: &Snapshot, action: &Action) -> Option<NodeName> {
    let is_control_plane =
        |name: &NodeName| snapshot.hosts.get(name).is_some_and(|host| snapshot.is_control_plane(host));
    match action {
        Action::Init(name) | Action::Join(name, Role::ControlPlane) => Some(name.clone()),
        Action::AwaitKubeadm(name) | Action::Reset(name) | Action::Remove(name) => {
            is_control_plane(name).then(|| name.clone())
        }
        _ => None,
    }
}

/// Why a control plane has to wait, if another one comes or goes: in this run, in this decision, or because of a run
/// before.
pub(super) fn others_at_work(snapshot: &Snapshot, name: &NodeName, decision: &Decision) -> Option<String> {
    let runs = |host: &Host| host.seen().is_some_and(|report| report.kubeadm == KubeadmState::Running);
    let decided =
        decision.actions.iter().find_map(|action| exclusive(snapshot, action).filter(|other| other != name));
    let at_work = snapshot.busy_control_planes.iter().find(|other| *other != name).cloned();
    let other = at_work.or(decided).or_else(|| other_control_plane(snapshot, name, runs))?;
    Some(format!("control planes come and go one after the other, and it is {other}'s turn"))
}

/// The same; also one that neither came nor went to its end keeps others waiting.
pub(super) fn others_unfinished(snapshot: &Snapshot, name: &NodeName, decision: &Decision) -> Option<String> {
    if let Some(why) = others_at_work(snapshot, name, decision) {
        return Some(why);
    }
    let failed =
        |host: &Host| host.seen().is_some_and(|report| matches!(report.kubeadm, KubeadmState::Failed(_)));
    let unclear = |host: &Host| snapshot.unclear.contains(&host.compute.name);
    let why = if let Some(other) = other_control_plane(snapshot, name, failed) {
        format!("kubeadm has failed on {other}")
    } else {
        format!("nobody saw how kubeadm ended on {}", other_control_plane(snapshot, name, unclear)?)
    };
    Some(format!("control planes come and go one after the other, and {why}"))
}

fn other_control_plane(
    snapshot: &Snapshot,
    name: &NodeName,
    is_meant: impl Fn(&Host) -> bool,
) -> Option<NodeName> {
    let mut planes =
        snapshot.hosts.iter().filter(|(other, host)| *other != name && snapshot.is_control_plane(host));
    planes.find(|(_, host)| is_meant(host)).map(|(other, _)| other.clone())
}
