//! What becomes of each pod of a Node that is emptied. Pure.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::ResourceExt;

/// The kubelet's own pods have it: they are files of the host, and the API only shows them.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What a person can do about a pod that would be lost.
const CURE: &str = "delete it, or agree to that with `infrop node drain --unmanaged`";

/// So many pods are named with one reason; the others are counted.
const NAMED: usize = 5;

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl PodName {
    pub(super) fn of(pod: &Pod) -> Self {
        Self { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() }
    }
}

impl Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What is done with pods that somebody would miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They go like others.
    Evict,
    /// The node is not drained while they are there.
    Refuse,
}

/// What is done when the time is over and pods are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtDeadline {
    /// The drain ends with what holds it; who called may wait, or leave the node as it is.
    GiveUp,
    /// They are deleted, with the time they have to end, whatever their budgets say.
    Delete,
}

/// By which rules a Node is emptied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainRules {
    /// Of pods that no controller makes again.
    pub unmanaged: Fate,
    /// Of pods with an emptyDir: what is in it goes with them.
    pub empty_dir: Fate,
    /// What is done with those that are left in the end.
    pub at_deadline: AtDeadline,
}

impl Default for DrainRules {
    /// An emptyDir may be lost at any time, and those who use one know it. A pod without a controller is gone for good.
    fn default() -> Self {
        Self { unmanaged: Fate::Refuse, empty_dir: Fate::Evict, at_deadline: AtDeadline::GiveUp }
    }
}

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Its place is on this node.
    Stay,
    /// It is on its way out already.
    Ending,
    /// It has to go elsewhere; whether it leaves data behind.
    Evict { empty_dir: bool },
    /// It holds the drain.
    Refuse(Refusal),
}

/// Why a pod may not be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    Unmanaged,
    /// With the name of the `DaemonSet` that is no more.
    Orphan(String),
    EmptyDir,
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmanaged => write!(f, "no controller would make it again; {CURE}"),
            Self::Orphan(name) => {
                write!(f, "its DaemonSet {name} is gone, and nothing would make it again; {CURE}")
            }
            Self::EmptyDir => {
                f.write_str("what it has in an emptyDir would be lost; delete it if nobody needs that")
            }
        }
    }
}

/// What becomes of a pod; `exists` knows the `DaemonSets` by namespace and name.
pub(super) fn classify(pod: &Pod, exists: impl Fn(&str, &str) -> bool, rules: &DrainRules) -> Treatment {
    if pod.annotations().contains_key(MIRROR) {
        return Treatment::Stay;
    }
    let finished = is_finished(pod);
    let daemon_set = daemon_set(pod);
    if let Some(name) = daemon_set
        && !finished
        && exists(&pod.namespace().unwrap_or_default(), name)
    {
        return Treatment::Stay;
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Treatment::Ending;
    }
    let empty_dir = has_empty_dir(pod);
    // Nobody misses what has ended.
    if finished {
        return Treatment::Evict { empty_dir };
    }
    if rules.unmanaged == Fate::Refuse {
        if let Some(name) = daemon_set {
            return Treatment::Refuse(Refusal::Orphan(name.to_owned()));
        }
        if controller(pod).is_none() {
            return Treatment::Refuse(Refusal::Unmanaged);
        }
    }
    if empty_dir && rules.empty_dir == Fate::Refuse {
        return Treatment::Refuse(Refusal::EmptyDir);
    }
    Treatment::Evict { empty_dir }
}

/// The name of the `DaemonSet` that a pod is of, whether or not it is still there.
pub(super) fn daemon_set(pod: &Pod) -> Option<&str> {
    let owner = controller(pod)?;
    // Others have kinds of the same name, which the drain knows nothing about.
    (owner.kind == "DaemonSet" && owner.api_version.starts_with("apps/")).then_some(owner.name.as_str())
}

fn controller(pod: &Pod) -> Option<&OwnerReference> {
    pod.owner_references().iter().find(|owner| owner.controller == Some(true))
}

fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn has_empty_dir(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    volumes.iter().any(|volume| volume.empty_dir.is_some())
}

/// Why a pod that is ending is still there.
pub(super) fn why_ending(pod: &Pod) -> String {
    let finalizers = pod.finalizers();
    match &pod.metadata.deletion_timestamp {
        _ if !finalizers.is_empty() => format!("it is ending, and waits for {}", finalizers.join(", ")),
        Some(until) => format!("it is ending, and has until {}", until.0.strftime("%H:%M:%SZ")),
        None => "it is ending".to_owned(),
    }
}

/// A pod that does not go, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blocker {
    /// The pod.
    pub pod: PodName,
    /// The budget that holds it, as `namespace/name`, if one does.
    pub budget: Option<String>,
    /// Why, in words.
    pub why: String,
}

/// Each reason with its pods: `shop/web-1, shop/web-2: budget shop/web needs 2 healthy pods and has 2`.
pub fn list(blockers: &[Blocker]) -> String {
    let mut reasons = BTreeMap::<&str, Vec<String>>::new();
    for Blocker { pod, budget: _, why } in blockers {
        reasons.entry(why).or_default().push(pod.to_string());
    }
    let line = |(why, mut pods): (&str, Vec<String>)| {
        pods.sort();
        let more = pods.len().saturating_sub(NAMED);
        pods.truncate(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}: {why}", pods.join(", "))
    };
    reasons.into_iter().map(line).collect::<Vec<_>>().join("; ")
}

