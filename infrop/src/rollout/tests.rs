//! Decisions, as tables.

mod groups;
mod options;
mod signs;

use std::{collections::BTreeMap, time::Duration};

use common::{
    annotations::{self, CHANGES_ALLOWED, CORDONED_BY, PAUSED, PERMITTED_PLAN, PLAN_OBSERVED, READY, STATE},
    plan::Plan,
    state::{Phase, Reason as AgentReason, State},
};
use jiff::{SignedDuration, Timestamp};

use super::{
    assess::{Stage, Verb},
    assume,
    decide::{Action, Decision, decide, go_on},
    foresee,
    policy::{Drain, Limits, Own, Policy},
    reach,
    reason::Reason,
    saved::{Occasion, SAVED},
    snapshot::{Etcd, Member, Snapshot},
};
use crate::{
    cluster::{DrainRules, NodeView},
    desired::Amount,
};

/// A Node that is Ready.
pub(crate) fn node(name: &str, control_plane: bool) -> NodeView {
    NodeView {
        name: name.parse().unwrap(),
        uid: String::new(),
        resource_version: "1".into(),
        ready: Ok(()),
        since: None,
        cordoned: false,
        taints: Vec::new(),
        control_plane,
        kubelet: "v1.36.4".into(),
        boot_id: "boot".into(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

fn now() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

pub(crate) fn plan(version: &str) -> Plan {
    let versions = ["kubeadm", "kubelet", "kubectl"].map(|name| (name, version));
    Plan::new(versions.map(|(name, version)| (name.parse().unwrap(), version.parse().unwrap())).into())
}

/// Nodes at 1.36.4, control planes being called `cp-…`, that are to have another plan.
pub(crate) fn snapshot(names: &[&str], target: &Plan) -> Snapshot {
    let members = names.iter().map(|name| {
        let mut node = node(name, name.starts_with("cp-"));
        reach(&mut node, &plan("1.36.4"), now() - SignedDuration::from_hours(1));
        let member = Member::new(node, "w".into(), Ok(target.clone()), now());
        (member.node.name.clone(), member)
    });
    Snapshot::new(policy(), members.collect(), now())
}

pub(super) fn policy() -> Policy {
    Policy {
        groups: [("w".to_owned(), Limits::default())].into(),
        control_planes: Own::default(),
        zone_label: "zone".into(),
        soak: SignedDuration::from_secs(10),
        max_failed: 1,
        windows: Vec::new(),
        drain: Drain { rules: DrainRules::default(), limit: Duration::from_mins(10) },
        disruption: BTreeMap::new(),
        patience: SignedDuration::from_mins(30),
        checks: Vec::new(),
        exclude_from_load_balancers: false,
        prefer_ready: false,
    }
}

fn change(snapshot: &mut Snapshot, name: &str, change: impl FnOnce(&mut NodeView)) {
    let member = snapshot.members.get_mut(&name.parse().unwrap()).unwrap();
    let mut node = member.node.clone();
    change(&mut node);
    member.update(node, snapshot.now);
}

pub(super) fn annotate(snapshot: &mut Snapshot, name: &str, key: &str, value: &str) {
    change(snapshot, name, |node| drop(node.annotations.insert(key.to_owned(), value.to_owned())));
}

/// The agent speaks of the target.
fn says(snapshot: &mut Snapshot, name: &str, phase: Phase, reason: AgentReason) {
    let target = snapshot.members[&name.parse().unwrap()].target.clone().unwrap();
    let state = State {
        phase,
        reason,
        message: "m".into(),
        since: snapshot.now,
        attempt: 1,
        boot_id: "boot".into(),
        agent_version: "0.1.0".into(),
    };
    change(snapshot, name, |node| {
        node.annotations.extend(annotations::write_plan(&target));
        node.annotations.insert(PLAN_OBSERVED.into(), target.id().to_string());
        node.annotations.insert(READY.into(), "false".into());
        node.annotations.insert(STATE.into(), serde_json::to_string(&state).unwrap());
    });
}

fn actions(snapshot: &Snapshot) -> Vec<String> {
    let actions = decide(snapshot).actions;
    // A node that goes on by itself does what it does among all others.
    let own = |action: &&Action| matches!(action, Action::Step(..) | Action::Fence(_));
    assert_eq!(
        go_on(snapshot, snapshot.members.keys()),
        actions.iter().filter(own).cloned().collect::<Vec<_>>()
    );
    actions.iter().map(ToString::to_string).collect()
}

fn reason(decision: &Decision, name: &str) -> Reason {
    decision.nodes[&name.parse().unwrap()].reason
}

fn stage(snapshot: &Snapshot, name: &str) -> (Stage, Reason) {
    let node = &decide(snapshot).nodes[&name.parse().unwrap()];
    (node.stage, node.reason)
}

/// That etcd's data was saved.
fn saved() -> String {
    Occasion::Kubernetes("1.37.1".parse().unwrap()).mark(now())
}

fn voters(snapshot: &mut Snapshot, wells: &[(&str, bool)]) {
    let voters = wells.iter().map(|(name, well)| ((*name).to_owned(), *well)).collect();
    snapshot.etcd.take(Etcd::Voters(voters), snapshot.now);
}

#[test]
fn the_whole_way_of_a_cluster() {
    let snapshot = snapshot(&["cp-1", "cp-2", "cp-3", "w-1", "w-2"], &plan("1.37.1"));
    let (steps, end, _) = foresee(&snapshot);
    let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let of = |name: &str| {
        let parts = ["permit changes on", "cordon", "drain", "write the plan of", "check", "uncordon"];
        parts.iter().map(|part| format!("{part} {name}")).collect::<Vec<_>>()
    };
    let position = |step: &str| steps.iter().position(|known| known == step).unwrap();
    assert_eq!(steps[..2], ["look at etcd", "save etcd's data on cp-1 before 1.37.1"]);
    for name in ["cp-1", "cp-2", "cp-3", "w-1", "w-2"] {
        assert!(of(name).windows(2).all(|pair| position(&pair[0]) < position(&pair[1])), "{steps:?}");
    }
    for pair in ["cp-1", "cp-2", "cp-3", "w-1", "w-2"].windows(2) {
        let (ended, begun) = (format!("uncordon {}", pair[0]), format!("permit changes on {}", pair[1]));
        assert!(position(&ended) < position(&begun), "{steps:?}");
    }
    assert_eq!(steps.iter().filter(|step| step.starts_with("save")).count(), 1);
    assert!(end.nodes.values().all(|node| node.stage == Stage::Done && !node.away), "{end:?}");
}

#[test]
fn what_has_its_versions_is_left_alone() {
    let mut snapshot = snapshot(&["cp-1", "w-1"], &plan("1.36.4"));
    assert_eq!(actions(&snapshot), [""; 0]);
    assert!(!decide(&snapshot).is_moving());
    // Also if nobody ever wrote a plan.
    change(&mut snapshot, "w-1", |node| {
        node.annotations.retain(|key, _| key.contains("current-version"));
    });
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Done, Reason::UpToDate));
}

#[test]
fn another_plan_for_the_same_versions_needs_no_permit() {
    let mut snapshot = snapshot(&["w-1"], &plan("1.36.4"));
    change(&mut snapshot, "w-1", |node| {
        let mut more = plan("1.36.4");
        more.desired.insert("haproxy".parse().unwrap(), "3".parse().unwrap());
        node.annotations.extend(annotations::write_plan(&more));
    });
    assert_eq!(actions(&snapshot), ["write the plan of w-1"]);
}

#[test]
fn a_plan_that_the_agent_has_not_seen_is_no_reason_for_a_permit() {
    let mut target = plan("1.36.4");
    target.desired.insert("images".parse().unwrap(), "sha256:00".parse().unwrap());
    let mut snapshot = snapshot(&["w-1"], &target);
    change(&mut snapshot, "w-1", |node| node.annotations.extend(annotations::write_plan(&target)));
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Wait, Reason::AgentWorking));
    // It looked, and wants to change something.
    says(&mut snapshot, "w-1", Phase::Waiting, AgentReason::NoPermit);
    assert_eq!(actions(&snapshot), ["permit changes on w-1"]);
}

