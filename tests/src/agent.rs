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
/// follows. After that it lets the step pass, or nothing would ever end. [`KILLS`] tells of each. A restart of the host
/// ends it.
///
/// Programs that the agent starts go through a script that looks at the journal first. The agent waits for it, so no
/// step that starts a program can be missed, however busy the computer is.
pub const KILLER: &str = r#"
mkdir -p /var/tmp/killer/bin /var/tmp/killer/begun /var/tmp/killer/seen /run/systemd/system/node-agent.service.d
cat > /var/tmp/killer/look <<'EOF'
#!/bin/bash
PATH=${PATH#/var/tmp/killer/bin:}
cd /var/tmp/killer
exec 9> lock
flock 9
text=$(cat /var/lib/node-agent/journal.json 2>/dev/null)
if [ -n "$text" ] && [[ $text != *'"active": null'* ]]; then
    step=none
    [[ $text =~ '"change": '\"([^\"]*) ]] && step=${BASH_REMATCH[1]} && touch "begun/$step"
    [[ $text == *'"step": "reboot"'* ]] && step=restart
    begun=(begun/*)
    [ -e "${begun[0]}" ] || begun=()
    key="$step after ${#begun[@]}"
    echo >> "seen/$key"
    kill="systemctl kill --kill-whom=main --signal=KILL node-agent"
    case $(wc -l < "seen/$key") in
    # What the agent started ends with it, so this script, too.
    1) echo "$key" >> kills; $kill; sleep 60 ;;
    2) systemd-run --quiet --collect --no-block bash -c "sleep 0.4; $kill && echo '$key, later' >> $PWD/kills" ;;
    esac
fi
exec 9>&-
cd /
exec "${0##*/}" "$@"
EOF
chmod +x /var/tmp/killer/look
for program in apt-cache apt-get apt-mark busctl dpkg dpkg-query kubeadm swapoff systemctl; do
    type -P $program > /dev/null && ln -s ../look /var/tmp/killer/bin/$program
done
cat > /run/systemd/system/node-agent.service.d/killer.conf <<'EOF'
[Service]
Environment=PATH=/var/tmp/killer/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
EOF
systemctl daemon-reload
# It may be yet to be installed.
if systemctl cat node-agent > /dev/null 2>&1; then systemctl try-restart node-agent; fi
"#;

/// What [`KILLER`] did, a line for each kill.
pub const KILLS: &str = "/var/tmp/killer/kills";

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
