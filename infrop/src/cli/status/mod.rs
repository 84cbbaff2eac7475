//! `infrop status`: what there is, and why it is not yet as it should be.

mod report;
#[cfg(test)]
mod tests;

use clap::Args;
use common::metadata::NodeName;
use jiff::{SignedDuration, Timestamp};

use self::report::{ClusterReport, Report, Row, report};
use super::{
    DONE, Shared,
    infrastructure::DocumentArguments,
    output::{Output, print_json, say, table},
};
use crate::{
    apply::{self, Agreed, Context, Removals, Snapshot},
    writer::{Entry, LeaseRecord, Record},
};

const HELP: &str = "\
Looks at providers, hosts and cluster, and changes nothing. REASON says what a node waits for, or what keeps it; SINCE is \
how long it is in its phase. With -o json there are also the versions of all software that node-agent verified.

Example:
  infrop status -f infrastructure.yaml
  infrop status -f infrastructure.yaml -o json | jq -r '.nodes[] | select(.phase != \"Ready\") | .name'

Exit codes: 0 it could look, whatever it saw; 1 it could not; 64 bad input.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    document: DocumentArguments,

    /// The form of the answer.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

pub(super) async fn run(arguments: StatusArguments, shared: &Shared) -> anyhow::Result<u8> {
    let StatusArguments { document, output } = arguments;
    let context = document.look(shared).await?;
    let report = look(&context).await?;
    match output {
        Output::Json => print_json(&report)?,
        Output::Text => {
            say(headline(&report, Timestamp::now()))?;
            say(rows(&report.nodes, Timestamp::now()))?;
            for (subject, why) in &report.problems {
                say(format_args!("{subject}: {why}"))?;
            }
        }
    }
    Ok(DONE)
}

/// `infrop node list`: the nodes alone.
pub(super) async fn list(arguments: StatusArguments, shared: &Shared) -> anyhow::Result<u8> {
    let StatusArguments { document, output } = arguments;
    let report = look(&document.look(shared).await?).await?;
    match output {
        Output::Json => print_json(&report.nodes)?,
        Output::Text => say(rows(&report.nodes, Timestamp::now()))?,
    }
    Ok(DONE)
}

async fn look(context: &Context) -> anyhow::Result<Report> {
    let (mut snapshot, access) = apply::observe(context, 32).await?;
    if !context.unbuilt.is_empty() {
        // Whether a host has what it is to have cannot be told; that it has something can.
        for host in snapshot.hosts.values_mut() {
            if host.seen().is_none_or(|report| report.delivered.is_some()) {
                host.wanted = None;
            }
        }
    }
    // What would be removed is shown as that, whatever a run would be allowed.
    snapshot.removals = Removals { limit: usize::MAX, agreed: Agreed::All, ..Removals::default() };
    let mut decision = apply::decide(&snapshot);
    for (name, why) in apply::rollout_reasons(&context.infrastructure, &snapshot) {
        decision.waiting.entry(name).or_insert(why);
    }
    for (name, why) in silent(context, &snapshot).await {
        decision.waiting.entry(name).or_insert(why);
    }
    let first = apply::sorted(&snapshot)
        .into_iter()
        .filter_map(|name| snapshot.hosts.get(name))
        .find(|host| snapshot.is_control_plane(host));
    let endpoint = first.map(|host| context.endpoint(host.compute.address));
    let writer = match &access {
        Some(access) => LeaseRecord::new(access.client.clone()).read().await?.entry,
        None => None,
    };
    let writer = writer.filter(|entry| !entry.holder.is_empty());
    let name = context.infrastructure.metadata.name.to_string();
    let mut report = report(name, endpoint, &snapshot, &decision, writer);
    if !context.unbuilt.is_empty() {
        let why = format!(
            "nobody can tell here whether hosts have what they are to have: `infrop apply` would first {}",
            context.unbuilt.join(", ")
        );
        report.problems.insert("this computer".to_owned(), why);
    }
    Ok(report)
}

/// Why hosts do not answer that have power, and what their consoles tell of it.
async fn silent(context: &Context, snapshot: &Snapshot) -> Vec<(NodeName, String)> {
    let mut reasons = Vec::new();
    for (name, host) in &snapshot.hosts {
        if let Some(Err(why)) = &host.report
            && let Some(console) = apply::console(context, snapshot, host).await
        {
            reasons.push((name.clone(), format!("{why}; {console}")));
        }
    }
    reasons
}

/// The cluster in one line.
fn headline(report: &Report, now: Timestamp) -> String {
    let Report { infrastructure, cluster, nodes, problems: _ } = report;
    let ClusterReport { endpoint, answers, problem, paused, writer } = cluster;
    let endpoint = endpoint.as_deref().map(|endpoint| format!("{endpoint}: ")).unwrap_or_default();
    let api = match problem {
        _ if *answers => "the API answers".to_owned(),
        Some(why) => why.clone(),
        None => "the API does not answer".to_owned(),
    };
    let paused = match paused.len() {
        0 => "not paused".to_owned(),
        some if some == nodes.len() => "all nodes are paused".to_owned(),
        some => format!("{some} of {} nodes are paused", nodes.len()),
    };
    // One that was killed still stands there; its silence tells.
    let writer = writer.as_ref().map(|Entry { holder, since, renewed }| {
        let (since, heard) = (age(now.duration_since(*since)), age(now.duration_since(*renewed)));
        format!("; {holder} has been at work for {since}, last heard of {heard} ago")
    });
    format!("{infrastructure}: {endpoint}{api}; {paused}{}", writer.unwrap_or_default())
}

/// The table.
fn rows(nodes: &[Row], now: Timestamp) -> String {
    let rows = nodes.iter().map(|row| {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let since = row.since.map(|since| age(now.duration_since(since))).unwrap_or_default();
        [
            row.name.to_string(),
            text(&row.pool),
            text(&row.address),
            row.phase.clone(),
            since,
            text(&row.kubelet),
            text(&row.reason),
        ]
    });
    table(["NODE", "POOL", "ADDRESS", "PHASE", "SINCE", "KUBELET", "REASON"], rows)
}

/// A time that passed, in the largest unit that says enough.
fn age(passed: SignedDuration) -> String {
    match passed.as_secs().max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}
