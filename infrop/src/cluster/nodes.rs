//! Nodes, as far as bringing a cluster up needs to know them.

use std::{collections::BTreeMap, time::Duration};

use common::{annotations::CORDONED_BY, metadata::NodeName};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::Value;

use super::{
    cordon::has_others_cordon,
    error::{Attempt, Error},
};
use crate::retry;

/// What a control plane's Node is labelled with, by kubeadm.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// The taint of a Node that waits for its turn in a rollout.
pub const WAITING: &str = "infrop.caos.ch/waits-for-rollout";

/// A watch is begun anew so often, in seconds: one that hangs on a dead control plane is not noticed otherwise.
pub const WATCH_SECONDS: u32 = 20;

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: NodeName,
    /// Tells it from another of the same name.
    pub uid: String,
    /// The version of the object, which a write of it must find.
    pub resource_version: String,
    /// Whether the kubelet says that it can run pods, and why not.
    pub ready: Result<(), String>,
    /// Since when that is so.
    pub since: Option<Timestamp>,
    /// Whether pods may not come.
    pub cordoned: bool,
    /// Its taints as they are: the API takes only all of them together.
    pub taints: Vec<Value>,
    /// Whether it is a control plane.
    pub control_plane: bool,
    /// The kubelet's version.
    pub kubelet: String,
    /// The boot its kubelet last reported.
    pub boot_id: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations, without the mark of a cordon that is another's by now.
    pub annotations: BTreeMap<String, String>,
}

impl NodeView {
    /// Of a Node; none of one whose name no host can have.
    pub fn new(node: &Node) -> Option<Self> {
        let status = node.status.as_ref();
        let condition = status
            .and_then(|status| status.conditions.as_ref())
            .and_then(|conditions| conditions.iter().find(|condition| condition.type_ == "Ready"));
        let ready = match condition {
            Some(condition) if condition.status == "True" => Ok(()),
            Some(condition) => {
                Err(condition.message.clone().unwrap_or_else(|| "it does not say why".to_owned()))
            }
            None => Err("its kubelet has not reported yet".to_owned()),
        };
        let mut annotations = node.annotations().clone();
        if annotations.contains_key(CORDONED_BY) && has_others_cordon(node) {
            annotations.remove(CORDONED_BY);
        }
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let info = status.and_then(|status| status.node_info.as_ref());
        Some(Self {
            name: node.name_any().parse().ok()?,
            uid: node.uid().unwrap_or_default(),
            resource_version: node.resource_version().unwrap_or_default(),
            ready,
            since: condition.and_then(|condition| Some(condition.last_transition_time.as_ref()?.0)),
            cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
            taints: taints.filter_map(|taint| serde_json::to_value(taint).ok()).collect(),
            control_plane: node.labels().contains_key(CONTROL_PLANE),
            kubelet: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
            boot_id: info.map(|info| info.boot_id.clone()).unwrap_or_default(),
            labels: node.labels().clone(),
            annotations,
        })
    }
}

impl NodeView {
    /// Whether pods rather go elsewhere because it waits for a rollout.
    pub fn is_deferred(&self) -> bool {
        self.taints.iter().any(|taint| taint.get("key").is_some_and(|key| key == WAITING))
    }

    /// The object, for those that speak of it.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.to_string()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// All Nodes, by name.
pub async fn list(client: &kube::Client) -> Result<BTreeMap<NodeName, NodeView>, Error> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.to("list the Nodes")?;
    Ok(nodes.iter().filter_map(NodeView::new).map(|node| (node.name.clone(), node)).collect())
}

/// Waits until a Node is Ready in that boot; why it is not if it never is. The condition of the boot before stands
/// there until the kubelet speaks again.
pub async fn wait_until_ready(
    client: &kube::Client,
    name: &NodeName,
    boot_id: &str,
    limit: Duration,
    note: &dyn Fn(String),
) -> Result<(), String> {
    let only_this =
        watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
    let mut events =
        watcher(Api::<Node>::all(client.clone()), only_this).backoff(retry::Watching::default()).boxed();
    let deadline = tokio::time::Instant::now() + limit;
    let mut why =
        "its kubelet has not registered a Node; `journalctl -u kubelet` there may say why".to_owned();
    while let Ok(Some(event)) = tokio::time::timeout_at(deadline, events.next()).await {
        let seen = match event {
            Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) => NodeView::new(&node),
            Ok(_) => continue,
            // The API server itself may be on this host, and refuses everyone for a moment when it starts. The stream
            // goes on by itself.
            Err(error) => {
                note(format!("the API does not answer: {:#}", anyhow::Error::from(error)));
                continue;
            }
        };
        why = match seen {
            Some(node) if node.boot_id == boot_id => match node.ready {
                Ok(()) => return Ok(()),
                Err(why) => why,
            },
            _ => "its kubelet has not reported since the restart".to_owned(),
        };
        note(why.clone());
    }
    Err(why)
}

/// Writes an annotation on a Node, or removes it.
pub async fn annotate(
    client: &kube::Client,
    name: &NodeName,
    key: &str,
    value: Option<&str>,
) -> Result<(), Error> {
    let patch = serde_json::json!({ "metadata": { "annotations": { key: value } } });
    let api = Api::<Node>::all(client.clone());
    api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch))
        .await
        .to(format!("annotate the Node {name}"))?;
    Ok(())
}

/// Gives a Node labels and annotations; others stay.
pub async fn register(
    client: &kube::Client,
    name: &NodeName,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let patch = serde_json::json!({ "metadata": { "labels": labels, "annotations": annotations } });
    let api = Api::<Node>::all(client.clone());
    api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch))
        .await
        .to(format!("register the Node {name}"))?;
    Ok(())
}
