//! Agents that are killed and hosts that lose their power.

use anyhow::ensure;
use infrop::provider::lab::Power;
use serde_json::Value;
use tests::{
    agent::{self, KILLER, KILLS, install, metadata, wait_for_phase},
    fingerprint::{Fingerprint, Meant},
    lab::{TestLab, wait_for},
};

use crate::{PATIENCE, versions};

/// The packages of the plan and the one that the test installs; state of the services, which containerd keeps in more
/// places than one.
const MEANT: Meant<'_> = Meant {
    packages: &["containerd", "kubeadm", "kubectl", "kubelet", "node-agent"],
    paths: &[
        "/etc/node-agent/*.yaml",
        "/root/node-agent.deb",
        "/etc/cni",
        "/opt/containerd",
        "/var/lib/containerd",
        "/var/lib/kubelet",
    ],
};

pub(crate) async fn killed() -> anyhow::Result<()> {
    TestLab::with("agent-killed", &["a"], async |lab| {
        lab.run("a", KILLER).await?;
        // Every kill in the middle of a step counts as an attempt.
        let config = format!("attempts: 100\n{}", agent::CONFIG);
        let fingerprint = Fingerprint::take(lab, "a", MEANT).await?;
        let plan = format!("{{ {}, reboot: once }}", versions()?);
        install(lab, "a", &config, &metadata("a", &plan, "{ swap: off }")).await?;
        // The restart was ordered by an agent that died before logind heard of it. After so many attempts the next one is
        // minutes away.
        wait_for_phase(lab, "a", PATIENCE, "Retrying", "RebootFailed").await?;
        // The killer may get there first, and also right after the agent said yes, before it wrote that down.
        wait_for(PATIENCE, "the restart is tried again", async || {
            let Ok(status) = agent::status(lab, "a").await else { return Ok(false) };
            let phase = status.pointer("/service/state/phase").and_then(Value::as_str);
            if phase == Some("Retrying") {
                let _ = lab.run("a", "node-agent retry").await;
            }
            Ok(phase == Some("Idle"))
        })
        .await?;
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        let kills = lab.run("a", &format!("cat {KILLS}")).await?;
        for step in ["none", "containerd", "kubeadm", "kubelet", "kubectl", "reboot", "restart"] {
            let killed = kills.lines().any(|line| line.starts_with(&format!("{step} after ")));
            ensure!(killed, "it was not killed at {step}:\n{kills}");
        }
        ensure!(kills.lines().any(|line| line == "none after 0"), "it was not killed before the first step:\n{kills}");
        let boots = lab.lab().status().await?.hosts.first().map(|host| host.boots);
        ensure!(boots == Some(2), "{boots:?} boots");
        lab.run(
            "a",
            "test -z \"$(dpkg --audit)\"\n\
             for package in kubelet kubeadm kubectl containerd; do apt-mark showhold | grep -x $package; done\n\
             test -e /var/lib/node-agent/initialized.json",
        )
        .await?;
        fingerprint.check().await
    })
    .await
}

pub(crate) async fn power_cut_during_apt() -> anyhow::Result<()> {
    TestLab::with("agent-cut", &["a"], async |lab| {
        let text = metadata("a", &format!("{{ {} }}", versions()?), "{}");
        let fingerprint = Fingerprint::take(lab, "a", MEANT).await?;
        install(lab, "a", agent::CONFIG, &text).await?;
        // dpkg has this file while it unpacks.
        lab.cut_power_when("a", "usr/bin/kubelet.dpkg-new").await?;
        lab.power("a", Power::On).await?;
        let status = wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        let journal = lab.run("a", "journalctl -u node-agent --no-pager -o cat").await?;
        ensure!(journal.contains("cut off"), "{journal}");
        ensure!(status.pointer("/journal/lastSuccess").is_some(), "{status}");
        lab.run("a", "test -z \"$(dpkg --audit)\"; systemctl is-active containerd").await?;
        fingerprint.check().await
    })
    .await
}
