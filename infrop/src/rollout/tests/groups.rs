//! What a group has of its own, and what it has as all others.

use super::*;
use crate::rollout::{Check, Probe, estimate, window::Window};

/// Two nodes of each group, whose names begin with the group's.
fn groups(names: &[&str]) -> Snapshot {
    let names: Vec<String> =
        names.iter().flat_map(|name| [1, 2].map(|node| format!("{name}-{node}"))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut snapshot = snapshot(&names, &plan("1.37.1"));
    for member in snapshot.members.values_mut() {
        member.group = member.node.name.as_str().split_once('-').unwrap().0.into();
        snapshot.policy.groups.insert(member.group.clone(), Limits::default());
    }
    snapshot
}

fn limits<'a>(snapshot: &'a mut Snapshot, group: &str) -> &'a mut Limits {
    snapshot.policy.groups.entry(group.into()).or_default()
}

/// Open for an hour from that hour on.
fn window(hour: i8) -> Window {
    Window {
        days: Vec::new(),
        start: jiff::civil::time(hour, 0, 0, 0),
        length: SignedDuration::from_hours(1),
        zone: jiff::tz::TimeZone::UTC,
    }
}

fn check(name: &str) -> Check {
    Check { name: name.parse().unwrap(), probe: Probe::Job("x".into()), limit: Duration::from_secs(1) }
}

/// A node that has its versions for a while, and its permit still.
fn settles(snapshot: &mut Snapshot, name: &str) {
    change(snapshot, name, |node| {
        reach(node, &plan("1.37.1"), now() - SignedDuration::from_secs(60));
        node.annotations.insert(CHANGES_ALLOWED.into(), "true".into());
    });
}

fn fails(snapshot: &mut Snapshot, name: &str) {
    says(snapshot, name, Phase::Quarantined, AgentReason::PackageFailed);
}

fn message(snapshot: &Snapshot, name: &str) -> String {
    decide(snapshot).nodes[&name.parse().unwrap()].to_string()
}

#[test]
fn a_soak_is_that_of_the_group() {
    // What all have, what workers and what control planes have of their own, and who is still not long enough well.
    let seconds = SignedDuration::from_secs;
    for (all, worker, plane, expected) in [
        (30, None, None, [false, false]),
        (90, None, None, [true, true]),
        (30, Some(90), None, [true, false]),
        (30, None, Some(90), [false, true]),
        (90, Some(0), Some(30), [false, false]),
    ] {
        let mut snapshot = groups(&["cp", "a"]);
        snapshot.policy.soak = seconds(all);
        limits(&mut snapshot, "a").own.soak = worker.map(seconds);
        snapshot.policy.control_planes.soak = plane.map(seconds);
        for (name, soaks) in [("a-1", expected[0]), ("cp-1", expected[1])] {
            settles(&mut snapshot, name);
            let reason = stage(&snapshot, name).1;
            assert_eq!(reason == Reason::Soaking, soaks, "{name}: {all} {worker:?} {plane:?}: {reason}");
        }
    }
}

#[test]
fn windows_are_those_of_the_group() {
    // It is noon.
    let (open, closed) = (|| vec![window(12)], || vec![window(1)]);
    for (all, own, expected) in [
        (Vec::new(), None, ["a-1", "b-1"].as_slice()),
        (closed(), None, &[]),
        (Vec::new(), Some(closed()), &["b-1"]),
        (closed(), Some(open()), &["a-1"]),
        // At any time.
        (closed(), Some(Vec::new()), &["a-1"]),
        (open(), Some(closed()), &["b-1"]),
    ] {
        let mut snapshot = groups(&["a", "b"]);
        snapshot.policy.windows = all;
        limits(&mut snapshot, "a").own.windows = own;
        limits(&mut snapshot, "b");
        let expected: Vec<String> = expected.iter().map(|name| format!("permit changes on {name}")).collect();
        assert_eq!(actions(&snapshot), expected, "{:?}", snapshot.policy);
    }
    // Each says when its own opens next.
    let mut snapshot = groups(&["a", "b"]);
    snapshot.policy.windows = closed();
    limits(&mut snapshot, "a").own.windows = Some(vec![window(14)]);
    assert_eq!(message(&snapshot, "a-1"), "WindowClosed: the next window opens at 2026-11-16T14:00:00Z");
    assert_eq!(message(&snapshot, "b-1"), "WindowClosed: the next window opens at 2026-11-17T01:00:00Z");
    // Control planes have theirs, and workers wait for them.
    let mut snapshot = groups(&["cp", "a"]);
    snapshot.policy.control_planes.windows = Some(closed());
    assert_eq!(actions(&snapshot), [""; 0]);
    let decision = decide(&snapshot);
    assert_eq!(
        (reason(&decision, "cp-1"), reason(&decision, "a-1")),
        (Reason::WindowClosed, Reason::ControlPlanesFirst)
    );
    snapshot.policy.windows = closed();
    snapshot.policy.control_planes.windows = Some(open());
    assert_eq!(actions(&snapshot), ["look at etcd"]);
}

