//! What Nodes show while they are on their way, and what of it counts.

use super::*;

/// A kubelet writes its Node every few minutes, and so may anyone else: patience ends all the same.
#[test]
fn only_what_the_way_changes_is_a_sign() {
    let signs: [(&str, bool, Lack); 9] = [
        ("nothing", false, |_| {}),
        ("a write", false, |node| node.resource_version = "2".into()),
        ("a label", false, |node| drop(node.labels.insert("a".into(), "b".into()))),
        ("a stranger's annotation", false, |node| drop(node.annotations.insert("x.y/z".into(), "1".into()))),
        ("a taint", false, |node| {
            node.taints = vec![serde_json::json!({ "key": "a", "effect": "NoSchedule" })];
        }),
        ("a software", true, |node| {
            drop(node.annotations.insert("alpha.kubelet.caos.ch/current-version".into(), "9".into()));
        }),
        ("a boot", true, |node| node.boot_id = "other".into()),
        ("not Ready", true, |node| node.ready = Err("no".into())),
        ("a kubelet", true, |node| node.kubelet = "v1.37.1".into()),
    ];
    for (what, sign, change_it) in signs {
        let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
        says(&mut snapshot, "w-1", Phase::Changing, AgentReason::ChangingSoftware);
        annotate(&mut snapshot, "w-1", CHANGES_ALLOWED, "true");
        snapshot.now += SignedDuration::from_mins(29);
        change(&mut snapshot, "w-1", change_it);
        snapshot.now += SignedDuration::from_mins(1);
        let expected =
            if sign { (Stage::Wait, Reason::AgentWorking) } else { (Stage::Failed, Reason::NoSign) };
        assert_eq!(stage(&snapshot, "w-1"), expected, "{what}");
    }
    // Why it is not Ready is said anew each time.
    let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
    says(&mut snapshot, "w-1", Phase::Changing, AgentReason::ChangingSoftware);
    annotate(&mut snapshot, "w-1", CHANGES_ALLOWED, "true");
    change(&mut snapshot, "w-1", |node| node.ready = Err("last seen 1 min ago".into()));
    snapshot.now += SignedDuration::from_mins(30);
    change(&mut snapshot, "w-1", |node| node.ready = Err("last seen 31 min ago".into()));
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Failed, Reason::NoSign));
}

/// What a drain says is of the cordon it was begun under: pods may have come after its last look.
#[test]
fn a_drain_during_which_pods_could_come_did_not_empty_the_node() {
    type Meanwhile = fn(&mut Snapshot);
    let meanwhile: [(&str, Meanwhile, &str); 4] = [
        ("nothing", |_| {}, "write the plan of w-1"),
        ("lifted", |snapshot| change(snapshot, "w-1", |node| node.cordoned = false), "cordon w-1"),
        (
            "lifted and cordoned",
            |snapshot| {
                change(snapshot, "w-1", |node| node.cordoned = false);
                change(snapshot, "w-1", |node| node.cordoned = true);
            },
            "drain w-1",
        ),
        ("written", |snapshot| annotate(snapshot, "w-1", "a/b", "c"), "write the plan of w-1"),
    ];
    for (what, happens, expected) in meanwhile {
        let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
        for action in ["permit changes on w-1", "cordon w-1"] {
            assert_eq!(actions(&snapshot), [action]);
            let action = decide(&snapshot).actions.remove(0);
            assume(&mut snapshot, &action);
        }
        let name = "w-1".parse().unwrap();
        snapshot.members.get_mut(&name).unwrap().begin_drain();
        happens(&mut snapshot);
        snapshot.members.get_mut(&name).unwrap().end_drain();
        assert_eq!(actions(&snapshot), [expected], "{what}");
    }
}

