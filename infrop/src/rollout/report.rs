//! What a rollout did: how long each node was in each phase.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    time::Duration,
};

use common::metadata::NodeName;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{
    assess::{Assessment, Stage, Verb},
    decide::{Action, Decision},
};

/// Who waits so long is shown again, with the time since when; before that the line itself says it.
const LONG: SignedDuration = SignedDuration::from_mins(1);

/// What a rollout did.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// How many things infrop did.
    pub actions: usize,
    /// The nodes that were under way.
    pub nodes: BTreeMap<NodeName, NodeReport>,
    /// The nodes that are not through.
    pub waiting: BTreeMap<NodeName, Waiting>,
}

/// Why a node is not through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Why, as a code.
    pub reason: &'static str,
    /// Since when it is this reason, as far as this run saw.
    pub since: Timestamp,
    /// Why, as a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What a rollout did with a node.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// When it was begun, or found under way.
    pub began: Timestamp,
    /// When it was through.
    pub ended: Option<Timestamp>,
    /// Seconds in each phase, in order.
    pub phases: Vec<PhaseReport>,
    /// Where it is.
    pub reason: &'static str,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How long a node was in a phase.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseReport {
    /// Which: a step of infrop, or what was waited for.
    pub phase: &'static str,
    /// When it began.
    #[serde(skip)]
    since: Timestamp,
    /// How long it took.
    pub seconds: f64,
}

/// The phase of a node, if it is under way.
fn phase(node: &Assessment) -> Option<&'static str> {
    match node.stage {
        Stage::Do(Verb::Cordon | Verb::Drain) => Some("drain"),
        Stage::Do(Verb::Plan) => Some("plan"),
        Stage::Do(Verb::Check) => Some("check"),
        Stage::Do(Verb::Test) => Some("test"),
        Stage::Do(Verb::Uncordon | Verb::Withdraw) => Some("uncordon"),
        Stage::Wait if node.away => Some(node.reason.as_str()),
        _ => None,
    }
}

impl Report {
    /// Notes where every node is; why is left to [`Self::end`]. Of those that are where they were by the decision before
    /// all is noted, and thousands may be.
    pub(super) fn take(&mut self, decision: &Decision, before: &Decision, now: Timestamp) {
        let place = |node: &Assessment| (node.stage, node.reason, node.away);
        for (name, node, before) in decision.beside(before) {
            if before.map(place) == Some(place(node)) {
                continue;
            }
            self.wait(name, node, now);
            let phase = phase(node);
            let known = match (self.nodes.get_mut(name), phase) {
                (Some(known), _) => known,
                (None, None) => continue,
                (None, Some(_)) => self.nodes.entry(name.clone()).or_insert_with(|| NodeReport {
                    began: now,
                    ended: None,
                    phases: Vec::new(),
                    reason: node.reason.as_str(),
                    message: String::new(),
                }),
            };
            known.reason = node.reason.as_str();
            known.ended = (node.stage == Stage::Done).then(|| known.ended.unwrap_or(now));
            known.enter(phase, now);
        }
    }

    /// Ends with what was decided last: says in full why each node is where it is, and how long it is there.
    pub(super) fn end(&mut self, decision: &Decision, now: Timestamp) {
        for node in self.nodes.values_mut() {
            node.enter(None, now);
        }
        for (name, node) in &decision.nodes {
            let report = self.nodes.get_mut(name).map(|known| &mut known.message);
            let waiting = self.waiting.get_mut(name).map(|known| &mut known.message);
            for message in report.into_iter().chain(waiting) {
                message.clone_from(&node.message);
            }
        }
    }

    /// Notes why a node is not through; a reason that stays keeps its time.
    fn wait(&mut self, name: &NodeName, node: &Assessment, now: Timestamp) {
        let reason = node.reason.as_str();
        if node.stage == Stage::Done {
            self.waiting.remove(name);
            return;
        }
        if self.waiting.get(name).is_none_or(|known| known.reason != reason) {
            let waiting = Waiting { reason, since: now, message: String::new() };
            self.waiting.insert(name.clone(), waiting);
        }
    }

    /// Goes on with what a later rollout of the same run did.
    pub fn follow(&mut self, later: Self) {
        self.actions += later.actions;
        self.waiting = later.waiting;
        for (name, node) in later.nodes {
            match self.nodes.entry(name) {
                Entry::Vacant(entry) => drop(entry.insert(node)),
                Entry::Occupied(mut entry) => {
                    let phases = std::mem::take(&mut entry.get_mut().phases);
                    let phases = phases.into_iter().chain(node.phases).collect();
                    entry.insert(NodeReport { began: entry.get().began, phases, ..node });
                }
            }
        }
    }

