//! Who makes the cluster, and whether there can be one already.

use common::metadata::NodeName;

use super::{
    super::snapshot::{Host, Snapshot},
    Action, Next, natural,
};
use crate::{
    bootstrap::host::{HostReport, KubeadmState},
    provider::Ownership,
};

/// Whether this host may make the cluster: it is the first control plane, and no other host can have one.
pub(super) fn first(snapshot: &Snapshot, name: &NodeName) -> Next {
    for (other, host) in &snapshot.hosts {
        match witness(snapshot, other, host) {
            Witness::Nothing => {}
            Witness::Unsure(why) => return Next::Wait(why),
            Witness::Cluster(why) => return Next::Blocked(why),
        }
    }
    let candidates = snapshot.hosts.iter().filter(|(candidate, host)| {
        snapshot.is_control_plane(host) && !snapshot.failed.contains_key(*candidate)
    });
    // The one whose name comes first, numbers compared as numbers.
    let lowest = candidates.map(|(candidate, _)| candidate).min_by_key(|candidate| natural(candidate));
    if lowest == Some(name) && snapshot.busy_control_planes.is_empty() {
        Next::Do(Action::Init(name.clone()))
    } else {
        Next::Wait("the first control plane makes the cluster".to_owned())
    }
}

/// What a host says about a cluster that no control plane shows.
enum Witness {
    /// It has seen none.
    Nothing,
    /// It may know one.
    Unsure(String),
    /// It is part of one, or a person has to say whether it is.
    Cluster(String),
}

fn witness(snapshot: &Snapshot, name: &NodeName, host: &Host) -> Witness {
    let is_control_plane = snapshot.is_control_plane(host);
    match &host.compute.ownership {
        Ownership::Ours => {}
        // Workers of others, and those that are not there, hold nobody up.
        _ if !is_control_plane => return Witness::Nothing,
        Ownership::Foreign(owner) => {
            return Witness::Cluster(format!(
                "{name} is in the pool of the control planes, belongs to {owner} and may have a cluster: take it out of \
                 the document, or release it there"
            ));
        }
        Ownership::Unknown(why) => {
            return Witness::Unsure(format!(
                "nobody knows what is on {name}, and it may have a cluster: {why}"
            ));
        }
    }
    let Some(HostReport { kubeadm, joined, .. }) = host.seen() else {
        if !is_control_plane {
            return Witness::Nothing;
        }
        // A host that is only being set up has nothing to hide; one that never answered may have a cluster.
        let answers = if host.report.is_some() || snapshot.failed.contains_key(name) {
            "does not answer"
        } else {
            "has not answered yet"
        };
        return Witness::Unsure(format!("{name} {answers}, and it may have a cluster"));
    };
    match kubeadm {
        KubeadmState::Done => Witness::Cluster(format!(
            "{name} is part of a cluster already, and no control plane of this document has it: if that cluster lives, \
             bring its control planes back; if it is no more, `infrop node replace {name}` takes {name} out of it"
        )),
        KubeadmState::None if *joined => Witness::Cluster(format!(
            "{name} is part of a cluster that infrop did not make: run `kubeadm reset` there if that cluster is no \
             more, or take {name} out of the document"
        )),
        KubeadmState::None => Witness::Nothing,
        KubeadmState::Running | KubeadmState::Failed(_) => {
            Witness::Unsure(format!("kubeadm was begun on {name}"))
        }
    }
}
