//! The package of node-agent: it installs, upgrades and goes as Debian's customs want, and its unit holds what it
//! promises for whatever program it runs.

use std::{process::ExitCode, time::Duration};

use anyhow::ensure;
use tests::{
    agent,
    harness::{Case, Tier, suite},
    lab::{BUNDLES, TestLab, wait_for},
};

const LIMIT: Duration = Duration::from_mins(4);

/// Where hosts have the package.
const DEB: &str = "/root/node-agent.deb";

/// Where hosts have the one to upgrade to.
const NEWER_DEB: &str = "/root/node-agent-newer.deb";

fn main() -> ExitCode {
    suite([
        Case::new(Tier::T4, "it_comes_and_goes_and_leaves_nothing", LIMIT, comes_and_goes),
        Case::new(Tier::T4, "it_installs_where_no_systemd_runs", LIMIT, without_systemd),
        Case::new(Tier::T4, "what_the_agent_starts_ends_with_it", LIMIT, ends_with_it),
        Case::new(Tier::T4, "a_stop_lets_the_step_end", LIMIT, a_stop_lets_the_step_end),
        Case::new(Tier::T4, "the_sandbox_allows_the_work_and_no_more", LIMIT, the_sandbox),
    ])
}

/// A host that has the package, not installed yet.
async fn with_package(
    name: &str,
    test: impl AsyncFnOnce(&TestLab) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let package = agent::package().await?;
    TestLab::with(name, &["a"], async |lab| {
        lab.copy("a", package, DEB).await?;
        test(lab).await
    })
    .await
}

/// All files, but those that the system itself writes while it runs, and that apt and dpkg keep of their own work.
async fn files(lab: &TestLab) -> anyhow::Result<String> {
    const VOLATILE: [&str; 6] = [
        "/var/log",
        "/var/cache/apt",
        "/var/lib/apt",
        "/var/lib/dpkg/*-old",
        "/var/lib/systemd/timers",
        "/var/lib/systemd/timesync",
    ];
    let volatile = VOLATILE.map(|path| format!("-path '{path}'")).join(" -o ");
    let script = format!("find / -xdev \\( {volatile} \\) -prune -o -printf '%M %u %g %p\\n' | sort");
    lab.run("a", &script).await
}

