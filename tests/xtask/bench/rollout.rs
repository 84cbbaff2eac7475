//! `infrop rollout` of many Nodes: what it asks of the API server, what it needs itself, and how soon it reacts.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use ::tests::{
    api_server::ApiServer,
    audit::Request,
    fleet::{self, Fleet, INFROP},
    infrop_path,
};
use anyhow::{Context, bail};
use images::steps::Steps;

use super::{
    Figure, count, mebibytes, percentile,
    process::{Memory, Usage},
    seconds,
};
use crate::package;

/// Requests per Node, in those of the smallest number of Nodes: they are constant.
const REQUESTS_RATIO: f64 = 1.1;

/// Time on a core and memory per Node of the largest number of Nodes, in those of the next smaller one: both are linear.
const COST_RATIO: f64 = 1.3;

/// From an agent's `ready=true` to infrop's next write, up to so many Nodes.
const REACTION_LIMIT_MS: f64 = 200.0;
const REACTION_NODES: usize = 1000;

/// How often infrop is looked at while it runs.
const LOOK: Duration = Duration::from_millis(50);

/// What one rollout needed.
struct Cost {
    nodes: usize,
    took: Duration,
    time: Duration,
    peak: u64,
    requests: Vec<Request>,
    /// Sorted.
    reactions: Vec<Duration>,
}

pub(super) async fn run(
    sizes: &[usize],
    at_once: usize,
    debug: bool,
    steps: &Steps,
) -> anyhow::Result<Vec<Figure>> {
    let profile = if debug { "dev" } else { "release" };
    let program = steps.step("build infrop", package::build("infrop", profile)).await?;
    // Builds what the fixtures call.
    infrop_path()?;
    let mut costs = Vec::new();
    for nodes in sizes {
        let step = steps.step(format!("{nodes} nodes"), measure(&program, *nodes, at_once, steps));
        costs.push(step.await?);
    }
    Ok(figures(&costs))
}

async fn measure(program: &Path, nodes: usize, at_once: usize, steps: &Steps) -> anyhow::Result<Cost> {
    let server = ApiServer::start().await?;
    let fleet = steps.step("make Nodes and agents", Fleet::start(&server, nodes)).await?;
    let mut command = fleet.infrop(&server, program, at_once)?;
    let started = Instant::now();
    let mut child = command.spawn().context("cannot start infrop")?;
    let process = child.id().context("infrop has ended")?;
    let (mut time, mut peak) = (Duration::ZERO, 0);
    let status = loop {
        // What it used last is not there any more when it has ended.
        if let (Ok(usage), Ok(memory)) = (Usage::of(process), Memory::of(process)) {
            (time, peak) = (usage.time, memory.peak);
        }
        if let Ok(status) = tokio::time::timeout(LOOK, child.wait()).await {
            break status?;
        }
    };
    let took = started.elapsed();
    if !status.success() {
        bail!("infrop ended with {status}:\n{}", fleet::last_words(&server)?);
    }
    fleet.check().await?;
    let mut reactions = fleet.reactions();
    reactions.sort();
    // A watch stands in the log twice.
    let mut requests = server.audit().by(INFROP)?;
    requests.retain(|request| request.verb != "watch" || request.stage == "ResponseStarted");
    Ok(Cost { nodes, took, time, peak, requests, reactions })
}

impl Cost {
    /// Requests per Node of those that are meant.
    fn per_node(&self, meant: impl Fn(&Request) -> bool) -> f64 {
        count(self.requests.iter().filter(|request| meant(request)).count()) / count(self.nodes)
    }

    fn requests(&self) -> f64 {
        self.per_node(|_| true)
    }

    fn milliseconds(&self) -> f64 {
        seconds(self.time) * 1000.0 / count(self.nodes)
    }

    fn kibibytes(&self) -> f64 {
        mebibytes(self.peak) * 1024.0 / count(self.nodes)
    }
}

