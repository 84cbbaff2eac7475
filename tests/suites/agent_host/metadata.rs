//! The ordinary way.

use anyhow::{Context, ensure};
use serde_json::Value;
use tests::{
    agent::{self, metadata, wait_for_phase},
    bundles,
    lab::{BUNDLES, TestLab},
};

use crate::{PATIENCE, versions};

pub(crate) async fn reached() -> anyhow::Result<()> {
    TestLab::with("agent-init", &["a"], async |lab| {
        let software = format!("{{ {}, reboot: first }}", versions()?);
        let configuration = format!(
            "{{ images: [{}], sysctl: {{ net.ipv4.ip_forward: '1' }}, kernel-modules: [], swap: off, \
             hostname: {{ name: a, address: 10.88.0.11 }}, containerd-config: \"version = 3\\n\", \
             kubelet-drop-ins: {{ 20-test.conf: \"[Service]\\nEnvironment=TEST=1\\n\" }} }}",
            pause_image()?
        );
        let before = lab.boot_id("a").await?;
        agent::install(lab, "a", agent::CONFIG, &metadata("a", &software, &configuration)).await?;
        let status = wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        ensure!(lab.boot_id("a").await? != before, "the host was not restarted");
        ensure!(status.pointer("/service/ready") == Some(&Value::Bool(true)), "{status}");
        // What dpkg, the kernel and systemd say.
        lab.run(
            "a",
            "for package in kubelet kubeadm kubectl containerd; do\n\
                 apt-mark showhold | grep -x $package\n\
                 apt-cache policy $package | grep '^ \\*\\*\\* .* 1001$'\n\
             done\n\
             test $(cat /proc/sys/net/ipv4/ip_forward) = 1\n\
             systemctl is-active containerd\n\
             ctr --namespace k8s.io images list --quiet | grep /pause:\n\
             systemctl cat kubelet | grep TEST=1\n\
             grep -qx '10.88.0.11 a # node-agent' /etc/hosts\n\
             grep -q '\"node\": \"a\"' /var/lib/node-agent/initialized.json\n\
             test $(journalctl --list-boots --quiet | wc -l) = 2",
        )
        .await?;
        // What systemd, journald and Prometheus see of it.
        lab.run(
            "a",
            "test $(systemctl show node-agent --property=SubState --value) = running\n\
             systemctl show node-agent --property=StatusText --value | grep '^Idle (UpToDate)'\n\
             test $(systemctl show node-agent --property=WatchdogUSec --value) = 1min\n\
             journalctl -u node-agent -o json | grep '\"F_SOFTWARE\":\"kubelet\"' >/dev/null\n\
             socket=/run/node-agent/node-agent.sock\n\
             curl --silent --unix-socket $socket http://localhost/metrics > /run/metrics\n\
             grep 'node_agent_phase{phase=\"Idle\"} 1' /run/metrics\n\
             grep 'node_agent_last_success_timestamp_seconds 1' /run/metrics",
        )
        .await?;
        // Nothing is left to do, and the plan says so.
        lab.run("a", "node-agent plan | grep -x 'nothing to do'").await?;
        Ok(())
    })
    .await
}

/// The pause image of the older bundle, as a content names it.
fn pause_image() -> anyhow::Result<String> {
    let [old, _] = bundles::pinned()?;
    let manifest = old.manifest();
    let image = manifest.images.iter().find(|image| image.name.contains("/pause:"));
    let image = image.context("the bundle has pause")?;
    let sha256 = &manifest.files.get(&image.file).context("the bundle knows its files")?.sha256;
    let file = format!("{BUNDLES}/{}/{}", manifest.kubernetes, image.file);
    Ok(format!("{{ name: '{}', file: {file}, sha256: {sha256} }}", image.name))
}