/// What a drain waits for.
pub(super) fn waits_for(blockers: &[Blocker], ending: usize) -> String {
    let ends = match ending {
        0 => None,
        1 => Some("1 pod is ending".to_owned()),
        _ => Some(format!("{ending} pods are ending")),
    };
    let stays = match blockers.len() {
        0 => None,
        1 => Some(format!("1 pod stays: {}", list(blockers))),
        many => Some(format!("{many} pods stay: {}", list(blockers))),
    };
    stays.into_iter().chain(ends).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(owner: Option<(&str, &str)>, more: &Value) -> Pod {
        let mut pod =
            json!({ "metadata": { "namespace": "shop", "name": "web-1" }, "spec": { "containers": [] } });
        if let Some((api_version, kind)) = owner {
            pod["metadata"]["ownerReferences"] = json!([
                { "apiVersion": "example.com/v1", "kind": "Other", "name": "x", "uid": "u" },
                { "apiVersion": api_version, "kind": kind, "name": "web", "uid": "u", "controller": true },
            ]);
        }
        if let Some(more) = more.as_object() {
            for (pointer, value) in more {
                let (top, key) = pointer.split_once('.').unwrap();
                pod[top][key] = value.clone();
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn each_pod_goes_stays_or_holds_the_drain() {
        let strict = DrainRules { empty_dir: Fate::Refuse, ..DrainRules::default() };
        let lenient = DrainRules { unmanaged: Fate::Evict, ..DrainRules::default() };
        let usual = DrainRules::default();
        let empty_dir = json!({ "spec.volumes": [{ "name": "a", "emptyDir": {} }] });
        let finished =
            |phase: &str| json!({ "status.phase": phase, "spec.volumes": [{ "name": "a", "emptyDir": {} }] });
        let mirror = json!({ "metadata.annotations": { MIRROR: "x" } });
        let deleting = json!({ "metadata.deletionTimestamp": "2026-01-01T00:00:00Z" });
        let none = json!({});
        let set = Some(("apps/v1", "ReplicaSet"));
        let daemon = Some(("apps/v1", "DaemonSet"));
        let evict = |empty_dir| Treatment::Evict { empty_dir };
        let refuse = Treatment::Refuse;
        let orphan = || Refusal::Orphan("web".into());
        for (owner, more, exists, rules, expected) in [
            (set, &none, true, &usual, evict(false)),
            (set, &json!({ "status.phase": "Pending" }), true, &usual, evict(false)),
            (set, &deleting, true, &usual, Treatment::Ending),
            (set, &empty_dir, true, &usual, evict(true)),
            (set, &empty_dir, true, &strict, refuse(Refusal::EmptyDir)),
            (set, &finished("Succeeded"), true, &strict, evict(true)),
            (None, &none, true, &usual, refuse(Refusal::Unmanaged)),
            (None, &none, true, &lenient, evict(false)),
            (None, &finished("Succeeded"), true, &usual, evict(true)),
            (None, &finished("Failed"), true, &strict, evict(true)),
            // Whoever deleted it knew what they did.
            (None, &deleting, true, &usual, Treatment::Ending),
            (daemon, &none, true, &usual, Treatment::Stay),
            (daemon, &empty_dir, true, &strict, Treatment::Stay),
            (daemon, &deleting, true, &usual, Treatment::Stay),
            (daemon, &none, false, &usual, refuse(orphan())),
            (daemon, &none, false, &lenient, evict(false)),
            (daemon, &deleting, false, &usual, Treatment::Ending),
            (daemon, &finished("Failed"), true, &usual, evict(true)),
            (Some(("example.com/v1", "DaemonSet")), &none, true, &usual, evict(false)),
            (Some(("v1", "Node")), &mirror, true, &usual, Treatment::Stay),
            (None, &mirror, true, &strict, Treatment::Stay),
        ] {
            let pod = pod(owner, more);
            let treatment = classify(
                &pod,
                |namespace, name| {
                    assert_eq!((namespace, name), ("shop", "web"));
                    exists
                },
                rules,
            );
            assert_eq!(treatment, expected, "{pod:?} {rules:?}");
        }
    }

    #[test]
    fn what_a_drain_waits_for_is_said_by_reason() {
        let blocker = |number: u32, why: &str| Blocker {
            pod: PodName { namespace: "shop".into(), name: format!("web-{number}") },
            budget: None,
            why: why.into(),
        };
        assert_eq!(waits_for(&[], 1), "1 pod is ending");
        assert_eq!(waits_for(&[], 2), "2 pods are ending");
        assert_eq!(waits_for(&[blocker(1, "no")], 0), "1 pod stays: shop/web-1: no");
        assert_eq!(
            waits_for(&[blocker(2, "no"), blocker(1, "no"), blocker(3, "wait")], 1),
            "3 pods stay: shop/web-1, shop/web-2: no; shop/web-3: wait; 1 pod is ending"
        );
        let many: Vec<Blocker> = (1..=7).map(|number| blocker(number, "no")).collect();
        assert!(list(&many).ends_with("shop/web-5 and 2 more: no"), "{}", list(&many));
    }

    #[test]
    fn a_pod_that_ends_says_what_it_waits_for() {
        let deleting = json!({ "metadata.deletionTimestamp": "2026-01-01T00:00:07Z" });
        assert_eq!(why_ending(&pod(None, &deleting)), "it is ending, and has until 00:00:07Z");
        let held =
            json!({ "metadata.deletionTimestamp": "2026-01-01T00:00:00Z", "metadata.finalizers": ["a/b"] });
        assert_eq!(why_ending(&pod(None, &held)), "it is ending, and waits for a/b");
    }
}
