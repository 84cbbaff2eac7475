//! Failures, quarantine, reboots and silence.

use super::*;

#[test]
fn a_failed_attempt_waits_and_is_repeated() {
    let goal = kubernetes(NEW);
    let asked = permitted(&goal);
    let mut case = Case::worker(OLD).cluster(NEW).accepted(&goal, Origin::Node);
    case.journal.fail(broken(), case.now, LIMITS, 0.0);
    case.rests(&asked, Phase::Retrying, Reason::PackageFailed, &Standing::Missed(goal.id()));
    let until = case.rest(&asked).until.unwrap();
    assert_eq!(until, at(1010));
    // A failed check of services waits, too.
    let mut done = case.clone().with(&PARTS.map(|part| (part, NEW)));
    done.rests(&asked, Phase::Retrying, Reason::PackageFailed, &Standing::Missed(goal.id()));
    (case.now, done.now) = (until, until);
    assert!(matches!(case.decide(&asked), Decision::Change { .. }));
    assert_eq!(done.decide(&asked), Decision::Finish { origin: Origin::Node });
}

#[test]
fn quarantine_is_for_one_plan_survives_a_restart_and_ends_by_a_person_or_another_plan() {
    let (goal, other) = (kubernetes(NEW), kubernetes("1.37.2"));
    let asked = permitted(&goal);
    let mut case = Case::worker(OLD).cluster("1.37.2").accepted(&goal, Origin::Node);
    case.journal.give_up(broken(), case.now);
    let text = serde_json::to_string(&case.journal).unwrap();
    case.journal = serde_json::from_str(&text).unwrap();
    case.journal.recover(&BootId::new("second"), case.now, LIMITS);
    for asked in [&asked, &unpermitted(&goal), &paused(&goal)] {
        case.rests(asked, Phase::Quarantined, Reason::PackageFailed, &Standing::Missed(goal.id()));
        case.journal.hear(asked);
        case.journal.stand(case.rest(asked).standing);
    }
    // Neither does it end by a plan that vanishes, by garbage, by silence, or by a plan nobody had to begin.
    let there = permitted(&kubernetes(OLD));
    let garbage = Asked::Node(Err(RequestError::NoHash));
    for between in [Asked::Node(Ok(Request::default())), garbage, Asked::Silence { since: at(0) }, there] {
        case.journal.hear(&between);
        case.journal.stand(case.rest(&between).standing);
        assert_eq!(case.rest(&asked).phase, Phase::Quarantined, "{between:?}");
    }
    let mut retried = case.clone();
    assert!(retried.journal.retry());
    assert!(matches!(retried.decide(&asked), Decision::Accept { .. }));
    assert_eq!(
        case.decide(&permitted(&other)),
        Decision::Accept { plan: other.clone(), origin: Origin::Node, permitted: true }
    );
    case = case.accepted(&other, Origin::Node);
    assert!(matches!(case.decide(&asked), Decision::Accept { .. }));
}

/// Versions say nothing of services: after a change, and after a check that failed, they are looked at before `ready`.
#[test]
fn a_host_whose_services_were_not_found_well_is_at_no_plan() {
    let (goal, smaller) = (kubernetes(NEW), plan(&[("kubelet", NEW)]));
    let mut case = Case::worker(NEW).accepted(&goal, Origin::Node);
    let check = |case: &Case, plan: &Plan| {
        // Looking needs no permit.
        for (asked, permitted) in [(permitted(plan), true), (unpermitted(plan), false)] {
            let accept = Decision::Accept { plan: plan.clone(), origin: Origin::Node, permitted };
            assert_eq!(case.decide(&asked), accept);
        }
    };
    // The check fails until the plan is given up; then a person says: try again.
    for _ in 0..LIMITS.attempts {
        assert_eq!(case.decide(&permitted(&goal)), Decision::Finish { origin: Origin::Node });
        case.journal.fail(broken(), case.now, LIMITS, 0.0);
        case.now = at(case.now.as_second() + 600);
    }
    case.rests(&permitted(&goal), Phase::Quarantined, Reason::PackageFailed, &Standing::Missed(goal.id()));
    // A plan of what is there is no way around it, and neither is a restart of the agent.
    check(&case, &smaller);
    case.journal = serde_json::from_str(&serde_json::to_string(&case.journal).unwrap()).unwrap();
    check(&case, &smaller);
    assert!(case.journal.retry());
    check(&case, &goal);
    case = case.accepted(&goal, Origin::Node);
    assert_eq!(case.decide(&permitted(&goal)), Decision::Finish { origin: Origin::Node });
    case.journal.finish(case.now);
    case.rests(&permitted(&smaller), Phase::Idle, Reason::UpToDate, &Standing::At(smaller.id()));
    // A change that was made, and another plan before anybody looked.
    let mut case = Case::worker(OLD).accepted(&plan(&[("containerd", "2")]), Origin::Node);
    case.journal.begin(Step::Change(name("containerd")), &case.host.facts.boot);
    case.change(&name("containerd"), &version("2"));
    case.journal.end_step();
    check(&case, &kubernetes(OLD));
}

/// Cut off in the middle, kubeadm's part was finished by a person: the agent runs it again, and that depends on the
/// cluster although every version is there.
#[test]
fn an_unfinished_kubeadm_depends_on_the_cluster_whatever_versions_say() {
    let (goal, target) = (kubernetes(NEW), NEW.parse().unwrap());
    for mut case in [Case::worker(NEW), Case::control_plane(NEW)] {
        assert!(!needs_cluster(&case.host, &target));
        case.observed(KUBERNETES).stale = true;
        assert!(needs_cluster(&case.host, &target));
        let again = Decision::Change { software: name(KUBERNETES), version: version(NEW) };
        assert_eq!(case.accepted(&goal, Origin::Node).decide(&permitted(&goal)), again);
    }
    for part in [KUBERNETES, "kubelet"] {
        assert!(needs_cluster(&Case::worker(NEW).with(&[(part, OLD)]).host, &target));
    }
}

