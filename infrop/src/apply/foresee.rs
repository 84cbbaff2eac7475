//! What a run would do from beginning to end, if everything went well: the same decisions, on a world that is only
//! assumed.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use common::{metadata::InitializedMark, plan::Plan};
use jiff::Timestamp;

use super::{
    decide::{Action, Decision, decide, first_plan},
    snapshot::{Cluster, ClusterView, Host, Snapshot},
};
use crate::{
    bootstrap::host::{HostReport, KubeadmState},
    cluster::{NodeView, REMOVING},
    provider::{Compute, Ownership, Power},
    rollout::reach,
};

/// Every host takes some ten steps; a plan that does not end by then would never.
const STEPS_PER_HOST: usize = 100;

/// All steps in their order, what would still be blocked or wait after them, and the world then.
pub fn foresee(snapshot: &Snapshot) -> (Vec<Action>, Decision, Snapshot) {
    let mut world = snapshot.clone();
    let hosts: usize = world.groups.iter().map(|group| group.count).sum::<usize>() + world.hosts.len() + 1;
    let mut steps = Vec::new();
    for _ in 0..STEPS_PER_HOST * hosts {
        let decision = decide(&world);
        if decision.actions.is_empty() {
            return (steps, decision, world);
        }
        for action in decision.actions {
            assume(&mut world, &action);
            steps.push(action);
        }
    }
    let decision = decide(&world);
    (steps, decision, world)
}

/// The world after an action that went well.
fn assume(world: &mut Snapshot, action: &Action) {
    match action {
        Action::Create { group, name } => {
            let Some(pool) = world.groups.get(*group).map(|group| group.pool.clone()) else { return };
            // Any address will do, as long as no other host has it.
            let number = u32::try_from(world.hosts.len()).unwrap_or(u32::MAX);
            let address = IpAddr::V4(Ipv4Addr::from_bits(number));
            let compute =
                Compute { name: name.clone(), pool, address, ownership: Ownership::Ours, power: Power::On };
            let host = Host { compute, group: *group, report: None, wanted: None };
            world.hosts.insert(name.clone(), host);
        }
        Action::AwaitApi => world.cluster = Cluster::There(ClusterView::default()),
        Action::Apply => {
            if let Cluster::There(view) = &mut world.cluster {
                view.pending.clear();
            }
        }
        Action::Remove(name) => {
            world.hosts.remove(name);
            world.removals.replace.remove(name);
            world.removals.done += 1;
            if let Cluster::There(view) = &mut world.cluster {
                view.nodes.remove(name);
            }
        }
        Action::Register(name) | Action::AwaitReady(name) => {
            let Some(host) = world.hosts.get(name) else { return };
            let group = world.groups.get(host.group);
            let known = world.cluster.node(name).cloned();
            let mut node = known.unwrap_or_else(|| NodeView {
                name: name.clone(),
                uid: String::new(),
                resource_version: String::new(),
                ready: Ok(()),
                since: None,
                cordoned: false,
                taints: Vec::new(),
                control_plane: world.is_control_plane(host),
                kubelet: String::new(),
                boot_id: String::new(),
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
            });
            node.ready = Ok(());
            node.boot_id = host.seen().map(|report| report.boot_id.clone()).unwrap_or_default();
            node.labels.extend(group.map(|group| group.labels.clone()).unwrap_or_default());
            if let Some(plan) = first_plan(&node, Some(host)) {
                reach(&mut node, plan, Timestamp::UNIX_EPOCH);
            }
            if let Cluster::There(view) = &mut world.cluster {
                view.nodes.insert(name.clone(), node);
            }
        }
        Action::Keep(name) => {
            if let Cluster::There(view) = &mut world.cluster
                && let Some(node) = view.nodes.get_mut(name)
            {
                node.annotations.remove(REMOVING);
                node.cordoned = false;
            }
        }
        Action::PowerOn(name) => {
            if let Some(host) = world.hosts.get_mut(name) {
                host.compute.power = Power::On;
            }
        }
        Action::Init(name) | Action::Join(name, _) | Action::AwaitKubeadm(name) => {
            let control_plane = world.hosts.get(name).is_some_and(|host| world.is_control_plane(host));
            if let Some(report) = report(world, action) {
                report.kubeadm = KubeadmState::Done;
                report.joined = true;
                report.control_plane = control_plane;
            }
            if matches!(world.cluster, Cluster::None) {
                // A new cluster has none of the objects.
                let view = ClusterView { pending: vec!["objects".to_owned()], ..ClusterView::default() };
                world.cluster = Cluster::There(view);
            }
        }
        Action::Connect(_) | Action::Deliver(_) | Action::AwaitInitialized(_) | Action::Reset(_) => {
            prepare(world, action);
        }
    }
}

/// What happens to a host before it is part of a cluster.
fn prepare(world: &mut Snapshot, action: &Action) {
    let Some(name) = action.host().cloned() else { return };
    let Some(host) = world.hosts.get_mut(&name) else { return };
    let unknown = || Ok(("foreseen".to_owned(), Plan::default()));
    let wanted = host.wanted.get_or_insert_with(unknown).clone();
    let report = host.report.get_or_insert_with(|| Ok(HostReport::default()));
    if report.is_err() {
        *report = Ok(HostReport::default());
    }
    let (Ok(report), Ok((digest, plan))) = (report, wanted) else { return };
    match action {
        Action::Deliver(_) => report.delivered = Some(digest),
        Action::AwaitInitialized(_) => {
            report.initialized = Some(InitializedMark {
                node: name,
                plan: plan.id(),
                at: Timestamp::UNIX_EPOCH,
                boot_id: report.boot_id.clone(),
                agent_version: String::new(),
            });
        }
        Action::Reset(_) => {
            report.kubeadm = KubeadmState::None;
            report.joined = false;
            report.control_plane = false;
        }
        _ => {}
    }
}

fn report<'a>(world: &'a mut Snapshot, action: &Action) -> Option<&'a mut HostReport> {
    world.hosts.get_mut(action.host()?)?.report.as_mut()?.as_mut().ok()
}
