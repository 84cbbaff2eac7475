//! T4: a cluster of three control planes and three workers goes to other versions by annotations, under load, while things
//! go wrong.

mod audit;
mod faults;
mod probe;
mod restarts;
mod rules;
mod workload;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::future::try_join_all;
use infrop::{provider::lab::Lab, rollout::saved::SAVED};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt, api::ListParams};

use self::{audit::Beginning, probe::Probes, rules::Rules};
pub use self::{
    audit::{ALL_REQUESTS, begin},
    faults::{Fault, cordon},
    restarts::restart_workers,
    workload::hold_all,
};
use crate::{
    infrastructure::{Ended, Infrastructure, lab_document},
    kills::Random,
};

/// Its control planes.
const CONTROL_PLANES: [&str; 3] = ["cp-1", "cp-2", "cp-3"];
const NODES: [&str; 6] = ["cp-1", "cp-2", "cp-3", "w-1", "w-2", "w-3"];

/// The versions it goes from and to.
const FROM: &str = "1.36.4";
const TO: &str = "1.37.1";

/// How many workers may be away at once.
const LIMIT: usize = 2;

/// infrop's exit code if some nodes are not through.
const BLOCKED: i32 = 3;

/// Between kills: shorter than a control plane takes.
const KILL_WITHIN: u64 = 60_000;

/// Such a cluster at the older version, with a workload; it ends with the test.
pub async fn with_cluster<T>(
    name: &str,
    test: impl AsyncFnOnce(&Infrastructure, &kube::Client) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let text = lab_document(name, 3)
        .replace("pool: cp, nodes: 1 }", "pool: cp, nodes: 3 }\n  endpoint: { host: 10.88.0.5 }")
        .replace(&format!("kubernetes: {TO}"), &format!("kubernetes: {FROM}"))
        + &format!(
            "rollout: {{ maxUnavailable: {LIMIT}, soakSeconds: 3, drain: {{ timeoutSeconds: 120, atTimeout: skip }} }}\n"
        );
    Infrastructure::new(name, &text)?
        .with(async |infrastructure| {
            let started = Instant::now();
            infrastructure.insist(&["apply"]).await?;
            eprintln!("from nothing to 3 + 3: {:.1} s", started.elapsed().as_secs_f64());
            let client = infrastructure.client().await?;
            audit::begin_everywhere(infrastructure, &client, &CONTROL_PLANES).await?;
            workload::start(&client).await?;
            test(infrastructure, &client).await
        })
        .await
}

/// Takes it to the newer version while things go wrong. Nothing of that is felt by those who call the workload or the API,
/// and every write kept to the rules.
pub async fn upgrade(
    infrastructure: &Infrastructure,
    client: &kube::Client,
    faults: &[Fault],
) -> anyhow::Result<()> {
    let lab = infrastructure.lab()?;
    for fault in faults {
        fault.prepare(&lab, client).await?;
    }
    let dark = faults.iter().filter_map(|fault| match fault {
        Fault::PowerCut(node) => Some(*node),
        _ => None,
    });
    let probes = Probes::start(infrastructure, &lab, &dark.collect::<Vec<_>>()).await?;
    let beginning = audit::beginning(client).await?;
    infrastructure.edit(FROM, TO)?;
    is_foreseen(infrastructure).await?;
    let started = Instant::now();
    let apply = async {
        for fault in faults {
            if let Fault::Kills(times) = fault {
                kills(infrastructure, &lab, *times).await?;
            }
        }
        infrastructure.run(&["apply"]).await
    };
    let ended = with_faults(faults, &lab, client, apply).await?;
    let again = async || infrastructure.run(&["apply"]).await;
    finish(faults, &lab, client, &ended, async || Ok(()), again).await?;
    eprintln!("to the next version with {faults:?}: {:.1} s", started.elapsed().as_secs_f64());

    probes.insist(&lab).await?;
    let foreign = faults.iter().find_map(|fault| match fault {
        Fault::Cordon(node) => Some(*node),
        _ => None,
    });
    keeps_to_the_rules(&lab, &beginning, foreign, &NODES).await?;
    versions(client).await?;
    etcd_was_saved(&lab, client).await?;
    let again = infrastructure.run(&["apply"]).await?;
    ensure!(again.code == 0 && again.stdout.contains("Nothing to do"), "{again:?}");
    Ok(())
}

/// A control plane says that it has a copy of etcd's data from before, and etcd's own program can restore it.
async fn etcd_was_saved(lab: &Lab, client: &kube::Client) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    let saved = nodes.iter().find(|node| node.annotations().contains_key(SAVED));
    let saved = saved.context("no control plane has a copy of etcd's data")?.name_any();
    let file = format!("/var/lib/etcd/infrop-before-{TO}.db");
    let look = format!(
        "kubectl --kubeconfig /etc/kubernetes/admin.conf --namespace kube-system exec etcd-{saved} -- \
         etcdutl snapshot status --write-out=json {file}"
    );
    let status = lab.ssh(&saved.parse()?).arg(look).run().await?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let keys = status.get("totalKey").and_then(serde_json::Value::as_u64);
    ensure!(keys.is_some_and(|keys| keys > 100), "{file} on {saved} is {status}");
    Ok(())
}

