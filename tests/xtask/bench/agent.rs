//! node-agent: how soon it reacts, and what it costs at rest.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ::tests::{agent_process::AgentProcess, api_server::ApiServer, infrop_path, policies};
use anyhow::{Context, ensure};
use common::{
    annotations::{CHANGES_ALLOWED, PLAN_OBSERVED, READY, current_version, write_plan},
    plan::Plan,
    software::SoftwareName,
};
use futures::StreamExt;
use images::steps::Steps;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    Figure, count, mebibytes, percentile,
    process::{Memory, Usage, children},
    seconds,
};
use crate::package;

const NODE: &str = "n1";
const IDENTITY: &str = "system:node:n1";
const SOFTWARE: &str = "haproxy-config";

/// From the write of a permit with its plan to `ready=false`.
const REACTION_LIMIT_MS: f64 = 200.0;
const MEMORY_LIMIT_MIB: f64 = 10.0;
const CPU_LIMIT_PERCENT: f64 = 0.1;

/// A watch of the agent lasts 290 s.
const WATCH: Duration = Duration::from_secs(290);

/// How often something on the Node changes that is not for the agent. A kubelet writes its status every five
/// minutes, or every ten seconds while something in it changes.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// No plan of one small file takes longer.
const PLAN_LIMIT: Duration = Duration::from_mins(1);

type Annotations = BTreeMap<String, String>;

pub(super) async fn run(rest: Duration, plans: usize, steps: &Steps) -> anyhow::Result<Vec<Figure>> {
    let program =
        steps.step("build node-agent", package::build(package::AGENT, package::profile(false))).await?;
    // Builds what the fixtures call.
    infrop_path()?;
    let server = steps.step("start an API server", ApiServer::start()).await?;
    policies::enforce(&server).await?;
    let nodes: Api<Node> = Api::all(server.admin().await?);
    let node = serde_json::from_value(json!({ "metadata": { "name": NODE } }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let mut agent = AgentProcess::new(&program, NODE, "")?;
    let mut choices = Vec::new();
    for text in ["one\n", "two\n"] {
        let name: SoftwareName = SOFTWARE.parse()?;
        choices.push(Plan::new([(name, agent.deliver(SOFTWARE, text)?)].into()));
    }
    agent.join(&server, NODE)?;
    agent.start()?;
    let mut bench = Bench { events: follow(nodes.clone()), nodes };
    bench
        .wait(|seen| seen.get(READY).is_some_and(|ready| ready == "true"))
        .await
        .with_context(|| agent.log())?;

    let size = std::fs::metadata(&program)?.len();
    let mut figures = vec![Figure::new("size of the program", mebibytes(size), "MiB")];
    let reactions = steps.step("react to plans", bench.react(&choices, plans));
    figures.extend(reaction_figures(reactions.await.with_context(|| agent.log())?));
    figures.extend(steps.step("rest", bench.rest(&agent, &server, rest)).await?);
    ensure!(agent.is_running(), "the agent ended:\n{}", agent.log());
    Ok(figures)
}

struct Bench {
    nodes: Api<Node>,
    events: mpsc::UnboundedReceiver<(Instant, Annotations)>,
}

/// Every state of the Node that a watching client sees, with when it saw it.
fn follow(nodes: Api<Node>) -> mpsc::UnboundedReceiver<(Instant, Annotations)> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let parameters = WatchParams::default().fields(&format!("metadata.name={NODE}"));
        while !sender.is_closed() {
            let Ok(stream) = nodes.watch_metadata(&parameters, "").await else { continue };
            let mut stream = std::pin::pin!(stream);
            while let Some(Ok(event)) = stream.next().await {
                if let WatchEvent::Added(node) | WatchEvent::Modified(node) = event {
                    let _ = sender.send((Instant::now(), node.metadata.annotations.unwrap_or_default()));
                }
            }
        }
    });
    receiver
}

impl Bench {
    /// Waits for a state of the Node; gives when it was seen.
    async fn wait(&mut self, condition: impl Fn(&Annotations) -> bool) -> anyhow::Result<Instant> {
        let seen = async {
            loop {
                let (when, annotations) = self.events.recv().await.context("the watch ended")?;
                if condition(&annotations) {
                    return Ok(when);
                }
            }
        };
        tokio::time::timeout(PLAN_LIMIT, seen).await.context("the agent does not react")?
    }

