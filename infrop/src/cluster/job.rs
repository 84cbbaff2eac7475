//! A Job on one node, to its end.

use std::{path::Path, time::Duration};

use common::metadata::NodeName;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, LogParams, PostParams},
};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::error::{Attempt, Error};
use crate::desired::CheckName;

/// Which check a Job is.
const CHECK: &str = "infrop.caos.ch/check";

/// Which node it is for. No label, because a node's name may be longer than a label's value.
const NODE: &str = "infrop.caos.ch/node";

/// What a manifest without a namespace means to kubectl, too.
const DEFAULT_NAMESPACE: &str = "default";

/// Between two looks at a Job.
const INTERVAL: Duration = Duration::from_secs(1);

/// The Job's own limit is over before ours is: then it says so itself.
const GRACE: Duration = Duration::from_secs(5);

/// A Job that a killed infrop left is gone so long after its end.
const LEFTOVER_SECONDS: u32 = 600;

/// What a pod said last is worth so long a wait.
const LOG_LIMIT: Duration = Duration::from_secs(5);

/// As many lines as fit into a message.
const LOG_LINES: i64 = 20;

/// The manifest of a Job.
#[derive(Debug, Clone)]
pub struct JobManifest(Map<String, Value>);

impl JobManifest {
    /// Of a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let wrong = |why: String| Error::Manifest { file: path.display().to_string(), why };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(wrong)
    }

    /// Of its text: one Job that has the form of one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
        let is = |key: &str, expected: &str| value.get(key).and_then(Value::as_str) == Some(expected);
        if !is("apiVersion", "batch/v1") || !is("kind", "Job") {
            return Err("is not a Job of batch/v1".to_owned());
        }
        let job: Job = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
        let pod = job.spec.and_then(|spec| spec.template.spec);
        if pod.is_none_or(|pod| pod.containers.is_empty()) {
            return Err("has no containers in spec.template.spec".to_owned());
        }
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err("is not a Job of batch/v1".to_owned()),
        }
    }

    /// The Job for a node. Fields that we do not know stay as they are.
    fn on(&self, check: &CheckName, node: &NodeName, limit: Duration) -> Result<DynamicObject, String> {
        let mut job = Value::Object(self.0.clone());
        let metadata = fields(&mut job, &["metadata"])?;
        // Each attempt has one of its own.
        metadata.remove("name");
        metadata.insert("generateName".to_owned(), json!(format!("infrop-check-{check}-")));
        metadata.entry("namespace").or_insert_with(|| json!(DEFAULT_NAMESPACE));
        fields(&mut job, &["metadata", "labels"])?.insert(CHECK.to_owned(), json!(check.as_str()));
        fields(&mut job, &["metadata", "annotations"])?.insert(NODE.to_owned(), json!(node.as_str()));
        let spec = fields(&mut job, &["spec"])?;
        let own = spec.get("activeDeadlineSeconds").and_then(Value::as_u64).unwrap_or(u64::MAX);
        spec.insert("activeDeadlineSeconds".to_owned(), json!(own.min(limit.as_secs().max(1))));
        // Who tries again is infrop.
        spec.entry("backoffLimit").or_insert_with(|| json!(0));
        spec.entry("ttlSecondsAfterFinished").or_insert_with(|| json!(LEFTOVER_SECONDS));
        let pod = fields(&mut job, &["spec", "template", "spec"])?;
        pod.entry("restartPolicy").or_insert_with(|| json!("Never"));
        let tolerations = pod.entry("tolerations").or_insert_with(|| json!([]));
        if let Some(tolerations) = tolerations.as_array_mut() {
            // The cordon, and what keeps workloads from control planes.
            tolerations.push(json!({ "operator": "Exists", "effect": "NoSchedule" }));
        }
        // As pods of DaemonSets are: by the Node's name, which its label with the host's name may not be.
        let terms = json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node.as_str()] }] }]);
        fields(&mut job, &["spec", "template", "spec", "affinity", "nodeAffinity"])?.insert(
            "requiredDuringSchedulingIgnoredDuringExecution".to_owned(),
            json!({ "nodeSelectorTerms": terms }),
        );
        serde_json::from_value(job).map_err(|error| error.to_string())
    }
}

/// The fields of a map within maps; made if it is not there.
fn fields<'v>(value: &'v mut Value, path: &[&str]) -> Result<&'v mut Map<String, Value>, String> {
    let mut place = value;
    for key in path {
        let map = place.as_object_mut().ok_or_else(|| format!("{key} is in something that is no map"))?;
        place = map.entry(*key).or_insert(Value::Null);
        if place.is_null() {
            *place = json!({});
        }
    }
    place.as_object_mut().ok_or_else(|| format!("{} is no map", path.join(".")))
}

