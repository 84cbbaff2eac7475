//! What the agent asks of the API server: little, only about itself, and at rest nothing.

use std::time::Duration;

use anyhow::{Context, ensure};
use common::{
    annotations::is_agents,
    plan::Plan,
    state::{Phase, Reason},
};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tests::audit::Request;

use crate::fixture::{Fixture, HAPROXY, NODE, plan};

/// Long enough for anything that happens every few seconds.
const REST: Duration = Duration::from_secs(20);

pub(crate) async fn it_asks_for_little() -> anyhow::Result<()> {
    let fixture = Fixture::idle("").await?;
    // Everything that makes it ask for something: a plan, a refused plan of Kubernetes, a restart.
    let kubelet = Plan::new([("kubelet".parse()?, "1.99.0".parse()?)].into());
    fixture.permit(&kubelet).await?;
    fixture.wait_for_state(Phase::Refused, Reason::SkewNewerThanApiServer).await?;
    let version = fixture.agent.deliver(HAPROXY, "one\n")?;
    let plan = plan(&[(HAPROXY, &version)])?;
    fixture.permit(&plan).await?;
    fixture.wait_until_at(&plan).await?;
    fixture.wait_for_state(Phase::Idle, Reason::UpToDate).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for request in fixture.requests()? {
        ensure!(is_allowed(&request), "it asked {request:?}");
        let code = request.response_status.as_ref().map_or(0, |status| status.code);
        ensure!((200..300).contains(&code), "{code} for {request:?}");
    }
    for write in fixture.writes()? {
        let foreign = write.annotations.keys().find(|key| !is_agents(key));
        ensure!(foreign.is_none(), "it writes {foreign:?}");
        let object = write.request.request_object.as_ref().context("a patch has a body")?;
        let metadata = object.pointer("/metadata").and_then(|metadata| metadata.as_object());
        let only = object.as_object().is_some_and(|object| object.len() == 1);
        ensure!(only && metadata.is_some_and(|metadata| metadata.len() == 1), "it writes {object}");
    }

    let earlier = fixture.requests()?.len();
    let calls = fixture.agent.calls().len();
    // A kubelet tells of itself all the time, and others write on Nodes, too.
    for beat in 0..4 {
        tokio::time::sleep(REST / 4).await;
        let patch =
            Patch::Merge(json!({ "metadata": { "annotations": { "example.com/beat": beat.to_string() } } }));
        fixture.nodes.patch(NODE, &PatchParams::default(), &patch).await?;
    }
    let requests = fixture.requests()?;
    ensure!(requests.len() == earlier, "at rest it asked {:?}", requests.get(earlier..));
    ensure!(fixture.agent.calls().len() == calls, "at rest it ran {:?}", fixture.agent.calls().get(calls..));
    let count = |stage: &str| {
        requests.iter().filter(|request| request.verb == "watch" && request.stage == stage).count()
    };
    let open = count("ResponseStarted") - count("ResponseComplete").min(count("ResponseStarted"));
    ensure!(open == 1, "{open} watches are open");
    Ok(())
}

/// Whether an agent may ask this at all.
fn is_allowed(request: &Request) -> bool {
    let Some(object) = &request.object_ref else { return false };
    let path = request.uri.split('?').next().unwrap_or_default();
    match (request.verb.as_str(), object.resource.as_str(), object.name.as_str()) {
        ("watch", "nodes", name) => {
            let selector = format!("fieldSelector=metadata.name%3D{NODE}");
            path == "/api/v1/nodes"
                && (name.is_empty() || name == NODE)
                && request.uri.split(['?', '&']).any(|part| part == selector)
        }
        ("get" | "patch", "nodes", name) => name == NODE && object.subresource.is_empty(),
        ("get", "configmaps", "kubeadm-config") => path.starts_with("/api/v1/namespaces/kube-system/"),
        _ => false,
    }
}
