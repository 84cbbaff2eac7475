//! A node's whole turn in a rollout against a real API server: its agent is played here, all else is real.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, bail, ensure};
use common::{
    annotations::{CORDONED_BY, EXCLUDED_BY, HISTORY},
    metadata::NodeName,
};
use infrop::{
    apply::{Event, Progress},
    cluster::{Clients, DrainRules, WAITING},
    rollout::{
        Check, MetricsFile, Outcome, Probe, Rollout,
        assess::Stage,
        policy::{Drain, Limits, Own, Policy},
    },
};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tests::api_server::ApiServer;

use crate::nodes::{plan, play_agent, register};

const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Nobody watches.
#[derive(Debug)]
pub(crate) struct Quiet;

impl Progress for Quiet {
    fn event(&self, _: &Event) {}

    fn waiting(&self, _: &BTreeMap<NodeName, String>) {}
}

/// The Events of a Node.
async fn told(admin: &Client, name: &str) -> anyhow::Result<Vec<String>> {
    let of_node = ListParams::default().fields(&format!("involvedObject.name={name}"));
    let events = Api::<k8s_openapi::api::core::v1::Event>::all(admin.clone()).list(&of_node).await?;
    Ok(events.into_iter().filter_map(|event| event.reason).collect())
}

fn policy(seen: &std::path::Path) -> anyhow::Result<Policy> {
    // Not well at first: then it is run again.
    let script = format!("test -e {0} || {{ touch {0}; echo not yet; exit 1; }}", seen.display());
    let check = Check {
        name: "smoke".parse()?,
        probe: Probe::Command {
            program: "sh".to_owned(),
            arguments: vec!["-c".to_owned(), script],
            without: Vec::new(),
        },
        limit: Duration::from_mins(1),
    };
    // What goes for all would not let it end in time: the group has its own.
    let never = Check {
        name: "never".parse()?,
        probe: Probe::Command { program: "false".to_owned(), arguments: Vec::new(), without: Vec::new() },
        limit: Duration::from_mins(1),
    };
    let own = Own {
        soak: Some(SignedDuration::from_secs(1)),
        drain: Some(Drain { rules: DrainRules::default(), limit: Duration::from_mins(1) }),
        checks: Some(vec![check]),
        ..Own::default()
    };
    Ok(Policy {
        groups: [("w".to_owned(), Limits { own, ..Limits::default() })].into(),
        control_planes: Own::default(),
        zone_label: "zone".to_owned(),
        soak: SignedDuration::from_hours(1),
        max_failed: 1,
        windows: Vec::new(),
        drain: Drain { rules: DrainRules::default(), limit: Duration::ZERO },
        disruption: BTreeMap::new(),
        patience: SignedDuration::from_mins(2),
        checks: vec![never],
        exclude_from_load_balancers: true,
        prefer_ready: true,
    })
}

pub(crate) async fn checked_measured_and_remembered() -> anyhow::Result<()> {
    let server = ApiServer::start().await?;
    let admin = server.admin().await?;
    let (old, new) = (plan("1")?, plan("2")?);
    register(&admin, "w-1", &old).await?;
    // Where pods go meanwhile, and one that waits.
    register(&admin, "w-2", &new).await?;
    register(&admin, "w-3", &old).await?;
    let nodes = Api::<Node>::all(admin.clone());
    let foreign = json!({ "spec": { "taints": [{ "key": "site", "effect": "PreferNoSchedule" }] } });
    nodes.patch("w-3", &PatchParams::default(), &Patch::Merge(foreign)).await?;
    let directory = tempfile::tempdir()?;
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, serde_json::to_string(&server.kubeconfig("infrop", &["system:masters"])?)?)?;
    let clients = Clients::of_user(Some(&kubeconfig)).await?;
    let figures = directory.path().join("metrics");
    let metrics = MetricsFile::create(&figures)?;
    let (_sender, stop) = tokio::sync::watch::channel(false);
    let rollout = Rollout {
        clients: &clients,
        identity: "test",
        policy: policy(&directory.path().join("seen"))?,
        targets: &|_| ("w".to_owned(), Ok(new.clone())),
        progress: &Quiet,
        stop,
        deadline: tokio::time::Instant::now() + Duration::from_mins(2),
        metrics: Some(&metrics),
    };
    let agents = async {
        let worked = play_agent(&admin, "w-1", &new).await?;
        let waited = Api::<Node>::all(admin.clone()).get("w-3").await?;
        play_agent(&admin, "w-3", &new).await?;
        anyhow::Ok((worked, waited))
    };
    let (ended, worked) = tokio::join!(rollout.run(), agents);
    let (outcome, _) = ended?;
    let Outcome::Ended(decision) = outcome else { bail!("{outcome:?}") };
    ensure!(decision.nodes.values().all(|node| node.stage == Stage::Done), "{decision:?}");

    // Also what was done last.
    let told = told(&admin, "w-3").await?;
    ensure!(told.iter().filter(|reason| *reason == "RolloutEnded").count() == 1, "{told:?}");
    ensure!(!told.contains(&"RolloutFailed".to_owned()), "{told:?}");

    // While its agent worked it was away from load balancers.
    let (worked, waited) = worked?;
    ensure!(worked.labels().contains_key(EXCLUDE), "{:?}", worked.labels());
    ensure!(worked.annotations().get(HISTORY).is_some_and(|text| text.contains("began")), "{worked:?}");

    // Pods preferred others to the one that waited; what somebody else put there stayed.
    let taints = |node: Node| -> Vec<String> {
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.into_iter().map(|taint| taint.key).collect()
    };
    let (before, after) = (taints(waited), taints(nodes.get("w-3").await?));
    ensure!(before.contains(&WAITING.to_owned()) && before.contains(&"site".to_owned()), "{before:?}");
    ensure!(after == ["site"], "{after:?}");

    let node = nodes.get("w-1").await?;
    ensure!(!node.labels().contains_key(EXCLUDE), "{:?}", node.labels());
    for key in [CORDONED_BY, EXCLUDED_BY] {
        ensure!(!node.annotations().contains_key(key), "{key} is left");
    }
    let history: Value = serde_json::from_str(node.annotations().get(HISTORY).context("no history")?)?;
    let seconds = history.pointer("/took/other/seconds").and_then(Value::as_u64).context("no seconds")?;
    // The soak, and the wait before the check was run again.
    ensure!((5..120).contains(&seconds) && history.get("began").is_none(), "{history}");

    // Permit, cordon, plan, uncordon, withdrawal: nothing of it costs a write of its own.
    let requests = server.audit().by("infrop")?;
    let writes: Vec<&Value> = requests
        .iter()
        .filter(|request| {
            request.object_ref.as_ref().is_some_and(|object| object.resource == "nodes" && object.name == "w-1")
                // Not those that did not find the Node as it was.
                && request.response_status.as_ref().is_some_and(|status| status.code == 200)
        })
        .filter_map(|request| request.request_object.as_ref().filter(|_| request.verb == "patch"))
        .collect();
    ensure!(writes.len() == 5, "{writes:?}");

    metrics.write();
    let text = std::fs::read_to_string(&figures)?;
    for line in [
        "infrop_rollout_nodes{state=\"done\",reason=\"UpToDate\"} 3",
        "infrop_rollout_nodes_changed_total 2",
        "infrop_rollout_failures_total{step=\"test\"} 1",
        "infrop_rollout_phase_seconds_total{phase=\"SiteCheckFailed\"} ",
    ] {
        ensure!(text.contains(line), "{line} is not in\n{text}");
    }
    Ok(())
}
