//! An API server that answers and does not take what the agent has to say.

use std::time::Duration;

use anyhow::{Context, ensure};
use common::{
    annotations::CHANGES_ALLOWED,
    state::{Phase, Reason},
};
use serde_json::{Value, json};
use tests::lab::wait_for;

use crate::fixture::{Fixture, HAPROXY, HAPROXY_FILE, permitted, plan};

/// The API server takes so many bytes of annotations, keys and values together.
const MOST: usize = 256 * 1024;

/// Somebody else's.
const FILLER: &str = "example.org/filler";

/// The agent tries again every 15 s.
const PATIENCE: Duration = Duration::from_secs(45);

/// As much as the Node still takes, beside annotations that are about to be written in the same patch.
async fn fill(fixture: &Fixture, with: Value) -> anyhow::Result<()> {
    let mut all: serde_json::Map<String, Value> =
        fixture.annotations().await?.into_iter().map(|(key, value)| (key, Value::String(value))).collect();
    let mut patch = with.as_object().context("annotations")?.clone();
    all.extend(patch.clone());
    let length = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let used: usize = all.iter().map(length).sum();
    patch.insert(FILLER.to_owned(), "x".repeat(MOST - used - FILLER.len()).into());
    fixture.annotate(Value::Object(patch)).await
}

async fn wait_until_refused(fixture: &Fixture) -> anyhow::Result<()> {
    let mut last = Value::Null;
    let waited = wait_for(PATIENCE, "the agent says that it is refused", async || {
        let output = fixture.agent.command(&["status", "-o", "json"])?;
        let status: Value = serde_json::from_slice(&output.stdout)?;
        last = status.pointer("/service/state").cloned().unwrap_or_default();
        Ok(last.pointer("/reason") == Some(&json!(Reason::ApiRefused)))
    });
    waited.await.with_context(|| format!("it says {last}, and its log\n{}", fixture.agent.log()))
}

/// A Node with no room for the agent's word: nothing is begun that cannot be told, and it is told when there is room.
pub(crate) async fn what_cannot_be_told_is_not_begun() -> anyhow::Result<()> {
    let (fixture, versions) = Fixture::idle_with("", &["one\n"]).await?;
    let goal = plan(&[(HAPROXY, versions.first().context("it was delivered")?)])?;
    fill(&fixture, json!(permitted(&goal))).await?;
    wait_until_refused(&fixture).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(fixture.agent.read(HAPROXY_FILE).is_none(), "it began what it could not tell");
    fixture.annotate(json!({ FILLER: null })).await?;
    fixture.wait_until_at(&goal).await?;
    ensure!(fixture.agent.read(HAPROXY_FILE).as_deref() == Some("one\n"));
    Ok(())
}

/// A report that is refused while there is nothing else to do comes when there is room, and not an hour later.
pub(crate) async fn a_refused_report_is_repeated() -> anyhow::Result<()> {
    let (fixture, versions) = Fixture::idle_with("", &["one\n"]).await?;
    let goal = plan(&[(HAPROXY, versions.first().context("it was delivered")?)])?;
    fixture.permit(&goal).await?;
    fixture.wait_until_at(&goal).await?;
    fixture.wait_for_state(Phase::Idle, Reason::UpToDate).await?;
    fill(&fixture, json!({ CHANGES_ALLOWED: "false" })).await?;
    // The host leaves its plan, which is seen when something is delivered, and takes more words.
    fixture.agent.write(HAPROXY_FILE, "by hand\n")?;
    fixture.agent.deliver(HAPROXY, "two\n")?;
    wait_until_refused(&fixture).await?;
    ensure!(fixture.state().await?.is_some_and(|state| state.reason == Reason::UpToDate), "there was room");
    fixture.annotate(json!({ FILLER: null })).await?;
    fixture.wait_for_state(Phase::Waiting, Reason::NoPermit).await?;
    ensure!(fixture.agent.read(HAPROXY_FILE).as_deref() == Some("by hand\n"));
    Ok(())
}
