//! What others do between a decision of infrop and its write: whatever that is, a real API server must show that nothing is
//! forced. That moment is caught in infrop itself, which says what it is about to do before it does it.

use std::{cell::RefCell, collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, anyhow, bail, ensure};
use common::{
    annotations::{CHANGES_ALLOWED, CORDONED_BY, PAUSED, PERMITTED_PLAN, PLAN},
    metadata::NodeName,
    plan::Plan,
};
use infrop::{
    apply::{self, Event, Progress},
    cluster::{Clients, DrainRules},
    rollout::{
        self, Outcome, Rollout, Targets,
        assess::Stage,
        decide::Decision,
        policy::{Drain, Limits, Own, Policy},
        reason::Reason,
    },
};
use jiff::SignedDuration;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tests::api_server::ApiServer;

use crate::{
    nodes::{plan, play_agent, register},
    turn::Quiet,
};

/// Where infrop announces permits.
const LEASE: &str = "infrop-rollout";
const NAMESPACE: &str = "kube-system";
const ANNOUNCED: &str = "infrop.caos.ch/nodes";

/// How long infrop waits for what does not come; the played agents need much less.
const PATIENCE: SignedDuration = SignedDuration::from_secs(10);

type Act<'a> = Box<dyn FnOnce() -> anyhow::Result<()> + 'a>;

/// What somebody else does at the moment when infrop is about to do something.
struct Meanwhile<'a> {
    what: String,
    act: RefCell<Option<Act<'a>>>,
    result: RefCell<anyhow::Result<()>>,
}

impl<'a> Meanwhile<'a> {
    fn new(what: String, act: impl FnOnce() -> anyhow::Result<()> + 'a) -> Self {
        let never = anyhow!("infrop never said `{what}`");
        Self { what, act: RefCell::new(Some(Box::new(act))), result: RefCell::new(Err(never)) }
    }

    /// Whether it happened, and went as it should.
    fn check(self) -> anyhow::Result<()> {
        self.result.into_inner()
    }
}

impl std::fmt::Debug for Meanwhile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meanwhile").field("what", &self.what).finish_non_exhaustive()
    }
}

impl Progress for Meanwhile<'_> {
    fn event(&self, event: &Event) {
        if event.what == self.what
            && matches!(event.stage, apply::Stage::Started)
            && let Some(act) = self.act.take()
        {
            *self.result.borrow_mut() = act();
        }
    }

    fn waiting(&self, _: &BTreeMap<NodeName, String>) {}
}

/// Does something while infrop, on this thread, does nothing.
fn apart<T: Send>(work: impl AsyncFnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let alone = || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work());
    std::thread::scope(|scope| scope.spawn(alone).join()).map_err(|_| anyhow!("it panicked"))?
}

/// An API server, and infrop's way to it.
struct Cluster {
    server: ApiServer,
    kubeconfig: PathBuf,
    _directory: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> anyhow::Result<Self> {
        let server = ApiServer::start().await?;
        let directory = tempfile::tempdir()?;
        let kubeconfig = directory.path().join("kubeconfig");
        let text = serde_json::to_string(&server.kubeconfig("infrop", &["system:masters"])?)?;
        std::fs::write(&kubeconfig, text)?;
        Ok(Self { server, kubeconfig, _directory: directory })
    }

    /// A rollout to its end.
    async fn roll(
        &self,
        identity: &str,
        progress: &dyn Progress,
        targets: &Targets<'_>,
    ) -> anyhow::Result<Result<Decision, rollout::Error>> {
        let clients = Clients::of_user(Some(&self.kubeconfig)).await?;
        let (_sender, stop) = tokio::sync::watch::channel(false);
        let deadline = tokio::time::Instant::now() + Duration::from_mins(2);
        let policy = policy();
        let rollout =
            Rollout { clients: &clients, identity, policy, targets, progress, stop, deadline, metrics: None };
        match rollout.run().await {
            Ok((Outcome::Ended(decision), _)) => Ok(Ok(decision)),
            Ok((outcome, _)) => bail!("{outcome:?}"),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn nodes(&self) -> anyhow::Result<Api<Node>> {
        Ok(Api::all(self.server.admin().await?))
    }

    /// The codes of the answers to infrop's writes of a Node.
    fn answers(&self, name: &str) -> anyhow::Result<Vec<u16>> {
        let requests = self.server.audit().by("infrop")?.into_iter().filter(|request| {
            let object = request.object_ref.as_ref();
            request.verb == "patch" && object.is_some_and(|one| one.resource == "nodes" && one.name == name)
        });
        Ok(requests.filter_map(|request| Some(request.response_status?.code)).collect())
    }
}

pub(crate) fn policy() -> Policy {
    Policy {
        groups: [("w".to_owned(), Limits::default())].into(),
        control_planes: Own::default(),
        zone_label: "zone".to_owned(),
        soak: SignedDuration::ZERO,
        max_failed: 1,
        windows: Vec::new(),
        drain: Drain { rules: DrainRules::default(), limit: Duration::from_mins(1) },
        disruption: BTreeMap::new(),
        patience: PATIENCE,
        checks: Vec::new(),
        exclude_from_load_balancers: false,
        prefer_ready: false,
    }
}

/// Some nodes are to have one plan, all others another.
fn targets<'a>(of: &'a str, plan: &'a Plan, others: &'a Plan) -> Box<Targets<'a>> {
    Box::new(move |node| {
        let plan = if node.name.as_str().starts_with(of) { plan } else { others };
        ("w".to_owned(), Ok(plan.clone()))
    })
}

