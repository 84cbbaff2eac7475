//! A rolling upgrade: what infrop adds to a shell loop that does the same work, and what it saves with two at a time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ::tests::{
    bundles,
    infrastructure::{self, lab_document},
    kubeadm::{Cluster, import_images},
    lab::TestLab,
};
use anyhow::{Context, ensure};
use images::steps::Steps;
use jiff::Timestamp;
use serde::Deserialize;

use super::{
    Figure,
    apply::{Programs, median},
    seconds,
};

/// Named as infrop names them, the control plane first.
const HOSTS: [&str; 5] = ["cp-1", "w-1", "w-2", "w-3", "w-4"];
const WORKERS: u16 = 4;

/// Seconds that infrop may add to each node.
const ADDED_LIMIT: f64 = 1.0;

/// The time of the workers, two at a time, in times of the loop's.
const RATIO_LIMIT: f64 = 0.6;

/// A drain that takes longer than pods need that end when they are told to.
const SLOW_DRAIN: f64 = 15.0;

/// What of `infrop rollout -o json` is needed here.
#[derive(Debug, Deserialize)]
struct Report {
    nodes: BTreeMap<String, NodeReport>,
}

#[derive(Debug, Deserialize)]
struct NodeReport {
    began: Timestamp,
    ended: Timestamp,
    phases: Vec<PhaseReport>,
}

#[derive(Debug, Deserialize)]
struct PhaseReport {
    phase: String,
    seconds: f64,
}

/// How long a rollout took.
struct Took {
    all: Duration,
    workers: Duration,
    /// Seconds of each worker's drain.
    drains: Vec<f64>,
}

/// All three in turns, on clusters of their own.
pub(super) async fn run(rounds: usize, steps: &Steps) -> anyhow::Result<Vec<Figure>> {
    let programs = Programs::build(steps).await?;
    let (mut hand, mut one, mut two) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        hand.push(steps.step(format!("round {round}: a shell loop"), by_hand(&programs)).await?);
        let name = |workers| format!("round {round}: infrop, {workers} at a time");
        one.push(steps.step(name("one worker"), with_infrop(&programs, 1)).await?);
        two.push(steps.step(name("two workers"), with_infrop(&programs, 2)).await?);
    }
    Ok(figures(&hand, &one, &two))
}

/// Every run, and how the medians stand to each other.
fn figures(hand: &[Took], one: &[Took], two: &[Took]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let runs = [
        ("a shell loop", hand),
        ("infrop, one worker at a time", one),
        ("infrop, two workers at a time", two),
    ];
    for (name, runs) in runs {
        for took in runs {
            figures.push(Figure::new(format!("1 + {WORKERS} by {name}"), seconds(took.all), "s"));
            figures.push(Figure::new("  its workers", seconds(took.workers), "s"));
            let longest = took.drains.iter().copied().fold(f64::NAN, f64::max);
            figures.push(Figure::new("  the longest drain of a worker", longest, "s"));
        }
    }
    let all = |runs: &[Took]| median(&runs.iter().map(|took| took.all).collect::<Vec<_>>());
    let workers = |runs: &[Took]| median(&runs.iter().map(|took| took.workers).collect::<Vec<_>>());
    let nodes = f64::from(WORKERS) + 1.0;
    let added = (all(one) - all(hand)) / nodes;
    figures.push(Figure::new("added per node, of medians", added, "s").at_most(ADDED_LIMIT));
    let ratio = workers(two) / workers(hand);
    figures
        .push(Figure::new("workers two at a time / the loop's, of medians", ratio, "").at_most(RATIO_LIMIT));
    figures
}

/// Drain, apt-get, kubeadm, uncordon, node after node. Images are there before, as they are for infrop.
async fn by_hand(programs: &Programs) -> anyhow::Result<Took> {
    let [from, to] = bundles::pinned()?;
    let (from, to) = (&from.manifest().kubernetes, &to.manifest().kubernetes);
    TestLab::with_program(&programs.infrop, "loop", &HOSTS, async |lab| {
        let cluster = Cluster::init(lab, from).await?;
        cluster.apply(&infrastructure::network()?).await?;
        for host in HOSTS.iter().skip(1) {
            cluster.join(host, false).await?;
        }
        cluster.wait_until_ready().await?;
        for host in HOSTS {
            cluster.import_images(host, to).await?;
        }
        let started = Instant::now();
        let [first, others @ ..] = HOSTS;
        cluster.upgrade(first, to).await?;
        let workers = Instant::now();
        let mut drains = Vec::new();
        for host in others {
            drains.push(seconds(cluster.upgrade(host, to).await?));
        }
        Ok(Took { all: started.elapsed(), workers: workers.elapsed(), drains })
    })
    .await
}

async fn with_infrop(programs: &Programs, at_once: u16) -> anyhow::Result<Took> {
    let [from, to] = bundles::pinned()?;
    let document = lab_document("upgrade", WORKERS)
        .replace(&to.manifest().kubernetes.to_string(), &from.manifest().kubernetes.to_string());
    programs
        .of_document("upgrade", &document)?
        .with(async |infrastructure| {
            infrastructure.insist(&["apply"]).await?;
            let (lab, version) = (infrastructure.lab()?, to.manifest().kubernetes.to_string());
            lab.offer(&version, to.path()).await?;
            for host in HOSTS {
                lab.ssh(&host.parse()?).arg(import_images(&to.manifest().kubernetes, "*")).run().await?;
            }
            let containerd = to.manifest().components.get("containerd").context("no containerd")?;
            let (kubernetes, containerd) =
                (format!("kubernetes={version}"), format!("containerd={containerd}"));
            let at_once = at_once.to_string();
            let words = [
                "rollout",
                "--set",
                &kubernetes,
                "--set",
                &containerd,
                "--soak",
                "0",
                "--max-unavailable",
                &at_once,
                "-o",
                "json",
            ];
            let started = Instant::now();
            let events = infrastructure.run_on_cluster(&words).await?;
            let all = started.elapsed();
            ensure!(events.code == 0, "{events:?}");
            let report: Report = serde_json::from_str(&events.stdout).context("not a report")?;
            ensure!(report.nodes.len() == HOSTS.len(), "{report:?}");
            let workers =
                || report.nodes.iter().filter(|(name, _)| name.starts_with("w-")).map(|(_, node)| node);
            let drain = |node: &NodeReport| {
                node.phases.iter().filter(|phase| phase.phase == "drain").map(|phase| phase.seconds).sum()
            };
            let drains: Vec<f64> = workers().map(drain).collect();
            if drains.iter().any(|seconds| *seconds > SLOW_DRAIN) {
                // Which pod it was, for whoever wonders.
                eprintln!("drains took {drains:.0?} s:\n{}", events.stderr);
            }
            let began = workers().map(|node| node.began).min().context("no worker")?;
            let ended = workers().map(|node| node.ended).max().context("no worker")?;
            Ok(Took { all, workers: ended.duration_since(began).try_into()?, drains })
        })
        .await
}
