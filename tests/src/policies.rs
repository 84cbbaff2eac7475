//! The admission policies of `infrop manifests admission`, put into an API server.

use std::time::Duration;

use anyhow::{Context, ensure};
use common::annotations::{CHANGES_ALLOWED, PAUSED, READY};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams, ValidationDirective},
};
use serde::Deserialize;
use serde_json::json;

use crate::{api_server::ApiServer, infrop, lab::wait_for};

/// They take a moment until they are in force.
const IN_FORCE_LIMIT: Duration = Duration::from_mins(1);

/// What `infrop manifests admission | kubectl apply --server-side -f -` does.
pub async fn apply(admin: &Client) -> anyhow::Result<()> {
    let text = infrop()?.args(["manifests", "admission"]).run().await?;
    let mut applied = 0;
    for document in serde_yaml::Deserializer::from_str(&text) {
        let Some(object) = Option::<DynamicObject>::deserialize(document)? else { continue };
        let kind = object.types.as_ref().context("an object has a kind")?;
        let resource = ApiResource::from_gvk(&kind.try_into()?);
        let name = object.metadata.name.as_deref().context("an object has a name")?;
        let parameters =
            PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::apply("test") };
        Api::<DynamicObject>::all_with(admin.clone(), &resource)
            .patch(name, &parameters, &Patch::Apply(&object))
            .await
            .with_context(|| format!("apply {name}"))?;
        applied += 1;
    }
    ensure!(applied == 6, "three policies and their bindings, not {applied}");
    Ok(())
}

/// Applies them and waits until each of them refuses something.
pub async fn enforce(server: &ApiServer) -> anyhow::Result<()> {
    let admin = server.admin().await?;
    apply(&admin).await?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    for (client, key, value, policy) in [
        (admin.clone(), READY, "true", "infrop-agent-keys"),
        (admin, CHANGES_ALLOWED, "yes", "infrop-permit-value"),
        (server.node("probe").await?, PAUSED, "x", "infrop-node-writes"),
    ] {
        let nodes: Api<Node> = Api::all(client);
        let node = serde_json::from_value(
            json!({ "metadata": { "name": "probe", "annotations": { key: value } } }),
        )?;
        wait_for(IN_FORCE_LIMIT, &format!("{policy} is in force"), async || {
            let answer = nodes.create(&dry_run, &node).await;
            Ok(matches!(answer, Err(kube::Error::Api(status)) if status.message.contains(policy)))
        })
        .await?;
    }
    Ok(())
}
