//! The API server hangs, restarts or is cut off, the agent is killed, the credential changes.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, bail, ensure};
use common::{
    annotations::{PLAN_OBSERVED, READY},
    plan::Plan,
    state::{Phase, Reason},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tests::{
    agent_process::{CREDENTIAL, Place},
    audit::Request,
    lab::wait_for,
};

use crate::{
    fixture::{Fixture, HAPROXY, HAPROXY_FILE, IDENTITY, NODE, plan},
    relay::Relay,
};

/// Long enough for requests to time out (10 s each) and for the longest delay between attempts.
const OUTAGE_LIMIT: Duration = Duration::from_secs(45);

/// How long a plan waits for a server that hangs: long enough that it is seen to wait, also on a machine with far too much
/// to do. After its end it says once more that nobody answers.
const PATIENCE: Duration = Duration::from_secs(12);

/// A server that hangs in the middle of a plan: the plan waits a while, goes on, and its end is told later.
pub(crate) async fn a_plan_survives_the_api_server() -> anyhow::Result<()> {
    let settings = format!("apiPatienceSeconds: {}\n", PATIENCE.as_secs());
    let (fixture, versions) = Fixture::idle_with(&settings, &["one\n"]).await?;
    let plan = plan(&[(HAPROXY, versions.first().context("it was delivered")?)])?;
    fixture.agent.hold(Place::Look)?;
    begin(&fixture, &plan).await?;
    let [_, server] = fixture.server.processes();
    let server = Pid::from_raw(i32::try_from(server)?);
    kill(server, Signal::SIGSTOP)?;
    let stopped = tokio::time::Instant::now();
    fixture.agent.release(Place::Look)?;
    wait_until_unreachable(&fixture).await?;
    ensure!(fixture.agent.read(HAPROXY_FILE).is_none(), "it did not wait");
    wait_for(OUTAGE_LIMIT, "the plan goes on without the server", async || {
        Ok(fixture.agent.journal()?.pointer("/ready") == Some(&Value::Bool(true)))
    })
    .await?;
    ensure!(stopped.elapsed() >= PATIENCE, "it did not wait for the server");
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
    let (fixture, mut relay) = behind_a_relay("apiPatienceSeconds: 1\n").await?;
    for text in ["one\n", "two\n"] {
        let before = fixture.agent.read(HAPROXY_FILE);
        relay.cut();
        let version = fixture.agent.deliver(HAPROXY, text)?;
        let plan = plan(&[(HAPROXY, &version)])?;
        fixture.permit(&plan).await?;
        wait_until_unreachable(&fixture).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        ensure!(fixture.agent.read(HAPROXY_FILE) == before, "it began a plan that it could not read");
        relay.heal().await?;
        fixture.wait_until_at(&plan).await?;
    }
    Ok(())
}

/// A watch whose connection stays open and says nothing: the first request that fails tells of it.
pub(crate) async fn a_hanging_watch_is_begun_anew() -> anyhow::Result<()> {
    let (fixture, mut relay) = behind_a_relay("").await?;
    let version = fixture.agent.deliver(HAPROXY, "one\n")?;
    let plan = plan(&[(HAPROXY, &version)])?;
    // The look at the host that a delivery calls for has ended before connections hang.
    tokio::time::sleep(Duration::from_secs(1)).await;
    relay.hang();
    fixture.permit(&plan).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let state = fixture.state().await?.context("it said something before")?;
    ensure!(state.reason == Reason::NoPlan, "the watch does not hang: {state:?}");
    // There is something to tell, and a reason to look.
    fixture.agent.write(HAPROXY_FILE, "by hand\n")?;
    fixture.agent.deliver(HAPROXY, "two\n")?;
    wait_until_unreachable(&fixture).await?;
    ensure!(fixture.agent.read(HAPROXY_FILE).as_deref() == Some("by hand\n"));
    // Those that hang never go on.
    relay.heal().await?;
    fixture.wait_until_at(&plan).await?;
    ensure!(fixture.agent.read(HAPROXY_FILE).as_deref() == Some("one\n"));
    Ok(())
}

/// The server restarts in the middle of a plan, in order or by a crash: the plan is reached, and the next is heard.
pub(crate) async fn a_restart_of_the_server_is_survived() -> anyhow::Result<()> {
    let texts = ["one\n", "two\n", "three\n", "four\n"];
    let (mut fixture, versions) = Fixture::idle_with("", &texts).await?;
    let plans: Vec<Plan> =
        versions.iter().map(|version| plan(&[(HAPROXY, version)])).collect::<anyhow::Result<_>>()?;
    for (plans, grace) in plans.chunks_exact(2).zip([Duration::from_secs(8), Duration::ZERO]) {
        let [during, after] = plans else { bail!("two plans for each restart") };
        fixture.agent.hold(Place::Look)?;
        begin(&fixture, during).await?;
        let earlier = watches(&fixture)?;
        fixture.server.restart(grace).await?;
        fixture.agent.release(Place::Look)?;
        fixture.wait_until_at(during).await?;
        fixture.wait_for_state(Phase::Idle, Reason::UpToDate).await?;
        fixture.permit(after).await?;
        fixture.wait_until_at(after).await?;
        fixture.wait_for_state(Phase::Idle, Reason::UpToDate).await?;
        ensure!(watches(&fixture)? > earlier, "it follows without a watch");
    }
    ensure!(fixture.agent.read(HAPROXY_FILE).as_deref() == Some("four\n"));
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

/// Writes a plan with its permit, and waits until the agent says that it has begun.
pub(crate) async fn begin(fixture: &Fixture, plan: &Plan) -> anyhow::Result<()> {
    fixture.permit(plan).await?;
    wait_for(Duration::from_secs(20), "the plan has begun", async || {
        let annotations = fixture.annotations().await?;
        let says = |key: &str, value: &str| annotations.get(key).is_some_and(|text| text == value);
        Ok(says(READY, "false") && says(PLAN_OBSERVED, plan.id().as_str()))
    })
    .await
}

/// Waits until the agent says on the host that nobody answers.
async fn wait_until_unreachable(fixture: &Fixture) -> anyhow::Result<()> {
    wait_for(OUTAGE_LIMIT, "the agent says that nobody answers", async || {
        let text = fixture.agent.command(&["status", "-o", "json"])?.stdout;
        let status: Value = serde_json::from_slice(&text)?;
        let reason = status.pointer("/service/state/reason").and_then(Value::as_str);
        Ok(reason == Some(Reason::ApiUnreachable.as_str()))
    })
    .await
    .with_context(|| fixture.agent.log())
}

/// How many watches the agent has begun.
fn watches(fixture: &Fixture) -> anyhow::Result<usize> {
    let begun = |request: &Request| request.verb == "watch" && request.stage == "ResponseStarted";
    Ok(fixture.requests()?.iter().filter(|request| begun(request)).count())
}

/// An agent that has nothing to do and reaches its server through a relay.
async fn behind_a_relay(settings: &str) -> anyhow::Result<(Fixture, Relay)> {
    let mut fixture = Fixture::empty(settings).await?;
    let relay = start_behind_a_relay(&mut fixture).await?;
    Ok((fixture, relay))
}

/// The same on a host that was prepared.
pub(crate) async fn start_behind_a_relay(fixture: &mut Fixture) -> anyhow::Result<Relay> {
    fixture.create_node().await?;
    let mut credential = fixture.server.kubeconfig(IDENTITY, &["system:nodes"])?;
    let cluster = credential.clusters.first_mut().and_then(|entry| entry.cluster.as_mut());
    let address = &mut cluster.context("a kubeconfig has a cluster")?.server;
    let server =
        address.as_deref().and_then(|url| url.strip_prefix("https://")).context("it has an address")?;
    let relay = Relay::start(server.parse()?).await?;
    *address = Some(format!("https://localhost:{}", relay.port()));
    fixture.agent.write(CREDENTIAL, &serde_yaml::to_string(&credential)?)?;
    fixture.agent.start()?;
    fixture.wait_for_state(Phase::Idle, Reason::NoPlan).await?;
    Ok(relay)
}
