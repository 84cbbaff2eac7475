//! The API server fixture is a real one, with the rights and the admission a cluster has.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::{ConfigMap, Node},
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams, WatchParams},
};
use nix::sys::signal::Signal;
use serde_json::json;
use tests::{
    api_server::{ApiServer, is_running},
    harness::{Case, Tier, suite},
    holder::Holder,
    lab::wait_for,
};

/// A start takes seconds; this is for a machine that does something else as well.
const LIMIT: Duration = Duration::from_mins(3);

/// With this argument the suite only holds a server, for the case that kills it.
const HOLD: &str = "--hold-api-server";

fn main() -> ExitCode {
    if std::env::args().any(|word| word == HOLD) {
        return match hold() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:?}");
                ExitCode::FAILURE
            }
        };
    }
    suite([
        Case::new(Tier::T3, "strangers_are_refused", LIMIT, strangers_are_refused),
        Case::new(Tier::T3, "a_node_reaches_only_itself", LIMIT, a_node_reaches_only_itself),
        Case::new(Tier::T3, "admission_policies_are_enforced", LIMIT, admission_policies_are_enforced),
        Case::new(Tier::T3, "the_audit_log_tells_who_did_what", LIMIT, the_audit_log_tells_who_did_what),
        Case::new(Tier::T3, "two_servers_do_not_meet", LIMIT, two_servers_do_not_meet),
        Case::new(Tier::T3, "nothing_is_left_whatever_ends_the_test", LIMIT, nothing_is_left),
    ])
}

fn node(name: &str) -> anyhow::Result<Node> {
    Ok(serde_json::from_value(json!({ "metadata": { "name": name } }))?)
}

fn config_map(name: &str) -> anyhow::Result<ConfigMap> {
    Ok(serde_json::from_value(json!({ "metadata": { "name": name } }))?)
}

/// The status the server refused with; an error if it did not refuse.
fn refusal<T>(result: kube::Result<T>) -> anyhow::Result<u16> {
    match result {
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error.into()),
        Ok(_) => anyhow::bail!("the server allowed it"),
    }
}

async fn strangers_are_refused() -> anyhow::Result<()> {
    let server = ApiServer::start().await?;
    let stranger: Api<Node> = Api::all(server.client("mallory", &[]).await?);
    ensure!(refusal(stranger.list(&ListParams::default()).await)? == 403);
    // A certificate of another authority is nobody's.
    let other = ApiServer::start().await?;
    let mut foreign = other.kubeconfig("admin", &["system:masters"])?;
    let own = server.kubeconfig("admin", &["system:masters"])?;
    foreign.clusters = own.clusters;
    let config =
        kube::Config::from_custom_kubeconfig(foreign, &kube::config::KubeConfigOptions::default()).await?;
    let foreign: Api<Node> = Api::all(Client::try_from(config)?);
    ensure!(refusal(foreign.list(&ListParams::default()).await)? == 401);
    Ok(())
}

async fn a_node_reaches_only_itself() -> anyhow::Result<()> {
    let server = ApiServer::start().await?;
    let nodes: Api<Node> = Api::all(server.admin().await?);
    for name in ["n1", "n2"] {
        nodes.create(&PostParams::default(), &node(name)?).await?;
    }
    let own: Api<Node> = Api::all(server.node("n1").await?);
    let annotate = |value: &str| Patch::Merge(json!({ "metadata": { "annotations": { "test": value } } }));
    wait_for(Duration::from_secs(30), "the node authorizer knows the node", async || {
        Ok(own.get("n1").await.is_ok())
    })
    .await?;
    own.patch("n1", &PatchParams::default(), &annotate("x")).await?;
    // Reading another node is the Node authorizer's to refuse, writing it NodeRestriction's.
    ensure!(refusal(own.get("n2").await)? == 403);
    ensure!(refusal(own.patch("n2", &PatchParams::default(), &annotate("x")).await)? == 403);
    ensure!(refusal(own.list(&ListParams::default()).await)? == 403);
    let label =
        Patch::Merge(json!({ "metadata": { "labels": { "node-restriction.kubernetes.io/x": "y" } } }));
    ensure!(refusal(own.patch("n1", &PatchParams::default(), &label).await)? == 403);
    Ok(())
}

