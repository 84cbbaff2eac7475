//! Who may write what: each row is one write and the answer to it.

use common::annotations::{CHANGES_ALLOWED, CORDONED_BY, PAUSED, PLAN, PLAN_OBSERVED, READY, STATE};
use serde_json::{Value, json};

use crate::fixture::{
    BY_AGENT_KEYS, BY_NODE_RESTRICTION, BY_NODE_WRITES, BY_PERMIT_VALUE, BY_RIGHTS, KUBELETS,
    Verdict::{self, Allowed},
    Who::{self, Admin, Alice, Infrop, N1, N2, N9, NamedN1, Stray},
    Write::{self, Apply, Create, Delete, Merge, Put, PutStatus, Status},
    annotation, annotations, cordon, preset, status_annotation,
};

/// Who writes, what it means, the write, and the answer.
pub(crate) type Row = (Who, &'static str, Write, Verdict);

pub(crate) fn writes_of_nodes() -> Vec<Row> {
    let conditions = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "posting ready status",
        "lastHeartbeatTime": "2026-11-16T06:00:00Z", "lastTransitionTime": "2026-11-16T06:00:00Z",
    }] } });
    let desired = "alpha.kubelet.caos.ch/desired-version";
    let current = "alpha.kubelet.caos.ch/current-version";
    let no_annotations = json!({ "metadata": { "annotations": null } });
    let register = json!({ "metadata": { "name": "n9", "annotations": { KUBELETS: "true" } } });
    let register_cordoned = json!({ "metadata": { "name": "n9" }, "spec": { "unschedulable": true } });
    vec![
        // What node-agent and kubelet need.
        (N1, "its own key", annotation("n1", READY, "true"), Allowed),
        (N1, "its own key through the status", status_annotation("n1", STATE, "{}"), Allowed),
        (N1, "its own key by apply", Apply("n1", annotations(READY, "true")), Allowed),
        (N1, "its own key by PUT", Put("n1", annotations(current, "1.37.1")), Allowed),
        (N1, "removes its own key", Merge("n1", annotations(READY, Value::Null)), Allowed),
        (N2, "the first annotation of a Node", annotation("n2", PLAN_OBSERVED, "x"), Allowed),
        (N1, "the kubelet's annotation", annotation("n1", KUBELETS, "true"), Allowed),
        (N1, "the same through the status", status_annotation("n1", KUBELETS, "true"), Allowed),
        (N1, "a key that looks a bit like ours", annotation("n1", "alpha.example.org/caos.ch", "x"), Allowed),
        (N1, "a heartbeat", Status("n1", conditions.clone()), Allowed),
        (N2, "a heartbeat without annotations", Status("n2", conditions.clone()), Allowed),
        (N1, "a heartbeat by PUT", PutStatus("n1", conditions), Allowed),
        (N1, "a label", Merge("n1", json!({ "metadata": { "labels": { "test": "x" } } })), Allowed),
        (N9, "registers", Create(register), Allowed),
        (N9, "registers cordoned", Create(register_cordoned), Allowed),
        (N9, "registers with its own key", preset("n9", READY, "false"), Allowed),
        (N2, "cordons itself", Merge("n2", cordon(true)), Allowed),
        (N1, "stays cordoned", Merge("n1", cordon(true)), Allowed),
        // Not its keys.
        (N1, "gives itself the permit", annotation("n1", CHANGES_ALLOWED, "true"), BY_NODE_WRITES),
        (N1, "the same through the status", status_annotation("n1", CHANGES_ALLOWED, "true"), BY_NODE_WRITES),
        (N1, "the same by apply", Apply("n1", annotations(CHANGES_ALLOWED, "true")), BY_NODE_WRITES),
        (N1, "the same by PUT", Put("n1", annotations(CHANGES_ALLOWED, "true")), BY_NODE_WRITES),
        (N1, "the same by PUT of the status", PutStatus("n1", annotations(PLAN, "x")), BY_NODE_WRITES),
        (N2, "the first annotation is the permit", annotation("n2", CHANGES_ALLOWED, "true"), BY_NODE_WRITES),
        (N1, "ends the pause", Merge("n1", annotations(PAUSED, Value::Null)), BY_NODE_WRITES),
        (N1, "the same through the status", Status("n1", annotations(PAUSED, Value::Null)), BY_NODE_WRITES),
        (N1, "removes all annotations", Merge("n1", no_annotations.clone()), BY_NODE_WRITES),
        (N1, "the same through the status", Status("n1", no_annotations.clone()), BY_NODE_WRITES),
        (N1, "the same by PUT", Put("n1", no_annotations), BY_NODE_WRITES),
        (N1, "a version to reach", annotation("n1", desired, "1"), BY_NODE_WRITES),
        (N1, "one in capitals", annotation("n1", "alpha.X.caos.ch/desired-version", "1"), BY_NODE_WRITES),
        (
            N1,
            "its own key and another",
            Merge(
                "n1",
                json!({ "metadata": { "annotations": {
            READY: "true", CORDONED_BY: "x",
        } } }),
            ),
            BY_NODE_WRITES,
        ),
        (N9, "registers with the permit", preset("n9", CHANGES_ALLOWED, "true"), BY_NODE_WRITES),
        (N9, "registers with a plan", preset("n9", PLAN, "x"), BY_NODE_WRITES),
        (Stray, "a permit", annotation("n2", CHANGES_ALLOWED, "true"), BY_NODE_WRITES),
        // Not its cordon.
        (N1, "uncordons itself", Merge("n1", cordon(false)), BY_NODE_WRITES),
        (N1, "the same by removing the field", Merge("n1", cordon(Value::Null)), BY_NODE_WRITES),
        (N1, "the same by PUT", Put("n1", cordon(Value::Null)), BY_NODE_WRITES),
        (N1, "would come back without a cordon", Delete("n1"), BY_RIGHTS),
        (Stray, "uncordons", Merge("n1", cordon(false)), BY_NODE_WRITES),
        // Not its Node.
        (N2, "another node's key", annotation("n1", READY, "true"), BY_NODE_RESTRICTION),
        (N2, "the same through the status", status_annotation("n1", READY, "true"), BY_NODE_RESTRICTION),
    ]
}

