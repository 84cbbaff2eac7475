//! Taking a Node out of the cluster.

use common::metadata::NodeName;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};

use super::error::{Attempt, Error};

/// On a Node that is about to be removed; written together with its cordon.
pub const REMOVING: &str = "infrop.caos.ch/removing";

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

/// Removes a Node; none there is fine.
pub async fn delete_node(client: &kube::Client, name: &NodeName) -> Result<(), Error> {
    let api = Api::<Node>::all(client.clone());
    match api.delete(name.as_str(), &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.to(format!("remove the Node {name}")).map(|_| ()),
    }
}
