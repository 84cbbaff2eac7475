//! Three control planes and three workers, 1.36 to 1.37, with all that may happen on the way.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use infrop::provider::lab::Lab;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use tests::{
    infrastructure::{Infrastructure, lab_document},
    kills::Random,
};

use super::{
    history::History,
    probe::{ApiProbe, WebProbe},
    workload,
};

const NAME: &str = "roll";
const NODES: [&str; 6] = ["cp-1", "cp-2", "cp-3", "w-1", "w-2", "w-3"];

/// The node that a person cordoned.
const FOREIGN: &str = "w-3";

/// How long the endpoint may be without an answer. Single calls may fail: it leaves an API server when that says it is not
/// ready, and calls under way there at that moment are cut off, the more of them the busier the machine is.
const API_SILENCE: Duration = Duration::from_secs(20);

/// infrop is killed this often, and an agent each time.
const KILLS: u32 = 3;

/// Between kills: shorter than a control plane takes.
const KILL_WITHIN: u64 = 60_000;

pub(crate) async fn under_load() -> anyhow::Result<()> {
    let text = lab_document(NAME, 3)
        .replace("pool: cp, nodes: 1 }", "pool: cp, nodes: 3 }\n  endpoint: { host: 10.88.0.5 }")
        .replace("kubernetes: 1.37.1", "kubernetes: 1.36.4")
        + "rollout: { maxUnavailable: 2, soakSeconds: 3, drain: { timeoutSeconds: 20 } }\n";
    Infrastructure::new(NAME, &text)?
        .with(async |infrastructure| {
            let started = Instant::now();
            infrastructure.insist(&["apply"]).await?;
            eprintln!("from nothing to 3 + 3: {:.1} s", started.elapsed().as_secs_f64());
            let client = infrastructure.client().await?;
            workload::start(&client, "registry.k8s.io/coredns/coredns:v1.14.2").await?;
            cordon(&client, FOREIGN).await?;

            let (history, api) =
                (History::start(client.clone()), ApiProbe::start(infrastructure.kube_config().await?));
            let lab = infrastructure.lab()?;
            let web = WebProbe::start(lab.network_namespace().await?, web_addresses(&lab)?);
            infrastructure.edit("1.36.4", "1.37.1")?;
            // What it would do is said before.
            let plan = infrastructure.run(&["plan"]).await?;
            ensure!(plan.code == 2 && plan.stdout.contains("permit changes on cp-1"), "{plan:?}");
            let started = Instant::now();
            with_kills(infrastructure, &lab).await?;
            eprintln!("to the next version, with {KILLS} kills: {:.1} s", started.elapsed().as_secs_f64());

            eprintln!("{}", web.tally.summary("the workload"));
            eprintln!("{}", api.tally.summary("the API"));
            web.tally.insist()?;
            ensure!(api.tally.longest_silence() < API_SILENCE, "the endpoint was away for too long");
            let moments = history.check(2, FOREIGN, "v1.37.1")?;
            eprintln!("{moments} states of Nodes, none against a rule");
            drop((history, api, web));
            versions(&client).await?;
            let again = infrastructure.insist(&["apply"]).await?;
            ensure!(again.contains("Nothing to do"), "{again}");

            held(infrastructure, &client).await
        })
        .await
}

async fn cordon(client: &kube::Client, name: &str) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    Api::<Node>::all(client.clone()).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The workload on every node's own address.
fn web_addresses(lab: &Lab) -> anyhow::Result<Vec<SocketAddr>> {
    let hosts = lab.definition()?.hosts;
    Ok(hosts.iter().map(|host| SocketAddr::new(host.address.into(), workload::NODE_PORT)).collect())
}

/// Applies, with infrop and agents killed at random moments, and then to the end.
async fn with_kills(infrastructure: &Infrastructure, lab: &Lab) -> anyhow::Result<()> {
    let mut random = Random::new()?;
    for _ in 0..KILLS {
        let mut child = infrastructure.start(&["apply"])?;
        tokio::time::sleep(Duration::from_millis(random.below(KILL_WITHIN))).await;
        let at_work = child.try_wait()?.is_none();
        child.kill().await.context("cannot kill infrop")?;
        let victim = NODES.get(usize::try_from(random.below(NODES.len() as u64))?).copied().unwrap_or("cp-1");
        lab.ssh(&victim.parse()?).arg("systemctl kill --signal=KILL node-agent").run().await?;
        eprintln!(
            "killed infrop{}, and node-agent on {victim}",
            if at_work { "" } else { ", which had ended" }
        );
    }
    let end = infrastructure.insist(&["apply"]).await?;
    eprintln!("{end}");
    Ok(())
}

/// Every node has the versions of the new bundle, and nothing is left of the rollout.
async fn versions(client: &kube::Client) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    ensure!(nodes.items.len() == NODES.len(), "{} Nodes", nodes.items.len());
    for node in &nodes {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref()).context("no report")?;
        ensure!(info.container_runtime_version.starts_with("containerd://2.4."), "{info:?}");
        let pods = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(client.clone(), "kube-system");
        if node.name_any().starts_with("cp-") {
            let etcd = pods.get(&format!("etcd-{}", node.name_any())).await?;
            let image = etcd.spec.and_then(|spec| spec.containers.first()?.image.clone()).unwrap_or_default();
            ensure!(image.contains("etcd:3.7."), "{image}");
        }
    }
    Ok(())
}

/// A budget that can never be met is named before anything is begun.
async fn held(infrastructure: &Infrastructure, client: &kube::Client) -> anyhow::Result<()> {
    workload::hold(client).await?;
    infrastructure.edit("kubernetes: 1.37.1", "kubernetes: 1.37.1, versions: { reboot: once }")?;
    let plan = infrastructure.run(&["plan"]).await?;
    ensure!(plan.stdout.contains("default/web"), "the plan does not name what would hold it: {plan:?}");
    Ok(())
}
