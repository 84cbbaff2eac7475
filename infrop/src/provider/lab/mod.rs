//! Lab hosts: systemd-nspawn machines on this computer, in a network of their own.
//!
//! ```text
//!            this process                      one supervisor per lab (`infrop lab supervise`)
//!   Lab::create ── writes ──> <labs>/<name>/      own network namespace: bridge br0, one veth per host
//!   Lab::add_host, power, ... ─ control socket ─> own mount namespace: one overlay per host
//!   ssh ── `infrop lab connect` enters the ns ─>  sshd of a host
//!   kubectl ── 127.0.0.1:port ─ forwarded by ──>  the API endpoint
//! ```
//!
//! The supervisor makes and removes hosts, boots them, boots them again after a reboot, and ends with the lab.
//! Once it runs it alone writes the lab's definition. Processes, network and
//! mounts belong to it, so the kernel removes them when it ends, however it ends; a host cannot outlive it.
//! What then is left are the lab's directory and its control groups: [`Store::sweep`] finds and removes those.

mod boot;
mod cgroup;
mod connect;
mod control;
mod error;
mod files;
mod keeper;
mod limits;
mod machine;
mod model;
mod offer;
mod paths;
mod serve;
mod store;
mod supervisor;

use std::{
    collections::BTreeSet,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use images::{
    steps::Steps,
    tools::{self, Tool, tool},
};
use program::Program;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{ChildStdin, Command},
};

pub use self::{
    boot::{BUNDLES_ON_HOSTS, SITE, boot},
    connect::connect,
    control::{HostStatus, Power, Status},
    error::Error,
    limits::raise_limits,
    model::{API_PORT, Definition, FIRST_HOST, GATEWAY, Host, HostName, LabName, MAX_HOSTS, PREFIX_LENGTH},
    store::{Store, Summary},
    supervisor::{keep, supervise},
};
use self::{
    control::{Answer, Request},
    error::At,
    paths::Paths,
};

/// The programs lab hosts need on this computer.
const TOOLS: [Tool; 5] = [
    tool("systemd-nspawn", "systemd-container"),
    tool("ip", "iproute2"),
    tool("ssh", "openssh-client"),
    tool("ssh-keygen", "openssh-client"),
    tool("journalctl", "systemd"),
];

/// A supervisor sets up a network and answers; this is long for that also on a busy computer.
const SUPERVISOR_START: Duration = Duration::from_secs(30);

/// A host boots to sshd in two seconds; under load, with many at once, in some tens.
const BOOT_TIMEOUT: Duration = Duration::from_mins(2);

/// Why a lab cannot run here; `None` if it can.
pub fn obstacle() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some(
            "lab hosts need root: they are containers with all rights in a network of their own".into(),
        );
    }
    if !Path::new("/proc/self/ns/net").exists() {
        return Some("lab hosts need Linux network namespaces".into());
    }
    None
}

/// The Debian packages that labs need and that are not there.
pub fn missing_tools() -> Vec<&'static str> {
    tools::missing(&TOOLS)
}

/// Installs what labs need, where that can be done.
pub async fn ensure_tools(steps: &Steps) -> Result<(), Error> {
    Ok(tools::ensure(&TOOLS, steps).await?)
}

/// Who ends a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Whoever destroys it.
    Kept,
    /// It is destroyed as soon as the process that made it ends, however it ends.
    Tied,
}

/// A lab that is running.
#[derive(Debug)]
pub struct Lab {
    name: LabName,
    paths: Paths,
    /// Our end of the supervisor's stdin. It is closed with us, which ends a lab that is tied or not complete.
    _leash: Option<ChildStdin>,
}

/// What a new lab is to be.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its name, unique in the store.
    pub name: LabName,
    /// The infrastructure it belongs to, if it is made for one.
    pub owner: Option<String>,
    /// Its first hosts; addresses are given in this order, and they know each other by name.
    pub hosts: Vec<HostName>,
    /// The root file system hosts start from.
    pub root: PathBuf,
    /// Who ends it.
    pub lifetime: Lifetime,
    /// The infrop program, which supervises the lab.
    pub infrop: PathBuf,
}

