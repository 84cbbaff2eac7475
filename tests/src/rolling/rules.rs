//! The invariants of a rollout (I1 to I8), read from everything that was written, in the order in which it was.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use common::{
    KubernetesVersion,
    annotations::{CHANGES_ALLOWED, CORDONED_BY, PERMITTED_PLAN, PLAN, PLAN_OBSERVED, STATE},
    skew,
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
    /// The plan that the permit is for, the one that is written, and the one that its agent speaks of.
    permitted: Option<String>,
    plan: Option<String>,
    observed: Option<String>,
    cordoned: bool,
    mark: Option<String>,
    /// By its kubelet, or by the node controller for it.
    ready: bool,
    control_plane: bool,
    kubelet: Option<KubernetesVersion>,
    phase: Option<Phase>,
}

impl Moment {
    /// After a write. Agents ask for metadata alone in answer to theirs; the rest is as it was before.
    fn of(node: &Node, before: &Self) -> anyhow::Result<Self> {
        let text = |key: &str| node.annotations().get(key).cloned();
        let state = text(STATE).and_then(|text| serde_json::from_str::<State>(&text).ok());
        let status = node.status.as_ref();
        let conditions = status.map(|status| status.conditions.iter().flatten());
        let ready = conditions.map(|mut all| all.any(|one| one.type_ == "Ready" && one.status == "True"));
        let info = status.and_then(|status| status.node_info.as_ref());
        let kubelet = info.map(|info| info.kubelet_version.parse()).transpose()?;
        Ok(Self {
            permit: text(CHANGES_ALLOWED).is_some_and(|value| value == "true"),
            permitted: text(PERMITTED_PLAN),
            plan: text(PLAN),
            observed: text(PLAN_OBSERVED),
            cordoned: node.spec.as_ref().map_or(before.cordoned, |spec| spec.unschedulable.unwrap_or(false)),
            mark: text(CORDONED_BY),
            ready: ready.unwrap_or(before.ready),
            control_plane: node.labels().contains_key("node-role.kubernetes.io/control-plane"),
            kubelet: kubelet.or_else(|| before.kubelet.clone()),
            phase: state.map(|state| state.phase),
        })
    }

    /// Whether its agent changes something on the host.
    fn is_changing(&self) -> bool {
        matches!(self.phase, Some(Phase::Changing | Phase::Rebooting))
    }

    /// Whether pods cannot count on it, whyever.
    fn is_away(&self) -> bool {
        let working = self.is_changing() || self.phase == Some(Phase::Verifying);
        self.permit || self.cordoned || !self.ready || working
    }
}

/// What a rollout had to keep to.
#[derive(Debug, Clone)]
pub struct Rules<'a> {
    /// How many workers may be away when one of them is permitted, itself included.
    pub limit: usize,
    /// A node that a person cordoned.
    pub foreign: Option<&'a str>,
    /// The kubelet of every node at the end.
    pub version: KubernetesVersion,
    /// All control planes; each has an etcd.
    pub control_planes: &'a [&'a str],
    /// The nodes that are taken through: where nothing happens no rule is broken either.
    pub expected: &'a [&'a str],
}

/// The cluster while it is read.
#[derive(Debug, Default)]
struct Cluster {
    nodes: BTreeMap<String, Moment>,
    /// Whether the etcd of each control plane is ready.
    etcd: BTreeMap<String, bool>,
    /// The API server of each control plane.
    servers: BTreeMap<String, KubernetesVersion>,
    /// The nodes that had a permit, and those whose agent began.
    permitted: BTreeSet<String>,
    begun: BTreeSet<String>,
}

