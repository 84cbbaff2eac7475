//! A worker that lives but that ssh does not reach is restarted by its provider, unless someone else is at work.

use std::time::Instant;

use anyhow::{Context, ensure};
use infrop::writer::{Holding, LeaseRecord, Record};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use tests::infrastructure::Infrastructure;

/// Who has the record while others want it.
const OTHER: &str = "the test";

pub(crate) async fn unreachable(infrastructure: &Infrastructure, name: &str) -> anyhow::Result<()> {
    let client = infrastructure.client().await?;
    let nodes = Api::<Node>::all(client.clone());
    let before = boot(&nodes.get(name).await?);
    let lab = infrastructure.lab()?;
    lab.ssh(&name.parse()?).arg("systemctl stop ssh.socket ssh.service").run().await?;
    let refused = infrastructure.run(&["node", "reboot", name]).await?;
    ensure!(refused.code == 1 && refused.stderr.contains("--force switches it off and on"), "{refused:?}");

    let mut other =
        Holding::acquire(Box::new(LeaseRecord::new(client.clone())), OTHER, false, &|_| ()).await?;
    tokio::select! {
        lost = other.keep() => return Err(lost.into()),
        told = others_are_told(infrastructure, name) => told?,
    }
    other.release().await;

    let started = Instant::now();
    infrastructure.insist(&["node", "reboot", name, "--force"]).await?;
    eprintln!("{name} was switched off and on: {:.1} s", started.elapsed().as_secs_f64());
    let node = nodes.get(name).await?;
    ensure!(boot(&node) != before, "it is in the same boot");
    is_open(&node)?;

    // In order, now that ssh reaches it again.
    let (before, started) = (boot(&node), Instant::now());
    let said = infrastructure.insist(&["node", "reboot", name]).await?;
    ensure!(said.contains(&format!("{name} was restarted.")), "{said}");
    eprintln!("{name} was restarted: {:.1} s", started.elapsed().as_secs_f64());
    let node = nodes.get(name).await?;
    ensure!(boot(&node) != before, "it is in the same boot");
    is_open(&node)?;
    let entry = LeaseRecord::new(client).read().await?.entry.context("no record")?;
    ensure!(entry.holder.is_empty(), "{} still has the record", entry.holder);
    Ok(())
}

/// Pods may come.
pub(crate) fn is_open(node: &Node) -> anyhow::Result<()> {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let marked = node.annotations().contains_key(common::annotations::CORDONED_BY);
    ensure!(!cordoned && !marked, "{} is still cordoned", node.name_any());
    Ok(())
}

/// While someone is at work, others who want to are told who is; a pause is heard.
async fn others_are_told(infrastructure: &Infrastructure, name: &str) -> anyhow::Result<()> {
    for words in [&["node", "drain", "worker-1"][..], &["node", "reboot", name, "--force"]] {
        let ended = infrastructure.run(words).await?;
        ensure!(ended.code == 5 && ended.stderr.contains(&format!("{OTHER} is at work since")), "{ended:?}");
    }
    infrastructure.insist(&["pause", "--node", "worker-1", "--reason", "lunch"]).await?;
    infrastructure.insist(&["resume", "--node", "worker-1"]).await?;
    Ok(())
}

fn boot(node: &Node) -> Option<String> {
    Some(node.status.as_ref()?.node_info.as_ref()?.boot_id.clone())
}
