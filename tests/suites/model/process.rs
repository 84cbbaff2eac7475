//! A process of infrop: as rollout/run.rs, act.rs and claims.rs do it. Each event is followed by a decision at once.

use crate::{
    invariants::{self, Broken},
    mutations::Guard,
    state::{Busy, Cordon, Etcd, Id, Node, Process, Seen, Stage, State, Who},
    world::{Outcome, World},
};

/// How many watch events a process gets after it lost the Lease: enough to see how another works on a node, and few
/// enough for the states of two processes to be counted.
const EVENTS: u8 = 1;

/// Decides and begins what was decided, until there is nothing more to begin; ends if nothing goes on.
fn decide(world: &mut World, mut state: State, who: Who) -> Outcome {
    loop {
        let decided = world.decider.decide(&world.facts, state.process(who))?;
        // Who does not hold the Lease cannot announce what it begins, ever.
        let permits = state.lease.holder == who || world.guard == Some(Guard::Announced);
        let process = state.process_mut(who);
        for (id, busy) in &decided.starts {
            if *busy == Busy::Permit
                && permits
                && let Err(broken) = invariants::on_permit(&world.facts, process, *id)
            {
                return Ok(Err(broken));
            }
            let seen = process.nodes.at_mut(*id);
            seen.busy = *busy;
            seen.valid = seen.fresh;
            if *busy == Busy::Permit {
                (seen.checked, seen.emptied) = (false, false);
            }
        }
        process.looking |= decided.looks;
        // Pods of the node itself are well whenever someone looks: that look takes no time.
        for id in &decided.checks {
            process.nodes.at_mut(*id).checked = true;
        }
        if decided.checks.is_empty() {
            let idle = Id::ALL.iter().all(|id| process.nodes.at(*id).busy == Busy::Idle) && !process.looking;
            if idle && !decided.moving {
                return Ok(Ok(retires(state, who)));
            }
            return Ok(Ok(state));
        }
    }
}

/// Its end: nobody has to fence what is done.
fn retires(mut state: State, who: Who) -> State {
    if state.lease.holder == who {
        state.lease.nodes &= !state.process(who).announced;
    }
    *state.process_mut(who) = Process::default();
    state
}

/// It is no more. What it sent may still arrive.
pub(super) fn ends(mut state: State, who: Who) -> State {
    let process = state.process_mut(who);
    let before = *process;
    *process = Process { stage: Stage::Late, ..Process::default() };
    for id in Id::ALL {
        let Seen { busy, valid, skipped, .. } = *before.nodes.at(id);
        if !matches!(busy, Busy::Idle | Busy::Permit | Busy::Drain | Busy::OpenDrain) {
            *process.nodes.at_mut(id) = Seen { busy, valid, skipped, ..Seen::default() };
        }
    }
    tidy(state, who)
}

/// One of which nothing is under way is nobody.
fn tidy(mut state: State, who: Who) -> State {
    let process = state.process_mut(who);
    if process.stage == Stage::Late && Id::ALL.iter().all(|id| process.nodes.at(*id).busy == Busy::Idle) {
        *process = Process::default();
    }
    state
}

pub(super) fn lose(mut state: State, who: Who, id: Id) -> State {
    *state.process_mut(who).nodes.at_mut(id) = Seen::default();
    tidy(state, who)
}

/// A process takes the Lease over.
pub(super) fn starts(world: &World, mut state: State, who: Who) -> State {
    let others = Who::ALL.into_iter().any(|other| state.process(other).stage == Stage::Running);
    state.left.seconds -= u8::from(others);
    state.lease.holder = who;
    for other in Who::ALL {
        if state.process(other).stage == Stage::Running {
            state.process_mut(other).events = EVENTS;
        }
    }
    let claims = if world.guard == Some(Guard::Fenced) { 0 } else { state.lease.nodes };
    *state.process_mut(who) = Process { stage: Stage::Taken, claims, ..Process::default() };
    state
}

pub(super) fn lists(world: &mut World, mut state: State, who: Who) -> Outcome {
    let nodes = state.nodes;
    let process = state.process_mut(who);
    process.stage = Stage::Running;
    for id in Id::ALL {
        *process.nodes.at_mut(id) = Seen { node: *nodes.at(id), fresh: true, ..Seen::default() };
    }
    decide(world, state, who)
}

/// The Node as it is now.
fn learn(state: &mut State, who: Who, id: Id) {
    let node = *state.nodes.at(id);
    let seen = state.process_mut(who).nodes.at_mut(id);
    if !node.cordon.is_on() {
        seen.emptied = false;
        if seen.busy == Busy::Drain {
            seen.busy = Busy::OpenDrain;
        }
    }
    if !node.up || node.kubelet_boot != seen.node.kubelet_boot {
        seen.checked = false;
    }
    (seen.node, seen.fresh) = (node, true);
}

pub(super) fn sees(world: &mut World, mut state: State, who: Who, id: Id) -> Outcome {
    let process = state.process_mut(who);
    process.events = process.events.saturating_sub(1);
    learn(&mut state, who, id);
    decide(world, state, who)
}

