//! `infrop apply`: from a document to a running cluster.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use common::{KubernetesVersion, metadata::NodeName};

use super::{
    BLOCKED, DONE, INTERRUPTED, Shared, TIMED_OUT,
    confirm::{ask, can_ask, with_all_on},
    infrastructure::DocumentArguments,
    limit,
    output::{say, table},
    progress::{Lines, Style, metrics_file},
};
use crate::{
    apply::{self, Agreed, Cluster, Context, End, Options, Outcome, Removals, Snapshot, Stop},
    rollout::MetricsFile,
};

const HELP: &str = "\
Run it again at any time, also after it was stopped or killed: it looks at what is there and does what is missing. If \
nothing is, it changes nothing. Hosts that the document no longer asks for are removed only with --yes, or after a \
question on a terminal.

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

    #[command(flatten)]
    run: RunArguments,

    /// How many computes it may give back.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    max_delete: usize,

    /// Agree to the removal of hosts that the document no longer asks for.
    #[arg(long)]
    yes: bool,
}

/// How a run is to go; for all commands that are an apply.
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// How long it may take, in minutes.
    #[arg(long, value_name = "MINUTES", default_value = "60", value_parser = limit::minutes)]
    timeout: Duration,

    /// How many hosts are worked on at once [default: 32; in a lab 4 per core, for its hosts share them].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    parallel: Option<u16>,

    /// Go on although someone else seems to be at work; only if you know that it is dead.
    #[arg(long)]
    take_over: bool,

    /// Show progress as one JSON object per line.
    #[arg(long)]
    events: bool,

    /// Write figures of the rollout to this file, as Prometheus reads them: when something changed, at most once a second.
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
}

impl RunArguments {
    /// How many hosts are worked on at once.
    fn parallel(&self, context: &Context) -> usize {
        self.parallel.map_or_else(|| context.at_once(), usize::from)
    }

    /// The file for figures, if one was asked for.
    pub(super) fn metrics(&self) -> anyhow::Result<Option<Arc<MetricsFile>>> {
        Ok(metrics_file(self.metrics_file.as_deref())?.map(Arc::new))
    }
}

pub(super) async fn run(arguments: ApplyArguments, shared: &Shared, stop: Stop) -> anyhow::Result<u8> {
    let ApplyArguments { document, run, max_delete, yes } = arguments;
    let Some(context) = unless_stopped(document.context(shared), &stop).await? else {
        return Ok(INTERRUPTED);
    };
    let agreed = if yes {
        Agreed::All
    } else if can_ask() {
        match unless_stopped(agree(&context, run.parallel(&context)), &stop).await? {
            Some(agreed) => agreed,
            None => return Ok(INTERRUPTED),
        }
    } else {
        Agreed::Nothing
    };
    let removals = Removals { limit: max_delete, agreed, ..Removals::default() };
    let metrics = run.metrics()?;
    let Some(versions) = unless_stopped(ahead(&context, run.parallel(&context)), &stop).await? else {
        return Ok(INTERRUPTED);
    };
    for version in versions {
        let Some(context) = unless_stopped(document.context_at(version, shared), &stop).await? else {
            return Ok(INTERRUPTED);
        };
        let code =
            execute(&context, &document, &run, metrics.clone(), removals.clone(), stop.clone()).await?;
        if code != DONE {
            return Ok(code);
        }
    }
    execute(&context, &document, &run, metrics, removals, stop).await
}

/// Does what is done before any host is touched, which can be left at any moment.
pub(super) async fn unless_stopped<T>(
    work: impl Future<Output = anyhow::Result<T>>,
    stop: &Stop,
) -> anyhow::Result<Option<T>> {
    let mut stopped = stop.clone();
    tokio::select! {
        done = work => done.map(Some),
        // Without anyone who could interrupt, it is waited for.
        Ok(_) = stopped.wait_for(|stop| *stop) => {
            eprintln!("infrop: interrupted before a host was touched; run the same command again to go on");
            Ok(None)
        }
    }
}

