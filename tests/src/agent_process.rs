//! node-agent as a process of this machine, which it cannot change: its files are below a directory of its own, and
//! every program it finds is a harmless script.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use anyhow::{Context, ensure};
use common::software::SoftwareVersion;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    api_server::{ApiServer, is_running},
    keeper::Keeper,
    lab::wait_for,
};

/// Where the kubelet's credential is.
pub const CREDENTIAL: &str = "etc/kubernetes/kubelet.conf";

/// What an agent may write by itself whatever it is asked for.
const OWN_FILES: [&str; 2] = ["run/", "var/lib/node-agent/journal.json"];

/// Programs that would change the machine. Here they only say that they were called.
const FORBIDDEN: [&str; 14] = [
    "apt-get",
    "apt-mark",
    "busctl",
    "crictl",
    "ctr",
    "dpkg",
    "hostname",
    "hostnamectl",
    "kubeadm",
    "modprobe",
    "reboot",
    "shutdown",
    "swapoff",
    "sysctl",
];

/// `systemctl` with units that do not run unless a file says so, and with places to wait at.
const SYSTEMCTL: &str = r#"
case "$1" in
show)
    while [ -e "$here/hold-show" ]; do /bin/sleep 0.05; done
    for unit in "$@"; do
        case "$unit" in *.service)
            state=inactive
            [ -e "$here/active-$unit" ] && state=active
            printf 'Id=%s\nActiveState=%s\nMainPID=0\n\n' "$unit" "$state" ;;
        esac
    done ;;
reload-or-restart)
    while [ -e "$here/hold-reload" ]; do /bin/sleep 0.05; done ;;
*)
    echo "systemctl $*" >> "$here/forbidden"
    exit 1 ;;
esac
"#;

/// Where the agent can be made to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Looking at the host: before and after each step.
    Look,
    /// In the middle of a step: the file is written, and its service is told to read it.
    Reload,
}

/// A host with an agent. Both are gone when this is dropped or this process ends.
#[derive(Debug)]
pub struct AgentProcess {
    program: PathBuf,
    root: PathBuf,
    programs: PathBuf,
    process: Option<u32>,
    starts: u32,
    keeper: Keeper,
}

impl AgentProcess {
    /// A host for the Node `node` with the program under test and more settings as YAML. It does not run yet.
    pub fn new(program: &Path, node: &str, settings: &str) -> anyhow::Result<Self> {
        let keeper = Keeper::start("infrop-agent-")?;
        let root = keeper.directory().join("root");
        let programs = keeper.directory().join("programs");
        let host = Self { program: program.to_owned(), root, programs, process: None, starts: 0, keeper };
        host.write("etc/node-agent/config.yaml", &format!("node: {node}\n{settings}"))?;
        host.write("var/lib/dpkg/status", "")?;
        host.write("proc/sys/kernel/random/boot_id", "5bd0f4a4-0000-4000-8000-000000000001\n")?;
        // There is no kubelet whose health could be asked.
        host.write("var/lib/kubelet/config.yaml", "healthzPort: 0\n")?;
        fs::create_dir_all(host.path("etc/kubernetes"))?;
        fs::create_dir_all(host.path("etc/node-agent/configuration.d"))?;
        fs::create_dir_all(&host.programs)?;
        host.add_program("systemctl", SYSTEMCTL)?;
        host.add_program("dpkg-query", "exec /usr/bin/dpkg-query \"$@\"\n")?;
        // It says that it has the inhibitor, and waits until its input ends.
        host.add_program("systemd-inhibit", "echo\nexec /bin/cat\n")?;
        for name in FORBIDDEN {
            host.add_program(name, &format!("echo \"{name} $*\" >> \"$here/forbidden\"\nexit 1\n"))?;
        }
        Ok(host)
    }

