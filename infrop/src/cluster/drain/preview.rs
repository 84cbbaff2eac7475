//! What a drain would meet, without doing it.

use std::collections::BTreeSet;

use common::metadata::NodeName;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{Api, ResourceExt, api::ListParams};

use super::{
    super::error::Attempt,
    Error, TWO_BUDGETS, ask_all,
    evict::{Answer, Means},
    pods::{Blocker, DrainRules, PodName, list},
    selector,
    survey::Survey,
};
use crate::cluster::DirectClient;

/// What a drain would meet now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preview {
    /// Pods that never go, by the rules or by the API's: the drain would end for them.
    pub refused: Vec<Blocker>,
    /// Pods that could not go now.
    pub blocked: Vec<Blocker>,
    /// Pods that share a budget which does not let them go together.
    pub queued: Vec<Blocker>,
    /// Pods whose data in an emptyDir would be lost.
    pub empty_dir: Vec<PodName>,
}

impl Preview {
    /// What a person should know before; nothing if all goes smoothly.
    pub fn sentences(&self) -> Vec<String> {
        let Self { refused, blocked, queued, empty_dir } = self;
        let lost: Vec<Blocker> = empty_dir
            .iter()
            .map(|pod| Blocker {
                pod: pod.clone(),
                budget: None,
                why: "data in an emptyDir is lost".to_owned(),
            })
            .collect();
        [("would be refused", refused), ("would wait", blocked), ("goes slowly", queued), ("goes", &lost)]
            .into_iter()
            .filter(|(_, pods)| !pods.is_empty())
            .map(|(what, pods)| format!("{what}: {}", list(pods)))
            .collect()
    }
}

/// Asks of each pod whether it could be evicted, and counts those that share a budget: the API server looks at one pod
/// at a time.
pub async fn preview(client: &DirectClient, node: &NodeName, rules: &DrainRules) -> Result<Preview, Error> {
    let client = client.get();
    let Survey { movable, empty_dir, ending: _, mut refused } = Survey::take(client, node, rules).await?;
    let mut blocked = Vec::new();
    for (pod, answer) in ask_all(client, &movable, Means::DryRun).await? {
        let (budget, why) = match answer {
            Answer::Accepted | Answer::Gone | Answer::NamespaceEnds => continue,
            Answer::TooManyBudgets => {
                refused.push(Blocker { pod: PodName::of(pod), budget: None, why: TWO_BUDGETS.to_owned() });
                continue;
            }
            Answer::Budget { budget, why, .. } => (budget, why),
            Answer::Busy { why, .. } => (None, why),
        };
        blocked.push(Blocker { pod: PodName::of(pod), budget, why });
    }
    refused.sort();
    blocked.sort();
    let namespaces: BTreeSet<String> = movable.iter().filter_map(ResourceExt::namespace).collect();
    let mut queued = Vec::new();
    for namespace in namespaces {
        let api = Api::<PodDisruptionBudget>::namespaced(client.clone(), &namespace);
        let budgets = api.list(&ListParams::default()).await;
        let budgets = budgets.to(format!("list the PodDisruptionBudgets of {namespace}"))?;
        queued.extend(budgets.iter().flat_map(|budget| queue(budget, &movable)));
    }
    Ok(Preview { refused, blocked, queued, empty_dir })
}

/// The pods that a budget covers, if it lets some of them go, but not all at once. That it lets none go is said by the
/// API server itself.
fn queue(budget: &PodDisruptionBudget, pods: &[Pod]) -> Vec<Blocker> {
    let allowed = budget.status.as_ref().map_or(0, |status| status.disruptions_allowed);
    let Some(selector) = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else {
        return Vec::new();
    };
    let covered: Vec<&Pod> = pods
        .iter()
        .filter(|pod| pod.namespace() == budget.namespace() && counts(pod))
        .filter(|pod| selector::matches(selector, pod.labels()))
        .collect();
    let allowed = usize::try_from(allowed).unwrap_or(0);
    if allowed == 0 || covered.len() <= allowed {
        return Vec::new();
    }
    let name = format!("{}/{}", budget.namespace().unwrap_or_default(), budget.name_any());
    let why = format!("budget {name} lets {allowed} of them go at a time");
    let blocker = |pod| Blocker { pod: PodName::of(pod), budget: Some(name.clone()), why: why.clone() };
    covered.into_iter().map(blocker).collect()
}

/// Whether a budget counts a pod: only those that run and are well.
fn counts(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    status.phase.as_deref() == Some("Running")
        && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, name: &str, phase: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "namespace": namespace, "name": name, "labels": { "app": "web" } },
            "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    fn budget(selector: &serde_json::Value, allowed: i32) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": { "namespace": "shop", "name": "web" },
            "spec": { "selector": selector },
            "status": {
                "disruptionsAllowed": allowed, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3,
            },
        }))
        .unwrap()
    }

    #[test]
    fn pods_that_share_a_budget_are_counted() {
        let pods = [
            pod("shop", "web-1", "Running", "True"),
            pod("shop", "web-2", "Running", "True"),
            // These the API server evicts without looking at a budget, or without counting it down.
            pod("shop", "web-3", "Pending", "False"),
            pod("shop", "web-4", "Running", "False"),
            pod("other", "web-5", "Running", "True"),
        ];
        let web = json!({ "matchLabels": { "app": "web" } });
        for (selector, allowed, expected) in [
            (&web, 1, vec!["shop/web-1", "shop/web-2"]),
            (&web, 2, vec![]),
            (&web, 0, vec![]),
            (&web, -1, vec![]),
            (&json!({}), 1, vec!["shop/web-1", "shop/web-2"]),
            (&json!(null), 1, vec![]),
            (&json!({ "matchLabels": { "app": "db" } }), 1, vec![]),
        ] {
            let queued = queue(&budget(selector, allowed), &pods);
            let names: Vec<String> = queued.iter().map(|blocker| blocker.pod.to_string()).collect();
            assert_eq!(names, expected, "{selector} {allowed}");
            assert!(queued.iter().all(|one| one.why == "budget shop/web lets 1 of them go at a time"));
        }
    }

    #[test]
    fn a_smooth_drain_is_not_worth_a_word() {
        assert!(Preview::default().sentences().is_empty());
        let pod = PodName { namespace: "shop".into(), name: "web-1".into() };
        let blocker = |why: &str| vec![Blocker { pod: pod.clone(), budget: None, why: why.into() }];
        let preview = Preview {
            refused: blocker("a"),
            blocked: blocker("b"),
            queued: blocker("c"),
            empty_dir: vec![pod.clone()],
        };
        assert_eq!(
            preview.sentences(),
            [
                "would be refused: shop/web-1: a",
                "would wait: shop/web-1: b",
                "goes slowly: shop/web-1: c",
                "goes: shop/web-1: data in an emptyDir is lost",
            ]
        );
    }
}
