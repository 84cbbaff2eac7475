//! What becomes of each answer of the eviction API.

use std::time::Instant;

use anyhow::{Context, bail, ensure};
use infrop::cluster::{DrainError, DrainRules};
use serde_json::Value;
use tests::scripted_server::Answer;

use super::fixture::{Server, World, accepted, budget, pod, refusal};

const TWO: &str =
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";

fn names(pods: &std::collections::BTreeSet<infrop::cluster::PodName>) -> Vec<String> {
    pods.iter().map(ToString::to_string).collect()
}

pub(crate) async fn accepted_and_gone() -> anyhow::Result<()> {
    for http in ["200 OK", "201 Created"] {
        let server = Server::with_one(vec![accepted(http)]).await?;
        let drained = server.drain(&DrainRules::default(), 10).await?.result?;
        ensure!(names(&drained.evicted) == ["shop/web-1"] && drained.deleted.is_empty(), "{drained:?}");
        let [asked] = &server.writes()[..] else { bail!("{:?}", server.writes()) };
        ensure!(asked.path.starts_with("/api/v1/namespaces/shop/pods/web-1/eviction"), "{asked:?}");
        let body: Value = serde_json::from_str(&asked.body)?;
        ensure!(body.pointer("/deleteOptions/preconditions/uid") == Some(&"uid-web-1".into()), "{body}");
    }
    // It went by itself meanwhile.
    let world = World { pods: vec![pod("web-1")], ..World::default() };
    let server = Server::start(world, |world, name| {
        world.remove(name);
        refusal("404 Not Found", 404, "pods \"web-1\" not found", None, 0)
    })
    .await?;
    let drained = server.drain(&DrainRules::default(), 10).await?.result?;
    ensure!(drained.evicted.is_empty() && server.world().attempts == 1, "{drained:?}");
    Ok(())
}

/// Each refusal is one request, is noted with the budget's name, and is waited for until it lets the pod go.
pub(crate) async fn a_budget_holds_and_is_named() -> anyhow::Result<()> {
    let server = Server::with_one(vec![budget(0)]).await?;
    let outcome = server.drain(&DrainRules::default(), 3).await?;
    let Err(DrainError::Blocked { blockers, .. }) = &outcome.result else { bail!("{outcome:?}") };
    let [blocker] = &blockers[..] else { bail!("{blockers:?}") };
    ensure!(blocker.pod.to_string() == "shop/web-1" && blocker.budget.as_deref() == Some("shop/web"));
    let expected = "1 pod stays: shop/web-1: budget shop/web needs 2 healthy pods and has 2 currently";
    ensure!(outcome.notes.first().is_some_and(|note| note == expected), "{outcome:?}");
    let (lists, attempts) = server.counts();
    ensure!((3..=5).contains(&attempts) && lists == attempts, "{attempts} attempts in {lists} rounds");

    let negative = "The disruption budget web does not allow evicting pods currently: pdb disruptions allowed is negative";
    let broken = refusal("403 Forbidden", 403, "forbidden", Some(["DisruptionBudget", negative]), 0);
    let server = Server::with_one(vec![budget(0), broken, accepted("201 Created")]).await?;
    let outcome = server.drain(&DrainRules::default(), 20).await?;
    ensure!(outcome.result.is_ok() && server.world().attempts == 3, "{outcome:?}");
    ensure!(outcome.notes.iter().any(|note| note.contains("budget shop/web does not allow")), "{outcome:?}");
    Ok(())
}

/// That pod is not asked for meanwhile, and the others are looked at all the same.
pub(crate) async fn retry_after_is_honoured() -> anyhow::Result<()> {
    let server = Server::with_one(vec![budget(10)]).await?;
    let outcome = server.drain(&DrainRules::default(), 3).await?;
    ensure!(matches!(outcome.result, Err(DrainError::Blocked { .. })), "{outcome:?}");
    let (lists, attempts) = server.counts();
    ensure!(attempts == 1 && lists >= 3, "{attempts} attempts in {lists} rounds");

    let started = Instant::now();
    let server = Server::with_one(vec![budget(3), accepted("201 Created")]).await?;
    let outcome = server.drain(&DrainRules::default(), 20).await?;
    ensure!(outcome.result.is_ok() && server.world().attempts == 2, "{outcome:?}");
    ensure!(started.elapsed().as_secs() >= 3, "it did not wait");
    Ok(())
}

