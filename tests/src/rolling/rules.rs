//! The invariants of a rollout (I1 to I7), read from everything that was written, in the order in which it was.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use common::{
    annotations::{CHANGES_ALLOWED, CORDONED_BY, STATE},
    state::{Phase, State},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::audit::{Object, Write};

/// A Node at a moment, as far as rules speak of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are facts that do not exclude each other")]
struct Moment {
    permit: bool,
    cordoned: bool,
    mark: Option<String>,
    control_plane: bool,
    kubelet: String,
    changing: bool,
}

impl Moment {
    /// After a write. Agents ask for metadata alone in answer to theirs; the rest is as it was before.
    fn of(node: &Node, before: &Self) -> Self {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let state = node.annotations().get(STATE).and_then(|text| serde_json::from_str::<State>(text).ok());
        Self {
            permit: node.annotations().get(CHANGES_ALLOWED).is_some_and(|value| value == "true"),
            cordoned: node.spec.as_ref().map_or(before.cordoned, |spec| spec.unschedulable.unwrap_or(false)),
            mark: node.annotations().get(CORDONED_BY).cloned(),
            control_plane: node.labels().contains_key("node-role.kubernetes.io/control-plane"),
            kubelet: info.map_or_else(|| before.kubelet.clone(), |info| info.kubelet_version.clone()),
            changing: state.is_some_and(|state| matches!(state.phase, Phase::Changing | Phase::Rebooting)),
        }
    }
}

/// What a rollout had to keep to.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// How many workers may have a permit at once.
    pub limit: usize,
    /// A node that a person cordoned.
    pub foreign: Option<&'a str>,
    /// The kubelet of every node at the end.
    pub version: &'a str,
}

/// The cluster while it is read.
#[derive(Debug, Default)]
struct Cluster {
    nodes: BTreeMap<String, Moment>,
    /// Whether each etcd is ready.
    etcd: BTreeMap<String, bool>,
}

impl Rules<'_> {
    /// Whether none was broken by anything in `writes`, and the end is as it should be. Gives how many writes of Nodes and
    /// of etcd's pods there were.
    pub fn check(&self, writes: &[Write]) -> anyhow::Result<usize> {
        let mut cluster = Cluster::default();
        for write in writes {
            match &write.object {
                Object::Pod(pod) => cluster.take_pod(pod),
                Object::Node(node) => {
                    self.step(&mut cluster, write, node).with_context(|| {
                        format!(
                            "at {} ({} by {})",
                            write.time,
                            node.metadata.resource_version.as_deref().unwrap_or_default(),
                            write.user
                        )
                    })?;
                }
            }
        }
        for (name, node) in &cluster.nodes {
            ensure!(!node.permit, "I8: {name} still has its permit");
            ensure!(node.kubelet == self.version, "I8: {name} has {}", node.kubelet);
            let cordoned = Some(name.as_str()) == self.foreign;
            ensure!(node.cordoned == cordoned, "I5: {name} is cordoned: {}", node.cordoned);
        }
        Ok(writes.len())
    }

    fn step(&self, cluster: &mut Cluster, write: &Write, node: &Node) -> anyhow::Result<()> {
        let name = node.name_any();
        let known = cluster.nodes.contains_key(&name);
        let before = cluster.nodes.get(&name).cloned().unwrap_or_default();
        let moment = Moment::of(node, &before);
        cluster.nodes.insert(name.clone(), moment.clone());
        // A permit that was withdrawn does not end what an agent is in the middle of.
        let under_way = |control_plane: bool| {
            let nodes = cluster.nodes.iter().filter(|(_, node)| node.permit || node.changing);
            let nodes = nodes.filter(|(_, node)| node.control_plane == control_plane);
            nodes.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        };
        ensure!(under_way(false).len() <= self.limit, "I1: {:?} were under way at once", under_way(false));
        ensure!(under_way(true).len() <= 1, "I2: {:?} were under way at once", under_way(true));
        if moment.permit && !before.permit && known {
            let away = cluster.etcd.iter().find(|(_, ready)| !**ready);
            ensure!(
                !moment.control_plane || away.is_none(),
                "I3: {name} was permitted while {away:?} was not ready"
            );
            let late =
                cluster.nodes.iter().find(|(_, node)| node.control_plane && node.kubelet != self.version);
            ensure!(moment.control_plane || late.is_none(), "I6: {name} was permitted before {late:?}");
        }
        let agent = write.user == format!("system:node:{name}");
        ensure!(
            !known || !moment.changing || before.changing || (moment.permit && agent),
            "I4: {name} began to change without a permit"
        );
        ensure!(
            before.kubelet.is_empty() || moment.kubelet == before.kubelet || moment.permit,
            "I4: the kubelet of {name} changed without a permit"
        );
        if Some(name.as_str()) == self.foreign {
            // Its kubelet may have written before the person cordoned it.
            ensure!(moment.cordoned || !before.cordoned, "I5: {name} was uncordoned");
            ensure!(moment.mark.is_none(), "I5: {name} was marked as ours");
        }
        let known = cluster.nodes.values().filter(|node| node.control_plane && !node.kubelet.is_empty());
        let oldest = known.map(|node| &node.kubelet).min();
        ensure!(
            moment.control_plane || oldest.is_none_or(|oldest| moment.kubelet <= *oldest),
            "I7: the kubelet of {name} is newer than a control plane"
        );
        Ok(())
    }
}

