//! Lab hosts behave like machines, keep to themselves, come and go, and leave nothing.

#[path = "lab/growth.rs"]
mod growth;

use std::{
    fs,
    io::Read,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use images::{repository::KEY_FILE, site, steps::Steps};
use infrop::provider::lab::{Lab, Power, SITE, Store};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use program::Program;
use tests::{
    api_server::is_running,
    bundles,
    faults::{Faults, Party},
    harness::{Case, Tier, suite},
    holder::Holder,
    infrop, infrop_path,
    lab::{BUNDLES, TestLab, host, store, wait_for},
};

const LIMIT: Duration = Duration::from_mins(4);

/// With this argument the suite only holds a lab, for the case that kills it.
const HOLD: &str = "--hold-lab";

fn main() -> ExitCode {
    if std::env::args().any(|word| word == HOLD) {
        return hold();
    }
    suite([
        Case::new(Tier::T4, "hosts_reboot_and_lose_power_like_machines", LIMIT, like_machines),
        Case::new(Tier::T4, "labs_stay_apart_and_out_of_the_computers_network", LIMIT, labs_stay_apart),
        Case::new(Tier::T4, "host_keys_are_checked", LIMIT, host_keys_are_checked),
        Case::new(Tier::T4, "a_port_on_loopback_leads_to_the_api_endpoint", LIMIT, api_port),
        Case::new(Tier::T4, "the_port_can_be_led_elsewhere", LIMIT, growth::the_port_is_led),
        Case::new(Tier::T4, "hosts_come_and_go", LIMIT, growth::hosts_come_and_go),
        Case::new(Tier::T4, "ten_hosts_come_and_go_at_once", LIMIT, growth::ten_at_once),
        Case::new(Tier::T4, "a_change_that_is_killed_is_made_again", LIMIT, growth::killed_in_the_middle),
        Case::new(Tier::T4, "what_is_offered_appears_on_running_hosts", LIMIT, growth::offers_appear),
        Case::new(Tier::T4, "a_lab_outlives_the_command_that_made_it", LIMIT, outlives_the_command),
        Case::new(Tier::T4, "nothing_is_left_of_a_killed_run", LIMIT, nothing_is_left),
        Case::new(Tier::T4, "a_create_that_is_killed_leaves_nothing", LIMIT, killed_create),
        Case::new(Tier::T4, "the_network_can_be_cut_and_healed", LIMIT, cut_and_heal),
        Case::new(Tier::T4, "the_network_can_be_slow_and_lossy", LIMIT, slow_and_lossy),
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

async fn outlives_the_command() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let lab = |words: &[&str]| {
        let program = infrop()?.args(["lab", "--lab-dir"]).arg(directory.path()).timeout(LIMIT);
        anyhow::Ok(program.args(words))
    };
    let created = lab(&["create", "demo", "--hosts", "cp1,w1"])?.run().await?;
    let check = async || {
        ensure!(created.contains("cp1") && created.contains("ssh -F "), "{created}");
        let list = lab(&["list", "-o", "json"])?.run().await?;
        let list: serde_json::Value = serde_json::from_str(&list)?;
        ensure!(
            list.pointer("/0/name") == Some(&"demo".into())
                && list.pointer("/0/running") == Some(&true.into()),
            "{list}"
        );
        ensure!(lab(&["ssh", "demo", "w1", "--", "hostname"])?.run().await?.trim() == "w1");
        lab(&["power", "demo", "w1", "cut"])?.run().await?;
        let status = lab(&["status", "demo", "-o", "json"])?.run().await?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        ensure!(status.pointer("/hosts/1/running") == Some(&false.into()), "{status}");
        ensure!(lab(&["console", "demo", "cp1"])?.run().await?.contains("Welcome to"));

        lab(&["add", "demo", "w2"])?.run().await?;
        ensure!(lab(&["ssh", "demo", "w2", "--", "hostname"])?.run().await?.trim() == "w2");
        lab(&["remove", "demo", "w2"])?.run().await?;

        // Wrong names are told with what there is.
        let error = lab(&["power", "demo", "w9", "on"])?.run().await.err().context("w9 was switched on")?;
        ensure!(error.stderr() == "infrop: the lab demo has no host w9: it has cp1, w1", "{error}");
        let error = lab(&["create", "demo"])?.run().await.err().context("the name was taken twice")?;
        ensure!(
            error.stderr().ends_with(
                "infrop: there is a lab demo already: choose another name, or `infrop lab destroy demo` first"
            ),
            "{error}"
        );

        // The supervisor is killed; the lab is then started again with its disks and its port.
        let port = status.get("apiPort").cloned();
        lab(&["ssh", "demo", "cp1", "--", "echo kept > /root/file && sync"])?.run().await?;
        kill_supervisor(&directory.path().join("demo")).await?;
        let error = lab(&["status", "demo"])?.run().await.err().context("a dead lab has a status")?;
        ensure!(error.stderr().contains("`infrop lab start demo` boots its hosts again"), "{error}");
        lab(&["start", "demo"])?.run().await?;
        ensure!(lab(&["ssh", "demo", "cp1", "--", "cat /root/file"])?.run().await?.trim() == "kept");
        let status: serde_json::Value =
            serde_json::from_str(&lab(&["status", "demo", "-o", "json"])?.run().await?)?;
        ensure!(port.is_some() && status.get("apiPort") == port.as_ref(), "{status}");
        anyhow::Ok(())
    };
    let result = check().await;
    let root = directory.path().join("demo");
    let traces = Traces::of(&root).await;
    lab(&["destroy", "demo"])?.run().await?;
    result?;
    ensure!(!root.exists(), "the directory is left");
    traces?.assert_gone().await
}

async fn kill_supervisor(root: &Path) -> anyhow::Result<()> {
    let mut command: Vec<u8> = Vec::new();
    for word in ["lab", "supervise", "--directory", root.to_str().context("a path of a test is text")?] {
        command.extend(word.as_bytes());
        command.push(0);
    }
    let supervises = |process: &Path| {
        fs::read(process.join("cmdline")).is_ok_and(|line| line.ends_with(&command) && line != command)
    };
    for entry in fs::read_dir("/proc")? {
        let process = entry?.path();
        if supervises(&process) {
            let id: i32 = process.file_name().context("a process has a number")?.to_string_lossy().parse()?;
            kill(Pid::from_raw(id), Signal::SIGKILL)?;
            return wait_for(Duration::from_secs(10), "the killed supervisor is gone", async || {
                Ok(!supervises(&process))
            })
            .await;
        }
    }
    anyhow::bail!("no supervisor of {} runs", root.display())
}

/// What a running lab has beside its files.
struct Traces {
    processes: Vec<u32>,
    cgroups: Vec<PathBuf>,
}

impl Traces {
    async fn of(root: &Path) -> anyhow::Result<Self> {
        let pattern = format!("--directory {}", root.display());
        let processes = Program::new("pgrep").args(["-f", "--", &pattern]).run().await?;
        let cgroups = fs::read_to_string(root.join("cgroups"))?;
        let traces = Self {
            processes: processes.lines().map(str::parse).collect::<Result<_, _>>()?,
            cgroups: cgroups.lines().map(PathBuf::from).collect(),
        };
        // The supervisor, what it keeps, and at least one host.
        ensure!(traces.processes.len() >= 3 && !traces.cgroups.is_empty(), "{:?}", traces.processes);
        ensure!(traces.cgroups.iter().all(|group| group.is_dir()), "{:?}", traces.cgroups);
        Ok(traces)
    }

    async fn assert_gone(&self) -> anyhow::Result<()> {
        wait_for(Duration::from_secs(20), "processes of the lab are gone", async || {
            Ok(!self.processes.iter().any(|id| is_running(*id)))
        })
        .await?;
        for group in &self.cgroups {
            ensure!(!group.exists(), "{} is left", group.display());
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(!mounts.contains("infrop-test-labs"), "mounts are left: {mounts}");
        Ok(())
    }
}

async fn nothing_is_left() -> anyhow::Result<()> {
    TestLab::with("bystander", &["a"], async |bystander| {
        let boot = bystander.boot_id("a").await?;

        // The process that made it is killed: the lab goes by itself.
        let mut holder = Holder::start(HOLD)?;
        let root = PathBuf::from(holder.line().await?);
        let traces = Traces::of(&root).await?;
        holder.signal(Signal::SIGKILL)?;
        wait_for(Duration::from_secs(20), "the lab of a killed process is gone", async || Ok(!root.exists()))
            .await?;
        traces.assert_gone().await?;

        // The supervisor is killed as well: the kernel ends the hosts, the next start removes the rest.
        let mut holder = Holder::start(HOLD)?;
        let root = PathBuf::from(holder.line().await?);
        let traces = Traces::of(&root).await?;
        kill_supervisor(&root).await?;
        holder.signal(Signal::SIGKILL)?;
        store().sweep()?;
        ensure!(!root.exists(), "{} is left", root.display());
        traces.assert_gone().await?;

        ensure!(bystander.boot_id("a").await? == boot, "another lab was touched");
        Ok(())
    })
    .await
}

async fn killed_create() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let root = directory.path().join("demo");
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut create = std::process::Command::new(infrop_path()?)
            .args(["lab", "create", "demo", "--hosts", "a", "--lab-dir"])
            .arg(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // Its host is booting: the supervisor keeps it, and nobody has seen it answer.
        wait_for(Duration::from_mins(1), "the host boots", async || Ok(root.join("cgroups").exists()))
            .await?;
        kill(Pid::from_raw(i32::try_from(create.id())?), signal)?;
        create.wait()?;
        let gone =
            wait_for(Duration::from_secs(20), "the half-made lab is gone", async || Ok(!root.exists())).await;
        if gone.is_err() {
            // What the product left, the test must not.
            Lab::destroy(&Store::new(directory.path()), &"demo".parse()?).await?;
        }
        gone?;
    }
    Ok(())
}

/// Holds a lab until this process is killed.
fn hold() -> ExitCode {
    let held = || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(TestLab::with("held", &["a"], async |lab: &TestLab| {
            println!("{}", lab.lab().directory().display());
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
            anyhow::Ok(())
        }))
    };
    if held().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether any of some packets from a host to another is answered.
async fn reaches(lab: &TestLab, from: &str, to: &str) -> bool {
    lab.run(from, &format!("ping -c 3 -i 0.3 -W 2 {to}")).await.is_ok()
}

async fn cut_and_heal() -> anyhow::Result<()> {
    TestLab::with("cuts", &["a", "b", "c"], async |lab| {
        let faults = Faults::new(lab.lab()).await?;
        let (a, b) = (Party::host("a")?, Party::host("b")?);
        ensure!(reaches(lab, "a", "b").await);
        faults.cut(a.clone(), b.clone()).await?;
        ensure!(
            !reaches(lab, "a", "b").await && !reaches(lab, "b", "a").await,
            "the cut lets packets through"
        );
        ensure!(reaches(lab, "a", "c").await && reaches(lab, "c", "b").await, "the cut cuts too much");
        faults.heal(&b, &a).await?;
        ensure!(reaches(lab, "a", "b").await && reaches(lab, "b", "a").await, "the cut did not heal");

        // From this computer: ssh does not come in, hosts still reach each other.
        lab.run("a", "systemd-run --quiet --unit=pinger ping -i 0.2 b").await?;
        faults.cut(a.clone(), Party::Outside).await?;
        let attempt = lab.lab().ssh(&host("a")?).arg("true").timeout(Duration::from_secs(3)).run().await;
        ensure!(attempt.is_err(), "the cut host answers");
        faults.heal(&a, &Party::Outside).await?;
        let answers = lab.run("a", "journalctl --unit pinger --output cat | grep -c 'bytes from'").await?;
        ensure!(answers.trim().parse::<u32>()? >= 10, "the hosts lost each other: {answers}");
        Ok(())
    })
    .await
}

/// The shortest round trip in milliseconds, and how many of the packets came back. The shortest, because a
/// busy computer makes others longer.
async fn measure(lab: &TestLab, count: u32) -> anyhow::Result<(f64, u32)> {
    let text = lab.run("a", &format!("ping -q -i 0.01 -c {count} -W 1 b || true")).await?;
    let received = text.split(", ").find_map(|part| part.strip_suffix(" received"));
    let shortest =
        text.lines().last().and_then(|line| line.split(" = ").nth(1)?.split('/').next()).unwrap_or("0");
    Ok((shortest.parse()?, received.context("ping counts")?.parse()?))
}

async fn slow_and_lossy() -> anyhow::Result<()> {
    TestLab::with("slow", &["a", "b"], async |lab| {
        let faults = Faults::new(lab.lab()).await?;
        let b = host("b")?;
        let (fast, received) = measure(lab, 50).await?;
        ensure!(received == 50 && fast < 40.0, "{received} of 50 in {fast} ms");

        let delay = faults.delay(&b, Duration::from_millis(50)).await?;
        let (slow, received) = measure(lab, 50).await?;
        ensure!(received == 50 && (100.0..160.0).contains(&slow), "{received} of 50 in {slow} ms");
        // A cut holds for a delayed host, too.
        let (one, two) = (Party::host("a")?, Party::host("b")?);
        faults.cut(one.clone(), two.clone()).await?;
        ensure!(!reaches(lab, "a", "b").await);
        faults.heal(&one, &two).await?;
        delay.end().await?;
        let (fast, received) = measure(lab, 50).await?;
        ensure!(received == 50 && fast < 40.0, "{received} of 50 in {fast} ms");

        // Each packet passes twice: a quarter comes back. The bounds are five deviations wide.
        faults.lose(&b, 50).await?;
        let (_, received) = measure(lab, 400).await?;
        ensure!((57..=143).contains(&received), "{received} of 400 came back");
        faults.lose(&b, 0).await?;
        ensure!(measure(lab, 50).await?.1 == 50);
        Ok(())
    })
    .await
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