#[test]
fn so_many_failed_nodes_of_a_group_stop_that_group() {
    for (all, own, failed, expected) in [
        (9, Some(1), &["a-1"][..], &["b-1"][..]),
        (9, Some(2), &["a-1"], &["a-2", "b-1"]),
        (9, None, &["a-1"], &["a-2", "b-1"]),
        // Those of another group do not count.
        (9, Some(1), &["b-1"], &["a-1", "b-2"]),
        // What goes for all goes beside it.
        (1, Some(1), &["b-1"], &[]),
        (2, Some(2), &["a-1", "b-1"], &[]),
    ] {
        let mut snapshot = groups(&["a", "b"]);
        snapshot.policy.max_failed = all;
        limits(&mut snapshot, "a").max_failed = own;
        limits(&mut snapshot, "b");
        for name in failed {
            fails(&mut snapshot, name);
        }
        let expected: Vec<String> = expected.iter().map(|name| format!("permit changes on {name}")).collect();
        assert_eq!(actions(&snapshot), expected, "{all} {own:?} {failed:?}");
    }
    let mut snapshot = groups(&["a", "b"]);
    snapshot.policy.max_failed = 2;
    limits(&mut snapshot, "a").max_failed = Some(1);
    fails(&mut snapshot, "a-1");
    let why = "TooManyFailed: 1 of a failed, and after 1 no other of it is begun";
    assert_eq!(message(&snapshot, "a-2"), why);
}

#[test]
fn a_drain_is_that_of_the_group_as_a_whole() {
    let mut snapshot = groups(&["cp", "a", "b"]);
    let own = |seconds| Drain { limit: Duration::from_secs(seconds), ..policy().drain };
    limits(&mut snapshot, "a").own.drain = Some(own(1));
    let of = |snapshot: &Snapshot, name: &str| {
        let member = &snapshot.members[&name.parse().unwrap()];
        snapshot.policy.of(member).drain().limit.as_secs()
    };
    assert_eq!([("a-1"), ("b-1"), ("cp-1")].map(|name| of(&snapshot, name)), [1, 600, 600]);
    snapshot.policy.control_planes.drain = Some(own(2));
    assert_eq!([("a-1"), ("b-1"), ("cp-1")].map(|name| of(&snapshot, name)), [1, 600, 2]);
}

#[test]
fn what_a_change_disrupts_is_said_by_the_group_then_by_all_then_by_the_table() {
    use common::disruption::Disruption::{Drain, Restart};
    for (all, own, expected) in [
        (None, None, "cordon a-1"),
        (Some(Restart), None, "write the plan of a-1"),
        (None, Some(Restart), "write the plan of a-1"),
        (Some(Restart), Some(Drain), "cordon a-1"),
        (Some(Drain), Some(Restart), "write the plan of a-1"),
    ] {
        let mut snapshot = groups(&["a", "b"]);
        let says = |disruption| {
            let name = |name: &str| (name.parse().unwrap(), disruption);
            ["kubeadm", "kubelet", "kubectl"].map(name).into()
        };
        snapshot.policy.disruption = all.map(says).unwrap_or_default();
        limits(&mut snapshot, "a").own.disruption = own.map(says).unwrap_or_default();
        annotate(&mut snapshot, "a-1", CHANGES_ALLOWED, "true");
        assert!(actions(&snapshot).contains(&expected.to_owned()), "{all:?} {own:?}");
        // The other group has what all have.
        annotate(&mut snapshot, "b-1", CHANGES_ALLOWED, "true");
        let expected = if all == Some(Restart) { "write the plan of b-1" } else { "cordon b-1" };
        assert!(actions(&snapshot).contains(&expected.to_owned()), "{all:?} {own:?}");
    }
    // One that a group does not name is as for all.
    let mut snapshot = groups(&["a"]);
    snapshot.policy.disruption.insert("x".parse().unwrap(), Restart);
    limits(&mut snapshot, "a").own.disruption.insert("y".parse().unwrap(), Restart);
    let terms = snapshot.policy.of_group("a");
    assert_eq!(
        ["x", "y", "z"].map(|name| terms.disruption(&name.parse().unwrap())),
        [Restart, Restart, Drain]
    );
}

