//! What must hold, whatever happens. I1 to I8 are those of docs/development/testing.md.

use std::fmt;

use crate::{
    facts::{Facts, MOST_AWAY},
    state::{Busy, Etcd, Host, Id, Life, Open, Process, Said, State, Three, Who, Word},
    world::World,
};

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) invariant: &'static str,
    pub(crate) what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

fn broken(invariant: &'static str, what: impl Into<String>) -> Result<(), Broken> {
    Err(Broken { invariant, what: what.into() })
}

/// The nodes of a node's group beside it: control planes are one, whatever pools they are of.
fn others(facts: &Facts, id: Id) -> impl Iterator<Item = Id> {
    let plane = facts.is_plane(id);
    Id::ALL.into_iter().filter(move |other| *other != id && facts.is_plane(*other) == plane)
}

fn limit(facts: &Facts, id: Id) -> (&'static str, usize) {
    if facts.is_plane(id) { ("I2", 1) } else { ("I1", MOST_AWAY) }
}

/// infrop decides to permit a node: by all it saw, the others leave room for it.
pub(crate) fn on_permit(facts: &Facts, process: &Process, id: Id) -> Result<(), Broken> {
    let (name, limit) = limit(facts, id);
    let is_away = |other: &Id| {
        let seen = process.nodes.at(*other);
        let permits = matches!(seen.busy, Busy::Permit | Busy::Announced);
        seen.node.is_away() || permits || process.claims & other.bit() != 0
    };
    if others(facts, id).filter(is_away).count() >= limit {
        return broken(name, format!("{id:?} is permitted while others are away"));
    }
    if !process.nodes.at(id).node.up {
        return broken(name, format!("{id:?} is permitted although its kubelet does not report"));
    }
    if process.nodes.at(id).node.paused {
        return broken("I4", format!("{id:?} is permitted although a person paused it"));
    }
    if facts.is_plane(id) { etcd(facts, process, id) } else { Ok(()) }
}

fn etcd(facts: &Facts, process: &Process, id: Id) -> Result<(), Broken> {
    let voters = Id::ALL.into_iter().filter(|id| facts.is_plane(*id)).count();
    let Etcd::Voters { well, old, used } = process.etcd else {
        return broken("I3", "a control plane is permitted and nobody knows how etcd is");
    };
    let left = others(facts, id).filter(|other| well & other.bit() != 0).count();
    if voters > 1 && left < voters / 2 + 1 {
        return broken("I3", format!("{id:?} is permitted and etcd loses its majority"));
    }
    if facts.raises_etcd() && !Id::ALL.iter().any(|id| process.nodes.at(*id).node.saved) {
        return broken("I3", format!("{id:?} is permitted and etcd's data is not saved"));
    }
    if old || used {
        return broken("I3", format!("{id:?} is permitted because of how etcd was long ago"));
    }
    Ok(())
}

/// A write of infrop has arrived and taken effect.
pub(crate) fn on_write(facts: &Facts, before: &State, who: Who, id: Id, busy: Busy) -> Result<(), Broken> {
    let (node, host) = (before.nodes.at(id), before.hosts.at(id));
    match busy {
        Busy::Announced => {
            let (name, limit) = limit(facts, id);
            let given = others(facts, id).filter(|other| before.hosts.at(*other).given).count();
            if given >= limit {
                return broken(name, format!("{id:?} has a permit beside {given} others"));
            }
            let is_behind = |id: &Id| {
                let host = before.hosts.at(*id);
                facts.is_plane(*id) && (!facts.is_reached(*id, host) || host.given)
            };
            if !facts.is_plane(id) && Id::ALL.iter().any(is_behind) {
                return broken("I6", format!("{id:?} has a permit before all control planes are done"));
            }
        }
        Busy::Uncordon | Busy::Withdraw => {
            if busy == Busy::Uncordon && host.foreign {
                return broken("I5", format!("a person's cordon of {id:?} is lifted"));
            }
            let is_back = facts.is_reached(id, host)
                && !host.book.active
                && node.up
                && node.kubelet == facts.runs_new_kubelet(id, host)
                && node.kubelet_boot == host.boot;
            // Its agent may rest in the middle of a plan that it has no permit for any more.
            let at_rest = host.life == Life::Up && host.book.open == Open::None;
            let untouched = before.process(who).nodes.at(id).skipped && at_rest;
            let gave_up = matches!(node.said, Said::Quarantined | Said::Refused);
            if !is_back && !untouched && !gave_up {
                return broken("I1", format!("{id:?} counts as given back and is still away"));
            }
        }
        Busy::Cordon if facts.gentle => {
            return broken("I1", format!("pods of {id:?} have to go and could stay"));
        }
        Busy::Idle
        | Busy::Permit
        | Busy::Save
        | Busy::Cordon
        | Busy::Drain
        | Busy::OpenDrain
        | Busy::Plan
        | Busy::Unmark
        | Busy::Fence => {}
    }
    Ok(())
}

/// An agent begins a step. `read` is what its Node says now; in silence what it last said counts.
pub(crate) fn on_step(world: &World, state: &State, read: Word, id: Id) -> Result<(), Broken> {
    let host = state.hosts.at(id);
    let last = if host.silent { host.heard } else { read };
    if !last.is_permit() {
        return broken("I4", format!("{id:?} changes without a permit for this plan"));
    }
    // Whatever changes here needs the pods to be elsewhere.
    if world.has_room() && host.pods {
        return broken("I4", format!("{id:?} changes before its pods are gone"));
    }
    Ok(())
}

/// A host has changed.
pub(crate) fn on_change(facts: &Facts, hosts: &Three<Host>, id: Id) -> Result<(), Broken> {
    if !facts.runs_new_kubelet(id, hosts.at(id)) {
        return Ok(());
    }
    // A control plane's kubelet works with the API server beside it.
    let mut servers = Id::ALL.into_iter().filter(|one| facts.is_plane(*one));
    let mut servers = servers.by_ref().filter(|one| *one == id || !facts.is_plane(id));
    if servers.any(|one| !facts.runs_new_api_server(one, hosts.at(one))) {
        return broken("I7", format!("the kubelet of {id:?} is newer than an API server"));
    }
    Ok(())
}

/// Which voters of etcd are well.
pub(crate) fn well(facts: &Facts, hosts: &Three<Host>) -> u8 {
    let up = Id::ALL.into_iter().filter(|id| facts.is_plane(*id) && hosts.at(*id).life == Life::Up);
    up.map(Id::bit).sum()
}
