//! infrop's decisions: the real function, on real snapshots made of small states.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
};

use anyhow::{Context as _, ensure};
use common::metadata::NodeName;
use infrop::{
    desired::Amount,
    rollout::{
        assess::{self, Verb},
        decide::{Action, Decision, decide, go_on},
        reason::Reason,
        snapshot::{self, EtcdSeen, Member, Snapshot},
    },
};
use jiff::SignedDuration;

use crate::{
    explore::FastHash,
    facts::{Facts, MOST_AWAY, POOL},
    mutations::Guard,
    state::{Busy, Cordon, Etcd, Id, Node, Process, Said, Seen, Stage, State},
};

/// What a process begins.
#[derive(Debug, Clone, Default)]
pub(crate) struct Decided {
    pub(crate) starts: Vec<(Id, Busy)>,
    pub(crate) checks: Vec<Id>,
    pub(crate) looks: bool,
    /// Whether something goes on by itself.
    pub(crate) moving: bool,
}

/// Decides, and remembers what it decided.
#[derive(Debug)]
pub(crate) struct Decider {
    guard: Option<Guard>,
    members: HashMap<(Id, Node), Member, FastHash>,
    decided: HashMap<Process, Rc<Decided>, FastHash>,
    ends: HashMap<crate::state::Three<Node>, (bool, Option<String>), FastHash>,
}

impl Decider {
    pub(crate) fn new(guard: Option<Guard>) -> Self {
        Self { guard, members: <_>::default(), decided: <_>::default(), ends: <_>::default() }
    }

    /// What a process begins next.
    pub(crate) fn decide(&mut self, facts: &Facts, process: &Process) -> anyhow::Result<Rc<Decided>> {
        let mut key = Process { stage: Stage::Running, announced: 0, events: 0, ..*process };
        for id in Id::ALL {
            let seen = key.nodes.at_mut(id);
            (seen.fresh, seen.valid) = (false, false);
        }
        if let Some(decided) = self.decided.get(&key) {
            return Ok(decided.clone());
        }
        let decided = Rc::new(self.decide_anew(facts, &key)?);
        self.decided.insert(key, decided.clone());
        Ok(decided)
    }

    fn decide_anew(&mut self, facts: &Facts, process: &Process) -> anyhow::Result<Decided> {
        let snapshot = self.snapshot(facts, process, |_, node| node)?;
        let mut decision = decide(&snapshot);
        // infrop also goes on with nodes one by one.
        let own = |action: &&Action| matches!(action, Action::Step(..) | Action::Fence(_));
        ensure!(go_on(&snapshot, snapshot.members.keys()).iter().eq(decision.actions.iter().filter(own)));
        let saved = Id::ALL.iter().any(|id| process.nodes.at(*id).node.saved);
        let is_done = |facts: &Facts, id, node| Node {
            ready: true,
            observed: true,
            current: facts.whole(id),
            kubelet: true,
            up: true,
            plan: true,
            saved,
            ..node
        };
        let is_plane =
            |name: &NodeName| Id::ALL.iter().any(|id| facts.names.at(*id) == name && facts.is_plane(*id));
        let mut add = |actions: Vec<Action>| {
            for action in actions {
                if !decision.actions.contains(&action) {
                    decision.actions.push(action);
                }
            }
        };
        if self.guard == Some(Guard::PlanesFirst) {
            let done = self.snapshot(facts, process, |id, node| {
                if facts.is_plane(id) { is_done(facts, id, Node::default()) } else { node }
            })?;
            let permits = decide(&done).actions.into_iter();
            add(permits.filter(|action| matches!(action, Action::Permit(name) if !is_plane(name))).collect());
        }
        if self.guard == Some(Guard::PlanesOneByOne) {
            for one in Id::ALL {
                let alone = self.snapshot(facts, process, |id, node| {
                    if id == one { node } else { is_done(facts, id, Node::default()) }
                })?;
                let name = facts.names.at(one);
                let begins = decide(&alone).actions.into_iter();
                add(begins
                    .filter(|action| match action {
                        Action::Permit(other) => other == name,
                        other => *other == Action::LookAtEtcd,
                    })
                    .collect());
            }
        }
        if self.guard == Some(Guard::NodeReady) {
            for one in Id::ALL {
                let well =
                    self.snapshot(facts, process, |id, node| Node { up: node.up || id == one, ..node })?;
                let permit = Action::Permit(facts.names.at(one).clone());
                add(decide(&well).actions.into_iter().filter(|action| *action == permit).collect());
            }
        }
        self.translate(facts, process, &decision)
    }

