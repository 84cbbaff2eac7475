//! A drain that a budget holds until somebody lifts it.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use infrop::cluster::REMOVING;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::{infrastructure::Infrastructure, lab::wait_for};

use super::{course::Course, reboot::is_open};

const NAMESPACE: &str = "kube-system";
const DNS: &str = "k8s-app=kube-dns";

/// CoreDNS has two pods, and for a while both are needed.
pub(crate) async fn held_and_lifted(infrastructure: &Infrastructure) -> anyhow::Result<()> {
    let started = Instant::now();
    let client = infrastructure.client().await?;
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE);
    let budget = serde_json::from_value(json!({
        "metadata": { "name": "dns" },
        "spec": { "minAvailable": 2, "selector": { "matchLabels": { "k8s-app": "kube-dns" } } },
    }))?;
    budgets.create(&PostParams::default(), &budget).await?;
    wait_for(Duration::from_mins(1), "the budget counts both", async || {
        let status = budgets.get("dns").await?.status;
        Ok(status.is_some_and(|status| status.current_healthy == 2))
    })
    .await?;
    let nodes = Api::<Node>::all(client.clone());
    let pods = Api::<Pod>::namespaced(client, NAMESPACE);
    let dns = pods.list(&ListParams::default().labels(DNS)).await?;
    let node = dns.iter().find_map(|pod| pod.spec.as_ref()?.node_name.clone()).context("no CoreDNS")?;

    // Whoever does not want to wait leaves with ctrl-C, and is told how it stays and how to go on.
    for command in ["reboot", "drain"] {
        let held = held(infrastructure, command, &node).await?;
        held.signal(Signal::SIGINT)?;
        let ended = held.end().await?;
        let stays =
            format!("{node} stays cordoned; run the same command again to go on, or `infrop node drain");
        ensure!(ended.code == 130 && ended.stderr.contains(&stays), "{ended:?}");
        ensure!(is_open(&nodes.get(&node).await?).is_err(), "{node} is not cordoned");
    }
    let drain = held(infrastructure, "drain", &node).await?;
    budgets.delete("dns", &DeleteParams::default()).await?;
    let ended = drain.end().await?;
    ensure!(ended.code == 0, "the drain failed: {ended:?}");
    let answer: Value = serde_json::from_str(&ended.stdout)?;
    let says = |field: &str, value: Value| answer.get(field) == Some(&value);
    ensure!(says("node", node.clone().into()) && says("cordoned", true.into()), "{answer}");
    let evicted = answer.get("evicted").and_then(Value::as_array).context("no pods")?;
    let is_dns = |pod: &Value| pod.as_str().is_some_and(|pod| pod.starts_with("kube-system/coredns-"));
    ensure!(evicted.iter().any(is_dns), "{answer}");
    infrastructure.insist(&["node", "drain", &node, "--undo"]).await?;
    is_open(&nodes.get(&node).await?)?;
    eprintln!("a drain that a budget held: {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// A command that empties a node, and has said which budget holds it.
async fn held(infrastructure: &Infrastructure, command: &str, node: &str) -> anyhow::Result<Course> {
    let mut course = Course::start(infrastructure, &["node", command, node, "--events", "-o", "json"])?;
    let holds = "budget kube-system/dns needs 2 healthy pods and has 2";
    course.until_told(&format!("drain {node}"), "...", holds).await?;
    Ok(course)
}

/// A removal that pods hold is taken back when the host is wanted again.
pub(crate) async fn kept_after_all(infrastructure: &Infrastructure) -> anyhow::Result<()> {
    const NAME: &str = "worker-2";
    let client = infrastructure.client().await?;
    let (nodes, pods) = (Api::<Node>::all(client.clone()), Api::<Pod>::namespaced(client, NAMESPACE));
    // Nothing would make it again, so it is not evicted; that it has no image is no matter.
    let pod = serde_json::from_value(json!({
        "metadata": { "name": "alone" },
        "spec": {
            "nodeName": NAME,
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "none", "image": "none", "imagePullPolicy": "Never" }],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    infrastructure.edit("pool: worker, nodes: 2", "pool: worker, nodes: 1")?;
    let held = infrastructure.run(&["apply", "--yes"]).await?;
    ensure!(held.code == 3 && held.stderr.contains("kube-system/alone"), "{held:?}");
    let node = nodes.get(NAME).await?;
    let by = node.annotations().get(common::annotations::CORDONED_BY).map(String::as_str);
    ensure!(by == Some("infrop apply"), "{NAME} is cordoned by {by:?}");

    infrastructure.edit("pool: worker, nodes: 1", "pool: worker, nodes: 2")?;
    let planned = infrastructure.run(&["plan"]).await?;
    ensure!(planned.code == 2 && planned.stdout.contains(&format!("keep {NAME}")), "{planned:?}");
    infrastructure.insist(&["apply"]).await?;
    let node = nodes.get(NAME).await?;
    is_open(&node)?;
    ensure!(!node.annotations().contains_key(REMOVING), "{NAME} is still to go");
    pods.delete("alone", &DeleteParams::default()).await?;
    wait_for(Duration::from_mins(1), "the pod is gone", async || Ok(pods.get_opt("alone").await?.is_none()))
        .await?;
    Ok(())
}
