//! Many Nodes without hosts, for infrop to take to another version.
//!
//! Each has an agent that decides as node-agent does. All of them share one watch and a few connections, so that
//! thousands fit beside an API server and infrop; each writes with the identity of its own kubelet.

mod agent;
mod nodes;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use common::{
    annotations::{CHANGES_ALLOWED, CORDONED_BY, PLAN_OBSERVED, READY},
    plan::Plan,
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{process::Command, sync::watch, task::JoinSet};

use self::agent::{Agent, Line};
use crate::{api_server::ApiServer, audit, lab::wait_for, policies};

/// infrop's identity, by which its requests are counted.
pub const INFROP: &str = "infrop";

/// Nodes that are made at once.
const PARALLEL: usize = 20;

/// Thousands of agents say who they are in half a minute.
const START_LIMIT: Duration = Duration::from_mins(5);

/// The versions of containerd before and after.
const OLD: &str = "2.4.1";
const NEW: &str = "2.4.2";

/// The shortest work of an agent, and how much longer the longest is: they are not to end at the same moment.
const WORK: Duration = Duration::from_secs(1);
const SPREAD_MILLISECONDS: u64 = 2000;

type Annotations = BTreeMap<String, String>;

/// A Node's annotations.
#[derive(Debug, Clone, Default)]
struct View {
    version: u64,
    annotations: Annotations,
}

impl View {
    fn says(&self, key: &str, value: &str) -> bool {
        self.annotations.get(key).is_some_and(|text| text == value)
    }

    fn is_permitted(&self) -> bool {
        self.says(CHANGES_ALLOWED, "true")
    }
}

/// Where what is known of a Node meets: from the watch, and from answers to its agent.
#[derive(Debug, Default)]
struct Post {
    view: watch::Sender<View>,
    /// When `ready=true` for infrop's plan was answered, and the version that made, until infrop has reacted.
    told: Mutex<Option<(Instant, u64)>>,
}

impl Post {
    /// Learns the Node's state; an answer may have overtaken the watch. What is written by others than infrop and the
    /// agent wakes nobody.
    fn see(&self, node: PartialObjectMeta<Node>) -> u64 {
        let version = node.metadata.resource_version.and_then(|version| version.parse().ok()).unwrap_or(0);
        let annotations = node.metadata.annotations.unwrap_or_default();
        self.view.send_if_modified(|view| {
            let news = version > view.version && view.annotations != annotations;
            if version > view.version {
                *view = View { version, annotations };
            }
            news
        });
        version
    }

    /// How long infrop took to give the node back, or its permit, if this is the first that is seen of it.
    fn reaction(&self, node: &PartialObjectMeta<Node>) -> Option<Duration> {
        let version: u64 = node.metadata.resource_version.as_ref()?.parse().ok()?;
        let annotations = node.metadata.annotations.as_ref()?;
        let permitted = annotations.get(CHANGES_ALLOWED).is_some_and(|text| text == "true");
        if permitted && annotations.contains_key(CORDONED_BY) {
            return None;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, _) = told.take_if(|(_, since)| version > *since)?;
        Some(at.elapsed())
    }
}

/// What became of the agents.
#[derive(Debug, Default)]
struct Record {
    reactions: Vec<Duration>,
    failure: Option<String>,
}

/// Nodes and their agents.
#[derive(Debug)]
pub struct Fleet {
    posts: Arc<BTreeMap<String, Arc<Post>>>,
    record: Arc<Mutex<Record>>,
    target: Plan,
    // Agents end with it.
    _tasks: JoinSet<()>,
}

impl Fleet {
    /// Makes Nodes, with infrop's admission policies in force, and waits until all agents are at rest.
    pub async fn start(server: &ApiServer, count: usize) -> anyhow::Result<Self> {
        policies::enforce(server).await?;
        let client = server.client(audit::UNLOGGED, &["system:masters"]).await?;
        let (before, target) = (plan(OLD)?, plan(NEW)?);
        nodes::prepare(&client).await?;
        let names: Vec<String> = (1..=count).map(|number| format!("w-{number}")).collect();
        let made = names.iter().map(|name| nodes::make(&client, name, &before));
        stream::iter(made).buffer_unordered(PARALLEL).try_collect::<()>().await?;
        let posts: BTreeMap<_, _> = names.into_iter().map(|name| (name, Arc::<Post>::default())).collect();
        let posts = Arc::new(posts);
        let record = Arc::<Mutex<Record>>::default();
        let mut tasks = JoinSet::new();
        let line = Arc::new(Line::new(client.clone()));
        for (number, (name, post)) in (0_u64..).zip(posts.iter()) {
            // Any number that has no factor in common with the range spreads neighbours over all of it.
            let work = WORK + Duration::from_millis(number * 787 % SPREAD_MILLISECONDS);
            let agent = Agent::new(name, &before, work, Arc::clone(post), Arc::clone(&line))?;
            let record = Arc::clone(&record);
            tasks.spawn(async move {
                let Err(error) = agent.live().await;
                let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
                record.failure.get_or_insert_with(|| format!("{error:#}"));
            });
        }
        tasks.spawn(follow(client, Arc::clone(&posts), Arc::clone(&record)));
        let fleet = Self { posts, record, target, _tasks: tasks };
        wait_for(START_LIMIT, "all agents have said who they are", async || {
            fleet.check_agents()?;
            Ok(fleet.posts.values().all(|post| post.view.borrow().says(READY, "true")))
        })
        .await?;
        Ok(fleet)
    }

