//! Nodes of a real API server, and their agents, which are played: they do at once whatever they have a permit for.

use std::{collections::BTreeMap, time::Duration};

use common::{
    annotations::{self, CHANGES_ALLOWED, PLAN, PLAN_OBSERVED, READY, STATE},
    plan::Plan,
    state::{Phase, Reason, State},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

const BOOT: &str = "b1";

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// How often an agent looks.
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn plan(version: &str) -> anyhow::Result<Plan> {
    Ok(Plan::new([("thing".parse()?, version.parse()?)].into()))
}

/// What an agent says of a host that is at a plan.
pub(crate) fn at(plan: &Plan) -> anyhow::Result<BTreeMap<String, String>> {
    let state = State {
        phase: Phase::Idle,
        reason: Reason::UpToDate,
        message: String::new(),
        since: Timestamp::now(),
        attempt: 0,
        boot_id: BOOT.to_owned(),
        agent_version: "0.1.0".to_owned(),
    };
    let current =
        plan.desired.iter().map(|(name, version)| (annotations::current_version(name), version.to_string()));
    let said = [
        (READY.to_owned(), "true".to_owned()),
        (PLAN_OBSERVED.to_owned(), plan.id().to_string()),
        (STATE.to_owned(), serde_json::to_string(&state)?),
    ];
    Ok(current.chain(said).collect())
}

pub(crate) async fn annotate(
    nodes: &Api<Node>,
    name: &str,
    values: impl serde::Serialize,
) -> anyhow::Result<Node> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": values } }));
    Ok(nodes.patch(name, &PatchParams::default(), &patch).await?)
}

/// Makes a Node that is Ready and at a plan; a control plane if it is called `cp-…`.
pub(crate) async fn register(admin: &Client, name: &str, plan: &Plan) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(admin.clone());
    let role = if name.starts_with("cp-") { json!({ CONTROL_PLANE: "" }) } else { json!({}) };
    let node = serde_json::from_value(json!({ "metadata": { "name": name, "labels": role } }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let info = [
        "machineID",
        "systemUUID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ];
    let mut info: BTreeMap<&str, &str> = info.into_iter().map(|key| (key, "x")).collect();
    info.extend([("bootID", BOOT), ("kubeletVersion", "v1.37.1")]);
    let condition = json!({ "type": "Ready", "status": "True", "lastTransitionTime": Timestamp::now(),
        "lastHeartbeatTime": Timestamp::now(), "reason": "x", "message": "x" });
    let status = json!({ "status": { "nodeInfo": info, "conditions": [condition] } });
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    let mut values = at(plan)?;
    values.extend(annotations::write_plan(plan));
    annotate(&nodes, name, values).await?;
    Ok(())
}

/// Reaches each plan that it has a permit for; gives the Node as it was then.
pub(crate) async fn play_agent(admin: &Client, name: &str, target: &Plan) -> anyhow::Result<Node> {
    let nodes = Api::<Node>::all(admin.clone());
    loop {
        let node = nodes.get(name).await?;
        let has = |key: &str, value: &str| node.annotations().get(key).is_some_and(|found| found == value);
        if has(CHANGES_ALLOWED, "true") && has(PLAN, target.id().as_str()) {
            annotate(&nodes, name, at(target)?).await?;
            return Ok(node);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
