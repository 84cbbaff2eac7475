//! A rollout to its end, if each step goes well: the same decisions, and a world that does what it is told.

use std::collections::BTreeMap;

use common::{
    annotations::{
        self, CHANGES_ALLOWED, CORDONED_BY, EXCLUDED_BY, PERMITTED_PLAN, PLAN_OBSERVED, READY, STATE,
    },
    plan::Plan,
    state::{Phase, Reason, State},
};
use jiff::Timestamp;

use super::{
    assess::{MARK, Verb, has_left_mark},
    decide::{Action, Decision, decide},
    patch,
    reason::Reason as Waits,
    saved::SAVED,
    snapshot::{Etcd, Snapshot},
};
use crate::cluster::NodeView;

/// More than a node needs: a world in which they go round in circles is not foreseen any further.
const STEPS_PER_NODE: usize = 12;

/// All steps in their order, where every node is after them, and the world then.
pub fn foresee(snapshot: &Snapshot) -> (Vec<Action>, Decision, Snapshot) {
    let mut world = snapshot.clone();
    let mut steps = Vec::new();
    for _ in 0..STEPS_PER_NODE * (world.members.len() + 1) {
        let decision = decide(&world);
        if decision.actions.is_empty() {
            // Whoever is waited for needs its time; a soak is over then.
            let later = if decision.is_moving() { decision.until } else { next_window(&world, &decision) };
            match later {
                Some(until) if until > world.now => {
                    world.now = until;
                    // etcd is asked again before each control plane; that is no step people want to read of.
                    world.etcd.at = until;
                }
                _ => return (steps, decision, world),
            }
        }
        for action in decision.actions {
            assume(&mut world, &action);
            steps.push(action);
        }
    }
    let decision = decide(&world);
    (steps, decision, world)
}

/// When a node may be begun that waits for nothing else.
fn next_window(world: &Snapshot, decision: &Decision) -> Option<Timestamp> {
    // Both are in the order of names.
    let members = world.members.values().zip(decision.nodes.values());
    let closed = members.filter(|(_, node)| node.reason == Waits::WindowClosed);
    closed.filter_map(|(member, _)| world.policy.of(member).closed(world.now).flatten()).min()
}

/// The world after an action that went well.
pub fn assume(world: &mut Snapshot, action: &Action) {
    let now = world.now;
    if let Action::LookAtEtcd = action {
        // etcd is asked when it matters; that it is well is what is hoped for.
        let planes = world.members.values().filter(|member| member.node.control_plane);
        let voters = planes.map(|member| (member.node.name.to_string(), true)).collect();
        world.etcd.take(Etcd::Voters(voters), now);
        return;
    }
    let Some(member) = action.node().and_then(|name| world.members.get_mut(name)) else { return };
    let mut node = member.node.clone();
    let mut set = |key: &str, value: &str| node.annotations.insert(key.to_owned(), value.to_owned());
    match action {
        Action::Permit(_) => {
            set(CHANGES_ALLOWED, "true");
            set(PERMITTED_PLAN, "");
        }
        Action::Step(Verb::Withdraw, _) => {
            set(CHANGES_ALLOWED, "false");
            node.annotations.remove(PERMITTED_PLAN);
            if has_left_mark(&node) {
                unmark(&mut node);
            }
        }
        Action::SaveEtcd(_, occasion) => drop(set(SAVED, &occasion.mark(now))),
        Action::Step(Verb::Cordon, _) => {
            set(CORDONED_BY, MARK);
            node.cordoned = true;
        }
        Action::Step(Verb::Uncordon, _) => {
            unmark(&mut node);
            node.cordoned = false;
        }
        Action::Step(Verb::Unmark, _) => unmark(&mut node),
        Action::Step(Verb::Plan, _) => {
            if let Ok(target) = &member.target {
                reach(&mut node, target, now);
                node.annotations.remove(PERMITTED_PLAN);
            }
        }
        Action::Step(Verb::Drain, _) => member.emptied = true,
        Action::Step(Verb::Check, _) => member.checked = Some(Ok(())),
        Action::Step(Verb::Test, _) => member.tested = Some(Ok(())),
        Action::Taint(_) => node.taints = patch::taints(&node, true),
        Action::Untaint(_) => node.taints = patch::taints(&node, false),
        Action::Fence(name) => drop(world.claims.remove(&name.clone())),
        Action::LookAtEtcd => {}
    }
    if let Some(member) = action.node().and_then(|name| world.members.get_mut(name)) {
        member.update(node, now);
    }
}

fn unmark(node: &mut NodeView) {
    node.annotations.retain(|key, _| ![CORDONED_BY, EXCLUDED_BY].contains(&key.as_str()));
}

/// A Node whose host is at a plan, by the word of its agent and its kubelet.
pub fn reach(node: &mut NodeView, plan: &Plan, now: Timestamp) {
    node.annotations.retain(|key, _| !annotations::is_desired_version(key));
    node.annotations.extend(annotations::write_plan(plan));
    let current: BTreeMap<String, String> = plan
        .desired
        .iter()
        .map(|(name, version)| (annotations::current_version(name), version.to_string()))
        .collect();
    node.annotations.extend(current);
    node.annotations.insert(PLAN_OBSERVED.to_owned(), plan.id().to_string());
    node.annotations.insert(READY.to_owned(), "true".to_owned());
    let state = State {
        phase: Phase::Idle,
        reason: Reason::UpToDate,
        message: String::new(),
        since: now,
        attempt: 0,
        boot_id: node.boot_id.clone(),
        agent_version: String::new(),
    };
    if let Ok(state) = serde_json::to_string(&state) {
        node.annotations.insert(STATE.to_owned(), state);
    }
    if let Some((_, version)) = plan.desired.iter().find(|(name, _)| name.as_str() == "kubelet") {
        node.kubelet = format!("v{version}");
    }
}
