//! A run takes the Lease over while another announces a permit there. The moment is between a read and a write of one
//! function, so a script has to make it.

use std::time::Duration;

use anyhow::{bail, ensure};
use infrop::{
    cluster::{Clients, DirectClient},
    rollout::{Outcome, Rollout, assess::Stage},
};
use kube::{Client, Config};
use serde_json::{Value, json};
use tests::scripted_server::{Answer, Asked, ScriptedServer};

use crate::{
    fixture::{NODE, refusal},
    meanwhile::policy,
    nodes::{at, plan},
    turn::Quiet,
};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/infrop-rollout";

/// What the API server has.
struct World {
    /// The Lease, and how often it was written.
    lease: Value,
    version: u64,
    node: Value,
}

impl World {
    /// The first run, which holds the Lease, announces a permit.
    fn announce(&mut self) {
        self.version += 1;
        self.lease = json!({ "metadata": { "annotations": { "infrop.caos.ch/nodes": NODE } } });
    }

    fn lease(&self) -> Answer {
        let mut lease = self.lease.clone();
        if let Some(metadata) = lease.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), json!(self.version.to_string()));
        }
        Answer::new("200 OK", lease.to_string())
    }

    /// As a real one does it.
    fn replace(&mut self, body: &str) -> Answer {
        let lease: Value = serde_json::from_str(body).unwrap_or_default();
        let found = lease.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if found != Some(&self.version.to_string()) {
            return refusal("409 Conflict", 409, "the object has been modified", None, 0);
        }
        self.version += 1;
        self.lease = lease;
        self.lease()
    }

    fn answer(&mut self, asked: &Asked) -> Answer {
        match (asked.method.as_str(), asked.path.split('?').next().unwrap_or_default()) {
            ("GET", LEASE) => {
                let answer = self.lease();
                if self.version == 1 {
                    self.announce();
                }
                answer
            }
            ("PUT", LEASE) => self.replace(&asked.body),
            // Nothing ever happens.
            ("GET", "/api/v1/nodes") if asked.path.contains("watch=true") => Answer::new("200 OK", ""),
            ("GET", "/api/v1/nodes") => {
                let metadata = json!({ "resourceVersion": "1" });
                let list = json!({ "kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": [self.node] });
                Answer::new("200 OK", list.to_string())
            }
            ("PATCH", _) => Answer::new("200 OK", self.node.to_string()),
            _ => Answer::new("404 Not Found", format!("nothing is at {}", asked.path)),
        }
    }
}

pub(crate) async fn nothing_is_written_over() -> anyhow::Result<()> {
    let target = plan("1")?;
    let mut annotations = at(&target)?;
    annotations.extend(common::annotations::write_plan(&target));
    let node = json!({ "metadata": { "name": NODE, "uid": "u", "resourceVersion": "1", "annotations": annotations } });
    let mut world = World { lease: json!({ "metadata": {} }), version: 1, node };
    let server = ScriptedServer::start_with(move |asked| world.answer(asked)).await?;
    let config = Config::new(server.url().parse()?);
    let clients = Clients { client: Client::try_from(config.clone())?, direct: DirectClient::new(config)? };
    let (_sender, stop) = tokio::sync::watch::channel(false);
    let rollout = Rollout {
        clients: &clients,
        identity: "second",
        policy: policy(),
        targets: &|_| ("w".to_owned(), Ok(target.clone())),
        progress: &Quiet,
        stop,
        deadline: tokio::time::Instant::now() + Duration::from_mins(1),
        metrics: None,
    };
    let (Outcome::Ended(decision), _) = rollout.run().await? else { bail!("it does not end") };
    ensure!(decision.nodes.values().all(|node| node.stage == Stage::Done), "{decision:?}");
    // There was nothing to do on it but to fence it off, and the announcement stood in the Lease until that was done.
    let is_write = |asked: &Asked| ["PUT", "PATCH"].contains(&asked.method.as_str());
    // A connection that was opened for the next watch, and not used before the end, is there without a method.
    let writes: Vec<Asked> = server.asked().into_iter().filter(is_write).collect();
    let kinds: Vec<&str> = writes.iter().map(|asked| asked.method.as_str()).collect();
    ensure!(kinds == ["PUT", "PUT", "PATCH", "PUT"], "{writes:?}");
    let announced: Vec<bool> = writes.iter().map(|asked| asked.body.contains(NODE)).collect();
    ensure!(announced == [false, true, false, false], "{writes:?}");
    ensure!(writes.iter().any(|asked| asked.body.contains("infrop.caos.ch/fence")), "{writes:?}");
    Ok(())
}
