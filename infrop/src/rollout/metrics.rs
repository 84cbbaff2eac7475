//! A rollout in figures, as a file: `node_exporter`'s textfile collector and GitLab's metrics reports read it.

use std::{
    collections::BTreeMap,
    fs::Permissions,
    io::{self, Write as _},
    mem,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use super::{
    assess::Stage,
    decide::{Action, Decision},
    report::Report,
};

/// Between two writes: those who read it do so far less often.
const INTERVAL: Duration = Duration::from_secs(1);

/// Whoever collects it is somebody else.
const MODE: u32 = 0o644;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabels {
    state: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabel {
    step: &'static str,
}

/// What changes when something happens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Events {
    nodes: BTreeMap<(&'static str, &'static str), i64>,
    /// Since when the node waits that has the reason for longest, in seconds of Unix.
    since: BTreeMap<&'static str, i64>,
    changed: u64,
    failures: BTreeMap<&'static str, u64>,
    refused: u64,
}

/// What is known of one rollout, or of several one after the other.
#[derive(Debug, Default)]
struct State {
    events: Events,
    /// Seconds by phase.
    phases: BTreeMap<&'static str, f64>,
    /// Of the rollouts before the one under way: nodes, and seconds by phase.
    before: (u64, BTreeMap<&'static str, f64>),
    /// What stands in the file, and since when.
    written: Option<(Events, Instant)>,
}

/// A file with figures of rollouts.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    state: Mutex<State>,
}

fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Done => "done",
        Stage::Pending => "pending",
        Stage::Do(_) => "working",
        Stage::Wait => "waiting",
        Stage::Stuck => "stuck",
        Stage::Failed => "failed",
    }
}

