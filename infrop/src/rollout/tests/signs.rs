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
