//! What a rollout did: how long each node was in each phase.

use std::{collections::BTreeMap, fmt, time::Duration};

use common::metadata::NodeName;
use jiff::Timestamp;
use serde::Serialize;

use super::{
    assess::{Assessment, Stage, Verb},
    decide::{Action, Decision},
};

/// What a rollout did.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// How many things infrop did.
    pub actions: usize,
    /// The nodes that were under way.
    pub nodes: BTreeMap<NodeName, NodeReport>,
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
    /// Notes where every node is.
    pub(super) fn take(&mut self, decision: &Decision, now: Timestamp) {
        for (name, node) in &decision.nodes {
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
            known.message.clone_from(&node.message);
            known.ended = (node.stage == Stage::Done).then(|| known.ended.unwrap_or(now));
            known.enter(phase, now);
        }
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

/// A line per node, in the order in which they were begun.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut nodes: Vec<(&NodeName, &NodeReport)> = self.nodes.iter().collect();
        nodes.sort_by_key(|(_, node)| node.began);
        let lines: Vec<String> = nodes
            .iter()
            .map(|(name, node)| {
                let took = node.duration().map(|took| format!("{:.0} s", took.as_secs_f64()));
                format!("{name}: {} ({node})", took.unwrap_or_else(|| "not through".to_owned()))
            })
            .collect();
        f.write_str(&lines.join("\n"))
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
