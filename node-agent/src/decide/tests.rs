//! Each branch by an example; what holds for all inputs is in `properties`, what holds over time in `simulation`.

mod properties;
mod refusals;
mod simulation;
mod trouble;

use super::*;
use crate::{
    journal::{Limits, Step},
    observe::BootId,
    software::{ALL, Observed, name_of},
};

pub(super) const LIMITS: Limits = Limits { attempts: 3, delay: SignedDuration::from_secs(10) };
pub(super) const PATIENCE: SignedDuration = SignedDuration::from_secs(300);
const OLD: &str = "1.36.4";
const NEW: &str = "1.37.1";
const PARTS: [&str; 4] = ["kubeadm", KUBERNETES, "kubelet", "kubectl"];

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(super) fn name(text: &str) -> SoftwareName {
    text.parse().unwrap()
}

pub(super) fn version(text: &str) -> SoftwareVersion {
    text.parse().unwrap()
}

pub(super) fn plan(versions: &[(&str, &str)]) -> Plan {
    Plan::new(versions.iter().map(|(software, text)| (name(software), version(text))).collect())
}

/// A plan of infrop's for a Kubernetes version.
pub(super) fn kubernetes(text: &str) -> Plan {
    plan(&[("kubeadm", text), ("kubelet", text), ("kubectl", text)])
}

pub(super) fn permitted(plan: &Plan) -> Asked {
    Asked::Node(Ok(Request { permit: true, paused: None, plan: Some(plan.clone()) }))
}

fn unpermitted(plan: &Plan) -> Asked {
    Asked::Node(Ok(Request { permit: false, paused: None, plan: Some(plan.clone()) }))
}

fn paused(plan: &Plan) -> Asked {
    Asked::Node(Ok(Request { permit: true, paused: Some("lunch".into()), plan: Some(plan.clone()) }))
}

fn broken() -> Failed {
    Failed { reason: Reason::PackageFailed, message: "broken".into() }
}

/// A host, and what a decision about it is made of.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) now: Timestamp,
    pub(super) host: HostState,
    pub(super) journal: Journal,
    pub(super) cluster: Option<KubernetesVersion>,
}

impl Case {
    /// A host in no cluster, with nothing on it.
    pub(super) fn bare() -> Self {
        let software = ALL.iter().map(|one| (name_of(*one).unwrap(), Observed::default())).collect();
        let mut host = HostState { software, ..HostState::default() };
        host.facts.boot = BootId::new("first");
        Self { now: at(1000), host, journal: Journal::default(), cluster: None }
    }

    /// A worker of a cluster, both with a Kubernetes version.
    pub(super) fn worker(text: &str) -> Self {
        let mut case = Self::bare().with(&PARTS.map(|part| (part, text)));
        case.host.facts.joined = true;
        case.cluster = Some(text.parse().unwrap());
        case
    }

    /// The same as a control plane.
    pub(super) fn control_plane(text: &str) -> Self {
        let mut case = Self::worker(text);
        case.host.facts.control_plane = true;
        case
    }

    pub(super) fn with(mut self, versions: &[(&str, &str)]) -> Self {
        for (software, text) in versions {
            *self.observed(software) = Observed::now(Some(version(text)));
        }
        self
    }

    fn cluster(self, text: &str) -> Self {
        Self { cluster: Some(text.parse().unwrap()), ..self }
    }

    fn delivered(mut self, software: &str, text: &str) -> Self {
        self.host.contents.insert((name(software), version(text)));
        self
    }

    fn accepted(mut self, plan: &Plan, origin: Origin) -> Self {
        self.journal.accept(plan.clone(), origin, true, self.now);
        self
    }

    pub(super) fn observed(&mut self, software: &str) -> &mut Observed {
        let found = self.host.software.iter_mut().find(|(known, _)| known.as_str() == software);
        &mut found.unwrap().1
    }

    pub(super) fn decide(&self, asked: &Asked) -> Decision {
        let Self { now, host, journal, cluster } = self;
        let cluster = cluster.as_ref();
        decide(&Snapshot { now: *now, asked, host, journal, cluster, api_patience: PATIENCE })
    }

    /// The rest that is decided.
    pub(super) fn rest(&self, asked: &Asked) -> Rest {
        match self.decide(asked) {
            Decision::Rest(rest) => rest,
            other => panic!("{other:?}"),
        }
    }

    fn rests(&self, asked: &Asked, phase: Phase, reason: Reason, standing: &Standing) {
        let rest = self.rest(asked);
        assert_eq!((rest.phase, rest.reason, &rest.standing), (phase, reason, standing), "{}", rest.message);
    }

    /// Does what is decided, without a failure; gives the changes until something else is decided.
    fn changes(&mut self, asked: &Asked) -> Vec<String> {
        let mut changes = Vec::new();
        while let Decision::Change { software, version } = self.decide(asked) {
            changes.push(software.to_string());
            self.change(&software, &version);
        }
        changes
    }

