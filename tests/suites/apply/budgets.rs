//! A drain that a budget holds until somebody lifts it.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use tests::{infrastructure::Infrastructure, lab::wait_for};
use tokio::io::{AsyncBufReadExt, BufReader};

const NAMESPACE: &str = "kube-system";
const DNS: &str = "k8s-app=kube-dns";

/// CoreDNS has two pods, and for a while both are needed.
pub(crate) async fn held_and_lifted(infrastructure: &Infrastructure) -> anyhow::Result<()> {
    let started = Instant::now();
    let client = infrastructure.client().await?;
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE);
    let budget = serde_json::from_value(json!({
        "metadata": { "name": "dns" },
        "spec": { "minAvailable": 2, "selector": { "matchLabels": { "k8s-app": "kube-dns" } } },
    }))?;
    budgets.create(&PostParams::default(), &budget).await?;
    wait_for(Duration::from_mins(1), "the budget counts both", async || {
        let status = budgets.get("dns").await?.status;
        Ok(status.is_some_and(|status| status.current_healthy == 2))
    })
    .await?;
    let pods = Api::<Pod>::namespaced(client, NAMESPACE);
    let dns = pods.list(&ListParams::default().labels(DNS)).await?;
    let node = dns.iter().find_map(|pod| pod.spec.as_ref()?.node_name.clone()).context("no CoreDNS")?;

    let mut drain = infrastructure.start(&["node", "drain", &node])?;
    let mut lines = BufReader::new(drain.stderr.take().context("no stderr")?).lines();
    let held = async {
        while let Some(line) = lines.next_line().await? {
            if line.contains("budget kube-system/dns needs 2 healthy pods and has 2") {
                return Ok(());
            }
        }
        anyhow::bail!("it never said what holds it")
    };
    tokio::time::timeout(Duration::from_mins(1), held).await.context("it does not say what holds it")??;
    ensure!(drain.try_wait()?.is_none(), "it ended although it was held");
    budgets.delete("dns", &DeleteParams::default()).await?;
    // Somebody has to read what it says.
    let rest = async { while let Ok(Some(_)) = lines.next_line().await {} };
    let (ended, ()) = tokio::join!(tokio::time::timeout(Duration::from_mins(2), drain.wait()), rest);
    ensure!(ended.context("it goes on after the budget")??.success(), "the drain failed");
    infrastructure.insist(&["node", "drain", &node, "--undo"]).await?;
    eprintln!("a drain that a budget held: {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}