impl Rules<'_> {
    /// Whether none was broken by anything in `writes`, and the end is as it should be. Gives how many writes of Nodes and
    /// of pods there were.
    pub fn check(&self, writes: &[Write]) -> anyhow::Result<usize> {
        let mut cluster = Cluster::default();
        for write in writes {
            let (metadata, result) = match &write.object {
                Object::Pod(pod) => (&pod.metadata, cluster.take_pod(pod)),
                Object::Node(node) => (&node.metadata, self.step(&mut cluster, &write.user, node)),
            };
            result.with_context(|| {
                let revision = metadata.resource_version.as_deref().unwrap_or_default();
                format!("at {} ({revision} by {})", write.time, write.user)
            })?;
        }
        self.end(&cluster)?;
        Ok(writes.len())
    }

    fn step(&self, cluster: &mut Cluster, user: &str, node: &Node) -> anyhow::Result<()> {
        let name = node.name_any();
        let before = cluster.nodes.get(&name).cloned().unwrap_or_default();
        let moment = Moment::of(node, &before)?;
        cluster.nodes.insert(name.clone(), moment.clone());
        if moment.permit && !before.permit {
            cluster.permitted.insert(name.clone());
            self.on_permit(cluster, &name, &moment)?;
        }
        // A permit that was withdrawn does not end what an agent is in the middle of.
        let under_way = |control_plane: bool| {
            let nodes = cluster.nodes.iter().filter(|(_, node)| node.permit || node.is_changing());
            let nodes = nodes.filter(|(_, node)| node.control_plane == control_plane);
            nodes.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        };
        ensure!(under_way(false).len() <= self.limit, "I1: {:?} were under way at once", under_way(false));
        ensure!(under_way(true).len() <= 1, "I2: {:?} were under way at once", under_way(true));
        if moment.is_changing() && !before.is_changing() {
            cluster.begun.insert(name.clone());
            on_begin(&name, user, &moment)?;
        }
        if Some(name.as_str()) == self.foreign {
            // Its kubelet may have written before the person cordoned it.
            ensure!(moment.cordoned || !before.cordoned, "I5: {name} was uncordoned");
            ensure!(moment.mark.is_none(), "I5: {name} was marked as ours");
        }
        match (&before.kubelet, &moment.kubelet) {
            (Some(from), Some(to)) if from != to => {
                ensure!(moment.permit, "I4: the kubelet of {name} changed without a permit");
                self.on_kubelet(cluster, &name, &moment, (from, to))
            }
            _ => Ok(()),
        }
    }

    /// The others of its kind leave room for it, and etcd can do without it or control planes are through.
    fn on_permit(&self, cluster: &Cluster, name: &str, moment: &Moment) -> anyhow::Result<()> {
        let plane = moment.control_plane;
        let others =
            cluster.nodes.iter().filter(|(other, node)| *other != name && node.control_plane == plane);
        let away: Vec<&String> = others.filter(|(_, node)| node.is_away()).map(|(other, _)| other).collect();
        let (rule, limit) = if plane { ("I2", 1) } else { ("I1", self.limit) };
        ensure!(away.len() < limit, "{rule}: {name} was permitted while {away:?} were away");
        if !plane {
            let is_through = |plane: &&&str| {
                cluster.nodes.get(**plane).is_some_and(|node| {
                    node.kubelet.as_ref() == Some(&self.version) && !node.permit && node.mark.is_none()
                })
            };
            let late = self.control_planes.iter().find(|plane| !is_through(plane));
            ensure!(late.is_none(), "I6: {name} was permitted before {late:?} was through");
            return Ok(());
        }
        // One of which nobody wrote is not known to be well.
        let (well, unwell): (Vec<&str>, Vec<&str>) =
            self.control_planes.iter().partition(|plane| cluster.etcd.get(**plane) == Some(&true));
        let all = self.control_planes.len();
        ensure!(
            all == 1 || well.len() > all / 2 + 1,
            "I3: {name} was permitted while the etcd of {unwell:?} was not known to be well"
        );
        Ok(())
    }

    /// One minor version at a time, and never newer than an API server that it may speak with. A control plane's speaks
    /// with its own.
    fn on_kubelet(
        &self,
        cluster: &Cluster,
        name: &str,
        moment: &Moment,
        (from, to): (&KubernetesVersion, &KubernetesVersion),
    ) -> anyhow::Result<()> {
        skew::check_step(from, to).with_context(|| format!("I7: the kubelet of {name}"))?;
        for plane in self.control_planes.iter().filter(|plane| !moment.control_plane || **plane == name) {
            let server = cluster.servers.get(*plane);
            let server = server.with_context(|| format!("I7: the API server of {plane} is not known"))?;
            skew::check_worker(to, server)
                .with_context(|| format!("I7: the kubelet of {name} and {plane}"))?;
        }
        Ok(())
    }

    fn end(&self, cluster: &Cluster) -> anyhow::Result<()> {
        for name in self.expected.iter().chain(self.control_planes) {
            ensure!(cluster.nodes.contains_key(*name), "nothing was written of {name}");
        }
        for name in self.expected {
            ensure!(cluster.permitted.contains(*name), "{name} never had a permit");
            ensure!(cluster.begun.contains(*name), "the agent of {name} never began");
        }
        for (name, node) in &cluster.nodes {
            ensure!(!node.permit, "I8: {name} still has its permit");
            let kubelet = &node.kubelet;
            ensure!(kubelet.as_ref() == Some(&self.version), "I8: {name} has {kubelet:?}");
            let cordoned = Some(name.as_str()) == self.foreign;
            ensure!(node.cordoned == cordoned, "I5: {name} is cordoned: {}", node.cordoned);
            ensure!(node.mark.is_none(), "I8: {name} still has the mark of a cordon");
        }
        Ok(())
    }
}

/// It is the agent's own word, and the permit is for the plan that it begins.
fn on_begin(name: &str, user: &str, moment: &Moment) -> anyhow::Result<()> {
    ensure!(user == format!("system:node:{name}"), "I4: {user} says that {name} changes");
    ensure!(moment.permit, "I4: {name} began to change without a permit");
    let Moment { permitted, plan, observed, .. } = moment;
    ensure!(
        plan.is_some() && permitted == plan && observed == plan,
        "I4: {name} began {observed:?} with a permit for {permitted:?} while the plan was {plan:?}"
    );
    Ok(())
}

impl Cluster {
    /// The pod of an etcd or of an API server; others are of no interest.
    fn take_pod(&mut self, pod: &Pod) -> anyhow::Result<()> {
        let name = pod.name_any();
        if let Some(plane) = name.strip_prefix("etcd-") {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let ready = conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True");
            self.etcd.insert(plane.to_owned(), ready);
        } else if let Some(plane) = name.strip_prefix("kube-apiserver-") {
            let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let image = containers.find_map(|one| one.image.as_deref()).unwrap_or_default();
            let tag = image.rsplit_once(':').map_or(image, |(_, tag)| tag);
            let version: KubernetesVersion = tag.parse().with_context(|| format!("the image of {name}"))?;
            if let Some(from) = self.servers.insert(plane.to_owned(), version.clone()) {
                skew::check_step(&from, &version).with_context(|| format!("I7: {name}"))?;
            }
        }
        Ok(())
    }
}
