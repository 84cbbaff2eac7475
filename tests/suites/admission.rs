//! The admission policies of `infrop manifests admission`, in a real API server: who may write what on a Node.

#[path = "admission/fixture.rs"]
mod fixture;
#[path = "admission/table.rs"]
mod table;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use common::annotations::{
    CHANGES_ALLOWED, CORDONED_BY, PLAN, PLAN_OBSERVED, READY, STATE, current_version, desired_version,
};
use serde_json::{Value, json};
use tests::harness::{Case, Tier, suite};

use crate::{
    fixture::{
        BY_AGENT_KEYS, BY_NODE_WRITES, Fixture, KUBELETS, Verdict::Allowed, Who, Write, agents_keys,
        annotation, annotations, cordon, merge, others_keys, preset, status_annotation,
    },
    table::{writes_of_nodes, writes_of_others},
};

/// A start and some hundred requests take seconds; this is for a machine that does something else as well.
const LIMIT: Duration = Duration::from_mins(5);

/// Three refused writes of a crowded Node take three seconds on an idle machine; with a look at each key, minutes.
const CROWDED_LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    suite([
        Case::new(Tier::T3, "each_write_is_allowed_or_refused", LIMIT, each_write_is_allowed_or_refused),
        Case::new(Tier::T3, "each_key_has_its_writer", LIMIT, each_key_has_its_writer),
        Case::new(Tier::T3, "a_rollout_passes", LIMIT, a_rollout_passes),
        Case::new(Tier::T3, "a_node_cannot_crowd_others_out", LIMIT, a_node_cannot_crowd_others_out),
    ])
}

/// Dry runs, so that each finds the nodes as they were made: admission is the same for them.
async fn each_write_is_allowed_or_refused() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut wrong = Vec::new();
    for (who, what, write, verdict) in writes_of_nodes().into_iter().chain(writes_of_others()) {
        wrong.extend(fixture.expect(who, what, write, verdict).await.err().map(|error| error.to_string()));
    }
    ensure!(wrong.is_empty(), "{} answers are wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Adding, changing and removing each key of the protocol, on both ways to a Node and at its creation.
async fn each_key_has_its_writer() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let ways = |key: &str| {
        let mut ways = vec![preset("n9", key, "true")];
        for change in [annotations(key, "true"), annotations(key, Value::Null)] {
            ways.extend([Write::Merge("n1", change.clone()), Write::Status("n1", change)]);
        }
        ways
    };
    // Those with a Node that has none of the keys yet.
    let first = |key: &str| [annotation("n2", key, "true"), status_annotation("n2", key, "true")];
    for key in others_keys()? {
        for write in ways(&key) {
            let node = if matches!(write, Write::Create(_)) { Who::N9 } else { Who::N1 };
            fixture.expect(node, "a node", write.clone(), BY_NODE_WRITES).await?;
            fixture.expect(Who::Infrop, "infrop", write, Allowed).await?;
        }
        for write in first(&key) {
            fixture.expect(Who::N2, "a node", write.clone(), BY_NODE_WRITES).await?;
            fixture.expect(Who::Infrop, "infrop", write, Allowed).await?;
        }
    }
    for key in agents_keys()? {
        for write in ways(&key) {
            let node = if matches!(write, Write::Create(_)) { Who::N9 } else { Who::N1 };
            fixture.expect(node, "node-agent", write.clone(), Allowed).await?;
            for who in [Who::Admin, Who::Infrop] {
                fixture.expect(who, "someone else", write.clone(), BY_AGENT_KEYS).await?;
            }
        }
        for write in first(&key) {
            fixture.expect(Who::N2, "node-agent", write.clone(), Allowed).await?;
            fixture.expect(Who::Infrop, "infrop", write, BY_AGENT_KEYS).await?;
        }
    }
    Ok(())
}

