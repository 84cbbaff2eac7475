//! What is written on a Node, beside the permit.

use common::{
    annotations::{self, CORDONED_BY, EXCLUDED_BY, PERMITTED_PLAN},
    plan::Plan,
};
use serde_json::{Map, Value, json};

use super::assess::{has_left_mark, has_permit};
use crate::cluster::{NodeView, WAITING};

/// Load balancers outside of the cluster leave out nodes with this label, whatever its value.
const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The value that we give it; one of somebody else may have another.
const OURS: &str = "";

/// All versions of a plan and its hash; versions of another plan go. If there is a permit, it is for this plan from now on.
pub(super) fn plan(node: &NodeView, plan: &Plan) -> Value {
    let mut values: Map<String, Value> =
        annotations::write_plan(plan).into_iter().map(|(key, value)| (key, Value::String(value))).collect();
    for key in node.annotations.keys().filter(|key| annotations::is_desired_version(key)) {
        values.entry(key.clone()).or_insert(Value::Null);
    }
    let permitted = if has_permit(node) { json!(plan.id().as_str()) } else { Value::Null };
    values.insert(PERMITTED_PLAN.to_owned(), permitted);
    Value::Object(values)
}

/// The cordon and its mark; if `exclude`, also away from load balancers, unless somebody else took it away already.
pub(super) fn cordon(node: &NodeView, mark: &str, exclude: bool) -> Value {
    let mut metadata = json!({ "annotations": { CORDONED_BY: mark } });
    if exclude && !node.labels.contains_key(EXCLUDE) {
        metadata = json!({
            "annotations": { CORDONED_BY: mark, EXCLUDED_BY: mark }, "labels": { EXCLUDE: OURS },
        });
    }
    json!({ "metadata": metadata, "spec": { "unschedulable": true } })
}

/// The end of a cordon, and of what came with it.
pub(super) fn uncordon(node: &NodeView) -> Value {
    let mut patch = unmark(node);
    if let Some(patch) = patch.as_object_mut() {
        patch.insert("spec".to_owned(), json!({ "unschedulable": null }));
    }
    patch
}

/// The end of a permit, with other annotations; also of a mark whose cordon a person lifted.
pub(super) fn withdraw(node: &NodeView, annotations: Map<String, Value>) -> Value {
    let mut patch =
        if has_left_mark(node) { unmark(node) } else { json!({ "metadata": { "annotations": {} } }) };
    let written = patch.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let Some(written) = written {
        written.extend(annotations);
    }
    patch
}

/// The end of what came with a cordon, whoever lifted that.
pub(super) fn unmark(node: &NodeView) -> Value {
    let mut metadata = json!({ "annotations": { CORDONED_BY: null } });
    if node.annotations.contains_key(EXCLUDED_BY) {
        metadata = json!({ "annotations": { CORDONED_BY: null, EXCLUDED_BY: null } });
        if node.labels.get(EXCLUDE).is_some_and(|value| value == OURS)
            && let Some(metadata) = metadata.as_object_mut()
        {
            metadata.insert("labels".to_owned(), json!({ EXCLUDE: null }));
        }
    }
    json!({ "metadata": metadata })
}

/// All taints, with ours or without it.
pub(super) fn taints(node: &NodeView, ours: bool) -> Vec<Value> {
    let is_ours = |taint: &&Value| taint.get("key").is_some_and(|key| key == WAITING);
    let mut taints: Vec<Value> = node.taints.iter().filter(|taint| !is_ours(taint)).cloned().collect();
    if ours {
        taints.push(json!({ "key": WAITING, "effect": "PreferNoSchedule" }));
    }
    taints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::tests::node;

    #[test]
    fn a_plan_leaves_nothing_of_the_one_before() {
        let mut node = node("w-1", false);
        for name in ["kubelet", "haproxy"] {
            node.annotations.insert(annotations::desired_version(&name.parse().unwrap()), "1".into());
        }
        let target = Plan::new([("kubelet".parse().unwrap(), "2".parse().unwrap())].into());
        let patch = plan(&node, &target);
        assert_eq!(patch["alpha.kubelet.caos.ch/desired-version"], "2");
        assert_eq!(patch["alpha.haproxy.caos.ch/desired-version"], Value::Null);
        assert_eq!(patch[PERMITTED_PLAN], Value::Null);
        assert_eq!(patch.as_object().unwrap().len(), 4);
        assert_eq!(patch["alpha.node.caos.ch/plan"], target.id().as_str());
        node.annotations.insert(annotations::CHANGES_ALLOWED.into(), "true".into());
        assert_eq!(plan(&node, &target)[PERMITTED_PLAN], target.id().as_str());
    }

    /// As the API server merges it.
    fn merged(mut node: NodeView, patch: &Value) -> NodeView {
        let metadata = &patch["metadata"];
        for (map, values) in
            [(&mut node.annotations, &metadata["annotations"]), (&mut node.labels, &metadata["labels"])]
        {
            for (key, value) in values.as_object().into_iter().flatten() {
                match value.as_str() {
                    Some(text) => drop(map.insert(key.clone(), text.to_owned())),
                    None => drop(map.remove(key)),
                }
            }
        }
        if let Some(cordoned) = patch.pointer("/spec/unschedulable") {
            node.cordoned = *cordoned == true;
        }
        node
    }

    /// However it is taken away: the next cordon may be a person's.
    #[test]
    fn a_mark_goes_with_the_permit_or_alone_if_a_person_lifted_the_cordon() {
        let plain = node("w-1", false);
        let permit = |allowed: &str| {
            [(annotations::CHANGES_ALLOWED.to_owned(), Value::from(allowed))].into_iter().collect()
        };
        for exclude in [false, true] {
            let away = merged(plain.clone(), &cordon(&plain, "rollout/x", exclude));
            let kept = merged(away.clone(), &withdraw(&away, permit("false")));
            assert!(kept.cordoned && kept.annotations.contains_key(CORDONED_BY), "{kept:?}");
            assert_eq!(kept.labels, away.labels);
            let lifted = NodeView { cordoned: false, ..away };
            assert_eq!(merged(lifted.clone(), &unmark(&lifted)), plain);
            let mut withdrawn = merged(lifted.clone(), &withdraw(&lifted, permit("false")));
            assert_eq!(withdrawn.annotations.remove(annotations::CHANGES_ALLOWED).as_deref(), Some("false"));
            assert_eq!(withdrawn, plain);
        }
    }

    #[test]
    fn load_balancers_get_a_node_back_as_it_was() {
        let plain = node("w-1", false);
        let mut foreign = plain.clone();
        foreign.labels.insert(EXCLUDE.into(), OURS.into());
        for (before, exclude, excluded) in
            [(&plain, false, false), (&plain, true, true), (&foreign, true, true), (&foreign, false, true)]
        {
            let away = merged(before.clone(), &cordon(before, "rollout/x", exclude));
            assert!(away.cordoned && away.labels.contains_key(EXCLUDE) == excluded, "{away:?}");
            // A second time changes nothing, and the end is the same if the policy changed meanwhile.
            let again = merged(away.clone(), &cordon(&away, "rollout/x", exclude));
            assert_eq!(again, away);
            assert_eq!(merged(away.clone(), &uncordon(&away)), *before);
        }
        // A person made it theirs meanwhile.
        let mut away = merged(plain.clone(), &cordon(&plain, "rollout/x", true));
        away.labels.insert(EXCLUDE.into(), "disk".into());
        assert!(merged(away.clone(), &uncordon(&away)).labels.contains_key(EXCLUDE));
    }
}
