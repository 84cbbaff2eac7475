//! Doing one thing. Each can be done again after a crash at any point of it. Every write on a Node must find it as the
//! decision saw it: what someone else wrote meanwhile is a reason to decide anew.

use std::{cell::RefCell, time::Duration};

use common::annotations::{CHANGES_ALLOWED, HISTORY, PERMITTED_PLAN};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    assess::{MARK, Verb},
    check,
    claims::Claims,
    decide::Action,
    error::Error,
    etcd,
    history::History,
    metrics::MetricsFile,
    patch,
    policy::{Drain, Policy},
    saved::SAVED,
    snapshot::{Etcd, Member},
    tell::Tale,
};
use crate::{
    cluster::{self, DirectClient, DrainError, NodeView},
    random,
};

/// Whose writes these are.
const MANAGER: &str = "infrop";

/// Another text each time, so that the write is one.
const FENCE: &str = "infrop.caos.ch/fence";

/// For the last Events: nobody waits for long to tell what there is.
const TELL_LIMIT: Duration = Duration::from_secs(5);

/// What an action found out or made.
#[derive(Debug)]
pub(super) enum Found {
    /// It was written: the Node as it is now.
    Written(Box<Node>),
    /// Someone else wrote the Node meanwhile, and nothing was written: the Node as it is now.
    Overtaken(Box<Node>),
    /// The node has no pods left that have to go.
    Empty,
    /// Its pods do not go.
    Held(String),
    /// Whether the pods that belong there are well, or why not.
    Checked(Result<(), String>),
    /// Whether what a site checks is well, or why not.
    Tested(Result<(), String>),
    /// etcd.
    Etcd(Etcd),
}

/// What actions work with.
pub(super) struct Means<'a> {
    pub(super) client: &'a kube::Client,
    pub(super) direct: &'a DirectClient,
    pub(super) claims: &'a Claims,
    pub(super) policy: &'a Policy,
    pub(super) reporter: Reporter,
    pub(super) metrics: Option<&'a MetricsFile>,
    /// Events on their way.
    pub(super) told: RefCell<JoinSet<()>>,
}

