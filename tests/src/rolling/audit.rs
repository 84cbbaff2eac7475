//! What every API server of a cluster wrote, also those that are upgraded meanwhile.

use std::time::Duration;

use anyhow::{Context, ensure};
use infrop::provider::lab::{HostName, Lab};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{infrastructure::Infrastructure, lab::wait_for};

const MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
const DIRECTORY: &str = "/var/log/kubernetes";

/// One line per request: all of them.
pub const ALL_REQUESTS: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{ level: Metadata }]
";

/// What became of Nodes, and of the pods of kube-system, by every write.
const WRITES: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
omitManagedFields: true
rules:
- level: RequestResponse
  verbs: [create, update, patch]
  resources: [{ group: "", resources: [nodes, nodes/status] }]
- level: RequestResponse
  verbs: [create, update, patch]
  namespaces: [kube-system]
  resources: [{ group: "", resources: [pods, pods/status] }]
- level: None
"#;

/// Something as it was after a write.
#[derive(Debug, Clone)]
pub enum Object {
    /// A Node.
    Node(Box<Node>),
    /// The pod of an etcd or of an API server.
    Pod(Box<Pod>),
}

/// A write that was made.
#[derive(Debug, Clone)]
pub struct Write {
    /// Who made it.
    pub user: String,
    /// When it was answered.
    pub time: Timestamp,
    /// What it made.
    pub object: Object,
}

/// Has the API server of a control plane keep an audit log, as an administrator would.
pub async fn begin(lab: &Lab, host: &HostName, policy: &str) -> anyhow::Result<()> {
    let mut pod: Value = serde_yaml::from_str(&lab.ssh(host).arg(format!("cat {MANIFEST}")).run().await?)?;
    let command = pod.pointer_mut("/spec/containers/0/command").and_then(Value::as_array_mut);
    command.context("no command")?.extend([
        json!(format!("--audit-policy-file={DIRECTORY}/policy.yaml")),
        json!(format!("--audit-log-path={DIRECTORY}/audit.log")),
    ]);
    let mounts = pod.pointer_mut("/spec/containers/0/volumeMounts").and_then(Value::as_array_mut);
    mounts.context("no mounts")?.push(json!({ "name": "audit", "mountPath": DIRECTORY }));
    let volumes = pod.pointer_mut("/spec/volumes").and_then(Value::as_array_mut).context("no volumes")?;
    volumes.push(json!({ "name": "audit", "hostPath": { "path": DIRECTORY, "type": "DirectoryOrCreate" } }));
    let write = format!("mkdir -p {DIRECTORY}; cat > {DIRECTORY}/policy.yaml");
    lab.ssh(host).arg(write).stdin(policy).run().await?;
    let replace = format!("cat > /root/new; mv /root/new {MANIFEST}");
    lab.ssh(host).arg(replace).stdin(serde_yaml::to_string(&pod)?).run().await?;
    wait_for(Duration::from_mins(3), "the API server keeps an audit log", async || {
        let look = format!(
            "set -e\n\
             option() {{ grep -o -- \"--$1=[0-9.]*\" {MANIFEST} | cut -d= -f2; }}\n\
             test -e {DIRECTORY}/audit.log\n\
             kubectl --kubeconfig /etc/kubernetes/admin.conf --request-timeout=5s \
             --server https://$(option advertise-address):$(option secure-port) get --raw /readyz"
        );
        Ok(lab.ssh(host).arg(look).run().await.is_ok())
    })
    .await
}

/// Has all API servers keep one of what becomes of Nodes, one after the other; also those that kubeadm makes later.
pub async fn begin_everywhere(
    infrastructure: &Infrastructure,
    client: &kube::Client,
    control_planes: &[&str],
) -> anyhow::Result<()> {
    let lab = infrastructure.lab()?;
    for name in control_planes {
        begin(&lab, &name.parse()?, WRITES).await?;
    }
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
    let map = maps.get("kubeadm-config").await?;
    let text =
        map.data.as_ref().and_then(|data| data.get("ClusterConfiguration")).context("no configuration")?;
    let mut configuration: Value = serde_yaml::from_str(text)?;
    let server =
        configuration.get_mut("apiServer").and_then(Value::as_object_mut).context("no API server")?;
    let arguments = server.entry("extraArgs").or_insert_with(|| json!([]));
    arguments.as_array_mut().context("arguments are a list")?.extend([
        json!({ "name": "audit-policy-file", "value": format!("{DIRECTORY}/policy.yaml") }),
        json!({ "name": "audit-log-path", "value": format!("{DIRECTORY}/audit.log") }),
    ]);
    let volume = json!({
        "name": "audit", "hostPath": DIRECTORY, "mountPath": DIRECTORY, "pathType": "DirectoryOrCreate",
    });
    server.insert("extraVolumes".to_owned(), json!([volume]));
    let patch = json!({ "data": { "ClusterConfiguration": serde_yaml::to_string(&configuration)? } });
    maps.patch("kubeadm-config", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// What there is when something begins.
#[derive(Debug)]
pub struct Beginning {
    revision: u64,
    objects: Vec<(u64, Write)>,
}

/// All that rules speak of, as it is now: what nobody writes from here on is in no log.
pub async fn beginning(client: &kube::Client) -> anyhow::Result<Beginning> {
    let list = ListParams::default();
    let nodes = Api::<Node>::all(client.clone()).list(&list).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), "kube-system").list(&list).await?;
    let revision =
        nodes.metadata.resource_version.as_deref().context("a list without a revision")?.parse()?;
    let nodes = nodes.items.into_iter().map(|node| Object::Node(Box::new(node)));
    let pods = pods.items.into_iter().filter(|pod| is_of_interest(&pod.name_any()));
    let objects = nodes.chain(pods.map(|pod| Object::Pod(Box::new(pod)))).map(|object| {
        let metadata = match &object {
            Object::Node(node) => &node.metadata,
            Object::Pod(pod) => &pod.metadata,
        };
        let revision = metadata.resource_version.as_deref().context("no revision")?.parse()?;
        Ok((revision, Write { user: "the beginning".to_owned(), time: Timestamp::now(), object }))
    });
    Ok(Beginning { revision, objects: objects.collect::<anyhow::Result<_>>()? })
}

