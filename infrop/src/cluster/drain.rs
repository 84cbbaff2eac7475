//! Emptying a Node, by evictions: budgets are honoured.

use std::{collections::BTreeSet, time::Duration};

use common::metadata::NodeName;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use tokio::time::{Instant, sleep};

use super::error::{Attempt, Error};

/// On a Node that is about to be removed; written together with its cordon.
pub const REMOVING: &str = "infrop.caos.ch/removing";

/// Between two looks at what is still there.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a pod is whose place is on this node.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Cordons a Node for good.
pub async fn mark_removing(client: &kube::Client, name: &NodeName) -> Result<(), Error> {
    let patch = serde_json::json!({
        "metadata": { "annotations": { REMOVING: "true" } },
        "spec": { "unschedulable": true },
    });
    let api = Api::<Node>::all(client.clone());
    match api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await {
        // It is gone already.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.to(format!("cordon the Node {name}")).map(|_| ()),
    }
}

/// Evicts all pods of a Node that can be elsewhere and waits until they are gone. `note` hears what is waited for.
pub async fn drain(
    client: &kube::Client,
    name: &NodeName,
    limit: Duration,
    note: &dyn Fn(String),
) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    loop {
        let left = movable(client, name).await?;
        if left.is_empty() {
            return Ok(());
        }
        let mut blockers = BTreeSet::new();
        for pod in &left {
            if pod.metadata.deletion_timestamp.is_none()
                && let Some(why) = evict(client, pod).await?
            {
                blockers.insert(format!("{}/{}: {why}", pod.namespace().unwrap_or_default(), pod.name_any()));
            }
        }
        let blockers: Vec<String> = blockers.into_iter().collect();
        let state = if blockers.is_empty() {
            format!("{} pods are ending", left.len())
        } else {
            format!("{} pods stay: {}", left.len(), blockers.join("; "))
        };
        if Instant::now() > deadline {
            return Err(Error::Drain { node: name.clone(), after: limit, state });
        }
        note(state);
        sleep(INTERVAL).await;
    }
}

/// The pods of a Node that have to go elsewhere.
async fn movable(client: &kube::Client, name: &NodeName) -> Result<Vec<Pod>, Error> {
    let api = Api::<Pod>::all(client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let pods = api.list(&on_node).await.to(format!("list the pods of {name}"))?;
    Ok(pods.into_iter().filter(is_movable).collect())
}

fn is_movable(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let finished = matches!(phase, "Succeeded" | "Failed");
    let of_daemon_set = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    !finished && !of_daemon_set && !pod.annotations().contains_key(MIRROR)
}

/// Asks for a pod's eviction; gives the reason if it may not go now.
async fn evict(client: &kube::Client, pod: &Pod) -> Result<Option<String>, Error> {
    let api = Api::<Pod>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    // A pod of the same name that came since is another's.
    let same = DeleteParams {
        preconditions: Some(kube::api::Preconditions { uid: pod.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    let parameters = EvictParams { delete_options: Some(same), ..EvictParams::default() };
    match api.evict(&pod.name_any(), &parameters).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(Some(status.message.clone())),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        Err(error) => Err(error).to(format!("evict {}", pod.name_any())),
    }
}

/// Removes a Node; none there is fine.
pub async fn delete_node(client: &kube::Client, name: &NodeName) -> Result<(), Error> {
    let api = Api::<Node>::all(client.clone());
    match api.delete(name.as_str(), &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.to(format!("remove the Node {name}")).map(|_| ()),
    }
}
