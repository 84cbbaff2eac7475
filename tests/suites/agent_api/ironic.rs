//! Telling Ironic that a host is initialized, by a scripted server: every answer it may give.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use common::{
    metadata::{CredentialKind, InitializedMark, Ironic},
    plan::Plan,
    state::Reason,
};
use jiff::Timestamp;
use node_agent::provider::{IRONIC_KEY, IronicNode, Provider};
use serde_json::{Value, json};
use tests::{
    agent_process::AgentProcess,
    lab::wait_for,
    node_agent_path,
    scripted_server::{Answer, Asked, ScriptedServer},
};

const UUID: &str = "11111111-2222-4333-8444-555555555555";
const PASSWORD: &str = "correct horse:battery";
const TOKEN: &str = "gAAAAABnotarealtoken";

/// Credentials in files, as the metadata names them.
struct Credentials {
    directory: tempfile::TempDir,
}

impl Credentials {
    fn new() -> anyhow::Result<Self> {
        // Fails only if there is one already, as after a case with an API server.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("basic"), format!("agent:{PASSWORD}\n"))?;
        std::fs::write(directory.path().join("token"), format!("{TOKEN}\n"))?;
        Ok(Self { directory })
    }

    fn file(&self, kind: CredentialKind) -> PathBuf {
        self.directory.path().join(match kind {
            CredentialKind::Basic => "basic",
            CredentialKind::Token => "token",
        })
    }

    fn ironic(&self, url: String, kind: CredentialKind) -> anyhow::Result<Ironic> {
        Ok(Ironic {
            url,
            node: UUID.parse()?,
            credential_file: self.file(kind),
            credential: kind,
            ca_file: None,
        })
    }
}

fn mark() -> anyhow::Result<InitializedMark> {
    Ok(InitializedMark {
        node: "w1".parse()?,
        plan: Plan::default().id(),
        at: Timestamp::from_second(1_800_000_000)?,
        boot_id: "b".to_owned(),
        agent_version: "0.1.0".to_owned(),
    })
}

fn basic_header() -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("agent:{PASSWORD}")))
}

/// Whether a request is the patch of the node's `extra` with this mark.
fn check_request(asked: &Asked, mark: &Value) -> anyhow::Result<()> {
    let header = |name: &str| asked.headers.get(name).map(String::as_str);
    ensure!(
        (asked.method.as_str(), asked.path.as_str()) == ("PATCH", &*format!("/v1/nodes/{UUID}")),
        "{asked:?}"
    );
    ensure!(header("content-type") == Some("application/json"), "{asked:?}");
    ensure!(header("x-openstack-ironic-api-version") == Some("1.31"), "{asked:?}");
    let body: Value = serde_json::from_str(&asked.body)?;
    ensure!(
        body == json!([{ "op": "add", "path": format!("/extra/{IRONIC_KEY}"), "value": mark }]),
        "{body}"
    );
    Ok(())
}

pub(crate) async fn ironic_is_told() -> anyhow::Result<()> {
    let credentials = Credentials::new()?;
    let server = ScriptedServer::start(vec![Answer::new("200 OK", "{}")]).await?;
    let mark = mark()?;
    for kind in [CredentialKind::Basic, CredentialKind::Token] {
        // With and without a slash at the end.
        for url in [server.url(), server.url() + "/"] {
            let ironic = credentials.ironic(url, kind)?;
            IronicNode { ironic: &ironic }.mark_initialized(&mark).await?;
            let asked = server.asked().pop().context("Ironic was asked")?;
            check_request(&asked, &serde_json::to_value(&mark)?)?;
            let shown = (asked.headers.get("authorization"), asked.headers.get("x-auth-token"));
            let right = match kind {
                CredentialKind::Basic => shown == (Some(&basic_header()), None),
                CredentialKind::Token => shown == (None, Some(&TOKEN.to_owned())),
            };
            ensure!(right, "{kind:?}: {shown:?}");
        }
    }
    ensure!(server.asked().len() == 4);
    Ok(())
}

