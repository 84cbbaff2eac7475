//! Packages, locks, disks and signatures that are not as they should be.

use anyhow::ensure;
use serde_json::Value;
use tests::{
    agent::{self, install, wait_for_phase},
    bundles,
    fingerprint::{Fingerprint, Meant},
    lab::{BUNDLES, TestLab},
    repository::{self, Offer},
};

use crate::PATIENCE;

/// What the tests write.
const METADATA: &str = "/etc/node-agent/metadata.yaml";

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

/// An agent with nothing to do yet, on a host of which only these packages are meant to change.
async fn prepare<'a>(
    lab: &'a TestLab,
    config: &str,
    packages: &'a [&'a str],
) -> anyhow::Result<Fingerprint<'a>> {
    let nothing = repository::metadata("a", "{}");
    install(lab, "a", config, &nothing).await?;
    wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
    Fingerprint::take(lab, "a", Meant { packages, paths: &[METADATA] }).await
}

/// Gives the agent other metadata.
async fn ask(lab: &TestLab, metadata: &str) -> anyhow::Result<()> {
    lab.run("a", &format!("cat > {METADATA} <<'EOF'\n{metadata}EOF")).await?;
    Ok(())
}

/// Waits until the plan is given up for this reason, and nothing else on the host has changed.
async fn given_up(lab: &TestLab, reason: &str, fingerprint: &Fingerprint<'_>) -> anyhow::Result<Value> {
    let status = wait_for_phase(lab, "a", PATIENCE, "Quarantined", reason).await?;
    fingerprint.check().await?;
    lab.run("a", "grep -q '\"plan\"' /var/lib/node-agent/journal.json").await?;
    Ok(status)
}

/// A person says that the cause is gone.
async fn retry(lab: &TestLab) -> anyhow::Result<()> {
    lab.run("a", "node-agent retry").await?;
    wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
    Ok(())
}

pub(crate) async fn broken_package() -> anyhow::Result<()> {
    TestLab::with("agent-broken", &["a"], async |lab| {
        repository::deliver(lab, "a", &[BROKEN]).await?;
        let before = prepare(lab, IMPATIENT, &["haproxy"]).await?;
        ask(lab, &repository::metadata("a", "{ haproxy: 2.0-1 }")).await?;
        let status = given_up(lab, "PackageFailed", &before).await?;
        let message = status.pointer("/service/state/message").map(ToString::to_string).unwrap_or_default();
        ensure!(message.contains("2 attempts") && message.contains("this package is broken"), "{message}");

        // It stays so, also for an agent that starts anew, and nothing is tried.
        let log = "journalctl -u node-agent -o cat | grep -c '^next: '";
        let tried = lab.run("a", log).await?;
        lab.run("a", "systemctl restart node-agent; sleep 3").await?;
        given_up(lab, "PackageFailed", &before).await?;
        ensure!(lab.run("a", log).await? == tried, "it was tried again");

        lab.run("a", "touch /run/mended").await?;
        retry(lab).await?;
        before.check().await?;
        lab.run("a", "dpkg-query -W -f '${db:Status-Abbrev}' haproxy | grep '^hi'").await?;
        Ok(())
    })
    .await
}

/// apt would rather take somebody's package away than say that two cannot be together.
pub(crate) async fn conflict() -> anyhow::Result<()> {
    const OTHER: &str = "\
mkdir -p /tmp/other/DEBIAN
printf 'Package: other\\nVersion: 1\\nArchitecture: all\\nMaintainer: somebody <x@example.org>\\n\
Description: x\\nConflicts: haproxy\\n' > /tmp/other/DEBIAN/control
dpkg-deb --build /tmp/other /tmp/other.deb
dpkg --install /tmp/other.deb
apt-mark hold other";
    TestLab::with("agent-conflict", &["a"], async |lab| {
        repository::deliver(lab, "a", &[Offer { postinst: "", ..BROKEN }]).await?;
        lab.run("a", OTHER).await?;
        let before = prepare(lab, IMPATIENT, &[]).await?;
        ask(lab, &repository::metadata("a", "{ haproxy: 2.0-1 }")).await?;
        let status = given_up(lab, "PackageFailed", &before).await?;
        let message = status.pointer("/service/state/message").map(ToString::to_string).unwrap_or_default();
        ensure!(message.contains("remove"), "{message}");
        lab.run("a", "dpkg-query -W -f '${db:Status-Abbrev}' other | grep '^hi'").await?;
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
        let before = prepare(lab, "attempts: 1\n", &[]).await?;
        lab.run("a", HOLD).await?;
        ask(lab, &repository::metadata("a", "{ haproxy: 2.0-1 }")).await?;
        // It waits for a while, for most locks go away; then it says who is to blame.
        wait_for_phase(lab, "a", PATIENCE, "Changing", "ChangingSoftware").await?;
        // Meanwhile nobody restarts the host by accident.
        lab.run("a", "systemd-inhibit --list --no-pager | grep 'node-agent.*shutdown.*block'").await?;
        given_up(lab, "PackageLockHeld", &before).await?;
        lab.run("a", "test -z \"$(systemd-inhibit --list --no-pager | grep node-agent)\"").await?;
        lab.run("a", "systemctl stop holder").await?;
        retry(lab).await
    })
    .await
}

