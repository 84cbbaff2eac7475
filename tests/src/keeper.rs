//! Processes that end with the test: see `keeper/main.rs`.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, bail};

/// A directory and processes, both gone when this is dropped or this process is, however it ends.
#[derive(Debug)]
pub(crate) struct Keeper {
    directory: PathBuf,
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Keeper {
    pub(crate) fn start(prefix: &str) -> anyhow::Result<Self> {
        let this = std::env::current_exe()?;
        let program = this.ancestors().map(|directory| directory.join("keeper")).find(|path| path.is_file());
        let program = program.context("the keeper program is not built: run the tests with cargo")?;
        let directory = tempfile::Builder::new().prefix(prefix).tempdir()?.keep();
        let mut child =
            Command::new(program).arg(&directory).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("the keeper has no stdout")?);
        Ok(Self { directory, child, commands, answers })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts a program with its output in `log`; gives its process number.
    pub(crate) fn run(&mut self, log: &Path, program: &Path, arguments: &[String]) -> anyhow::Result<u32> {
        let (log, program) = (log.to_string_lossy().into_owned(), program.to_string_lossy().into_owned());
        let words: Vec<&String> = [&log, &program].into_iter().chain(arguments).collect();
        let line = serde_json::to_string(&words)? + "\n";
        self.commands.as_mut().context("the keeper was ended")?.write_all(line.as_bytes())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        match answer.trim().parse() {
            Ok(id) => Ok(id),
            Err(_) => bail!("cannot start {program}: {}", answer.trim()),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.commands.take());
        // When it has ended, so has everything it kept.
        if let Err(error) = self.child.wait() {
            eprintln!("the keeper of {} is lost: {error}", self.directory.display());
        }
    }
}
