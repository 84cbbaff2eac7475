//! Restarts that do not help, and restarts that someone does not want now.

use std::time::Duration;

use anyhow::ensure;
use tests::{
    agent::{install, wait_for_phase},
    lab::TestLab,
    repository::{self, Offer},
};

use crate::PATIENCE;

/// A kernel that this computer never boots: hosts of a lab run on the computer's own.
const KERNEL: Offer = Offer { name: "linux-image-amd64", version: "9.9-1", postinst: "", noise: None };

pub(crate) async fn ineffective() -> anyhow::Result<()> {
    TestLab::with("agent-kernel", &["a"], async |lab| {
        repository::deliver(lab, "a", &[KERNEL]).await?;
        install(lab, "a", "", &repository::metadata("a", "{ kernel: 9.9-1 }")).await?;
        wait_for_phase(lab, "a", PATIENCE, "Quarantined", "RebootIneffective").await?;
        let boots = lab.lab().status().await?.hosts.first().map(|host| host.boots);
        ensure!(boots == Some(2), "{boots:?} boots");
        Ok(())
    })
    .await
}

pub(crate) async fn inhibited() -> anyhow::Result<()> {
    TestLab::with("agent-inhibited", &["a"], async |lab| {
        lab.run(
            "a",
            "systemd-run --unit=busy systemd-inhibit --what=shutdown --who=backup --why=busy sleep 1000",
        )
        .await?;
        let before = lab.boot_id("a").await?;
        install(lab, "a", "", &repository::metadata("a", "{ reboot: now }")).await?;
        let status = wait_for_phase(lab, "a", PATIENCE, "Waiting", "RebootInhibited").await?;
        let message = status.pointer("/service/state/message").map(ToString::to_string).unwrap_or_default();
        ensure!(message.contains("backup: busy"), "{message}");
        // It waits for one reason, since one moment, however often it looks.
        let since = status.pointer("/service/state/since").cloned();
        tokio::time::sleep(Duration::from_secs(20)).await;
        let status = wait_for_phase(lab, "a", PATIENCE, "Waiting", "RebootInhibited").await?;
        ensure!(status.pointer("/service/state/since").cloned() == since, "{status}");
        ensure!(lab.boot_id("a").await? == before);
        lab.run("a", "systemctl stop busy").await?;
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        ensure!(lab.boot_id("a").await? != before);
        Ok(())
    })
    .await
}
