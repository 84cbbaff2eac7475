//! Asking once that a pod goes, and what the answer means.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
    core::Status,
};
use serde_json::json;

use super::{
    super::error::{Attempt, Error},
    pods::PodName,
};

/// How a pod is asked to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// If its budget allows it.
    Eviction,
    /// As an eviction, but nothing happens.
    DryRun,
    /// Whatever its budget says.
    Deletion,
}

/// What was said to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// It ends.
    Accepted,
    /// It, or at least the one that was meant, is not there any more.
    Gone,
    /// Its budget does not let it go now.
    Budget { budget: Option<String>, why: String, retry_after: Option<Duration> },
    /// It has two budgets or more: the API server never evicts it.
    TooManyBudgets,
    /// Its namespace is being deleted, and takes it along.
    NamespaceEnds,
    /// The server has no time, or has trouble of its own: it may be asked again.
    Busy { why: String, retry_after: Option<Duration> },
}

/// Asks once that a pod goes.
pub(super) async fn ask(client: &kube::Client, pod: &Pod, means: Means) -> Result<Answer, Error> {
    let name = PodName::of(pod);
    let api = Api::<Pod>::namespaced(client.clone(), &name.namespace);
    // A pod of the same name that came since is another one.
    let same = Preconditions { uid: pod.uid(), resource_version: None };
    let (verb, result) = match means {
        Means::Eviction | Means::DryRun => {
            // Not `Api::evict`: kube 5 writes `delete_options`, which the API server does not know, so that the
            // precondition would be lost.
            let eviction = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": { "namespace": name.namespace, "name": name.name },
                "deleteOptions": { "preconditions": same },
            });
            let parameters = PostParams { dry_run: means == Means::DryRun, ..PostParams::default() };
            let answer = api.create_subresource::<_, Status>("eviction", &name.name, &parameters, &eviction);
            ("evict", answer.await)
        }
        Means::Deletion => {
            let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
            ("delete", api.delete(&name.name, &parameters).await.map(|_| Status::success()))
        }
    };
    let understood = match &result {
        // Two budgets are told with 201 and a failure in the body.
        Ok(status) if status.is_failure() => meaning(status, &name.namespace),
        Ok(_) => Some(Answer::Accepted),
        Err(kube::Error::Api(status)) => meaning(status, &name.namespace),
        Err(_) => None,
    };
    match (understood, result) {
        (Some(answer), _) => Ok(answer),
        (None, Ok(status)) => Err(kube::Error::Api(status.boxed())).to(format!("{verb} the pod {name}")),
        (None, Err(error)) => Err(error).to(format!("{verb} the pod {name}")),
    }
}

/// What a refusal means; nothing if it is one that stays, such as a missing right.
fn meaning(status: &Status, namespace: &str) -> Option<Answer> {
    let details = status.details.as_ref();
    let causes = details.map(|details| details.causes.as_slice()).unwrap_or_default();
    let cause = |kind: &str| causes.iter().find(|cause| cause.reason == kind);
    let seconds = details.map_or(0, |details| details.retry_after_seconds);
    let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
    let busy = || Answer::Busy {
        why: format!("the API server says {} ({})", status.message.trim(), status.code),
        retry_after,
    };
    let of_budget = |message: &str| {
        let (budget, why) = budget(message, namespace);
        Answer::Budget { budget, why, retry_after }
    };
    match status.code {
        404 => Some(Answer::Gone),
        409 if status.message.contains("UID in ") => Some(Answer::Gone),
        403 if cause("NamespaceTerminating").is_some() => Some(Answer::NamespaceEnds),
        // 403: its controller has not kept up with it, which passes by itself.
        403 | 429 if let Some(cause) = cause("DisruptionBudget") => Some(of_budget(&cause.message)),
        429 if status.message.contains("disruption budget") => Some(of_budget(&status.message)),
        500 if status.message.contains("more than one PodDisruptionBudget") => Some(Answer::TooManyBudgets),
        // A race with somebody who wrote on the pod, a webhook without its pod, etcd between two leaders, too many
        // requests of all kinds.
        408 | 409 | 429 | 500.. => Some(busy()),
        _ => None,
    }
}