fn figures(costs: &[Cost]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let first = costs.first().map(Cost::requests);
    for (place, cost) in costs.iter().enumerate() {
        let what = |text: &str| format!("{} nodes: {text}", cost.nodes);
        let of = |verb: &'static str, resource: &'static str| {
            cost.per_node(move |request| {
                let about = request.object_ref.as_ref().is_some_and(|object| object.resource == resource);
                (verb.is_empty() || request.verb == verb) && about
            })
        };
        let is_last = place > 0 && place + 1 == costs.len();
        let before = place.checked_sub(1).and_then(|before| costs.get(before)).filter(|_| is_last);
        let limited = |figure: Figure, base: Option<f64>, ratio: f64| match base {
            Some(base) => figure.at_most(base * ratio),
            None => figure,
        };
        let base = first.filter(|_| place > 0);
        let p99 = Figure::new("  p99", percentile(&cost.reactions, 0.99), "ms");
        figures.extend([
            Figure::new(what("rollout"), seconds(cost.took), "s"),
            limited(Figure::new(what("API requests per node"), cost.requests(), ""), base, REQUESTS_RATIO),
            Figure::new("  writes of Nodes", of("patch", "nodes"), ""),
            Figure::new("  reads of Nodes", of("", "nodes") - of("patch", "nodes"), ""),
            Figure::new("  lists of pods", of("list", "pods"), ""),
            Figure::new("  lists of DaemonSets", of("list", "daemonsets"), ""),
            Figure::new("  Events", of("", "events"), ""),
            Figure::new("  Leases", of("", "leases"), ""),
            limited(
                Figure::new(what("time on a core per node"), cost.milliseconds(), "ms"),
                before.map(Cost::milliseconds),
                COST_RATIO,
            ),
            Figure::new("  in all", seconds(cost.time), "s"),
            limited(
                Figure::new(what("peak memory per node"), cost.kibibytes(), "KiB"),
                before.map(Cost::kibibytes),
                COST_RATIO,
            ),
            Figure::new("  in all", mebibytes(cost.peak), "MiB"),
            Figure::new(
                what("ready=true until infrop's write is seen, p50"),
                percentile(&cost.reactions, 0.5),
                "ms",
            ),
            if cost.nodes <= REACTION_NODES { p99.at_most(REACTION_LIMIT_MS) } else { p99 },
            Figure::new("  max", percentile(&cost.reactions, 1.0), "ms"),
        ]);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(nodes: usize, time_ms: u64, kibibytes: u64, reaction_ms: u64) -> Cost {
        Cost {
            nodes,
            took: Duration::from_secs(1),
            time: Duration::from_millis(time_ms),
            peak: kibibytes * 1024,
            requests: Vec::new(),
            reactions: vec![Duration::from_millis(reaction_ms)],
        }
    }

    #[test]
    fn costs_are_linear_and_reactions_soon_up_to_a_thousand_nodes() {
        let missed = |costs: &[Cost]| figures(costs).iter().filter(|figure| figure.is_missed()).count();
        let small = || cost(10, 10, 1000, 200);
        assert_eq!(missed(&[small(), cost(100, 130, 13_000, 200)]), 0);
        assert_eq!(missed(&[small(), cost(100, 131, 13_001, 201)]), 3);
        assert_eq!(missed(&[cost(5000, 1, 1, 201)]), 0);
    }

    #[test]
    fn requests_per_node_are_constant() {
        let request: Request = serde_json::from_str(
            r#"{"stage":"ResponseComplete","verb":"patch","requestURI":"/","user":{},
                "requestReceivedTimestamp":"2026-01-01T00:00:00Z","stageTimestamp":"2026-01-01T00:00:00Z"}"#,
        )
        .unwrap();
        let with =
            |nodes, requests| Cost { requests: vec![request.clone(); requests], ..cost(nodes, 1, 1, 1) };
        let missed = |few: Cost, many: Cost| figures(&[few, many]).iter().any(Figure::is_missed);
        assert!(!missed(with(10, 100), with(100, 1100)));
        assert!(missed(with(10, 100), with(100, 1101)));
    }
}
