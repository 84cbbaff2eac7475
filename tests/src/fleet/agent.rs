//! An agent whose host is a few versions in memory: node-agent's own decisions, journal and words, in the order in which its
//! engine has them.

use std::{
    convert::Infallible,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use common::{
    annotations::{self, READY},
    plan::Plan,
    software::SoftwareName,
    state::{Phase, Reason, State},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client,
    api::{Patch, PatchParams},
    core::{PartialObjectMeta, Request},
};
use node_agent::{
    decide::{Asked, Decision, Rest, Snapshot, decide},
    journal::{Journal, Step},
    observe::{BootId, Facts, HostState},
    report,
    software::{self, Observed},
};
use serde_json::Value;
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};

use super::{Post, View, nodes};

/// Writes of all agents that are under way at once: each has a connection.
const WRITES: usize = 20;

/// The way to the API server that agents share.
#[derive(Debug)]
pub(super) struct Line {
    client: ClientBox,
    free: Semaphore,
}

/// A client, which has nothing to show.
struct ClientBox(Client);

impl std::fmt::Debug for ClientBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Line {
    pub(super) fn new(client: Client) -> Self {
        Self { client: ClientBox(client), free: Semaphore::new(WRITES) }
    }

    /// Writes on a Node as its kubelet, whose identity node-agent has.
    async fn patch(&self, name: &str, patch: &Value) -> anyhow::Result<PartialObjectMeta<Node>> {
        let _free = self.free.acquire().await?;
        let parameters =
            PatchParams { field_manager: Some("node-agent".to_owned()), ..PatchParams::default() };
        let mut request =
            Request::new("/api/v1/nodes").patch_metadata(name, &parameters, &Patch::Merge(patch))?;
        request.headers_mut().insert("Impersonate-User", format!("system:node:{name}").parse()?);
        request.headers_mut().insert("Impersonate-Group", "system:nodes".parse()?);
        Ok(self.client.0.request(request).await?)
    }
}

/// An agent.
pub(super) struct Agent {
    name: String,
    post: Arc<Post>,
    view: watch::Receiver<View>,
    line: Arc<Line>,
    host: HostState,
    journal: Journal,
    state: State,
    /// How long a change takes.
    work: Duration,
}

impl Agent {
    /// Of a host that is at a plan.
    pub(super) fn new(
        name: &str,
        plan: &Plan,
        work: Duration,
        post: Arc<Post>,
        line: Arc<Line>,
    ) -> anyhow::Result<Self> {
        let facts = Facts { boot: BootId::new(&nodes::boot(name)), joined: true, ..Facts::default() };
        let mut host = HostState { facts, ..HostState::default() };
        for one in software::ALL {
            // What kubeadm keeps follows kubeadm.
            let asked = if one.name() == software::KUBERNETES { "kubeadm" } else { one.name() };
            let version = plan.desired.iter().find(|(name, _)| name.as_str() == asked);
            host.software
                .push((one.name().parse()?, Observed::now(version.map(|(_, version)| version.clone()))));
        }
        let state = State {
            boot_id: host.facts.boot.to_string(),
            ..State::starting(env!("CARGO_PKG_VERSION"), Timestamp::now())
        };
        let (view, name) = (post.view.subscribe(), name.to_owned());
        Ok(Self { name, post, view, line, host, journal: Journal::default(), state, work })
    }

    /// Works for ever, or until something happens that no rollout should bring about.
    pub(super) async fn live(mut self) -> anyhow::Result<Infallible> {
        self.view.changed().await?;
        loop {
            self.pass().await.with_context(|| self.name.clone())?;
        }
    }

    fn decide(&mut self) -> Decision {
        let asked = Asked::Node(annotations::read_request(&self.view.borrow_and_update().annotations));
        self.journal.hear(&asked);
        decide(&Snapshot {
            now: Timestamp::now(),
            asked: &asked,
            host: &self.host,
            journal: &self.journal,
            cluster: None,
            api_patience: SignedDuration::from_mins(5),
        })
    }

    async fn pass(&mut self) -> anyhow::Result<()> {
        let decision = self.decide();
        match decision {
            Decision::Rest(Rest { phase, reason, message, standing, .. }) => {
                self.journal.stand(standing);
                self.say(phase, reason, message).await?;
                self.view.changed().await?;
            }
            Decision::Accept { plan, origin, permitted } => {
                self.journal.accept(plan, origin, permitted, Timestamp::now());
                self.say(Phase::Changing, Reason::ChangingSoftware, "beginning".to_owned()).await?;
            }
            Decision::Change { ref software, ref version } => {
                let message = format!("bringing {software} to {version}");
                self.say(Phase::Changing, Reason::ChangingSoftware, message).await?;
                // The answer to that is the permit that counts.
                if self.decide() != decision {
                    return Ok(());
                }
                self.journal.begin(Step::Change(software.clone()), &self.host.facts.boot);
                sleep(self.work).await;
                self.set(software, Observed::now(Some(version.clone())));
                self.journal.end_step();
            }
            Decision::Finish { .. } => {
                self.say(Phase::Verifying, Reason::CheckingServices, "checking services".to_owned()).await?;
                self.journal.finish(Timestamp::now());
            }
            Decision::Reboot | Decision::GiveUp(_) => bail!("unexpected: {decision}"),
        }
        Ok(())
    }

    fn set(&mut self, software: &SoftwareName, observed: Observed) {
        if let Some((_, known)) = self.host.software.iter_mut().find(|(name, _)| name == software) {
            *known = observed;
        }
    }

    /// Brings the Node's annotations up to date.
    async fn say(&mut self, phase: Phase, reason: Reason, message: String) -> anyhow::Result<()> {
        if (self.state.phase, self.state.reason) != (phase, reason) {
            self.state.since = Timestamp::now();
        }
        (self.state.phase, self.state.reason, self.state.message) = (phase, reason, message);
        self.state.attempt = self.journal.active.as_ref().map_or(0, |active| active.attempt);
        let report = report::report(&self.host, &self.journal, &self.state);
        let (patch, permitted) = {
            let view = self.view.borrow();
            (report::patch(&view.annotations, &report), view.is_permitted())
        };
        let Some(patch) = patch else { return Ok(()) };
        let answer = self.line.patch(&self.name, &patch).await?;
        let version = self.post.see(answer);
        // Without a permit nobody waits for that word.
        if permitted
            && patch.pointer("/metadata/annotations").and_then(|keys| keys.get(READY)) == Some(&"true".into())
        {
            let mut told = self.post.told.lock().unwrap_or_else(PoisonError::into_inner);
            *told = Some((Instant::now(), version));
        }
        Ok(())
    }
}
