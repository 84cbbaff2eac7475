//! A worker that lives but that ssh does not reach is restarted by its provider; whoever comes meanwhile hears of it.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{Api, ResourceExt};
use tests::{
    infrastructure::{Ended, Infrastructure},
    lab::wait_for,
};

pub(crate) async fn unreachable(infrastructure: &Infrastructure, name: &str) -> anyhow::Result<()> {
    let client = infrastructure.client().await?;
    let nodes = Api::<Node>::all(client.clone());
    let before = boot(&nodes.get(name).await?);
    let lab = infrastructure.lab()?;
    lab.ssh(&name.parse()?).arg("systemctl stop ssh.socket ssh.service").run().await?;
    let refused = infrastructure.run(&["node", "reboot", name]).await?;
    ensure!(refused.code == 1 && refused.stderr.contains("--force switches it off and on"), "{refused:?}");

    let started = Instant::now();
    let reboot = infrastructure.start(&["node", "reboot", name, "--force"])?;
    let leases = Api::<Lease>::namespaced(client, "kube-system");
    wait_for(Duration::from_secs(30), "the restart has the record", async || {
        let lease = leases.get_opt("infrop").await?.and_then(|lease| lease.spec);
        Ok(lease.and_then(|spec| spec.holder_identity).is_some())
    })
    .await?;
    // Two words of other people: one who wants to work is told who does, and a pause is heard at any time.
    let second = infrastructure.run(&["node", "drain", "w-1"]).await?;
    ensure!(second.code == 5 && second.stderr.contains("is at work since"), "{second:?}");
    ensure!(!nodes.get("w-1").await?.spec.and_then(|spec| spec.unschedulable).unwrap_or(false), "cordoned");
    infrastructure.insist(&["pause", "--node", "w-1", "--reason", "lunch"]).await?;
    infrastructure.insist(&["resume", "--node", "w-1"]).await?;

    let ended = Ended::of(&reboot.wait_with_output().await?);
    ensure!(ended.code == 0, "{ended:?}");
    eprintln!("{name} was switched off and on: {:.1} s", started.elapsed().as_secs_f64());
    let node = nodes.get(name).await?;
    ensure!(boot(&node) != before, "it is in the same boot");
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let marked = node.annotations().contains_key(common::annotations::CORDONED_BY);
    ensure!(!cordoned && !marked, "{name} is still cordoned");
    let lease = leases.get("infrop").await?.spec.context("no lease")?;
    ensure!(lease.holder_identity.is_none(), "the record is still held: {lease:?}");
    Ok(())
}

fn boot(node: &Node) -> Option<String> {
    Some(node.status.as_ref()?.node_info.as_ref()?.boot_id.clone())
}
