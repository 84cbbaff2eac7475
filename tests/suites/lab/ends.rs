//! However a lab ends, nothing is left of it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use infrop::provider::lab::{Lab, Store};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use program::Program;
use tests::{
    api_server::is_running,
    holder::Holder,
    infrop, infrop_path,
    lab::{Clearing, TestLab, store, wait_for},
};

use super::LIMIT;

/// With this argument the suite only holds a lab, for the case that kills it.
pub(super) const HOLD: &str = "--hold-lab";

/// The same with a lab that would outlive it.
pub(super) const HOLD_OUTLIVING: &str = "--hold-outliving-lab";

pub(super) async fn outlives_the_command() -> anyhow::Result<()> {
    let directory = Clearing::new()?;
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

pub(super) async fn kill_supervisor(root: &Path) -> anyhow::Result<()> {
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

pub(super) async fn nothing_is_left() -> anyhow::Result<()> {
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

pub(super) async fn cleared_after_a_kill() -> anyhow::Result<()> {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut holder = Holder::start(HOLD_OUTLIVING)?;
        let root = PathBuf::from(holder.line().await?);
        let traces = Traces::of(&root).await?;
        holder.signal(signal)?;
        let directory = root.parent().context("labs are in a directory")?;
        wait_for(Duration::from_secs(20), "the labs of an ended test are gone", async || {
            Ok(!directory.exists())
        })
        .await?;
        traces.assert_gone().await?;
    }
    Ok(())
}

pub(super) async fn killed_create() -> anyhow::Result<()> {
    let directory = Clearing::new()?;
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
pub(super) fn hold() -> ExitCode {
    run(TestLab::with("held", &["a"], async |lab: &TestLab| {
        println!("{}", lab.lab().directory().display());
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
        anyhow::Ok(())
    }))
}

/// Holds a lab that somebody else has to end.
pub(super) fn hold_outliving() -> ExitCode {
    run(async {
        let labs = Clearing::new()?;
        let create = infrop()?.args(["lab", "create", "held", "--hosts", "a", "--lab-dir"]).arg(labs.path());
        create.run().await?;
        println!("{}", labs.path().join("held").display());
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
        Ok(())
    })
}

fn run(held: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let held = runtime.is_ok_and(|runtime| runtime.block_on(held).is_ok());
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