#[test]
fn only_changes_that_disturb_pods_drain() {
    for (software, drains) in
        [("sysctl", false), ("containerd-config", false), ("kubelet", true), ("unknown", true)]
    {
        let mut target = plan("1.36.4");
        target.desired.insert(software.parse().unwrap(), "1.36.5".parse().unwrap());
        let mut snapshot = snapshot(&["w-1", "w-2"], &target);
        annotate(&mut snapshot, "w-1", CHANGES_ALLOWED, "true");
        let expected = if drains { "cordon w-1" } else { "write the plan of w-1" };
        assert!(actions(&snapshot).contains(&expected.to_owned()), "{software}: {:?}", actions(&snapshot));
    }
    // A site that knows better.
    let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.36.5"));
    for name in ["kubeadm", "kubelet", "kubectl"] {
        snapshot.policy.disruption.insert(name.parse().unwrap(), common::disruption::Disruption::Restart);
    }
    annotate(&mut snapshot, "w-1", CHANGES_ALLOWED, "true");
    assert_eq!(actions(&snapshot), ["write the plan of w-1"]);
}

/// Someone changed something on the host by hand: the permit would let its agent put that right at once.
#[test]
fn a_node_that_is_not_at_its_plan_is_emptied_before_the_permit_is_for_it() {
    let target = plan("1.36.5");
    let mut snapshot = snapshot(&["w-1", "w-2"], &target);
    change(&mut snapshot, "w-1", |node| {
        node.annotations.extend(annotations::write_plan(&target));
        node.annotations.insert(PLAN_OBSERVED.into(), target.id().to_string());
        node.annotations.insert(READY.into(), "false".into());
    });
    annotate(&mut snapshot, "w-1", CHANGES_ALLOWED, "true");
    annotate(&mut snapshot, "w-1", PERMITTED_PLAN, "");
    assert_eq!(actions(&snapshot), ["cordon w-1"]);
    annotate(&mut snapshot, "w-1", PERMITTED_PLAN, target.id().as_str());
    assert_eq!(stage(&snapshot, "w-1").0, Stage::Wait);
}