impl Cluster {
    fn take_pod(&mut self, pod: &Pod) {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
        let ready = conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
        self.etcd.insert(pod.name_any(), ready);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RULES: Rules<'static> = Rules { limit: 1, foreign: Some("w-3"), version: "v1.37.1" };

    fn node(name: &str, permit: bool, kubelet: &str, phase: &str) -> Value {
        let labels = if name.starts_with("cp-") {
            json!({ "node-role.kubernetes.io/control-plane": "" })
        } else {
            json!({})
        };
        let state = json!({
            "phase": phase, "reason": "UpToDate", "message": "", "since": "2026-11-16T00:00:00Z",
            "attempt": 0, "bootId": "", "agentVersion": "",
        });
        json!({
            "metadata": {
                "name": name, "labels": labels,
                "annotations": { CHANGES_ALLOWED: permit.to_string(), STATE: state.to_string() },
            },
            "spec": { "unschedulable": name == "w-3" },
            "status": { "nodeInfo": {
                "kubeletVersion": kubelet, "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "",
                "osImage": "", "systemUUID": "",
            }},
        })
    }

    fn write(user: &str, node: Value) -> Write {
        let time = "2026-11-16T00:00:00Z".parse().unwrap();
        Write { user: user.to_owned(), time, object: Object::Node(serde_json::from_value(node).unwrap()) }
    }

    fn etcd(ready: &str) -> Write {
        let pod = json!({
            "metadata": { "name": "etcd-cp-2" },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        let time = "2026-11-16T00:00:00Z".parse().unwrap();
        let object = Object::Pod(serde_json::from_value(pod).unwrap());
        Write { user: "system:node:cp-2".to_owned(), time, object }
    }

    fn beginning() -> Vec<Write> {
        let mut first = node("w-3", false, "v1.36.4", "Idle");
        *first.pointer_mut("/spec/unschedulable").unwrap() = json!(false);
        let first = write("system:node:w-3", first);
        let nodes = ["cp-1", "cp-2", "w-1", "w-2", "w-3"];
        let nodes = nodes.map(|name| write("infrop", node(name, false, "v1.36.4", "Idle")));
        [first].into_iter().chain(nodes).collect()
    }

    fn error(more: Vec<Write>) -> String {
        let writes: Vec<Write> = beginning().into_iter().chain(more).collect();
        format!("{:#}", RULES.check(&writes).unwrap_err())
    }

    #[test]
    fn each_rule_is_missed_when_it_is_broken() {
        let permit = |name: &str| write("infrop", node(name, true, "v1.36.4", "Waiting"));
        let new = |name: &str| write("infrop", node(name, false, "v1.37.1", "Idle"));
        let through = |name: &str| {
            vec![permit(name), write("infrop", node(name, true, "v1.37.1", "Waiting")), new(name)]
        };
        let planes: Vec<Write> = ["cp-1", "cp-2"].iter().flat_map(|name| through(name)).collect();
        let after = |more: Vec<Write>| planes.clone().into_iter().chain(more).collect::<Vec<_>>();
        let mut lifted = node("w-3", false, "v1.36.4", "Idle");
        *lifted.pointer_mut("/spec/unschedulable").unwrap() = json!(false);
        for (rule, writes) in [
            ("I1", after(vec![permit("w-1"), permit("w-2")])),
            ("I2", vec![permit("cp-1"), permit("cp-2")]),
            (
                "I2",
                vec![
                    permit("cp-1"),
                    write("system:node:cp-1", node("cp-1", true, "v1.36.4", "Changing")),
                    write("infrop", node("cp-1", false, "v1.36.4", "Changing")),
                    permit("cp-2"),
                ],
            ),
            ("I3", vec![etcd("False"), permit("cp-1")]),
            ("I4", vec![write("system:node:w-1", node("w-1", false, "v1.36.4", "Changing"))]),
            ("I4", vec![write("someone", node("cp-1", true, "v1.36.4", "Changing"))]),
            ("I4", vec![write("system:node:cp-1", node("cp-1", false, "v1.37.1", "Idle"))]),
            ("I5", vec![write("infrop", lifted)]),
            ("I6", vec![permit("w-1")]),
            ("I7", vec![write("infrop", node("w-1", true, "v1.37.1", "Idle"))]),
            ("I8", planes.clone()),
        ] {
            let error = error(writes);
            let told = error.contains(rule) || (rule == "I7" && error.contains("I6"));
            assert!(told, "{rule}: {error}");
        }
        let whole: Vec<Write> = after(["w-1", "w-2", "w-3"].iter().flat_map(|name| through(name)).collect());
        let writes: Vec<Write> = beginning().into_iter().chain([etcd("True")]).chain(whole).collect();
        assert_eq!(RULES.check(&writes).unwrap(), 6 + 1 + 15);
    }
}