    /// A change as the software here makes it: a kernel and a reboot need a boot to be there.
    pub(super) fn change(&mut self, software: &SoftwareName, version: &SoftwareVersion) {
        let observed = self.observed(software.as_str());
        observed.after_reboot = Some(version.clone());
        observed.stale = false;
        if !["kernel", "reboot"].contains(&software.as_str()) {
            observed.version = Some(version.clone());
        }
    }

    pub(super) fn boot(&mut self, boot: &str) {
        self.host.facts.boot = BootId::new(boot);
        for (_, observed) in &mut self.host.software {
            observed.version.clone_from(&observed.after_reboot);
        }
    }
}

#[test]
fn nobody_asked() {
    Case::bare().rests(&Asked::Nothing, Phase::Idle, Reason::NoPlan, &Standing::Keep);
    let none = Asked::Node(Ok(Request::default()));
    Case::worker(OLD).rests(&none, Phase::Idle, Reason::NoPlan, &Standing::NoPlan);
    // Also in the middle of a plan: without one there is nothing to go on with.
    let mut case = Case::worker(OLD).accepted(&kubernetes(OLD), Origin::Node);
    case.rests(&none, Phase::Idle, Reason::NoPlan, &Standing::NoPlan);
    case.journal.stand(case.rest(&none).standing);
    assert_eq!(case.journal.active, None);
}

#[test]
fn metadata_is_followed_from_a_bare_host_to_an_initialized_one() {
    let hash = "sha256:0123456789abcdef";
    let all: Vec<(&str, &str)> = ALL
        .iter()
        .map(|one| match one.name() {
            content if one.has_contents() => (content, hash),
            "kubeadm" | "kubelet" | "kubectl" => (one.name(), NEW),
            other => (other, "1"),
        })
        // Kubernetes is no package, and there is none yet.
        .filter(|(software, _)| *software != KUBERNETES)
        .collect();
    let goal = plan(&all);
    let asked = Asked::Metadata(goal.clone());
    let mut case = Case::bare();
    for (software, text) in &all {
        case = case.delivered(software, text);
    }
    assert_eq!(
        case.decide(&asked),
        Decision::Accept { plan: goal.clone(), origin: Origin::Metadata, permitted: true }
    );
    case = case.accepted(&goal, Origin::Metadata);
    let order: Vec<&str> = all.iter().map(|(software, _)| *software).collect();
    assert_eq!(case.changes(&asked), order);
    assert_eq!(case.decide(&asked), Decision::Reboot);
    case.journal.begin(Step::Reboot, &case.host.facts.boot);
    case.boot("second");
    case.journal.recover(&case.host.facts.boot, case.now, LIMITS);
    assert_eq!(case.decide(&asked), Decision::Finish { origin: Origin::Metadata });
    case.journal.finish(case.now);
    case.rests(&asked, Phase::Idle, Reason::UpToDate, &Standing::Keep);
    // Drift before the cluster is nobody's harm, other metadata is another plan, and after it the first starts anew.
    *case.observed("swap") = Observed::default();
    case.rests(&asked, Phase::Idle, Reason::UpToDate, &Standing::Keep);
    let other = plan(&[("containerd", "2")]);
    assert!(matches!(case.decide(&Asked::Metadata(other.clone())), Decision::Accept { .. }));
    case.journal.accept(other, Origin::Metadata, true, case.now);
    assert_eq!(
        case.decide(&asked),
        Decision::Accept { plan: goal, origin: Origin::Metadata, permitted: true }
    );
}

#[test]
fn metadata_is_finished_also_if_nothing_differs_and_ends_where_a_cluster_begins() {
    let goal = plan(&[("containerd", "2")]);
    let asked = Asked::Metadata(goal.clone());
    let mut case = Case::bare().with(&[("containerd", "2")]);
    assert_eq!(
        case.decide(&asked),
        Decision::Accept { plan: goal.clone(), origin: Origin::Metadata, permitted: true }
    );
    case = case.accepted(&goal, Origin::Metadata);
    assert_eq!(case.decide(&asked), Decision::Finish { origin: Origin::Metadata });
    // The host joined in the middle: what is left needs a permit.
    case = case.with(&[("containerd", "1")]);
    case.host.facts.joined = true;
    case.rests(&asked, Phase::Waiting, Reason::ApiUnreachable, &Standing::Keep);
    case.rests(&Asked::Silence { since: at(0) }, Phase::Waiting, Reason::ApiUnreachable, &Standing::Keep);
    assert_eq!(
        case.decide(&permitted(&goal)),
        Decision::Accept { plan: goal, origin: Origin::Node, permitted: true }
    );
}

#[test]
fn a_host_at_its_plan_is_idle_whatever_the_permit() {
    let goal = kubernetes(NEW);
    let mut case = Case::worker(NEW);
    for asked in [permitted(&goal), unpermitted(&goal), paused(&goal)] {
        case.rests(&asked, Phase::Idle, Reason::UpToDate, &Standing::At(goal.id()));
    }
    // Software beside the plan is nobody's business.
    case = case.with(&[("haproxy", "3")]);
    case.cluster = None;
    case.rests(&permitted(&goal), Phase::Idle, Reason::UpToDate, &Standing::At(goal.id()));
}

