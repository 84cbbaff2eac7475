//! What a site may ask for beside: checks of its own, and where pods should rather not go.

use super::*;
use crate::rollout::{Check, Probe, snapshot::Failing};

/// A worker that has its versions and is well, with a check.
fn soaked() -> Snapshot {
    let mut snapshot = snapshot(&["w-1", "w-2"], &plan("1.37.1"));
    snapshot.policy.checks = vec![Check {
        name: "smoke".parse().unwrap(),
        probe: Probe::Job("smoke.yaml".into()),
        limit: std::time::Duration::from_mins(1),
    }];
    change(&mut snapshot, "w-1", |node| {
        reach(node, &plan("1.37.1"), now() - SignedDuration::from_secs(60));
        node.annotations.insert(CHANGES_ALLOWED.into(), "true".into());
    });
    snapshot
}

#[test]
fn what_a_site_checks_comes_after_the_soak_and_before_the_end() {
    let mut snapshot = soaked();
    for expected in ["check w-1", "run the checks of w-1", "withdraw the permit of w-1"] {
        assert_eq!(actions(&snapshot), [expected]);
        let action = decide(&snapshot).actions.remove(0);
        assume(&mut snapshot, &action);
    }
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Done, Reason::UpToDate));
    // A group that has none of its own, and one that has none at all.
    let mut snapshot = soaked();
    let own = Own { checks: Some(Vec::new()), ..Own::default() };
    snapshot.policy.groups.insert("w".into(), Limits { own, ..Limits::default() });
    let (steps, ..) = foresee(&snapshot);
    assert!(!steps.iter().any(|step| step.to_string().starts_with("run")), "{steps:?}");
}

#[test]
fn a_check_that_fails_is_run_again_until_patience_is_over() {
    let mut snapshot = soaked();
    let name = "w-1".parse().unwrap();
    let fail = |snapshot: &mut Snapshot| {
        let now = snapshot.now;
        let member = snapshot.members.get_mut(&name).unwrap();
        member.checked = Some(Ok(()));
        let wait = |failures: u32| SignedDuration::from_secs(i64::from(failures) * 10);
        let failing = Failing::new(member.tested.as_ref(), "check smoke: no".into(), now, wait);
        member.tested = Some(Err(failing));
    };
    fail(&mut snapshot);
    // The others wait with it, and it says why.
    assert_eq!(actions(&snapshot), [""; 0]);
    let decision = decide(&snapshot);
    assert_eq!(decision.nodes[&name].to_string(), "SiteCheckFailed: check smoke: no");
    assert_eq!(decision.until, Some(snapshot.now + SignedDuration::from_secs(10)));
    assert!(decision.is_moving());
    snapshot.now += SignedDuration::from_secs(10);
    assert_eq!(actions(&snapshot), ["run the checks of w-1"]);
    // Later each time, and what the kubelet writes meanwhile is no sign of anything.
    fail(&mut snapshot);
    assert_eq!(decide(&snapshot).until, Some(snapshot.now + SignedDuration::from_secs(20)));
    snapshot.now += SignedDuration::from_mins(30);
    change(&mut snapshot, "w-1", |_| {});
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Failed, Reason::SiteCheckFailed));
    assert_eq!(reason(&decide(&snapshot), "w-2"), Reason::TooManyFailed);
    assert!(!decide(&snapshot).is_moving());
    // Pods that belong there have the same patience.
    let member = snapshot.members.get_mut(&name).unwrap();
    let failing = Failing::new(None, "a pod".into(), now(), |_| SignedDuration::from_secs(3));
    member.checked = Some(Err(failing));
    assert_eq!(stage(&snapshot, "w-1"), (Stage::Failed, Reason::CheckFailed));
}

#[test]
fn checks_that_passed_before_the_node_was_away_are_run_again() {
    let away: [(Lack, Lack); 2] = [
        (|node| node.ready = Err("no".into()), |node| node.ready = Ok(())),
        // One that nobody saw as not Ready.
        (|node| node.boot_id = "other".into(), |node| node.boot_id = "boot".into()),
    ];
    for (goes, comes) in away {
        let mut snapshot = soaked();
        for _ in 0..2 {
            let action = decide(&snapshot).actions.remove(0);
            assume(&mut snapshot, &action);
        }
        change(&mut snapshot, "w-1", goes);
        assert_eq!(stage(&snapshot, "w-1"), (Stage::Wait, Reason::NodeNotBack));
        change(&mut snapshot, "w-1", comes);
        assert_eq!(actions(&snapshot), ["check w-1"]);
        assert_eq!(snapshot.members[&"w-1".parse().unwrap()].tested, None);
    }
}

#[test]
fn pods_prefer_nodes_that_do_not_wait() {
    let mut snapshot = snapshot(&["cp-1", "w-1", "w-2", "w-3"], &plan("1.37.1"));
    snapshot.policy.prefer_ready = true;
    // Nobody knows yet when workers will go.
    assert_eq!(actions(&snapshot), ["look at etcd"]);
    let (steps, end, _) = foresee(&snapshot);
    let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let position = |step: &str| steps.iter().position(|known| known == step).unwrap();
    for name in ["w-2", "w-3"] {
        let taint = position(&format!("taint {name} while it waits"));
        assert_eq!(taint.cmp(&position("cordon w-1")), std::cmp::Ordering::Less, "{steps:?}");
        let through = position(&format!("withdraw the permit of {name}"));
        assert!(through < position(&format!("remove the taint of {name}")), "{steps:?}");
    }
    assert!(!steps.iter().any(|step| step.contains("taint w-1") || step.contains("taint cp-1")), "{steps:?}");
    assert!(end.nodes.values().all(|node| node.stage == Stage::Done), "{end:?}");
    // A taint on its way takes nobody's place.
    let mut snapshot = super::snapshot(&["w-1", "w-2"], &plan("1.37.1"));
    snapshot.policy.prefer_ready = true;
    snapshot.busy.insert(Action::Taint("w-2".parse().unwrap()));
    assert_eq!(actions(&snapshot), ["permit changes on w-1"]);
    // Who no longer wants it has it taken away.
    snapshot.busy.clear();
    snapshot.policy.prefer_ready = false;
    change(&mut snapshot, "w-2", |node| node.taints = crate::rollout::patch::taints(node, true));
    assert_eq!(actions(&snapshot), ["permit changes on w-1", "remove the taint of w-2"]);
}