#[test]
fn a_node_whose_agent_is_in_the_middle_counts_also_without_a_permit() {
    let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.36.5"));
    assert_eq!(actions(&snapshot), ["permit changes on w-1"]);
    for (phase, free) in [
        (Phase::Changing, false),
        (Phase::Rebooting, false),
        (Phase::Verifying, false),
        (Phase::Waiting, true),
    ] {
        says(&mut snapshot, "w-1", phase, AgentReason::ChangingSoftware);
        annotate(&mut snapshot, "w-1", PAUSED, "look at it");
        let expected: &[&str] = if free { &["permit changes on w-2"] } else { &[] };
        assert_eq!(actions(&snapshot), expected, "{phase}");
        // Its pods do not go: nothing is given back while a person has it.
        let member = snapshot.members.get_mut(&"w-1".parse().unwrap()).unwrap();
        member.skipped = Some("held".into());
        annotate(&mut snapshot, "w-1", CORDONED_BY, "rollout/x");
        change(&mut snapshot, "w-1", |node| node.cordoned = true);
        assert_eq!(stage(&snapshot, "w-1"), (Stage::Stuck, Reason::Paused), "{phase}");
        // And not in the middle, when it is too late.
        change(&mut snapshot, "w-1", |node| drop(node.annotations.remove(PAUSED)));
        let expected = if free { Stage::Do(Verb::Uncordon) } else { Stage::Wait };
        assert_eq!(stage(&snapshot, "w-1").0, expected, "{phase}");
        snapshot.members.get_mut(&"w-1".parse().unwrap()).unwrap().skipped = None;
        change(&mut snapshot, "w-1", |node| {
            node.cordoned = false;
            node.annotations.remove(CORDONED_BY);
        });
    }
}