/// Refusals are told in Ironic's words, and never with the secret, even if Ironic repeats it.
pub(crate) async fn ironic_refuses() -> anyhow::Result<()> {
    let credentials = Credentials::new()?;
    let basic = basic_header();
    let encoded = basic.trim_start_matches("Basic ");
    let repeats = format!("bad credential agent:{PASSWORD} ({encoded}), token {TOKEN}, sorry");
    let flood = TOKEN.repeat(100_000);
    for (status, body, words) in [
        ("502 Bad Gateway", &*flood, ["502", "more than 64 KiB"]),
        ("401 Unauthorized", "who are you?", ["401", "who are you?"]),
        ("404 Not Found", "{\"error_message\": \"no such node\"}", ["404", "no such node"]),
        ("409 Conflict", "the node is locked", ["409", "the node is locked"]),
        ("500 Internal Server Error", "the database\u{1b}[0m is gone\n", ["500", "the database [0m is gone"]),
        ("503 Service Unavailable", "", ["503", UUID]),
        ("403 Forbidden", &repeats, ["bad credential", "sorry"]),
    ] {
        for kind in [CredentialKind::Basic, CredentialKind::Token] {
            let server = ScriptedServer::start(vec![Answer::new(status, body)]).await?;
            let ironic = credentials.ironic(server.url(), kind)?;
            let told = IronicNode { ironic: &ironic }.mark_initialized(&mark()?).await;
            let failure = told.err().with_context(|| format!("{status} counts as done"))?;
            let passing = status.starts_with('5') || status.starts_with("409");
            let reason = if passing { Reason::ProviderUnavailable } else { Reason::ProviderFailed };
            ensure!(failure.reason == reason, "{failure:?}");
            ensure!(words.iter().all(|word| failure.message.contains(word)), "{failure:?}");
            let shown = match kind {
                CredentialKind::Basic => [PASSWORD, encoded],
                CredentialKind::Token => [TOKEN, TOKEN],
            };
            ensure!(!shown.iter().any(|secret| failure.message.contains(secret)), "{failure:?}");
            ensure!(server.asked().len() == 1, "who tries again is the plan's business");
        }
    }
    // Nobody there, no file, and a file that is something else.
    let mut ironic = credentials.ironic("http://127.0.0.1:1".to_owned(), CredentialKind::Basic)?;
    let nobody = IronicNode { ironic: &ironic }.mark_initialized(&mark()?).await.err();
    ensure!(nobody.is_some_and(|failure| failure.reason == Reason::ProviderUnavailable));
    ironic.credential_file = credentials.file(CredentialKind::Token);
    let other = IronicNode { ironic: &ironic }.mark_initialized(&mark()?).await.err();
    let other = other.context("a token is no user and password")?;
    ensure!(
        other.message.ends_with("does not hold user:password") && !other.message.contains(TOKEN),
        "{other}"
    );
    ironic.credential_file = "/nowhere/credential".into();
    let missing = IronicNode { ironic: &ironic }.mark_initialized(&mark()?).await.err();
    ensure!(missing.is_some_and(|failure| failure.message.contains("/nowhere/credential")));
    Ok(())
}

/// A redirect is no place to show a credential: whoever can answer for Ironic could have it.
pub(crate) async fn a_token_goes_nowhere_else() -> anyhow::Result<()> {
    let credentials = Credentials::new()?;
    let other = ScriptedServer::start(vec![Answer::new("200 OK", "{}")]).await?;
    for status in ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        for kind in [CredentialKind::Basic, CredentialKind::Token] {
            let headers = format!("Location: {}/v1/nodes/{UUID}\r\n", other.url());
            let answer = Answer { headers, ..Answer::new(status, "") };
            let server = ScriptedServer::start(vec![answer]).await?;
            let ironic = credentials.ironic(server.url(), kind)?;
            let told = IronicNode { ironic: &ironic }.mark_initialized(&mark()?).await;
            ensure!(other.asked().is_empty(), "{status} took the credential along: {:?}", other.asked());
            ensure!(told.is_err(), "{status} counts as done");
        }
    }
    Ok(())
}