    /// infrop, about to take all Nodes to another version of containerd, some at once. What it says is in
    /// `infrop.log` beside the server's files.
    pub fn infrop(&self, server: &ApiServer, program: &Path, at_once: usize) -> anyhow::Result<Command> {
        let kubeconfig = server.directory().join("infrop.kubeconfig");
        fs::write(&kubeconfig, serde_yaml::to_string(&server.kubeconfig(INFROP, &["system:masters"])?)?)?;
        let log = fs::File::create(server.directory().join("infrop.log"))?;
        let mut command = Command::new(program);
        command
            .args(["rollout", "--soak", "0", "--set", &format!("containerd={NEW}")])
            .args(["--max-unavailable", &at_once.to_string(), "--kubeconfig"])
            .arg(kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        Ok(command)
    }

    /// Whether all Nodes are at the plan, and nothing of the rollout is left on them.
    pub async fn check(&self) -> anyhow::Result<()> {
        let id = self.target.id();
        wait_for(Duration::from_secs(10), "all Nodes are given back at their plan", async || {
            self.check_agents()?;
            Ok(self.posts.values().all(|post| {
                let view = post.view.borrow();
                view.says(READY, "true")
                    && view.says(PLAN_OBSERVED, id.as_str())
                    && view.says(CHANGES_ALLOWED, "false")
                    && !view.annotations.contains_key(CORDONED_BY)
            }))
        })
        .await?;
        // On a busy machine infrop's writes may be seen before the agent has the answer to its own. How long that took nobody
        // knows, so it is no reaction of no time: it is left out, and said.
        let waits = |post: &&Arc<Post>| post.told.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let (reactions, overtaken) = (self.reactions().len(), self.posts.values().filter(waits).count());
        if overtaken > 0 {
            eprintln!("{overtaken} reactions came before an agent's own answer and are not counted");
        }
        ensure!(
            reactions + overtaken == self.posts.len(),
            "{reactions} reactions to {} agents",
            self.posts.len()
        );
        Ok(())
    }

    fn check_agents(&self) -> anyhow::Result<()> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(
            record.failure.is_none(),
            "an agent ended: {}",
            record.failure.as_deref().unwrap_or_default()
        );
        Ok(())
    }

    /// From when an agent's `ready=true` was answered to when the watch shows what infrop did about it, of each Node.
    pub fn reactions(&self) -> Vec<Duration> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).reactions.clone()
    }
}

/// The versions of a worker.
fn plan(containerd: &str) -> anyhow::Result<Plan> {
    let kubernetes = nodes::KUBERNETES;
    let versions = [("containerd", containerd), ("kubeadm", kubernetes), ("kubelet", kubernetes)];
    let mut desired = BTreeMap::new();
    for (name, version) in versions.into_iter().chain([("kubectl", kubernetes)]) {
        desired.insert(name.parse()?, version.parse()?);
    }
    Ok(Plan::new(desired))
}

/// Watches all Nodes for all agents.
async fn follow(client: Client, posts: Arc<BTreeMap<String, Arc<Post>>>, record: Arc<Mutex<Record>>) {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client);
    let mut events = watcher(nodes, watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let (watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = (match event {
            Ok(event) => event,
            // The stream goes on by itself.
            Err(_) => continue,
        }) else {
            continue;
        };
        let Some(post) = node.metadata.name.as_ref().and_then(|name| posts.get(name)) else { continue };
        if let Some(reaction) = post.reaction(&node) {
            record.lock().unwrap_or_else(PoisonError::into_inner).reactions.push(reaction);
        }
        post.see(node);
    }
}

/// What infrop said.
pub fn log(server: &ApiServer) -> anyhow::Result<String> {
    fs::read_to_string(server.directory().join("infrop.log")).context("infrop said nothing")
}

/// The end of what infrop said, for whoever wonders why it failed.
pub fn last_words(server: &ApiServer) -> anyhow::Result<String> {
    let text = log(server)?;
    let lines: Vec<&str> = text.lines().rev().take(20).collect();
    Ok(lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
}
