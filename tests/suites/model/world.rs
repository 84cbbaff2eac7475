//! What can happen in a state, and what comes of it.

use crate::{
    agent::Agents,
    facts::{Facts, Shape},
    infrop::Decider,
    invariants::{self, Broken},
    mutations::Guard,
    process,
    state::{Busy, Cordon, Etcd, Id, Life, Move, Nuisances, Open, Stage, State, Who, Word},
};

/// A start, and what may go wrong from there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) nuisances: Nuisances,
    /// Nodes whose first step never succeeds, by bits.
    pub(crate) broken: u8,
    /// Whether pods may stay while something changes.
    pub(crate) gentle: bool,
    /// Nodes that do not come to their versions however often they boot.
    pub(crate) stubborn: u8,
    /// Nodes that a person cordoned before.
    pub(crate) cordoned: u8,
    /// Nodes that a person paused before.
    pub(crate) paused: u8,
    /// Nodes that have their plan and are not at it any more, for someone changed something on the host.
    pub(crate) drifted: u8,
    /// Nodes that a person gave permit and plan before.
    pub(crate) by_hand: u8,
}

/// What comes of a move.
pub(crate) type Outcome = anyhow::Result<Result<State, Broken>>;

/// The rules of a scenario, perhaps without a guard.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) guard: Option<Guard>,
    pub(crate) facts: Facts,
    pub(crate) decider: Decider,
    pub(crate) agents: Agents,
}

impl World {
    pub(crate) fn new(scenario: Scenario, guard: Option<Guard>) -> anyhow::Result<Self> {
        let facts = Facts::new(&scenario)?;
        Ok(Self { scenario, guard, facts, decider: Decider::new(guard), agents: Agents::new(guard) })
    }

    pub(crate) fn start(&self) -> State {
        let mut state = self.facts.start();
        state.left = self.scenario.nuisances;
        for id in Id::ALL {
            if self.scenario.cordoned & id.bit() != 0 {
                state.nodes.at_mut(id).cordon = Cordon::Foreign;
                state.hosts.at_mut(id).foreign = true;
            }
            state.nodes.at_mut(id).paused = self.scenario.paused & id.bit() != 0;
            if self.scenario.by_hand & id.bit() != 0 {
                let node = state.nodes.at_mut(id);
                (node.permit, node.armed, node.plan) = (true, true, true);
            }
            if self.scenario.drifted & id.bit() != 0 {
                let (node, book) = (state.nodes.at_mut(id), &mut state.hosts.at_mut(id).book);
                (node.plan, node.observed, node.ready) = (true, true, false);
                (book.observed, book.ready) = (true, false);
            }
        }
        state
    }

    /// Whether pods always have another node to go to, so that each node is emptied first.
    pub(crate) fn has_room(&self) -> bool {
        let Scenario { shape, nuisances, cordoned, by_hand, gentle, .. } = self.scenario;
        let Nuisances { cordons, uncordons, deaths, gone, .. } = nuisances;
        // A control plane that has nothing to do stays.
        let gone = if shape == Shape::Restart { 0 } else { gone };
        !gentle && cordoned | by_hand | cordons | uncordons | deaths | gone == 0
    }

    /// Whether what an agent last heard has to be remembered.
    pub(crate) fn has_memory(&self) -> bool {
        self.scenario.nuisances.silences > 0 || self.guard == Some(Guard::AgentReads)
    }

