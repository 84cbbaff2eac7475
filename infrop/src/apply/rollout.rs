//! The part of an apply that takes nodes to other versions.

use std::{collections::BTreeMap, time::Duration};

use common::{metadata::NodeName, plan::Plan};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use super::snapshot::{Cluster, Host, Snapshot};
use crate::{
    cluster::{AtDeadline, DrainRules, Fate, NodeView},
    desired::{
        self, AtTimeout, ControlPlaneRollout, Day, GroupRollout, Infrastructure, MaintenanceWindow, PoolName,
        ProviderName, Rollout as Wanted, SecretReference, Workers,
    },
    rollout::{
        self, Check, MetricsFile, Probe, Report,
        decide::{Decision, decide},
        policy::{Drain, Limits, Own, Policy},
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
            let group = snapshot.group(host).map(|group| group_name(&group.provider, &group.pool));
            (group.unwrap_or_else(|_| no_group()), target(host))
        };
        Self(snapshot.hosts.iter().map(|(name, host)| (name.clone(), of(host))).collect())
    }

    pub(super) fn of(&self, node: &NodeView) -> (String, Result<Plan, String>) {
        let unknown = || (no_group(), Err("no pool of the document has a compute of that name".to_owned()));
        self.0.get(&node.name).cloned().unwrap_or_else(unknown)
    }
}

/// A group of workers among all: two providers may each have a pool of the same name.
fn group_name(provider: &ProviderName, pool: &PoolName) -> String {
    format!("{provider}/{pool}")
}

/// What is a node of no group is in nobody's way, and not in that of the control planes either.
fn no_group() -> String {
    "(no group)".to_owned()
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
        max_unavailable: _,
        canary: _,
        soak_seconds,
        max_failed,
        patience_minutes,
        zone_label,
        windows,
        drain,
        disruption,
        kubernetes_steps: _,
        checks,
        exclude_from_load_balancers,
        prefer_ready,
    } = &infrastructure.rollout;
    let groups = infrastructure.cluster.workers.iter();
    let limited =
        |group: &Workers| (group_name(&group.provider, &group.pool), limits(infrastructure, &group.rollout));
    let groups = groups.map(limited);
    Policy {
        groups: groups.collect(),
        control_planes: own(infrastructure, &infrastructure.cluster.control_plane.rollout),
        zone_label: zone_label.clone(),
        soak: soak(*soak_seconds),
        max_failed: max_failed.0.into(),
        windows: self::windows(windows),
        drain: self::drain(drain),
        disruption: disruption.clone(),
        patience: SignedDuration::from_mins(i64::from(*patience_minutes)),
        checks: self::checks(infrastructure, checks),
        exclude_from_load_balancers: *exclude_from_load_balancers,
        prefer_ready: *prefer_ready,
    }
}

/// What the document allows for a group of workers.
fn limits(infrastructure: &Infrastructure, group: &GroupRollout) -> Limits {
    let GroupRollout {
        max_unavailable,
        canary,
        order,
        max_failed,
        soak_seconds,
        windows,
        drain,
        disruption,
        checks,
    } = group;
    let all = &infrastructure.rollout;
    // The rest is what control planes may have of their own, too.
    let rest = ControlPlaneRollout {
        soak_seconds: *soak_seconds,
        windows: windows.clone(),
        drain: drain.clone(),
        disruption: disruption.clone(),
        checks: checks.clone(),
    };
    Limits {
        max_unavailable: max_unavailable.unwrap_or(all.max_unavailable),
        canary: canary.unwrap_or(all.canary).0.into(),
        max_failed: max_failed.map(|max_failed| max_failed.0.into()),
        order: *order,
        own: own(infrastructure, &rest),
    }
}

/// What the document has for a group instead of what it has for all.
fn own(infrastructure: &Infrastructure, group: &ControlPlaneRollout) -> Own {
    let ControlPlaneRollout { soak_seconds, windows, drain, disruption, checks } = group;
    Own {
        soak: soak_seconds.map(soak),
        windows: windows.as_deref().map(self::windows),
        drain: drain.as_ref().map(self::drain),
        disruption: disruption.clone(),
        checks: checks.as_deref().map(|checks| self::checks(infrastructure, checks)),
    }
}

fn soak(seconds: u32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(seconds))
}