async fn comes_and_goes() -> anyhow::Result<()> {
    let newer = agent::package_of("99.0.0").await?;
    with_package("package", async |lab| {
        lab.copy("a", &newer, NEWER_DEB).await?;
        let before = files(lab).await?;

        lab.run("a", &format!("apt-get install --yes {DEB}")).await?;
        let modes = "stat --format '%a %U:%G' /usr/bin/node-agent /usr/lib/systemd/system/node-agent.service \
                     /etc/node-agent /usr/share/doc/node-agent/copyright";
        let modes = lab.run("a", modes).await?;
        ensure!(modes == "755 root:root\n644 root:root\n755 root:root\n644 root:root\n", "{modes}");
        ensure!(lab.run("a", "node-agent --version").await?.contains(agent::VERSION));
        ensure!(is_enabled(lab).await?);
        lab.run("a", "systemctl cat node-agent").await?;
        let complaints = lab.run("a", "systemd-analyze verify node-agent.service 2>&1").await?;
        ensure!(complaints.is_empty(), "{complaints}");
        wait_for(Duration::from_secs(20), "systemd made the directory of the journal", async || {
            let mode = lab.run("a", "stat --format '%a %U' /var/lib/node-agent || true").await?;
            Ok(mode.trim() == "700 root")
        })
        .await?;

        // The same again, and a newer one. What the administrator said outlives an upgrade.
        lab.run("a", &format!("dpkg --install {DEB}")).await?;
        ensure!(is_enabled(lab).await?);
        lab.run("a", &format!("systemctl disable --now node-agent && dpkg --install {NEWER_DEB}")).await?;
        ensure!(lab.run("a", "dpkg-query --show --showformat '${Version}' node-agent").await? == "99.0.0");
        ensure!(!is_enabled(lab).await?, "the upgrade enabled it");
        let state = state(lab).await?;
        ensure!(["inactive", "failed"].contains(&state.as_str()), "the upgrade started it: {state}");

        // Removed: the unit is gone, the journal and the configuration are not. Installed again, it runs again.
        lab.run("a", "touch /var/lib/node-agent/journal /etc/node-agent/config.yaml").await?;
        lab.run("a", &format!("dpkg --install {DEB} && dpkg --remove node-agent")).await?;
        let gone = "test ! -e /usr/bin/node-agent && test -e /var/lib/node-agent/journal && \
                    test -e /etc/node-agent/config.yaml && ! systemctl cat node-agent 2>/dev/null && \
                    ! systemctl list-units --all --plain | grep node-agent";
        lab.run("a", gone).await?;
        lab.run("a", &format!("dpkg --install {DEB}")).await?;
        ensure!(is_enabled(lab).await?, "it is not enabled when it is installed again");

        // Purged, twice: once from the removed state.
        lab.run("a", "dpkg --remove node-agent && dpkg --purge node-agent").await?;
        lab.run("a", &format!("dpkg --install {DEB} && apt-get purge --yes node-agent")).await?;
        let after = files(lab).await?;
        let strangers = |one: &str, two: &str| -> Vec<String> {
            one.lines().filter(|line| !two.lines().any(|other| other == *line)).map(str::to_owned).collect()
        };
        let (left, lost) = (strangers(&after, &before), strangers(&before, &after));
        ensure!(left.is_empty() && lost.is_empty(), "left: {left:#?}, lost: {lost:#?}");
        Ok(())
    })
    .await
}

async fn is_enabled(lab: &TestLab) -> anyhow::Result<bool> {
    Ok(lab.run("a", "systemctl is-enabled node-agent || true").await?.trim() == "enabled")
}

async fn state(lab: &TestLab) -> anyhow::Result<String> {
    let state = lab.run("a", "systemctl show --property ActiveState --value node-agent").await?;
    Ok(state.trim().to_owned())
}

async fn without_systemd() -> anyhow::Result<()> {
    with_package("image", async |lab| {
        // As in a chroot: the scripts see no systemd in /run.
        let apart = |command: &str| format!("unshare --mount sh -ec 'mount -t tmpfs none /run; {command}'");
        let link = "/etc/systemd/system/multi-user.target.wants/node-agent.service";
        lab.run("a", &apart(&format!("dpkg --install {DEB}; dpkg --install {DEB}"))).await?;
        lab.run("a", &format!("test -L {link}")).await?;
        ensure!(state(lab).await? == "inactive", "it was started");
        lab.run("a", &apart("dpkg --remove node-agent; dpkg --purge node-agent")).await?;
        lab.run("a", &format!("test ! -L {link}; test ! -e /usr/bin/node-agent")).await?;
        // What is enabled in an image starts at its boot.
        lab.run("a", &apart(&format!("dpkg --install {DEB}"))).await?;
        lab.reboot("a").await?;
        wait_for(Duration::from_secs(30), "it was started at boot", async || {
            Ok(lab.run("a", "journalctl --boot --unit node-agent").await?.contains("Starting"))
        })
        .await
    })
    .await
}

/// Installs the package with another program in the agent's place, so that only the unit is tested.
async fn install_stand_in(lab: &TestLab, settings: &str, script: &str) -> anyhow::Result<()> {
    lab.run(
        "a",
        &format!(
            "cat > /root/stand-in <<'EOF'\n{script}\nEOF\n\
             mkdir --parents /etc/systemd/system/node-agent.service.d\n\
             cat > /etc/systemd/system/node-agent.service.d/stand-in.conf <<'EOF'\n\
             [Service]\nWatchdogSec=0\n{settings}\nExecStart=\nExecStart=/bin/bash -eu /root/stand-in\nEOF\n\
             dpkg --install {DEB}"
        ),
    )
    .await?;
    Ok(())
}