/// A server that answers could be asked for a permit; who may not see the Node has none, however long that lasts.
#[test]
fn a_refusal_is_not_waited_out() {
    let goal = kubernetes(NEW);
    let refusal = Asked::Refusal("the API server refused: nodes \"w1\" is forbidden".into());
    let mut case = Case::worker(OLD).cluster(NEW).accepted(&goal, Origin::Node);
    case.now = at(999_999);
    case.rests(&refusal, Phase::Waiting, Reason::ApiRefused, &Standing::Keep);
    assert!(case.rest(&refusal).message.contains("forbidden"));
    // What was last heard stays.
    case.journal.hear(&refusal);
    assert!(!case.journal.active.as_ref().unwrap().withdrawn);
    case.journal.hear(&unpermitted(&goal));
    case.journal.hear(&refusal);
    assert!(case.journal.active.as_ref().unwrap().withdrawn);
    // A host at its plan, and one that is in no plan, have nothing to do either.
    Case::worker(NEW).rests(&refusal, Phase::Waiting, Reason::ApiRefused, &Standing::Keep);
}

#[test]
fn a_reboot_is_ordered_once() {
    let goal = plan(&[("kernel", "6.2")]);
    let asked = permitted(&goal);
    let mut case = Case::worker(NEW).with(&[("kernel", "6.1")]).accepted(&goal, Origin::Node);
    case.changes(&asked);
    assert_eq!(case.decide(&asked), Decision::Reboot);
    case.rests(&unpermitted(&goal), Phase::Waiting, Reason::PermitWithdrawn, &Standing::Missed(goal.id()));
    case.journal.begin(Step::Reboot, &case.host.facts.boot);
    // It was not done: the same boot proves that, and it is tried again.
    case.journal.fail(broken(), at(0), LIMITS, 0.0);
    assert_eq!(case.decide(&asked), Decision::Reboot);
    case.journal.begin(Step::Reboot, &case.host.facts.boot);
    let mut ineffective = case.clone();
    case.boot("second");
    assert_eq!(case.decide(&asked), Decision::Finish { origin: Origin::Node });
    ineffective.host.facts.boot = BootId::new("second");
    let Decision::GiveUp(failed) = ineffective.decide(&asked) else { panic!() };
    assert_eq!(failed.reason, Reason::RebootIneffective);
    ineffective.journal.give_up(failed, case.now);
    assert_eq!(ineffective.rest(&asked).phase, Phase::Quarantined);
}

/// Looking begins without a permit; if versions are no longer right when the API server has gone away, it ends there.
#[test]
fn a_look_without_a_permit_becomes_no_change_in_silence() {
    let goal = plan(&[("containerd", "2")]);
    let silence = Asked::Silence { since: at(0) };
    for (asked, changes) in [(unpermitted(&goal), false), (paused(&goal), false), (permitted(&goal), true)] {
        let mut case = Case::worker(NEW).with(&[("containerd", "2")]);
        case.journal.unverified = true;
        let Decision::Accept { plan, origin, permitted } = case.decide(&asked) else {
            panic!("not looked at")
        };
        case.journal.accept(plan, origin, permitted, case.now);
        assert_eq!(case.decide(&asked), Decision::Finish { origin: Origin::Node });
        let mut case = case.with(&[("containerd", "1")]);
        case.now = at(9000);
        assert_eq!(matches!(case.decide(&silence), Decision::Change { .. }), changes, "{asked:?}");
    }
}

#[test]
fn silence_is_waited_out_only_by_a_plan_that_had_a_permit_when_it_was_last_heard_of() {
    let goal = kubernetes(NEW);
    let silence = Asked::Silence { since: at(1000) };
    let mut case = Case::worker(OLD);
    case.cluster = None;
    case.rests(&silence, Phase::Waiting, Reason::ApiUnreachable, &Standing::Keep);
    case = case.accepted(&goal, Origin::Node);
    case.now = at(1299);
    case.rests(&silence, Phase::Waiting, Reason::ApiUnreachable, &Standing::Keep);
    assert_eq!(case.rest(&silence).until, Some(at(1300)));
    case.now = at(1300);
    // Nobody knows what the cluster has, so kubeadm's part waits; what follows it does not.
    case.rests(&silence, Phase::Waiting, Reason::ApiUnreachable, &Standing::Missed(goal.id()));
    case = case.with(&[("kubeadm", NEW), (KUBERNETES, NEW)]);
    assert_eq!(case.changes(&silence), ["kubelet", "kubectl"]);
    assert_eq!(case.decide(&silence), Decision::Finish { origin: Origin::Node });

    case = case.with(&[("kubelet", OLD)]);
    case.now = at(9000);
    for last_word in [unpermitted(&goal), paused(&goal), Asked::Node(Err(RequestError::TooMany))] {
        let mut case = case.clone();
        case.journal.hear(&last_word);
        case.rests(&silence, Phase::Waiting, Reason::ApiUnreachable, &Standing::Keep);
        case.journal.hear(&permitted(&goal));
        assert!(matches!(case.decide(&silence), Decision::Change { .. }));
    }
    case.journal.accept(goal, Origin::Metadata, true, case.now);
    case.rests(&silence, Phase::Waiting, Reason::ApiUnreachable, &Standing::Keep);
    // A clock at its end waits for ever instead of failing.
    let last = Asked::Silence { since: Timestamp::MAX };
    case.rests(&last, Phase::Waiting, Reason::ApiUnreachable, &Standing::Keep);
}
