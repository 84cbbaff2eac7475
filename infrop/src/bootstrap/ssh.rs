//! One multiplexed SSH connection per host, whose key is checked.
//!
//! Scripts go through stdin, so nothing of them stands in a process list, and neither do secrets in them.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use common::metadata::NodeName;
use openssh::{ControlPersist, KnownHosts, Session, SessionBuilder, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{control::ControlDirectory, error::Error};

/// A host that does not answer in this time is called unreachable; whoever waits for it tries again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection lives on without a command, also after infrop was killed.
const IDLE_LIMIT: NonZeroUsize = match NonZeroUsize::new(60) {
    Some(seconds) => seconds,
    None => NonZeroUsize::MIN,
};

/// One that had no command for this long may end before the next one is through: a new one is made.
const STALE_AFTER: Duration = Duration::from_secs(50);

/// A link that was cut is noticed after three of these.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// What a shell ends with if it does not find a program.
const NOT_FOUND: i32 = 127;

/// What of stderr goes into an error.
const TAIL_BYTES: usize = 2048;

/// How a host is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// The name or address that ssh is given.
    pub destination: String,
    /// What ssh reads instead of this computer's own settings; what stands here goes before it.
    pub config: Option<PathBuf>,
    /// Who we are there.
    pub user: Option<String>,
    /// The port of sshd.
    pub port: Option<u16>,
    /// The private key.
    pub key: Option<PathBuf>,
    /// The host keys that are trusted.
    pub known_hosts: Option<PathBuf>,
    /// Whether a host that is not known yet is taken down in `known_hosts`.
    pub record: bool,
}

/// A host that answers.
#[derive(Debug)]
pub struct Remote {
    host: NodeName,
    session: Session,
    /// How a shell with root's rights is started there.
    shell: &'static str,
    /// When its last command began or ended.
    used: Mutex<Instant>,
}

impl Remote {
    /// Connects.
    pub async fn connect(host: &NodeName, access: &Access, control: &std::path::Path) -> Result<Self, Error> {
        let Access { destination, config, user, port, key, known_hosts, record } = access;
        let mut builder = SessionBuilder::default();
        builder
            .known_hosts_check(if *record { KnownHosts::Add } else { KnownHosts::Strict })
            .connect_timeout(CONNECT_TIMEOUT)
            .server_alive_interval(ALIVE_INTERVAL)
            .control_directory(control)
            .control_persist(ControlPersist::IdleFor(IDLE_LIMIT));
        if let Some(config) = config {
            builder.config_file(config);
        }
        if let Some(user) = user {
            builder.user(user.clone());
        }
        if let Some(port) = port {
            builder.port(*port);
        }
        if let Some(key) = key {
            builder.keyfile(key);
        }
        if let Some(known_hosts) = known_hosts {
            builder.user_known_hosts_file(known_hosts);
        }
        let session =
            builder.connect_mux(destination).await.map_err(|error| Error::of_connect(host, error))?;
        let is_root = user.as_ref().is_none_or(|user| user == "root");
        let shell = if is_root { "bash -seuo pipefail" } else { "sudo -n bash -seuo pipefail" };
        Ok(Self { host: host.clone(), session, shell, used: Mutex::new(Instant::now()) })
    }