/// The budget that is named in the API server's words, and the words in ours.
fn budget(message: &str, namespace: &str) -> (Option<String>, String) {
    let rest = message.strip_prefix("The disruption budget ").and_then(|rest| rest.split_once(' '));
    let Some((name, what)) = rest else { return (None, message.to_owned()) };
    let name = format!("{namespace}/{name}");
    let why = format!("budget {name} {}", what.trim_end_matches('.'));
    (Some(name), why)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn status(code: u16, message: &str, cause: Option<(&str, &str)>, retry_after: u32) -> Status {
        let causes: Vec<Value> =
            cause.into_iter().map(|(kind, message)| json!({ "reason": kind, "message": message })).collect();
        let details = json!({ "causes": causes, "retryAfterSeconds": retry_after });
        serde_json::from_value(json!({
            "status": "Failure", "code": code, "message": message, "details": details,
        }))
        .unwrap()
    }

    #[test]
    fn each_refusal_has_its_meaning() {
        let violates = "Cannot evict pod as it would violate the pod's disruption budget.";
        let needs = "The disruption budget web needs 2 healthy pods and has 2 currently";
        let behind = "The disruption budget web is still being processed by the server.";
        let negative = "The disruption budget web does not allow evicting pods currently: pdb disruptions allowed is negative";
        let two = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        let budget = |why: &str, retry_after: Option<u64>| {
            Some(Answer::Budget {
                budget: Some("shop/web".into()),
                why: format!("budget shop/web {why}"),
                retry_after: retry_after.map(Duration::from_secs),
            })
        };
        let unnamed = Some(Answer::Budget { budget: None, why: violates.into(), retry_after: None });
        let busy = |why: &str, retry_after: Option<u64>| {
            Some(Answer::Busy { why: why.into(), retry_after: retry_after.map(Duration::from_secs) })
        };
        for (status, expected) in [
            (status(404, "pods \"web-1\" not found", None, 0), Some(Answer::Gone)),
            (
                status(
                    409,
                    "Operation cannot be fulfilled on Pod \"a\": the UID in the precondition (x) does not match the UID in record (y).",
                    None,
                    0,
                ),
                Some(Answer::Gone),
            ),
            (
                status(409, "Precondition failed: UID in precondition: x, UID in object meta: y", None, 0),
                Some(Answer::Gone),
            ),
            (
                status(409, "the object has been modified", None, 0),
                busy("the API server says the object has been modified (409)", None),
            ),
            (
                status(429, violates, Some(("DisruptionBudget", needs)), 0),
                budget("needs 2 healthy pods and has 2 currently", None),
            ),
            (
                status(429, violates, Some(("DisruptionBudget", behind)), 10),
                budget("is still being processed by the server", Some(10)),
            ),
            (status(429, violates, None, 0), unnamed),
            (
                status(429, "Too many requests, please try again later.", None, 1),
                busy("the API server says Too many requests, please try again later. (429)", Some(1)),
            ),
            (
                status(403, "forbidden", Some(("DisruptionBudget", negative)), 0),
                budget("does not allow evicting pods currently: pdb disruptions allowed is negative", None),
            ),
            (
                status(
                    403,
                    "forbidden",
                    Some(("NamespaceTerminating", "namespace shop is being terminated")),
                    0,
                ),
                Some(Answer::NamespaceEnds),
            ),
            (status(403, "you may not", None, 0), None),
            (status(500, two, None, 0), Some(Answer::TooManyBudgets)),
            (status(500, "etcd: x", None, 0), busy("the API server says etcd: x (500)", None)),
            (status(503, "starts", None, 0), busy("the API server says starts (503)", None)),
            (status(400, "what?", None, 0), None),
            (status(401, "who?", None, 0), None),
            (status(422, "no", None, 0), None),
        ] {
            assert_eq!(meaning(&status, "shop"), expected, "{status:?}");
        }
    }
}
