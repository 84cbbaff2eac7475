//! Which pods go, and what becomes of those that do not.

use anyhow::{bail, ensure};
use infrop::cluster::{AtDeadline, DrainError, DrainRules, Fate};
use serde_json::Value;

use super::fixture::{Server, World, accepted, budget, pod, pod_of};

/// While there is one, nothing is evicted.
pub(crate) async fn would_be_lost() -> anyhow::Result<()> {
    let pods = || vec![pod("web-1"), pod_of("alone", None)];
    let server =
        Server::start(World { pods: pods(), ..World::default() }, |_, _| accepted("201 Created")).await?;
    let outcome = server.drain(&DrainRules::default(), 20).await?;
    let Err(error @ DrainError::Refused { .. }) = &outcome.result else { bail!("{outcome:?}") };
    let text = error.to_string();
    ensure!(text.contains("shop/alone: no controller") && text.contains("--unmanaged"), "{text}");
    ensure!(!text.contains("web-1") && server.world().attempts == 0, "{text}");
    ensure!(server.asked("/apis/apps/v1/daemonsets") == 0, "nobody needed to know of DaemonSets");

    let agreed = DrainRules { unmanaged: Fate::Evict, ..DrainRules::default() };
    let drained = server.drain(&agreed, 20).await?.result?;
    ensure!(drained.evicted.len() == 2, "{drained:?}");
    Ok(())
}

/// Pods of `DaemonSets` and the kubelet's own stay; a pod whose `DaemonSet` is gone is nobody's.
pub(crate) async fn those_of_the_node_stay() -> anyhow::Result<()> {
    let mut mirror = pod_of("etcd", None);
    if let Some(metadata) = mirror.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("annotations".to_owned(), serde_json::json!({ "kubernetes.io/config.mirror": "x" }));
    }
    let pods = vec![pod_of("proxy", Some("DaemonSet")), mirror, pod("web-1")];
    let world = World { pods, daemon_sets: vec!["web"], ..World::default() };
    let server = Server::start(world, |_, _| accepted("201 Created")).await?;
    let drained = server.drain(&DrainRules::default(), 20).await?.result?;
    ensure!(drained.evicted.len() == 1 && server.world().pods.len() == 2, "{drained:?}");

    server.world().daemon_sets.clear();
    let outcome = server.drain(&DrainRules::default(), 20).await?;
    let Err(error @ DrainError::Refused { .. }) = &outcome.result else { bail!("{outcome:?}") };
    ensure!(error.to_string().contains("shop/proxy: its DaemonSet web is gone"), "{error}");
    Ok(())
}

/// By policy, when the time is over: only those that are left, and only the very ones.
pub(crate) async fn deleted_in_the_end() -> anyhow::Result<()> {
    let world = World { pods: vec![pod("web-1"), pod("web-2")], ..World::default() };
    let server =
        Server::start(world, |_, name| if name == "web-1" { budget(10) } else { accepted("201 Created") })
            .await?;
    let rules = DrainRules { at_deadline: AtDeadline::Delete, ..DrainRules::default() };
    let outcome = server.drain(&rules, 2).await?;
    let Ok(drained) = &outcome.result else { bail!("{outcome:?}") };
    let shown = |pods: &std::collections::BTreeSet<_>| {
        pods.iter().map(ToString::to_string).collect::<Vec<String>>().join(" ")
    };
    ensure!((shown(&drained.evicted), shown(&drained.deleted)) == ("shop/web-2".into(), "shop/web-1".into()));
    ensure!(outcome.notes.iter().any(|note| note.starts_with("the time is over")), "{outcome:?}");
    let deletions: Vec<_> = server.writes().into_iter().filter(|asked| asked.method == "DELETE").collect();
    let [deletion] = &deletions[..] else { bail!("{deletions:?}") };
    let body: Value = serde_json::from_str(&deletion.body)?;
    ensure!(body.pointer("/preconditions/uid") == Some(&"uid-web-1".into()), "{body}");
    ensure!(body.get("gracePeriodSeconds").is_none(), "it has the time that is its own: {body}");
    Ok(())
}

/// One request for each pod, all in the first round.
pub(crate) async fn many_go_together() -> anyhow::Result<()> {
    let pods = (0..60).map(|number| pod(&format!("web-{number}"))).collect();
    let server = Server::start(World { pods, ..World::default() }, |_, _| accepted("201 Created")).await?;
    // As long as it takes, which no clock can hold.
    let drained = server.drain(&DrainRules::default(), u64::MAX).await?.result?;
    let (lists, attempts) = server.counts();
    ensure!(
        drained.evicted.len() == 60 && (lists, attempts) == (2, 60),
        "{lists} lists, {attempts} attempts"
    );
    Ok(())
}
