//! node-agent's decisions: the real function and the real journal, on a host made of a small state.

use std::collections::HashMap;

use common::{
    annotations,
    software::SoftwareVersion,
    state::{Phase, Reason},
};
use jiff::SignedDuration;
use node_agent::{
    decide::{Asked, Decision, Snapshot, decide},
    journal::{Active, Failed, Journal, Limits, Origin, Quarantine, Step},
    observe::{BootId, Facts as HostFacts, HostState},
    software::Observed,
};

use crate::{
    explore::FastHash,
    facts::{Facts, boot},
    mutations::Guard,
    state::{Book, Id, Node, Open, Said, Word},
};

/// Attempts before quarantine.
const ATTEMPTS: u8 = 2;

/// More attempts are not told apart.
const MOST_ATTEMPTS: u8 = ATTEMPTS + 1;

/// All that an agent's decision is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Situation {
    pub(crate) id: Id,
    pub(crate) word: Word,
    pub(crate) silent: bool,
    pub(crate) changed: u8,
    pub(crate) boot: u8,
    pub(crate) book: Book,
    /// Whether the cluster's kubeadm-config names the new version.
    pub(crate) raised: bool,
}

/// What an agent did without needing time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// It rests, with this word for people.
    Rests(Said),
    /// It began a plan.
    Accepts,
    /// It is about to do the step that its journal has open.
    Begins,
    /// It found the plan reached.
    Finishes,
    /// It gave the plan up; what it says of that comes next.
    GivesUp,
}

/// Decides, and remembers what it decided.
#[derive(Debug)]
pub(crate) struct Agents {
    guard: Option<Guard>,
    passes: HashMap<Situation, (Pass, Book), FastHash>,
}

impl Agents {
    pub(crate) fn new(guard: Option<Guard>) -> Self {
        Self { guard, passes: <_>::default() }
    }

    /// One pass of the engine.
    pub(crate) fn pass(&mut self, facts: &Facts, situation: &Situation) -> anyhow::Result<(Pass, Book)> {
        if let Some(found) = self.passes.get(situation) {
            return Ok(*found);
        }
        let found = self.pass_anew(facts, *situation)?;
        self.passes.insert(*situation, found);
        Ok(found)
    }

    fn pass_anew(&self, facts: &Facts, mut situation: Situation) -> anyhow::Result<(Pass, Book)> {
        let id = situation.id;
        match self.guard {
            Some(Guard::AgentPause) => situation.word.paused = false,
            Some(Guard::AgentSkew) => situation.raised = true,
            Some(Guard::AgentRemembers) => situation.book.withdrawn = false,
            Some(Guard::AgentPermit) => situation.word.permit = true,
            Some(Guard::AgentQuarantine) => situation.book.quarantine = false,
            Some(Guard::AgentReboots) => situation.book.rebooted_from = 0,
            _ => {}
        }
        let Word { permit, plan, paused } = situation.word;
        let asked = if situation.silent {
            Asked::Silence { since: facts.now - SignedDuration::from_hours(1) }
        } else {
            let node = Node { permit, armed: true, plan, paused, ..Node::default() };
            Asked::Node(annotations::read_request(&facts.view(id, &node)?.annotations))
        };
        let mut journal = open(facts, id, &situation.book);
        journal.hear(&asked);
        let host = self.host(facts, &situation);
        let cluster = if situation.raised { &facts.new } else { &facts.old };
        let decision = decide(&Snapshot {
            now: facts.now,
            asked: &asked,
            host: &host,
            journal: &journal,
            cluster: Some(cluster).filter(|_| !situation.silent),
            api_patience: SignedDuration::from_mins(5),
        });
        let pass = match decision {
            Decision::Rest(rest) => {
                journal.stand(rest.standing);
                Pass::Rests(match rest.phase {
                    Phase::Quarantined => Said::Quarantined,
                    Phase::Refused => Said::Refused,
                    _ => Said::Anything,
                })
            }
            Decision::Accept { plan, origin, permitted } => {
                journal.accept(plan, origin, permitted, facts.now);
                Pass::Accepts
            }
            Decision::Change { software, .. } => {
                journal.begin(Step::Change(software), &host.facts.boot);
                Pass::Begins
            }
            Decision::Reboot => {
                journal.begin(Step::Reboot, &host.facts.boot);
                Pass::Begins
            }
            Decision::Finish { .. } => {
                journal.finish(facts.now);
                Pass::Finishes
            }
            Decision::GiveUp(failed) => {
                journal.give_up(failed, facts.now);
                Pass::GivesUp
            }
        };
        Ok((pass, close(facts, id, &journal)))
    }