    /// What is shown of a node that waits: after a while also since when.
    pub(super) fn line(&self, name: &NodeName, node: &Assessment, now: Timestamp) -> String {
        let since = self.waiting.get(name).map(|waiting| waiting.since);
        match since.filter(|since| now.duration_since(*since) >= LONG) {
            Some(since) => format!("{node} (since {since:.0})"),
            None => node.to_string(),
        }
    }

    /// A node is no more: nobody waits for it.
    pub(super) fn forget(&mut self, name: &NodeName) {
        self.waiting.remove(name);
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.waiting.is_empty()
    }

    /// Seconds of all nodes in each phase, up to now.
    pub(super) fn phases(&self, now: Timestamp) -> BTreeMap<&'static str, f64> {
        let mut phases = BTreeMap::new();
        for PhaseReport { phase, since, seconds } in self.nodes.values().flat_map(|node| &node.phases) {
            // One under way has no seconds yet.
            let under_way = || now.duration_since(*since).as_secs_f64().max(0.0);
            *phases.entry(*phase).or_default() += if *seconds > 0.0 { *seconds } else { under_way() };
        }
        phases
    }

    pub(super) fn note(&mut self, action: &Action) {
        self.actions += usize::from(!action.is_look());
    }
}

impl NodeReport {
    fn enter(&mut self, phase: Option<&'static str>, now: Timestamp) {
        if let Some(last) = self.phases.last_mut().filter(|last| last.seconds == 0.0) {
            if phase == Some(last.phase) {
                return;
            }
            // Never nothing, which is how a phase under way is told.
            last.seconds = now.duration_since(last.since).as_secs_f64().max(0.001);
        }
        if let Some(phase) = phase {
            self.phases.push(PhaseReport { phase, since: now, seconds: 0.0 });
        }
    }

    /// How long it was under way.
    pub fn duration(&self) -> Option<Duration> {
        self.ended.and_then(|ended| Duration::try_from(ended.duration_since(self.began)).ok())
    }
}

/// A line per node, in the order in which they were begun; then those that were not.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut nodes: Vec<(&NodeName, &NodeReport)> = self.nodes.iter().collect();
        nodes.sort_by_key(|(_, node)| node.began);
        let waiting = self.waiting.iter().filter(|(name, _)| !self.nodes.contains_key(name));
        let lines: Vec<String> = nodes
            .iter()
            .map(|(name, node)| {
                let took = node.duration().map(|took| format!("{:.0} s", took.as_secs_f64()));
                let took = took.unwrap_or_else(|| "not through".to_owned());
                let waits = self.waiting.get(*name).map(|waiting| format!("; {waiting}"));
                format!("{name}: {took} ({node}){}", waits.unwrap_or_default())
            })
            .chain(waiting.map(|(name, waiting)| format!("{name}: {waiting}")))
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

