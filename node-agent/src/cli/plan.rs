//! `node-agent plan`: what the service would do now.

use std::path::PathBuf;

use common::{
    annotations::{self, Request},
    plan::PlanId,
    state::{Phase, Reason},
};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{CHANGES, DONE, Output, status};
use crate::{
    config::{self, Settings},
    decide::{Asked, Decision, Snapshot, decide},
    engine::JOURNAL,
    host::Host,
    journal::{Journal, Origin},
    node::{OwnNode, View},
    observe,
    status::{Change, SoftwareStatus, software},
};

/// What is printed as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    plan: Option<PlanId>,
    /// Whether anything on the host differs from the plan.
    changes: bool,
    next: String,
    /// Why the next thing is not done now, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<Blocked>,
    software: Vec<SoftwareStatus>,
}

#[derive(Debug, Serialize)]
struct Blocked {
    phase: Phase,
    reason: Reason,
    message: String,
}

pub(super) async fn run(root: PathBuf, output: Output) -> anyhow::Result<u8> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let host = Host::this_machine(root);
    let settings = Settings::read(&host.path(config::DIRECTORY))?;
    let mut journal = Journal::read(&host.path(JOURNAL))?;
    let node = OwnNode::new(super::node_name(&settings)?, host.path(&settings.config.kubeconfig));
    let asked = ask(&node, &settings).await?;
    let plan = match &asked {
        Asked::Metadata(plan) | Asked::Node(Ok(Request { plan: Some(plan), .. })) => Some(plan.clone()),
        Asked::Nothing | Asked::NoNode | Asked::Refusal(_) | Asked::Node(_) | Asked::Silence { .. } => None,
    };
    let seen =
        observe::observe(&host, &settings.contents, &settings.config.kubeconfig, plan.as_ref()).await?;
    let cluster = if seen.facts.joined { node.cluster().await.ok() } else { None };
    let next = |journal: &Journal| {
        decide(&Snapshot {
            now: Timestamp::now(),
            asked: &asked,
            host: &seen,
            journal,
            cluster: cluster.as_ref().map(|cluster| &cluster.version),
            api_patience: SignedDuration::ZERO,
        })
    };
    let mut decision = next(&journal);
    if let Decision::Accept { plan, origin: origin @ Origin::Node, permitted } = decision {
        // The first change says more than "begin the plan".
        journal.accept(plan, origin, permitted, Timestamp::now());
        decision = next(&journal);
    }
    let software = software(&seen, plan.as_ref());
    let changes = software.iter().any(|one| one.change != Change::None);
    let blocked = match &decision {
        Decision::Rest(rest) if rest.phase != Phase::Idle => {
            Some(Blocked { phase: rest.phase, reason: rest.reason, message: rest.message.clone() })
        }
        _ => None,
    };
    let answer =
        Answer { plan: plan.map(|plan| plan.id()), changes, next: decision.to_string(), blocked, software };
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
        Output::Text => print(&answer),
    }
    // What cannot be understood or read may be a change, too.
    Ok(if changes || answer.blocked.is_some() { CHANGES } else { DONE })
}

/// Reads the Node once, or the metadata if there is no cluster.
async fn ask(node: &OwnNode, settings: &Settings) -> anyhow::Result<Asked> {
    let view = node.view();
    if *view.borrow() == View::NoCredential {
        return Ok(match &settings.metadata {
            Some(metadata) => Asked::Metadata(metadata.plan()?),
            None => Asked::Nothing,
        });
    }
    node.read().await?;
    let view = view.borrow();
    match &*view {
        View::Seen { annotations, .. } => Ok(Asked::Node(annotations::read_request(annotations))),
        View::Absent => Ok(Asked::NoNode),
        View::Refused(why) => Ok(Asked::Refusal(why.clone())),
        View::NoCredential | View::Silent { .. } => Ok(Asked::Silence { since: Timestamp::now() }),
    }
}

fn print(answer: &Answer) {
    let Answer { plan, changes, next, blocked, software } = answer;
    match plan {
        Some(plan) => println!("plan {plan}"),
        None => println!("no plan"),
    }
    status::print_software(software);
    match (changes, blocked) {
        (false, _) => println!("nothing to do"),
        (true, None) => println!("next: {next}"),
        (true, Some(Blocked { phase, reason, message })) => {
            println!("not now: {phase} ({reason}): {message}");
        }
    }
}