    /// The host.
    pub fn host(&self) -> &NodeName {
        &self.host
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn is_stale(&self) -> bool {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed() > STALE_AFTER
    }

    /// Runs a bash script as root and gives its stdout. `what` names it in errors: scripts are long, and may hold
    /// secrets.
    pub async fn run(&self, what: &str, limit: Duration, script: &str) -> Result<String, Error> {
        self.run_with(what, limit, script, &[]).await
    }

    /// Runs a script, which reads the rest of its stdin.
    pub async fn run_with(
        &self,
        what: &str,
        limit: Duration,
        script: &str,
        stdin: &[u8],
    ) -> Result<String, Error> {
        let started = Instant::now();
        self.touch();
        let result = tokio::time::timeout(limit, self.converse(script, stdin)).await;
        self.touch();
        let host = self.host.clone();
        let what = what.to_owned();
        tracing::debug!(%host, what, seconds = started.elapsed().as_secs_f64(), "ran");
        let (code, stdout, stderr) = match result {
            Err(_) => return Err(Error::TimedOut { host, what, after: limit }),
            Ok(Err(source)) => return Err(Error::Connection { host, what, source }),
            Ok(Ok(output)) => output,
        };
        match code {
            Some(0) => Ok(String::from_utf8_lossy(&stdout).into_owned()),
            code => {
                let start = stderr.len().saturating_sub(TAIL_BYTES);
                let tail = String::from_utf8_lossy(stderr.get(start..).unwrap_or_default()).trim().to_owned();
                Err(Error::Script { host, what, code, stderr: tail })
            }
        }
    }

    async fn converse(
        &self,
        script: &str,
        stdin: &[u8],
    ) -> Result<(Option<i32>, Vec<u8>, Vec<u8>), openssh::Error> {
        // bash reads a script from stdin as it goes, so what follows the script is the script's own stdin. Braces and
        // a last line make it read the whole first.
        let mut child = self
            .session
            .raw_command(self.shell)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .await?;
        let (mut input, mut output, mut errors) =
            (child.stdin().take(), child.stdout().take(), child.stderr().take());
        let text = format!("{{\n{script}\nexit 0\n}}\n");
        let write = async {
            if let Some(input) = &mut input {
                input.write_all(text.as_bytes()).await?;
                input.write_all(stdin).await?;
                input.shutdown().await?;
            }
            drop(input.take());
            std::io::Result::Ok(())
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let read_output = async {
            match &mut output {
                Some(output) => output.read_to_end(&mut stdout).await,
                None => Ok(0),
            }
        };
        let read_errors = async {
            match &mut errors {
                Some(errors) => errors.read_to_end(&mut stderr).await,
                None => Ok(0),
            }
        };
        // A script that ends early does not read all of its stdin; its exit code says more than the broken pipe.
        let (_, read, read_too) = tokio::join!(write, read_output, read_errors);
        read.and(read_too).map_err(openssh::Error::ChildIo)?;
        let code = match child.wait().await {
            Ok(status) => status.code(),
            // The crate takes this code for a shell that is not there; it is also what a script ends with that calls a
            // program which is not.
            Err(openssh::Error::Remote(_)) => Some(NOT_FOUND),
            Err(error) => return Err(error),
        };
        Ok((code, stdout, stderr))
    }

    /// Writes a file by rename, with its mode, through to the disk.
    pub async fn write(&self, path: &str, mode: u32, bytes: &[u8]) -> Result<(), Error> {
        let script = format!(
            "umask 077\nmkdir -p \"$(dirname '{path}')\"\ncat > '{path}.new'\nchmod {mode:o} '{path}.new'\n\
             sync '{path}.new'\nmv '{path}.new' '{path}'"
        );
        self.run_with(&format!("write {path}"), Duration::from_mins(5), &script, bytes).await?;
        Ok(())
    }
}

/// All connections of this process.
#[derive(Debug)]
pub struct Connections {
    /// Where control sockets are.
    control: ControlDirectory,
    open: Mutex<BTreeMap<NodeName, Arc<Remote>>>,
}

impl Connections {
    /// None yet.
    pub fn new() -> Result<Self, Error> {
        let control = ControlDirectory::new().map_err(Error::Control)?;
        Ok(Self { control, open: Mutex::default() })
    }

    /// The connection to a host: that which is open, or a new one.
    pub async fn get(&self, host: &NodeName, access: &Access) -> Result<Arc<Remote>, Error> {
        if let Some(remote) = self.lock().get(host).filter(|remote| !remote.is_stale()) {
            return Ok(Arc::clone(remote));
        }
        self.forget(host);
        let remote = Arc::new(Remote::connect(host, access, self.control.path()).await?);
        // Two may have connected at once; the first stays.
        Ok(Arc::clone(self.lock().entry(host.clone()).or_insert(remote)))
    }

    /// Forgets a connection that broke, or of a host that is another now.
    pub fn forget(&self, host: &NodeName) {
        self.lock().remove(host);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeName, Arc<Remote>>> {
        // The map is whole after any panic: each change of it is one call.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
