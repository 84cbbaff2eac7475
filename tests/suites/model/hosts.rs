//! Hosts with their agents and kubelets, as node-agent's engine does it; and persons.

use crate::{
    agent::{Agents, Pass, Situation},
    invariants::{self, Broken},
    mutations::Guard,
    state::{Book, Cordon, Host, Id, Life, Move, Open, Said, State, Word},
    world::{Outcome, World},
};

/// What comes of a move that is not infrop's.
pub(super) fn apply(world: &mut World, mut state: State, one: Move) -> Outcome {
    match one {
        Move::Passes(id) => return pass(world, state, id, true),
        Move::EndsUnsaved(id) => {
            state.left.agent_crashes -= 1;
            return pass(world, state, id, false);
        }
        Move::StepEnds(id) => {
            return Ok(step(world, state, id, |_, facts, id, book| Agents::succeed(facts, id, book)));
        }
        Move::EndsAfter(id) => {
            state.left.agent_crashes -= 1;
            let boot = state.hosts.at(id).boot;
            return Ok(step(world, state, id, |agents, facts, id, book| {
                agents.restart(facts, id, book, boot)
            }));
        }
        Move::EndsBefore(id) => {
            state.left.agent_crashes -= 1;
            let host = state.hosts.at_mut(id);
            host.book = world.agents.restart(&world.facts, id, &host.book, host.boot);
        }
        Move::StepFails(id) => {
            state.left.failures = state.left.failures.saturating_sub(1);
            let host = state.hosts.at_mut(id);
            host.book = world.agents.fail(&world.facts, id, &host.book);
        }
        Move::Boots(id) => {
            let host = state.hosts.at_mut(id);
            // All that matters is that it is another one.
            (host.life, host.boot) = (Life::Up, if host.boot < 2 { host.boot + 1 } else { 1 });
            host.book = world.agents.restart(&world.facts, id, &host.book, host.boot);
        }
        Move::NeverBack(id) => {
            state.left.gone -= 1;
            state.hosts.at_mut(id).life = Life::Gone;
        }
        Move::Dies(id) => {
            state.left.deaths -= 1;
            // Its agent never comes back either.
            let host = state.hosts.at_mut(id);
            host.life = Life::Gone;
        }
        Move::Reports(id) => {
            let (up, kubelet, boot) = world.report(id, &state);
            state.write(id, |node| (node.up, node.kubelet, node.kubelet_boot) = (up, kubelet, boot));
        }
        Move::Silent(id) => {
            state.left.silences -= 1;
            state.hosts.at_mut(id).silent = true;
        }
        Move::Heard(id) => state.hosts.at_mut(id).silent = false,
        Move::PersonCordons(id) => {
            state.left.cordons -= 1;
            state.hosts.at_mut(id).foreign = true;
            // A mark that was left makes it look like a rollout's.
            state.write(id, |node| {
                let marked = node.cordon == Cordon::Lifted;
                node.cordon = if marked { Cordon::Rollout } else { Cordon::Foreign };
            });
        }
        Move::PersonUncordons(id) => {
            state.left.uncordons -= 1;
            let host = state.hosts.at_mut(id);
            (host.foreign, host.pods) = (false, true);
            state.write(id, |node| {
                let marked = node.cordon == Cordon::Rollout;
                node.cordon = if marked { Cordon::Lifted } else { Cordon::None };
            });
        }
        Move::PersonWithdraws(id) => {
            state.left.withdrawals -= 1;
            state.hosts.at_mut(id).given = false;
            state.write(id, |node| (node.permit, node.armed) = (false, false));
        }
        Move::PersonPauses(id) => {
            state.left.pauses -= 1;
            state.write(id, |node| node.paused = true);
        }
        Move::PersonResumes(id) => {
            state.left.resumes -= 1;
            state.write(id, |node| node.paused = false);
        }
        _ => anyhow::bail!("{one} is infrop's"),
    }
    Ok(Ok(state))
}

/// One pass of an agent's engine: what it says on its Node and what it reads there is one request. Without `saved`
/// it ends after that, and before its journal is on the disk.
fn pass(world: &mut World, mut state: State, id: Id, saved: bool) -> Outcome {
    let host = *state.hosts.at(id);
    if host.silent && host.book.open != Open::None {
        return Ok(step(world, state, id, |_, facts, id, book| Agents::succeed(facts, id, book)));
    }
    let read = Word::of(state.nodes.at(id));
    let raised = Id::ALL.iter().any(|one| world.facts.runs_new_api_server(*one, state.hosts.at(*one)));
    let Host { changed, boot, book, silent, .. } = host;
    let mut situation = Situation { id, word: read, silent, changed, boot, book, raised };
    let (mut pass, mut new) = world.agents.pass(&world.facts, &situation)?;
    if world.guard == Some(Guard::AgentReads) && host.book.active {
        // What it heard when it last wrote is good enough for it.
        situation.word = host.heard;
        (pass, new) = world.agents.pass(&world.facts, &situation)?;
    }
    if pass == Pass::Begins
        && let Err(broken) = invariants::on_step(world, &state, read, id)
    {
        return Ok(Err(broken));
    }
    if !saved && pass != Pass::Accepts {
        // Nothing is told before it is saved but the beginning of a plan.
        return Ok(Ok(state));
    }
    let said = if let Pass::Rests(said) = pass { said } else { Said::Working };
    let is_end = pass == Pass::Finishes;
    if is_end && !silent {
        // What it has is said first; then it looks whether that works.
        let told = state;
        publish(world, &mut state, id, &host.book, said);
        if state != told {
            return Ok(Ok(state));
        }
    }
    let host = state.hosts.at_mut(id);
    if saved {
        host.book = new;
    }
    let reads = pass != Pass::Begins || world.guard != Some(Guard::AgentReads);
    if !silent && reads && world.has_memory() {
        state.hosts.at_mut(id).heard = read;
    }
    if !silent && !is_end && pass != Pass::GivesUp {
        publish(world, &mut state, id, &new, said);
    }
    Ok(Ok(state))
}

/// Says on the Node what a journal and the host are.
fn publish(world: &World, state: &mut State, id: Id, book: &Book, said: Said) {
    let host = state.hosts.at(id);
    let (current, boot) = (world.facts.current(id, host), host.boot);
    let Book { ready, observed, .. } = *book;
    state.publish(id, |node| {
        (node.ready, node.observed, node.said) = (ready, observed, said);
        (node.current, node.agent_boot) = (current, boot);
    });
}

/// A step does what it is for; `after` is what becomes of the journal.
fn step(
    world: &mut World,
    mut state: State,
    id: Id,
    after: impl FnOnce(&Agents, &crate::facts::Facts, Id, &Book) -> Book,
) -> Result<State, Broken> {
    let host = state.hosts.at_mut(id);
    match host.book.open {
        Open::None => {}
        Open::Reboot => {
            host.life = Life::Down;
            return Ok(state);
        }
        Open::Change(bit) => host.changed |= bit,
    }
    host.book = after(&world.agents, &world.facts, id, &host.book);
    invariants::on_change(&world.facts, &state.hosts, id).map(|()| state)
}