pub(crate) fn writes_of_others() -> Vec<Row> {
    let current = "alpha.kubelet.caos.ch/current-version";
    let no_annotations = json!({ "metadata": { "annotations": null } });
    let label = json!({ "metadata": { "labels": { "test": "x" } } });
    let register = json!({ "metadata": { "name": "n9", "annotations": { PAUSED: "not yet" } } });
    let mut rows = vec![
        // What infrop and people need.
        (Infrop, "permits", annotation("n1", CHANGES_ALLOWED, "true"), Allowed),
        (Infrop, "permits by apply", Apply("n2", annotations(CHANGES_ALLOWED, "true")), Allowed),
        (Infrop, "withdraws the permit", Merge("n1", annotations(CHANGES_ALLOWED, Value::Null)), Allowed),
        (
            Infrop,
            "writes a plan",
            Merge(
                "n2",
                json!({ "metadata": { "annotations": {
            PLAN: "0123456789ab", "alpha.kubelet.caos.ch/desired-version": "1.37.1",
        } } }),
            ),
            Allowed,
        ),
        (
            Infrop,
            "cordons",
            Merge(
                "n2",
                json!({
                    "metadata": { "annotations": { CORDONED_BY: "r1" } }, "spec": { "unschedulable": true },
                }),
            ),
            Allowed,
        ),
        (Infrop, "uncordons", Merge("n1", cordon(false)), Allowed),
        (Admin, "uncordons", Merge("n1", cordon(Value::Null)), Allowed),
        (Admin, "pauses", annotation("n1", PAUSED, "power work"), Allowed),
        (Admin, "ends a pause", Merge("n1", annotations(PAUSED, Value::Null)), Allowed),
        (Admin, "makes a Node that is paused", Create(register), Allowed),
        (Admin, "a full update that carries the keys", Put("n1", label.clone()), Allowed),
        (Alice, "the same by an ordinary user", Put("n1", label.clone()), Allowed),
        (Alice, "the same through the status", PutStatus("n1", label), Allowed),
        (NamedN1, "an annotation of someone else", annotation("n1", "test", "x"), Allowed),
        (Admin, "removes the Node", Delete("n1"), Allowed),
        // A permit that would not be one.
        (Infrop, "half a permit", annotation("n1", CHANGES_ALLOWED, "yes"), BY_PERMIT_VALUE),
        (
            Infrop,
            "the same through the status",
            status_annotation("n1", CHANGES_ALLOWED, ""),
            BY_PERMIT_VALUE,
        ),
        (Admin, "a Node with one", preset("n9", CHANGES_ALLOWED, "True"), BY_PERMIT_VALUE),
    ];
    // What a node says, said by someone else.
    for who in [Admin, Infrop, Alice, NamedN1, Stray] {
        rows.extend([
            (who, "says ready", annotation("n1", READY, "true"), BY_AGENT_KEYS),
            (who, "says ready of an empty Node", annotation("n2", READY, "true"), BY_AGENT_KEYS),
            (who, "says so through the status", status_annotation("n1", READY, "true"), BY_AGENT_KEYS),
            (who, "says so by apply", Apply("n1", annotations(READY, "true")), BY_AGENT_KEYS),
            (who, "says so by PUT", Put("n1", annotations(STATE, "{}")), BY_AGENT_KEYS),
            (who, "says so by PUT of the status", PutStatus("n1", annotations(STATE, "{}")), BY_AGENT_KEYS),
            (who, "says so of a new Node", preset("n9", current, "1.37.1"), BY_AGENT_KEYS),
            (who, "forgets it", Merge("n1", annotations(READY, Value::Null)), BY_AGENT_KEYS),
            (
                who,
                "forgets it through the status",
                Status("n1", annotations(READY, Value::Null)),
                BY_AGENT_KEYS,
            ),
        ]);
    }
    for who in [Admin, Infrop, Alice, NamedN1] {
        rows.push((who, "forgets everything", Merge("n1", no_annotations.clone()), BY_AGENT_KEYS));
    }
    rows.push((N1, "says so of another", annotation("n2", READY, "true"), BY_NODE_RESTRICTION));
    rows
}
