//! An API server that has pods and answers evictions by script.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use infrop::cluster::{DirectClient, DrainError, DrainRules, Drained, drain};
use serde_json::{Value, json};
use tests::scripted_server::{Answer, Asked, ScriptedServer};

pub(crate) const NODE: &str = "w-1";

/// A pod of a `ReplicaSet` in the namespace `shop`; its UID is made of its name.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": format!("uid-{name}"),
            "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true },
            ],
        },
        "spec": { "nodeName": NODE, "containers": [{ "name": "a" }] },
        "status": { "phase": "Running" },
    })
}

/// A pod of a controller of another kind, or of none.
pub(crate) fn pod_of(name: &str, kind: Option<&str>) -> Value {
    let mut pod = pod(name);
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        let owner = |kind| json!([{ "apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": "u", "controller": true }]);
        metadata.insert("ownerReferences".to_owned(), kind.map_or(Value::Null, owner));
    }
    pod
}

/// A refusal as the API server words it.
pub(crate) fn refusal(
    http: &'static str,
    code: u16,
    message: &str,
    cause: Option<[&str; 2]>,
    retry_after: u32,
) -> Answer {
    let causes: Vec<Value> =
        cause.into_iter().map(|[reason, message]| json!({ "reason": reason, "message": message })).collect();
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "message": message,
        "details": { "causes": causes, "retryAfterSeconds": retry_after },
    });
    let mut answer = Answer::new(http, status.to_string());
    if retry_after > 0 {
        answer.headers = format!("Retry-After: {retry_after}\r\n");
    }
    answer
}

/// The refusal of a budget.
pub(crate) fn budget(retry_after: u32) -> Answer {
    let words = "The disruption budget web needs 2 healthy pods and has 2 currently";
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    refusal("429 Too Many Requests", 429, message, Some(["DisruptionBudget", words]), retry_after)
}

/// The agreement to an eviction.
pub(crate) fn accepted(http: &'static str) -> Answer {
    let code: u16 = http.split(' ').next().and_then(|code| code.parse().ok()).unwrap_or_default();
    Answer::new(http, json!({ "kind": "Status", "status": "Success", "code": code }).to_string())
}

/// What the API server has.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) pods: Vec<Value>,
    /// The names of all `DaemonSets`, in the namespace `shop`.
    pub(crate) daemon_sets: Vec<&'static str>,
    /// Evictions and deletions so far.
    pub(crate) attempts: usize,
    /// Lists of pods so far.
    pub(crate) lists: usize,
}

impl World {
    pub(crate) fn remove(&mut self, name: &str) {
        self.pods.retain(|pod| pod.pointer("/metadata/name").and_then(Value::as_str) != Some(name));
    }

    fn list(&mut self, asked: &Asked) -> Answer {
        let items = if asked.path.starts_with("/apis/apps/v1/daemonsets?") {
            let set = |name| json!({ "metadata": { "namespace": "shop", "name": name } });
            self.daemon_sets.iter().map(set).collect()
        } else if asked.path.starts_with("/api/v1/pods?") && asked.path.contains("spec.nodeName%3Dw-1") {
            self.lists += 1;
            self.pods.clone()
        } else {
            return Answer::new("404 Not Found", format!("nothing is at {}", asked.path));
        };
        let list = json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items });
        Answer::new("200 OK", list.to_string())
    }
}

/// A server with a world.
pub(crate) struct Server {
    server: ScriptedServer,
    world: Arc<Mutex<World>>,
}

impl Server {
    /// `reply` answers to evictions, by the pod's name; a success also takes the pod away. Deletions always do.
    pub(crate) async fn start(
        world: World,
        mut reply: impl FnMut(&mut World, &str) -> Answer + Send + 'static,
    ) -> anyhow::Result<Self> {
        let world = Arc::new(Mutex::new(world));
        let shared = Arc::clone(&world);
        let server = ScriptedServer::start_with(move |asked| {
            let mut world = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.method == "GET" {
                return world.list(asked);
            }
            world.attempts += 1;
            let path = asked.path.split('?').next().unwrap_or_default();
            let name = path.trim_start_matches("/api/v1/namespaces/shop/pods/").trim_end_matches("/eviction");
            let answer = if asked.method == "DELETE" { accepted("200 OK") } else { reply(&mut world, name) };
            if answer.body.contains("\"Success\"") {
                world.remove(name);
            }
            answer
        })
        .await?;
        Ok(Self { server, world })
    }

    /// One pod `web-1`, and this is answered to its evictions: one after the other, the last one again and again.
    pub(crate) async fn with_one(answers: Vec<Answer>) -> anyhow::Result<Self> {
        let world = World { pods: vec![pod("web-1")], ..World::default() };
        let mut answers = answers.into_iter();
        let mut last = answers.next();
        Self::start(world, move |_, _| {
            let answer = last.clone();
            if let Some(next) = answers.next() {
                last = Some(next);
            }
            answer.unwrap_or_else(|| Answer::new("500 Internal Server Error", "no answer"))
        })
        .await
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many lists of pods, and how many evictions and deletions there were.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let world = self.world();
        (world.lists, world.attempts)
    }

    /// All writes so far.
    pub(crate) fn writes(&self) -> Vec<Asked> {
        self.server.asked().into_iter().filter(|asked| asked.method != "GET").collect()
    }

    /// All requests so far whose path begins with this.
    pub(crate) fn asked(&self, path: &str) -> usize {
        self.server.asked().iter().filter(|asked| asked.path.starts_with(path)).count()
    }

    /// Drains, with what was noted.
    pub(crate) async fn drain(&self, rules: &DrainRules, seconds: u64) -> anyhow::Result<Outcome> {
        let client = DirectClient::new(kube::Config::new(self.server.url().parse()?))?;
        let notes = Mutex::new(Vec::new());
        let note = |text| notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        let result = drain(&client, &NODE.parse()?, rules, Duration::from_secs(seconds), &note).await;
        Ok(Outcome { result, notes: notes.into_inner().unwrap_or_else(PoisonError::into_inner) })
    }
}

/// How a drain ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<Drained, DrainError>,
    pub(crate) notes: Vec<String>,
}