#[test]
fn where_pods_have_no_other_place_they_stay() {
    let mut snapshot = snapshot(&["cp-1"], &plan("1.37.1"));
    annotate(&mut snapshot, "cp-1", CHANGES_ALLOWED, "true");
    assert_eq!(actions(&snapshot), ["write the plan of cp-1"]);
}

#[test]
fn capacity_counts_whoever_is_away_for_whatever_reason() {
    type Away = fn(&mut NodeView);
    let away: [(&str, Away); 3] = [
        ("cordoned", |node| node.cordoned = true),
        ("not ready", |node| node.ready = Err("no".into())),
        ("permitted", |node| drop(node.annotations.insert(CHANGES_ALLOWED.into(), "true".into()))),
    ];
    for (what, away) in away {
        let mut snapshot = snapshot(&["w-1", "w-2", "w-3"], &plan("1.37.1"));
        change(&mut snapshot, "w-2", away);
        let begun = actions(&snapshot).iter().any(|action| action == "permit changes on w-1");
        assert!(!begun, "{what}");
        assert_eq!(reason(&decide(&snapshot), "w-1"), Reason::CapacityUsed, "{what}");
        snapshot
            .policy
            .groups
            .insert("w".into(), Limits { max_unavailable: Amount::Nodes(2), ..Limits::default() });
        assert!(actions(&snapshot).contains(&"permit changes on w-1".to_owned()), "{what}");
    }
    // One that is away already costs nothing.
    let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
    change(&mut snapshot, "w-2", |node| node.cordoned = true);
    assert_eq!(actions(&snapshot), ["permit changes on w-2"]);
}

#[test]
fn as_many_are_begun_at_once_as_may_be_away() {
    let names = ["w-1", "w-2", "w-3", "w-4", "w-10"];
    let mut snapshot = snapshot(&names, &plan("1.37.1"));
    for (amount, expected) in [(Amount::Nodes(1), 1), (Amount::Percent(40), 2), (Amount::Percent(1), 1)] {
        snapshot.policy.groups.insert("w".into(), Limits { max_unavailable: amount, ..Limits::default() });
        assert_eq!(actions(&snapshot).len(), expected, "{amount}");
    }
    snapshot
        .policy
        .groups
        .insert("w".into(), Limits { max_unavailable: Amount::Nodes(9), canary: 2, ..Limits::default() });
    assert_eq!(actions(&snapshot), ["permit changes on w-1", "permit changes on w-2"]);
    assert_eq!(reason(&decide(&snapshot), "w-10"), Reason::CanaryFirst);
}

#[test]
fn zones_go_one_after_the_other() {
    let mut snapshot = snapshot(&["w-1", "w-2", "w-3"], &plan("1.37.1"));
    snapshot
        .policy
        .groups
        .insert("w".into(), Limits { max_unavailable: Amount::Nodes(3), ..Limits::default() });
    for (name, zone) in [("w-1", "b"), ("w-2", "a"), ("w-3", "b")] {
        change(&mut snapshot, name, |node| drop(node.labels.insert("zone".into(), zone.into())));
    }
    assert_eq!(actions(&snapshot), ["permit changes on w-2"]);
    assert_eq!(reason(&decide(&snapshot), "w-1"), Reason::ZoneBusy);
}