fn annotation<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    node.annotations().get(key).map(String::as_str)
}

fn is_permitted(node: &Node) -> bool {
    annotation(node, CHANGES_ALLOWED) == Some("true")
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// What a person writes before infrop's next write, and how the node has to be in the end.
pub(crate) async fn a_late_write_is_lost() -> anyhow::Result<()> {
    type IsWell = fn(&Node, &Plan) -> bool;
    let pause = || json!({ "metadata": { "annotations": { PAUSED: "disk" } } });
    let cases: [(&str, Value, IsWell); 4] = [
        ("permit changes on", pause(), |node, _| !is_permitted(node)),
        // A cordon of theirs, which infrop would take for its own once it had its mark. The node goes on all the same.
        ("cordon", json!({ "spec": { "unschedulable": true } }), |node, new| {
            is_cordoned(node)
                && annotation(node, CORDONED_BY).is_none()
                && annotation(node, PLAN) == Some(new.id().as_str())
        }),
        ("write the plan of", pause(), |node, new| annotation(node, PLAN) != Some(new.id().as_str())),
        // They make infrop's cordon theirs.
        ("uncordon", json!({ "metadata": { "annotations": { CORDONED_BY: null } } }), |node, _| {
            is_cordoned(node) && !is_permitted(node)
        }),
    ];
    let cluster = Cluster::start().await?;
    let admin = cluster.server.admin().await?;
    let nodes = cluster.nodes().await?;
    let (old, new) = (plan("1")?, plan("2")?);
    // Where pods go meanwhile.
    register(&admin, "other", &old).await?;
    for (number, (step, write, is_well)) in cases.into_iter().enumerate() {
        let name = format!("w-{number}");
        register(&admin, &name, &old).await?;
        let person = Meanwhile::new(format!("{step} {name}"), || {
            apart(async || {
                let patch = Patch::Merge(&write);
                cluster.nodes().await?.patch(&name, &PatchParams::default(), &patch).await?;
                Ok(())
            })
        });
        let agent = async {
            play_agent(&admin, &name, &new).await?;
            std::future::pending::<anyhow::Result<_>>().await
        };
        let targets = targets("w-", &new, &old);
        let ended = tokio::select! {
            ended = cluster.roll("test", &person, &*targets) => ended,
            failed = agent => failed,
        };
        ended??;
        person.check().context(step)?;
        let node = nodes.get(&name).await?;
        ensure!(is_well(&node, &new), "after `{step}`: {node:?}");
        let answers = cluster.answers(&name)?;
        ensure!(answers.iter().filter(|code| **code == 409).count() == 1, "{step}: {answers:?}");
        nodes.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// A run announced a permit and fell asleep. Another takes over and begins another node; then the first one's permit comes.
pub(crate) async fn a_permit_is_fenced_off() -> anyhow::Result<()> {
    let cluster = Cluster::start().await?;
    let admin = cluster.server.admin().await?;
    let nodes = cluster.nodes().await?;
    let (old, new) = (plan("1")?, plan("2")?);
    for name in ["asleep", "w-1"] {
        register(&admin, name, &old).await?;
    }
    let lease = serde_json::from_value(json!({
        "metadata": { "name": LEASE, "annotations": { ANNOUNCED: "asleep" } },
        "spec": { "holderIdentity": "first" },
    }))?;
    let leases = Api::<Lease>::namespaced(admin.clone(), NAMESPACE);
    leases.create(&PostParams::default(), &lease).await?;
    let version = nodes.get("asleep").await?.resource_version();
    let first = Meanwhile::new("permit changes on w-1".to_owned(), || {
        apart(async || {
            let annotations = json!({ CHANGES_ALLOWED: "true", PERMITTED_PLAN: "" });
            let metadata = json!({ "resourceVersion": version, "annotations": annotations });
            let patch = Patch::Merge(json!({ "metadata": metadata }));
            match cluster.nodes().await?.patch("asleep", &PatchParams::default(), &patch).await {
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                answer => bail!("two nodes of a group have a permit: {answer:?}"),
            }
        })
    });
    // To the second run there is nothing to do on the node of the first.
    let targets = targets("w-", &new, &old);
    let (decision, worked) = tokio::join!(
        cluster.roll("second", &first, &*targets),
        tokio::time::timeout(Duration::from_mins(2), play_agent(&admin, "w-1", &new)),
    );
    first.check()?;
    worked??;
    let decision = decision??;
    ensure!(decision.nodes.values().all(|node| node.stage == Stage::Done), "{decision:?}");
    ensure!(!is_permitted(&nodes.get("asleep").await?), "the permit of a run that was overtaken is there");
    // Once that is settled nobody has to know of it any more.
    let left = leases.get(LEASE).await?;
    ensure!(left.annotations().get(ANNOUNCED).is_some_and(String::is_empty), "{left:?}");
    Ok(())
}

/// Another run takes the Lease over while the first is about to announce a permit there.
pub(crate) async fn who_was_overtaken() -> anyhow::Result<()> {
    let cluster = Cluster::start().await?;
    let admin = cluster.server.admin().await?;
    let (old, new) = (plan("1")?, plan("2")?);
    register(&admin, "w-1", &old).await?;
    let second = Meanwhile::new("permit changes on w-1".to_owned(), || {
        apart(async || {
            // Nothing is to be done for it: all it does is to take over.
            cluster.roll("second", &Quiet, &*targets("w-", &old, &old)).await??;
            Ok(())
        })
    });
    let first = cluster.roll("first", &second, &*targets("w-", &new, &old)).await?;
    second.check()?;
    ensure!(matches!(first, Err(rollout::Error::Lost)), "{first:?}");
    let answers = cluster.answers("w-1")?;
    ensure!(answers.is_empty(), "a run that was overtaken wrote: {answers:?}");
    let lease = Api::<Lease>::namespaced(admin, NAMESPACE).get(LEASE).await?;
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    ensure!(holder == Some("second"), "{lease:?}");
    ensure!(lease.annotations().get(ANNOUNCED).is_some_and(String::is_empty), "{lease:?}");
    Ok(())
}

/// What was seen of etcd before the first control plane went says nothing of the second: nobody can ask it then.
pub(crate) async fn etcd_is_asked_before_each() -> anyhow::Result<()> {
    let cluster = Cluster::start().await?;
    let admin = cluster.server.admin().await?;
    let (old, new) = (plan("1")?, plan("2")?);
    for name in ["cp-1", "cp-2"] {
        register(&admin, name, &old).await?;
    }
    // Without pods of etcd this says that it is elsewhere; and without this, nothing is known of it.
    let maps =
        || async { anyhow::Ok(Api::<ConfigMap>::namespaced(cluster.server.admin().await?, NAMESPACE)) };
    let configuration = "etcd: { external: { endpoints: [https://192.0.2.1:2379] } }";
    let map = serde_json::from_value(json!({
        "metadata": { "name": "kubeadm-config" }, "data": { "ClusterConfiguration": configuration },
    }))?;
    maps().await?.create(&PostParams::default(), &map).await?;
    let etcd = Meanwhile::new("permit changes on cp-1".to_owned(), || {
        apart(async || {
            maps().await?.delete("kubeadm-config", &DeleteParams::default()).await?;
            Ok(())
        })
    });
    let targets = targets("cp-", &new, &old);
    let (decision, worked) = tokio::join!(
        cluster.roll("test", &etcd, &*targets),
        tokio::time::timeout(Duration::from_mins(2), play_agent(&admin, "cp-1", &new)),
    );
    etcd.check()?;
    worked??;
    let decision = decision??;
    let found: Vec<_> = decision.nodes.values().map(|node| (node.stage, node.reason)).collect();
    let expected = [(Stage::Done, Reason::UpToDate), (Stage::Pending, Reason::EtcdAtRisk)];
    ensure!(found == expected, "{decision:?}");
    ensure!(!is_permitted(&cluster.nodes().await?.get("cp-2").await?), "cp-2 has a permit");
    Ok(())
}
