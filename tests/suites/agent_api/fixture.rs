//! An API server as kubeadm leaves it, a Node, and the host that belongs to it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, ensure};
use common::{
    annotations::{CHANGES_ALLOWED, OTHERS_KEYS, PLAN_OBSERVED, READY, STATE, current_version, write_plan},
    plan::Plan,
    software::SoftwareVersion,
    state::{Phase, Reason, State},
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tests::{
    agent_process::AgentProcess, api_server::ApiServer, audit::Request, lab::wait_for, node_agent_path,
    policies,
};

/// The Node under test.
pub(crate) const NODE: &str = "n1";
/// The agent's identity.
pub(crate) const IDENTITY: &str = "system:node:n1";
/// Software that is nothing but a file.
pub(crate) const HAPROXY: &str = "haproxy-config";
pub(crate) const HAPROXY_FILE: &str = "etc/haproxy/haproxy.cfg";

/// What the cluster's kubeadm-config says.
pub(crate) const CLUSTER_VERSION: &str = "v1.36.4";

/// An answer of the agent takes milliseconds; this is for a machine that does something else as well.
const PATIENCE: Duration = Duration::from_secs(40);

/// Server, Node and host.
pub(crate) struct Fixture {
    pub(crate) agent: AgentProcess,
    pub(crate) nodes: Api<Node>,
    pub(crate) server: ApiServer,
}

impl Fixture {
    /// With the policies in force; there is no Node, the host has no credential, and the agent does not run.
    pub(crate) async fn empty(settings: &str) -> anyhow::Result<Self> {
        let server = ApiServer::start().await?;
        policies::enforce(&server).await?;
        let nodes = Api::all(server.admin().await?);
        let fixture = Self { agent: AgentProcess::new(node_agent_path()?, NODE, settings)?, nodes, server };
        fixture.publish_cluster_version().await?;
        Ok(fixture)
    }

    /// With a Node and an agent that has nothing to do.
    pub(crate) async fn idle(settings: &str) -> anyhow::Result<Self> {
        Ok(Self::idle_with(settings, &[]).await?.0)
    }

    /// The same with contents of [`HAPROXY`] delivered before: a delivery makes the agent look at the host.
    pub(crate) async fn idle_with(
        settings: &str,
        contents: &[&str],
    ) -> anyhow::Result<(Self, Vec<SoftwareVersion>)> {
        let mut fixture = Self::empty(settings).await?;
        let versions = contents.iter().map(|text| fixture.agent.deliver(HAPROXY, text));
        let versions = versions.collect::<anyhow::Result<_>>()?;
        fixture.create_node().await?;
        fixture.agent.join(&fixture.server, NODE)?;
        fixture.agent.start()?;
        fixture.wait_for_state(Phase::Idle, Reason::NoPlan).await?;
        Ok((fixture, versions))
    }

    /// The version as kubeadm keeps it, and the right of nodes to read it.
    async fn publish_cluster_version(&self) -> anyhow::Result<()> {
        let client = self.server.admin().await?;
        let name = "kubeadm:nodes-kubeadm-config";
        let configuration = format!("kind: ClusterConfiguration\nkubernetesVersion: {CLUSTER_VERSION}\n");
        let config: ConfigMap = serde_json::from_value(json!({
            "metadata": { "name": "kubeadm-config" }, "data": { "ClusterConfiguration": configuration },
        }))?;
        let role: Role = serde_json::from_value(json!({
            "metadata": { "name": name },
            "rules": [{
                "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["kubeadm-config"], "verbs": ["get"],
            }],
        }))?;
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": [{ "kind": "Group", "name": "system:nodes" }],
        }))?;
        let post = PostParams::default();
        Api::namespaced(client.clone(), "kube-system").create(&post, &config).await?;
        Api::namespaced(client.clone(), "kube-system").create(&post, &role).await?;
        Api::namespaced(client, "kube-system").create(&post, &binding).await?;
        Ok(())
    }

    pub(crate) async fn create_node(&self) -> anyhow::Result<()> {
        let node = serde_json::from_value(json!({ "metadata": { "name": NODE } }))?;
        self.nodes.create(&PostParams::default(), &node).await?;
        Ok(())
    }

    /// Writes annotations in one patch, as infrop or a person; null removes one.
    pub(crate) async fn annotate(&self, annotations: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        self.nodes.patch_metadata(NODE, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Leaves these and no other of infrop's and people's annotations.
    pub(crate) async fn ask_for_nothing_but(&self, wanted: &BTreeMap<String, String>) -> anyhow::Result<()> {
        let mut patch = BTreeMap::new();
        for key in self.annotations().await?.into_keys() {
            if OTHERS_KEYS.contains(&key.as_str()) || key.ends_with("/desired-version") {
                patch.insert(key, None);
            }
        }
        patch.extend(wanted.iter().map(|(key, value)| (key.clone(), Some(value.clone()))));
        self.annotate(json!(patch)).await
    }

    /// Writes a plan with its permit.
    pub(crate) async fn permit(&self, plan: &Plan) -> anyhow::Result<()> {
        self.ask_for_nothing_but(&permitted(plan)).await
    }

    pub(crate) async fn annotations(&self) -> anyhow::Result<BTreeMap<String, String>> {
        Ok(self.nodes.get_metadata(NODE).await?.metadata.annotations.unwrap_or_default())
    }

    /// What the agent says of itself.
    pub(crate) async fn state(&self) -> anyhow::Result<Option<State>> {
        let text = self.annotations().await?.remove(STATE);
        text.map(|text| serde_json::from_str(&text).with_context(|| format!("{text} is no state")))
            .transpose()
    }

    /// Waits for a phase with its reason.
    pub(crate) async fn wait_for_state(&self, phase: Phase, reason: Reason) -> anyhow::Result<State> {
        let mut last = None;
        let waited = wait_for(PATIENCE, &format!("{phase} ({reason})"), async || {
            ensure!(self.agent.is_running(), "the agent ended");
            last = self.state().await?;
            Ok(last.as_ref().is_some_and(|state| state.phase == phase && state.reason == reason))
        })
        .await;
        waited.with_context(|| format!("it says {last:?}, and its log\n{}", self.agent.log()))?;
        last.context("it was seen")
    }

    /// Waits until the agent says on the host that it has no Node.
    pub(crate) async fn wait_for_missing_node(&self) -> anyhow::Result<()> {
        let mut last = Value::Null;
        let waited = wait_for(PATIENCE, "the Node is missed", async || {
            let output = self.agent.command(&["status", "-o", "json"])?;
            let status: Value = serde_json::from_slice(&output.stdout)?;
            last = status.pointer("/service/state").cloned().unwrap_or_default();
            Ok(last.pointer("/reason") == Some(&json!(Reason::NodeMissing)))
        })
        .await;
        waited.with_context(|| format!("it says {last}, and its log\n{}", self.agent.log()))
    }

    /// Waits until the Node says that the host is at a plan.
    pub(crate) async fn wait_until_at(&self, plan: &Plan) -> anyhow::Result<()> {
        let mut last = BTreeMap::new();
        let waited = wait_for(PATIENCE, "the plan is reached", async || {
            last = self.annotations().await?;
            Ok(is_at(&last, plan))
        })
        .await;
        waited.with_context(|| format!("it says {last:?}, and its log\n{}", self.agent.log()))
    }

    /// The agent's requests so far.
    pub(crate) fn requests(&self) -> anyhow::Result<Vec<Request>> {
        self.server.audit().by(IDENTITY)
    }

    /// The agent's writes so far.
    pub(crate) fn writes(&self) -> anyhow::Result<Vec<Write>> {
        let requests = self.requests()?.into_iter().filter(|request| request.verb == "patch");
        Ok(requests.filter_map(Write::new).collect())
    }
}

/// A write of the agent as the audit log has it.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) request: Request,
    /// None for a key that is removed.
    pub(crate) annotations: BTreeMap<String, Option<String>>,
}