    /// What happens by itself, sooner or later, in the order of a fair run.
    pub(crate) fn regular(&self, state: &State) -> Vec<Move> {
        let mut moves = Vec::with_capacity(16);
        for who in Who::ALL {
            let process = state.process(who);
            if process.stage == Stage::Absent {
                continue;
            }
            for id in Id::ALL {
                if process.nodes.at(id).busy != Busy::Idle {
                    moves.push(Move::Arrives(who, id));
                }
            }
            if process.looking {
                moves.push(Move::LooksAtEtcd(who));
            }
            if process.stage == Stage::Taken {
                moves.push(Move::Lists(who));
            }
            let holds = state.lease.holder == who;
            if process.stage == Stage::Running && !holds {
                moves.push(Move::Notices(who));
            }
            if process.stage == Stage::Running && (holds || process.events > 0) {
                moves.extend(
                    Id::ALL
                        .into_iter()
                        .filter(|id| !process.nodes.at(*id).fresh)
                        .map(|id| Move::Sees(who, id)),
                );
            }
        }
        for id in Id::ALL {
            let (node, host) = (state.nodes.at(id), state.hosts.at(id));
            match host.life {
                Life::Down => moves.push(Move::Boots(id)),
                Life::Up if host.silent => moves.extend([Move::Heard(id), Move::Passes(id)]),
                Life::Up if host.book.open == Open::None => moves.push(Move::Passes(id)),
                Life::Up if self.scenario.broken & id.bit() != 0 => moves.push(Move::StepFails(id)),
                Life::Up => moves.push(Move::StepEnds(id)),
                Life::Gone => {}
            }
            let reported = (node.up, node.kubelet, node.kubelet_boot);
            if reported != self.report(id, state) {
                moves.push(Move::Reports(id));
            }
        }
        moves
    }

    /// What its kubelet, or the node controller, says of a host.
    pub(crate) fn report(&self, id: Id, state: &State) -> (bool, bool, u8) {
        let (node, host) = (state.nodes.at(id), state.hosts.at(id));
        match host.life {
            Life::Up => (true, self.facts.runs_new_kubelet(id, host), host.boot),
            Life::Down | Life::Gone => (false, node.kubelet, node.kubelet_boot),
        }
    }

    /// What happens only when nothing else does: patience ends, and someone starts infrop again.
    pub(crate) fn last(&mut self, state: &State) -> anyhow::Result<Vec<Move>> {
        let running = Who::ALL.into_iter().filter(|who| state.process(*who).stage == Stage::Running);
        let impatient = |who: &Who| state.process(*who).impatient;
        let well = invariants::well(&self.facts, &state.hosts);
        let outdated = |who: &Who| {
            let etcd = state.process(*who).etcd;
            etcd.is_recent() && !matches!(etcd, Etcd::Voters { well: seen, .. } if seen == well)
        };
        let mut moves: Vec<Move> = running.clone().filter(outdated).map(Move::TimePasses).collect();
        moves.extend(running.clone().filter(|who| !impatient(who)).map(Move::Impatient));
        let nobody =
            Who::ALL.iter().all(|who| matches!(state.process(*who).stage, Stage::Absent | Stage::Late));
        if nobody && self.decider.end(&self.facts, state)?.0 {
            moves.extend(
                Who::ALL.into_iter().find(|who| state.process(*who).stage == Stage::Absent).map(Move::Starts),
            );
        }
        Ok(moves)
    }

    /// What may go wrong.
    pub(crate) fn nuisances(&self, state: &State) -> Vec<Move> {
        let mut moves = Vec::with_capacity(16);
        let left = &state.left;
        for who in Who::ALL {
            let (process, other) = (state.process(who), state.other(who));
            match process.stage {
                Stage::Absent if left.seconds > 0 && other.stage == Stage::Running => {
                    moves.push(Move::Starts(who));
                }
                Stage::Taken | Stage::Running if left.crashes > 0 => moves.push(Move::Crashes(who)),
                Stage::Absent | Stage::Taken | Stage::Running => {}
                Stage::Late => moves.extend(
                    Id::ALL
                        .into_iter()
                        .filter(|id| process.nodes.at(*id).busy != Busy::Idle)
                        .map(|id| Move::Lost(who, id)),
                ),
            }
            if process.stage != Stage::Running {
                continue;
            }
            if process.etcd.is_recent() {
                moves.push(Move::TimePasses(who));
            }
            if process.looking && left.vain_looks > 0 {
                moves.push(Move::LooksInVain(who));
            }
            for id in Id::ALL {
                let seen = process.nodes.at(id);
                if matches!(seen.busy, Busy::Drain | Busy::OpenDrain) && left.held > 0 {
                    moves.push(Move::Held(who, id));
                }
                // The watch comes to the event before its own permit only now.
                if self.guard == Some(Guard::OlderEvents) && seen.node.permit {
                    moves.push(Move::SeesOlder(who, id));
                }
            }
        }
        for id in Id::ALL {
            self.trouble(state, id, &mut moves);
        }
        moves
    }