    fn add_program(&self, name: &str, script: &str) -> anyhow::Result<()> {
        let path = self.programs.join(name);
        let here = self.programs.display();
        fs::write(&path, format!("#!/bin/sh\nhere={here}\necho \"{name} $*\" >> \"$here/calls\"\n{script}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Makes a program that may not be run do nothing, and well.
    pub fn let_succeed(&self, name: &str) -> anyhow::Result<()> {
        self.add_program(name, "")
    }

    /// Starts the agent.
    pub fn start(&mut self) -> anyhow::Result<()> {
        ensure!(!self.is_running(), "the agent runs already");
        self.starts += 1;
        let log = self.keeper.directory().join(format!("agent-{}.log", self.starts));
        let words = self.command_line(&["run"]);
        self.process = Some(self.keeper.run(&log, Path::new("/usr/bin/env"), &words)?);
        Ok(())
    }

    /// The arguments of env: with nothing from this process' environment, and no programs but ours.
    fn command_line(&self, arguments: &[&str]) -> Vec<String> {
        let mut words =
            vec!["-i".to_owned(), format!("PATH={}", self.programs.display()), "LANG=C.UTF-8".to_owned()];
        words.push(self.program.display().to_string());
        words.push(format!("--root={}", self.root.display()));
        words.extend(arguments.iter().map(|&word| word.to_owned()));
        words
    }

    /// Runs another command of the agent on the same host.
    pub fn command(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        Ok(std::process::Command::new("/usr/bin/env").args(self.command_line(arguments)).output()?)
    }

    /// The number of its process.
    pub fn process(&self) -> anyhow::Result<u32> {
        self.process.context("the agent was not started")
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.process.is_some_and(is_running)
    }

    /// Ends it by a signal.
    pub async fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        let process = self.process()?;
        kill(Pid::from_raw(i32::try_from(process)?), signal)?;
        wait_for(Duration::from_secs(20), "the agent ends", async || Ok(!is_running(process))).await?;
        self.process = None;
        Ok(())
    }

    /// Where a file of the host is.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Replaces a file of the host in one step, as whoever delivers files does.
    pub fn write(&self, relative: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path(relative);
        let directory = path.parent().context("a file is in a directory")?;
        fs::create_dir_all(directory)?;
        let unfinished = directory.join(".unfinished");
        fs::write(&unfinished, text)?;
        Ok(fs::rename(unfinished, path)?)
    }

    /// The text of a file of the host; none if it is not there.
    pub fn read(&self, relative: &str) -> Option<String> {
        fs::read_to_string(self.path(relative)).ok()
    }

    /// Gives the kubelet of this host a new credential.
    pub fn join(&self, server: &ApiServer, node: &str) -> anyhow::Result<()> {
        let credential = server.kubeconfig(&format!("system:node:{node}"), &["system:nodes"])?;
        self.write(CREDENTIAL, &serde_yaml::to_string(&credential)?)
    }

    /// Delivers a content of a software that is one file; gives its version.
    pub fn deliver(&self, software: &str, text: &str) -> anyhow::Result<SoftwareVersion> {
        let version = SoftwareVersion::of_content(&text)?;
        let name = version.to_string().replace(':', "-");
        let content = serde_yaml::to_string(&BTreeMap::from([(software, text)]))?;
        self.write(&format!("etc/node-agent/configuration.d/{software}-{name}.yaml"), &content)?;
        Ok(version)
    }

    /// Makes a service run, as far as the agent sees.
    pub fn set_active(&self, unit: &str) -> anyhow::Result<()> {
        Ok(fs::write(self.programs.join(format!("active-{unit}")), "")?)
    }

    fn hold_file(&self, place: Place) -> PathBuf {
        self.programs.join(match place {
            Place::Look => "hold-show",
            Place::Reload => "hold-reload",
        })
    }

    /// Makes the agent wait at a place.
    pub fn hold(&self, place: Place) -> anyhow::Result<()> {
        Ok(fs::write(self.hold_file(place), "")?)
    }

    /// Lets it go on.
    pub fn release(&self, place: Place) -> anyhow::Result<()> {
        Ok(fs::remove_file(self.hold_file(place))?)
    }

    /// The command line of every program it ran.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.programs.join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// What it ran and may not have.
    pub fn forbidden_calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.programs.join("forbidden")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The journal.
    pub fn journal(&self) -> anyhow::Result<Value> {
        let text = self.read("var/lib/node-agent/journal.json").context("there is no journal")?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Everything on the host but what an agent writes whatever it is asked for.
    pub fn files(&self) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
        let mut files = BTreeMap::new();
        let mut directories = vec![self.root.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)? {
                let path = entry?.path();
                let relative = path.strip_prefix(&self.root)?.to_owned();
                if OWN_FILES.iter().any(|own| relative.to_string_lossy().starts_with(own)) {
                    continue;
                }
                if path.is_dir() {
                    directories.push(path);
                } else {
                    files.insert(relative, fs::read(&path)?);
                }
            }
        }
        Ok(files)
    }

    /// What it logged since its last start.
    pub fn log(&self) -> String {
        let path = self.keeper.directory().join(format!("agent-{}.log", self.starts));
        fs::read_to_string(path).unwrap_or_default()
    }
}
