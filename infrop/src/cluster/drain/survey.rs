//! The pods of a Node, and what is to become of them.

use std::collections::BTreeSet;

use common::metadata::NodeName;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{Api, ResourceExt, api::ListParams};

use super::{
    super::error::{Attempt, Error},
    pods::{Blocker, DrainRules, PodName, Treatment, classify, daemon_set, why_ending},
};

/// The pods of a Node, without those that stay.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Those that have to go.
    pub(super) movable: Vec<Pod>,
    /// Those of them whose data would be lost.
    pub(super) empty_dir: Vec<PodName>,
    /// Those that are on their way out.
    pub(super) ending: Vec<Blocker>,
    /// Those that may not go by the rules.
    pub(super) refused: Vec<Blocker>,
}

impl Survey {
    /// Looks anew: pods come also to a Node that is cordoned, if they tolerate that or name it.
    pub(super) async fn take(
        client: &kube::Client,
        node: &NodeName,
        rules: &DrainRules,
    ) -> Result<Self, Error> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = Api::<Pod>::all(client.clone()).list(&on_node).await;
        let pods = pods.to(format!("list the pods of {node}"))?.items;
        let daemon_sets = if pods.iter().any(|pod| daemon_set(pod).is_some()) {
            daemon_sets(client).await?
        } else {
            BTreeSet::new()
        };
        let exists =
            |namespace: &str, name: &str| daemon_sets.contains(&(namespace.to_owned(), name.to_owned()));
        let mut survey = Self::default();
        for pod in pods {
            let name = PodName::of(&pod);
            match classify(&pod, exists, rules) {
                Treatment::Stay => {}
                Treatment::Ending => {
                    survey.ending.push(Blocker { pod: name, budget: None, why: why_ending(&pod) });
                }
                Treatment::Evict { empty_dir } => {
                    if empty_dir {
                        survey.empty_dir.push(name);
                    }
                    survey.movable.push(pod);
                }
                Treatment::Refuse(why) => {
                    survey.refused.push(Blocker { pod: name, budget: None, why: why.to_string() });
                }
            }
        }
        Ok(survey)
    }
}

/// All there are, by namespace and name.
async fn daemon_sets(client: &kube::Client) -> Result<BTreeSet<(String, String)>, Error> {
    let sets = Api::<DaemonSet>::all(client.clone()).list_metadata(&ListParams::default()).await;
    let sets = sets.to("list the DaemonSets")?;
    Ok(sets.iter().map(|set| (set.namespace().unwrap_or_default(), set.name_any())).collect())
}