/// The writes of a whole rollout, for real and in their order.
async fn a_rollout_passes() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    fixture.dry_run = false;
    let all = |pairs: Value| json!({ "metadata": { "annotations": pairs } });
    let (desired, current) = (desired_version(&"kubelet".parse()?), current_version(&"kubelet".parse()?));
    let cordoned =
        json!({ "metadata": { "annotations": { CORDONED_BY: "r1" } }, "spec": { "unschedulable": true } });
    for (who, change) in [
        (Who::Infrop, all(json!({ CHANGES_ALLOWED: "true" }))),
        (Who::Infrop, cordoned),
        (Who::Infrop, all(json!({ PLAN: "0123456789ab", desired: "1.37.1" }))),
        (Who::N2, all(json!({ READY: "false", PLAN_OBSERVED: "0123456789ab", STATE: "{}" }))),
        (Who::N2, all(json!({ KUBELETS: "true" }))),
        (Who::N2, all(json!({ READY: "true", current: "1.37.1", STATE: "{\"phase\":\"done\"}" }))),
        (Who::Infrop, cordon(Value::Null)),
        (Who::Infrop, all(json!({ CORDONED_BY: null, CHANGES_ALLOWED: "false" }))),
    ] {
        fixture.expect(who, "a step", Write::Merge("n2", change), Allowed).await?;
    }
    // The status is no way around the cordon: the server ignores the spec in it, without a word.
    fixture.expect(Who::N1, "uncordons by the status", Write::Status("n1", cordon(false)), Allowed).await?;
    let node = fixture.of(Who::Admin)?.get("n1").await?;
    ensure!(node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true), "{:?}", node.spec);
    fixture.expect(Who::Admin, "removes the Node", Write::Delete("n2"), Allowed).await?;
    ensure!(fixture.of(Who::Admin)?.get_opt("n2").await?.is_none());
    Ok(())
}

/// What keeps looking through the annotations cheap: see the manifest.
async fn a_node_cannot_crowd_others_out() -> anyhow::Result<()> {
    let mut fixture = Fixture::start().await?;
    let short = |number: usize| format!("k{number:x}");
    let ours = |number: usize| format!("alpha.s{number:x}.caos.ch/current-version");
    let many = |count: usize, name: fn(usize) -> String| -> Value {
        let pairs: Value = (0..count).map(|number| (name(number), json!(""))).collect();
        json!({ "metadata": { "annotations": pairs } })
    };
    // As many keys as the server lets an object have, and as many of those that are looked at closely.
    for (count, name) in [(50_000, short as fn(usize) -> String), (7_000, ours)] {
        let started = Instant::now();
        let mut new = many(count, name);
        fixture.expect(Who::N1, "fills its Node", Write::Merge("n1", new.clone()), BY_NODE_WRITES).await?;
        merge(&mut new, &json!({ "metadata": { "name": "n9" } }));
        fixture.expect(Who::N9, "registers with them", Write::Create(new.clone()), BY_NODE_WRITES).await?;
        fixture.expect(Who::Alice, "fills a Node", Write::Create(new), BY_AGENT_KEYS).await?;
        ensure!(started.elapsed() < CROWDED_LIMIT, "{count} keys took {:?}", started.elapsed());
    }
    // As many as a node may have.
    let there = fixture.of(Who::Admin)?.get("n1").await?.metadata.annotations.unwrap_or_default().len();
    for name in [short as fn(usize) -> String, ours] {
        fixture.dry_run = false;
        let full = many(1000 - there, name);
        fixture.expect(Who::N1, "fills its Node", Write::Merge("n1", full.clone()), Allowed).await?;
        fixture.dry_run = true;
        for (who, write, verdict) in [
            (Who::N1, annotation("n1", "one-more", ""), BY_NODE_WRITES),
            (Who::N1, annotation("n1", READY, "true"), Allowed),
            (Who::N1, annotation("n1", CHANGES_ALLOWED, "true"), BY_NODE_WRITES),
            (Who::Infrop, annotation("n1", CHANGES_ALLOWED, "true"), Allowed),
            (Who::Infrop, annotation("n1", "one-more", ""), Allowed),
            (Who::Infrop, annotation("n1", READY, "true"), BY_AGENT_KEYS),
        ] {
            fixture.expect(who, "with a full Node", write, verdict).await?;
        }
        fixture.dry_run = false;
        let keys =
            full.pointer("/metadata/annotations").and_then(Value::as_object).context("there are keys")?;
        let none: Value = keys.keys().map(|key| (key.clone(), Value::Null)).collect();
        let empty = json!({ "metadata": { "annotations": none } });
        fixture.expect(Who::N1, "empties it", Write::Merge("n1", empty), Allowed).await?;
        fixture.dry_run = true;
    }
    Ok(())
}
