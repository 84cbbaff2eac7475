//! Annotations that make no sense: nothing is changed, people read why, and the next good plan works.

use std::collections::BTreeMap;

use anyhow::ensure;
use common::{
    annotations::{CHANGES_ALLOWED, PAUSED, PLAN},
    plan::Plan,
    state::{Phase, Reason},
};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{Api, api::DeleteParams};
use serde_json::json;
use tests::lab::wait_for;

use crate::fixture::{Fixture, HAPROXY, HAPROXY_FILE, permitted, plan};

/// As much as fits beside the rest: a Node may have 256 KiB of annotations.
const MUCH: usize = 200 * 1024;

/// A message stays readable, whatever it speaks of.
const MESSAGE_LIMIT: usize = 1000;

type Annotations = BTreeMap<String, String>;

/// What is asked for, and what the agent has to say to it.
struct Row {
    what: &'static str,
    annotations: Annotations,
    phase: Phase,
    reason: Reason,
}

fn desired(software: &str) -> String {
    format!("alpha.{software}.caos.ch/desired-version")
}

/// A good plan with one key more or another.
fn with(good: &Plan, key: &str, value: impl Into<String>) -> Annotations {
    let mut annotations = permitted(good);
    annotations.insert(key.to_owned(), value.into());
    annotations
}

/// A plan with a right hash of any names and versions.
fn hashed(versions: &[(&str, &str)]) -> anyhow::Result<Annotations> {
    let mut all = BTreeMap::new();
    for (name, version) in versions {
        all.insert(name.parse()?, version.parse()?);
    }
    Ok(permitted(&Plan::new(all)))
}

/// Values that no software has as a version.
fn invalid_values(good: &Plan) -> Vec<Row> {
    let much = "9".repeat(MUCH);
    let values = [
        ("200 KiB of a version", much.as_str()),
        ("an empty version", ""),
        ("white space", "1.0 2"),
        ("an option", "--help"),
        ("a command", "$(reboot)"),
        ("a path", "../../etc/shadow"),
        ("another line", "1.0\nready=true"),
        ("a terminal's escape", "1.0\u{1b}[2J"),
        ("a zero", "1.0\u{0}"),
        ("letters of elsewhere", "１.０"),
    ];
    let row = |(what, value): (&'static str, &str)| Row {
        what,
        annotations: with(good, &desired(HAPROXY), value),
        phase: Phase::Refused,
        reason: Reason::InvalidAnnotation,
    };
    values.map(row).into()
}

fn rows(good: &Plan) -> anyhow::Result<Vec<Row>> {
    let refused = |what, reason, annotations| Row { what, annotations, phase: Phase::Refused, reason };
    let waiting = |what, reason, annotations| Row { what, annotations, phase: Phase::Waiting, reason };
    let mut without_hash = permitted(good);
    without_hash.remove(PLAN);
    let many: Annotations = (0..65).map(|number| (desired(&format!("s{number}")), "1".to_owned())).collect();
    let absent = format!("sha256:{}", "0".repeat(16));
    let mut rows = invalid_values(good);
    rows.extend([
        refused(
            "a name in capitals",
            Reason::InvalidAnnotation,
            with(good, "alpha.Haproxy-Config.caos.ch/desired-version", "1"),
        ),
        refused("a name with a dot", Reason::InvalidAnnotation, with(good, &desired("a.b"), "1")),
        refused("too many", Reason::InvalidAnnotation, many),
        refused("no hash", Reason::PlanMismatch, without_hash),
        refused("a wrong hash", Reason::PlanMismatch, with(good, PLAN, "000000000000")),
        refused("an empty hash", Reason::PlanMismatch, with(good, PLAN, "")),
        refused("a long hash", Reason::PlanMismatch, with(good, PLAN, "a".repeat(MUCH))),
        refused("a version too many", Reason::PlanMismatch, with(good, &desired("kubectl"), "1.36.4")),
        refused("unknown software", Reason::UnknownSoftware, hashed(&[("teapot", "4.1.8")])?),
        refused("what was not delivered", Reason::ContentMissing, hashed(&[(HAPROXY, &absent)])?),
        refused("a kubelet that is none", Reason::InvalidAnnotation, hashed(&[("kubelet", "latest")])?),
        refused("a newer kubelet", Reason::SkewNewerThanApiServer, hashed(&[("kubelet", "1.99.0")])?),
        refused(
            "two Kubernetes versions",
            Reason::SkewMixedVersions,
            hashed(&[("kubelet", "1.36.4"), ("kubeadm", "1.36.3")])?,
        ),
        waiting("a long pause", Reason::Paused, with(good, PAUSED, "z\u{1b}".repeat(MUCH / 2))),
    ]);
    for value in ["TRUE", "True", " true", "true\n", "1", "yes", "", "\u{0}"] {
        rows.push(waiting("no permit", Reason::NoPermit, with(good, CHANGES_ALLOWED, value)));
    }
    Ok(rows)
}

pub(crate) async fn garbage_changes_nothing() -> anyhow::Result<()> {
    let fixture = Fixture::idle("").await?;
    // It would keep half of the table from the agent, which must not depend on it.
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(fixture.server.admin().await?);
    bindings.delete("infrop-permit-value", &DeleteParams::default()).await?;
    wait_for(std::time::Duration::from_secs(30), "any permit can be written", async || {
        Ok(fixture.annotate(json!({ CHANGES_ALLOWED: "no" })).await.is_ok())
    })
    .await?;
    let (old, new) = (fixture.agent.deliver(HAPROXY, "old\n")?, fixture.agent.deliver(HAPROXY, "new\n")?);
    let (old, new) = (plan(&[(HAPROXY, &old)])?, plan(&[(HAPROXY, &new)])?);
    fixture.permit(&old).await?;
    fixture.wait_until_at(&old).await?;
    let process = fixture.agent.process()?;
    let before = fixture.agent.files()?;
    let calls = fixture.agent.calls().into_iter().filter(|call| call.starts_with("systemd-inhibit")).count();
    for Row { what, annotations, phase, reason } in rows(&new)? {
        fixture.ask_for_nothing_but(&annotations).await?;
        let state = fixture
            .wait_for_state(phase, reason)
            .await
            .map_err(|error| error.context(format!("with {what}")))?;
        ensure!(state.message.len() < MESSAGE_LIMIT, "with {what} it says {}", state.message);
        ensure!(!state.message.contains(char::is_control), "with {what} it says {:?}", state.message);
        ensure!(fixture.agent.files()? == before, "{what} changed something");
        // It recovers: the plan the host is at.
        fixture.permit(&old).await?;
        fixture.wait_for_state(Phase::Idle, Reason::UpToDate).await?;
        fixture.wait_until_at(&old).await?;
    }
    let after = fixture.agent.calls().into_iter().filter(|call| call.starts_with("systemd-inhibit")).count();
    ensure!(calls == after, "it was about to change something");
    ensure!(fixture.agent.process()? == process && fixture.agent.is_running());
    fixture.permit(&new).await?;
    fixture.wait_until_at(&new).await?;
    ensure!(fixture.agent.read(HAPROXY_FILE).as_deref() == Some("new\n"));
    ensure!(fixture.agent.forbidden_calls().is_empty(), "{:?}", fixture.agent.forbidden_calls());
    Ok(())
}