/// Why is said in full where a run ends.
impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} since {:.0}", self.reason, self.since)
    }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut phases: Vec<(&str, f64)> = Vec::new();
        for PhaseReport { phase, seconds, .. } in &self.phases {
            match phases.iter_mut().find(|(known, _)| known == phase) {
                Some((_, sum)) => *sum += seconds,
                None => phases.push((phase, *seconds)),
            }
        }
        let phases: Vec<String> = phases
            .iter()
            .filter(|(_, seconds)| *seconds >= 0.05)
            .map(|(phase, seconds)| format!("{phase} {seconds:.1} s"))
            .collect();
        f.write_str(&phases.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use common::annotations::PAUSED;

    use super::*;
    use crate::rollout::{
        assume,
        decide::decide,
        snapshot::Snapshot,
        tests::{annotate, plan, snapshot},
    };

    fn waits(report: &Report, name: &str) -> Option<(&'static str, Timestamp)> {
        report.waiting.get(&name.parse().unwrap()).map(|waiting| (waiting.reason, waiting.since))
    }

    #[test]
    fn a_later_rollout_of_the_same_run_goes_on_with_the_report() {
        let (mut world, mut reports) = (snapshot(&["w-1", "w-2"], &plan("1.37.1")), Vec::new());
        let names = ["w-1", "w-2"].map(|name| name.parse().unwrap());
        let start = world.now;
        for (paused, actions) in [("w-2", 3), ("", 4)] {
            world.members.values_mut().for_each(|member| {
                let mut node = member.node.clone();
                node.annotations.remove(PAUSED);
                member.update(node, start);
            });
            if !paused.is_empty() {
                annotate(&mut world, paused, PAUSED, "x");
            }
            let mut report = Report { actions, ..Report::default() };
            let mut before = Decision::default();
            for _ in 0..20 {
                let decision = decide(&world);
                report.take(&decision, &before, world.now);
                for action in &decision.actions {
                    assume(&mut world, action);
                }
                world.now += SignedDuration::from_secs(20);
                before = decision;
            }
            report.end(&before, world.now);
            reports.push(report);
        }
        let [mut first, second] = <[Report; 2]>::try_from(reports).unwrap();
        assert_eq!(first.nodes.keys().collect::<Vec<_>>(), [&names[0]]);
        assert_eq!(first.waiting.keys().collect::<Vec<_>>(), [&names[1]]);
        assert!(!first.waiting[&names[1]].message.is_empty());
        first.follow(second);
        assert_eq!((first.actions, first.nodes.keys().collect::<Vec<_>>()), (7, names.iter().collect()));
        assert!(first.waiting.is_empty());
        assert!(first.nodes.values().all(|node| node.ended.is_some() && !node.phases.is_empty()));
    }

    /// A run that is ended says how long a node was in its last phase, too.
    #[test]
    fn the_phase_under_way_ends_with_the_run() {
        let mut world = snapshot(&["w-1"], &plan("1.37.1"));
        annotate(&mut world, "w-1", common::annotations::CHANGES_ALLOWED, "true");
        let mut report = Report::default();
        let decision = decide(&world);
        report.take(&decision, &Decision::default(), world.now);
        report.end(&decision, world.now + SignedDuration::from_secs(7));
        let node = &report.nodes[&"w-1".parse().unwrap()];
        assert!((node.phases.last().unwrap().seconds - 7.0).abs() < 0.01, "{node:?}");
    }

    #[test]
    fn whoever_waits_has_a_reason_and_since_when() {
        let mut world = snapshot(&["w-1", "w-2", "w-3"], &plan("1.37.1"));
        let (mut report, start) = (Report::default(), world.now);
        let take = |report: &mut Report, world: &mut Snapshot| {
            let decision = decide(world);
            report.take(&decision, &Decision::default(), world.now);
            for action in decision.actions {
                assume(world, &action);
            }
            world.now += SignedDuration::from_secs(1);
        };
        assert!(report.is_empty());
        take(&mut report, &mut world);
        assert_eq!(waits(&report, "w-1"), Some(("Next", start)));
        assert_eq!(waits(&report, "w-2"), Some(("CapacityUsed", start)));
        // The reason of one that is under way changes, that of one that waits does not.
        for _ in 0..3 {
            take(&mut report, &mut world);
        }
        assert_eq!(waits(&report, "w-1"), Some(("UnderWay", start + SignedDuration::from_secs(1))));
        assert_eq!(waits(&report, "w-2"), Some(("CapacityUsed", start)));
        // Another reason has another time, and so has the first one when it comes back.
        for (pause, reason) in [(true, "Paused"), (false, "CapacityUsed")] {
            if pause {
                annotate(&mut world, "w-2", PAUSED, "disk");
            } else {
                let member = world.members.get_mut(&"w-2".parse().unwrap()).unwrap();
                let mut node = member.node.clone();
                node.annotations.remove(PAUSED);
                member.update(node, start);
            }
            let now = world.now;
            let decision = decide(&world);
            report.take(&decision, &Decision::default(), now);
            assert_eq!(waits(&report, "w-2"), Some((reason, now)));
            world.now += SignedDuration::from_secs(1);
        }
        let (name, decision) = ("w-2".parse().unwrap(), decide(&world));
        let since = report.waiting[&name].since;
        let line = |now| report.line(&name, &decision.nodes[&name], now);
        assert_eq!(line(since + SignedDuration::from_secs(59)), decision.nodes[&name].to_string());
        let long = line(since + SignedDuration::from_secs(60));
        assert_eq!(long, format!("{} (since {since:.0})", decision.nodes[&name]));
        let shown = report.to_string();
        assert!(shown.contains("\nw-3: CapacityUsed since 2026-11-16T12:00:00Z"), "{shown}");
        assert!(shown.starts_with("w-1: not through (") && shown.contains("; "), "{shown}");
        report.end(&decision, world.now);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["waiting"]["w-3"]["reason"], "CapacityUsed");
        assert_eq!(json["waiting"]["w-3"]["since"], "2026-11-16T12:00:00Z");
        assert!(json["waiting"]["w-3"]["message"].is_string());
        // Who is through waits for nothing, and who is no more either.
        report.forget(&"w-3".parse().unwrap());
        assert_eq!(waits(&report, "w-3"), None);
        for _ in 0..60 {
            take(&mut report, &mut world);
        }
        assert!(report.waiting.is_empty(), "{report}");
    }
}
