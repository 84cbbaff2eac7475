//! The API server with the policies, the identities, and the writes they make.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context;
use common::annotations::{
    AGENTS_KEYS, CHANGES_ALLOWED, OTHERS_KEYS, PAUSED, READY, current_version, desired_version,
};
use k8s_openapi::api::{
    core::v1::Node,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tests::{api_server::ApiServer, lab::wait_for, policies};

use Verdict::{Allowed, Refused};

/// Policies and rights take a moment until they are in force.
const IN_FORCE_LIMIT: Duration = Duration::from_mins(1);

/// A key of the kubelet.
pub(crate) const KUBELETS: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// A key that no infrop knows yet.
const LATER: &str = "alpha.node.caos.ch/later";

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// May do everything.
    Admin,
    /// An ordinary user who may write nodes, as infrop is.
    Infrop,
    /// Another one.
    Alice,
    /// Kubelet and node-agent of n1, of n2, of n9 (which does not exist).
    N1,
    N2,
    N9,
    /// Has a node's name, but is not in the group of nodes: `NodeRestriction` does not hold it.
    NamedN1,
    /// Is in the group of nodes without a node's name: `NodeRestriction` does not hold it either.
    Stray,
}

impl Who {
    const ALL: [Self; 8] =
        [Self::Admin, Self::Infrop, Self::Alice, Self::N1, Self::N2, Self::N9, Self::NamedN1, Self::Stray];

    fn identity(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Admin => ("admin", &["system:masters"]),
            Self::Infrop => ("infrop", &[]),
            Self::Alice => ("alice", &[]),
            Self::N1 => ("system:node:n1", &["system:nodes"]),
            Self::N2 => ("system:node:n2", &["system:nodes"]),
            Self::N9 => ("system:node:n9", &["system:nodes"]),
            Self::NamedN1 => ("system:node:n1", &[]),
            Self::Stray => ("stray", &["system:nodes"]),
        }
    }
}

