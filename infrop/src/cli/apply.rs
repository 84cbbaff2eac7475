//! `infrop apply`: from a document to a running cluster.

use std::time::{Duration, Instant};

use clap::Args;
use common::metadata::NodeName;

use super::{
    BLOCKED, DONE, INTERRUPTED, Shared, TIMED_OUT,
    infrastructure::DocumentArguments,
    output::table,
    progress::{Lines, Style},
};
use crate::apply::{self, Cluster, Options, Outcome, Removals, Snapshot, Stop};

const HELP: &str = "\
Run it again at any time, also after it was stopped or killed: it looks at what is there and does what is missing. If \
nothing is, it changes nothing.

Example:
  infrop apply -f infrop/examples/lab.yaml
  infrop kubeconfig -f infrop/examples/lab.yaml > kubeconfig
  kubectl --kubeconfig kubeconfig get nodes

Exit codes: 0 all is as the document says, 1 failed, 3 some hosts are not (each has its reason), 4 out of time, \
5 someone else is at work, 64 bad input, 130 interrupted.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ApplyArguments {
    #[command(flatten)]
    document: DocumentArguments,

    /// How long it may take, in minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = 60)]
    timeout: u64,

    /// How many hosts are worked on at once.
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,

    /// How many computes it may give back.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    max_delete: usize,

    /// Go on although someone else seems to be at work; only if you know that it is dead.
    #[arg(long)]
    take_over: bool,

    /// Show progress as one JSON object per line.
    #[arg(long)]
    events: bool,
}

pub(super) async fn run(arguments: ApplyArguments, shared: &Shared, stop: Stop) -> anyhow::Result<u8> {
    let ApplyArguments { document, timeout, parallel, max_delete, take_over, events } = arguments;
    let started = Instant::now();
    let context = document.context(shared).await?;
    let removals = Removals { limit: max_delete, ..Removals::default() };
    let options = Options {
        timeout: Duration::from_secs(timeout * 60),
        parallel: parallel.into(),
        removals,
        take_over,
    };
    let progress = Lines::new(if events { Style::Json } else { Style::Text });
    let (outcome, snapshot, _) = apply::run(&context, &options, &progress, stop).await?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(match outcome {
        Outcome::Done { changes: 0 } => {
            println!("{}\nNothing to do: all is as the document says ({seconds:.1} s).", summary(&snapshot));
            DONE
        }
        Outcome::Done { .. } => {
            println!("{}\nDone in {seconds:.0} s.", summary(&snapshot));
            DONE
        }
        Outcome::Blocked { reasons } => {
            println!("{}", summary(&snapshot));
            for (subject, why) in reasons {
                eprintln!("infrop: {subject}: {why}");
            }
            BLOCKED
        }
        Outcome::TimedOut { unfinished } => {
            println!("{}", summary(&snapshot));
            eprintln!(
                "infrop: out of time after {timeout} min with {}; run the same command again to go on",
                unfinished.join(", ")
            );
            TIMED_OUT
        }
        Outcome::Stopped => {
            eprintln!("infrop: stopped; run the same command again to go on");
            INTERRUPTED
        }
    })
}

/// A line per host.
fn summary(snapshot: &Snapshot) -> String {
    let rows = apply::sorted(snapshot).into_iter().map(|name| {
        let address =
            snapshot.hosts.get(name).map(|host| host.compute.address.to_string()).unwrap_or_default();
        let (state, version) = node(snapshot, name);
        [name.to_string(), address, state, version]
    });
    table(["NODE", "ADDRESS", "STATE", "KUBELET"], rows)
}

fn node(snapshot: &Snapshot, name: &NodeName) -> (String, String) {
    let Cluster::There(view) = &snapshot.cluster else {
        return ("not in a cluster".to_owned(), String::new());
    };
    match view.nodes.get(name) {
        None => ("not in the cluster".to_owned(), String::new()),
        Some(node) => {
            let state = if node.ready.is_ok() { "Ready" } else { "not Ready" };
            (state.to_owned(), node.kubelet.clone())
        }
    }
}
