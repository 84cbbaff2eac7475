//! Benchmarks: figures with targets. What they were and where stands in docs/development/benchmarks.md.

mod agent;
mod apply;
mod by_hand;
mod process;
mod rollout;
mod upgrade;

use std::{fmt, thread, time::Duration};

use anyhow::Context;

use clap::{Subcommand, ValueEnum};
use images::steps::Steps;
use program::Program;
use serde::Serialize;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// node-agent as it is packaged, beside an API server on loopback: reaction, then rest.
    Agent {
        /// How long it is watched at rest.
        #[arg(long, default_value_t = 5)]
        minutes: u64,
        /// How many plans it is given before.
        #[arg(long, default_value_t = 200)]
        plans: usize,
        /// Text for people, json for programs.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// `infrop apply` on lab hosts: a bring-up against the raw steps by hand, and 20 hosts against 5.
    Apply {
        /// How many bring-ups by hand, and as many with infrop; 0 for the second part alone.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Leave out the second part: growing by 5 and by 20 workers.
        #[arg(long)]
        no_growth: bool,
        /// Text for people, json for programs.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// A rolling upgrade of 1 + 4 nodes on lab hosts, one worker at a time and two, against a shell loop.
    Upgrade {
        /// How many times each; a round takes about 20 minutes.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Text for people, json for programs.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// `infrop rollout` of many Nodes without hosts, beside an API server on loopback: what it costs, how soon it reacts.
    Rollout {
        /// How many Nodes; one rollout for each number.
        #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 5000])]
        nodes: Vec<usize>,
        /// How many of them may be away at once.
        #[arg(long, default_value_t = 25)]
        at_once: usize,
        /// infrop of the dev profile: builds faster, runs slower.
        #[arg(long)]
        debug: bool,
        /// Text for people, json for programs.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

/// The form of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// One measured value.
#[derive(Debug, Serialize)]
struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    /// It may not be more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<f64>,
}

impl Figure {
    fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { what: what.into(), value, unit, limit: None }
    }

    fn at_most(mut self, limit: f64) -> Self {
        self.limit = Some(limit);
        self
    }

    fn is_missed(&self) -> bool {
        // A value that is no number meets nothing.
        self.limit.is_some_and(|limit| self.value.is_nan() || self.value > limit)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, unit, limit } = self;
        let verdict = match limit {
            None => String::new(),
            Some(limit) if self.is_missed() => format!("MISSED: at most {}", short(*limit)),
            Some(limit) => format!("at most {}", short(*limit)),
        };
        write!(f, "{:<60} {:>10} {unit:<5} {verdict}", what, short(*value))
    }
}

/// A number without digits that say nothing.
fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::NAN, f64::from)
}

fn mebibytes(bytes: u64) -> f64 {
    // Exact up to 4 TiB, in KiB.
    u32::try_from(bytes / 1024).map_or(f64::NAN, f64::from) / 1024.0
}

/// Milliseconds that a share of sorted durations does not exceed, by the nearest rank; no number of none.
fn percentile(sorted: &[Duration], share: f64) -> f64 {
    let position = (share * count(sorted.len())).ceil().max(1.0);
    let found = sorted.iter().zip(1_u32..).find(|(_, number)| f64::from(*number) >= position);
    found.map_or(f64::NAN, |(duration, _)| seconds(*duration) * 1000.0)
}

/// Measures; false if a target is missed.
pub(crate) async fn run(bench: Bench, steps: &Steps) -> anyhow::Result<bool> {
    let (figures, output) = match bench {
        Bench::Agent { minutes, plans, output } => {
            (agent::run(Duration::from_mins(minutes), plans, steps).await?, output)
        }
        Bench::Apply { rounds, no_growth, output } => (apply::run(rounds, !no_growth, steps).await?, output),
        Bench::Upgrade { rounds, output } => (upgrade::run(rounds, steps).await?, output),
        Bench::Rollout { nodes, at_once, debug, output } => {
            (rollout::run(&nodes, at_once, debug, steps).await?, output)
        }
    };
    let missed = figures.iter().filter(|figure| figure.is_missed()).count();
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&figures)?),
        Output::Text => {
            println!("commit {}, {} cores", commit().await?, thread::available_parallelism()?);
            for figure in &figures {
                println!("{figure}");
            }
            println!("{}", verdict(missed));
        }
    }
    Ok(missed == 0)
}

fn verdict(missed: usize) -> String {
    match missed {
        0 => "all targets are met".to_owned(),
        1 => "1 target is MISSED".to_owned(),
        _ => format!("{missed} targets are MISSED"),
    }
}

/// What is measured, with a mark if it is not as it was committed.
async fn commit() -> anyhow::Result<String> {
    let words = ["describe", "--always", "--dirty", "--exclude=*", "--abbrev=7"];
    let text = Program::new("git").args(words).run().await.context("cannot tell the commit")?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_missed_by_more_and_by_nothing_measured() {
        let figure = |value| Figure::new("x", value, "MiB").at_most(10.0);
        assert!(!figure(10.0).is_missed());
        assert!(figure(10.1).is_missed());
        assert!(figure(f64::NAN).is_missed());
        assert!(!Figure::new("x", 11.0, "MiB").is_missed());
        assert!(figure(11.25).to_string().ends_with("11.25 MiB   MISSED: at most 10"));
    }
}