impl Lab {
    /// Makes the lab and boots its hosts; they are reachable when this returns.
    pub async fn create(store: &Store, plan: Plan, steps: &Steps) -> Result<Self, Error> {
        if let Some(obstacle) = obstacle() {
            return Err(Error::NotHere(obstacle));
        }
        ensure_tools(steps).await?;
        raise_limits(steps);
        store.sweep()?;
        let Plan { name, owner, hosts, root, lifetime, infrop } = plan;
        let unique: BTreeSet<&HostName> = hosts.iter().collect();
        if unique.len() != hosts.len() {
            let names = hosts.iter().map(HostName::as_str).collect::<Vec<_>>().join(", ");
            return Err(Error::Hosts { names });
        }
        let tied = lifetime == Lifetime::Tied;
        let mut definition = Definition { owner, tied, ..Definition::new(name, root, infrop)? };
        let name = definition.name.clone();
        let creation = store.reserve(&definition)?;
        let paths = creation.paths().clone();
        let started = async {
            files::write_lab(&mut definition, &hosts, &paths).await?;
            let leash = start_supervisor(&definition, &paths).await?;
            let lab = Self { name: name.clone(), paths: paths.clone(), _leash: Some(leash) };
            let completed = async {
                // One after the other is enough: they boot at the same time.
                for host in &hosts {
                    lab.wait_for_host(host).await?;
                }
                control::call(&lab.paths, &Request::Complete).await
            };
            if let Err(error) = completed.await {
                lab.stop().await?;
                return Err(error);
            }
            Ok(lab)
        };
        match started.await {
            Ok(lab) => Ok(lab),
            Err(error) => {
                store.remove(&name)?;
                Err(error)
            }
        }
    }

