//! The workers restart while things go wrong with some of them: the rest finishes, and each of the others is left as is
//! documented until a person has put it right.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context, ensure};
use common::{
    annotations::{self, CHANGES_ALLOWED, CORDONED_BY, PERMITTED_PLAN, PLAN, PLAN_OBSERVED, READY, STATE},
    state::{Phase, Reason, State},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{Api, ResourceExt, api::ListParams};

use super::{
    CONTROL_PLANES, NODES, audit, faults::Fault, finish, keeps_to_the_rules, probe::Probes, with_faults,
};
use crate::infrastructure::Infrastructure;

/// infrop's command.
const ROLLOUT: [&str; 17] = [
    "rollout",
    "--set",
    "reboot=again",
    "--node",
    "w-1",
    "--node",
    "w-2",
    "--node",
    "w-3",
    "--max-unavailable",
    "2",
    "--max-failed",
    "3",
    "--soak",
    "3",
    "--drain-timeout",
    "120",
];

/// Restarts the workers with `infrop rollout` while things go wrong. Nothing of that is felt by those who call the workload
/// or the API, every write kept to the rules, and the Nodes' Events tell what happened to each.
pub async fn restart_workers(
    infrastructure: &Infrastructure,
    client: &kube::Client,
    faults: &[Fault],
) -> anyhow::Result<()> {
    let lab = infrastructure.lab()?;
    let workers: Vec<&str> = NODES.into_iter().filter(|name| !CONTROL_PLANES.contains(name)).collect();
    let beginning = audit::beginning(client).await?;
    let boots = boots(client).await?;
    for fault in faults {
        fault.prepare(&lab, client).await?;
        if let Fault::Package(node) = fault {
            // Something to install, and less patience, which an agent reads when it starts.
            let script = "echo 'attempts: 2' >> /etc/node-agent/config.yaml; systemctl restart node-agent; \
                          apt-mark unhold kubectl; dpkg --force-all --purge kubectl";
            lab.ssh(&node.parse()?).arg(script).run().await?;
        }
    }
    // A worker's own address goes away with it.
    let probes = Probes::start(infrastructure, &lab, &workers).await?;
    let (started, since) = (Instant::now(), Timestamp::now());
    let rollout = async || infrastructure.run_on_cluster(&ROLLOUT).await;
    let ended = with_faults(faults, &lab, client, rollout()).await?;
    eprintln!("{}", ended.stdout);
    let look = async || left(client, faults, &workers, &boots).await;
    finish(faults, &lab, client, &ended, look, rollout).await?;
    eprintln!("workers restarted with {faults:?}: {:.1} s", started.elapsed().as_secs_f64());
    probes.insist(&lab).await?;
    keeps_to_the_rules(&lab, &beginning, None, &workers).await?;
    for name in &workers {
        is_through(&get(client, name).await?, &boots).with_context(|| format!("{name} at the end"))?;
        told_on_node(client, faults, name, since).await?;
    }
    Ok(())
}

async fn get(client: &kube::Client, name: &str) -> anyhow::Result<Node> {
    Ok(Api::<Node>::all(client.clone()).get(name).await?)
}

fn boot(node: &Node) -> &str {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map_or("", |info| info.boot_id.as_str())
}

async fn boots(client: &kube::Client) -> anyhow::Result<BTreeMap<String, String>> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    Ok(nodes.iter().map(|node| (node.name_any(), boot(node).to_owned())).collect())
}

/// What the first run leaves: the rest is through, a node whose pods do not go was given back, and one that gave up is
/// kept for a person.
async fn left(
    client: &kube::Client,
    faults: &[Fault],
    names: &[&str],
    boots: &BTreeMap<String, String>,
) -> anyhow::Result<()> {
    for name in names {
        let node = get(client, name).await?;
        let fault = faults.iter().find(|fault| fault.holds() == Some(*name));
        match fault {
            Some(Fault::Budget(_)) => is_given_back(&node, boots),
            Some(Fault::Package(_)) => is_quarantined(&node, boots),
            _ => is_through(&node, boots),
        }
        .with_context(|| format!("{name} after the first run, with {fault:?}"))?;
    }
    Ok(())
}