    /// The journal after a step that went well.
    pub(crate) fn succeed(facts: &Facts, id: Id, book: &Book) -> Book {
        let mut journal = open(facts, id, book);
        journal.end_step();
        close(facts, id, &journal)
    }

    /// The journal after a step that failed.
    pub(crate) fn fail(&self, facts: &Facts, id: Id, book: &Book) -> Book {
        let mut journal = open(facts, id, book);
        let failed = Failed { reason: Reason::PackageFailed, message: String::new() };
        journal.fail(failed, facts.now, self.limits(), 0.0);
        close(facts, id, &journal)
    }

    /// The journal after a start of the agent.
    pub(crate) fn restart(&self, facts: &Facts, id: Id, book: &Book, number: u8) -> Book {
        let mut journal = open(facts, id, book);
        journal.recover(&BootId::new(&boot(number)), facts.now, self.limits());
        close(facts, id, &journal)
    }

    fn limits(&self) -> Limits {
        let attempts = if self.guard == Some(Guard::AgentAttempts) { u8::MAX } else { ATTEMPTS };
        Limits { attempts: attempts.into(), delay: SignedDuration::ZERO }
    }

    fn host(&self, facts: &Facts, situation: &Situation) -> HostState {
        let booted = facts.has_booted(situation.id, situation.boot);
        let one = |place: usize, one: &crate::facts::Software| {
            let changed = situation.changed & (1 << place) != 0;
            let version = if changed { Some(one.new.clone()) } else { one.old.clone() };
            let now: Option<SoftwareVersion> = version.clone().filter(|_| !one.boots || booted);
            (one.name.clone(), Observed { version: now, after_reboot: version, stale: false })
        };
        let mut software: Vec<_> =
            facts.software.at(situation.id).iter().enumerate().map(|(place, two)| one(place, two)).collect();
        if self.guard == Some(Guard::AgentOrder) {
            software.reverse();
        }
        let host = HostFacts {
            boot: BootId::new(&boot(situation.boot)),
            joined: true,
            control_plane: facts.is_plane(situation.id),
            ..HostFacts::default()
        };
        HostState { facts: host, software, ..HostState::default() }
    }
}

/// The real journal of a small one.
fn open(facts: &Facts, id: Id, book: &Book) -> Journal {
    let plan = facts.targets.at(id);
    let failure = || Failed { reason: Reason::PackageFailed, message: String::new() };
    let software = |bit: u8| facts.software.at(id).iter().enumerate().find(|(place, _)| bit == 1 << place);
    let mut journal = Journal::default();
    journal.observed = book.observed.then(|| plan.id());
    journal.ready = book.ready;
    journal.unverified = book.unverified;
    journal.active = book.active.then(|| Active {
        plan: plan.clone(),
        origin: Origin::Node,
        attempt: book.attempt.into(),
        since: facts.now,
        step: match book.open {
            Open::None => None,
            Open::Reboot => Some(Step::Reboot),
            Open::Change(bit) => software(bit).map(|(_, one)| Step::Change(one.name.clone())),
        },
        failure: None,
        retry_at: None,
        rebooted_from: book.rebooted_from.checked_sub(1).map(|number| BootId::new(&boot(number))),
        withdrawn: book.withdrawn,
    });
    journal.quarantine = book.quarantine.then(|| Quarantine {
        plan: plan.id(),
        failure: failure(),
        attempts: ATTEMPTS.into(),
        since: facts.now,
    });
    journal
}

/// The small journal of a real one. Waits before another attempt are over at once.
fn close(facts: &Facts, id: Id, journal: &Journal) -> Book {
    let active = journal.active.as_ref();
    let reboot = active.and_then(|active| active.rebooted_from.as_ref());
    let number = reboot.and_then(|from| (0..u8::MAX).find(|number| *from == BootId::new(&boot(*number))));
    Book {
        active: active.is_some(),
        attempt: active
            .map_or(0, |active| u8::try_from(active.attempt).unwrap_or(u8::MAX).min(MOST_ATTEMPTS)),
        open: match active.and_then(|active| active.step.as_ref()) {
            None => Open::None,
            Some(Step::Reboot) => Open::Reboot,
            Some(Step::Change(name)) => Open::Change(facts.bit(id, name.as_str())),
        },
        rebooted_from: number.map_or(0, |number| number + 1),
        withdrawn: active.is_some_and(|active| active.withdrawn),
        observed: journal.observed.is_some(),
        ready: journal.ready,
        quarantine: journal.quarantine.is_some(),
        unverified: journal.unverified,
    }
}
