//! What goes wrong in a rollout, on which node, and what a person does about it afterwards.

use std::time::Duration;

use anyhow::{Context, ensure};
use common::{
    annotations::STATE,
    state::{Phase, State},
};
use infrop::provider::lab::{Lab, Power};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node, policy::v1::PodDisruptionBudget};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::workload::IMAGE;
use crate::{infrastructure::Ended, lab::wait_for};

/// Where apt is told to fail.
const HOOK: &str = "/etc/apt/apt.conf.d/00-broken";

/// Longer than it takes until a node's turn comes.
const TURN: Duration = Duration::from_mins(20);

/// How long a host is without power.
const DARK: Duration = Duration::from_secs(5);

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// infrop and some node-agent are killed with -9, so often.
    Kills(u32),
    /// A person cordoned the node before.
    Cordon(&'static str),
    /// No package can be installed on it.
    Package(&'static str),
    /// A pod on it has a budget that can never be met.
    Budget(&'static str),
    /// It loses its power while it is changed.
    PowerCut(&'static str),
}

impl Fault {
    /// Makes it so before the rollout.
    pub async fn prepare(self, lab: &Lab, client: &kube::Client) -> anyhow::Result<()> {
        match self {
            Self::Kills(_) | Self::PowerCut(_) => Ok(()),
            Self::Cordon(node) => cordon(client, node, true).await,
            Self::Package(node) => {
                let hook = "DPkg::Pre-Install-Pkgs { \"echo this package is broken >&2; exit 1\"; };";
                lab.ssh(&node.parse()?).arg(format!("cat > {HOOK}")).stdin(hook).run().await?;
                Ok(())
            }
            Self::Budget(node) => hold(client, node).await,
        }
    }

    /// What happens meanwhile; ends when it has.
    pub async fn happen(self, lab: &Lab, client: &kube::Client) -> anyhow::Result<()> {
        let Self::PowerCut(name) = self else { return Ok(()) };
        let nodes = Api::<Node>::all(client.clone());
        wait_for(TURN, "the node is being changed", async || {
            // The API may be away for a moment.
            let node = nodes.get(name).await.ok();
            let state = node.and_then(|node| node.annotations().get(STATE).cloned());
            let state = state.and_then(|text| serde_json::from_str::<State>(&text).ok());
            Ok(state.is_some_and(|state| matches!(state.phase, Phase::Changing | Phase::Rebooting)))
        })
        .await?;
        lab.power(&name.parse()?, Power::Cut).await?;
        eprintln!("{name} lost its power");
        tokio::time::sleep(DARK).await;
        lab.power(&name.parse()?, Power::On).await?;
        Ok(())
    }

    /// The node that cannot get through as long as it lasts.
    pub fn holds(self) -> Option<&'static str> {
        match self {
            Self::Package(node) | Self::Budget(node) => Some(node),
            Self::Kills(_) | Self::Cordon(_) | Self::PowerCut(_) => None,
        }
    }

    /// Whether infrop said what is wrong, if it had to.
    pub fn told(self, ended: &Ended) -> anyhow::Result<()> {
        let said = format!("{}\n{}", ended.stdout, ended.stderr);
        let words: &[&str] = match self {
            Self::Package(node) => &[node, "Quarantined", "this package is broken"],
            Self::Budget(node) => &[node, "default/held"],
            Self::Kills(_) | Self::Cordon(_) | Self::PowerCut(_) => return Ok(()),
        };
        for word in words {
            ensure!(said.contains(word), "{self:?}: {word:?} is not said: {said}");
        }
        Ok(())
    }

    /// What a person does about it.
    pub async fn mend(self, lab: &Lab, client: &kube::Client) -> anyhow::Result<()> {
        match self {
            Self::Package(node) => {
                lab.ssh(&node.parse()?).arg(format!("rm {HOOK}; node-agent retry")).run().await?;
            }
            Self::Budget(_) => {
                let delete = DeleteParams::default();
                let namespace = "default";
                Api::<PodDisruptionBudget>::namespaced(client.clone(), namespace)
                    .delete("held", &delete)
                    .await?;
                Api::<Deployment>::namespaced(client.clone(), namespace).delete("held", &delete).await?;
            }
            Self::Kills(_) | Self::Cordon(_) | Self::PowerCut(_) => {}
        }
        Ok(())
    }
}

/// Cordons a node, or lifts that.
pub async fn cordon(client: &kube::Client, name: &str, cordoned: bool) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": cordoned } }));
    Api::<Node>::all(client.clone()).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// A pod that runs on this node or nowhere, and must never be away.
async fn hold(client: &kube::Client, node: &str) -> anyhow::Result<()> {
    let (post, labels) = (PostParams::default(), json!({ "app": "held" }));
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": "held" },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "nodeName": node,
                    "containers": [{ "name": "held", "image": IMAGE, "imagePullPolicy": "IfNotPresent" }],
                },
            },
        },
    }))?;
    let deployments = Api::<Deployment>::namespaced(client.clone(), "default");
    deployments.create(&post, &deployment).await?;
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": { "name": "held" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": labels } },
    }))?;
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), "default");
    budgets.create(&post, &budget).await?;
    wait_for(Duration::from_mins(2), "the budget counts its pod", async || {
        let status = budgets.get("held").await?.status.context("no status")?;
        Ok(status.current_healthy == 1 && status.disruptions_allowed == 0)
    })
    .await
}
