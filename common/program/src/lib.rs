//! The one way external programs are run.
//!
//! Every run is logged, has a time limit, ends together with everything it started when the limit passes or
//! the caller goes away, and carries the tail of its stderr into the error.

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
};

/// Long enough for any short tool; what takes longer sets its own limit.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);

/// What of stderr goes into an error: some lines a person can read.
const TAIL_BYTES: usize = 2048;

/// What is read at once of an output of which only the end is kept.
const PIECE_BYTES: usize = 8192;

/// A program that could not be run or did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not installed.
    #[error("{program} is not installed or not in PATH")]
    NotInstalled {
        /// Its name.
        program: String,
    },
    /// It could not be started, or its pipes broke.
    #[error("cannot run `{command}`")]
    Io {
        /// The command line.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// It took too long and was ended.
    #[error("`{command}` did not end within {} s and was stopped{}", .after.as_secs(), Tail(.stderr))]
    TimedOut {
        /// The command line.
        command: String,
        /// The limit that passed.
        after: Duration,
        /// The end of what it wrote to stderr.
        stderr: String,
    },
    /// It ended with something else than success.
    #[error("`{command}` failed ({status}){}", Tail(.stderr))]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it wrote to stderr.
        stderr: String,
    },
}

impl Error {
    /// The end of what the program wrote to stderr, where it ran.
    pub fn stderr(&self) -> &str {
        match self {
            Self::TimedOut { stderr, .. } | Self::Failed { stderr, .. } => stderr,
            Self::NotInstalled { .. } | Self::Io { .. } => "",
        }
    }
}

struct Tail<'a>(&'a str);

impl fmt::Display for Tail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.trim() {
            "" => Ok(()),
            tail => write!(f, ": {tail}"),
        }
    }
}

/// A program to run, with its arguments. Secrets do not belong here: they go through [`Program::stdin`].
#[derive(Debug, Clone)]
pub struct Program {
    name: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    without: Vec<OsString>,
    directory: Option<PathBuf>,
    stdin: Vec<u8>,
    timeout: Duration,
    only_end: bool,
}

impl Program {
    /// The program `name`, found in PATH unless it is a path.
    pub fn new(name: impl AsRef<OsStr>) -> Self {
        Self {
            name: name.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            without: Vec::new(),
            directory: None,
            stdin: Vec::new(),
            timeout: DEFAULT_TIMEOUT,
            only_end: false,
        }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// A variable of its environment, beside the inherited ones.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// A variable that it does not inherit.
    #[must_use]
    pub fn without(mut self, key: impl AsRef<OsStr>) -> Self {
        self.without.push(key.as_ref().to_owned());
        self
    }

    /// For programs of others, which may write a lot: only the end of stdout is kept, and stands in the error if there is
    /// nothing on stderr.
    #[must_use]
    pub fn only_end(mut self) -> Self {
        self.only_end = true;
        self
    }

    /// The directory it runs in.
    #[must_use]
    pub fn directory(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// What it reads from stdin; nothing by default.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// How long it may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs it and gives its stdout; anything but success is an error.
    pub async fn run(&self) -> Result<String, Error> {
        let started = Instant::now();
        tracing::debug!(command = %self, "run");
        let (child, mut group) = self.spawn()?;
        let mut stdout = Vec::new();
        let mut stderr = Vec::new();
        let finished =
            tokio::time::timeout(self.timeout, self.converse(child, &mut stdout, &mut stderr)).await;
        let stderr = match tail(&stderr) {
            nothing if nothing.is_empty() && self.only_end => tail(&stdout),
            stderr => stderr,
        };
        let Ok(result) = finished else {
            // Dropping `group` ends whatever the program left behind, too.
            return Err(Error::TimedOut { command: self.to_string(), after: self.timeout, stderr });
        };
        let status = result.map_err(|source| self.io_error(source))?;
        group.0 = None;
        tracing::debug!(command = %self, %status, seconds = started.elapsed().as_secs_f64(), "ended");
        if !status.success() {
            return Err(Error::Failed { command: self.to_string(), status, stderr });
        }
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    }

    fn spawn(&self) -> Result<(Child, Group), Error> {
        let mut command = Command::new(&self.name);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(if self.stdin.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that its children end with it.
            .process_group(0);
        for key in &self.without {
            command.env_remove(key);
        }
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let child = command.spawn().map_err(|source| match source.kind() {
            // The directory may be what is missing; then the name is not to blame.
            io::ErrorKind::NotFound if self.directory.as_ref().is_none_or(|dir| dir.is_dir()) => {
                Error::NotInstalled { program: self.name.to_string_lossy().into_owned() }
            }
            _ => self.io_error(source),
        })?;
        let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
        Ok((child, group))
    }

    async fn converse(
        &self,
        mut child: Child,
        stdout: &mut Vec<u8>,
        stderr: &mut Vec<u8>,
    ) -> io::Result<ExitStatus> {
        let stdin = child.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                match stdin.write_all(&self.stdin).await {
                    // It need not read what it is given.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                    other => other?,
                }
            }
            io::Result::Ok(())
        };
        let (out, err) = (child.stdout.take(), child.stderr.take());
        // Of stderr nobody ever sees more than the end.
        tokio::try_join!(feed, read(out, stdout, self.only_end), read(err, stderr, true))?;
        child.wait().await
    }

    fn io_error(&self, source: io::Error) -> Error {
        Error::Io { command: self.to_string(), source }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name.to_string_lossy())?;
        for arg in &self.args {
            let arg = arg.to_string_lossy();
            if arg.is_empty() || arg.contains(|c: char| c.is_whitespace() || "'\"$\\;&|<>()*?".contains(c)) {
                write!(f, " '{}'", arg.replace('\'', "'\\''"))?;
            } else {
                write!(f, " {arg}")?;
            }
        }
        Ok(())
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>, only_end: bool) -> io::Result<()> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    if !only_end {
        return pipe.read_to_end(into).await.map(drop);
    }
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = pipe.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        into.extend_from_slice(piece.get(..count).unwrap_or_default());
        let excess = into.len().saturating_sub(TAIL_BYTES);
        into.drain(..excess);
    }
}

fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(TAIL_BYTES);
    String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).trim().to_owned()
}

/// Kills the process group of a program that was not waited for to the end.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may be gone already; then there is nothing to end.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Program {
        Program::new("sh").arg("-c").arg(script)
    }

    #[tokio::test]
    async fn stdout_comes_back_and_stdin_goes_in() {
        assert_eq!(sh("cat; printf x").stdin("secret ").run().await.unwrap(), "secret x");
    }

    #[tokio::test]
    async fn a_failure_names_the_command_and_carries_the_tail_of_stderr() {
        let error = sh("yes line | head -n 9999 >&2; echo the cause >&2; exit 3").run().await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("the cause"), "{text}");
        assert!(text.len() < TAIL_BYTES + 300);
    }

    #[tokio::test]
    async fn of_programs_of_others_only_the_end_is_kept() {
        let limit = Duration::from_millis(300);
        let error = sh("yes line").only_end().timeout(limit).run().await.unwrap_err();
        // Where it is cut off is nobody's choice, also within a line.
        assert!(error.stderr().contains("line\nline") && error.stderr().len() <= TAIL_BYTES, "{error}");
        assert_eq!(sh("yes x | head -c 9999; printf end").only_end().run().await.unwrap().len(), TAIL_BYTES);
        let error = sh("echo out; exit 1").only_end().run().await.unwrap_err();
        assert_eq!(error.stderr(), "out");
        let error = sh("echo out; echo err >&2; exit 1").only_end().run().await.unwrap_err();
        assert_eq!(error.stderr(), "err");
    }

    #[tokio::test]
    async fn what_it_is_not_to_inherit_it_does_not() {
        let home = sh("printf %s \"${HOME-none}\"").env("HOME", "/x");
        assert_eq!(home.clone().without("HOME").run().await.unwrap(), "none");
        assert_eq!(home.run().await.unwrap(), "/x");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let error = Program::new("no-such-program").run().await.unwrap_err();
        assert_eq!(error.to_string(), "no-such-program is not installed or not in PATH");
    }

    #[tokio::test]
    async fn the_limit_ends_the_program_and_its_children() {
        let directory = std::env::temp_dir().join(format!("program-test-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let error = sh("sleep 1000 & echo $! > child; wait")
            .directory(&directory)
            .timeout(Duration::from_millis(500))
            .run()
            .await
            .unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        let child = std::fs::read_to_string(directory.join("child")).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let stat = PathBuf::from("/proc").join(child.trim()).join("stat");
        for _ in 0..100 {
            // Gone, or a zombie that nobody has collected yet.
            if std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z ")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the child of the stopped program still runs");
    }

    #[test]
    fn the_command_line_reads_like_a_shell_line() {
        assert_eq!(sh("echo 'a b'").to_string(), "sh -c 'echo '\\''a b'\\'''");
    }
}
