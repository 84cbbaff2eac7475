//! What `node-agent plan` says of a Node, and how programs can tell.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::fixture::{Fixture, HAPROXY, permitted, plan};

/// Exit codes: there is nothing to do; something would change, or nobody can say.
const NOTHING: i32 = 0;
const CHANGES: i32 = 2;
const USAGE: i32 = 64;

/// Its exit code, and what it says as text and as JSON.
fn ask(fixture: &Fixture) -> anyhow::Result<(i32, String, Value)> {
    let text = fixture.agent.command(&["plan"])?;
    let json = fixture.agent.command(&["plan", "-o", "json"])?;
    let code = json.status.code().context("it ended by itself")?;
    ensure!(text.status.code() == Some(code), "{text:?}\n{json:?}");
    Ok((code, String::from_utf8(text.stdout)?, serde_json::from_slice(&json.stdout)?))
}

/// A reason that keeps the plan from being done.
fn blocked(answer: &Value) -> Option<&str> {
    answer.pointer("/blocked/reason").and_then(Value::as_str)
}

pub(crate) async fn plan_says_what_would_be_done() -> anyhow::Result<()> {
    let mut fixture = Fixture::empty("").await?;
    let (code, text, answer) = ask(&fixture)?;
    ensure!(
        code == NOTHING && text.contains("nothing to do") && blocked(&answer).is_none(),
        "{text}{answer}"
    );
    // A host in a cluster that has no Node of its name.
    fixture.agent.join(&fixture.server, crate::fixture::NODE)?;
    let (code, text, answer) = ask(&fixture)?;
    ensure!(code == CHANGES && blocked(&answer) == Some("NodeMissing"), "{text}{answer}");
    // A plan without a permit, with one, and reached.
    let version = fixture.agent.deliver(HAPROXY, "one\n")?;
    let goal = plan(&[(HAPROXY, &version)])?;
    fixture.create_node().await?;
    let wanted = permitted(&goal);
    fixture.annotate(json!(wanted)).await?;
    let (code, text, answer) = ask(&fixture)?;
    let step = format!("bring {HAPROXY} to {version}");
    ensure!(code == CHANGES && text.contains(&format!("next: {step}")), "{text}");
    ensure!(answer.pointer("/changes") == Some(&json!(true)) && blocked(&answer).is_none(), "{answer}");
    ensure!(answer.pointer("/next") == Some(&json!(step)), "{answer}");
    ensure!(answer.pointer("/plan") == Some(&json!(goal.id())), "{answer}");
    fixture.annotate(json!({ common::annotations::CHANGES_ALLOWED: "false" })).await?;
    let (code, text, answer) = ask(&fixture)?;
    ensure!(code == CHANGES && text.contains("not now: Waiting (NoPermit)"), "{text}");
    ensure!(blocked(&answer) == Some("NoPermit"), "{answer}");
    ensure!(fixture.agent.read(crate::fixture::HAPROXY_FILE).is_none(), "plan changed something");
    fixture.annotate(json!(wanted)).await?;
    fixture.agent.start()?;
    fixture.wait_until_at(&goal).await?;
    let (code, text, answer) = ask(&fixture)?;
    ensure!(code == NOTHING && answer.pointer("/changes") == Some(&json!(false)), "{text}{answer}");
    // What cannot be understood may be a change, too.
    fixture.annotate(json!({ common::annotations::PLAN: "000000000000" })).await?;
    let (code, text, answer) = ask(&fixture)?;
    ensure!(code == CHANGES && blocked(&answer) == Some("PlanMismatch"), "{text}{answer}");
    // Its journal and its Node are those of the service, and stay so.
    ensure!(fixture.agent.forbidden_calls().is_empty(), "{:?}", fixture.agent.forbidden_calls());
    let usage = fixture.agent.command(&["plan", "--nonsense"])?;
    ensure!(usage.status.code() == Some(USAGE), "{usage:?}");
    let version = fixture.agent.command(&["version"])?;
    ensure!(String::from_utf8(version.stdout)?.contains(tests::agent::VERSION), "it says another version");
    Ok(())
}
