//! How a run ended, said to people or programs.

use std::{collections::BTreeMap, time::Duration};

use common::metadata::NodeName;
use serde::Serialize;

use super::{
    BLOCKED, DONE, INTERRUPTED, TIMED_OUT,
    infrastructure::DocumentArguments,
    output::{Output, print_json, say, table},
};
use crate::{
    apply::{self, Cluster, Outcome, Snapshot},
    rollout::Report,
};

/// How a run ended.
#[derive(Debug)]
pub(super) struct Ending {
    /// By what.
    pub(super) outcome: Outcome,
    /// What it did with nodes that were to have other versions.
    pub(super) report: Report,
    /// What is there after it.
    pub(super) snapshot: Snapshot,
    /// How long it took.
    pub(super) took: Duration,
    /// How long it was allowed to.
    pub(super) timeout: Duration,
}

/// What programs are told.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    outcome: &'static str,
    /// How many things were done; none if not all of them could be.
    changes: Option<usize>,
    seconds: f64,
    nodes: Vec<Row>,
    /// What cannot be done, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasons: Option<&'a BTreeMap<String, String>>,
    /// What was still under way, and why it takes long.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    unfinished: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<&'a Report>,
}

/// A host.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    address: String,
    state: &'static str,
    kubelet: String,
}

impl Ending {
    /// Whether all is as wanted.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.outcome, Outcome::Done { .. })
    }

    /// With what the runs before it did.
    pub(super) fn after(self, mut before: Report) -> Self {
        before.follow(self.report);
        Self { report: before, ..self }
    }

    /// Says it; gives the exit code.
    pub(super) fn tell(&self, document: &DocumentArguments, output: Output) -> anyhow::Result<u8> {
        match output {
            Output::Text => self.tell_people(&document.words())?,
            Output::Json => print_json(&self.answer())?,
        }
        Ok(self.code())
    }

    fn code(&self) -> u8 {
        match self.outcome {
            Outcome::Done { .. } => DONE,
            Outcome::Blocked { .. } => BLOCKED,
            Outcome::TimedOut { .. } => TIMED_OUT,
            Outcome::Stopped => INTERRUPTED,
        }
    }

    fn answer(&self) -> Answer<'_> {
        let known = Answer {
            seconds: self.took.as_secs_f64(),
            nodes: rows(&self.snapshot),
            rollout: Some(&self.report).filter(|report| !report.is_empty()),
            ..Answer::default()
        };
        match &self.outcome {
            Outcome::Done { changes } => Answer { outcome: "done", changes: Some(*changes), ..known },
            Outcome::Blocked { reasons } => Answer { outcome: "blocked", reasons: Some(reasons), ..known },
            Outcome::TimedOut { unfinished } => Answer { outcome: "timedOut", unfinished, ..known },
            Outcome::Stopped => Answer { outcome: "stopped", ..known },
        }
    }

    fn tell_people(&self, document: &str) -> anyhow::Result<()> {
        let Self { outcome, report, snapshot, took, timeout } = self;
        if !report.is_empty() {
            say(format_args!("{report}\n"))?;
        }
        if !matches!(outcome, Outcome::Stopped) {
            let rows = rows(snapshot).into_iter();
            let rows =
                rows.map(|Row { name, address, state, kubelet }| [name, address, state.to_owned(), kubelet]);
            say(table(["NODE", "ADDRESS", "STATE", "KUBELET"], rows))?;
        }
        let seconds = took.as_secs_f64();
        match outcome {
            Outcome::Done { changes: 0 } => {
                say(format_args!("Nothing to do: all is as the document says ({seconds:.1} s)."))?;
            }
            Outcome::Done { .. } => {
                say(format_args!("Done in {seconds:.0} s.\n\n{}", next_steps(document)))?;
            }
            Outcome::Blocked { reasons } => {
                for (subject, why) in reasons {
                    eprintln!("infrop: {subject}: {why}");
                }
            }
            Outcome::TimedOut { unfinished } => {
                eprintln!(
                    "infrop: out of time after {} min with {}; run the same command again to go on",
                    timeout.as_secs() / 60,
                    unfinished.join(", ")
                );
            }
            Outcome::Stopped => eprintln!("infrop: stopped; run the same command again to go on"),
        }
        Ok(())
    }
}

/// What people may want after their cluster is there.
fn next_steps(document: &str) -> String {
    format!(
        "What to try next:
  (umask 077; infrop kubeconfig {document} > kubeconfig)
  kubectl --kubeconfig kubeconfig get nodes
  infrop status {document}
  infrop plan {document}       # scale: after you changed `nodes` of a group in it; then apply again
  infrop plan {document}       # upgrade: after you changed `kubernetes` under `software`; then apply again
  infrop destroy {document}    # gives all of it back"
    )
}

/// A line per host.
fn rows(snapshot: &Snapshot) -> Vec<Row> {
    let row = |name: &NodeName| {
        let (state, kubelet) = node(snapshot, name);
        let address = snapshot.hosts.get(name).map(|host| host.compute.address.to_string());
        Row { name: name.to_string(), address: address.unwrap_or_default(), state, kubelet }
    };
    apply::sorted(snapshot).into_iter().map(row).collect()
}

fn node(snapshot: &Snapshot, name: &NodeName) -> (&'static str, String) {
    let Cluster::There(view) = &snapshot.cluster else { return ("not in a cluster", String::new()) };
    match view.nodes.get(name) {
        None => ("not in the cluster", String::new()),
        Some(node) => {
            let state = if node.ready.is_ok() { "Ready" } else { "not Ready" };
            (state, node.kubelet.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_how_it_ended() {
        let ending = |outcome| Ending {
            outcome,
            report: Report::default(),
            snapshot: Snapshot::default(),
            took: Duration::from_millis(1500),
            timeout: Duration::from_hours(1),
        };
        let reasons: BTreeMap<String, String> = [("w-1".to_owned(), "no".to_owned())].into();
        for (outcome, code, expected) in [
            (
                Outcome::Done { changes: 2 },
                0,
                serde_json::json!({ "outcome": "done", "changes": 2, "seconds": 1.5, "nodes": [] }),
            ),
            (
                Outcome::Blocked { reasons },
                3,
                serde_json::json!({
                    "outcome": "blocked", "changes": null, "seconds": 1.5, "nodes": [], "reasons": { "w-1": "no" },
                }),
            ),
            (
                Outcome::TimedOut { unfinished: vec!["create w-1".into()] },
                4,
                serde_json::json!({
                    "outcome": "timedOut", "changes": null, "seconds": 1.5, "nodes": [], "unfinished": ["create w-1"],
                }),
            ),
            (
                Outcome::Stopped,
                130,
                serde_json::json!({ "outcome": "stopped", "changes": null, "seconds": 1.5, "nodes": [] }),
            ),
        ] {
            let ending = ending(outcome);
            assert_eq!(serde_json::to_value(ending.answer()).unwrap(), expected);
            assert_eq!(ending.code(), code);
        }
    }

    #[test]
    fn it_is_said_how_to_scale_upgrade_and_destroy() {
        let steps = next_steps("-f x.yaml");
        for (command, what) in [
            ("infrop plan -f x.yaml ", "scale"),
            ("infrop plan -f x.yaml ", "upgrade"),
            ("infrop destroy -f x.yaml ", "gives all of it back"),
        ] {
            assert!(
                steps.lines().any(|line| line.contains(command) && line.contains(what)),
                "{what}: {steps}"
            );
        }
    }
}
