//! A host, a journal on a disk and a loop like the engine's, with failures and ends at any point.

use proptest::prelude::*;

use super::{properties::is_at, *};

/// What becomes of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Succeeds,
    Fails,
    /// The agent ends before, or after, the action took effect.
    EndsBefore,
    EndsAfter,
    /// The same by a loss of power.
    PowerLostBefore,
    PowerLostAfter,
}

use Fate::{EndsAfter, EndsBefore, Fails, PowerLostAfter, PowerLostBefore, Succeeds};

#[derive(Debug, Clone)]
struct World {
    case: Case,
    /// The journal as the next start finds it.
    disk: Journal,
    limits: Limits,
    boots: usize,
    /// Restarts that were ordered and happened.
    reboots: usize,
    finished: bool,
}

impl World {
    fn new(case: Case) -> Self {
        let disk = case.journal.clone();
        Self { case, disk, limits: LIMITS, boots: 0, reboots: 0, finished: false }
    }

    fn save(&mut self) {
        self.disk = self.case.journal.clone();
    }

    /// As the engine asks: only a readable API server tells the cluster's version, and only if it matters.
    fn decide(&mut self, asked: &Asked) -> Decision {
        if self.case.journal.hear(asked) {
            self.save();
        }
        let mut case = self.case.clone();
        if !matches!(asked, Asked::Node(_)) {
            case.cluster = None;
        }
        case.decide(asked)
    }

    fn start_host(&mut self) {
        self.boots += 1;
        self.case.boot(&format!("boot {}", self.boots));
    }

    fn start_agent(&mut self) {
        self.case.journal = serde_json::from_str(&serde_json::to_string(&self.disk).unwrap()).unwrap();
        self.case.journal.recover(&self.case.host.facts.boot, self.case.now, self.limits);
    }

    /// The agent's end, if this is the moment.
    fn ends(&mut self, fate: Fate, agent: Fate, power: Fate) -> bool {
        if fate == power {
            self.start_host();
        }
        let ends = fate == agent || fate == power;
        if ends {
            self.start_agent();
        }
        ends
    }

    fn fail(&mut self, reason: Reason) {
        let failed = Failed { reason, message: "simulated".into() };
        self.case.journal.fail(failed, self.case.now, self.limits, 0.5);
        self.save();
    }

    /// One pass of the engine.
    fn pass(&mut self, asked: &Asked, fate: Fate) -> Decision {
        let decision = self.decide(asked);
        self.act(asked, &decision, fate);
        let Journal { active, observed, ready, quarantine, .. } = &self.case.journal;
        if let Some(active) = active {
            assert!(!ready && observed.as_ref() == Some(&active.plan.id()), "{:?}", self.case.journal);
            assert!(quarantine.is_none());
        }
        decision
    }

    fn act(&mut self, asked: &Asked, decision: &Decision, fate: Fate) {
        let boot = self.case.host.facts.boot.clone();
        match decision {
            Decision::Rest(rest) => {
                self.case.journal.stand(rest.standing.clone());
                self.save();
                self.case.now = rest.until.unwrap_or(self.case.now).max(self.case.now);
            }
            Decision::Accept { plan, origin, permitted } => {
                self.case.journal.accept(plan.clone(), *origin, *permitted, self.case.now);
                if !self.ends(fate, EndsBefore, PowerLostBefore) {
                    self.save();
                    self.ends(fate, EndsAfter, PowerLostAfter);
                }
            }
            Decision::Change { software, version } => {
                self.case.journal.begin(Step::Change(software.clone()), &boot);
                self.save();
                if self.ends(fate, EndsBefore, PowerLostBefore) {
                    return;
                }
                if fate == Fails {
                    return self.fail(Reason::PackageFailed);
                }
                self.case.change(software, version);
                if software.as_str() == KUBERNETES && self.case.host.facts.control_plane {
                    let raised = version.as_str().parse().ok();
                    self.case.cluster = self.case.cluster.take().max(raised);
                }
                if !self.ends(fate, EndsAfter, PowerLostAfter) {
                    self.case.journal.end_step();
                    self.save();
                }
            }
            Decision::Reboot => {
                self.case.journal.begin(Step::Reboot, &boot);
                self.save();
                if self.ends(fate, EndsBefore, PowerLostBefore) {
                    return;
                }
                if fate == Fails {
                    return self.fail(Reason::RebootFailed);
                }
                self.reboots += 1;
                self.start_host();
                self.start_agent();
            }
            Decision::Finish { .. } => {
                if self.ends(fate, EndsBefore, PowerLostBefore) {
                    return;
                }
                if fate == Fails {
                    return self.fail(Reason::ServiceFailed);
                }
                if self.decide(asked) == *decision {
                    self.case.journal.finish(self.case.now);
                    self.finished = true;
                    self.save();
                }
                self.ends(fate, EndsAfter, PowerLostAfter);
            }
            Decision::GiveUp(failed) => self.case.journal.give_up(failed.clone(), self.case.now),
        }
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop::sample::select(vec![Succeeds, Fails, EndsBefore, EndsAfter, PowerLostBefore, PowerLostAfter])
}

/// Up to two troubles, which is what three attempts allow, at any of the first actions.
fn troubles() -> impl Strategy<Value = Vec<(usize, Fate)>> {
    prop::collection::vec((0_usize..12, fate()), 0..=2)
}

fn any_version(of: &'static [&'static str]) -> impl Strategy<Value = Option<SoftwareVersion>> {
    prop::option::of(prop::sample::select(of).prop_map(version))
}

