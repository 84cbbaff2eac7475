//! Progress of a run on stderr: lines for people, or a JSON object per line for programs.

use std::{cell::RefCell, collections::BTreeMap, time::Instant};

use common::metadata::NodeName;
use jiff::Timestamp;
use serde_json::json;

use crate::apply::{Event, Progress, Stage};

/// How it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Lines on stderr.
#[derive(Debug)]
pub(super) struct Lines {
    style: Style,
    started: Instant,
    /// The last reason of each, so that it is said once.
    said: RefCell<BTreeMap<String, String>>,
}

impl Lines {
    pub(super) fn new(style: Style) -> Self {
        Self { style, started: Instant::now(), said: RefCell::default() }
    }

    /// Whether this is new for the subject.
    fn is_news(&self, subject: &str, text: &str) -> bool {
        self.said.borrow_mut().insert(subject.to_owned(), text.to_owned()).as_deref() != Some(text)
    }

    fn print(&self, host: Option<&NodeName>, what: &str, stage: &str, detail: Option<&str>) {
        match self.style {
            Style::Json => {
                let at = Timestamp::now().to_string();
                eprintln!(
                    "{}",
                    json!({ "at": at, "host": host, "what": what, "stage": stage, "detail": detail })
                );
            }
            Style::Text => {
                let at = self.started.elapsed().as_secs_f64();
                let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
                eprintln!("{at:7.1} s  {what} {stage}{detail}");
            }
        }
    }
}

impl Progress for Lines {
    fn event(&self, event: &Event) {
        let Event { host, what, stage } = event;
        let host = host.as_ref();
        match stage {
            Stage::Started => self.print(host, what, "...", None),
            Stage::Note(text) => {
                if self.is_news(what, text) {
                    self.print(host, what, "...", Some(text));
                }
            }
            Stage::Done(took) => {
                self.print(host, what, "done", Some(&format!("{:.1} s", took.as_secs_f64())));
            }
            Stage::Failed { why, last } => {
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
}