    fn translate(&self, facts: &Facts, process: &Process, decision: &Decision) -> anyhow::Result<Decided> {
        let mut decided = Decided { moving: decision.is_moving(), ..Decided::default() };
        for action in &decision.actions {
            let Some(name) = action.node() else {
                decided.looks = true;
                continue;
            };
            let id = Id::ALL.into_iter().find(|id| facts.names.at(*id) == name).context("a node unknown")?;
            let busy = match action {
                Action::Permit(_) => Busy::Permit,
                Action::SaveEtcd(..) => Busy::Save,
                Action::Fence(_) => Busy::Fence,
                Action::Step(Verb::Cordon, _) => Busy::Cordon,
                Action::Step(Verb::Drain, _) => Busy::Drain,
                Action::Step(Verb::Plan, _) => Busy::Plan,
                Action::Step(Verb::Uncordon, _) => Busy::Uncordon,
                Action::Step(Verb::Unmark, _) => Busy::Unmark,
                Action::Step(Verb::Withdraw, _) => Busy::Withdraw,
                Action::Step(Verb::Check, _) => {
                    decided.checks.push(id);
                    continue;
                }
                // Nothing is checked that takes time: a check that waits is like a node that is not back.
                Action::Step(Verb::Test, _) | Action::Taint(_) | Action::Untaint(_) | Action::LookAtEtcd => {
                    anyhow::bail!("unexpected: {action}")
                }
            };
            let gave_up = process.nodes.at(id).node.said == Said::Quarantined;
            if self.guard == Some(Guard::QuarantineWithdrawn) && busy == Busy::Withdraw && gave_up {
                continue;
            }
            decided.starts.push((id, busy));
        }
        Ok(decided)
    }

    fn snapshot(
        &mut self,
        facts: &Facts,
        process: &Process,
        show: impl Fn(Id, Node) -> Node,
    ) -> anyhow::Result<Snapshot> {
        let mut members = BTreeMap::new();
        let mut claims = BTreeSet::new();
        let mut busy = BTreeSet::new();
        for id in Id::ALL {
            let seen = process.nodes.at(id);
            let name = facts.names.at(id);
            let Seen { emptied, checked, skipped, .. } = *seen;
            let mut node = self.present(facts, id, seen.node);
            if self.guard == Some(Guard::SkippedWaits) && skipped && node.said == Said::Working {
                node.said = Said::Anything;
            }
            let mut member = self.member(facts, id, show(id, node))?;
            member.emptied = emptied || self.guard == Some(Guard::PodsGone);
            member.checked = checked.then_some(Ok(()));
            member.skipped = skipped.then(|| "its pods do not go".to_owned());
            if process.impatient {
                member.changed = facts.now - facts.policy.patience - facts.policy.patience;
            }
            members.insert(name.clone(), member);
            if process.claims & id.bit() != 0 {
                claims.insert(name.clone());
            }
            busy.extend(self.action(facts, seen.busy, name));
        }
        if process.looking {
            busy.insert(Action::LookAtEtcd);
        }
        let mut policy = facts.policy.clone();
        if self.guard == Some(Guard::Disruption) {
            policy.disruption.clear();
        }
        if self.guard == Some(Guard::Capacity)
            && let Some(limits) = policy.groups.get_mut(POOL)
        {
            limits.max_unavailable = Amount::Nodes(u16::try_from(MOST_AWAY)? + 1);
        }
        let etcd = self.etcd(facts, process);
        Ok(Snapshot { claims, busy, etcd, ..Snapshot::new(policy, members, facts.now) })
    }

    fn etcd(&self, facts: &Facts, process: &Process) -> EtcdSeen {
        let voters = |well: u8| {
            let voters = Id::ALL.into_iter().filter(|id| facts.is_plane(*id));
            let is_well = |id: Id| well & id.bit() != 0 || self.guard == Some(Guard::EtcdWell);
            snapshot::Etcd::Voters(voters.map(|id| (facts.names.at(id).to_string(), is_well(id))).collect())
        };
        let (etcd, old) = match process.etcd {
            Etcd::Unknown => return EtcdSeen::default(),
            Etcd::Voters { well, old, .. } => (voters(well), old),
            Etcd::Silent { old } if self.guard == Some(Guard::EtcdAnswers) => (voters(u8::MAX), old),
            Etcd::Silent { old } => (snapshot::Etcd::Silent("no answer".to_owned()), old),
        };
        let at = if old && self.guard != Some(Guard::EtcdAge) {
            facts.now - SignedDuration::from_mins(30)
        } else {
            facts.now
        };
        let since = if process.impatient { at - facts.policy.patience } else { at };
        EtcdSeen { etcd, at, since }
    }