#[test]
fn control_planes_go_one_by_one_and_before_workers() {
    let mut snapshot = snapshot(&["cp-1", "cp-2", "cp-3", "w-1"], &plan("1.37.1"));
    voters(&mut snapshot, &[("cp-1", true), ("cp-2", true), ("cp-3", true)]);
    annotate(&mut snapshot, "cp-3", SAVED, &saved());
    assert_eq!(actions(&snapshot), ["permit changes on cp-1"]);
    let decision = decide(&snapshot);
    assert_eq!(reason(&decision, "cp-2"), Reason::CapacityUsed);
    assert_eq!(reason(&decision, "w-1"), Reason::ControlPlanesFirst);
    change(&mut snapshot, "cp-2", |node| node.cordoned = true);
    assert_eq!(reason(&decide(&snapshot), "cp-1"), Reason::CapacityUsed);
}

#[test]
fn etcd_keeps_its_majority() {
    let mut snapshot = snapshot(&["cp-1", "cp-2", "cp-3"], &plan("1.37.1"));
    annotate(&mut snapshot, "cp-1", SAVED, &saved());
    assert_eq!(actions(&snapshot), ["look at etcd"]);
    for (wells, begins) in [
        (&[("cp-1", true), ("cp-2", true), ("cp-3", true)][..], true),
        // Also if its own is the sick one: with another that goes there would be no majority.
        (&[("cp-1", false), ("cp-2", true), ("cp-3", true)], false),
        (&[("cp-1", true), ("cp-2", false), ("cp-3", true)], false),
        // One that was added and never came.
        (&[("cp-1", true), ("cp-2", true), ("cp-3", true), ("x", false)], false),
        (&[("cp-1", true), ("cp-2", true), ("cp-3", true), ("x", true), ("y", false)], true),
        (&[("cp-1", true), ("cp-2", true)], false),
        (&[("cp-1", true)], true),
    ] {
        voters(&mut snapshot, wells);
        assert_eq!(actions(&snapshot).contains(&"permit changes on cp-1".to_owned()), begins, "{wells:?}");
        if !begins {
            assert_eq!(stage(&snapshot, "cp-1"), (Stage::Wait, Reason::EtcdAtRisk));
        }
    }
    voters(&mut snapshot, &[("cp-1", true), ("cp-2", false), ("cp-3", true)]);
    snapshot.now += SignedDuration::from_secs(5);
    assert_eq!(actions(&snapshot), ["look at etcd"]);
    // Not for ever.
    snapshot.etcd.since = snapshot.now - SignedDuration::from_hours(1);
    assert!(!decide(&snapshot).is_moving());
}

type Lack = fn(&mut NodeView);

#[test]
fn a_node_is_through_only_if_everything_says_so() {
    let target = plan("1.37.1");
    let ready = |snapshot: &mut Snapshot| {
        change(snapshot, "w-1", |node| {
            reach(node, &plan("1.37.1"), now() - SignedDuration::from_secs(60));
            node.annotations.insert(CHANGES_ALLOWED.into(), "true".into());
            node.annotations.insert(CORDONED_BY.into(), "rollout/x".into());
            node.cordoned = true;
        });
    };
    let lacks: [(Lack, Reason); 6] = [
        (|node| drop(node.annotations.insert(READY.into(), "false".into())), Reason::AgentWorking),
        (|node| drop(node.annotations.insert(PLAN_OBSERVED.into(), "0".into())), Reason::AgentWorking),
        (
            |node| {
                let key = annotations::current_version(&"kubelet".parse().unwrap());
                node.annotations.insert(key, "1.36.4".into());
            },
            Reason::AgentWorking,
        ),
        (|node| node.ready = Err("no".into()), Reason::NodeNotBack),
        (|node| node.kubelet = "v1.36.4".into(), Reason::NodeNotBack),
        (|node| node.boot_id = "before".into(), Reason::NodeNotBack),
    ];
    for (lack, expected) in lacks {
        let mut snapshot = snapshot(&["w-1", "w-2"], &target);
        ready(&mut snapshot);
        change(&mut snapshot, "w-1", lack);
        assert_eq!(stage(&snapshot, "w-1"), (Stage::Wait, expected));
    }
    let mut snapshot = snapshot(&["w-1"], &target);
    ready(&mut snapshot);
    snapshot.policy.soak = SignedDuration::from_secs(90);
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Wait, Reason::Soaking));
    snapshot.policy.soak = SignedDuration::from_secs(30);
    for expected in ["check w-1", "uncordon w-1", "withdraw the permit of w-1"] {
        assert_eq!(actions(&snapshot), [expected]);
        let action = decide(&snapshot).actions.remove(0);
        assume(&mut snapshot, &action);
    }
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Done, Reason::UpToDate));
}