impl Write {
    fn new(request: Request) -> Option<Self> {
        let annotations = request.request_object.as_ref()?.pointer("/metadata/annotations")?;
        let annotations = serde_json::from_value(annotations.clone()).ok()?;
        Some(Self { request, annotations })
    }

    /// Whether it gives a key this value.
    pub(crate) fn sets(&self, key: &str, value: &str) -> bool {
        self.annotations.get(key).is_some_and(|written| written.as_deref() == Some(value))
    }

    /// The state it writes.
    pub(crate) fn state(&self) -> Option<State> {
        serde_json::from_str(self.annotations.get(STATE)?.as_deref()?).ok()
    }
}

/// A plan of file contents.
pub(crate) fn plan(versions: &[(&str, &SoftwareVersion)]) -> anyhow::Result<Plan> {
    let mut desired = BTreeMap::new();
    for (name, version) in versions {
        desired.insert(name.parse()?, (*version).clone());
    }
    Ok(Plan::new(desired))
}

/// A plan with its permit.
pub(crate) fn permitted(plan: &Plan) -> BTreeMap<String, String> {
    let mut annotations = write_plan(plan);
    annotations.insert(CHANGES_ALLOWED.to_owned(), "true".to_owned());
    annotations
}

/// Whether annotations say that the host is at a plan, the way infrop reads them.
pub(crate) fn is_at(annotations: &BTreeMap<String, String>, plan: &Plan) -> bool {
    let says = |key: &str, value: &str| annotations.get(key).is_some_and(|text| text == value);
    says(READY, "true")
        && says(PLAN_OBSERVED, plan.id().as_str())
        && plan.desired.iter().all(|(name, version)| says(&current_version(name), version.as_str()))
}
