//! The running suite in a process of its own, for cases about how a process ends.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::Context;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A process that holds something until it is ended. It says what by one line on stdout.
#[derive(Debug)]
pub struct Holder {
    child: Child,
}

impl Holder {
    /// Starts this very suite with an argument that it knows.
    pub fn start(argument: &str) -> anyhow::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg(argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child })
    }

    /// Its line.
    pub async fn line(&mut self) -> anyhow::Result<String> {
        let stdout = self.child.stdout.take().context("the line was read already")?;
        let read = tokio::task::spawn_blocking(|| BufReader::new(stdout).lines().next());
        Ok(read.await?.context("the holder ended without a word")??)
    }

    /// Sends a signal and waits for its end.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?;
        self.child.wait()?;
        Ok(())
    }

    /// Closes its stdin and waits for its end.
    pub fn close_stdin(&mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Ended already, unless the case failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