pub(super) fn sees_older(world: &mut World, mut state: State, who: Who, id: Id) -> Outcome {
    let seen = state.process_mut(who).nodes.at_mut(id);
    let cordon = if seen.node.cordon == Cordon::Foreign { Cordon::Foreign } else { Cordon::None };
    let Node { saved, paused, up, kubelet, kubelet_boot, agent_boot, .. } = seen.node;
    // As it was before its permit, by its agent's word as well.
    seen.node =
        Node { ready: true, cordon, saved, paused, up, kubelet, kubelet_boot, agent_boot, ..Node::default() };
    seen.fresh = false;
    decide(world, state, who)
}

pub(super) fn looks(world: &mut World, mut state: State, who: Who) -> Outcome {
    let well = invariants::well(&world.facts, &state.hosts);
    let process = state.process_mut(who);
    process.looking = false;
    process.etcd = Etcd::Voters { well, old: false, used: false };
    decide(world, state, who)
}

pub(super) fn looks_in_vain(world: &mut World, mut state: State, who: Who) -> Outcome {
    state.left.vain_looks -= 1;
    let process = state.process_mut(who);
    process.looking = false;
    process.etcd = Etcd::Silent { old: false };
    decide(world, state, who)
}

pub(super) fn time_passes(world: &mut World, mut state: State, who: Who) -> Outcome {
    state.process_mut(who).etcd.age();
    decide(world, state, who)
}

pub(super) fn impatient(world: &mut World, mut state: State, who: Who) -> Outcome {
    state.process_mut(who).impatient = true;
    decide(world, state, who)
}

pub(super) fn held(world: &mut World, mut state: State, who: Who, id: Id) -> Outcome {
    state.left.held -= 1;
    let seen = state.process_mut(who).nodes.at_mut(id);
    (seen.busy, seen.skipped) = (Busy::Idle, true);
    decide(world, state, who)
}

/// What it has under way with a node takes effect, and it learns of that if it is still there.
pub(super) fn arrives(world: &mut World, mut state: State, who: Who, id: Id) -> Outcome {
    let busy = state.process(who).nodes.at(id).busy;
    match busy {
        Busy::Permit => {
            if world.guard == Some(Guard::Announced) {
                state.process_mut(who).nodes.at_mut(id).busy = Busy::Announced;
            } else if state.lease.holder == who {
                // Announcements whose permits are there are taken back with it.
                let settled = std::mem::take(&mut state.process_mut(who).announced);
                state.lease.nodes = (state.lease.nodes & !settled) | id.bit();
                state.process_mut(who).nodes.at_mut(id).busy = Busy::Announced;
            } else {
                // Someone took over: it ends.
                state = ends(state, who);
            }
            return Ok(Ok(state));
        }
        Busy::Drain | Busy::OpenDrain => {
            if busy == Busy::Drain && world.has_room() && state.nodes.at(id).cordon.is_on() {
                state.hosts.at_mut(id).pods = false;
            }
            let seen = state.process_mut(who).nodes.at_mut(id);
            (seen.busy, seen.emptied) = (Busy::Idle, busy == Busy::Drain);
            return decide(world, state, who);
        }
        _ => {}
    }
    if let Err(broken) = write(world, &mut state, who, id, busy) {
        return Ok(Err(broken));
    }
    if state.process(who).stage != Stage::Running {
        return Ok(Ok(lose(state, who, id)));
    }
    let process = state.process_mut(who);
    let seen = process.nodes.at_mut(id);
    (seen.busy, seen.valid) = (Busy::Idle, false);
    if busy == Busy::Fence {
        process.claims &= !id.bit();
        process.announced |= id.bit();
    }
    if busy == Busy::Announced {
        process.announced |= id.bit();
        if world.guard != Some(Guard::EtcdAnew) {
            process.etcd = Etcd::Unknown;
        }
    }
    learn(&mut state, who, id);
    decide(world, state, who)
}

/// Writes if the Node is as the decision saw it.
fn write(world: &World, state: &mut State, who: Who, id: Id, busy: Busy) -> Result<(), Broken> {
    if !state.process(who).nodes.at(id).valid && world.guard != Some(Guard::Precondition) {
        return Ok(());
    }
    invariants::on_write(&world.facts, state, who, id, busy)?;
    let host = state.hosts.at_mut(id);
    match busy {
        Busy::Announced => host.given = true,
        Busy::Withdraw => host.given = false,
        Busy::Uncordon => host.pods = true,
        _ => {}
    }
    if busy == Busy::Announced && world.facts.is_plane(id) {
        for process in [&mut state.first, &mut state.second] {
            if let Etcd::Voters { used, .. } = &mut process.etcd {
                *used = true;
            }
        }
    }
    let any_plan = world.guard == Some(Guard::PermittedPlan);
    state.write(id, |node| match busy {
        Busy::Announced => (node.permit, node.armed) = (true, any_plan),
        Busy::Withdraw => {
            (node.permit, node.armed) = (false, false);
            if node.cordon == Cordon::Lifted {
                node.cordon = Cordon::None;
            }
        }
        Busy::Save => node.saved = true,
        Busy::Cordon => node.cordon = Cordon::Rollout,
        Busy::Uncordon | Busy::Unmark => node.cordon = Cordon::None,
        Busy::Plan => (node.plan, node.armed) = (true, node.permit),
        Busy::Idle | Busy::Permit | Busy::Drain | Busy::OpenDrain | Busy::Fence => {}
    });
    Ok(())
}