/// Runs a Job on a node and takes it away again; why it did not complete, if it did not. What a run before left of the
/// same check on this node goes first.
pub async fn run_job(
    client: &kube::Client,
    manifest: &JobManifest,
    check: &CheckName,
    node: &NodeName,
    limit: Duration,
) -> Result<Result<(), String>, Error> {
    let job = match manifest.on(check, node, limit) {
        Ok(job) => job,
        Err(why) => return Ok(Err(why)),
    };
    let namespace = job.namespace().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    let resource = ApiResource::erase::<Job>(&());
    let dynamic: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
    let jobs: Api<Job> = Api::namespaced(client.clone(), &namespace);
    let same = ListParams::default().labels(&format!("{CHECK}={check}"));
    for left in jobs.list(&same).await.to("list the Jobs of checks")? {
        if left.annotations().get(NODE).is_some_and(|of| of == node.as_str()) {
            delete(&jobs, &left.name_any()).await?;
        }
    }
    let what = format!("make a Job of the check {check} in the namespace {namespace}");
    let name = dynamic.create(&PostParams::default(), &job).await.to(what)?.name_any();
    let result = wait(&jobs, &name, limit).await;
    let result = match result {
        Ok(Err(why)) => Ok(Err(match last_words(client, &namespace, &name).await {
            Some(words) => format!("{why}: {words}"),
            None => why,
        })),
        other => other,
    };
    delete(&jobs, &name).await?;
    result
}

/// Waits for its end.
async fn wait(jobs: &Api<Job>, name: &str, limit: Duration) -> Result<Result<(), String>, Error> {
    let deadline = Instant::now() + limit + GRACE;
    loop {
        let Some(job) = jobs.get_opt(name).await.to(format!("read the Job {name}"))? else {
            return Ok(Err(format!("somebody deleted the Job {name}")));
        };
        let conditions = job.status.into_iter().flat_map(|status| status.conditions.unwrap_or_default());
        for condition in conditions.filter(|condition| condition.status == "True") {
            match condition.type_.as_str() {
                "Complete" => return Ok(Ok(())),
                "Failed" => {
                    let reason = condition.reason.unwrap_or_default();
                    let message = condition.message.unwrap_or_default();
                    return Ok(Err(format!("the Job {name} failed ({reason}): {message}")));
                }
                _ => {}
            }
        }
        if Instant::now() >= deadline {
            return Ok(Err(format!("the Job {name} did not end within {} s", limit.as_secs())));
        }
        sleep(INTERVAL).await;
    }
}

/// What its pod said last. Nobody depends on it: the pod may never have run.
async fn last_words(client: &kube::Client, namespace: &str, job: &str) -> Option<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let of_job = ListParams::default().labels(&format!("job-name={job}"));
    let look = async {
        let pod = pods.list(&of_job).await.ok()?.items.pop()?;
        let parameters = LogParams { tail_lines: Some(LOG_LINES), ..LogParams::default() };
        pods.logs(&pod.name_any(), &parameters).await.ok()
    };
    let words = timeout(LOG_LIMIT, look).await.ok()??;
    Some(words.trim().to_owned()).filter(|words| !words.is_empty())
}

/// With its pods.
async fn delete(jobs: &Api<Job>, name: &str) -> Result<(), Error> {
    match jobs.delete(name, &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop).to(format!("delete the Job {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMOKE: &str = "\
apiVersion: batch/v1
kind: Job
metadata: { name: smoke, namespace: checks, labels: { app: smoke } }
spec:
  activeDeadlineSeconds: 900
  later: { field: 1 }
  template:
    spec:
      nodeSelector: { disk: ssd }
      tolerations: [{ key: a, operator: Exists }]
      containers: [{ name: a, image: example.com/a }]
";

    fn on(text: &str) -> Value {
        let job = JobManifest::parse(text).unwrap();
        let job = job.on(&"smoke".parse().unwrap(), &"w-1".parse().unwrap(), Duration::from_mins(1));
        serde_json::to_value(job.unwrap()).unwrap()
    }

    #[test]
    fn a_job_is_bound_to_its_node_and_its_limit() {
        let job = on(SMOKE);
        assert_eq!(
            job["metadata"],
            json!({
                "generateName": "infrop-check-smoke-", "namespace": "checks",
                "labels": { "app": "smoke", CHECK: "smoke" }, "annotations": { NODE: "w-1" },
            })
        );
        let spec = &job["spec"];
        assert_eq!(spec["activeDeadlineSeconds"], 60);
        assert_eq!(spec["backoffLimit"], 0);
        assert_eq!(spec["later"]["field"], 1);
        let pod = &spec["template"]["spec"];
        assert_eq!(pod["restartPolicy"], "Never");
        assert_eq!(pod["nodeSelector"]["disk"], "ssd");
        assert_eq!(pod["tolerations"][1], json!({ "operator": "Exists", "effect": "NoSchedule" }));
        let affinity = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!(["w-1"]));
    }

    #[test]
    fn what_is_no_job_is_refused() {
        for (from, to, expected) in [
            ("kind: Job", "kind: Pod", "is not a Job of batch/v1"),
            ("batch/v1", "v1", "is not a Job of batch/v1"),
            ("[{ name: a, image: example.com/a }]", "[]", "has no containers in spec.template.spec"),
            ("[{ name: a, image: example.com/a }]", "7", ""),
            ("kind: Job", "kind: Job\n---\nkind: Job", ""),
            ("apiVersion", "{", ""),
        ] {
            let error = JobManifest::parse(&SMOKE.replacen(from, to, 1)).unwrap_err();
            assert!(expected.is_empty() || error == expected, "{from}: {error}");
        }
        assert!(JobManifest::parse("").is_err());
        assert_eq!(on(&SMOKE.replacen("namespace: checks, ", "", 1))["metadata"]["namespace"], "default");
    }
}
