//! Prometheus metrics: phase, reason, attempts, last success, durations, failures.

use std::time::Duration;

use common::{
    software::SoftwareName,
    state::{Phase, Reason, State},
};
use jiff::Timestamp;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

/// From a written file to `kubeadm upgrade` of a control plane.
const BUCKETS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SoftwareLabel {
    software: String,
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    phase: Family<PhaseLabel, Gauge>,
    reason: Family<ReasonLabel, Gauge>,
    attempt: Gauge,
    last_success: Gauge,
    ensure: Family<SoftwareLabel, Histogram>,
    failures: Family<ReasonLabel, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("node_agent");
        let phase = Family::default();
        let reason = Family::default();
        let attempt = Gauge::default();
        let last_success = Gauge::default();
        let ensure = Family::<SoftwareLabel, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        let failures = Family::default();
        registry.register(
            "build",
            "Version of node-agent",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register("phase", "1 for the phase the agent is in, 0 for the others", phase.clone());
        registry.register("reason", "1 for the reason of the phase", reason.clone());
        registry.register("attempt", "Attempt of the plan under way, 0 without one", attempt.clone());
        registry.register_with_unit(
            "last_success_timestamp",
            "When a plan was last finished",
            Unit::Seconds,
            last_success.clone(),
        );
        registry.register_with_unit(
            "ensure_duration",
            "How long changes of a software took",
            Unit::Seconds,
            ensure.clone(),
        );
        registry.register("failures", "Failed steps by reason", failures.clone());
        Self { registry, phase, reason, attempt, last_success, ensure, failures }
    }
}

impl Metrics {
    /// The agent is in another state.
    pub fn set_state(&self, state: &State) {
        for phase in Phase::ALL {
            let label = PhaseLabel { phase: phase.as_str() };
            self.phase.get_or_create(&label).set(i64::from(*phase == state.phase));
        }
        self.reason.clear();
        self.reason.get_or_create(&ReasonLabel { reason: state.reason.as_str() }).set(1);
        self.attempt.set(i64::from(state.attempt));
    }

    /// A plan was finished.
    pub fn set_last_success(&self, at: Option<Timestamp>) {
        self.last_success.set(at.map_or(0, Timestamp::as_second));
    }

    /// A change took this long.
    pub fn observe_change(&self, software: &SoftwareName, took: Duration) {
        let label = SoftwareLabel { software: software.to_string() };
        self.ensure.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// A step failed.
    pub fn count_failure(&self, reason: Reason) {
        self.failures.get_or_create(&ReasonLabel { reason: reason.as_str() }).inc();
    }

    /// The text Prometheus reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_reason_attempts_durations_and_failures_are_there() {
        let metrics = Metrics::default();
        let state = State {
            phase: Phase::Retrying,
            reason: Reason::PackageFailed,
            message: String::new(),
            since: Timestamp::UNIX_EPOCH,
            attempt: 2,
            boot_id: String::new(),
            agent_version: String::new(),
        };
        metrics.set_state(&state);
        metrics.count_failure(Reason::PackageFailed);
        metrics.observe_change(&"kubelet".parse().unwrap(), Duration::from_secs(2));
        metrics.set_last_success(Timestamp::from_second(7).ok());
        let text = metrics.text();
        for line in [
            "node_agent_phase{phase=\"Retrying\"} 1",
            "node_agent_phase{phase=\"Idle\"} 0",
            "node_agent_reason{reason=\"PackageFailed\"} 1",
            "node_agent_attempt 2",
            "node_agent_last_success_timestamp_seconds 7",
            "node_agent_failures_total{reason=\"PackageFailed\"} 1",
            "node_agent_ensure_duration_seconds_count{software=\"kubelet\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
