//! The part of an apply that takes nodes to other versions.

use std::{collections::BTreeMap, time::Duration};

use common::{metadata::NodeName, plan::Plan};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use super::snapshot::{Cluster, Host, Snapshot};
use crate::{
    cluster::{AtDeadline, DrainRules, Fate, NodeView},
    desired::{
        self, AtTimeout, Day, GroupRollout, Infrastructure, MaintenanceWindow, Rollout as Wanted,
        SecretReference,
    },
    rollout::{
        self, Check, Checks, Drain, MetricsFile, Probe, Report,
        decide::{Decision, decide},
        policy::{Limits, Policy},
        reason::Reason,
        snapshot::Member,
        window::Window,
    },
};

/// What each node is to become, and which group it is of.
#[derive(Debug, Clone)]
pub(super) struct Targets(BTreeMap<NodeName, (String, Result<Plan, String>)>);

impl Targets {
    pub(super) fn new(snapshot: &Snapshot) -> Self {
        let of = |host: &Host| {
            let group = snapshot.group(host).map(|group| group.pool.to_string()).unwrap_or_default();
            (group, target(host))
        };
        Self(snapshot.hosts.iter().map(|(name, host)| (name.clone(), of(host))).collect())
    }

    pub(super) fn of(&self, node: &NodeView) -> (String, Result<Plan, String>) {
        let unknown = || (String::new(), Err("no provider has a compute of that name".to_owned()));
        self.0.get(&node.name).cloned().unwrap_or_else(unknown)
    }
}

/// The plan of a host that has what the plan speaks of.
fn target(host: &Host) -> Result<Plan, String> {
    let silent = || "it does not answer, so nobody could bring it what a plan would name".to_owned();
    let report = host.seen().ok_or_else(silent)?;
    let (digest, plan) = host.wanted.clone().ok_or_else(silent)??;
    if report.delivered.as_ref() == Some(&digest) {
        Ok(plan)
    } else {
        Err("what a plan would name was not brought to it".to_owned())
    }
}

/// A rollout of the cluster as it was seen.
pub fn plan(infrastructure: &Infrastructure, snapshot: &Snapshot) -> Option<rollout::snapshot::Snapshot> {
    let Cluster::There(view) = &snapshot.cluster else { return None };
    let (targets, now) = (Targets::new(snapshot), Timestamp::now());
    let members = view.nodes.values().map(|node| {
        let (group, target) = targets.of(node);
        (node.name.clone(), Member::new(node.clone(), group, target, now))
    });
    Some(rollout::snapshot::Snapshot::new(policy(infrastructure), members.collect(), now))
}

/// Whether a rollout would do something, or wait for something.
pub(super) fn is_due(infrastructure: &Infrastructure, snapshot: &Snapshot) -> bool {
    plan(infrastructure, snapshot).is_some_and(|snapshot| decide(&snapshot).is_moving())
}

/// Figures of a cluster in which there is nothing to roll out.
pub(super) fn measure(infrastructure: &Infrastructure, snapshot: &Snapshot, metrics: &MetricsFile) {
    if let Some(snapshot) = plan(infrastructure, snapshot) {
        metrics.take(&decide(&snapshot), &Report::default(), snapshot.now);
    }
}

/// The nodes that are not as they should be and will not be by themselves, and why.
pub fn blocked(infrastructure: &Infrastructure, snapshot: &Snapshot) -> BTreeMap<NodeName, String> {
    let decision = plan(infrastructure, snapshot).map(|snapshot| decide(&snapshot));
    let left = decision.iter().flat_map(Decision::left);
    left.filter(|(_, node)| node.reason != Reason::TargetUnknown)
        .map(|(name, node)| (name.clone(), node.to_string()))
        .collect()
}