    /// Boots a lab again that is not running (this computer was restarted, or its supervisor killed), and
    /// opens it. When this returns its hosts are booting: see [`Self::wait_for_host`].
    pub async fn start(store: &Store, name: &LabName) -> Result<Self, Error> {
        store.sweep()?;
        let _starting = store.claim(name).await?;
        let paths = store.find(name)?;
        // One that was killed holds its lock for a moment more: only who answers lives.
        let deadline = tokio::time::Instant::now() + SUPERVISOR_START;
        while paths.is_supervised()? {
            match control::status(&paths).await {
                Ok(_) => return Self::open(store, name),
                Err(error) if tokio::time::Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        let leash = start_supervisor(&Definition::read(&paths)?, &paths).await?;
        Ok(Self { name: name.clone(), paths, _leash: Some(leash) })
    }

    /// Opens a lab that is running.
    pub fn open(store: &Store, name: &LabName) -> Result<Self, Error> {
        let paths = store.find(name)?;
        if !paths.is_supervised()? {
            return Err(Error::NotRunning(name.clone()));
        }
        Ok(Self { name: name.clone(), paths, _leash: None })
    }

    /// Its name.
    pub fn name(&self) -> &LabName {
        &self.name
    }

    /// What it is at this moment.
    pub fn definition(&self) -> Result<Definition, Error> {
        Definition::read(&self.paths)
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.paths.root()
    }

    /// The configuration with which `ssh -F` reaches its hosts by name.
    pub fn ssh_config(&self) -> PathBuf {
        self.paths.ssh_config()
    }

    /// What the console of a host showed.
    pub fn console(&self, host: &HostName) -> PathBuf {
        self.paths.host(host).console()
    }

    /// `ssh` to a host, ready for a command.
    pub fn ssh(&self, host: &HostName) -> Program {
        Program::new("ssh").arg("-F").arg(self.ssh_config()).arg(host.as_str())
    }

    /// The journal of a host, also of one that does not run.
    pub fn journal(&self, host: &HostName) -> Program {
        Program::new("journalctl")
            .args(["--no-pager", "--quiet", "--output=short-iso-precise", "--directory"])
            .arg(self.paths.host(host).upper().join("var/log/journal"))
    }

    /// What runs.
    pub async fn status(&self) -> Result<Status, Error> {
        control::status(&self.paths).await
    }

    /// The lab's network namespace, for `nsenter --net=`.
    pub async fn network_namespace(&self) -> Result<PathBuf, Error> {
        let pid = control::supervisor_pid(&self.paths).await?;
        Ok(PathBuf::from(format!("/proc/{pid}/ns/net")))
    }

    /// The bridge port that a host's network card is plugged into.
    pub fn bridge_port(&self, host: &HostName) -> Result<String, Error> {
        let definition = self.definition()?;
        Ok(definition.host(host)?.bridge_port(&definition))
    }

    /// Switches a host; when this returns, it is so. Switched on, the host answers by ssh.
    pub async fn power(&self, host: &HostName, power: Power) -> Result<(), Error> {
        self.definition()?.host(host)?;
        control::call(&self.paths, &Request::Power { host: host.clone(), power }).await?;
        if power == Power::On {
            self.wait_for_host(host).await?;
        }
        Ok(())
    }

    /// Makes a host and switches it on; one that is there is only switched on. When this returns it boots:
    /// see [`Self::wait_for_host`].
    pub async fn add_host(&self, name: &HostName) -> Result<Host, Error> {
        match control::call(&self.paths, &Request::Add { host: name.clone() }).await? {
            Answer::Host(host) => Ok(host),
            other => Err(Error::Refused(format!("{other:?}"))),
        }
    }

    /// Cuts the power of a host and removes all it had; that there is none is fine.
    pub async fn remove_host(&self, name: &HostName) -> Result<(), Error> {
        control::call(&self.paths, &Request::Remove { host: name.clone() }).await?;
        Ok(())
    }

    /// From now on the port on 127.0.0.1 leads to this address in the lab, for example a virtual one.
    pub async fn lead_api(&self, address: SocketAddrV4) -> Result<(), Error> {
        control::call(&self.paths, &Request::LeadApi { address }).await?;
        Ok(())
    }

    /// Makes all hosts see a directory tree at [`BUNDLES_ON_HOSTS`]`/name`, read only; those that run see it
    /// at once, and as a whole. The tree is to stay as it is: files are shared with it where they can be.
    pub async fn offer(&self, name: &str, source: &Path) -> Result<(), Error> {
        let (paths, name, source) = (self.paths.clone(), name.to_owned(), source.to_owned());
        let offered = tokio::task::spawn_blocking(move || offer::offer(&paths, &name, &source)).await;
        offered.map_err(std::io::Error::other).at("offer to hosts of", self.paths.root())?
    }

    /// Where that which hosts see is on this computer.
    pub fn offered(&self) -> PathBuf {
        self.paths.bundles()
    }

    /// Ends a lab, running or not, and removes all it had.
    pub async fn destroy(store: &Store, name: &LabName) -> Result<(), Error> {
        match Self::open(store, name) {
            Ok(lab) => lab.stop().await?,
            Err(Error::NotRunning(_)) => {}
            Err(error) => return Err(error),
        }
        store.remove(name)
    }

    /// Cuts the power of all hosts and ends the supervisor; when this returns, it is gone.
    async fn stop(&self) -> Result<(), Error> {
        match control::call(&self.paths, &Request::Shutdown).await {
            // It ended before it could say so: the lock tells.
            Ok(_) | Err(Error::Unanswered) => {}
            Err(error) => return Err(error),
        }
        let path = self.paths.lock();
        let lock = match std::fs::File::open(&path) {
            // A tied lab's directory goes with its supervisor.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            lock => lock.at("open", &path)?,
        };
        let wait = tokio::task::spawn_blocking(move || lock.lock());
        wait.await.map_err(std::io::Error::other).and_then(|locked| locked).at("wait for", &path)
    }

    /// Waits until sshd of a host lets us in.
    pub async fn wait_for_host(&self, host: &HostName) -> Result<(), Error> {
        let probe = self.ssh(host).arg("true").timeout(Duration::from_secs(10));
        let deadline = tokio::time::Instant::now() + BOOT_TIMEOUT;
        loop {
            let Err(error) = probe.run().await else { return Ok(()) };
            let status = self.status().await?;
            let running = status.hosts.iter().any(|known| known.name == *host && known.running);
            if !running || tokio::time::Instant::now() > deadline {
                let console = last_lines(&self.paths.host(host).console());
                return Err(Error::NoBoot { host: host.clone(), console, source: Box::new(error) });
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Starts the supervisor and waits for its word that hosts are booting.
async fn start_supervisor(definition: &Definition, paths: &Paths) -> Result<ChildStdin, Error> {
    let log_path = paths.supervisor_log();
    let log = std::fs::File::options().create(true).append(true).open(&log_path).at("open", &log_path)?;
    let mut command = cgroup::supervisor_command(definition);
    command.args(["lab", "supervise", "--directory"]).arg(paths.root());
    let mut child = Command::from(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .at("start", &definition.infrop)?;
    if let (Some(leash), Some(stdout)) = (child.stdin.take(), child.stdout.take()) {
        let mut lines = BufReader::new(stdout).lines();
        let word = tokio::time::timeout(SUPERVISOR_START, lines.next_line()).await;
        if matches!(word, Ok(Ok(Some(line))) if line == keeper::READY) {
            return Ok(leash);
        }
    }
    // It may hang; its end is also the end of what it started.
    let _ = child.start_kill();
    Err(Error::Supervisor(last_lines(&log_path)))
}

/// The end of a log that goes away with its lab.
fn last_lines(path: &Path) -> String {
    const LINES: usize = 10;
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n")
}

/// The end of a console in one line; none if it showed nothing.
pub(super) fn last_words(path: &Path) -> Option<String> {
    const LINES: usize = 3;
    let text = plain(&String::from_utf8_lossy(&std::fs::read(path).ok()?));
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let end = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
    (!end.is_empty()).then(|| end.join(" / "))
}

/// A text without what colours a terminal or moves its cursor: an escape, a bracket, and all up to a letter.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            if characters.next() == Some('[') {
                characters.by_ref().find(char::is_ascii_alphabetic);
            }
        } else if character == '\n' || !character.is_control() {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_console_is_one_plain_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("console.log");
        assert_eq!(last_words(&file), None);
        for (console, expected) in [
            ("", None),
            ("\n\r\n \n", None),
            ("one\r\n", Some("one")),
            ("a\nb\n\nc\nd\n", Some("b / c / d")),
            ("[\u{1b}[0;31mFAILED\u{1b}[0m] Failed to start ssh.\r\n", Some("[FAILED] Failed to start ssh.")),
            ("cut \u{1b}[0;3", Some("cut")),
        ] {
            std::fs::write(&file, console).unwrap();
            assert_eq!(last_words(&file).as_deref(), expected, "{console:?}");
        }
    }
}