async fn admission_policies_are_enforced() -> anyhow::Result<()> {
    let server = ApiServer::start().await?;
    let admin = server.admin().await?;
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": { "name": "no-secrets-in-names" },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
            }] },
            "validations": [{ "expression": "!object.metadata.name.contains('secret')" }],
        },
    }))?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": { "name": "no-secrets-in-names" },
        "spec": { "policyName": "no-secrets-in-names", "validationActions": ["Deny"] },
    }))?;
    Api::all(admin.clone()).create(&PostParams::default(), &policy).await?;
    Api::all(admin.clone()).create(&PostParams::default(), &binding).await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(admin, "default");
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    wait_for(Duration::from_mins(1), "the policy is in force", async || {
        Ok(config_maps.create(&dry_run, &config_map("secret")?).await.is_err())
    })
    .await?;
    ensure!(refusal(config_maps.create(&PostParams::default(), &config_map("a-secret")?).await)? == 422);
    config_maps.create(&PostParams::default(), &config_map("open")?).await?;
    Ok(())
}

async fn the_audit_log_tells_who_did_what() -> anyhow::Result<()> {
    let server = ApiServer::start().await?;
    let nodes: Api<Node> = Api::all(server.client("alice", &["system:masters"]).await?);
    nodes.create(&PostParams::default(), &node("n1")?).await?;
    for value in ["1", "2", "3"] {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { "test": value } } }));
        nodes.patch("n1", &PatchParams::default(), &patch).await?;
    }
    let _watch = nodes.watch(&WatchParams::default(), "0").await?;
    wait_for(Duration::from_secs(10), "all requests are in the log", async || {
        Ok(server.audit().by("alice")?.len() >= 5)
    })
    .await?;
    let requests = server.audit().by("alice")?;
    let verbs: Vec<&str> = requests.iter().map(|request| request.verb.as_str()).collect();
    ensure!(verbs == ["create", "patch", "patch", "patch", "watch"], "{verbs:?}");
    let written: Vec<_> = requests
        .iter()
        .filter(|request| request.verb == "patch")
        .filter_map(|request| request.request_object.as_ref()?.pointer("/metadata/annotations/test"))
        .collect();
    ensure!(written == ["1", "2", "3"], "{written:?}");
    let patch = requests.get(1).context("there is a patch")?;
    let object = patch.object_ref.as_ref().context("a patch has an object")?;
    ensure!((object.resource.as_str(), object.name.as_str()) == ("nodes", "n1"), "{object:?}");
    ensure!(patch.response_status.as_ref().is_some_and(|status| status.code == 200));
    ensure!(server.audit().by("bob")?.is_empty());
    Ok(())
}

async fn two_servers_do_not_meet() -> anyhow::Result<()> {
    let (one, two) = tokio::try_join!(ApiServer::start(), ApiServer::start())?;
    let nodes = async |server: &ApiServer| anyhow::Ok(Api::<Node>::all(server.admin().await?));
    nodes(&one).await?.create(&PostParams::default(), &node("n1")?).await?;
    ensure!(nodes(&two).await?.get_opt("n1").await?.is_none());
    let directories = [one.directory().to_owned(), two.directory().to_owned()];
    let processes = [one.processes(), two.processes()].concat();
    drop((one, two));
    assert_nothing_left(&directories.each_ref().map(PathBuf::as_path), &processes)
}

fn assert_nothing_left(directories: &[&Path], processes: &[u32]) -> anyhow::Result<()> {
    for directory in directories {
        ensure!(!directory.exists(), "{} is left", directory.display());
    }
    for process in processes {
        ensure!(!is_running(*process), "process {process} is left");
    }
    Ok(())
}

async fn nothing_is_left() -> anyhow::Result<()> {
    for end in ["panic", "interrupt", "kill"] {
        let mut holder = Holder::start(HOLD)?;
        let line = holder.line().await?;
        let mut words = line.split(' ');
        let directory = Path::new(words.next().context("the holder names its directory")?);
        let processes = words.map(str::parse).collect::<Result<Vec<u32>, _>>()?;
        ensure!(directory.is_dir() && processes.len() == 2 && processes.iter().all(|id| is_running(*id)));
        match end {
            "interrupt" => holder.signal(Signal::SIGINT)?,
            "kill" => holder.signal(Signal::SIGKILL)?,
            _ => holder.close_stdin()?,
        }
        wait_for(Duration::from_secs(20), &format!("nothing is left after {end}"), async || {
            Ok(assert_nothing_left(&[directory], &processes).is_ok())
        })
        .await?;
    }
    Ok(())
}

/// Holds a server until this process is ended from outside, or panics when its stdin ends.
#[expect(clippy::panic, reason = "it is the process that shows what a panic leaves")]
fn hold() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let server = runtime.block_on(ApiServer::start())?;
    let [etcd, api] = server.processes();
    println!("{} {etcd} {api}", server.directory().display());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    panic!("as asked");
}