fn is_of_interest(pod: &str) -> bool {
    pod.starts_with("etcd-") || pod.starts_with("kube-apiserver-")
}

/// What there was at the beginning, and all writes since then, in the order in which they were made.
pub async fn writes(lab: &Lab, control_planes: &[&str], beginning: &Beginning) -> anyhow::Result<Vec<Write>> {
    let mut writes = Vec::new();
    for name in control_planes {
        let text = lab.ssh(&name.parse()?).arg(format!("cat {DIRECTORY}/audit.log")).run().await?;
        let before = writes.len();
        for line in text.lines() {
            writes.extend(read(line)?);
        }
        ensure!(writes.len() > before, "the API server of {name} logged no write");
    }
    Ok(in_order(writes, beginning))
}

fn in_order(mut writes: Vec<(u64, Write)>, beginning: &Beginning) -> Vec<Write> {
    writes.retain(|(revision, _)| *revision > beginning.revision);
    writes.extend(beginning.objects.iter().cloned());
    writes.sort_by_key(|(revision, _)| *revision);
    // One that changed nothing has the revision of the one before.
    writes.dedup_by_key(|(revision, _)| *revision);
    writes.into_iter().map(|(_, write)| write).collect()
}

/// A line of the log: what was made, and etcd's number of it; nothing if it is of no interest.
fn read(line: &str) -> anyhow::Result<Option<(u64, Write)>> {
    // The last line may be half written.
    let Ok(event) = serde_json::from_str::<Value>(line) else { return Ok(None) };
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let code = event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default();
    // A write that was only tried is none.
    let written = (200..300).contains(&code) && !text("/requestURI").contains("dryRun=");
    let Some(object) = event.get("responseObject").filter(|_| written) else {
        return Ok(None);
    };
    let object = match text("/objectRef/resource") {
        "nodes" => {
            let mut object = object.clone();
            if object.get("kind").and_then(Value::as_str) == Some("PartialObjectMetadata") {
                object = json!({ "metadata": object.get("metadata") });
            }
            Object::Node(serde_json::from_value(object).context("not a Node")?)
        }
        "pods" if is_of_interest(text("/responseObject/metadata/name")) => {
            Object::Pod(serde_json::from_value(object.clone()).context("not a pod")?)
        }
        _ => return Ok(None),
    };
    let revision = text("/responseObject/metadata/resourceVersion").parse().context("no revision")?;
    let time = text("/stageTimestamp").parse().context("no time")?;
    let user = text("/user/username").to_owned();
    Ok(Some((revision, Write { user, time, object })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: &str, more: &Value) -> String {
        line_at("42", kind, more)
    }

    fn line_at(revision: &str, kind: &str, more: &Value) -> String {
        let mut object = json!({
            "kind": kind, "apiVersion": if kind == "Node" { "v1" } else { "meta.k8s.io/v1" },
            "metadata": { "name": "w-1", "resourceVersion": revision },
        });
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let event = json!({
            "objectRef": { "resource": "nodes", "name": "w-1" }, "responseStatus": { "code": 200 },
            "stageTimestamp": "2026-11-16T00:00:00.000000Z", "user": { "username": "system:node:w-1" },
            "responseObject": object,
        });
        event.to_string()
    }

    #[test]
    fn a_node_is_read_whole_and_by_its_metadata_alone() {
        let whole = read(&line("Node", &json!({ "spec": { "unschedulable": true } }))).unwrap().unwrap();
        let Object::Node(node) = &whole.1.object else { panic!("not a Node") };
        assert!(whole.0 == 42 && node.spec.as_ref().unwrap().unschedulable == Some(true));
        let partial = read(&line("PartialObjectMetadata", &json!({}))).unwrap().unwrap();
        let Object::Node(node) = &partial.1.object else { panic!("not a Node") };
        assert!(node.metadata.name.as_deref() == Some("w-1") && node.spec.is_none());
        assert!(read("{\"half").unwrap().is_none());
        let tried =
            line("Node", &json!({})).replacen('{', "{\"requestURI\":\"/api/v1/nodes?dryRun=All\",", 1);
        assert!(read(&tried).unwrap().is_none());
    }

    #[test]
    fn what_was_before_the_beginning_is_left_out_and_what_was_there_is_first() {
        let at = |revision: &str| read(&line_at(revision, "Node", &json!({}))).unwrap().unwrap();
        // One of the objects was listed later than the others, and its write is in a log as well.
        let beginning = Beginning { revision: 10, objects: vec![at("3"), at("9"), at("12")] };
        let logged = ["11", "10", "9", "12", "15", "14", "4"].map(at).into();
        let writes = in_order(logged, &beginning);
        let revision = |write: &Write| match &write.object {
            Object::Node(node) => node.resource_version().unwrap(),
            Object::Pod(_) => panic!("not a Node"),
        };
        assert_eq!(writes.iter().map(revision).collect::<Vec<_>>(), ["3", "9", "11", "12", "14", "15"]);
    }
}
