//! What is run on a node after it was changed, against a real API server. It has no controllers: how a Job ended is
//! written by hand.

use std::time::Duration;

use anyhow::{Context, ensure};
use infrop::cluster::{JobManifest, run_job};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tests::{api_server::ApiServer, lab::wait_for};

const NODE: &str = "w-1";

const SMOKE: &str = include_str!("../../../infrop/examples/smoke-job.yaml");

/// Long enough to be written on, short enough to wait for.
const LIMIT: Duration = Duration::from_secs(20);

struct Site {
    /// Ends with it.
    _server: ApiServer,
    client: Client,
    jobs: Api<Job>,
}

impl Site {
    async fn open() -> anyhow::Result<Self> {
        let server = ApiServer::start().await?;
        let client = server.admin().await?;
        let jobs = Api::namespaced(client.clone(), "default");
        Ok(Self { _server: server, client, jobs })
    }

    async fn run(&self, limit: Duration) -> anyhow::Result<Result<(), String>> {
        let manifest = JobManifest::parse(SMOKE).map_err(anyhow::Error::msg)?;
        Ok(run_job(&self.client, &manifest, &"smoke".parse()?, &NODE.parse()?, limit).await?)
    }

    async fn names(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.jobs.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect())
    }

    /// Waits for a Job, and gives it an end.
    async fn end(&self, kinds: [&str; 2]) -> anyhow::Result<Job> {
        wait_for(LIMIT, "a Job", async || Ok(!self.names().await?.is_empty())).await?;
        let name = self.names().await?.pop().context("no Job")?;
        let at = "2026-11-16T12:00:00Z";
        let condition = |kind: &str| {
            json!({ "type": kind, "status": "True", "reason": "Why", "message": "said so",
            "lastProbeTime": at, "lastTransitionTime": at })
        };
        let completion = if kinds.contains(&"Complete") { json!(at) } else { Value::Null };
        let status = json!({ "status": {
            "startTime": at, "completionTime": completion, "conditions": kinds.map(condition),
        } });
        let job = self.jobs.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(job)
    }
}

pub(crate) async fn a_job_is_run_to_its_end() -> anyhow::Result<()> {
    let site = Site::open().await?;
    let (result, job) = tokio::join!(site.run(LIMIT), site.end(["SuccessCriteriaMet", "Complete"]));
    let job = job?;
    ensure!(result? == Ok(()), "{job:?}");
    ensure!(job.name_any().starts_with("infrop-check-smoke-"), "{}", job.name_any());
    let spec = job.spec.context("no spec")?;
    ensure!(spec.active_deadline_seconds == Some(20) && spec.backoff_limit == Some(0), "{spec:?}");
    ensure!(site.names().await?.is_empty(), "it was left: {:?}", site.names().await?);

    let (result, job) = tokio::join!(site.run(LIMIT), site.end(["FailureTarget", "Failed"]));
    let (why, name) = (result?.err().context("it is well")?, job?.name_any());
    ensure!(why == format!("the Job {name} failed (Why): said so"), "{why}");
    ensure!(site.names().await?.is_empty(), "it was left: {:?}", site.names().await?);
    Ok(())
}

pub(crate) async fn a_job_that_was_left_goes() -> anyhow::Result<()> {
    let site = Site::open().await?;
    // infrop is killed while it waits.
    let killed = tokio::time::timeout(Duration::from_secs(3), site.run(LIMIT)).await;
    ensure!(killed.is_err(), "{killed:?}");
    let left = site.names().await?;
    ensure!(left.len() == 1, "{left:?}");
    // One that never runs is waited for as long as it may take, and not longer.
    let why = site.run(Duration::from_secs(1)).await?.err().context("it is well")?;
    ensure!(why.ends_with("did not end within 1 s"), "{why}");
    ensure!(site.names().await?.is_empty(), "{:?}", site.names().await?);
    Ok(())
}