/// What the document allows.
pub(super) fn policy(infrastructure: &Infrastructure) -> Policy {
    let Wanted {
        max_unavailable,
        canary,
        soak_seconds,
        max_failed,
        patience_minutes,
        zone_label,
        windows,
        drain: _,
        disruption,
        kubernetes_steps: _,
        checks,
        exclude_from_load_balancers,
        prefer_ready,
    } = &infrastructure.rollout;
    let groups = infrastructure.cluster.workers.iter().map(|workers| {
        let own: &GroupRollout = &workers.rollout;
        let limits = Limits {
            max_unavailable: own.max_unavailable.unwrap_or(*max_unavailable),
            canary: own.canary.unwrap_or(*canary).0.into(),
        };
        (workers.pool.to_string(), limits)
    });
    let all =
        |checks: &[desired::Check]| checks.iter().filter_map(|one| check(infrastructure, one)).collect();
    let own = infrastructure.cluster.workers.iter().filter_map(|workers| {
        let checks = workers.rollout.checks.as_ref()?;
        Some((workers.pool.to_string(), all(checks)))
    });
    let checks = Checks { all: all(checks), groups: own.collect() };
    Policy {
        groups: groups.collect(),
        zone_label: zone_label.clone(),
        soak: SignedDuration::from_secs(i64::from(*soak_seconds)),
        max_failed: max_failed.0.into(),
        windows: windows.iter().filter_map(window).collect(),
        disruption: disruption.clone(),
        patience: SignedDuration::from_mins(i64::from(*patience_minutes)),
        checks,
        exclude_from_load_balancers: *exclude_from_load_balancers,
        prefer_ready: *prefer_ready,
    }
}

/// The document was checked, so its commands name programs.
fn check(infrastructure: &Infrastructure, wanted: &desired::Check) -> Option<Check> {
    let desired::Check { name, probe, timeout_seconds } = wanted;
    let probe = match probe {
        desired::Probe::Job(file) => Probe::Job(file.clone()),
        desired::Probe::Command(words) => {
            let (program, arguments) = words.split_first()?;
            let secret = match &infrastructure.ssh.private_key {
                Some(SecretReference::Environment(variable)) => Some(variable.clone()),
                Some(SecretReference::File(_) | SecretReference::Secret(_)) | None => None,
            };
            Probe::Command {
                program: program.clone(),
                arguments: arguments.to_vec(),
                without: secret.into_iter().collect(),
            }
        }
    };
    Some(Check { name: name.clone(), probe, limit: Duration::from_secs((*timeout_seconds).into()) })
}

/// The document was checked, so its times and zones are ones.
fn window(wanted: &MaintenanceWindow) -> Option<Window> {
    use jiff::civil::Weekday;
    let MaintenanceWindow { days, start, hours, time_zone } = wanted;
    let day = |day: &Day| match day {
        Day::Monday => Weekday::Monday,
        Day::Tuesday => Weekday::Tuesday,
        Day::Wednesday => Weekday::Wednesday,
        Day::Thursday => Weekday::Thursday,
        Day::Friday => Weekday::Friday,
        Day::Saturday => Weekday::Saturday,
        Day::Sunday => Weekday::Sunday,
    };
    Some(Window {
        days: days.iter().map(day).collect(),
        start: start.parse().ok()?,
        length: SignedDuration::from_hours(i64::from(*hours)),
        zone: TimeZone::get(time_zone).ok()?,
    })
}

/// How the document wants pods to go.
pub fn drain(rollout: &Wanted) -> Drain {
    let desired::Drain { timeout_seconds, at_timeout, unmanaged } = &rollout.drain;
    let rules = DrainRules {
        unmanaged: if *unmanaged { Fate::Evict } else { Fate::Refuse },
        at_deadline: match at_timeout {
            AtTimeout::Delete => AtDeadline::Delete,
            AtTimeout::Wait | AtTimeout::Skip => AtDeadline::GiveUp,
        },
        ..DrainRules::default()
    };
    let limit = match at_timeout {
        // For as long as the whole run may take.
        AtTimeout::Wait => Duration::MAX,
        AtTimeout::Skip | AtTimeout::Delete => Duration::from_secs((*timeout_seconds).into()),
    };
    Drain { rules, limit }
}
