//! Whose a cordon is, by what a real API server remembers of its writers.

use anyhow::ensure;
use common::annotations::CORDONED_BY;
use infrop::cluster::{Cordon, cordon, list, uncordon};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tests::api_server::ApiServer;

const NODE: &str = "w-1";
const MARK: &str = "rollout/x";

/// A person lifts a cordon and later makes their own: the mark of the first one does not make it anybody else's.
pub(crate) async fn a_persons_cordon_stays_theirs() -> anyhow::Result<()> {
    let server = ApiServer::start().await?;
    let client = server.admin().await?;
    let nodes = Api::<Node>::all(client.clone());
    // Writers are kept of objects that had something to keep when they were made.
    let labels = json!({ "kubernetes.io/hostname": NODE });
    let node = serde_json::from_value(json!({ "metadata": { "name": NODE, "labels": labels } }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let name = NODE.parse()?;
    let ours = Cordon::Marked(MARK.to_owned());
    ensure!(cordon(&client, &name, MARK).await? == ours);
    // What others write meanwhile is no matter.
    write(&nodes, "kubectl-label", json!({ "metadata": { "labels": { "a": "b" } } })).await?;
    write(&nodes, "kubectl-cordon", json!({ "spec": { "unschedulable": true } })).await?;
    ensure!(
        cordon(&client, &name, "another").await? == ours && seen(&client).await?.as_deref() == Some(MARK)
    );
    ensure!(uncordon(&client, &name, |mark| mark == MARK).await? == Cordon::None);

    ensure!(cordon(&client, &name, MARK).await? == ours);
    write(&nodes, "kubectl-uncordon", json!({ "spec": { "unschedulable": null } })).await?;
    write(&nodes, "kubectl-cordon", json!({ "spec": { "unschedulable": true } })).await?;
    ensure!(nodes.get(NODE).await?.metadata.annotations.is_some_and(|all| all.contains_key(CORDONED_BY)));
    ensure!(seen(&client).await?.is_none(), "the mark is believed");
    ensure!(uncordon(&client, &name, |mark| mark == MARK).await? == Cordon::Foreign);
    ensure!(nodes.get(NODE).await?.spec.is_some_and(|spec| spec.unschedulable == Some(true)));
    Ok(())
}

async fn write(nodes: &Api<Node>, manager: &str, patch: Value) -> anyhow::Result<()> {
    let parameters = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    nodes.patch(NODE, &parameters, &Patch::Merge(patch)).await?;
    Ok(())
}

/// The mark as a rollout sees it.
async fn seen(client: &Client) -> anyhow::Result<Option<String>> {
    let nodes = list(client).await?;
    Ok(nodes.get(&NODE.parse()?).and_then(|node| node.annotations.get(CORDONED_BY).cloned()))
}