async fn ends_with_it() -> anyhow::Result<()> {
    with_package("ends", async |lab| {
        // The step is in a session of its own and does not care for signals.
        let script = "setsid sh -c 'trap \"\" TERM HUP; sleep 1000' &\necho $! >> /root/steps\nwait";
        install_stand_in(lab, "Type=exec", script).await?;
        let steps = async || lab.run("a", "cat /root/steps 2>/dev/null || true").await;
        wait_for(
            Duration::from_secs(20),
            "the first start",
            async || Ok(steps().await?.lines().count() == 1),
        )
        .await?;
        lab.run("a", "kill -KILL $(systemctl show --property MainPID --value node-agent)").await?;
        wait_for(Duration::from_secs(20), "the second start", async || {
            Ok(steps().await?.lines().count() == 2)
        })
        .await?;
        let first = "test ! -e /proc/$(head -n 1 /root/steps) && test -e /proc/$(tail -n 1 /root/steps)";
        lab.run("a", first).await?;
        Ok(())
    })
    .await
}

async fn a_stop_lets_the_step_end() -> anyhow::Result<()> {
    with_package("stop", async |lab| {
        // A step of some seconds that a signal would end early, and an agent that waits for it.
        let script = "trap 'wait $step; exit' TERM\nsh -c 'sleep 3; touch /root/ended' & step=$!\n\
                      touch /root/begun\nwait $step\nsleep infinity";
        install_stand_in(lab, "Type=exec", script).await?;
        wait_for(Duration::from_secs(20), "the step", async || {
            Ok(lab.run("a", "test -e /root/begun").await.is_ok())
        })
        .await?;
        // Also a removal waits for it.
        lab.run("a", "test ! -e /root/ended; dpkg --remove node-agent; test -e /root/ended").await?;
        Ok(())
    })
    .await
}

async fn the_sandbox() -> anyhow::Result<()> {
    with_package("sandbox", async |lab| {
        let work = format!(
            "set -x\nbundle={BUNDLES}/1.37.1\n\
             cat > /etc/apt/sources.list.d/k.sources <<END\nTypes: deb\nURIs: file:$bundle/apt\nSuites: ./\n\
             Signed-By: $bundle/apt/repository.asc\nEND\n\
             apt-get --error-on=any update\n\
             DEBIAN_FRONTEND=noninteractive apt-get install --yes kubelet kubeadm kubectl containerd\n\
             systemctl is-active containerd\n\
             ctr --namespace k8s.io images import $bundle/images/pause.tar\n\
             kubeadm init phase certs ca\n\
             sysctl --write net.ipv4.ip_forward=1\n\
             swapoff --all\n\
             hostnamectl set-hostname other\n\
             test \"$(hostname)\" = other\n\
             install --mode=4755 /bin/true /root/setuid\n\
             mount -t tmpfs none /mnt\n\
             su nobody --shell=/bin/sh --command=true\n\
             iptables --list --numeric\n\
             refused() {{ if \"$@\"; then exit 1; fi; }}\n\
             refused unshare --mount true\n\
             refused systemctl reboot --force --force\n\
             touch /root/done"
        );
        // A masked unit stays as it is, and the installation does not fail for it. Here so that the work starts where
        // this case can wait for it.
        lab.run("a", "systemctl mask --quiet node-agent").await?;
        install_stand_in(lab, "Type=oneshot\nRestart=no", &work).await?;
        lab.run("a", "systemctl unmask node-agent").await?;
        let outcome = lab.run("a", "systemctl start node-agent && test -e /root/done").await;
        if let Err(error) = outcome {
            let journal = lab.run("a", "journalctl --unit node-agent --output cat --lines 40").await?;
            return Err(error.context(journal));
        }
        // What it mounts is the host's mount, not a copy's.
        lab.run("a", "findmnt /mnt").await?;
        Ok(())
    })
    .await
}
