//! Taking a Node out of the cluster.

use common::{annotations::CORDONED_BY, metadata::NodeName};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

use super::{
    cordon::{Cordon, change},
    error::{Attempt, Error},
};

/// On a Node that is about to be removed; written together with its cordon.
pub const REMOVING: &str = "infrop.caos.ch/removing";

/// The mark of its cordon.
const MARK: &str = "infrop apply";

/// How far a removal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removing {
    /// There is one host too many; as long as only its pods went, it can be kept after all.
    Surplus,
    /// A person gave the host up, or what it has of the cluster is being removed.
    ForGood,
}

impl Removing {
    /// The annotation's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Surplus => "surplus",
            Self::ForGood => "true",
        }
    }

    /// What a Node's annotation says.
    pub fn of(value: &str) -> Self {
        if value == Self::Surplus.as_str() { Self::Surplus } else { Self::ForGood }
    }
}

/// Cordons a Node that is about to be removed; none there is fine.
pub async fn mark_removing(client: &kube::Client, name: &NodeName, how: Removing) -> Result<(), Error> {
    let marked = change(client, name, "cordon", |found| {
        let patch = match found {
            Cordon::None => json!({
                "metadata": { "annotations": { REMOVING: how.as_str(), CORDONED_BY: MARK } },
                "spec": { "unschedulable": true },
            }),
            // If it is kept after all, that cordon is still another's.
            Cordon::Marked(_) | Cordon::Foreign => annotate(&how.as_str().into()),
        };
        Some((patch, found.clone()))
    });
    match marked.await {
        Err(error) if error.is_missing() => Ok(()),
        result => result.map(drop),
    }
}

/// Lets pods come again to a Node that was about to be removed.
pub async fn unmark_removing(client: &kube::Client, name: &NodeName) -> Result<(), Error> {
    let unmarked = change(client, name, "uncordon", |found| {
        let patch = match found {
            Cordon::Marked(mark) if mark == MARK => json!({
                "metadata": { "annotations": { REMOVING: null, CORDONED_BY: null } },
                "spec": { "unschedulable": null },
            }),
            _ => annotate(&Value::Null),
        };
        Some((patch, found.clone()))
    });
    unmarked.await.map(drop)
}

fn annotate(value: &Value) -> Value {
    json!({ "metadata": { "annotations": { REMOVING: value } } })
}

/// Removes a Node; none there is fine.
pub async fn delete_node(client: &kube::Client, name: &NodeName) -> Result<(), Error> {
    let api = Api::<Node>::all(client.clone());
    match api.delete(name.as_str(), &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.to(format!("remove the Node {name}")).map(|_| ()),
    }
}
