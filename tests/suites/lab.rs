//! Lab hosts behave like machines, keep to themselves, come and go, and leave nothing.

#[path = "lab/ends.rs"]
mod ends;
#[path = "lab/growth.rs"]
mod growth;
#[path = "lab/network.rs"]
mod network;
#[path = "lab/remote.rs"]
mod remote;

use std::{fs, io::Read, net::TcpStream, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, ensure};
use images::{repository::KEY_FILE, site, steps::Steps};
use infrop::provider::lab::{Power, SITE};
use program::Program;
use tests::{
    bundles,
    harness::{Case, Tier, suite},
    lab::{BUNDLES, TestLab, host, store, wait_for},
};

const LIMIT: Duration = Duration::from_mins(4);

fn main() -> ExitCode {
    if std::env::args().any(|word| word == ends::HOLD) {
        return ends::hold();
    }
    if std::env::args().any(|word| word == ends::HOLD_OUTLIVING) {
        return ends::hold_outliving();
    }
    suite([
        Case::new(Tier::T4, "hosts_reboot_and_lose_power_like_machines", LIMIT, like_machines),
        Case::new(Tier::T4, "labs_stay_apart_and_out_of_the_computers_network", LIMIT, labs_stay_apart),
        Case::new(Tier::T4, "host_keys_are_checked", LIMIT, host_keys_are_checked),
        Case::new(Tier::T4, "one_connection_runs_many_scripts", LIMIT, remote::scripts_are_run),
        Case::new(Tier::T4, "a_port_on_loopback_leads_to_the_api_endpoint", LIMIT, api_port),
        Case::new(Tier::T4, "the_port_can_be_led_elsewhere", LIMIT, growth::the_port_is_led),
        Case::new(Tier::T4, "hosts_come_and_go", LIMIT, growth::hosts_come_and_go),
        Case::new(Tier::T4, "ten_hosts_come_and_go_at_once", LIMIT, growth::ten_at_once),
        Case::new(Tier::T4, "a_change_that_is_killed_is_made_again", LIMIT, growth::killed_in_the_middle),
        Case::new(Tier::T4, "what_is_offered_appears_on_running_hosts", LIMIT, growth::offers_appear),
        Case::new(Tier::T4, "a_lab_outlives_the_command_that_made_it", LIMIT, ends::outlives_the_command),
        Case::new(Tier::T4, "nothing_is_left_of_a_killed_run", LIMIT, ends::nothing_is_left),
        Case::new(
            Tier::T4,
            "labs_that_outlive_commands_end_with_the_test",
            LIMIT,
            ends::cleared_after_a_kill,
        ),
        Case::new(Tier::T4, "a_create_that_is_killed_leaves_nothing", LIMIT, ends::killed_create),
        Case::new(Tier::T4, "the_network_can_be_cut_and_healed", LIMIT, network::cut_and_heal),
        Case::new(Tier::T4, "the_network_can_be_slow_and_lossy", LIMIT, network::slow_and_lossy),
        Case::new(Tier::T4, "power_fails_at_a_chosen_moment", LIMIT, power_fails_at_a_chosen_moment),
        Case::new(Tier::T4, "journals_are_kept_when_a_test_fails", LIMIT, journals_are_kept),
        Case::new(Tier::T4, "apt_trusts_the_bundles_key_and_nothing_else", LIMIT, apt_trusts_the_key),
        Case::new(Tier::T4, "a_host_without_a_network_gets_keepalived_and_haproxy", LIMIT, site_packages),
    ])
}