#[test]
fn checks_are_those_of_the_group() {
    let mut snapshot = groups(&["cp", "a", "b"]);
    snapshot.policy.checks = vec![check("all")];
    limits(&mut snapshot, "a").own.checks = Some(vec![check("a")]);
    snapshot.policy.control_planes.checks = Some(Vec::new());
    let of = |group| {
        snapshot.policy.of_group(group).checks().iter().map(|check| check.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(["a", "b", ""].map(of), [vec!["a"], vec!["all"], vec![]]);
    settles(&mut snapshot, "cp-1");
    settles(&mut snapshot, "a-1");
    for name in ["cp-1", "a-1"] {
        let action = Action::Step(crate::rollout::assess::Verb::Check, name.parse().unwrap());
        assume(&mut snapshot, &action);
    }
    let actions = actions(&snapshot);
    assert!(actions.contains(&"withdraw the permit of cp-1".to_owned()), "{actions:?}");
    assert!(actions.contains(&"run the checks of a-1".to_owned()), "{actions:?}");
}

#[test]
fn groups_of_a_lower_order_go_first() {
    let begins = |orders: [u16; 3]| {
        let mut snapshot = groups(&["a", "b", "c"]);
        for (group, order) in ["a", "b", "c"].into_iter().zip(orders) {
            limits(&mut snapshot, group).order = order;
        }
        actions(&snapshot).iter().map(|action| action.replace("permit changes on ", "")).collect::<Vec<_>>()
    };
    assert_eq!(begins([0, 0, 0]), ["a-1", "b-1", "c-1"]);
    assert_eq!(begins([7, 7, 7]), ["a-1", "b-1", "c-1"]);
    assert_eq!(begins([1, 0, 0]), ["b-1", "c-1"]);
    assert_eq!(begins([2, 1, 0]), ["c-1"]);
    assert_eq!(begins([0, 1, 0]), ["a-1", "c-1"]);

    let mut snapshot = groups(&["a", "b", "c"]);
    limits(&mut snapshot, "a").order = 2;
    limits(&mut snapshot, "b").order = 1;
    let why = "LowerOrderFirst: groups of a lower order go first, and c-1 of c is not through";
    assert_eq!(message(&snapshot, "a-1"), why);
    // Each group is through before a node of the next one gets its permit.
    let (steps, end, _) = foresee(&snapshot);
    let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let position = |step: &str| steps.iter().position(|known| known == step).unwrap();
    for (before, after) in [("c", "b"), ("b", "a")] {
        let through = position(&format!("withdraw the permit of {before}-2"));
        assert!(through < position(&format!("permit changes on {after}-1")), "{steps:?}");
    }
    assert!(end.nodes.values().all(|node| node.stage == Stage::Done), "{end:?}");
    // Who is under way is not through, and neither is one that failed, is paused, or whose pods do not go.
    let hinder: [fn(&mut Snapshot); 4] = [
        |snapshot| annotate(snapshot, "c-2", CHANGES_ALLOWED, "true"),
        |snapshot| fails(snapshot, "c-2"),
        |snapshot| annotate(snapshot, "c-2", PAUSED, "x"),
        |snapshot| snapshot.members.get_mut(&"c-2".parse().unwrap()).unwrap().skipped = Some("held".into()),
    ];
    for hinder in hinder {
        let mut snapshot = groups(&["b", "c"]);
        snapshot.policy.max_failed = 9;
        limits(&mut snapshot, "b").order = 1;
        change(&mut snapshot, "c-1", |node| reach(node, &plan("1.37.1"), now()));
        hinder(&mut snapshot);
        let why = "LowerOrderFirst: groups of a lower order go first, and c-2 of c is not through";
        assert_eq!(message(&snapshot, "b-1"), why);
    }
    // One that has been begun goes on all the same, and control planes have no order.
    let mut snapshot = groups(&["b", "c"]);
    limits(&mut snapshot, "b").order = 1;
    annotate(&mut snapshot, "b-1", CHANGES_ALLOWED, "true");
    assert_eq!(actions(&snapshot), ["cordon b-1", "permit changes on c-1"]);
    let mut snapshot = groups(&["cp", "b"]);
    limits(&mut snapshot, "cp").order = 1;
    assert_eq!(actions(&snapshot), ["look at etcd"]);
    // A worker that no provider has is of no group, and nobody waits for it.
    let mut snapshot = groups(&["b", "c"]);
    limits(&mut snapshot, "b").order = 1;
    for name in ["c-1", "c-2"] {
        let member = snapshot.members.get_mut(&name.parse().unwrap()).unwrap();
        member.group = "(no group)".into();
        member.target = Err("no pool of the document has a compute of that name".into());
        let node = member.node.clone();
        member.update(node, now());
    }
    assert_eq!(actions(&snapshot), ["permit changes on b-1"]);
}

/// Whoever is away for another reason is no canary, or nobody would ever be begun.
#[test]
fn the_first_of_a_group_are_those_that_were_begun() {
    type Hinder = fn(&mut Snapshot, &str);
    let permitted: Hinder = |snapshot, name| annotate(snapshot, name, CHANGES_ALLOWED, "true");
    let failed: Hinder =
        |snapshot, name| says(snapshot, name, Phase::Quarantined, AgentReason::PackageFailed);
    let dead: Hinder = |snapshot, name| change(snapshot, name, |node| node.ready = Err("no".into()));
    let drained: Hinder = |snapshot, name| {
        change(snapshot, name, |node| {
            reach(node, &plan("1.37.1"), now());
            node.cordoned = true;
        });
    };
    for (hinder, expected) in [
        (permitted, &[][..]),
        (failed, &[]),
        (dead, &["permit changes on w-2"]),
        // It is through, so the others may go.
        (drained, &["permit changes on w-2", "permit changes on w-3", "permit changes on w-4"]),
    ] {
        let mut snapshot = snapshot(&["w-1", "w-2", "w-3", "w-4"], &plan("1.37.1"));
        snapshot.policy.max_failed = 9;
        snapshot
            .policy
            .groups
            .insert("w".into(), Limits { max_unavailable: Amount::Nodes(4), canary: 1, ..Limits::default() });
        hinder(&mut snapshot, "w-1");
        let actions = actions(&snapshot);
        let begun: Vec<&String> = actions.iter().filter(|action| action.starts_with("permit")).collect();
        assert_eq!(begun, expected);
    }
}

/// Before its window opens a plan shows all the same what will be done, and a run does nothing.
#[test]
fn a_rollout_is_foreseen_also_while_its_windows_are_closed() {
    let mut snapshot = groups(&["a", "b"]);
    let open = foresee(&snapshot).0;
    snapshot.policy.windows = vec![window(20)];
    limits(&mut snapshot, "b").own.windows = Some(vec![window(3)]);
    assert_eq!((actions(&snapshot), decide(&snapshot).is_moving()), (Vec::new(), false));
    let (steps, end, _) = foresee(&snapshot);
    assert!(end.nodes.values().all(|node| node.stage == Stage::Done), "{end:?}");
    assert_eq!(steps.len(), open.len());
    let position = |step: &str| steps.iter().position(|known| known.to_string() == step).unwrap();
    assert!(position("permit changes on a-2") < position("permit changes on b-1"), "{steps:?}");
    // One that never opens is no reason to look for ever.
    snapshot.policy.windows = vec![Window { length: SignedDuration::ZERO, ..window(20) }];
    limits(&mut snapshot, "b").own.windows = None;
    let (steps, end, _) = foresee(&snapshot);
    assert_eq!((steps, reason(&end, "a-1")), (Vec::new(), Reason::WindowClosed));
}

#[test]
fn an_estimate_knows_orders_soaks_and_windows_of_groups() {
    let mut snapshot = groups(&["a", "b"]);
    for (name, seconds) in [("a-1", 100), ("b-1", 50)] {
        let history = format!(r#"{{"took":{{"kubernetes":{{"seconds":{seconds},"soakSeconds":10}}}}}}"#);
        annotate(&mut snapshot, name, annotations::HISTORY, &history);
    }
    let seconds = |snapshot: &Snapshot| {
        let estimate = estimate(snapshot, &foresee(snapshot).0).unwrap();
        (estimate.seconds, estimate.windows)
    };
    assert_eq!(seconds(&snapshot), (Some(200), false));
    limits(&mut snapshot, "a").order = 1;
    assert_eq!(seconds(&snapshot), (Some(300), false));
    limits(&mut snapshot, "b").own.soak = Some(SignedDuration::from_secs(20));
    assert_eq!(seconds(&snapshot), (Some(320), false));
    limits(&mut snapshot, "b").own.windows = Some(vec![window(12)]);
    assert_eq!(seconds(&snapshot), (Some(320), true));
}
