//! Something that people would miss: a web server of three, of which two have to be there.

use std::time::Duration;

use crate::lab::wait_for;
use anyhow::Context;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

const NAMESPACE: &str = "default";
const NAME: &str = "web";

/// CoreDNS as a web server: it is the only image of a bundle that can be one.
pub const IMAGE: &str = "registry.k8s.io/coredns/coredns:v1.14.2";

/// The port on every node.
pub const NODE_PORT: u16 = 30080;

/// Starts it and waits until it is there.
pub async fn start(client: &kube::Client) -> anyhow::Result<()> {
    let post = PostParams::default();
    let labels = json!({ "app": NAME });
    let configuration: ConfigMap = serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "data": { "Corefile": ".:5353 {\n  health :8080 {\n    lameduck 5s\n  }\n}\n" },
    }))?;
    Api::namespaced(client.clone(), NAMESPACE).create(&post, &configuration).await?;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "spec": {
            "replicas": 3,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "containers": [{
                        "name": NAME, "image": IMAGE, "args": ["-conf", "/etc/web/Corefile"],
                        "imagePullPolicy": "IfNotPresent",
                        "readinessProbe": { "httpGet": { "path": "/health", "port": 8080 }, "periodSeconds": 1 },
                        // Until every node knows that it is gone, it answers.
                        "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } },
                        "volumeMounts": [{ "name": "configuration", "mountPath": "/etc/web" }],
                    }],
                    "volumes": [{ "name": "configuration", "configMap": { "name": NAME } }],
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": { "matchLabels": labels },
                    }],
                },
            },
        },
    }))?;
    Api::namespaced(client.clone(), NAMESPACE).create(&post, &deployment).await?;
    let service: Service = serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "spec": {
            "type": "NodePort", "selector": labels,
            "ports": [{ "port": 80, "targetPort": 8080, "nodePort": NODE_PORT }],
        },
    }))?;
    Api::namespaced(client.clone(), NAMESPACE).create(&post, &service).await?;
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "spec": { "minAvailable": 2, "selector": { "matchLabels": labels } },
    }))?;
    Api::namespaced(client.clone(), NAMESPACE).create(&post, &budget).await?;
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    wait_for(Duration::from_mins(2), "the web server is there", async || {
        let status = deployments.get(NAME).await?.status.context("no status")?;
        Ok(status.ready_replicas == Some(3))
    })
    .await
}

/// From now on all of them have to be there, so that none may go.
pub async fn hold_all(client: &kube::Client) -> anyhow::Result<()> {
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "spec": { "minAvailable": 3 } }));
    budgets.patch(NAME, &PatchParams::default(), &patch).await?;
    wait_for(Duration::from_mins(1), "the budget counts three", async || {
        Ok(budgets.get(NAME).await?.status.is_some_and(|status| status.disruptions_allowed == 0))
    })
    .await
}