fn windows(wanted: &[MaintenanceWindow]) -> Vec<Window> {
    wanted.iter().filter_map(window).collect()
}

fn checks(infrastructure: &Infrastructure, wanted: &[desired::Check]) -> Vec<Check> {
    wanted.iter().filter_map(|wanted| check(infrastructure, wanted)).collect()
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
fn drain(wanted: &desired::Drain) -> Drain {
    let desired::Drain { timeout_seconds, at_timeout, unmanaged } = wanted;
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use common::disruption::Disruption;

    use super::*;

    const HEAD: &str = "\
apiVersion: infrop.caos.ch/v1alpha1
kind: Infrastructure
metadata: { name: site }
providers: { here: { lab: { pools: { cp: {}, a: {}, b: {} } } } }
software: { kubernetes: 1.37.1 }
";

    fn of(rest: &str) -> Policy {
        policy(&desired::parse(&format!("{HEAD}{rest}"), Path::new("x.yaml")).unwrap())
    }

    #[test]
    fn a_group_without_words_of_its_own_is_as_all() {
        let policy = of("cluster:
  controlPlane: { provider: here, pool: cp, nodes: 1 }
  workers: [{ provider: here, pool: a, nodes: 2 }]
rollout: { maxUnavailable: 3, canary: 2, soakSeconds: 7, maxFailed: 4 }
");
        let limits =
            Limits { max_unavailable: crate::desired::Amount::Nodes(3), canary: 2, ..Limits::default() };
        assert_eq!(policy.groups, [("here/a".to_owned(), limits)].into());
        assert_eq!(policy.control_planes, Own::default());
        assert_eq!((policy.soak, policy.max_failed), (SignedDuration::from_secs(7), 4));
        let usual = of("cluster: { controlPlane: { provider: here, pool: cp, nodes: 1 } }");
        assert_eq!(usual.soak, SignedDuration::from_secs(10));
        assert_eq!((usual.max_failed, usual.windows.len(), usual.checks.len()), (1, 0, 0));
        assert_eq!(usual.drain.limit, Duration::from_mins(10));
    }

    #[test]
    fn a_group_has_what_the_document_says_of_it() {
        let own = "soakSeconds: 5, windows: [{ start: '22:00', hours: 2 }], drain: { unmanaged: true }, \
                   disruption: { containerd: none }, checks: [{ name: x, command: [./x] }]";
        let policy = of(&format!(
            "cluster:
  controlPlane: {{ provider: here, pool: cp, nodes: 1, rollout: {{ {own} }} }}
  workers:
  - {{ provider: here, pool: a, nodes: 2, rollout: {{ {own}, maxUnavailable: 50%, canary: 1, order: 3, maxFailed: 2 }} }}
  - {{ provider: here, pool: b, nodes: 2, rollout: {{ windows: [], checks: [] }} }}
rollout: {{ maxFailed: 2, windows: [{{ start: '01:00', hours: 1 }}], drain: {{ atTimeout: wait }} }}
"
        ));
        let planes = policy.control_planes.clone();
        assert_eq!(planes.soak, Some(SignedDuration::from_secs(5)));
        assert_eq!(planes.windows.as_ref().map(Vec::len), Some(1));
        // As a whole: that of all waits.
        let drain = planes.drain.clone().unwrap();
        assert_eq!((drain.limit, drain.rules.unmanaged), (Duration::from_mins(10), Fate::Evict));
        assert_eq!((policy.drain.limit, policy.drain.rules.unmanaged), (Duration::MAX, Fate::Refuse));
        assert_eq!(planes.disruption, [("containerd".parse().unwrap(), Disruption::None)].into());
        assert_eq!(planes.checks.as_ref().map(Vec::len), Some(1));
        let expected = Limits {
            max_unavailable: crate::desired::Amount::Percent(50),
            canary: 1,
            max_failed: Some(2),
            order: 3,
            own: planes,
        };
        assert_eq!(policy.groups["here/a"], expected);
        // A pool of another provider may have the same name.
        assert_ne!(
            group_name(&"here".parse().unwrap(), &"a".parse().unwrap()),
            group_name(&"there".parse().unwrap(), &"a".parse().unwrap())
        );
        let own = Own { windows: Some(Vec::new()), checks: Some(Vec::new()), ..Own::default() };
        assert_eq!(policy.groups["here/b"], Limits { own, ..Limits::default() });
    }
}
