//! Keeping pods away from a Node, with the name of who does it: a cordon is lifted by the one who made it, and a
//! person's never is.

use common::{annotations::CORDONED_BY, metadata::NodeName};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::error::{Attempt, Error};

/// Each lost race is somebody's write on the Node, and those are seconds apart.
const ATTEMPTS: u32 = 10;

/// Whose cordon a Node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cordon {
    /// There is none.
    None,
    /// That of the one who is named in the annotation.
    Marked(String),
    /// A person's: it has no mark.
    Foreign,
}

impl Cordon {
    /// Of a Node.
    pub fn of(unschedulable: bool, mark: Option<&str>) -> Self {
        match (unschedulable, mark) {
            // A mark without a cordon is left from one that a person lifted.
            (false, _) => Self::None,
            (true, Some(mark)) => Self::Marked(mark.to_owned()),
            (true, None) => Self::Foreign,
        }
    }

    fn of_node(node: &Node) -> Self {
        let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        let mark = node.annotations().get(CORDONED_BY).filter(|_| !has_others_cordon(node));
        Self::of(unschedulable, mark.map(String::as_str))
    }
}

/// Whether a cordon is not of the one who left the mark: a person lifted the marked one while no infrop looked, and later
/// made their own. Both are written at once, so they have one writer, and the API server keeps who wrote a field.
pub(super) fn has_others_cordon(node: &Node) -> bool {
    let owner = |path: &[&str]| {
        let entries = node.metadata.managed_fields.iter().flatten();
        let owns = |entry: &&ManagedFieldsEntry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            path.iter().try_fold(fields?, |fields, key| fields.get(key)).map(drop)
        };
        entries.filter(|entry| owns(entry).is_some()).find_map(|entry| entry.manager.as_deref())
    };
    let mark = format!("f:{CORDONED_BY}");
    let (mark, cordon) =
        (owner(&["f:metadata", "f:annotations", &mark]), owner(&["f:spec", "f:unschedulable"]));
    mark.zip(cordon).is_some_and(|(mark, cordon)| mark != cordon)
}

/// Cordons a Node in the name of `by`, unless it is cordoned; gives the cordon it has now.
pub async fn cordon(client: &kube::Client, name: &NodeName, by: &str) -> Result<Cordon, Error> {
    change(client, name, "cordon", |found| match found {
        // Mark and cordon in one write: there is never a cordon without a mark, nor a mark without one.
        Cordon::None => Some((
            json!({ "metadata": { "annotations": { CORDONED_BY: by } }, "spec": { "unschedulable": true } }),
            Cordon::Marked(by.to_owned()),
        )),
        Cordon::Marked(_) | Cordon::Foreign => None,
    })
    .await
}

/// Lifts a cordon if it has a mark that `is_ours`; gives the one that is left.
pub async fn uncordon(
    client: &kube::Client,
    name: &NodeName,
    is_ours: impl Fn(&str) -> bool,
) -> Result<Cordon, Error> {
    change(client, name, "uncordon", |found| match found {
        Cordon::Marked(mark) if is_ours(mark) => Some((
            json!({ "metadata": { "annotations": { CORDONED_BY: null } }, "spec": { "unschedulable": null } }),
            Cordon::None,
        )),
        _ => None,
    })
    .await
}

/// Writes what `decide` makes of the cordon there is, if nobody wrote on the Node meanwhile; otherwise looks again.
pub(super) async fn change(
    client: &kube::Client,
    name: &NodeName,
    verb: &str,
    decide: impl Fn(&Cordon) -> Option<(Value, Cordon)>,
) -> Result<Cordon, Error> {
    let api = Api::<Node>::all(client.clone());
    let what = || format!("{verb} the Node {name}");
    let mut attempt = 0;
    loop {
        attempt += 1;
        let node = api.get(name.as_str()).await.to(what())?;
        let found = Cordon::of_node(&node);
        let Some((mut patch, after)) = decide(&found) else { return Ok(found) };
        if let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), json!(node.resource_version()));
        }
        match api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => {}
            result => return result.to(what()).map(|_| after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_that_another_one_wrote_than_the_mark_is_no_cordon_of_the_mark() {
        let entry = |manager: &str, fields: Value| json!({ "manager": manager, "fieldsV1": fields });
        let mark = json!({ "f:metadata": { "f:annotations": { format!("f:{CORDONED_BY}"): {} } } });
        let cordon = json!({ "f:spec": { "f:unschedulable": {} } });
        let mut both = mark.clone();
        both["f:spec"] = cordon["f:spec"].clone();
        let marked = Cordon::Marked("rollout/x".to_owned());
        for (entries, expected) in [
            (vec![entry("infrop", both)], marked.clone()),
            (vec![entry("infrop", mark.clone()), entry("kubectl-cordon", cordon.clone())], Cordon::Foreign),
            // Nobody knows who it was.
            (vec![entry("infrop", mark)], marked.clone()),
            (vec![entry("kubectl-cordon", cordon)], marked.clone()),
            (Vec::new(), marked),
        ] {
            let node: Node = serde_json::from_value(json!({
                "metadata": { "annotations": { CORDONED_BY: "rollout/x" }, "managedFields": entries },
                "spec": { "unschedulable": true },
            }))
            .unwrap();
            assert_eq!(Cordon::of_node(&node), expected, "{entries:?}");
        }
    }

    #[test]
    fn a_cordon_is_of_the_one_whose_mark_it_has() {
        for (unschedulable, mark, expected) in [
            (false, None, Cordon::None),
            (false, Some("x"), Cordon::None),
            (true, Some("x"), Cordon::Marked("x".into())),
            (true, None, Cordon::Foreign),
        ] {
            assert_eq!(Cordon::of(unschedulable, mark), expected);
        }
    }
}
