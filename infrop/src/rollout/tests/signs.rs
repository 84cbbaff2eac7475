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
            node.taints = vec![serde_json::json!({ "key": "a", "effect": "NoSchedule" })]
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