/// A host with a cluster or without, and versions of which the skew rules allow some.
pub(super) fn case() -> impl Strategy<Value = Case> {
    const KUBERNETES_VERSIONS: &[&str] = &["1.35.9", "1.36.4", "1.36.5", "1.37.1", "1.38.0"];
    const OTHERS: &[&str] = &["1", "2"];
    let parts = prop::collection::vec(any_version(KUBERNETES_VERSIONS), 4);
    let others = prop::collection::vec((any_version(OTHERS), any_version(OTHERS), any::<bool>()), 4);
    let cluster = prop::option::weighted(0.9, prop::sample::select(KUBERNETES_VERSIONS));
    (parts, others, cluster, any::<bool>(), any::<bool>()).prop_map(
        |(parts, others, cluster, joined, control_plane)| {
            let mut case = Case::bare();
            for (part, found) in PARTS.into_iter().zip(parts) {
                *case.observed(part) = Observed::now(found);
            }
            let names = ["containerd", "haproxy", "kernel", "reboot"];
            for (other, (now, later, stale)) in names.into_iter().zip(others) {
                let needs_boot = ["kernel", "reboot"].contains(&other);
                let version = if needs_boot { now } else { later.clone() };
                *case.observed(other) = Observed { version, after_reboot: later, stale };
            }
            case.cluster = cluster.map(|text| text.parse().unwrap());
            case.host.facts.joined = joined;
            case.host.facts.control_plane = joined && control_plane;
            case
        },
    )
}

/// A plan of some software.
pub(super) fn goal() -> impl Strategy<Value = Plan> {
    let parts = [("kubeadm", NEW), ("kubelet", NEW), ("kubectl", NEW)];
    let others = vec![("containerd", "2"), ("haproxy", "2"), ("kernel", "2"), ("reboot", "2")];
    (any::<bool>(), prop::sample::subsequence(others, 0..=4)).prop_map(move |(upgrade, mut chosen)| {
        if upgrade || chosen.is_empty() {
            chosen.extend(parts);
        }
        plan(&chosen)
    })
}