/// A write to one Node.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    /// A merge patch of the Node.
    Merge(&'static str, Value),
    /// A merge patch of its status.
    Status(&'static str, Value),
    /// A server-side apply.
    Apply(&'static str, Value),
    /// A PUT of the whole object, after merging this into what is there.
    Put(&'static str, Value),
    /// The same through the status.
    PutStatus(&'static str, Value),
    /// A new Node.
    Create(Value),
    Delete(&'static str),
}

/// What the server has to say to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// Refused with this status and these words in the message.
    Refused(u16, &'static str),
}

pub(crate) const BY_NODE_WRITES: Verdict = Refused(403, "ValidatingAdmissionPolicy 'infrop-node-writes'");
pub(crate) const BY_AGENT_KEYS: Verdict = Refused(403, "ValidatingAdmissionPolicy 'infrop-agent-keys'");
pub(crate) const BY_PERMIT_VALUE: Verdict = Refused(422, "ValidatingAdmissionPolicy 'infrop-permit-value'");
pub(crate) const BY_NODE_RESTRICTION: Verdict = Refused(403, "is not allowed to modify node");
pub(crate) const BY_RIGHTS: Verdict = Refused(403, "cannot delete resource");

/// An API server with the policies in force and two nodes: n1 with all annotations and cordoned, n2 with nothing.
pub(crate) struct Fixture {
    nodes: BTreeMap<Who, Api<Node>>,
    /// Whether writes are only tried: admission is the same for them.
    pub(crate) dry_run: bool,
    // Dropped last: it ends the server.
    _server: ApiServer,
}

impl Fixture {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let server = ApiServer::start().await?;
        let mut nodes = BTreeMap::new();
        for who in Who::ALL {
            let (user, groups) = who.identity();
            nodes.insert(who, Api::all(server.client(user, groups).await?));
        }
        let admin = server.admin().await?;
        allow_to_write_nodes(&admin, &[Who::Infrop, Who::Alice, Who::NamedN1, Who::Stray]).await?;
        policies::apply(&admin).await?;
        let mut fixture = Self { nodes, dry_run: true, _server: server };
        for name in ["n1", "n2"] {
            let node = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
            fixture.of(Who::Admin)?.create(&PostParams::default(), &node).await?;
        }
        fixture.wait_until_in_force().await?;
        fixture.dry_run = false;
        let of_infrop: Value = others_keys()?.into_iter().map(|key| (key, json!("false"))).collect();
        let of_agent: Value = agents_keys()?.into_iter().map(|key| (key, json!("false"))).collect();
        let cordoned = json!({ "metadata": { "annotations": of_infrop }, "spec": { "unschedulable": true } });
        fixture.expect(Who::Infrop, "infrop prepares", Write::Merge("n1", cordoned), Allowed).await?;
        let own = json!({ "metadata": { "annotations": of_agent } });
        fixture.expect(Who::N1, "node-agent prepares", Write::Merge("n1", own), Allowed).await?;
        fixture.dry_run = true;
        Ok(fixture)
    }

    pub(crate) fn of(&self, who: Who) -> anyhow::Result<&Api<Node>> {
        self.nodes.get(&who).context("everyone has a client")
    }

    async fn wait_until_in_force(&self) -> anyhow::Result<()> {
        // The last four tell when the rights are there; that n1 may write comes from the Node authorizer.
        let probes = [
            (Who::Admin, annotation("n1", READY, "true"), BY_AGENT_KEYS),
            (Who::N1, annotation("n1", PAUSED, "x"), BY_NODE_WRITES),
            (Who::Admin, annotation("n1", CHANGES_ALLOWED, "yes"), BY_PERMIT_VALUE),
            (Who::Infrop, annotation("n1", "test", "x"), Allowed),
            (Who::Alice, annotation("n1", "test", "x"), Allowed),
            (Who::NamedN1, annotation("n1", "test", "x"), Allowed),
            (Who::Stray, annotation("n1", "test", "x"), Allowed),
        ];
        for (who, write, verdict) in probes {
            wait_for(IN_FORCE_LIMIT, &format!("{who:?} hears {verdict:?}"), async || {
                Ok(self.expect(who, "probe", write.clone(), verdict).await.is_ok())
            })
            .await?;
        }
        Ok(())
    }

    /// Makes a write and compares the answer.
    pub(crate) async fn expect(
        &self,
        who: Who,
        what: &str,
        write: Write,
        verdict: Verdict,
    ) -> anyhow::Result<()> {
        // A write may have thousands of keys.
        let shown = format!("{who:?}: {what} ({:.200})", format!("{write:?}"));
        match (self.write(who, write).await, verdict) {
            (Ok(()), Allowed) => Ok(()),
            (Ok(()), Refused(..)) => anyhow::bail!("{shown}: allowed, but {verdict:?} is right"),
            (Err(kube::Error::Api(status)), Refused(code, words))
                if status.code == code && status.message.contains(words) =>
            {
                Ok(())
            }
            (Err(error), _) => anyhow::bail!("{shown}: {error}, but {verdict:?} is right"),
        }
    }

    async fn write(&self, who: Who, write: Write) -> kube::Result<()> {
        let Some(nodes) = self.nodes.get(&who) else { return Ok(()) };
        let patch = PatchParams { dry_run: self.dry_run, ..PatchParams::default() };
        let post = PostParams { dry_run: self.dry_run, ..PostParams::default() };
        match write {
            Write::Merge(name, change) => nodes.patch(name, &patch, &Patch::Merge(change)).await.map(drop),
            Write::Status(name, change) => {
                nodes.patch_status(name, &patch, &Patch::Merge(change)).await.map(drop)
            }
            Write::Apply(name, change) => {
                let mut object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
                merge(&mut object, &change);
                let apply = PatchParams {
                    force: true,
                    field_manager: Some(format!("{who:?}").to_lowercase()),
                    ..patch
                };
                nodes.patch(name, &apply, &Patch::Apply(object)).await.map(drop)
            }
            Write::Put(name, change) => {
                nodes.replace(name, &post, &self.merged(name, &change).await?).await.map(drop)
            }
            Write::PutStatus(name, change) => {
                nodes.replace_status(name, &post, &self.merged(name, &change).await?).await.map(drop)
            }
            Write::Create(object) => {
                let node = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
                nodes.create(&post, &node).await.map(drop)
            }
            Write::Delete(name) => {
                let delete = DeleteParams { dry_run: self.dry_run, ..DeleteParams::default() };
                nodes.delete(name, &delete).await.map(drop)
            }
        }
    }

    /// A Node as it is, with a change merged into it.
    async fn merged(&self, name: &str, change: &Value) -> kube::Result<Node> {
        let Some(admin) = self.nodes.get(&Who::Admin) else { return Ok(Node::default()) };
        let mut object = serde_json::to_value(admin.get(name).await?).map_err(kube::Error::SerdeError)?;
        merge(&mut object, change);
        serde_json::from_value(object).map_err(kube::Error::SerdeError)
    }
}

/// A JSON merge patch.
pub(crate) fn merge(object: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *object = change.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    let Value::Object(object) = object else { return };
    for (key, value) in change {
        if value.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key).or_insert(Value::Null), value);
        }
    }
}

async fn allow_to_write_nodes(admin: &Client, whom: &[Who]) -> anyhow::Result<()> {
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": { "name": "writes-nodes" },
        "rules": [{
            "apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "create", "update", "patch"],
        }],
    }))?;
    let users = whom.iter().map(|who| json!({ "kind": "User", "name": who.identity().0 }));
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "writes-nodes" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "writes-nodes" },
        "subjects": users.collect::<Vec<_>>(),
    }))?;
    Api::all(admin.clone()).create(&PostParams::default(), &role).await?;
    Api::all(admin.clone()).create(&PostParams::default(), &binding).await?;
    Ok(())
}

pub(crate) fn others_keys() -> anyhow::Result<Vec<String>> {
    let desired = [desired_version(&"kubelet".parse()?), desired_version(&"containerd-config".parse()?)];
    Ok(OTHERS_KEYS.map(str::to_owned).into_iter().chain(desired).chain([LATER.to_owned()]).collect())
}

pub(crate) fn agents_keys() -> anyhow::Result<Vec<String>> {
    let current = [current_version(&"kubelet".parse()?), current_version(&"containerd-config".parse()?)];
    Ok(AGENTS_KEYS.map(str::to_owned).into_iter().chain(current).collect())
}

pub(crate) fn annotations(key: &str, value: impl Into<Value>) -> Value {
    json!({ "metadata": { "annotations": { key: value.into() } } })
}

/// Writes a key.
pub(crate) fn annotation(node: &'static str, key: &str, value: &str) -> Write {
    Write::Merge(node, annotations(key, value))
}

/// Writes a key through the status.
pub(crate) fn status_annotation(node: &'static str, key: &str, value: &str) -> Write {
    Write::Status(node, annotations(key, value))
}

/// A new Node with a key.
pub(crate) fn preset(node: &str, key: &str, value: &str) -> Write {
    Write::Create(json!({ "metadata": { "name": node, "annotations": { key: value } } }))
}

pub(crate) fn cordon(value: impl Into<Value>) -> Value {
    json!({ "spec": { "unschedulable": value.into() } })
}
