//! infrop at work, seen by what it tells programs.

use std::time::Duration;

use anyhow::{Context, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tests::infrastructure::{Ended, Infrastructure};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStderr},
};

/// A busy machine takes its time for each step.
const LIMIT: Duration = Duration::from_mins(8);

/// A run with `--events`.
pub(crate) struct Course {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    /// All that it said on stderr.
    said: String,
}

impl Course {
    pub(crate) fn start(infrastructure: &Infrastructure, words: &[&str]) -> anyhow::Result<Self> {
        let mut child = infrastructure.start(words)?;
        let lines = BufReader::new(child.stderr.take().context("no stderr")?).lines();
        Ok(Self { child, lines, said: String::new() })
    }

    /// Reads on until a step is at a stage.
    pub(crate) async fn until(&mut self, what: &str, stage: &str) -> anyhow::Result<()> {
        self.until_told(what, stage, "").await
    }

    /// Reads on until a step is at a stage, with a word of why.
    pub(crate) async fn until_told(&mut self, what: &str, stage: &str, why: &str) -> anyhow::Result<()> {
        let found = async {
            while let Some(line) = self.lines.next_line().await? {
                self.said += &format!("{line}\n");
                // What is built before a run tells of itself in words.
                let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
                let says = |field: &str, text: &str| event.get(field).and_then(Value::as_str) == Some(text);
                ensure!(event.get("at").is_some(), "an event without a time: {line}");
                let detail = event.get("detail").and_then(Value::as_str).unwrap_or_default();
                if says("what", what) && says("stage", stage) && detail.contains(why) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let found = tokio::time::timeout(LIMIT, found).await.context("it takes too long")??;
        ensure!(found, "{what} never was {stage} {why}:\n{}", self.said);
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let process = self.child.id().context("it has ended")?;
        Ok(kill(Pid::from_raw(i32::try_from(process)?), signal)?)
    }

    /// Reads on until it ends.
    pub(crate) async fn end(mut self) -> anyhow::Result<Ended> {
        let rest = async {
            while let Some(line) = self.lines.next_line().await? {
                self.said += &format!("{line}\n");
            }
            let output = self.child.wait_with_output().await?;
            Ok(Ended { stderr: self.said, ..Ended::of(&output) })
        };
        tokio::time::timeout(LIMIT, rest).await.context("it does not end")?
    }
}
