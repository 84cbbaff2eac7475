//! The API server hangs or is cut off, the agent is killed, the credential changes.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use anyhow::{Context, ensure};
use common::{
    annotations::{PLAN_OBSERVED, READY},
    state::{Phase, Reason},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tests::{
    agent_process::{CREDENTIAL, Place},
    lab::wait_for,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use crate::fixture::{Fixture, HAPROXY, HAPROXY_FILE, IDENTITY, NODE, plan};

/// Long enough for requests to time out (10 s each) and for the longest delay between attempts.
const OUTAGE_LIMIT: Duration = Duration::from_secs(45);

/// A server that hangs in the middle of a plan: the plan waits a while, goes on, and its end is told later.
pub(crate) async fn a_plan_survives_the_api_server() -> anyhow::Result<()> {
    let (fixture, versions) = Fixture::idle_with("apiPatienceSeconds: 3\n", &["one\n"]).await?;
    let plan = plan(&[(HAPROXY, versions.first().context("it was delivered")?)])?;
    fixture.agent.hold(Place::Look)?;
    fixture.permit(&plan).await?;
    wait_for(Duration::from_secs(20), "the plan has begun", async || {
        let annotations = fixture.annotations().await?;
        let says = |key: &str, value: &str| annotations.get(key).is_some_and(|text| text == value);
        Ok(says(READY, "false") && says(PLAN_OBSERVED, plan.id().as_str()))
    })
    .await?;
    let [_, server] = fixture.server.processes();
    let server = Pid::from_raw(i32::try_from(server)?);
    kill(server, Signal::SIGSTOP)?;
    let stopped = tokio::time::Instant::now();
    fixture.agent.release(Place::Look)?;
    let status = |pointer: &'static str| {
        let text = fixture.agent.command(&["status", "-o", "json"])?.stdout;
        let status: Value = serde_json::from_slice(&text)?;
        anyhow::Ok(status.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned())
    };
    wait_for(OUTAGE_LIMIT, "the agent waits for the server", async || {
        Ok(status("/service/state/reason")? == Reason::ApiUnreachable.as_str())
    })
    .await?;
    ensure!(fixture.agent.read(HAPROXY_FILE).is_none(), "it did not wait");
    wait_for(OUTAGE_LIMIT, "the plan goes on without the server", async || {
        Ok(fixture.agent.journal()?.pointer("/ready") == Some(&Value::Bool(true)))
    })
    .await?;
    ensure!(stopped.elapsed() >= Duration::from_secs(3), "it did not wait for the server");
    ensure!(fixture.agent.read(HAPROXY_FILE).as_deref() == Some("one\n"));
    kill(server, Signal::SIGCONT)?;
    let healed = tokio::time::Instant::now();
    fixture.wait_until_at(&plan).await?;
    fixture.wait_for_state(Phase::Idle, Reason::UpToDate).await?;
    // Sooner than the present watch would have ended by itself.
    ensure!(healed.elapsed() < OUTAGE_LIMIT, "it took {:?} to be heard again", healed.elapsed());
    Ok(())
}

/// Connections that break: no plan is begun that nobody permitted, and what was asked meanwhile is done after.
pub(crate) async fn a_cut_is_heard_and_healed() -> anyhow::Result<()> {
    let mut fixture = Fixture::empty("apiPatienceSeconds: 1\n").await?;
    fixture.create_node().await?;
    let mut credential = fixture.server.kubeconfig(IDENTITY, &["system:nodes"])?;
    let cluster = credential.clusters.first_mut().and_then(|entry| entry.cluster.as_mut());
    let address = &mut cluster.context("a kubeconfig has a cluster")?.server;
    let server =
        address.as_deref().and_then(|url| url.strip_prefix("https://")).context("it has an address")?;
    let mut relay = Relay::start(server.parse()?).await?;
    *address = Some(format!("https://localhost:{}", relay.port));
    fixture.agent.write(CREDENTIAL, &serde_yaml::to_string(&credential)?)?;
    fixture.agent.start()?;
    fixture.wait_for_state(Phase::Idle, Reason::NoPlan).await?;
    for text in ["one\n", "two\n"] {
        let before = fixture.agent.read(HAPROXY_FILE);
        relay.cut();
        let version = fixture.agent.deliver(HAPROXY, text)?;
        let plan = plan(&[(HAPROXY, &version)])?;
        fixture.permit(&plan).await?;
        wait_for(OUTAGE_LIMIT, "the agent says that nobody answers", async || {
            let text = fixture.agent.command(&["status", "-o", "json"])?.stdout;
            let status: Value = serde_json::from_slice(&text)?;
            Ok(status.pointer("/service/state/reason") == Some(&Value::from("ApiUnreachable")))
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        ensure!(fixture.agent.read(HAPROXY_FILE) == before, "it began a plan that it could not read");
        relay.heal().await?;
        fixture.wait_until_at(&plan).await?;
    }
    Ok(())
}

/// Killed between two steps, nothing is counted; killed within one, that was an attempt. Both are finished.
pub(crate) async fn kill_9_is_survived() -> anyhow::Result<()> {
    let (mut fixture, versions) = Fixture::idle_with("", &["one\n", "two\n"]).await?;
    fixture.agent.set_active("haproxy.service")?;
    let rounds = [("one\n", Place::Look, 1), ("two\n", Place::Reload, 2)];
    for ((text, place, attempt), version) in rounds.into_iter().zip(versions) {
        let plan = plan(&[(HAPROXY, &version)])?;
        let earlier = fixture.writes()?.len();
        fixture.agent.hold(place)?;
        fixture.permit(&plan).await?;
        wait_for(Duration::from_secs(20), "the agent is where it is to be killed", async || {
            let journal = fixture.agent.journal()?;
            let accepted = journal.pointer("/active/plan").is_some();
            let within = fixture.agent.read(HAPROXY_FILE).as_deref() == Some(text);
            Ok(accepted && (place == Place::Look || within))
        })
        .await?;
        fixture.agent.end(Signal::SIGKILL).await?;
        let journal = fixture.agent.journal()?;
        let is_within = journal.pointer("/active/step").is_some_and(|step| !step.is_null());
        ensure!(is_within == (place == Place::Reload), "{journal}");
        let annotations = fixture.annotations().await?;
        ensure!(annotations.get(READY).is_some_and(|ready| ready == "false"), "{annotations:?}");
        fixture.agent.release(place)?;
        fixture.agent.start()?;
        fixture.wait_until_at(&plan).await?;
        ensure!(fixture.agent.read(HAPROXY_FILE).as_deref() == Some(text));
        let attempts: BTreeSet<u32> = fixture
            .writes()?
            .iter()
            .skip(earlier)
            .filter(|write| write.request.response_status.as_ref().is_some_and(|status| status.code == 200))
            .filter_map(|write| Some(write.state()?.attempt))
            .collect();
        ensure!(attempts.iter().max() == Some(&attempt), "attempts {attempts:?}, {}", fixture.agent.log());
        fixture.wait_for_state(Phase::Idle, Reason::UpToDate).await?;
    }
    ensure!(fixture.agent.forbidden_calls().is_empty(), "{:?}", fixture.agent.forbidden_calls());
    Ok(())
}

/// The kubelet's certificate is renewed, or the host joins anew: what the agent writes next is with the new one.
pub(crate) async fn another_credential_is_taken_up() -> anyhow::Result<()> {
    let fixture = Fixture::idle("").await?;
    let certificates = || -> anyhow::Result<Vec<String>> {
        let requests = fixture.requests()?;
        Ok(requests.iter().filter_map(|request| request.user.certificate().map(str::to_owned)).collect())
    };
    let first: BTreeSet<String> = certificates()?.into_iter().collect();
    ensure!(first.len() == 1, "{first:?}");
    // A file that is no credential, as a careless hand leaves it, is survived.
    fixture.agent.write(CREDENTIAL, "apiVersion: v1\nkind: Config\n")?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure!(fixture.agent.is_running(), "{}", fixture.agent.log());
    fixture.agent.join(&fixture.server, NODE)?;
    wait_for(Duration::from_secs(20), "the new certificate is shown", async || {
        Ok(certificates()?.iter().any(|certificate| !first.contains(certificate)))
    })
    .await
    .with_context(|| fixture.agent.log())?;
    let earlier = fixture.writes()?.len();
    let version = fixture.agent.deliver(HAPROXY, "one\n")?;
    let plan = plan(&[(HAPROXY, &version)])?;
    fixture.permit(&plan).await?;
    fixture.wait_until_at(&plan).await?;
    for write in fixture.writes()?.iter().skip(earlier) {
        let certificate = write.request.user.certificate().context("the server tells certificates apart")?;
        ensure!(!first.contains(certificate), "it still shows the old certificate: {write:?}");
    }
    Ok(())
}

/// Connections to a server that can be cut, as by a router that goes away and says so.
struct Relay {
    server: SocketAddr,
    port: u16,
    task: Option<JoinHandle<()>>,
}

impl Relay {
    async fn start(server: SocketAddr) -> anyhow::Result<Self> {
        let mut relay = Self { server, port: 0, task: None };
        relay.heal().await?;
        Ok(relay)
    }

    async fn heal(&mut self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await?;
        self.port = listener.local_addr()?.port();
        let server = self.server;
        self.task = Some(tokio::spawn(async move {
            // Dropped with the task, and each connection with it.
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                connections.spawn(async move {
                    let mut far = TcpStream::connect(server).await?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                });
            }
        }));
        Ok(())
    }

    fn cut(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}
