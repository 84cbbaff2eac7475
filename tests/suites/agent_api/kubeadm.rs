//! A kubeadm that was started and never ended: its part is done again, with the cluster's answer, not without.

use std::time::Duration;

use anyhow::{Context, ensure};
use common::{
    plan::Plan,
    state::{Phase, Reason},
};
use tests::{agent_process::Place, lab::wait_for};

use crate::{
    faults::{begin, start_behind_a_relay},
    fixture::{CLUSTER_VERSION, Fixture, NODE},
};

/// Where the agent keeps the kubeadm command that it started.
const STARTED: &str = "var/lib/node-agent/kubeadm-upgrade";

const UPGRADE: &str = "kubeadm upgrade node";

/// One attempt, so that a failure that is none would end in quarantine at once.
const SETTINGS: &str = "attempts: 1\nretrySeconds: 1\napiPatienceSeconds: 1\n";

/// A worker whose kubeadm was cut off; then a person brought all of it to the version of the plan.
fn finish_by_hand(fixture: &Fixture) -> anyhow::Result<Plan> {
    let version = CLUSTER_VERSION.trim_start_matches('v');
    let mut status = String::new();
    for package in ["kubeadm", "kubelet"] {
        status += &format!(
            "Package: {package}\nStatus: hold ok installed\nArchitecture: amd64\nVersion: {version}-1.1\n\
             Maintainer: nobody <nobody@example.org>\nDescription: x\n\n"
        );
    }
    fixture.agent.write("var/lib/dpkg/status", &status)?;
    fixture.agent.write(STARTED, "upgrade node\n")?;
    fixture.agent.set_active("kubelet.service")?;
    fixture.agent.let_succeed("kubeadm")?;
    let version: common::software::SoftwareVersion = version.parse()?;
    Ok(Plan::new([("kubeadm".parse()?, version.clone()), ("kubelet".parse()?, version)].into()))
}

fn upgrades(fixture: &Fixture) -> usize {
    fixture.agent.calls().iter().filter(|call| call.starts_with(UPGRADE)).count()
}

async fn wait_until_upgraded(fixture: &Fixture, plan: &Plan) -> anyhow::Result<()> {
    fixture.wait_until_at(plan).await?;
    fixture.wait_for_state(Phase::Idle, Reason::UpToDate).await?;
    ensure!(upgrades(fixture) == 1, "{:?}", fixture.agent.calls());
    ensure!(fixture.agent.read(STARTED).is_none(), "it does not know that kubeadm has ended");
    Ok(())
}

/// The versions are there, so nothing but the started command says that there is something left to do.
pub(crate) async fn it_is_finished_although_all_versions_are_there() -> anyhow::Result<()> {
    let mut fixture = Fixture::empty(SETTINGS).await?;
    let plan = finish_by_hand(&fixture)?;
    fixture.create_node().await?;
    fixture.agent.join(&fixture.server, NODE)?;
    fixture.agent.start()?;
    fixture.wait_for_state(Phase::Idle, Reason::NoPlan).await?;
    fixture.permit(&plan).await?;
    wait_until_upgraded(&fixture, &plan).await?;
    let asked = fixture.requests()?.into_iter().any(|request| {
        let name = request.object_ref.map(|object| object.name);
        request.verb == "get" && name.as_deref() == Some("kubeadm-config")
    });
    ensure!(asked, "the cluster was not asked what kubeadm has to do");
    Ok(())
}

/// Makes the host a control plane whose API server carries the API's endpoint.
fn make_control_plane(fixture: &Fixture) -> anyhow::Result<()> {
    let config = fixture.server.kubeconfig("nobody", &[])?;
    let cluster = config.clusters.first().and_then(|named| named.cluster.clone()).context("no cluster")?;
    let server: http::Uri = cluster.server.context("no server")?.parse()?;
    let (host, port) = (server.host().context("no host")?, server.port_u16().context("no port")?);
    let settings = format!("node: {NODE}\n{SETTINGS}endpointAddress: {host}:9\n");
    fixture.agent.write("etc/node-agent/config.yaml", &settings)?;
    for component in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        let container =
            format!("{{ image: 'x/{component}:{CLUSTER_VERSION}', command: [x, --secure-port={port}] }}");
        let manifest = format!("spec: {{ containers: [{container}] }}\n");
        fixture.agent.write(&format!("etc/kubernetes/manifests/{component}.yaml"), &manifest)?;
    }
    Ok(())
}

/// Waiting for the API server's answer is no attempt, however long it takes, and this host's own API server is not stopped
/// for it: it may be the one that has the answer.
pub(crate) async fn it_waits_for_the_clusters_answer() -> anyhow::Result<()> {
    let mut fixture = Fixture::empty(SETTINGS).await?;
    make_control_plane(&fixture)?;
    let plan = finish_by_hand(&fixture)?;
    let mut relay = start_behind_a_relay(&mut fixture).await?;
    fixture.agent.hold(Place::Look)?;
    begin(&fixture, &plan).await?;
    relay.cut();
    fixture.agent.release(Place::Look)?;
    let put_off = || -> anyhow::Result<usize> {
        let journal = fixture.agent.journal()?;
        let active = journal.pointer("/active").filter(|active| !active.is_null());
        let active = active.with_context(|| format!("the plan was given up: {journal}"))?;
        ensure!(active.pointer("/attempt") == Some(&1.into()), "it counts an attempt: {journal}");
        Ok(fixture.agent.log().matches("put off: ").count())
    };
    wait_for(
        Duration::from_mins(1),
        "kubeadm's part was put off several times",
        async || Ok(put_off()? >= 3),
    )
    .await
    .with_context(|| fixture.agent.log())?;
    let stops = || fixture.agent.forbidden_calls().iter().filter(|call| call.starts_with("ctr ")).count();
    ensure!(upgrades(&fixture) == 0 && stops() == 0, "{:?}", fixture.agent.forbidden_calls());
    relay.heal().await?;
    wait_until_upgraded(&fixture, &plan).await?;
    ensure!(stops() > 0, "this host never carried the endpoint");
    Ok(())
}
