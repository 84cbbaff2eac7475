//! node-agent on hosts that are in no cluster yet: it follows their initial metadata, whatever goes wrong.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, ensure};
use serde_json::Value;
use tests::{
    agent::{self, metadata, wait_for_phase},
    bundles,
    harness::{Case, Tier, suite},
    lab::TestLab,
};

const LIMIT: Duration = Duration::from_mins(6);

fn main() -> ExitCode {
    suite([Case::new(
        Tier::T4,
        "a_host_reaches_its_metadata_restarts_once_and_says_so",
        LIMIT,
        reaches_metadata,
    )])
}

/// Versions of the older bundle as a flow map.
fn versions() -> anyhow::Result<String> {
    let [old, _] = bundles::pinned()?;
    let manifest = old.manifest();
    let containerd = manifest.packages.iter().find(|package| package.name == "containerd");
    let containerd = &containerd.context("the bundle has containerd")?.version;
    let containerd = containerd.rsplit_once('-').map_or(containerd.as_str(), |(version, _)| version);
    let kubernetes = &manifest.kubernetes;
    Ok(format!(
        "kubelet: {kubernetes}, kubeadm: {kubernetes}, kubectl: {kubernetes}, containerd: {containerd}"
    ))
}

async fn reaches_metadata() -> anyhow::Result<()> {
    TestLab::with("agent-init", &["a"], async |lab| {
        let software = format!("{{ {}, reboot: first }}", versions()?);
        let configuration = "{ sysctl: { net.ipv4.ip_forward: '1' }, kernel-modules: [], swap: off, \
            hostname: { name: a, address: 10.88.0.11 }, containerd-config: \"version = 3\\n\", \
            kubelet-drop-ins: { 20-test.conf: \"[Service]\\nEnvironment=TEST=1\\n\" } }";
        let before = lab.boot_id("a").await?;
        agent::install(lab, "a", agent::CONFIG, &metadata("a", &software, configuration)).await?;
        let status =
            wait_for_phase(lab, "a", Duration::from_mins(3), "Idle", "UpToDate").await?;
        ensure!(lab.boot_id("a").await? != before, "the host was not restarted");
        ensure!(status.pointer("/service/ready") == Some(&Value::Bool(true)), "{status}");
        // What dpkg, the kernel and systemd say.
        lab.run(
            "a",
            "for package in kubelet kubeadm kubectl containerd; do apt-mark showhold | grep -x $package; done\n\
             test $(cat /proc/sys/net/ipv4/ip_forward) = 1\n\
             systemctl is-active containerd\n\
             systemctl cat kubelet | grep TEST=1\n\
             grep -qx '10.88.0.11 a # node-agent' /etc/hosts\n\
             grep -q '\"node\": \"a\"' /var/lib/node-agent/initialized.json\n\
             test $(journalctl --list-boots --quiet | wc -l) = 2",
        )
        .await?;
        // Nothing is left to do, and the plan says so.
        lab.run("a", "node-agent plan | grep -x 'nothing to do'").await?;
        Ok(())
    })
    .await
}