/// What it would do is said before, also if it goes over another version.
async fn is_foreseen(infrastructure: &Infrastructure) -> anyhow::Result<()> {
    const OVER: &str = "rollout: { kubernetesSteps: [1.37.0],";
    let says = async |versions: &[&str]| {
        let plan = infrastructure.run(&["plan"]).await?;
        let permits = plan.stdout.matches("permit changes on ").count();
        ensure!(plan.code == 2 && permits == versions.len() * NODES.len(), "{plan:?}");
        for version in versions {
            let written = plan.stdout.lines().filter(|line| line.contains(&format!("kubelet {version}")));
            ensure!(written.count() == NODES.len(), "{version}: {plan:?}");
        }
        Ok(())
    };
    says(&[TO]).await?;
    infrastructure.edit("rollout: {", OVER)?;
    says(&["1.37.0", TO]).await?;
    infrastructure.edit(OVER, "rollout: {")
}

/// Every write since then kept to the rules, and took these nodes through.
async fn keeps_to_the_rules(
    lab: &Lab,
    beginning: &Beginning,
    foreign: Option<&str>,
    expected: &[&str],
) -> anyhow::Result<()> {
    let control_planes = &CONTROL_PLANES;
    let rules = Rules { limit: LIMIT, foreign, version: TO.parse()?, control_planes, expected };
    let writes = rules.check(&audit::writes(lab, &CONTROL_PLANES, beginning).await?)?;
    eprintln!("{writes} writes of Nodes and of pods of control planes, none against a rule");
    Ok(())
}

/// A rollout and what happens meanwhile.
async fn with_faults(
    faults: &[Fault],
    lab: &Lab,
    client: &kube::Client,
    rollout: impl Future<Output = anyhow::Result<Ended>>,
) -> anyhow::Result<Ended> {
    let happening = try_join_all(faults.iter().map(|fault| fault.happen(lab, client)));
    let mut happening = std::pin::pin!(happening);
    let mut rollout = std::pin::pin!(rollout);
    let ended = tokio::select! {
        ended = &mut rollout => ended?,
        happened = &mut happening => {
            happened?;
            return rollout.await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1), happening)
        .await
        .with_context(|| format!("infrop ended before it happened: {ended:?}"))??;
    Ok(ended)
}

/// Whether a rollout ended as faults let it; what they left is looked at and mended, and another run ends it.
async fn finish(
    faults: &[Fault],
    lab: &Lab,
    client: &kube::Client,
    ended: &Ended,
    look: impl AsyncFnOnce() -> anyhow::Result<()>,
    again: impl AsyncFnOnce() -> anyhow::Result<Ended>,
) -> anyhow::Result<()> {
    if faults.iter().all(|fault| fault.holds().is_none()) {
        ensure!(ended.code == 0, "{ended:?}");
        return Ok(());
    }
    ensure!(ended.code == BLOCKED, "{ended:?}");
    for fault in faults {
        fault.told(ended)?;
    }
    look().await?;
    for fault in faults {
        fault.mend(lab, client).await?;
    }
    let ended = again().await?;
    ensure!(ended.code == 0, "{ended:?}");
    Ok(())
}

/// Kills node-agent, and all that it started; says whether there was one, and it is no more.
const KILL_AGENT: &str = "\
pid=$(systemctl show --property=MainPID --value node-agent)
systemctl kill --signal=KILL node-agent
for _ in $(seq 50); do
    test $pid != 0 && test $(systemctl show --property=MainPID --value node-agent) != $pid && echo hit && break
    sleep 0.1
done
";

/// Applies with infrop and agents killed at random moments, of which some must have hit what they were meant for.
async fn kills(infrastructure: &Infrastructure, lab: &Lab, times: u32) -> anyhow::Result<()> {
    let mut random = Random::new()?;
    let (mut at_work, mut agents) = (0, 0);
    for _ in 0..times {
        let mut child = infrastructure.start(&["apply"])?;
        tokio::time::sleep(Duration::from_millis(random.below(KILL_WITHIN))).await;
        let worked = child.try_wait()?.is_none();
        at_work += u32::from(worked);
        child.kill().await.context("cannot kill infrop")?;
        let victim = NODES.get(usize::try_from(random.below(NODES.len() as u64))?).copied().unwrap_or("cp-1");
        let hit = lab.ssh(&victim.parse()?).arg(KILL_AGENT).run().await?.contains("hit");
        agents += u32::from(hit);
        eprintln!(
            "killed infrop{}, and node-agent on {victim}{}",
            if worked { "" } else { ", which had ended" },
            if hit { "" } else { ", where there was none" },
        );
    }
    ensure!(times == 0 || (at_work > 0 && agents > 0), "kills hit {at_work} infrops and {agents} agents");
    Ok(())
}

/// Every node has the versions of the new bundle.
async fn versions(client: &kube::Client) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    ensure!(nodes.items.len() == NODES.len(), "{} Nodes", nodes.items.len());
    for node in &nodes {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref()).context("no report")?;
        ensure!(info.container_runtime_version.starts_with("containerd://2.4."), "{info:?}");
        let pods = Api::<Pod>::namespaced(client.clone(), "kube-system");
        if node.name_any().starts_with("cp-") {
            let etcd = pods.get(&format!("etcd-{}", node.name_any())).await?;
            let image = etcd.spec.and_then(|spec| spec.containers.first()?.image.clone()).unwrap_or_default();
            ensure!(image.contains("etcd:3.7."), "{image}");
        }
    }
    Ok(())
}
