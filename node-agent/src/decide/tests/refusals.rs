//! Plans that are not tried.

use super::*;

#[test]
fn annotations_that_make_no_sense_change_nothing_and_no_verdict() {
    let goal = kubernetes(NEW);
    let case = Case::worker(OLD).cluster(NEW).accepted(&goal, Origin::Node);
    let invalid = RequestError::Invalid { key: "k".into(), why: "w".into() };
    for (error, reason) in [
        (invalid, Reason::InvalidAnnotation),
        (RequestError::TooMany, Reason::InvalidAnnotation),
        (RequestError::NoHash, Reason::PlanMismatch),
        (RequestError::WrongHash { expected: goal.id() }, Reason::PlanMismatch),
    ] {
        case.rests(&Asked::Node(Err(error)), Phase::Refused, reason, &Standing::Keep);
    }
    // When they make sense again, the plan goes on.
    assert!(matches!(case.decide(&permitted(&goal)), Decision::Change { .. }));
}

#[test]
fn a_plan_that_cannot_be_tried_is_refused_with_its_reason() {
    let worker = || Case::worker(OLD).cluster(NEW);
    let hash = "sha256:0123456789abcdef";
    let mixed = plan(&[("kubeadm", NEW), ("kubelet", OLD)]);
    let only_kubelet = plan(&[("kubelet", NEW)]);
    for (case, goal, reason) in [
        (worker(), plan(&[("flux-capacitor", "1")]), Reason::UnknownSoftware),
        (worker(), plan(&[("sysctl", hash)]), Reason::ContentMissing),
        (worker(), mixed, Reason::SkewMixedVersions),
        (worker(), kubernetes("1.37.1-1.1"), Reason::InvalidAnnotation),
        (worker(), kubernetes("latest"), Reason::InvalidAnnotation),
        (worker(), kubernetes("1.36.3"), Reason::SkewDowngrade),
        (worker(), kubernetes("1.35.9"), Reason::SkewDowngrade),
        (worker().cluster("1.38.0"), kubernetes("1.38.0"), Reason::SkewMinorSkipped),
        (worker(), kubernetes("1.37.2"), Reason::SkewNewerThanApiServer),
        (Case::control_plane(OLD), kubernetes("1.38.0"), Reason::SkewMinorSkipped),
        // A control plane that was left behind by two versions.
        (Case::control_plane(OLD).cluster("1.38.0"), kubernetes(NEW), Reason::SkewDowngrade),
        // The static pods went ahead, and the kubelet did not follow.
        (Case::control_plane(NEW).with(&[("kubelet", OLD)]), kubernetes("1.38.0"), Reason::SkewMinorSkipped),
        // Without kubeadm the API server of this host stays, and the kubelet would be newer.
        (Case::control_plane(OLD), only_kubelet.clone(), Reason::SkewNewerThanApiServer),
        (Case::control_plane(OLD).cluster(NEW), only_kubelet, Reason::SkewNewerThanApiServer),
    ] {
        let missed = Standing::Missed(goal.id());
        for asked in [permitted(&goal), unpermitted(&goal)] {
            case.rests(&asked, Phase::Refused, reason, &missed);
            // Not even if it has begun.
            case.clone().accepted(&goal, Origin::Node).rests(&asked, Phase::Refused, reason, &missed);
        }
    }
}

#[test]
fn what_looks_alike_and_is_allowed() {
    let hash = "sha256:0123456789abcdef";
    let content = plan(&[("sysctl", hash)]);
    let goal = kubernetes(NEW);
    let only_kubelet = plan(&[("kubelet", NEW)]);
    let static_pods_first = Case::control_plane(NEW).with(&[("kubelet", OLD), ("kubeadm", OLD)]);
    for (case, goal) in [
        (Case::worker(OLD).delivered("sysctl", hash), &content),
        (Case::worker(OLD).cluster(NEW), &goal),
        (Case::worker(OLD).cluster(NEW), &only_kubelet),
        // The first control plane goes ahead of the cluster, the next ones follow it.
        (Case::control_plane(OLD), &goal),
        (Case::control_plane(OLD).cluster(NEW), &goal),
        (static_pods_first.clone(), &goal),
        (static_pods_first, &only_kubelet),
        // Before a host is in a cluster there is nothing to be newer than.
        (Case::bare().with(&[("kubelet", "1.38.0")]), &goal),
    ] {
        let accept = Decision::Accept { plan: goal.clone(), origin: Origin::Node, permitted: true };
        assert_eq!(case.decide(&permitted(goal)), accept);
    }
    // A content the host has needs no delivery.
    let there = Case::worker(OLD).with(&[("sysctl", hash)]);
    there.rests(&permitted(&content), Phase::Idle, Reason::UpToDate, &Standing::At(content.id()));
}

#[test]
fn a_refused_plan_ends_the_one_under_way() {
    let (good, bad) = (kubernetes(NEW), plan(&[("flux-capacitor", "1")]));
    let mut case = Case::worker(OLD).cluster(NEW).accepted(&good, Origin::Node);
    case.journal.stand(case.rest(&permitted(&bad)).standing);
    assert_eq!(case.journal.active, None);
    assert_eq!(
        case.decide(&permitted(&good)),
        Decision::Accept { plan: good, origin: Origin::Node, permitted: true }
    );
}

#[test]
fn an_unknown_cluster_version_is_waited_for() {
    let goal = kubernetes(NEW);
    let mut case = Case::worker(OLD);
    case.cluster = None;
    case.rests(&permitted(&goal), Phase::Waiting, Reason::ApiUnreachable, &Standing::Keep);
    // The Node said that the host is at this very plan, and it no longer is.
    let mut drifted = case.clone();
    drifted.journal.stand(Standing::At(goal.id()));
    drifted.rests(&permitted(&goal), Phase::Waiting, Reason::ApiUnreachable, &Standing::Missed(goal.id()));
    // Where nothing differs, nothing has to be known.
    let kubectl = plan(&[("kubectl", NEW)]);
    let there = case.clone().with(&[("kubectl", NEW)]);
    there.rests(&permitted(&kubectl), Phase::Idle, Reason::UpToDate, &Standing::At(kubectl.id()));
    // kubeadm has done its part, which it could not without the cluster.
    let case = case.with(&[("kubeadm", NEW), (KUBERNETES, NEW)]).accepted(&goal, Origin::Node);
    let next = Decision::Change { software: name("kubelet"), version: version(NEW) };
    assert_eq!(case.decide(&permitted(&goal)), next);
}