/// The API server says it in a success; what is said with 500 means the same.
pub(crate) async fn two_budgets_end_it_at_once() -> anyhow::Result<()> {
    for http in ["201 Created", "500 Internal Server Error"] {
        let server = Server::with_one(vec![refusal(http, 500, TWO, None, 0)]).await?;
        let outcome = server.drain(&DrainRules::default(), 60).await?;
        let Err(error @ DrainError::TooManyBudgets { .. }) = &outcome.result else { bail!("{outcome:?}") };
        let text = error.to_string();
        ensure!(text.contains("shop/web-1: more than one PodDisruptionBudget"), "{text}");
        ensure!(server.world().attempts == 1, "{outcome:?}");
    }
    Ok(())
}

/// A pod of the same name is asked to go in its own right.
pub(crate) async fn another_of_the_same_name() -> anyhow::Result<()> {
    let world = World { pods: vec![pod("web-1")], ..World::default() };
    let server = Server::start(world, |world, name| {
        if world.attempts > 1 {
            return accepted("201 Created");
        }
        world.remove(name);
        let mut other = pod(name);
        if let Some(uid) = other.pointer_mut("/metadata/uid") {
            *uid = "another".into();
        }
        world.pods.push(other);
        let message = "Operation cannot be fulfilled on Pod \"web-1\": the UID in the precondition (uid-web-1) does not \
                       match the UID in record (another).";
        refusal("409 Conflict", 409, message, None, 0)
    })
    .await?;
    let outcome = server.drain(&DrainRules::default(), 20).await?;
    ensure!(outcome.result.is_ok(), "{outcome:?}");
    let uids: Vec<String> = server
        .writes()
        .iter()
        .filter_map(|asked| {
            let body: Value = serde_json::from_str(&asked.body).ok()?;
            Some(body.pointer("/deleteOptions/preconditions/uid")?.as_str()?.to_owned())
        })
        .collect();
    ensure!(uids == ["uid-web-1", "another"], "{uids:?}");
    Ok(())
}

/// Trouble of the server's is asked about again, once in each round; a missing right is told at once.
pub(crate) async fn trouble_passes() -> anyhow::Result<()> {
    for (http, code) in [
        ("500 Internal Server Error", 500),
        ("503 Service Unavailable", 503),
        ("504 Gateway Timeout", 504),
        ("429 Too Many Requests", 429),
        ("409 Conflict", 409),
    ] {
        let trouble = refusal(http, code, "a webhook does not answer", None, 0);
        let server = Server::with_one(vec![trouble.clone(), trouble, accepted("201 Created")]).await?;
        let outcome = server.drain(&DrainRules::default(), 20).await?;
        ensure!(outcome.result.is_ok() && server.world().attempts == 3, "{outcome:?}");
        ensure!(outcome.notes.iter().any(|note| note.contains("a webhook does not answer")), "{outcome:?}");
    }
    for (http, code) in [("403 Forbidden", 403), ("401 Unauthorized", 401), ("422 Unprocessable Entity", 422)]
    {
        let server = Server::with_one(vec![refusal(http, code, "you may not", None, 0)]).await?;
        let outcome = server.drain(&DrainRules::default(), 20).await?;
        let error = anyhow::Error::new(outcome.result.err().context("it counts as done")?);
        let text = format!("{error:#}");
        ensure!(text.contains("evict the pod shop/web-1") && text.contains("you may not"), "{text}");
        ensure!(server.world().attempts == 1, "it asked again");
    }
    // A list that fails is taken again.
    let mut lists = 0;
    let server = tests::scripted_server::ScriptedServer::start_with(move |_| {
        lists += 1;
        if lists == 1 {
            Answer::new("503 Service Unavailable", "it starts")
        } else {
            Answer::new("200 OK", r#"{"metadata":{},"items":[]}"#)
        }
    })
    .await?;
    let client = infrop::cluster::DirectClient::new(kube::Config::new(server.url().parse()?))?;
    let limit = std::time::Duration::from_secs(20);
    infrop::cluster::drain(&client, &"w-1".parse()?, &DrainRules::default(), limit, &|_| {}).await?;
    ensure!(server.asked().len() == 2, "{:?}", server.asked());
    Ok(())
}

pub(crate) async fn a_namespace_that_ends() -> anyhow::Result<()> {
    let world = World { pods: vec![pod("web-1")], ..World::default() };
    let server = Server::start(world, |world, name| {
        if world.attempts == 3 {
            world.remove(name);
        }
        let words = "namespace shop is being terminated";
        refusal("403 Forbidden", 403, "forbidden", Some(["NamespaceTerminating", words]), 0)
    })
    .await?;
    let outcome = server.drain(&DrainRules::default(), 20).await?;
    ensure!(outcome.result.as_ref().is_ok_and(|drained| drained.evicted.is_empty()), "{outcome:?}");
    ensure!(outcome.notes.iter().any(|note| note.contains("its namespace ends")), "{outcome:?}");
    ensure!(server.world().attempts == 3);
    Ok(())
}