    fn action(&self, facts: &Facts, busy: Busy, name: &NodeName) -> Option<Action> {
        let step = |verb| Action::Step(verb, name.clone());
        Some(match busy {
            Busy::Idle => return None,
            Busy::Permit | Busy::Announced if self.guard == Some(Guard::OwnPermits) => return None,
            Busy::Permit | Busy::Announced => Action::Permit(name.clone()),
            Busy::Save => Action::SaveEtcd(name.clone(), facts.occasion()),
            Busy::Cordon => step(Verb::Cordon),
            Busy::Drain | Busy::OpenDrain => step(Verb::Drain),
            Busy::Plan => step(Verb::Plan),
            Busy::Uncordon => step(Verb::Uncordon),
            Busy::Unmark => step(Verb::Unmark),
            Busy::Withdraw => step(Verb::Withdraw),
            Busy::Fence => Action::Fence(name.clone()),
        })
    }

    /// The Node as a decision without a guard takes it.
    fn present(&self, facts: &Facts, id: Id, mut node: Node) -> Node {
        match self.guard {
            Some(Guard::CordonMark) if node.cordon == Cordon::Foreign => node.cordon = Cordon::Rollout,
            Some(Guard::KubeletVersion) => node.kubelet |= node.current & facts.bit(id, "kubelet") != 0,
            Some(Guard::KubeletBoot) => (node.up, node.kubelet_boot) = (true, node.agent_boot),
            Some(Guard::AgentsWord) if node.plan => (node.ready, node.observed) = (true, true),
            Some(Guard::Versions) => node.current = facts.whole(id),
            Some(Guard::LeftMark) if node.cordon == Cordon::Lifted => node.cordon = Cordon::None,
            Some(Guard::InfropPause) => node.paused = false,
            Some(Guard::EtcdSaved) => node.saved = true,
            Some(Guard::CordonFirst) if node.permit && node.cordon == Cordon::None => {
                node.cordon = Cordon::Rollout;
            }
            Some(Guard::AgentsAtWork) if !node.permit && node.said == Said::Working => {
                node.said = Said::Anything;
            }
            _ => {}
        }
        node
    }

    fn member(&mut self, facts: &Facts, id: Id, node: Node) -> anyhow::Result<Member> {
        if let Some(member) = self.members.get(&(id, node)) {
            return Ok(member.clone());
        }
        let target = facts.targets.at(id).clone();
        let member = Member::new(facts.view(id, &node)?, POOL.to_owned(), Ok(target), facts.now);
        self.members.insert((id, node), member.clone());
        Ok(member)
    }

    /// What another run would say: whether it would do anything, and why this is no end, if it is none.
    pub(crate) fn end(&mut self, facts: &Facts, state: &State) -> anyhow::Result<(bool, Option<String>)> {
        if let Some(end) = self.ends.get(&state.nodes) {
            return Ok(end.clone());
        }
        let mut process = Process { stage: Stage::Running, impatient: true, ..Process::default() };
        for id in Id::ALL {
            process.nodes.at_mut(id).node = *state.nodes.at(id);
        }
        let guard = self.guard.take_if(|guard| *guard != Guard::Versions);
        let snapshot = self.snapshot(facts, &process, |_, node| node);
        self.guard = self.guard.or(guard);
        let decision = decide(&snapshot?);
        let end = (decision.is_moving(), why_no_end(facts, state, &decision));
        self.ends.insert(state.nodes, end.clone());
        Ok(end)
    }
}

/// Every node is done, or a person reads why not; and who waits for another waits for one that has a reason itself.
fn why_no_end(facts: &Facts, state: &State, decision: &Decision) -> Option<String> {
    let mut waits = None;
    let mut root = false;
    for id in Id::ALL {
        let node = state.nodes.at(id);
        let assessment = decision.nodes.get(facts.names.at(id))?;
        // A node that is away without infrop's doing is a reason that others wait.
        root |= node.cordon == Cordon::Foreign || !node.up;
        if node.cordon == Cordon::Lifted {
            return Some(format!(
                "{id:?} has a mark without a cordon: the next one, a person's, would look like ours"
            ));
        }
        match (assessment.stage, assessment.reason) {
            (assess::Stage::Done, _) => {
                if node.current != facts.whole(id) || node.permit || node.cordon == Cordon::Rollout {
                    return Some(format!("{id:?} counts as done and is not"));
                }
            }
            (assess::Stage::Failed, Reason::AgentFailed) if node.permit => {
                return Some(format!("{id:?} is quarantined and has a permit"));
            }
            (assess::Stage::Stuck | assess::Stage::Failed, _)
            | (assess::Stage::Pending, Reason::EtcdAtRisk | Reason::TooManyFailed) => root = true,
            (assess::Stage::Pending, Reason::CapacityUsed | Reason::ControlPlanesFirst) => waits = Some(id),
            (stage, reason) => return Some(format!("{id:?} is {stage:?} ({reason})")),
        }
    }
    waits.filter(|_| !root).map(|id| format!("{id:?} waits for nobody"))
}