impl Means<'_> {
    /// Tells of something as an Event of a Node, beside the work: who reads them can wait, and one that is lost is no matter.
    pub(super) fn tell(&self, node: &NodeView, tale: Tale) {
        let Tale { warning, reason, note } = tale;
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            // The API server takes no longer one.
            note: Some(note.chars().take(1000).collect()),
            action: "Rollout".to_owned(),
            secondary: None,
        };
        // One of its own: a recorder remembers all of its Events for minutes, and looks through them for each new one.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        let node = node.reference();
        let mut told = self.told.borrow_mut();
        while told.try_join_next().is_some() {}
        told.spawn(async move {
            if let Err(error) = recorder.publish(&event, &node).await {
                tracing::debug!("an Event of a Node is lost: {error}");
            }
        });
    }

    /// Waits for the last Events: what ended the rollout is among them.
    pub(super) async fn tell_all(&self) {
        let mut told = self.told.take();
        let all = async { while told.join_next().await.is_some() {} };
        if tokio::time::timeout(TELL_LIMIT, all).await.is_err() {
            tracing::debug!("the last Events of Nodes are lost: the API does not take them");
        }
    }

    /// Does it. `member` is the node as the decision saw it.
    pub(super) async fn run(
        &self,
        action: &Action,
        member: Option<&Member>,
        note: &dyn Fn(String),
    ) -> Result<Found, Error> {
        match member {
            Some(member) => self.with_node(action, member, note).await,
            None => Ok(Found::Etcd(etcd::look(self.client).await)),
        }
    }

    async fn with_node(
        &self,
        action: &Action,
        member: &Member,
        note: &dyn Fn(String),
    ) -> Result<Found, Error> {
        let node = &member.node;
        let target = member.target.as_ref().ok();
        match action {
            Action::Permit(name) => {
                self.claims.announce(name).await?;
                let history = History::read(node).begin(member.kind(self.policy), Timestamp::now());
                let values = json!({
                    CHANGES_ALLOWED: "true", PERMITTED_PLAN: "", HISTORY: history.value(),
                });
                self.annotate(node, action, values).await
            }
            Action::Step(Verb::Cordon, _) => {
                let mark =
                    format!("{MARK}{}", target.map(|target| target.id().to_string()).unwrap_or_default());
                let exclude = self.policy.exclude_from_load_balancers;
                self.patch(node, action, patch::cordon(node, &mark, exclude)).await
            }
            Action::Step(Verb::Uncordon, _) => self.patch(node, action, patch::uncordon(node)).await,
            Action::Step(Verb::Unmark, _) => self.patch(node, action, patch::unmark(node)).await,
            Action::Step(Verb::Plan, _) => match target {
                Some(target) => self.annotate(node, action, patch::plan(node, target)).await,
                None => self.latest(node).await,
            },
            Action::Step(Verb::Withdraw, _) => {
                let history = History::read(node);
                let history = if member.at_target() {
                    history.end(self.policy.of(member).soak(), Timestamp::now())
                } else {
                    history.give_up()
                };
                let values = [
                    (CHANGES_ALLOWED.to_owned(), json!("false")),
                    (PERMITTED_PLAN.to_owned(), Value::Null),
                    (HISTORY.to_owned(), history.value()),
                ];
                self.patch(node, action, patch::withdraw(node, values.into_iter().collect())).await
            }
            Action::Step(Verb::Drain, name) => {
                let Drain { rules, limit } = self.policy.of(member).drain();
                let refused = || self.metrics.iter().for_each(|metrics| metrics.count_refusal());
                match cluster::drain_heard(self.direct, name, rules, *limit, note, &refused).await {
                    Ok(_) => Ok(Found::Empty),
                    Err(error @ DrainError::Api(_)) => Err(error.into()),
                    Err(error) => Ok(Found::Held(error.to_string())),
                }
            }
            Action::Step(Verb::Check, _) => Ok(Found::Checked(self.check(node).await?)),
            Action::Step(Verb::Test, _) => {
                let checks = self.policy.of(member).checks();
                Ok(Found::Tested(check::run(self.client, checks, member, note).await?))
            }
            Action::Fence(_) => {
                let word = random::hex(4).map_err(|error| Error::Api(error.into()))?;
                self.annotate(node, action, json!({ FENCE: word })).await
            }
            Action::SaveEtcd(_, occasion) => {
                let now = Timestamp::now();
                note(etcd::save(self.client, node, occasion).await?);
                self.annotate(node, action, json!({ SAVED: occasion.mark(now) })).await
            }
            Action::Taint(_) | Action::Untaint(_) => {
                let taints = patch::taints(node, matches!(action, Action::Taint(_)));
                self.patch(node, action, json!({ "spec": { "taints": taints } })).await
            }
            Action::LookAtEtcd => Ok(Found::Etcd(etcd::look(self.client).await)),
        }
    }

    async fn annotate(&self, node: &NodeView, action: &Action, values: Value) -> Result<Found, Error> {
        self.patch(node, action, json!({ "metadata": { "annotations": values } })).await
    }

    /// Writes if the Node is as it was seen; gives it as it is now in any case.
    async fn patch(&self, node: &NodeView, action: &Action, mut patch: Value) -> Result<Found, Error> {
        let metadata = patch.as_object_mut().map(|patch| patch.entry("metadata").or_insert(json!({})));
        if let Some(metadata) = metadata.and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), json!(node.resource_version));
        }
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let api = Api::<Node>::all(self.client.clone());
        match api.patch(node.name.as_str(), &parameters, &Patch::Merge(patch)).await {
            Ok(node) => Ok(Found::Written(Box::new(node))),
            Err(kube::Error::Api(status)) if status.code == 409 => self.latest(node).await,
            Err(error) => Err(Error::api(action.to_string(), error)),
        }
    }

    async fn latest(&self, node: &NodeView) -> Result<Found, Error> {
        let api = Api::<Node>::all(self.client.clone());
        let found = api.get(node.name.as_str()).await;
        found.map(|node| Found::Overtaken(Box::new(node))).map_err(|error| Error::api("read a Node", error))
    }

    /// Whether the pods that belong on the node are there again.
    async fn check(&self, node: &NodeView) -> Result<Result<(), String>, Error> {
        let api = Api::<Pod>::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", node.name));
        let pods = api.list(&on_node).await.map_err(|error| Error::api("list the pods of a node", error))?;
        let waiting = pods.iter().find(|pod| belongs_there(pod) && !is_ready(pod));
        Ok(waiting.map_or(Ok(()), |pod| {
            Err(format!("the pod {}/{} is not Ready", pod.namespace().unwrap_or_default(), pod.name_any()))
        }))
    }
}

/// Pods of a `DaemonSet` and static pods.
fn belongs_there(pod: &Pod) -> bool {
    pod.owner_references().iter().any(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
