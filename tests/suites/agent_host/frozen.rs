//! An agent that hangs.

use std::time::Duration;

use anyhow::ensure;
use tests::{
    agent::{install, wait_for_phase},
    lab::{TestLab, wait_for},
    repository,
};

use crate::PATIENCE;

/// The unit's own takes minutes to be seen at work. Still long enough for an agent on a busy machine to be heard in time.
const WATCHDOG: Duration = Duration::from_secs(10);

async fn restarts(lab: &TestLab) -> anyhow::Result<u32> {
    let text = lab.run("a", "systemctl show node-agent --property=NRestarts --value").await?;
    Ok(text.trim().parse()?)
}

/// systemd notices, and starts it again: once, for the next one works. One that only rests does not look like that.
pub(crate) async fn started_again() -> anyhow::Result<()> {
    TestLab::with("agent-frozen", &["a"], async |lab| {
        let shorter = format!(
            "mkdir --parents /etc/systemd/system/node-agent.service.d\n\
             printf '[Service]\\nWatchdogSec={}\\n' > /etc/systemd/system/node-agent.service.d/watchdog.conf",
            WATCHDOG.as_secs()
        );
        lab.run("a", &shorter).await?;
        install(lab, "a", "", &repository::metadata("a", "{}")).await?;
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        tokio::time::sleep(WATCHDOG * 2).await;
        ensure!(restarts(lab).await? == 0, "it was started again although nothing was wrong");

        lab.run("a", "systemctl kill --kill-whom=main --signal=STOP node-agent").await?;
        wait_for(WATCHDOG * 2, "systemd starts it again", async || Ok(restarts(lab).await? > 0)).await?;
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        lab.run("a", "journalctl --unit node-agent --output cat | grep 'Watchdog timeout'").await?;
        tokio::time::sleep(WATCHDOG * 2).await;
        ensure!(restarts(lab).await? == 1, "it was started again more than once");
        Ok(())
    })
    .await
}