    /// Gives one plan after the other; how long each took to be taken up. The clock starts before the write is
    /// sent, so the server's part is in it.
    async fn react(&mut self, choices: &[Plan], count: usize) -> anyhow::Result<Vec<Duration>> {
        let mut reactions = Vec::new();
        for plan in choices.iter().cycle().take(count) {
            let mut annotations = write_plan(plan);
            annotations.insert(CHANGES_ALLOWED.to_owned(), "true".to_owned());
            let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
            let started = Instant::now();
            self.nodes.patch_metadata(NODE, &PatchParams::default(), &patch).await?;
            let id = plan.id();
            let says =
                |seen: &Annotations, key: &str, value: &str| seen.get(key).is_some_and(|text| text == value);
            let begun = self
                .wait(|seen| says(seen, READY, "false") && says(seen, PLAN_OBSERVED, id.as_str()))
                .await?;
            reactions.push(begun - started);
            self.wait(|seen| {
                let current =
                    |(name, version): (&SoftwareName, _)| says(seen, &current_version(name), version);
                says(seen, READY, "true")
                    && says(seen, PLAN_OBSERVED, id.as_str())
                    && plan.desired.iter().map(|(name, version)| (name, version.as_str())).all(current)
            })
            .await?;
        }
        Ok(reactions)
    }

    /// Leaves the agent alone, but for what a kubelet writes.
    async fn rest(
        &mut self,
        agent: &AgentProcess,
        server: &ApiServer,
        window: Duration,
    ) -> anyhow::Result<Vec<Figure>> {
        let process = agent.process()?;
        // What it has to say after the last plan is said by then.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (began, started) = (Timestamp::now(), Instant::now());
        let (before, calls) = (Usage::of(process)?, agent.calls().len());
        for beat in 0_u32.. {
            let left = window.saturating_sub(started.elapsed());
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(left.min(HEARTBEAT)).await;
            let status = Patch::Merge(
                json!({ "metadata": { "annotations": { "example.com/beat": beat.to_string() } } }),
            );
            self.nodes.patch_metadata(NODE, &PatchParams::default(), &status).await?;
        }
        let (ended, took) = (Timestamp::now(), started.elapsed());
        let (after, memory) = (Usage::of(process)?, Memory::of(process)?);
        let spawned = agent.calls().len() - calls;
        let unseen = usize::from(after.children_faults != before.children_faults && spawned == 0);
        let requests = server.audit().by(IDENTITY)?;
        let inside = requests.iter().filter(|request| request.request_received_timestamp > began);
        let inside: Vec<_> = inside.filter(|request| request.request_received_timestamp < ended).collect();
        let watches =
            inside.iter().filter(|request| request.verb == "watch" && request.stage == "ResponseStarted");
        let renewals = count(watches.count());
        let others = count(inside.iter().filter(|request| request.verb != "watch").count());
        let cpu = seconds(after.time.saturating_sub(before.time)) / seconds(took) * 100.0;
        Ok(vec![
            Figure::new("at rest for", seconds(took), "s"),
            Figure::new("at rest: resident memory", mebibytes(memory.resident), "MiB")
                .at_most(MEMORY_LIMIT_MIB),
            Figure::new("  of it anonymous", mebibytes(memory.anonymous), "MiB"),
            Figure::new("  of it mapped files", mebibytes(memory.file), "MiB"),
            Figure::new("  peak since the start", mebibytes(memory.peak), "MiB"),
            Figure::new("at rest: time on a core", cpu, "%").at_most(CPU_LIMIT_PERCENT),
            Figure::new("at rest: programs started", count(spawned + unseen + children(process)?), "")
                .at_most(0.0),
            Figure::new("at rest: watches renewed", renewals, "")
                .at_most((seconds(took) / seconds(WATCH)).ceil()),
            Figure::new("at rest: other API requests", others, "").at_most(0.0),
        ])
    }
}

fn reaction_figures(mut reactions: Vec<Duration>) -> Vec<Figure> {
    reactions.sort();
    let at = |share: f64| percentile(&reactions, share);
    vec![
        Figure::new("plans", count(reactions.len()), ""),
        Figure::new("permit and plan written until ready=false is seen, p50", at(0.5), "ms"),
        Figure::new("  p99", at(0.99), "ms").at_most(REACTION_LIMIT_MS),
        Figure::new("  max", at(1.0), "ms"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let figures = reaction_figures((1..=200).rev().map(Duration::from_millis).collect());
        let values: Vec<f64> = figures.iter().map(|figure| figure.value).collect();
        assert_eq!(values, [200.0, 100.0, 198.0, 200.0]);
        assert!(reaction_figures(Vec::new()).iter().any(Figure::is_missed));
    }
}
