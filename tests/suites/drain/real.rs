//! The same against a real API server. It has no controllers and no kubelet: budgets' states are written by hand, and
//! pods that end are ended by the test.

use std::{sync::Mutex, sync::PoisonError, time::Duration};

use anyhow::{Context, bail, ensure};
use infrop::cluster::{DirectClient, DrainError, DrainRules, Drained, drain, preview};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::KubeConfigOptions,
};
use serde_json::{Value, json};
use tests::{api_server::ApiServer, lab::wait_for};

const NODE: &str = "w-1";
const NAMESPACE: &str = "shop";

/// A server with two pods of one application on a node, both running and well.
struct Shop {
    server: ApiServer,
    admin: Client,
    direct: DirectClient,
}

impl Shop {
    async fn open() -> anyhow::Result<Self> {
        let server = ApiServer::start().await?;
        let admin = server.admin().await?;
        let kubeconfig = server.kubeconfig("drainer", &["system:masters"])?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let direct = DirectClient::new(config)?;
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
        Api::all(admin.clone()).create(&PostParams::default(), &namespace).await?;
        let shop = Self { server, admin, direct };
        for name in ["web-1", "web-2"] {
            let pod = serde_json::from_value(json!({
                "metadata": {
                    "name": name,
                    "labels": { "app": "web" },
                    "ownerReferences": [
                        { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true },
                    ],
                },
                "spec": { "nodeName": NODE, "containers": [{ "name": "a", "image": "example.com/a" }] },
            }))?;
            shop.pods().create(&PostParams::default(), &pod).await?;
            let status = json!({ "status": {
                "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }],
            } });
            shop.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
        }
        Ok(shop)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    fn budgets(&self) -> Api<PodDisruptionBudget> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    /// A budget for both pods, which no controller has seen.
    async fn budget(&self, name: &str) -> anyhow::Result<()> {
        let budget = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "web" } } },
        }))?;
        self.budgets().create(&PostParams::default(), &budget).await?;
        Ok(())
    }

    /// What its controller would say of a budget.
    async fn allow(&self, name: &str, allowed: i32) -> anyhow::Result<()> {
        let status = json!({ "status": {
            "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2 + allowed, "desiredHealthy": 2,
            "expectedPods": 2 + allowed,
        } });
        self.budgets().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    async fn allowed(&self, name: &str) -> anyhow::Result<i32> {
        let budget = self.budgets().get(name).await?;
        Ok(budget.status.context("the budget has no status")?.disruptions_allowed)
    }

    /// Ends pods that were asked to end, as a kubelet does, for ever.
    async fn kubelet(&self) -> anyhow::Result<()> {
        loop {
            for pod in self.pods().list(&ListParams::default()).await? {
                if pod.metadata.deletion_timestamp.is_some() {
                    let now = DeleteParams::default().grace_period(0);
                    self.pods().delete(&pod.name_any(), &now).await?;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn drain(
        &self,
        seconds: u64,
        note: &dyn Fn(String),
    ) -> anyhow::Result<Result<Drained, DrainError>> {
        let limit = Duration::from_secs(seconds);
        Ok(drain(&self.direct, &NODE.parse()?, &DrainRules::default(), limit, note).await)
    }

    /// Drains a node that does not become empty.
    async fn obstacle(&self, seconds: u64) -> anyhow::Result<DrainError> {
        self.drain(seconds, &|_| {}).await?.err().context("it is empty")
    }

    /// The bodies of all evictions so far with their answers.
    fn evictions(&self) -> anyhow::Result<Vec<(u16, Value)>> {
        let requests = self.server.audit().by("drainer")?;
        let evictions = requests.into_iter().filter(|request| {
            request.object_ref.as_ref().is_some_and(|object| object.subresource == "eviction")
        });
        Ok(evictions
            .map(|request| {
                let code = request.response_status.map(|status| status.code).unwrap_or_default();
                (code, request.request_object.unwrap_or_default())
            })
            .collect())
    }
}

pub(crate) async fn a_budget_holds_and_lets_go() -> anyhow::Result<()> {
    let shop = Shop::open().await?;
    shop.budget("web").await?;
    // Its controller is behind: the API server says so, and when to come again.
    let error = shop.obstacle(2).await?;
    ensure!(error.to_string().contains("budget shop/web is still being processed"), "{error}");
    ensure!(shop.evictions()?.len() == 2, "it asked again before its time: {:?}", shop.evictions()?);

    shop.allow("web", 0).await?;
    let before = shop.evictions()?.len();
    let error = shop.obstacle(2).await?;
    let DrainError::Blocked { blockers, .. } = &error else { bail!("{error}") };
    ensure!(
        blockers.len() == 2 && blockers.iter().all(|one| one.budget.as_deref() == Some("shop/web")),
        "{error}"
    );
    ensure!(
        error.to_string().contains("shop/web-1, shop/web-2: budget shop/web needs 2 healthy pods and has 2"),
        "{error}"
    );
    let evictions = shop.evictions()?;
    let asked = evictions.len() - before;
    // Three or four rounds; kube's own retries would make some ten of each.
    ensure!((4..=8).contains(&asked) && evictions.iter().all(|(code, _)| *code == 429), "{evictions:?}");
    // The server has read the precondition.
    let uid = shop.pods().get("web-1").await?.uid().context("no UID")?;
    let uids: Vec<_> =
        evictions.iter().filter_map(|(_, body)| body.pointer("/deleteOptions/preconditions/uid")).collect();
    ensure!(uids.len() == evictions.len() && uids.contains(&&json!(uid)), "{evictions:?}");

    // One may go, then the other.
    let notes = Mutex::new(Vec::new());
    let note = |text: String| notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    let lift = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        shop.allow("web", 1).await?;
        // Not before: the server itself asks a budget again that two evictions met at once.
        wait_for(Duration::from_mins(1), "the other one waits", async || {
            let notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(notes.iter().any(|note| note.contains("1 pod stays")))
        })
        .await?;
        shop.allow("web", 1).await
    };
    let drained = tokio::select! {
        (drained, lifted) = async { tokio::join!(shop.drain(60, &note), lift) } => { lifted?; drained?? }
        ended = shop.kubelet() => { ended?; bail!("the kubelet ended") }
    };
    ensure!(drained.evicted.len() == 2 && drained.deleted.is_empty(), "{drained:?}");
    ensure!(shop.pods().list(&ListParams::default()).await?.items.is_empty());
    Ok(())
}

pub(crate) async fn a_preview_counts_nothing_down() -> anyhow::Result<()> {
    let shop = Shop::open().await?;
    shop.budget("web").await?;
    shop.allow("web", 0).await?;
    let rules = DrainRules::default();
    let seen = preview(&shop.direct, &NODE.parse()?, &rules).await?;
    ensure!(seen.blocked.len() == 2 && seen.queued.is_empty() && seen.refused.is_empty(), "{seen:?}");
    // Each of them could go, but not both.
    shop.allow("web", 1).await?;
    let seen = preview(&shop.direct, &NODE.parse()?, &rules).await?;
    ensure!(seen.blocked.is_empty() && seen.queued.len() == 2, "{seen:?}");
    let sentences = seen.sentences().join("; ");
    ensure!(
        sentences.contains("shop/web-1, shop/web-2: budget shop/web lets 1 of them go at a time"),
        "{sentences}"
    );
    shop.allow("web", 2).await?;
    ensure!(preview(&shop.direct, &NODE.parse()?, &rules).await?.sentences().is_empty());
    ensure!(shop.allowed("web").await? == 2, "a preview was counted");
    let pods = shop.pods().list(&ListParams::default()).await?;
    ensure!(pods.items.len() == 2 && pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_none()));
    Ok(())
}

pub(crate) async fn two_budgets_are_a_mistake() -> anyhow::Result<()> {
    let shop = Shop::open().await?;
    for name in ["web", "all"] {
        shop.budget(name).await?;
        shop.allow(name, 2).await?;
    }
    let seen = preview(&shop.direct, &NODE.parse()?, &DrainRules::default()).await?;
    ensure!(seen.refused.len() == 2 && seen.blocked.is_empty(), "{seen:?}");
    let error = shop.obstacle(60).await?;
    let DrainError::TooManyBudgets { pods, .. } = &error else { bail!("{error}") };
    ensure!(pods.len() == 2, "{error}");
    Ok(())
}

pub(crate) async fn a_namespace_that_ends() -> anyhow::Result<()> {
    let shop = Shop::open().await?;
    Api::<Namespace>::all(shop.admin.clone()).delete(NAMESPACE, &DeleteParams::default()).await?;
    wait_for(Duration::from_secs(30), "the namespace takes nothing new", async || {
        let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "generateName": "x-" } }))?;
        let api = Api::<ConfigMap>::namespaced(shop.admin.clone(), NAMESPACE);
        Ok(api.create(&PostParams::default(), &map).await.is_err())
    })
    .await?;
    let notes = Mutex::new(Vec::new());
    let note = |text: String| notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    // What the namespace's controller does.
    let end = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        for name in ["web-1", "web-2"] {
            shop.pods().delete(name, &DeleteParams::default()).await?;
        }
        anyhow::Ok(())
    };
    let drained = tokio::select! {
        (drained, ended) = async { tokio::join!(shop.drain(60, &note), end) } => { ended?; drained?? }
        ended = shop.kubelet() => { ended?; bail!("the kubelet ended") }
    };
    ensure!(drained.evicted.is_empty(), "{drained:?}");
    let notes = notes.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(notes.iter().any(|note| note.contains("its namespace ends")), "{notes:?}");
    Ok(())
}
