//! Nodes as kubelets make them, each with a pod of a `DaemonSet` that is well.

use common::{
    annotations::{CHANGES_ALLOWED, write_plan},
    plan::Plan,
};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, Node, Pod},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::START_LIMIT;
use crate::lab::wait_for;

/// What all of them have.
pub(super) const KUBERNETES: &str = "1.37.1";

const NAMESPACE: &str = "kube-system";
const DAEMON_SET: &str = "network";

/// A kubelet tells of up to 50 images, which would make most of a Node's size, and of an API server's work with it.
const IMAGES: u32 = 10;

/// The boot a host is in.
pub(super) fn boot(name: &str) -> String {
    format!("boot of {name}")
}

/// Makes what all Nodes share.
pub(super) async fn prepare(client: &Client) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    wait_for(START_LIMIT, "the API server has made its namespaces", async || {
        Ok(namespaces.get_opt(NAMESPACE).await?.is_some())
    })
    .await?;
    let set: DaemonSet = serde_json::from_value(json!({
        "metadata": { "name": DAEMON_SET },
        "spec": {
            "selector": { "matchLabels": { "app": DAEMON_SET } },
            "template": { "metadata": { "labels": { "app": DAEMON_SET } }, "spec": containers() },
        },
    }))?;
    Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &set).await?;
    Ok(())
}

fn containers() -> Value {
    json!({ "containers": [{ "name": "a", "image": "example.com/a" }] })
}

/// Makes a Node whose plan was reached long ago, and its pod.
pub(super) async fn make(client: &Client, name: &str, plan: &Plan) -> anyhow::Result<()> {
    let mut annotations = write_plan(plan);
    annotations.insert(CHANGES_ALLOWED.to_owned(), "false".to_owned());
    let node: Node = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64" },
            "annotations": annotations,
        },
        "status": status(name),
    }))?;
    Api::all(client.clone()).create(&PostParams::default(), &node).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut spec = containers();
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("nodeName".to_owned(), name.into());
    }
    let pod = format!("{DAEMON_SET}-{name}");
    let made = serde_json::from_value(json!({
        "metadata": {
            "name": pod,
            "labels": { "app": DAEMON_SET },
            "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": "DaemonSet", "name": DAEMON_SET, "uid": "u", "controller": true },
            ],
        },
        "spec": spec,
    }))?;
    pods.create(&PostParams::default(), &made).await?;
    let well = json!({ "status": {
        "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    pods.patch_status(&pod, &PatchParams::default(), &Patch::Merge(well)).await?;
    Ok(())
}

fn status(name: &str) -> Value {
    let quantities = json!({ "cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "200Gi" });
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": format!("kubelet says {reason}"),
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let images: Vec<Value> = (0..IMAGES)
        .map(|number| {
            let image = format!("example.com/images/of-some-length/{number}");
            let digest = format!("{number:064x}");
            json!({ "names": [format!("{image}@sha256:{digest}"), format!("{image}:v1.0.{number}")],
                "sizeBytes": 100_000_000 - number })
        })
        .collect();
    json!({
        "capacity": quantities,
        "allocatable": quantities,
        "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }, { "type": "Hostname", "address": name }],
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            condition("Ready", "True", "KubeletReady"),
        ],
        "images": images,
        "nodeInfo": {
            "machineID": name, "systemUUID": name, "bootID": boot(name), "kernelVersion": "6.12.0-1-amd64",
            "osImage": "Debian GNU/Linux 13 (trixie)", "containerRuntimeVersion": "containerd://2.4.1",
            "kubeletVersion": format!("v{KUBERNETES}"), "kubeProxyVersion": "", "operatingSystem": "linux",
            "architecture": "amd64",
        },
    })
}
