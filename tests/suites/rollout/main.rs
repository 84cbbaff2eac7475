//! T4: a cluster goes from one Kubernetes version to the next by annotations, under load, while things go wrong.

use std::{process::ExitCode, time::Duration};

use anyhow::ensure;
use tests::{
    harness::{Case, Tier, suite},
    rolling::{Fault, cordon, hold_all, restart_workers, upgrade, with_cluster},
};

/// The node that a person cordoned.
const FOREIGN: &str = "w-3";

fn main() -> ExitCode {
    suite([Case::new(
        Tier::T4,
        "three_control_planes_and_three_workers_go_to_the_next_version",
        Duration::from_mins(40),
        under_load,
    )])
}

async fn under_load() -> anyhow::Result<()> {
    with_cluster("roll", async |infrastructure, client| {
        upgrade(infrastructure, client, &[Fault::Kills(3), Fault::Cordon(FOREIGN)]).await?;
        cordon(client, FOREIGN, false).await?;
        let faults = [Fault::PowerCut("w-1"), Fault::Package("w-2"), Fault::Budget("w-3")];
        restart_workers(infrastructure, client, &faults).await?;

        // A budget that can never be met is named before anything is begun.
        hold_all(client).await?;
        infrastructure.edit("kubernetes: 1.37.1", "kubernetes: 1.37.1, versions: { reboot: once }")?;
        let plan = infrastructure.run(&["plan"]).await?;
        ensure!(plan.stdout.contains("default/web"), "the plan does not name what would hold it: {plan:?}");
        Ok(())
    })
    .await
}