async fn like_machines() -> anyhow::Result<()> {
    TestLab::with("machines", &["a", "b"], async |lab| {
        ensure!(lab.run("a", "hostname").await?.trim() == "a");
        ensure!(lab.run("a", "systemctl is-system-running --wait").await?.trim() == "running");
        lab.run("a", "ping -c 1 -W 2 b").await?;

        // A reboot from inside: another boot, the same disk, a process of the old boot is gone.
        lab.run("a", "echo kept > /root/file; touch /run/gone").await?;
        let other = lab.boot_id("b").await?;
        lab.reboot("a").await?;
        ensure!(lab.run("a", "cat /root/file; test ! -e /run/gone").await?.trim() == "kept");
        ensure!(lab.boot_id("b").await? == other, "the reboot of one host touched another");

        // Off in order, and on again.
        lab.power("a", Power::Off).await?;
        ensure!(lab.boot_id("a").await.is_err(), "a host that is off answers");
        let journal = lab.lab().journal(&host("a")?).run().await?;
        ensure!(journal.contains("Reached target shutdown.target"), "it was not shut down in order");
        lab.power("a", Power::On).await?;
        lab.power("a", Power::On).await?;

        // The power goes: nothing is shut down in order.
        let before = lab.boot_id("a").await?;
        lab.power("a", Power::Cut).await?;
        lab.power("a", Power::Cut).await?;
        lab.power("a", Power::On).await?;
        ensure!(lab.boot_id("a").await? != before);
        let last = format!("--boot={}", before.replace('-', ""));
        let journal = lab.lab().journal(&host("a")?).arg(last).run().await?;
        ensure!(
            journal.contains("sshd") && !journal.contains("shutdown.target"),
            "it was shut down in order"
        );

        let status = lab.lab().status().await?;
        let boots: Vec<u32> = status.hosts.iter().map(|host| host.boots).collect();
        ensure!(boots == [4, 1], "{boots:?}");
        let console = fs::read_to_string(lab.lab().console(&host("a")?))?;
        ensure!(console.matches("Welcome to").count() == 4, "the console shows each boot: {console}");
        Ok(())
    })
    .await
}

async fn labs_stay_apart() -> anyhow::Result<()> {
    let before = interfaces().await?;
    TestLab::with("apart1", &["a"], async |one| {
        TestLab::with("apart2", &["a", "b"], async |two| {
            let address =
                |lab: &TestLab| anyhow::Ok(lab.lab().definition()?.hosts.first().map(|host| host.address));
            ensure!(address(one)? == address(two)?, "labs do not share addresses, so this shows nothing");
            one.run("a", "echo one > /root/which").await?;
            two.run("a", "echo two > /root/which").await?;
            ensure!(one.run("a", "cat /root/which").await?.trim() == "one");
            ensure!(interfaces().await? == before, "the computer's own network changed");
            // There is no way out.
            ensure!(one.run("a", "ping -c 1 -W 1 192.0.2.1").await.is_err());
            Ok(())
        })
        .await?;
        // The end of one is not the end of the other.
        ensure!(one.run("a", "cat /root/which").await?.trim() == "one");
        Ok(())
    })
    .await
}

/// The cards and routes of the computer's own network.
async fn interfaces() -> anyhow::Result<String> {
    let links = Program::new("ip").args(["-brief", "link"]).run().await?;
    Ok(links + &Program::new("ip").args(["route", "show", "table", "all"]).run().await?)
}

async fn host_keys_are_checked() -> anyhow::Result<()> {
    TestLab::with("keys", &["a"], async |lab| {
        let ssh = |known_hosts: &Path| {
            let option = format!("UserKnownHostsFile={}", known_hosts.display());
            Program::new("ssh").args(["-o", &option, "-F"]).arg(lab.lab().ssh_config()).args(["a", "true"])
        };
        let known = lab.lab().directory().join("ssh/known_hosts");
        ssh(&known).run().await?;
        let directory = tempfile::tempdir()?;
        let (none, other) = (directory.path().join("none"), directory.path().join("other"));
        fs::write(&none, "")?;
        let key = directory.path().join("key");
        Program::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).run().await?;
        fs::write(&other, format!("a {}", fs::read_to_string(key.with_extension("pub"))?))?;
        for wrong in [&none, &other] {
            let error = ssh(wrong).run().await.err().context("a wrong host key was accepted")?;
            ensure!(error.stderr().contains("Host key verification failed"), "{error}");
        }
        Ok(())
    })
    .await
}

async fn api_port() -> anyhow::Result<()> {
    TestLab::with("port", &["a", "b"], async |lab| {
        let port = lab.lab().status().await?.api_port;
        // Nobody listens yet: the connection ends without a word.
        ensure!(call(port).await?.is_empty());
        let serve = "systemd-run --quiet socat TCP-LISTEN:6443,fork,reuseaddr SYSTEM:'hostname'";
        lab.run("a", serve).await?;
        wait_for(Duration::from_secs(10), "the endpoint answers on loopback", async || {
            Ok(call(port).await.is_ok_and(|answer| answer.trim() == "a"))
        })
        .await
    })
    .await
}

