//! What of a rollout is told as an Event of a Node: what was done, and what failed. Pure.

use std::collections::BTreeMap;

use common::metadata::NodeName;

use super::{
    act::Found,
    assess::{Stage, Verb},
    decide::{Action, Decision},
    reason::Reason,
    snapshot::Member,
};

/// An Event, as far as it is ours to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tale {
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) note: String,
}

/// What is told of an action: nothing of one that was not done. `member` is the node as the decision saw it.
pub(super) fn tale(action: &Action, member: &Member, found: &Found) -> Option<Tale> {
    let warn = |reason, note: &str| Some(Tale { warning: true, reason, note: note.to_owned() });
    let say = |reason| Some(Tale { warning: false, reason, note: action.to_string() });
    match (action, found) {
        (_, Found::Overtaken(_)) => None,
        (_, Found::Held(why)) => warn("RolloutHeld", why),
        (_, Found::Tested(Err(why))) => warn("RolloutCheckFailed", why),
        (Action::Permit(_), _) => say("RolloutBegun"),
        (Action::Step(Verb::Drain, _), _) => say("RolloutDrained"),
        (Action::Step(Verb::Plan, _), _) => say("RolloutPlanned"),
        // Of one that is given back without its versions there was a warning, or there will be.
        (Action::Step(Verb::Withdraw, _), _) if member.at_target() => say("RolloutEnded"),
        _ => None,
    }
}

/// The nodes that have failed, and as what: each is told once.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<NodeName, Reason>);

impl Failures {
    /// What is to be told of those that have failed since the last decision.
    pub(super) fn take<'d>(&mut self, decision: &'d Decision) -> Vec<(&'d NodeName, Tale)> {
        let mut news = Vec::new();
        for (name, node) in &decision.nodes {
            if node.stage != Stage::Failed {
                // It goes on: if it fails again, that is news again.
                self.forget(name);
            } else if self.0.get(name) != Some(&node.reason) {
                self.0.insert(name.clone(), node.reason);
                news.push((name, Tale { warning: true, reason: "RolloutFailed", note: node.to_string() }));
            }
        }
        news
    }

    /// A node is no more.
    pub(super) fn forget(&mut self, name: &NodeName) {
        self.0.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use common::{
        annotations::{CHANGES_ALLOWED, PLAN_OBSERVED, STATE, write_plan},
        state::{Phase, Reason as Code, State},
    };
    use jiff::SignedDuration;

    use super::*;
    use crate::rollout::{
        decide::decide,
        reach,
        snapshot::Snapshot,
        tests::{annotate, plan, snapshot},
    };

    fn written() -> Found {
        Found::Written(Box::default())
    }

    fn overtaken() -> Found {
        Found::Overtaken(Box::default())
    }

    fn name() -> NodeName {
        "w-1".parse().unwrap()
    }

    #[test]
    fn only_what_was_done_is_told() {
        let step = |verb| Action::Step(verb, name());
        let world = snapshot(&["w-1"], &plan("1.37.1"));
        let behind = world.members[&name()].clone();
        let mut node = behind.node.clone();
        reach(&mut node, &plan("1.37.1"), world.now);
        let mut through = behind.clone();
        through.update(node, world.now);
        for (action, member, found, expected) in [
            (Action::Permit(name()), &behind, written(), Some((false, "RolloutBegun"))),
            (Action::Permit(name()), &behind, overtaken(), None),
            (step(Verb::Cordon), &behind, written(), None),
            (step(Verb::Drain), &behind, Found::Empty, Some((false, "RolloutDrained"))),
            (step(Verb::Drain), &behind, Found::Held("a budget".into()), Some((true, "RolloutHeld"))),
            (step(Verb::Plan), &behind, written(), Some((false, "RolloutPlanned"))),
            (step(Verb::Plan), &behind, overtaken(), None),
            (step(Verb::Test), &through, Found::Tested(Err("no".into())), Some((true, "RolloutCheckFailed"))),
            (step(Verb::Test), &through, Found::Tested(Ok(())), None),
            (step(Verb::Withdraw), &through, written(), Some((false, "RolloutEnded"))),
            (step(Verb::Withdraw), &through, overtaken(), None),
            // Its agent gave up, or its pods did not go.
            (step(Verb::Withdraw), &behind, written(), None),
        ] {
            let told = tale(&action, member, &found).map(|tale| (tale.warning, tale.reason));
            assert_eq!(told, expected, "{action}: {found:?}");
        }
    }

    /// The agent of `w-1` says that it gave up, or goes on.
    fn says(world: &mut Snapshot, phase: Phase) {
        let state = State {
            phase,
            reason: Code::PackageFailed,
            message: "m".into(),
            since: world.now,
            attempt: 1,
            boot_id: "boot".into(),
            agent_version: String::new(),
        };
        for (key, value) in write_plan(&plan("1.37.1")) {
            annotate(world, "w-1", &key, &value);
        }
        annotate(world, "w-1", PLAN_OBSERVED, plan("1.37.1").id().as_str());
        annotate(world, "w-1", STATE, &serde_json::to_string(&state).unwrap());
    }

    #[test]
    fn each_failure_is_told_once() {
        let mut world = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
        let mut failures = Failures::default();
        let mut told = |world: &Snapshot| {
            let decision = decide(world);
            let news = failures.take(&decision);
            news.into_iter()
                .map(|(name, tale)| format!("{name} {} {}", tale.reason, tale.note))
                .collect::<Vec<String>>()
        };
        let quiet: Vec<String> = Vec::new();
        assert_eq!(told(&world), quiet);
        // A permit that is about to be withdrawn is no end yet.
        annotate(&mut world, "w-1", CHANGES_ALLOWED, "true");
        says(&mut world, Phase::Quarantined);
        assert_eq!(told(&world), quiet);
        annotate(&mut world, "w-1", CHANGES_ALLOWED, "false");
        let gave_up = "w-1 RolloutFailed AgentFailed: Quarantined (PackageFailed): m; when that is put right, \
            run `node-agent retry` on it and this command again";
        assert_eq!(told(&world), [gave_up]);
        assert_eq!(told(&world), quiet);
        // Whatever else fails is something else, also silence.
        world.members.get_mut(&name()).unwrap().failed = Some("cannot cordon w-1: no".into());
        assert_eq!(told(&world), ["w-1 RolloutFailed ActionFailed: cannot cordon w-1: no"]);
        world.members.get_mut(&name()).unwrap().failed = None;
        annotate(&mut world, "w-1", CHANGES_ALLOWED, "true");
        says(&mut world, Phase::Verifying);
        assert_eq!(told(&world), quiet);
        world.now += SignedDuration::from_hours(1);
        let [silence] = &told(&world)[..] else { panic!() };
        assert!(silence.starts_with("w-1 RolloutFailed NoSign: nothing happened for 30 min"), "{silence}");
        assert_eq!(told(&world), quiet);
    }
}
