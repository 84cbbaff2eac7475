//! `infrop apply`: from a document to a running cluster.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use common::KubernetesVersion;

use super::{
    Shared,
    confirm::{ask, can_ask, with_all_on},
    ending::Ending,
    infrastructure::DocumentArguments,
    limit,
    output::Output,
    progress::{Telling, metrics_file},
};
use crate::{
    apply::{self, Agreed, Cluster, Context, End, Options, Removals, Stop, Stopped},
    rollout::{MetricsFile, Report},
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
    /// How long the work on hosts may take, in minutes; for each Kubernetes version on the way.
    #[arg(long, value_name = "MINUTES", default_value = "60", value_parser = limit::minutes)]
    timeout: Duration,

    /// How many hosts are worked on at once [default: 32; in a lab 4 per core, for its hosts share them].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    parallel: Option<u16>,

    /// Go on although someone else seems to be at work; only if you know that it is dead.
    #[arg(long)]
    take_over: bool,

    #[command(flatten)]
    pub(super) telling: Telling,

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
    let context = before_hosts(document.context(shared), &stop).await?;
    let agreed = if yes {
        Agreed::All
    } else if can_ask() {
        before_hosts(agree(&context, run.parallel(&context)), &stop).await?
    } else {
        Agreed::Nothing
    };
    let removals = Removals { limit: max_delete, agreed, ..Removals::default() };
    let metrics = run.metrics()?;
    let mut before = Report::default();
    for version in before_hosts(ahead(&context, run.parallel(&context)), &stop).await? {
        let context = before_hosts(document.context_at(version, shared), &stop).await?;
        let ended = execute(&context, &run, metrics.clone(), removals.clone(), stop.clone()).await?;
        match run.telling.output {
            _ if !ended.is_done() => return ended.after(before).tell(&document, run.telling.output),
            Output::Text => drop(ended.tell(&document, run.telling.output)?),
            // Programs are told once, of all of it.
            Output::Json => before = ended.after(before).report,
        }
    }
    execute(&context, &run, metrics, removals, stop).await?.after(before).tell(&document, run.telling.output)
}

/// Does what is done before hosts are touched, or before they are for the next version; it can be left at any moment.
pub(super) async fn before_hosts<T>(
    work: impl Future<Output = anyhow::Result<T>>,
    stop: &Stop,
) -> anyhow::Result<T> {
    let done = apply::unless_stopped(work, stop).await;
    done.map_err(|error| {
        if error.is::<Stopped>() {
            error.context("nothing more was begun; run the same command again to go on")
        } else {
            error
        }
    })
}

/// The Kubernetes versions that the cluster still has to go through before the document's.
pub(super) async fn ahead(context: &Context, parallel: usize) -> anyhow::Result<Vec<KubernetesVersion>> {
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

/// Runs it.
pub(super) async fn execute(
    context: &Context,
    run: &RunArguments,
    metrics: Option<Arc<MetricsFile>>,
    removals: Removals,
    stop: Stop,
) -> anyhow::Result<Ending> {
    let RunArguments { timeout, parallel: _, take_over, telling, metrics_file: _ } = run;
    let started = Instant::now();
    let options = Options {
        timeout: *timeout,
        parallel: run.parallel(context),
        removals,
        take_over: *take_over,
        metrics: metrics.clone(),
    };
    let progress = telling.lines();
    let ended = apply::run(context, &options, &progress, stop).await;
    if let Some(metrics) = metrics {
        metrics.write();
    }
    let End { outcome, report, snapshot } = ended?;
    progress.end();
    Ok(Ending {
        outcome,
        report: report.unwrap_or_default(),
        snapshot,
        took: started.elapsed(),
        timeout: *timeout,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