#[test]
fn a_foreign_cordon_stays() {
    let mut snapshot = snapshot(&["w-1"], &plan("1.37.1"));
    change(&mut snapshot, "w-1", |node| node.cordoned = true);
    let (steps, end, _) = foresee(&snapshot);
    assert!(!steps.iter().any(|step| step.to_string().contains("cordon")), "{steps:?}");
    assert_eq!(end.nodes[&"w-1".parse().unwrap()].stage, Stage::Done);
    for mark in ["infrop node drain", "somebody"] {
        change(&mut snapshot, "w-1", |node| {
            reach(node, &plan("1.37.1"), now());
            node.annotations.insert(CORDONED_BY.into(), mark.into());
        });
        assert_eq!(actions(&snapshot), [""; 0], "{mark}");
    }
}

#[test]
fn a_failed_node_stays_cordoned_without_a_permit_and_stops_the_rest_by_budget() {
    let mut snapshot = snapshot(&["w-1", "w-2", "w-3"], &plan("1.37.1"));
    snapshot
        .policy
        .groups
        .insert("w".into(), Limits { max_unavailable: Amount::Nodes(2), ..Limits::default() });
    says(&mut snapshot, "w-1", Phase::Quarantined, AgentReason::PackageFailed);
    change(&mut snapshot, "w-1", |node| {
        node.annotations.insert(CHANGES_ALLOWED.into(), "true".into());
        node.annotations.insert(CORDONED_BY.into(), "rollout/x".into());
        node.cordoned = true;
    });
    assert!(actions(&snapshot).contains(&"withdraw the permit of w-1".to_owned()));
    annotate(&mut snapshot, "w-1", CHANGES_ALLOWED, "false");
    assert_eq!(actions(&snapshot), [""; 0]);
    let decision = decide(&snapshot);
    assert_eq!(
        (reason(&decision, "w-1"), reason(&decision, "w-2")),
        (Reason::AgentFailed, Reason::TooManyFailed)
    );
    snapshot.policy.max_failed = 2;
    assert_eq!(actions(&snapshot), ["permit changes on w-2"]);
    // A person had the agent try again.
    says(&mut snapshot, "w-1", Phase::Waiting, AgentReason::NoPermit);
    assert_eq!(actions(&snapshot), ["permit changes on w-1", "permit changes on w-2"]);
}

#[test]
fn a_refused_plan_gives_the_node_back() {
    let mut snapshot = snapshot(&["w-1"], &plan("1.37.1"));
    annotate(&mut snapshot, "w-1", CHANGES_ALLOWED, "true");
    change(&mut snapshot, "w-1", |node| {
        node.annotations.insert(CORDONED_BY.into(), "rollout/x".into());
        node.cordoned = true;
    });
    says(&mut snapshot, "w-1", Phase::Refused, AgentReason::ContentMissing);
    for expected in ["uncordon w-1", "withdraw the permit of w-1"] {
        assert_eq!(actions(&snapshot), [expected]);
        let action = decide(&snapshot).actions.remove(0);
        assume(&mut snapshot, &action);
    }
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Failed, Reason::AgentRefused));
}