pub(crate) async fn full_disk() -> anyhow::Result<()> {
    TestLab::with("agent-full", &["a"], async |lab| {
        repository::deliver(lab, "a", &[BIG]).await?;
        lab.run("a", "mkdir -p /opt/full; mount -t tmpfs -o size=10m none /opt/full").await?;
        let before = prepare(lab, IMPATIENT, &[]).await?;
        ask(lab, &repository::metadata("a", "{ keepalived: 1.0-1 }")).await?;
        given_up(lab, "DiskFull", &before).await?;
        lab.run("a", "test ! -e /opt/full/noise; umount /opt/full").await?;
        retry(lab).await
    })
    .await
}

/// A step that cannot be written down does not begin.
pub(crate) async fn full_journal() -> anyhow::Result<()> {
    const FILL: &str = "\
systemctl stop node-agent
cp -a /var/lib/node-agent /root/kept
mount -t tmpfs -o size=64k,mode=700 none /var/lib/node-agent
cp -a /root/kept/. /var/lib/node-agent
dd if=/dev/zero of=/var/lib/node-agent/filler bs=1k || true
systemctl start node-agent";
    const MAKE_ROOM: &str = "\
systemctl stop node-agent
rm /var/lib/node-agent/filler
cp -a /var/lib/node-agent/. /root/kept
umount /var/lib/node-agent
cp -a /root/kept/. /var/lib/node-agent
rm -r /root/kept
systemctl start node-agent";
    TestLab::with("agent-journal", &["a"], async |lab| {
        repository::deliver(lab, "a", &[Offer { postinst: "", ..BROKEN }]).await?;
        let before = prepare(lab, IMPATIENT, &["haproxy"]).await?;
        lab.run("a", FILL).await?;
        ask(lab, &repository::metadata("a", "{ haproxy: 2.0-1 }")).await?;
        wait_for_phase(lab, "a", PATIENCE, "Quarantined", "DiskFull").await?;
        lab.run("a", "test -z \"$(dpkg-query -W -f x haproxy 2>/dev/null)\"").await?;
        lab.run("a", MAKE_ROOM).await?;
        // What was not on the disk is not known to who starts now: the plan is tried, and nothing is in its way.
        wait_for_phase(lab, "a", PATIENCE, "Idle", "UpToDate").await?;
        lab.run("a", "dpkg-query -W -f '${db:Status-Abbrev}' haproxy | grep '^hi'").await?;
        before.check().await
    })
    .await
}

pub(crate) async fn wrong_signature() -> anyhow::Result<()> {
    TestLab::with("agent-untrusted", &["a"], async |lab| {
        let [old, new] = bundles::pinned()?;
        let (old, new) = (&old.manifest().kubernetes, &new.manifest().kubernetes);
        let before = prepare(lab, IMPATIENT, &[]).await?;
        let right = agent::metadata("a", &format!("{{ kubectl: {old} }}"), "{}");
        // A good repository with a good signature, of which the host has another key.
        let key = |version: &str| format!("{BUNDLES}/{version}/apt/repository.asc");
        let wrong = right.replace(&key("{kubernetes}"), &key(&new.to_string()));
        ensure!(wrong != right);
        ask(lab, &wrong).await?;
        given_up(lab, "RepositoryUntrusted", &before).await?;
        ask(lab, &right).await?;
        retry(lab).await?;
        lab.run("a", "kubectl version --client").await?;
        Ok(())
    })
    .await
}
