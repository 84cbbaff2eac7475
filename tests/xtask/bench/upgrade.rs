//! A rolling upgrade: what infrop adds to a shell loop that does the same work, and what it saves with two at a time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ::tests::{
    bundles,
    infrastructure::{self, lab_document},
    kubeadm::Cluster,
    lab::{BUNDLES, TestLab},
};
use anyhow::{Context, ensure};
use images::steps::Steps;
use jiff::Timestamp;
use serde::Deserialize;

use super::{Figure, apply::Programs, seconds};

/// Named as infrop names them, the control plane first.
const HOSTS: [&str; 5] = ["cp-1", "w-1", "w-2", "w-3", "w-4"];
const WORKERS: u16 = 4;

/// Seconds that infrop may add to each node.
const ADDED_LIMIT: f64 = 1.0;

/// The time of the workers, two at a time, in times of the loop's.
const RATIO_LIMIT: f64 = 0.6;

/// What of `infrop rollout -o json` is needed here.
#[derive(Debug, Deserialize)]
struct Report {
    nodes: BTreeMap<String, NodeReport>,
}

#[derive(Debug, Deserialize)]
struct NodeReport {
    began: Timestamp,
    ended: Timestamp,
}

/// How long a rollout took.
struct Took {
    all: Duration,
    workers: Duration,
}

pub(super) async fn run(steps: &Steps) -> anyhow::Result<Vec<Figure>> {
    let programs = Programs::build(steps).await?;
    let hand = steps.step("a shell loop", by_hand(&programs)).await?;
    let one = steps.step("infrop, one worker at a time", with_infrop(&programs, 1)).await?;
    let two = steps.step("infrop, two workers at a time", with_infrop(&programs, 2)).await?;
    let nodes = f64::from(WORKERS) + 1.0;
    Ok(vec![
        Figure::new("1 + 4 by a shell loop", seconds(hand.all), "s"),
        Figure::new("  its workers", seconds(hand.workers), "s"),
        Figure::new("1 + 4 by infrop, one worker at a time", seconds(one.all), "s"),
        Figure::new("  its workers", seconds(one.workers), "s"),
        Figure::new("added per node", (seconds(one.all) - seconds(hand.all)) / nodes, "s")
            .at_most(ADDED_LIMIT),
        Figure::new("1 + 4 by infrop, two workers at a time", seconds(two.all), "s"),
        Figure::new("  its workers", seconds(two.workers), "s"),
        Figure::new("workers two at a time / the loop's", seconds(two.workers) / seconds(hand.workers), "")
            .at_most(RATIO_LIMIT),
    ])
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
        let mut workers = started;
        for host in HOSTS {
            if host == "w-1" {
                workers = Instant::now();
            }
            cluster.upgrade(host, to).await?;
        }
        Ok(Took { all: started.elapsed(), workers: workers.elapsed() })
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
                let import = format!(
                    "for image in {BUNDLES}/{version}/images/*.tar; do ctr -n k8s.io images import $image; done"
                );
                lab.ssh(&host.parse()?).arg(import).run().await?;
            }
            let containerd = to.manifest().components.get("containerd").context("no containerd")?;
            let (kubernetes, containerd) = (format!("kubernetes={version}"), format!("containerd={containerd}"));
            let at_once = at_once.to_string();
            let words = [
                "rollout", "--set", &kubernetes, "--set", &containerd, "--soak", "0", "--max-unavailable", &at_once,
                "-o", "json",
            ];
            let started = Instant::now();
            let ended = infrastructure.run_on_cluster(&words).await?;
            let all = started.elapsed();
            ensure!(ended.code == 0, "{ended:?}");
            // Where the time of each node went, for whoever wonders.
            eprintln!("{}", ended.stdout);
            let report: Report = serde_json::from_str(&ended.stdout).context("not a report")?;
            ensure!(report.nodes.len() == HOSTS.len(), "{report:?}");
            let workers = || report.nodes.iter().filter(|(name, _)| name.starts_with("w-")).map(|(_, node)| node);
            let began = workers().map(|node| node.began).min().context("no worker")?;
            let ended = workers().map(|node| node.ended).max().context("no worker")?;
            Ok(Took { all, workers: ended.duration_since(began).try_into()? })
        })
        .await
}