/// What a port on loopback says before it closes the connection.
async fn call(port: u16) -> anyhow::Result<String> {
    let call = move || {
        let mut text = String::new();
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    tokio::task::spawn_blocking(call).await?
}

async fn power_fails_at_a_chosen_moment() -> anyhow::Result<()> {
    TestLab::with("moment", &["a"], async |lab| {
        // Numbered files, one every few milliseconds; the power goes when the tenth is there.
        let writer = "systemd-run --quiet bash -c 'for n in {1..2000}; do touch /root/$n; sleep 0.01; done'";
        lab.run("a", writer).await?;
        lab.cut_power_when("a", "root/10").await?;
        lab.power("a", Power::On).await?;
        let last: u32 = lab.run("a", "ls /root | sort -n | tail -n 1").await?.trim().parse()?;
        ensure!((10..200).contains(&last), "the power went after file {last}");
        Ok(())
    })
    .await
}

async fn journals_are_kept() -> anyhow::Result<()> {
    let mark = "a line that the journal keeps";
    let result = TestLab::with("failing", &["a"], async |lab| {
        lab.run("a", &format!("systemd-cat --identifier=mark echo '{mark}'; journalctl --sync")).await?;
        anyhow::bail!("on purpose");
        #[expect(unreachable_code, reason = "it gives the closure its type")]
        Ok(())
    })
    .await;
    let error = format!("{:#}", result.err().context("the test did not fail")?);
    let directory = error.strip_prefix("journals and consoles are in ").context("it does not say where")?;
    let directory = Path::new(directory.strip_suffix(": on purpose").context("the cause is lost")?);
    ensure!(fs::read_to_string(directory.join("a.journal"))?.contains(mark));
    ensure!(directory.join("a.console").is_file());
    fs::remove_dir_all(directory)?;
    ensure!(!store().list()?.iter().any(|name| name.as_str().starts_with("failing")), "the lab is left");
    Ok(())
}

async fn apt_trusts_the_key() -> anyhow::Result<()> {
    TestLab::with("apt", &["a"], async |lab| {
        let source = |version: &str, key: &str| {
            let signed = if key.is_empty() { String::new() } else { format!("Signed-By: {BUNDLES}/{key}/apt/repository.asc\n") };
            format!(
                "cat > /etc/apt/sources.list.d/k.sources <<'EOF'\nTypes: deb\nURIs: file:{BUNDLES}/{version}/apt\n\
                 Suites: ./\n{signed}EOF\napt-get --error-on=any update 2>&1"
            )
        };
        let error = lab.run("a", &source("1.37.1", "")).await;
        ensure!(error.is_err(), "apt accepts a repository whose key it does not know");
        let error = lab.run("a", &source("1.37.1", "1.36.4")).await;
        ensure!(error.is_err(), "apt accepts the key of another bundle");
        lab.run("a", &source("1.37.1", "1.37.1")).await?;
        let candidates = lab.run("a", "apt-cache policy kubelet kubeadm kubectl containerd | grep Candidate").await?;
        let versions: Vec<&str> = candidates.lines().filter_map(|line| line.split(": ").nth(1)).collect();
        ensure!(versions == ["1.37.1-1.1", "1.37.1-1.1", "1.37.1-1.1", "2.4.2-1.1"], "{versions:?}");
        // What is installed and removed again leaves nothing behind.
        let cycle = "apt-get install --yes kubelet containerd && systemctl is-active containerd && \
                     systemctl is-enabled kubelet && apt-get purge --yes kubelet containerd && \
                     ! systemctl cat kubelet 2>/dev/null && ! pgrep containerd";
        lab.run("a", cycle).await?;
        Ok(())
    })
    .await
}

async fn site_packages() -> anyhow::Result<()> {
    TestLab::with("site", &["a"], async |test| {
        let steps = Steps::stderr();
        let repository = site::ensure(&bundles::cache()?, &steps).await?;
        test.lab().offer(SITE, &repository).await?;
        // The only one that is configured.
        let script = format!(
            "test -z \"$(ls /etc/apt/sources.list.d)\" && test ! -e /etc/apt/sources.list
             path={BUNDLES}/{SITE}
             echo \"deb [signed-by=$path/{KEY_FILE}] file:$path ./\" > /etc/apt/sources.list.d/site.list
             export DEBIAN_FRONTEND=noninteractive
             apt-get update
             apt-get install --yes --no-install-recommends keepalived haproxy
             haproxy -v && keepalived --version && systemctl is-active haproxy
             dpkg-query --show --showformat='${{Package}} ${{Version}}\\n' haproxy keepalived"
        );
        let versions = test.run("a", &script).await?;
        ensure!(
            versions.contains("haproxy 2.6.12-") && versions.contains("keepalived 1:2.2.7-"),
            "{versions}"
        );
        Ok(())
    })
    .await
}