fn asked_of(case: &Case, goal: &Plan) -> Asked {
    if case.host.facts.joined { permitted(goal) } else { Asked::Metadata(goal.clone()) }
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 20_000, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn a_plan_that_may_be_tried_is_reached_from_anywhere_with_one_reboot_at_most(
        case in case(), goal in goal(), troubles in troubles(),
    ) {
        let asked = asked_of(&case, &goal);
        let mut world = World::new(case);
        let first = world.case.decide(&asked);
        prop_assume!(matches!(first, Decision::Accept { .. }));
        // At most: begin (twice if its end came first), a change each, a reboot, the end; and each trouble costs a
        // wait and a repetition.
        let most = 2 + goal.desired.len() + 1 + 2 + 2 * (troubles.len() + 1);
        for number in 0..most {
            let fate = troubles.iter().find(|(at, _)| *at == number).map_or(Succeeds, |(_, fate)| *fate);
            let decision = world.pass(&asked, fate);
            prop_assert!(!matches!(decision, Decision::GiveUp(_)));
            if let Decision::Rest(rest) = &decision {
                // A loss of power before the journal had the plan may have been the boot that was missing.
                world.finished = rest.standing == Standing::At(goal.id());
                prop_assert!(world.finished || rest.phase == Phase::Retrying, "{}", rest.message);
            }
            if world.finished {
                break;
            }
        }
        prop_assert!(world.finished, "{:?}", world);
        prop_assert!(world.reboots <= 1);
        for (software, version) in wanted(&goal, &world.case.host) {
            let observed = world.case.host.observed(software.as_str()).unwrap();
            prop_assert!(observed.version.as_ref() == Some(&version) && !observed.stale);
        }
        prop_assert_eq!(world.disk.observed.clone(), Some(goal.id()));
        prop_assert!(world.disk.ready && world.disk.active.is_none());
        prop_assert_eq!(world.case.rest(&asked).phase, Phase::Idle);
    }

    #[test]
    fn a_step_that_always_fails_ends_in_quarantine_after_exactly_the_attempts(
        case in case(), goal in goal(), attempts in 1_u32..7, good in 0_usize..8,
        bad in prop::collection::vec(prop::sample::select(vec![Fails, EndsBefore]), 7),
    ) {
        let asked = asked_of(&case, &goal);
        let mut world = World::new(case);
        world.limits.attempts = attempts;
        prop_assume!(matches!(world.case.decide(&asked), Decision::Accept { .. }));
        world.pass(&asked, Succeeds);
        for _ in 0..good {
            if !matches!(world.decide(&asked), Decision::Finish { .. }) {
                world.pass(&asked, Succeeds);
            }
        }
        let mut failures = 0;
        loop {
            // A check that the agent's end cuts off is no step: nothing was changed.
            let checks = matches!(world.decide(&asked), Decision::Finish { .. });
            let fate = if checks { Fails } else { bad[failures] };
            match world.pass(&asked, fate) {
                Decision::Rest(rest) if rest.phase == Phase::Quarantined => break,
                Decision::Rest(rest) => prop_assert_eq!(rest.phase, Phase::Retrying, "{}", rest.message),
                _ => failures += 1,
            }
        }
        let limit = usize::try_from(attempts).unwrap();
        prop_assert_eq!(failures, limit);
        prop_assert_eq!(world.disk.quarantine.as_ref().map(|one| one.attempts), Some(attempts));
        prop_assert!(!world.disk.ready && world.disk.active.is_none());
        // Neither another start of the agent nor of the host gives it another attempt; a person does.
        world.start_host();
        world.start_agent();
        prop_assert_eq!(world.case.rest(&asked).phase, Phase::Quarantined);
        prop_assert!(world.case.journal.retry());
        // Also if the last boot was all that was missing: nobody has looked at services since.
        let again = world.case.decide(&asked);
        prop_assert!(matches!(again, Decision::Accept { .. }), "{again:?}");
    }

    /// What the Node last said counts, through silence, failures and ends of agent and host.
    #[test]
    fn nothing_changes_after_a_word_that_is_no_permit(
        case in case(), plans in (goal(), goal()),
        words in prop::collection::vec((0_usize..10, fate(), any::<bool>()), 1..60),
    ) {
        let mut world = World::new(case);
        world.case.host.facts.joined = true;
        let (first, second) = plans;
        let mut last = None;
        for (word, fate, drifts) in words {
            let (asked, permit) = match word {
                0 => (permitted(&second), Some(second.id())),
                1 => (unpermitted(&first), None),
                2 => (paused(&first), None),
                3 => (Asked::Node(Err(RequestError::NoHash)), None),
                4 => (Asked::Node(Ok(Request::default())), None),
                5 | 6 => (Asked::Silence { since: at(0) }, last),
                7 => (Asked::Refusal("no".into()), last),
                _ => (permitted(&first), Some(first.id())),
            };
            last = permit;
            let before = world.case.journal.clone();
            if drifts {
                *world.case.observed("containerd") = Observed::default();
            }
            let at_first = world.case.clone();
            match world.pass(&asked, fate) {
                // What is there is only looked at.
                Decision::Accept { plan, permitted: false, .. } => {
                    prop_assert!(before.unverified && is_at(&at_first, &plan));
                }
                Decision::Accept { plan, .. } => prop_assert_eq!(Some(plan.id()), last.clone()),
                Decision::Change { .. } | Decision::Reboot => {
                    prop_assert_eq!(before.active.map(|active| active.plan.id()), last.clone());
                }
                Decision::Rest(_) | Decision::Finish { .. } | Decision::GiveUp(_) => {}
            }
        }
    }
}
