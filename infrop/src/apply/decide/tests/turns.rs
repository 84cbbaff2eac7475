//! Control planes one at a time, also after a crash.

use super::*;

/// What is done with control planes, and who waits.
fn planes(snapshot: &Snapshot) -> (Vec<String>, Vec<String>) {
    let decision = decide(snapshot);
    let waits = |(name, why): (&NodeName, &String)| {
        assert!(why.contains("one after the other"), "{name}: {why}");
        name.to_string()
    };
    (actions(snapshot), decision.waiting.iter().map(waits).collect())
}

#[test]
fn a_control_plane_that_a_run_before_left_unfinished_comes_before_others() {
    use At::{Bare, Failed, Initialized, Joined, Running};
    let (reset, wait) = ("remove what an unfinished kubeadm left on", "wait for kubeadm on");
    for (second, third, expected, waits) in [
        (Initialized, Initialized, vec!["join cp-2 as a control plane".to_owned()], &["cp-3"][..]),
        (Initialized, Running, vec![format!("{wait} cp-3")], &["cp-2"]),
        (Running, Initialized, vec![format!("{wait} cp-2")], &["cp-3"]),
        (Initialized, Failed, vec![format!("{reset} cp-3")], &["cp-2"]),
        (Failed, Initialized, vec![format!("{reset} cp-2")], &["cp-3"]),
        // A reset takes a member out of etcd, while the other becomes one.
        (Running, Failed, vec![format!("{wait} cp-2")], &["cp-3"]),
        (Failed, Running, vec![format!("{wait} cp-3")], &["cp-2"]),
        (Failed, Failed, vec![format!("{reset} cp-2")], &["cp-3"]),
        (Running, Running, vec![format!("{wait} cp-2"), format!("{wait} cp-3")], &[]),
        // Who is not ready for kubeadm keeps nobody waiting.
        (
            Initialized,
            Bare,
            vec!["join cp-2 as a control plane".to_owned(), "install node-agent on cp-3".to_owned()],
            &[],
        ),
    ] {
        let hosts = [("cp-1", Joined), ("cp-2", second), ("cp-3", third)];
        let snapshot = with_cluster(snapshot(3, 0, &hosts));
        let waits = waits.iter().map(ToString::to_string).collect();
        assert_eq!(planes(&snapshot), (expected, waits));
    }
}

#[test]
fn a_control_plane_waits_for_what_is_under_way_with_another() {
    let hosts = [("cp-1", At::Joined), ("cp-2", At::Initialized), ("cp-3", At::Failed), ("w-1", At::Failed)];
    let snapshot = with_cluster(snapshot(3, 1, &hosts));
    for (action, exclusive_host) in [
        (Action::Init(name("cp-3")), Some("cp-3")),
        (Action::Join(name("cp-3"), Role::ControlPlane), Some("cp-3")),
        (Action::AwaitKubeadm(name("cp-3")), Some("cp-3")),
        (Action::Reset(name("cp-3")), Some("cp-3")),
        (Action::Remove(name("cp-3")), Some("cp-3")),
        (Action::Deliver(name("cp-3")), None),
        (Action::AwaitReady(name("cp-3")), None),
        (Action::Join(name("w-1"), Role::Worker), None),
        (Action::AwaitKubeadm(name("w-1")), None),
        (Action::Reset(name("w-1")), None),
        (Action::Remove(name("w-1")), None),
    ] {
        assert_eq!(exclusive(&snapshot, &action), exclusive_host.map(name), "{action}");
        let Some(busy) = exclusive_host else { continue };
        let mut snapshot = snapshot.clone();
        snapshot.busy = [name(busy)].into();
        snapshot.busy_control_planes = snapshot.busy.clone();
        // Whatever its host said before.
        snapshot.hosts.insert(name("cp-3"), host("cp-3", 0, true, At::Initialized));
        let (done, waits) = planes(&snapshot);
        assert_eq!(done, ["remove what an unfinished kubeadm left on w-1"], "{action}");
        assert_eq!(waits, ["cp-2"], "{action}");
    }
}

#[test]
fn no_control_plane_goes_while_another_one_is_unfinished() {
    for (at, expected) in [
        (At::Joined, &["remove cp-3"][..]),
        (At::Running, &["wait for kubeadm on cp-2"]),
        (At::Failed, &["remove what an unfinished kubeadm left on cp-2"]),
    ] {
        let hosts = [("cp-1", At::Joined), ("cp-2", at), ("cp-3", At::Joined)];
        let mut snapshot = with_cluster(snapshot(3, 0, &hosts));
        snapshot.removals.replace = [name("cp-3")].into();
        assert_eq!(actions(&snapshot), expected);
    }
    // One that is unfinished itself may go.
    let hosts = [("cp-1", At::Joined), ("cp-2", At::Joined), ("cp-3", At::Failed)];
    let mut snapshot = with_cluster(snapshot(3, 0, &hosts));
    snapshot.removals.replace = [name("cp-3")].into();
    assert_eq!(actions(&snapshot), ["remove cp-3"]);
}

#[test]
fn a_control_plane_whose_kubeadm_nobody_saw_end_keeps_others_waiting() {
    let hosts = [("cp-1", At::Joined), ("cp-2", At::Initialized), ("cp-3", At::Initialized)];
    let mut snapshot = with_cluster(snapshot(3, 0, &hosts));
    snapshot.doubt(&name("cp-2"));
    assert_eq!(planes(&snapshot), (vec!["wait until cp-2 answers".to_owned()], vec!["cp-3".to_owned()]));
    snapshot.failed.insert(name("cp-2"), "no route".into());
    assert_eq!(planes(&snapshot), (vec![], vec!["cp-3".to_owned()]));
    // Who never did anything there knows nothing of it, and a dead host keeps nobody waiting.
    snapshot.unclear.clear();
    assert_eq!(actions(&snapshot), ["join cp-3 as a control plane"]);
}