/// A host in no cluster reaches its metadata and says so to Ironic, in the end also to one that fails.
pub(crate) async fn a_host_marks_itself() -> anyhow::Result<()> {
    let credentials = Credentials::new()?;
    let server = ScriptedServer::start(vec![Answer::new("409 Conflict", "the node is locked")]).await?;
    let mut agent = AgentProcess::new(node_agent_path()?, "w1", "attempts: 3\nretrySeconds: 1\n")?;
    let metadata = format!(
        "apiVersion: infrop.caos.ch/v1alpha1\nkind: NodeMetadata\nnode: w1\n\
         ironic:\n  url: {}\n  node: {UUID}\n  credentialFile: {}\n\
         configuration:\n  haproxy-config: \"global\\n\"\n",
        server.url(),
        credentials.file(CredentialKind::Basic).display()
    );
    agent.write("etc/node-agent/metadata.yaml", &metadata)?;
    agent.start()?;
    let status = |pointer: &str| {
        let output = agent.command(&["status", "-o", "json"])?;
        let status: Value = serde_json::from_slice(&output.stdout)?;
        anyhow::Ok(status.pointer(pointer).cloned().unwrap_or_default())
    };
    let wait_for_phase = async |phase: &str| {
        wait_for(Duration::from_secs(30), phase, async || Ok(status("/service/state/phase")? == phase))
            .await
            .with_context(|| agent.log())
    };
    // Ironic is busy with the node: that is waited for, longer than any attempts.
    wait_for(Duration::from_secs(30), "five requests", async || Ok(server.asked().len() >= 5)).await?;
    wait_for_phase("Retrying").await?;
    ensure!(status("/service/state/reason")? == "ProviderUnavailable");
    server.set_answers(vec![Answer::new("401 Unauthorized", "no database")]);
    wait_for_phase("Quarantined").await?;
    ensure!(status("/service/state/reason")? == "ProviderFailed");
    let message = status("/service/state/message")?;
    ensure!(message.as_str().is_some_and(|text| text.contains("no database")), "{message}");
    ensure!(agent.read("etc/haproxy/haproxy.cfg").as_deref() == Some("global\n"));
    ensure!(agent.read("var/lib/node-agent/initialized.json").is_none(), "the file says more than Ironic");
    ensure!(!agent.log().contains(PASSWORD), "the log has the secret");

    server.set_answers(vec![Answer::new("200 OK", "{}")]);
    ensure!(agent.command(&["retry"])?.status.success());
    wait_for_phase("Idle").await?;
    let kept = agent.read("var/lib/node-agent/initialized.json").context("there is no mark on the host")?;
    let kept: Value = serde_json::from_str(&kept)?;
    let asked = server.asked().pop().context("Ironic was asked")?;
    check_request(&asked, &kept)?;
    ensure!(kept.pointer("/node") == Some(&json!("w1")), "{kept}");
    ensure!(asked.headers.get("authorization") == Some(&basic_header()));
    // Said once, it is not said again, also by the next start.
    let told = server.asked().len();
    let mut agent = agent;
    agent.end(nix::sys::signal::Signal::SIGTERM).await?;
    agent.start()?;
    wait_for(Duration::from_secs(20), "it is idle again", async || {
        let output = agent.command(&["status", "-o", "json"])?;
        let status: Value = serde_json::from_slice(&output.stdout)?;
        Ok(status.pointer("/service/state/phase") == Some(&json!("Idle")))
    })
    .await?;
    ensure!(server.asked().len() == told);
    Ok(())
}