#[test]
fn without_a_permit_nothing_begins() {
    let goal = kubernetes(NEW);
    let mut case = Case::worker(OLD).cluster(NEW);
    case.rests(&unpermitted(&goal), Phase::Waiting, Reason::NoPermit, &Standing::Keep);
    case.rests(&paused(&goal), Phase::Waiting, Reason::Paused, &Standing::Keep);
    assert!(case.rest(&paused(&goal)).message.contains("lunch"));
    assert!(case.rest(&unpermitted(&goal)).message.ends_with("next would be kubeadm 1.37.1"));
    // `ready` spoke of this very plan, and the host has left it.
    case.journal.stand(Standing::At(goal.id()));
    case.rests(&unpermitted(&goal), Phase::Waiting, Reason::NoPermit, &Standing::Missed(goal.id()));
    let mut case = Case::worker(NEW);
    let reboot = plan(&[("reboot", "1")]);
    case.observed("reboot").after_reboot = Some(version("1"));
    assert!(case.rest(&unpermitted(&reboot)).message.ends_with("next would be a reboot"));
}

#[test]
fn what_is_under_way_stops_when_the_permit_goes() {
    let goal = kubernetes(NEW);
    let mut case = Case::worker(OLD).cluster(NEW).accepted(&goal, Origin::Node);
    case.change(&name("kubeadm"), &version(NEW));
    let missed = Standing::Missed(goal.id());
    case.rests(&unpermitted(&goal), Phase::Waiting, Reason::PermitWithdrawn, &missed);
    case.rests(&paused(&goal), Phase::Waiting, Reason::Paused, &missed);
    assert!(matches!(case.decide(&permitted(&goal)), Decision::Change { .. }));
    // The last change is made: looking whether it works changes nothing.
    case.changes(&permitted(&goal));
    assert_eq!(case.decide(&unpermitted(&goal)), Decision::Finish { origin: Origin::Node });
}

#[test]
fn kubernetes_is_changed_in_kubeadms_order_and_containerd_before_it() {
    let parts = [("kubeadm", NEW), ("kubelet", NEW), ("kubectl", NEW), ("containerd", "2"), ("reboot", "x")];
    let goal = plan(&parts);
    for mut case in [Case::worker(OLD).cluster(NEW), Case::control_plane(OLD)] {
        let asked = permitted(&goal);
        assert_eq!(
            case.decide(&asked),
            Decision::Accept { plan: goal.clone(), origin: Origin::Node, permitted: true }
        );
        case = case.accepted(&goal, Origin::Node);
        let order = ["containerd", "kubeadm", "kubernetes", "kubelet", "kubectl", "reboot"];
        assert_eq!(case.changes(&asked), order);
        assert_eq!(case.decide(&asked), Decision::Reboot);
        case.boot("second");
        assert_eq!(case.decide(&asked), Decision::Finish { origin: Origin::Node });
    }
    // A half-done step of kubeadm, or a service with the old program, is changed again.
    let mut case = Case::worker(NEW).accepted(&goal, Origin::Node);
    case.observed(KUBERNETES).stale = true;
    let case = case.with(&[("containerd", "2"), ("reboot", "x")]);
    assert!(
        matches!(case.decide(&permitted(&goal)), Decision::Change { software, .. } if software.as_str() == KUBERNETES)
    );
}

#[test]
fn another_plan_supersedes_the_one_under_way() {
    let (first, second) = (kubernetes(NEW), plan(&[("containerd", "2")]));
    let mut case = Case::worker(OLD).cluster(NEW).accepted(&first, Origin::Node);
    case.change(&name("kubeadm"), &version(NEW));
    case.rests(&unpermitted(&second), Phase::Waiting, Reason::NoPermit, &Standing::Keep);
    assert_eq!(
        case.decide(&permitted(&second)),
        Decision::Accept { plan: second.clone(), origin: Origin::Node, permitted: true }
    );
    let there = case.clone().with(&[("containerd", "2")]);
    there.rests(&permitted(&second), Phase::Idle, Reason::UpToDate, &Standing::At(second.id()));
    let mut case = case.accepted(&second, Origin::Node);
    assert_eq!(case.changes(&permitted(&second)), ["containerd"]);
}

#[test]
fn decisions_are_told_in_words() {
    let goal = kubernetes(NEW);
    let accept = Decision::Accept { plan: goal.clone(), origin: Origin::Node, permitted: true };
    assert_eq!(accept.to_string(), format!("begin plan {}", goal.id()));
    let change = Decision::Change { software: name("kubelet"), version: version(NEW) };
    assert_eq!(change.to_string(), "bring kubelet to 1.37.1");
    assert_eq!(Decision::Reboot.to_string(), "restart the host");
    assert_eq!(Decision::Finish { origin: Origin::Node }.to_string(), "check services and report ready");
    assert_eq!(Decision::GiveUp(broken()).to_string(), "give up: broken");
    let idle = Case::bare().decide(&Asked::Nothing);
    assert_eq!(idle.to_string(), "Idle: there is neither metadata nor a cluster");
}
