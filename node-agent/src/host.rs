//! The host as software sees it: files below a root, and programs to run.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use common::state::Reason;
use futures::future::BoxFuture;
use program::Program;

use crate::{failure::Failure, files};

/// Runs programs; tests have one that answers by script.
pub trait Run: Send + Sync {
    /// Runs a program and gives its stdout.
    fn run<'a>(&'a self, program: &'a Program) -> BoxFuture<'a, Result<String, program::Error>>;
}

/// Runs programs on this machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine;

impl Run for Machine {
    fn run<'a>(&'a self, program: &'a Program) -> BoxFuture<'a, Result<String, program::Error>> {
        Box::pin(program.run())
    }
}

/// A host.
#[derive(Clone)]
pub struct Host {
    root: PathBuf,
    runner: Arc<dyn Run>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Host {
    /// A host whose files are below `root`.
    pub fn new(root: impl Into<PathBuf>, runner: Arc<dyn Run>) -> Self {
        Self { root: root.into(), runner }
    }

    /// This machine.
    pub fn this_machine(root: impl Into<PathBuf>) -> Self {
        Self::new(root, Arc::new(Machine))
    }

    /// Where a file of the host is.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// The text of a file of the host, if it is there.
    pub fn read(&self, absolute: impl AsRef<Path>) -> Result<Option<String>, Failure> {
        let path = self.path(absolute);
        files::read(&path).map_err(|error| Failure::io("read", &path, &error))
    }

    /// The text of a file of the host that will be written again with something changed.
    pub fn read_whole(&self, absolute: impl AsRef<Path>) -> Result<Option<String>, Failure> {
        let path = self.path(absolute);
        files::read_whole(&path).map_err(|error| Failure::io("read", &path, &error))
    }

    /// Replaces a file of the host in one step.
    pub fn write(&self, absolute: impl AsRef<Path>, text: &str, mode: u32) -> Result<(), Failure> {
        let path = self.path(absolute);
        files::write(&path, text.as_bytes(), mode).map_err(|error| Failure::io("write", &path, &error))
    }

    /// Removes a file of the host.
    pub fn remove(&self, absolute: impl AsRef<Path>) -> Result<(), Failure> {
        let path = self.path(absolute);
        files::remove(&path).map_err(|error| Failure::io("remove", &path, &error))
    }

    /// Runs a program, whatever its failure means.
    pub async fn run(&self, program: Program) -> Result<String, program::Error> {
        self.runner.run(&program).await
    }

    /// Runs a program whose failure means `reason`.
    pub async fn insist(&self, reason: Reason, program: Program) -> Result<String, Failure> {
        self.run(program).await.map_err(|error| Failure::of(reason, &error))
    }

    /// Runs systemctl.
    pub async fn systemctl(&self, arguments: &[&str]) -> Result<(), Failure> {
        self.insist(Reason::ServiceFailed, Program::new("systemctl").args(arguments)).await.map(drop)
    }
}

#[cfg(test)]
pub(crate) mod fake {
    //! Programs that answer by script, for conversations a real host cannot be made to have.

    use std::{os::unix::process::ExitStatusExt, process::ExitStatus, sync::Mutex};

    use super::{Arc, BoxFuture, Host, Program, Run};

    type Answer = Box<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

    /// A host in a temporary directory, whose programs answer by script and whose command lines are kept.
    pub(crate) struct FakeHost {
        pub(crate) host: Host,
        _root: tempfile::TempDir,
        commands: Arc<Script>,
    }

    struct Script {
        answer: Answer,
        commands: Mutex<Vec<String>>,
    }

    impl FakeHost {
        /// `answer` gets the command line and gives stdout, or stderr of a failure.
        pub(crate) fn new(answer: impl Fn(&str) -> Result<String, String> + Send + Sync + 'static) -> Self {
            let root = tempfile::tempdir().unwrap();
            let commands = Arc::new(Script { answer: Box::new(answer), commands: Mutex::default() });
            Self {
                host: Host::new(root.path(), Arc::clone(&commands) as Arc<dyn Run>),
                _root: root,
                commands,
            }
        }

        /// A host where every program succeeds and says nothing.
        pub(crate) fn silent() -> Self {
            Self::new(|_| Ok(String::new()))
        }

        /// What was run.
        pub(crate) fn commands(&self) -> Vec<String> {
            self.commands.commands.lock().unwrap().clone()
        }

        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.host.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        pub(crate) fn read(&self, path: &str) -> Option<String> {
            self.host.read(path).unwrap()
        }
    }

    impl Run for Script {
        fn run<'a>(&'a self, program: &'a Program) -> BoxFuture<'a, Result<String, program::Error>> {
            let command = program.to_string();
            self.commands.lock().unwrap().push(command.clone());
            let answer = (self.answer)(&command).map_err(|stderr| program::Error::Failed {
                command,
                status: ExitStatus::from_raw(256),
                stderr,
            });
            Box::pin(async move { answer })
        }
    }
}
