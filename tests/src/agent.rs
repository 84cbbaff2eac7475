//! The Debian package of node-agent, as it was just built.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::{
    lab::{BUNDLES, TestLab, wait_for},
    node_agent_path,
};

/// The version that packages of tests have unless they ask for another.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The package with the agent under test; made once per process.
pub async fn package() -> anyhow::Result<&'static Path> {
    static PACKAGE: OnceCell<PathBuf> = OnceCell::const_new();
    Ok(PACKAGE.get_or_try_init(|| package_of(VERSION)).await?)
}

/// The same program in a package that says another version, to upgrade to.
pub async fn package_of(version: &str) -> anyhow::Result<PathBuf> {
    let program = node_agent_path()?;
    // Beside the program, so that a clean build starts without it. Test processes that make it at the same time
    // replace each other's by the same.
    let directory = program.parent().context("node-agent is nowhere")?.join("debian");
    Ok(images::agent::package(program, version, &directory).await?)
}

/// What an agent needs on lab hosts beside its defaults: kubeadm's checks that such hosts cannot pass.
pub const CONFIG: &str = "\
kubeadm:
  ignorePreflightErrors: [SystemVerification, FileContent--proc-sys-net-bridge-bridge-nf-call-iptables, Swap]
";

/// Kills the agent after every step of its journal: the first time at once, the second time in the middle of what
/// follows. After that it lets the step pass, or nothing would ever end. `/run/kills` tells of each.
pub const KILLER: &str = r#"
cat > /root/killer <<'EOF'
declare -A seen begun
last=
exec {tick}<> <(:)
while ! read -r -t 0.002 -u "$tick"; do
    now=$(stat -c "%i %y" /var/lib/node-agent/journal.json 2>/dev/null) || continue
    [ "$now" = "$last" ] && continue
    last=$now
    text=$(cat /var/lib/node-agent/journal.json)
    [[ $text == *'"active": null'* ]] && continue
    step=none
    [[ $text =~ '"change": '([^[:space:]]*) ]] && step=${BASH_REMATCH[1]} && begun[$step]=1
    key="$step after ${#begun[@]}"
    times=${seen[$key]:-0}
    [ $times -ge 2 ] && continue
    seen[$key]=$((times + 1))
    [ $times = 1 ] && sleep 0.4
    systemctl kill --kill-whom=main --signal=KILL node-agent || continue
    echo "$key" >> /run/kills
done
EOF
# The first state of a journal lasts some milliseconds, also on a busy computer.
systemd-run --unit=killer -p Nice=-20 -p CPUWeight=10000 bash /root/killer
"#;

/// Puts the agent on a host with its settings and metadata, and starts it.
pub async fn install(lab: &TestLab, host: &str, config: &str, metadata: &str) -> anyhow::Result<()> {
    lab.copy(host, package().await?, "/root/node-agent.deb").await?;
    let script = format!(
        "mkdir -p /etc/node-agent\n\
         cat > /etc/node-agent/config.yaml <<'EOF'\n{config}EOF\n\
         cat > /etc/node-agent/metadata.yaml <<'EOF'\n{metadata}EOF\n\
         dpkg --install /root/node-agent.deb"
    );
    lab.run(host, &script).await?;
    Ok(())
}

/// Metadata of a host that takes packages and images from the bundles, with versions and contents as YAML flow
/// maps.
pub fn metadata(host: &str, software: &str, configuration: &str) -> String {
    format!(
        "apiVersion: infrop.caos.ch/v1alpha1\nkind: NodeMetadata\nnode: {host}\nsoftware: {software}\n\
         repositories:\n- name: kubernetes\n  uri: file:{BUNDLES}/{{kubernetes}}/apt\n  suite: ./\n  \
         keyFile: {BUNDLES}/{{kubernetes}}/apt/repository.asc\nbundle: {BUNDLES}/{{kubernetes}}\n\
         configuration: {configuration}\n"
    )
}

/// What `node-agent status -o json` says.
pub async fn status(lab: &TestLab, host: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&lab.run(host, "node-agent status -o json").await?)?)
}

/// Waits until the service is in a phase for a reason; gives its status.
pub async fn wait_for_phase(
    lab: &TestLab,
    host: &str,
    limit: Duration,
    phase: &str,
    reason: &str,
) -> anyhow::Result<Value> {
    let mut last = Value::Null;
    let waited = wait_for(limit, &format!("{host} {phase} ({reason})"), async || {
        // The host may be on its way down or up.
        let Ok(status) = status(lab, host).await else { return Ok(false) };
        let is = |pointer: &str, text: &str| status.pointer(pointer).and_then(Value::as_str) == Some(text);
        let there = is("/service/state/phase", phase) && is("/service/state/reason", reason);
        let hopeless = is("/service/state/phase", "Quarantined") && !there;
        last = status;
        ensure!(!hopeless, "{host} is quarantined");
        Ok(there)
    })
    .await;
    waited.with_context(|| {
        format!("its last status was {}", last.pointer("/service/state").unwrap_or(&last))
    })?;
    Ok(last)
}
