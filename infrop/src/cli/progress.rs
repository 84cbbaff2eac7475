//! Progress of a run on stderr: for people lines, and on a terminal a moving line for each thing under way; for programs
//! a JSON object per line.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{IsTerminal, Write},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use common::metadata::NodeName;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::json;

use super::output::Output;
use crate::{
    apply::{Event, Of, Progress, Stage},
    rollout::MetricsFile,
};

/// How often moving lines move.
const TICK: Duration = Duration::from_millis(200);

/// How it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// For people who read it later.
    Text,
    /// For people who watch.
    Moving,
    /// For programs.
    Json,
}

impl Style {
    /// What suits stderr.
    pub(super) fn for_people() -> Self {
        if std::io::stderr().is_terminal() { Self::Moving } else { Self::Text }
    }
}

/// How a command tells of what it does and of how it ended.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Telling {
    /// The form of what is said at the end.
    #[arg(short, long, value_enum, default_value = "text")]
    pub(super) output: Output,

    /// Show progress as one JSON object per line.
    #[arg(long)]
    events: bool,
}

impl Telling {
    pub(super) fn lines(self) -> Lines {
        Lines::new(if self.events { Style::Json } else { Style::for_people() })
    }
}

/// The file for figures, if one was asked for.
pub(super) fn metrics_file(path: Option<&Path>) -> anyhow::Result<Option<MetricsFile>> {
    let create = |path: &Path| {
        MetricsFile::create(path).with_context(|| format!("cannot write metrics to {}", path.display()))
    };
    path.map(create).transpose()
}

/// Lines on stderr.
#[derive(Debug)]
pub(super) struct Lines {
    style: Style,
    started: Instant,
    /// The last reason of each, so that it is said once.
    said: RefCell<BTreeMap<String, String>>,
    /// The moving lines.
    screen: MultiProgress,
    moving: RefCell<BTreeMap<String, ProgressBar>>,
    /// How much is done.
    bar: RefCell<Option<ProgressBar>>,
}

impl Lines {
    pub(super) fn new(style: Style) -> Self {
        Self {
            style,
            started: Instant::now(),
            said: RefCell::default(),
            screen: MultiProgress::new(),
            moving: RefCell::default(),
            bar: RefCell::default(),
        }
    }

    /// Takes moving lines away, also of what was given up.
    pub(super) fn end(&self) {
        self.moving.borrow_mut().clear();
        self.bar.borrow_mut().take();
        // A terminal that went away is no reason to fail.
        let _ = self.screen.clear();
    }

    /// Does one thing that is not a run's own, and shows it in the same form.
    pub(super) async fn step<T>(
        &self,
        host: &NodeName,
        what: String,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let event = |stage| self.event(&Event { host: Some(host.clone()), what: what.clone(), stage });
        event(Stage::Started);
        let started = Instant::now();
        let result = work.await;
        event(match &result {
            Ok(_) => Stage::Done(started.elapsed()),
            Err(error) => Stage::Failed { why: format!("{error:#}"), last: true },
        });
        result
    }

    /// Says why something takes long.
    pub(super) fn note(&self, host: &NodeName, what: &str, why: String) {
        self.event(&Event { host: Some(host.clone()), what: what.to_owned(), stage: Stage::Note(why) });
    }

    /// Whether this is new for the subject.
    fn is_news(&self, subject: &str, text: &str) -> bool {
        self.said.borrow_mut().insert(subject.to_owned(), text.to_owned()).as_deref() != Some(text)
    }

    fn print(&self, host: Option<&NodeName>, what: &str, stage: &str, detail: Option<&str>) {
        let line = match self.style {
            Style::Json => {
                let at = Timestamp::now().to_string();
                json!({ "at": at, "host": host, "what": what, "stage": stage, "detail": detail }).to_string()
            }
            Style::Text | Style::Moving => {
                let at = self.started.elapsed().as_secs_f64();
                let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
                format!("{at:7.1} s  {what} {stage}{detail}")
            }
        };
        // A reader that went away is no reason to stop in the middle.
        self.screen.suspend(|| drop(writeln!(std::io::stderr(), "{line}")));
    }

    /// Begins a moving line, or says on it why it takes long.
    fn set_moving(&self, what: &str, why: &str) {
        let mut moving = self.moving.borrow_mut();
        let line = moving.entry(what.to_owned()).or_insert_with(|| {
            let line = self.screen.add(ProgressBar::new_spinner());
            // The template is a constant; the plain form would do, too.
            if let Ok(style) = ProgressStyle::with_template("{elapsed:>9}  {spinner} {wide_msg}") {
                line.set_style(style);
            }
            line.enable_steady_tick(TICK);
            line
        });
        let why = why.lines().next().unwrap_or_default();
        line.set_message(if why.is_empty() { what.to_owned() } else { format!("{what}: {why}") });
    }

    fn end_moving(&self, what: &str) {
        if let Some(line) = self.moving.borrow_mut().remove(what) {
            line.finish_and_clear();
        }
    }
}

impl Progress for Lines {
    fn event(&self, event: &Event) {
        let Event { host, what, stage } = event;
        let host = host.as_ref();
        match stage {
            Stage::Started if self.style == Style::Moving => self.set_moving(what, ""),
            Stage::Started => self.print(host, what, "...", None),
            Stage::Note(text) if self.style == Style::Moving => self.set_moving(what, text),
            Stage::Note(text) => {
                if self.is_news(what, text) {
                    self.print(host, what, "...", Some(text));
                }
            }
            Stage::Done(took) => {
                self.end_moving(what);
                self.print(host, what, "done", Some(&format!("{:.1} s", took.as_secs_f64())));
            }
            Stage::Failed { why, last } => {
                self.end_moving(what);
                self.print(host, what, if *last { "failed" } else { "failed, trying again" }, Some(why));
            }
        }
    }

    fn waiting(&self, reasons: &BTreeMap<NodeName, String>) {
        for (name, why) in reasons {
            if self.is_news(&format!("waiting {name}"), why) {
                self.print(Some(name), name.as_str(), "waits", Some(why));
            }
        }
    }

    fn reached(&self, done: usize, all: usize, of: Of) {
        if self.style != Style::Moving || all == 0 {
            return;
        }
        let mut bar = self.bar.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            // Above the lines of what is under way.
            let bar = self.screen.insert(0, ProgressBar::new(0));
            if let Ok(style) = ProgressStyle::with_template("{elapsed:>9}  [{bar:40}] {pos} of {len} {msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(TICK);
            bar
        });
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        bar.set_length(number(all.max(done)));
        bar.set_position(number(done));
        bar.set_message(match of {
            Of::Steps => "steps",
            Of::Nodes => "nodes have their versions",
        });
    }
}
