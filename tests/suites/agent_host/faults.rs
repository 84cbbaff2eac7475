//! Packages, locks, disks and signatures that are not as they should be.

use anyhow::ensure;
use tests::{
    agent::{self, install, wait_for_phase},
    bundles,
    lab::{BUNDLES, TestLab},
    repository::{self, Offer},
};

use crate::{PATIENCE, fingerprint};

const IMPATIENT: &str = "attempts: 2\nretrySeconds: 1\n";

/// Installs only once its mistake was mended.
const BROKEN: Offer = Offer {
    name: "haproxy",
    version: "2.0-1",
    postinst: "#!/bin/sh\ntest -e /run/mended || { echo this package is broken >&2; exit 1; }\n",
    noise: None,
};

const BIG: Offer =
    Offer { name: "keepalived", version: "1.0-1", postinst: "", noise: Some(("/opt/full/noise", 30)) };

pub(crate) async fn broken_package() -> anyhow::Result<()> {
    TestLab::with("agent-broken", &["a"], async |lab| {
        repository::deliver(lab, "a", &[BROKEN]).await?;
        let metadata = repository::metadata("a", "{ haproxy: 2.0-1 }");
        install(lab, "a", IMPATIENT, &metadata).await?;
        let status = wait_for_phase(lab, "a", PATIENCE, "Quarantined", "PackageFailed").await?;
        let message = status.pointer("/service/state/message").map(ToString::to_string).unwrap_or_default();
        ensure!(message.contains("2 attempts"), "{message}");
        let before = fingerprint(lab, "a", "haproxy").await?;

        // It stays so, also for an agent that starts anew, and nothing is tried.
        lab.run("a", "systemctl restart node-agent; sleep 3").await?;
        wait_for_phase(lab, "a", PATIENCE, "Quarantined", "PackageFailed").await?;
        ensure!(fingerprint(lab, "a", "haproxy").await? == before, "something else changed");
        lab.run("a", "test ! -e /var/lib/node-agent/initialized.json").await?;

        // The cause is mended, and a person says so.
        lab.run("a", "touch /run/mended; node-agent retry").await?;
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        ensure!(fingerprint(lab, "a", "haproxy").await? == before, "something else changed");
        lab.run("a", "dpkg-query -W -f '${db:Status-Abbrev}' haproxy | grep '^hi'").await?;
        Ok(())
    })
    .await
}

pub(crate) async fn held_lock() -> anyhow::Result<()> {
    // dpkg's lock is one of fcntl, which no shell command takes.
    const HOLD: &str = r#"
systemd-run --unit=holder perl -e 'use Fcntl; open F, "+>", "/var/lib/dpkg/lock-frontend";
    my $lock = pack("s s x4 q q i x4", F_WRLCK, 0, 0, 0, 0); fcntl(F, F_SETLK, $lock) or die; sleep 1000'
sleep 1; systemctl is-active holder"#;
    TestLab::with("agent-locked", &["a"], async |lab| {
        repository::deliver(lab, "a", &[Offer { postinst: "", ..BROKEN }]).await?;
        install(
            lab,
            "a",
            "attempts: 1\n",
            "apiVersion: infrop.caos.ch/v1alpha1\nkind: NodeMetadata\nnode: a\n",
        )
        .await?;
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        lab.run("a", HOLD).await?;
        let metadata = repository::metadata("a", "{ haproxy: 2.0-1 }");
        lab.run("a", &format!("cat > /etc/node-agent/metadata.yaml <<'EOF'\n{metadata}EOF")).await?;
        // It waits for a while, for most locks go away; then it says who is to blame.
        wait_for_phase(lab, "a", PATIENCE, "Changing", "ChangingSoftware").await?;
        wait_for_phase(lab, "a", PATIENCE, "Quarantined", "PackageLockHeld").await?;
        lab.run("a", "systemctl stop holder; node-agent retry").await?;
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        Ok(())
    })
    .await
}

pub(crate) async fn full_disk() -> anyhow::Result<()> {
    TestLab::with("agent-full", &["a"], async |lab| {
        repository::deliver(lab, "a", &[BIG]).await?;
        lab.run("a", "mkdir -p /opt/full; mount -t tmpfs -o size=10m none /opt/full").await?;
        install(lab, "a", IMPATIENT, &repository::metadata("a", "{ keepalived: 1.0-1 }")).await?;
        wait_for_phase(lab, "a", PATIENCE, "Quarantined", "DiskFull").await?;
        lab.run("a", "test ! -e /opt/full/noise; umount /opt/full; node-agent retry").await?;
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        Ok(())
    })
    .await
}

pub(crate) async fn wrong_signature() -> anyhow::Result<()> {
    TestLab::with("agent-untrusted", &["a"], async |lab| {
        let [old, new] = bundles::pinned()?;
        let (old, new) = (&old.manifest().kubernetes, &new.manifest().kubernetes);
        let software = format!("{{ kubectl: {old} }}");
        let right = agent::metadata("a", &software, "{}");
        // A good repository with a good signature, of which the host has another key.
        let key = |version: &str| format!("{BUNDLES}/{version}/apt/repository.asc");
        let wrong = right.replace(&key("{kubernetes}"), &key(&new.to_string()));
        ensure!(wrong != right);
        install(lab, "a", IMPATIENT, &wrong).await?;
        wait_for_phase(lab, "a", PATIENCE, "Quarantined", "RepositoryUntrusted").await?;
        lab.run("a", "test ! -e /usr/bin/kubectl").await?;
        lab.run("a", &format!("cat > /etc/node-agent/metadata.yaml <<'EOF'\n{right}EOF\nnode-agent retry"))
            .await?;
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        lab.run("a", "kubectl version --client").await?;
        Ok(())
    })
    .await
}