impl MetricsFile {
    /// Makes the file: that it cannot be written is better known before anything is done.
    pub fn create(path: &Path) -> io::Result<Self> {
        let state = State { written: Some((Events::default(), Instant::now())), ..State::default() };
        write(path, &text(&state))?;
        Ok(Self { path: path.to_owned(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where all nodes are.
    pub fn take(&self, decision: &Decision, report: &Report, now: Timestamp) {
        let mut state = self.state();
        state.events.nodes.clear();
        for node in decision.nodes.values() {
            *state.events.nodes.entry((name(node.stage), node.reason.as_str())).or_default() += 1;
        }
        state.events.since.clear();
        for waiting in report.waiting.values() {
            let since = waiting.since.as_second();
            let oldest = state.events.since.entry(waiting.reason).or_insert(since);
            *oldest = since.min(*oldest);
        }
        let through = report.nodes.values().filter(|node| node.ended.is_some()).count();
        let (changed, mut phases) = state.before.clone();
        state.events.changed = changed + u64::try_from(through).unwrap_or(u64::MAX);
        for (phase, seconds) in report.phases(now) {
            *phases.entry(phase).or_default() += seconds;
        }
        state.phases = phases;
    }

    /// A rollout has ended; another may follow.
    pub(super) fn end_rollout(&self) {
        let mut state = self.state();
        state.before = (state.events.changed, state.phases.clone());
    }

    /// Something that infrop did, or a site's check, failed.
    pub(super) fn count_failure(&self, action: &Action) {
        *self.state().events.failures.entry(action.word()).or_default() += 1;
    }

    /// A budget refused an eviction.
    pub(super) fn count_refusal(&self) {
        self.state().events.refused += 1;
    }

    /// How long until it has to be written; none if it says what is.
    fn due(&self) -> Option<Duration> {
        let state = self.state();
        match &state.written {
            Some((events, _)) if *events == state.events => None,
            Some((_, at)) => Some(INTERVAL.saturating_sub(at.elapsed())),
            None => Some(Duration::ZERO),
        }
    }

    /// Writes it if it is due.
    pub(super) fn write_if_due(&self) {
        if self.due() == Some(Duration::ZERO) {
            self.write();
        }
    }

    /// Waits until it is due.
    pub(super) async fn wait(&self) {
        match self.due() {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
    }

    /// Writes it. That this fails is no reason to leave a rollout half done.
    pub fn write(&self) {
        let mut state = self.state();
        state.written = Some((state.events.clone(), Instant::now()));
        let text = text(&state);
        mem::drop(state);
        if let Err(error) = write(&self.path, &text) {
            tracing::warn!("cannot write metrics to {}: {error}", self.path.display());
        }
    }
}

/// All at once: who reads it never sees half of it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().filter(|directory| *directory != Path::new(""));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".infrop-metrics-").permissions(Permissions::from_mode(MODE));
    let mut file = builder.tempfile_in(directory.unwrap_or(Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// As `OpenMetrics` has it.
fn text(state: &State) -> String {
    let mut registry = Registry::with_prefix("infrop_rollout");
    let State { events: Events { nodes, since, changed, failures, refused }, phases, .. } = state;
    let by_state = Family::<NodeLabels, Gauge>::default();
    for ((state, reason), count) in nodes {
        by_state.get_or_create(&NodeLabels { state, reason }).set(*count);
    }
    registry.register("nodes", "Nodes by state and reason", by_state);
    let by_reason = Family::<ReasonLabel, Gauge>::default();
    for (reason, since) in since {
        by_reason.get_or_create(&ReasonLabel { reason }).set(*since);
    }
    registry.register_with_unit(
        "waiting_since_timestamp",
        "Since when the node waits that has the reason for longest",
        Unit::Seconds,
        by_reason,
    );
    let through = Counter::<u64>::default();
    through.inc_by(*changed);
    registry.register("nodes_changed", "Nodes that were brought to their versions", through);
    let by_step = Family::<StepLabel, Counter>::default();
    for (step, count) in failures {
        by_step.get_or_create(&StepLabel { step }).inc_by(*count);
    }
    registry.register("failures", "Steps that failed, also if they went well later", by_step);
    let by_phase = Family::<PhaseLabel, Counter<f64, AtomicU64>>::default();
    for (phase, seconds) in phases {
        by_phase.get_or_create(&PhaseLabel { phase }).inc_by(*seconds);
    }
    registry.register_with_unit(
        "phase",
        "How long nodes were in a phase, all together",
        Unit::Seconds,
        by_phase,
    );
    let evictions = Counter::<u64>::default();
    evictions.inc_by(*refused);
    registry.register("evictions_refused", "Evictions that a budget refused", evictions);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use jiff::SignedDuration;

    use super::*;
    use crate::rollout::{
        decide::decide,
        tests::{plan, snapshot},
    };

    #[test]
    fn states_changes_failures_phases_and_refusals_are_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("infrop.prom");
        let file = MetricsFile::create(&path).unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with("# EOF\n"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o700, 0o600);
        let mut world = snapshot(&["w-1", "w-2", "w-3"], &plan("1.37.1"));
        let (mut report, start) = (Report::default(), world.now);
        // One goes through, the way it is foreseen; each step takes a second.
        loop {
            let decision = decide(&world);
            report.take(&decision, &Decision::default(), world.now);
            file.take(&decision, &report, world.now);
            if report.nodes.values().any(|node| node.ended.is_some()) {
                break;
            }
            world.now = decision.until.unwrap_or(world.now).max(world.now + SignedDuration::from_secs(1));
            for action in decision.actions {
                crate::rollout::assume(&mut world, &action);
            }
            assert!(world.now < start + SignedDuration::from_mins(5));
        }
        file.count_failure(&Action::LookAtEtcd);
        file.count_refusal();
        file.count_refusal();
        file.write();
        let text = fs::read_to_string(&path).unwrap();
        for line in [
            "infrop_rollout_nodes{state=\"done\",reason=\"UpToDate\"} 1",
            "infrop_rollout_waiting_since_timestamp_seconds{reason=\"CapacityUsed\"} 1794830400",
            "infrop_rollout_nodes_changed_total 1",
            "infrop_rollout_failures_total{step=\"etcd\"} 1",
            "infrop_rollout_phase_seconds_total{phase=\"drain\"} ",
            "infrop_rollout_evictions_refused_total 2",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        // Another rollout after it adds to it.
        file.end_rollout();
        file.take(&decide(&world), &Report::default(), world.now);
        file.write();
        assert!(fs::read_to_string(&path).unwrap().contains("infrop_rollout_nodes_changed_total 1"));
        // Nothing else is left beside it.
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn it_is_written_when_something_happened_and_not_too_often() {
        let directory = tempfile::tempdir().unwrap();
        let file = MetricsFile::create(&directory.path().join("x")).unwrap();
        assert_eq!(file.due(), None);
        file.count_refusal();
        let left = file.due().unwrap();
        assert!(left > Duration::ZERO && left <= INTERVAL, "{left:?}");
        file.write();
        assert_eq!(file.due(), None);
    }

    #[test]
    fn a_place_that_is_none_is_an_error_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        assert!(MetricsFile::create(&directory.path().join("none/x")).is_err());
    }
}