/// With it the next cordon, a person's, would look like ours and be lifted.
#[test]
fn a_mark_does_not_outlive_its_cordon() {
    type State = fn(&mut Snapshot);
    let permit: State = |snapshot| annotate(snapshot, "w-1", CHANGES_ALLOWED, "true");
    let through: State = |snapshot| change(snapshot, "w-1", |node| reach(node, &plan("1.37.1"), now()));
    let states: [(&str, &[State], &str); 9] = [
        ("it waits for its turn", &[], "take our mark from w-1"),
        ("it is through", &[through], "take our mark from w-1"),
        ("it is paused", &[|snapshot| annotate(snapshot, "w-1", PAUSED, "disk")], "take our mark from w-1"),
        (
            "nobody knows its plan",
            &[|snapshot| {
                let member = snapshot.members.get_mut(&"w-1".parse().unwrap()).unwrap();
                let (node, now) = (member.node.clone(), snapshot.now);
                *member = Member::new(node, "w".into(), Err("x".into()), now);
            }],
            "take our mark from w-1",
        ),
        (
            "its agent works",
            &[|snapshot| says(snapshot, "w-1", Phase::Changing, AgentReason::ChangingSoftware), permit],
            "take our mark from w-1",
        ),
        (
            "its agent gave up",
            &[|snapshot| says(snapshot, "w-1", Phase::Quarantined, AgentReason::PackageFailed)],
            "take our mark from w-1",
        ),
        ("it is about to be cordoned", &[permit], "cordon w-1"),
        (
            "its permit is about to go",
            &[|snapshot| says(snapshot, "w-1", Phase::Quarantined, AgentReason::PackageFailed), permit],
            "withdraw the permit of w-1",
        ),
        ("its checks are due", &[through, permit], "take our mark from w-1"),
    ];
    for (what, prepare, expected) in states {
        let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
        for prepare in prepare {
            prepare(&mut snapshot);
        }
        annotate(&mut snapshot, "w-1", CORDONED_BY, "rollout/x");
        annotate(&mut snapshot, "w-1", annotations::EXCLUDED_BY, "rollout/x");
        assert!(actions(&snapshot).contains(&expected.to_owned()), "{what}: {:?}", actions(&snapshot));
        // Once it is gone nothing is written any more, and a person's cordon is one.
        let (_, end, _) = foresee(&snapshot);
        assert_eq!(end.actions, [], "{what}");
        for action in decide(&snapshot).actions {
            assume(&mut snapshot, &action);
        }
        if expected != "cordon w-1" {
            let node = &snapshot.members[&"w-1".parse().unwrap()].node;
            let left = [CORDONED_BY, annotations::EXCLUDED_BY].map(|key| node.annotations.contains_key(key));
            assert_eq!(left, [false, false], "{what}");
            assert!(!actions(&snapshot).contains(&"take our mark from w-1".to_owned()), "{what}");
            change(&mut snapshot, "w-1", |node| node.cordoned = true);
            let (steps, ..) = foresee(&snapshot);
            assert!(!steps.iter().any(|step| step.to_string() == "uncordon w-1"), "{what}: {steps:?}");
        }
    }
    // That of a command, of a cordon that is there, and one that cannot be written.
    let mut snapshot = snapshot(&["w-1"], &plan("1.36.4"));
    annotate(&mut snapshot, "w-1", CORDONED_BY, "infrop node drain");
    assert_eq!(actions(&snapshot), [""; 0]);
    annotate(&mut snapshot, "w-1", CORDONED_BY, "rollout/x");
    assert_eq!(actions(&snapshot), ["take our mark from w-1"]);
    snapshot.members.get_mut(&"w-1".parse().unwrap()).unwrap().failed = Some("no".into());
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Failed, Reason::ActionFailed));
}

/// The model has no other versions than those that follow each other: here are some.
#[test]
fn only_a_version_that_follows_its_own_is_begun() {
    for (kubelet, begins) in [
        ("v1.37.0", true),
        ("v1.36.4", true),
        ("v1.35.9", false),
        ("v1.9.0", false),
        ("v1.37.2", false),
        ("v1.38.0", false),
    ] {
        for name in ["w-1", "cp-1"] {
            let mut snapshot = snapshot(&[name], &plan("1.37.1"));
            voters(&mut snapshot, &[("cp-1", true)]);
            annotate(&mut snapshot, name, SAVED, &saved());
            change(&mut snapshot, name, |node| node.kubelet = kubelet.into());
            let expected = if begins { vec![format!("permit changes on {name}")] } else { Vec::new() };
            assert_eq!(actions(&snapshot), expected, "{name} at {kubelet}");
            let expected = if begins { Reason::Next } else { Reason::VersionSkew };
            assert_eq!(stage(&snapshot, name).1, expected, "{name} at {kubelet}");
        }
    }
}
