//! The handshake: who may say what when, and what the agent then does.

use anyhow::{Context, ensure};
use common::{
    annotations::{CHANGES_ALLOWED, PAUSED, PLAN_OBSERVED, READY, current_version, write_plan},
    state::{Phase, Reason},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tests::agent_process::Place;

use crate::fixture::{Fixture, HAPROXY, HAPROXY_FILE, NODE, plan};

const KEEPALIVED: &str = "keepalived-config";
const KEEPALIVED_FILE: &str = "etc/keepalived/keepalived.conf";

/// The agent is there before the host is in a cluster, and also before its Node is.
pub(crate) async fn it_speaks_as_soon_as_it_can() -> anyhow::Result<()> {
    let mut fixture = Fixture::empty("").await?;
    fixture.agent.write(HAPROXY_FILE, "global\n")?;
    let version = fixture.agent.deliver(HAPROXY, "global\n")?;
    fixture.agent.start()?;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    ensure!(fixture.agent.is_running() && fixture.requests()?.is_empty(), "{}", fixture.agent.log());
    // The credential comes first, as with a kubelet that has not registered yet.
    fixture.agent.join(&fixture.server, NODE)?;
    fixture.wait_for_missing_node().await?;
    ensure!(fixture.writes()?.is_empty(), "it wrote on a Node that is not there");
    fixture.create_node().await?;
    let state = fixture.wait_for_state(Phase::Idle, Reason::NoPlan).await?;
    ensure!(state.attempt == 0 && !state.agent_version.is_empty(), "{state:?}");
    let boot = fixture.agent.read("proc/sys/kernel/random/boot_id").unwrap_or_default();
    ensure!(state.boot_id == boot.trim(), "{state:?}");
    let annotations = fixture.annotations().await?;
    ensure!(annotations.get(READY).is_some_and(|ready| ready == "true"), "{annotations:?}");
    let key = current_version(&HAPROXY.parse()?);
    ensure!(annotations.get(&key).is_some_and(|text| *text == version.to_string()), "{annotations:?}");
    // The Node goes: there is nothing to write on, and nobody writes.
    let writes = fixture.writes()?.len();
    fixture.nodes.delete(NODE, &kube::api::DeleteParams::default()).await?;
    fixture.wait_for_missing_node().await?;
    ensure!(fixture.writes()?.len() == writes, "it wrote on a Node that is gone");
    fixture.create_node().await?;
    fixture.wait_for_state(Phase::Idle, Reason::NoPlan).await?;

    // Now the other order: the Node is there, and the credential appears.
    let mut other = Fixture::empty("").await?;
    other.create_node().await?;
    other.agent.start()?;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    other.agent.join(&other.server, NODE)?;
    other.wait_for_state(Phase::Idle, Reason::NoPlan).await?;
    Ok(())
}

/// The order of a change, as the API server and the file system remember it.
pub(crate) async fn a_plan_needs_a_permit() -> anyhow::Result<()> {
    let fixture = Fixture::idle("").await?;
    let version = fixture.agent.deliver(HAPROXY, "one\n")?;
    let plan = plan(&[(HAPROXY, &version)])?;
    let before = fixture.agent.files()?;
    fixture.annotate(json!(write_plan(&plan))).await?;
    let state = fixture.wait_for_state(Phase::Waiting, Reason::NoPermit).await?;
    ensure!(state.message.contains(HAPROXY), "{state:?}");
    ensure!(fixture.agent.files()? == before, "something changed without a permit");
    let annotations = fixture.annotations().await?;
    ensure!(!annotations.contains_key(PLAN_OBSERVED), "`ready` does not speak of a plan: {annotations:?}");
    let earlier = fixture.writes()?.len();

    fixture.annotate(json!({ CHANGES_ALLOWED: "true" })).await?;
    fixture.wait_until_at(&plan).await?;
    ensure!(fixture.agent.read(HAPROXY_FILE).as_deref() == Some("one\n"));
    let changed = std::fs::metadata(fixture.agent.path(HAPROXY_FILE))?.modified()?;
    let changed = Timestamp::try_from(changed)?;
    let writes: Vec<_> = fixture.writes()?.into_iter().skip(earlier).collect();
    let (id, current) = (plan.id(), current_version(&HAPROXY.parse()?));
    let begin = writes.first().context("it wrote")?;
    ensure!(begin.sets(READY, "false") && begin.sets(PLAN_OBSERVED, id.as_str()), "{begin:?}");
    ensure!(begin.request.stage_timestamp < changed, "changed at {changed}, announced by {begin:?}");
    let says_current = |position: usize| {
        writes.get(position).is_some_and(|write| write.sets(&current, &version.to_string()))
    };
    let current =
        (0..writes.len()).find(|position| says_current(*position)).context("it says the version")?;
    let told = writes.get(current).context("it is there")?;
    ensure!(told.request.request_received_timestamp > changed, "said at {told:?}, changed at {changed}");
    let ready = writes.iter().position(|write| write.sets(READY, "true")).context("it says ready")?;
    ensure!(0 < current && current <= ready && ready == writes.len() - 1, "{writes:?}");
    let codes = writes.iter().filter_map(|write| write.request.response_status.as_ref());
    ensure!(codes.map(|status| status.code).all(|code| code == 200), "{writes:?}");
    ensure!(fixture.agent.forbidden_calls().is_empty(), "{:?}", fixture.agent.forbidden_calls());
    Ok(())
}

/// A permit that goes, or a person who pauses, stops it between two steps, and it goes on from there.
pub(crate) async fn no_permit_and_a_pause_stop_it() -> anyhow::Result<()> {
    let fixture = Fixture::idle("").await?;
    let agent = &fixture.agent;
    agent.set_active("keepalived.service")?;
    for (round, stop, resume, reason) in [
        (
            "1\n",
            json!({ CHANGES_ALLOWED: "false" }),
            json!({ CHANGES_ALLOWED: "true" }),
            Reason::PermitWithdrawn,
        ),
        (
            "2\n",
            json!({ CHANGES_ALLOWED: null }),
            json!({ CHANGES_ALLOWED: "true" }),
            Reason::PermitWithdrawn,
        ),
        ("3\n", json!({ PAUSED: "lunch" }), json!({ PAUSED: null }), Reason::Paused),
    ] {
        let old = agent.read(HAPROXY_FILE);
        let (first, second) = (agent.deliver(KEEPALIVED, round)?, agent.deliver(HAPROXY, round)?);
        let plan = plan(&[(KEEPALIVED, &first), (HAPROXY, &second)])?;
        agent.hold(Place::Reload)?;
        fixture.permit(&plan).await?;
        tests::lab::wait_for(std::time::Duration::from_secs(20), "the first step is under way", async || {
            Ok(agent.read(KEEPALIVED_FILE).as_deref() == Some(round))
        })
        .await?;
        fixture.annotate(stop).await?;
        agent.release(Place::Reload)?;
        let state = fixture.wait_for_state(Phase::Waiting, reason).await?;
        ensure!(state.message.contains(HAPROXY) && state.attempt == 1, "{state:?}");
        let annotations = fixture.annotations().await?;
        ensure!(annotations.get(READY).is_some_and(|ready| ready == "false"), "{annotations:?}");
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        ensure!(agent.read(HAPROXY_FILE) == old, "the second step was made");
        fixture.annotate(resume).await?;
        fixture.wait_until_at(&plan).await?;
        ensure!(agent.read(HAPROXY_FILE).as_deref() == Some(round));
    }
    // What was done once is not done again: one reload per round.
    let reloads = agent.calls().iter().filter(|call| call.contains("reload-or-restart")).count();
    ensure!(reloads == 3, "{:?}", agent.calls());
    // Asked for nothing, it has nothing to say but what the host has.
    fixture.ask_for_nothing_but(&std::collections::BTreeMap::new()).await?;
    fixture.wait_for_state(Phase::Idle, Reason::NoPlan).await?;
    ensure!(fixture.annotations().await?.get(PLAN_OBSERVED).map(|text| json!(text)) == None::<Value>);
    Ok(())
}