/// The Kubernetes versions that the cluster still has to go through before the document's.
async fn ahead(context: &Context, parallel: usize) -> anyhow::Result<Vec<KubernetesVersion>> {
    let steps = &context.infrastructure.rollout.kubernetes_steps;
    if steps.is_empty() {
        return Ok(Vec::new());
    }
    let (snapshot, _) = apply::observe(context, parallel).await?;
    let Cluster::There(view) = &snapshot.cluster else { return Ok(Vec::new()) };
    let oldest = view.nodes.values().filter_map(|node| node.kubelet.parse().ok()).min();
    Ok(oldest
        .map(|oldest| between(&oldest, steps, &context.infrastructure.software.kubernetes))
        .unwrap_or_default())
}

/// The steps above one version and below another, in their order.
fn between(
    from: &KubernetesVersion,
    steps: &[KubernetesVersion],
    to: &KubernetesVersion,
) -> Vec<KubernetesVersion> {
    let mut steps: Vec<KubernetesVersion> =
        steps.iter().filter(|step| *step > from && *step < to).cloned().collect();
    steps.sort();
    steps.dedup();
    steps
}

/// Asks whether the hosts that would go may.
async fn agree(context: &Context, parallel: usize) -> anyhow::Result<Agreed> {
    let (snapshot, _) = apply::observe(context, parallel).await?;
    let names = apply::leaving(&snapshot);
    if names.is_empty() {
        return Ok(Agreed::Nothing);
    }
    let list: Vec<String> = names.iter().map(ToString::to_string).collect();
    let agreed = ask(&format!("Remove {}?", with_all_on(&list))).await?;
    Ok(if agreed { Agreed::These(names.into_iter().collect()) } else { Agreed::Nothing })
}

/// Runs it and says how it ended.
pub(super) async fn execute(
    context: &Context,
    document: &DocumentArguments,
    run: &RunArguments,
    metrics: Option<Arc<MetricsFile>>,
    removals: Removals,
    stop: Stop,
) -> anyhow::Result<u8> {
    let RunArguments { timeout, parallel: _, take_over, events, metrics_file: _ } = *run;
    let started = Instant::now();
    let options =
        Options { timeout, parallel: run.parallel(context), removals, take_over, metrics: metrics.clone() };
    let progress = Lines::new(if events { Style::Json } else { Style::for_people() });
    let ended = apply::run(context, &options, &progress, stop).await;
    if let Some(metrics) = metrics {
        metrics.write();
    }
    let End { outcome, report, snapshot } = ended?;
    progress.end();
    let seconds = started.elapsed().as_secs_f64();
    if let Some(report) = report.filter(|report| !report.is_empty()) {
        say(format_args!("{report}\n"))?;
    }
    Ok(match outcome {
        Outcome::Done { changes: 0 } => {
            say(summary(&snapshot))?;
            say(format_args!("Nothing to do: all is as the document says ({seconds:.1} s)."))?;
            DONE
        }
        Outcome::Done { .. } => {
            say(summary(&snapshot))?;
            say(format_args!("Done in {seconds:.0} s.\n\n{}", next_steps(&document.words())))?;
            DONE
        }
        Outcome::Blocked { reasons } => {
            say(summary(&snapshot))?;
            for (subject, why) in reasons {
                eprintln!("infrop: {subject}: {why}");
            }
            BLOCKED
        }
        Outcome::TimedOut { unfinished } => {
            say(summary(&snapshot))?;
            eprintln!(
                "infrop: out of time after {} min with {}; run the same command again to go on",
                timeout.as_secs() / 60,
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_cluster_goes_through_the_steps_that_are_still_ahead() {
        let version = |text: &str| text.parse::<KubernetesVersion>().unwrap();
        let steps = ["1.38.2", "1.37.1"].map(version);
        for (from, to, expected) in [
            ("1.36.4", "1.39.0", &["1.37.1", "1.38.2"][..]),
            ("1.37.1", "1.39.0", &["1.38.2"]),
            ("1.37.0", "1.38.0", &["1.37.1"]),
            ("1.38.2", "1.39.0", &[]),
            ("1.36.4", "1.37.1", &[]),
        ] {
            let found: Vec<String> =
                between(&version(from), &steps, &version(to)).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{from} to {to}");
        }
    }
}