    fn trouble(&self, state: &State, id: Id, moves: &mut Vec<Move>) {
        let (node, host, left) = (state.nodes.at(id), state.hosts.at(id), &state.left);
        let mut add = |left: u8, possible: bool, one: Move| {
            if left > 0 && possible {
                moves.push(one);
            }
        };
        let (up, steps) = (host.life == Life::Up, host.book.open != Open::None);
        add(left.agent_crashes, up && steps, Move::EndsBefore(id));
        add(left.agent_crashes, up && matches!(host.book.open, Open::Change(_)), Move::EndsAfter(id));
        add(left.agent_crashes, up && !steps && Word::of(node).is_permit(), Move::EndsUnsaved(id));
        // Looking whether everything works may fail, too.
        let checks = host.book.active && self.facts.is_reached(id, host);
        add(left.failures, up && (steps || checks), Move::StepFails(id));
        add(left.gone, host.life == Life::Down, Move::NeverBack(id));
        add(left.deaths, up && self.facts.is_plane(id), Move::Dies(id));
        add(left.silences, up && !host.silent && host.book.active, Move::Silent(id));
        // One that comes before infrop saw the other go would have infrop's mark, and nobody could tell.
        let saw_it_go = |who: Who| state.process(who).nodes.at(id).node.cordon == Cordon::Lifted;
        let mark_is_left = self.guard == Some(Guard::LeftMark)
            && node.cordon == Cordon::Lifted
            && Who::ALL.into_iter().any(saw_it_go);
        add(left.cordons, node.cordon == Cordon::None || mark_is_left, Move::PersonCordons(id));
        let cordoned = host.foreign || node.cordon == Cordon::Rollout;
        add(left.uncordons, cordoned, Move::PersonUncordons(id));
        add(left.withdrawals, node.permit, Move::PersonWithdraws(id));
        add(left.pauses, !node.paused, Move::PersonPauses(id));
        add(left.resumes, node.paused, Move::PersonResumes(id));
    }

    /// What comes of a move.
    pub(crate) fn apply(&mut self, state: &State, one: Move) -> Outcome {
        match one {
            Move::Arrives(who, id) => process::arrives(self, *state, who, id),
            Move::Lost(who, id) => Ok(Ok(process::lose(*state, who, id))),
            Move::LooksAtEtcd(who) => process::looks(self, *state, who),
            Move::LooksInVain(who) => process::looks_in_vain(self, *state, who),
            Move::Lists(who) => process::lists(self, *state, who),
            Move::Sees(who, id) => process::sees(self, *state, who, id),
            Move::SeesOlder(who, id) => process::sees_older(self, *state, who, id),
            Move::Starts(who) => Ok(Ok(process::starts(self, *state, who))),
            Move::Crashes(who) => {
                let mut state = *state;
                state.left.crashes -= 1;
                Ok(Ok(process::ends(state, who)))
            }
            Move::Notices(who) => Ok(Ok(process::ends(*state, who))),
            Move::TimePasses(who) => process::time_passes(self, *state, who),
            Move::Impatient(who) => process::impatient(self, *state, who),
            Move::Held(who, id) => process::held(self, *state, who, id),
            _ => crate::hosts::apply(self, *state, one),
        }
    }
}