#[test]
fn a_node_whose_pods_do_not_go_is_given_back() {
    let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
    for action in ["permit changes on w-1", "cordon w-1"] {
        assert_eq!(actions(&snapshot), [action]);
        let action = decide(&snapshot).actions.remove(0);
        assume(&mut snapshot, &action);
    }
    snapshot.members.get_mut(&"w-1".parse().unwrap()).unwrap().skipped = Some("a budget".into());
    for expected in ["uncordon w-1", "withdraw the permit of w-1", "permit changes on w-2"] {
        assert_eq!(actions(&snapshot), [expected]);
        let action = decide(&snapshot).actions.remove(0);
        assume(&mut snapshot, &action);
    }
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Stuck, Reason::DrainBlocked));
}

#[test]
fn what_a_person_paused_or_nobody_can_do_is_not_begun() {
    type Obstacle = fn(&mut Snapshot);
    let obstacles: [(Obstacle, Reason); 5] = [
        (|snapshot| annotate(snapshot, "w-1", PAUSED, "disk"), Reason::Paused),
        (|snapshot| change(snapshot, "w-1", |node| node.kubelet = "v1.35.0".into()), Reason::VersionSkew),
        (|snapshot| change(snapshot, "w-1", |node| node.ready = Err("no".into())), Reason::NodeNotReady),
        (
            |snapshot| {
                change(snapshot, "w-1", |node| drop(node.annotations.remove(STATE)));
                snapshot.now += SignedDuration::from_hours(1);
            },
            Reason::NoSign,
        ),
        (
            |snapshot| {
                snapshot.policy.windows = vec![super::window::Window {
                    days: Vec::new(),
                    start: "01:00".parse().unwrap(),
                    length: SignedDuration::from_hours(1),
                    zone: jiff::tz::TimeZone::UTC,
                }];
            },
            Reason::WindowClosed,
        ),
    ];
    for (obstacle, expected) in obstacles {
        let mut snapshot = snapshot(&["w-1"], &plan("1.37.1"));
        obstacle(&mut snapshot);
        assert_eq!(actions(&snapshot), [""; 0], "{expected}");
        assert_eq!(stage(&snapshot, "w-1").1, expected);
        assert!(!decide(&snapshot).is_moving(), "{expected}");
    }
}

#[test]
fn what_another_writer_announced_is_fenced_off_before_anything_else() {
    let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
    snapshot.claims.insert("w-2".parse().unwrap());
    assert_eq!(actions(&snapshot), ["end what another run began on w-2"]);
    assert_eq!(reason(&decide(&snapshot), "w-1"), Reason::CapacityUsed);
    // Its permit came.
    annotate(&mut snapshot, "w-2", CHANGES_ALLOWED, "true");
    assert_eq!(actions(&snapshot), ["cordon w-2"]);
}

#[test]
fn a_permit_on_its_way_counts_also_if_its_node_was_paused_meanwhile() {
    let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
    snapshot.busy.insert(Action::Permit("w-1".parse().unwrap()));
    annotate(&mut snapshot, "w-1", PAUSED, "disk");
    assert_eq!(actions(&snapshot), [""; 0]);
    assert_eq!(reason(&decide(&snapshot), "w-2"), Reason::CapacityUsed);
}

#[test]
fn nothing_is_begun_twice() {
    let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
    let action = decide(&snapshot).actions.remove(0);
    snapshot.busy.insert(action);
    assert_eq!(actions(&snapshot), [""; 0]);
    snapshot.busy = [Action::LookAtEtcd].into();
    assert_eq!(actions(&snapshot), ["permit changes on w-1"]);
}

#[test]
fn the_documentation_has_every_reason_and_no_other() {
    let documentation = include_str!("../../../docs/usage/rollout.md");
    let row = |line: &'static str| {
        let code = line.strip_prefix("| `")?.split_once("` |")?.0;
        code.starts_with(char::is_uppercase).then_some(code)
    };
    let documented: Vec<&str> = documentation.lines().filter_map(row).collect();
    let reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(documented, reasons);
}