/// It has its plan and the restart of it, and is as it was before otherwise.
fn is_through(node: &Node, boots: &BTreeMap<String, String>) -> anyhow::Result<()> {
    is_open(node)?;
    let annotations = node.annotations();
    let get = |key: &str| annotations.get(key).map(String::as_str);
    ensure!(get(READY) == Some("true"), "its agent does not say that it is ready: {:?}", get(STATE));
    let (plan, observed) = (get(PLAN), get(PLAN_OBSERVED));
    ensure!(plan.is_some() && plan == observed, "its agent speaks of {observed:?} and not of {plan:?}");
    let reboot = get(&annotations::current_version(&"reboot".parse()?));
    ensure!(reboot == Some("again"), "its restart is {reboot:?}");
    ensure!(boots.get(&node.name_any()).is_some_and(|before| before != boot(node)), "it did not restart");
    Ok(())
}

/// Pods may come, and its agent may do nothing and did nothing.
fn is_given_back(node: &Node, boots: &BTreeMap<String, String>) -> anyhow::Result<()> {
    is_open(node)?;
    is_untouched(node, boots)
}

/// Cordoned by the rollout, without a permit, with its agent's reason.
fn is_quarantined(node: &Node, boots: &BTreeMap<String, String>) -> anyhow::Result<()> {
    has_no_permit(node)?;
    let annotations = node.annotations();
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let mark = annotations.get(CORDONED_BY);
    ensure!(cordoned && mark.is_some(), "it is cordoned: {cordoned}, by {mark:?}");
    let state: State = serde_json::from_str(annotations.get(STATE).context("no state")?)?;
    ensure!(
        state.phase == Phase::Quarantined && state.reason == Reason::PackageFailed && state.attempt == 2,
        "{state:?}"
    );
    ensure!(annotations.get(READY).is_some_and(|ready| ready == "false"), "it says that it is ready");
    is_untouched(node, boots)
}

fn is_open(node: &Node) -> anyhow::Result<()> {
    has_no_permit(node)?;
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let mark = node.annotations().get(CORDONED_BY);
    ensure!(!cordoned && mark.is_none(), "it is cordoned: {cordoned}, by {mark:?}");
    Ok(())
}

fn has_no_permit(node: &Node) -> anyhow::Result<()> {
    let get = |key: &str| node.annotations().get(key).map(String::as_str);
    let (allowed, plan) = (get(CHANGES_ALLOWED), get(PERMITTED_PLAN));
    ensure!(allowed != Some("true") && plan.is_none(), "its permit is {allowed:?}, for {plan:?}");
    Ok(())
}

fn is_untouched(node: &Node, boots: &BTreeMap<String, String>) -> anyhow::Result<()> {
    ensure!(boots.get(&node.name_any()).is_some_and(|before| before == boot(node)), "it restarted");
    Ok(())
}

/// Whether Events on a Node tell of all that happened to it since then. An Event of the last thing that a run did may
/// get lost with the end of the run, so that one is not looked for: the last is always the node whose pods do not go.
async fn told_on_node(
    client: &kube::Client,
    faults: &[Fault],
    name: &str,
    since: Timestamp,
) -> anyhow::Result<()> {
    let of_node = format!("involvedObject.kind=Node,involvedObject.name={name}");
    let events = Api::<Event>::all(client.clone()).list(&ListParams::default().fields(&of_node)).await?;
    let told = events.iter().filter(|event| {
        event.event_time.as_ref().is_some_and(|time| time.0 >= since)
            && event.reporting_component.as_deref().is_some_and(|who| who.contains("infrop"))
    });
    let told: Vec<&str> = told.filter_map(|event| event.reason.as_deref()).collect();
    eprintln!("events on {name}: {told:?}");
    let held = faults.iter().any(|fault| matches!(fault, Fault::Budget(node) if *node == name));
    let last = if held { "RolloutHeld" } else { "RolloutEnded" };
    for reason in ["RolloutBegun", "RolloutDrained", "RolloutPlanned", last] {
        ensure!(told.contains(&reason), "no event {reason} on {name}, only {told:?}");
    }
    Ok(())
}
