//! Where one node is on its way: a pure function of its Node and its plan.

use common::{
    KubernetesVersion,
    annotations::{
        self, CHANGES_ALLOWED, CORDONED_BY, EXCLUDED_BY, PAUSED, PERMITTED_PLAN, PLAN, PLAN_OBSERVED, READY,
        STATE,
    },
    plan::Plan,
    skew,
    software::{SoftwareName, SoftwareVersion},
    state::{Phase, State},
};
use jiff::Timestamp;

use super::{
    policy::{Policy, Terms},
    reason::Reason,
    snapshot::{Failing, Member},
};
use crate::cluster::{Cordon, NodeView};

/// What a rollout's cordon is marked with; the plan's hash follows.
pub const MARK: &str = "rollout/";

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    /// What comes next.
    pub stage: Stage,
    /// Why, as a code.
    pub reason: Reason,
    /// Why, as a sentence.
    pub message: String,
    /// When to look again although nothing happened.
    pub until: Option<Timestamp>,
    /// Whether pods cannot count on it, for whatever reason.
    pub away: bool,
}

/// The reason, and its sentence if it has one.
impl std::fmt::Display for Assessment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { reason, message, .. } = self;
        if message.is_empty() { write!(f, "{reason}") } else { write!(f, "{reason}: {message}") }
    }
}

/// What comes next for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing.
    Done,
    /// It may be begun, as far as it is concerned.
    Pending,
    /// infrop's next step with it.
    Do(Verb),
    /// Someone else's: its node-agent, its kubelet, time.
    Wait,
    /// A person's.
    Stuck,
    /// A person's, and it failed.
    Failed,
}

/// A step of infrop with a node that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Keep pods from coming.
    Cordon,
    /// Make pods go.
    Drain,
    /// Write the plan.
    Plan,
    /// Look at the pods that belong there.
    Check,
    /// Run what a site checks.
    Test,
    /// Let pods come.
    Uncordon,
    /// Take our mark from a node whose cordon a person lifted: the next cordon may be theirs.
    Unmark,
    /// Withdraw the permit.
    Withdraw,
}

/// What a Node says of its way to a plan, read once.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an annotation of its own; any of them go together"
)]
pub(super) struct Reading {
    /// Whether there is a plan on it.
    planned: bool,
    /// Whether the plan on it is the target, and the permit, if there is one, for it.
    written: bool,
    /// Whether its agent speaks of the target.
    observed: bool,
    /// Whether its agent says that it is there.
    ready: bool,
    state: Option<State>,
    cordon: Cordon,
    /// The software that is in another version.
    differs: Vec<(SoftwareName, SoftwareVersion)>,
    /// The version its kubelet is to report.
    kubelet: Option<SoftwareVersion>,
    /// Why its Kubernetes version cannot be the next one.
    skew: Option<String>,
}

impl Reading {
    pub(super) fn new(node: &NodeView, target: &Plan) -> Self {
        let annotations = &node.annotations;
        let get = |key: &str| annotations.get(key).map(String::as_str);
        let id = target.id();
        let current = annotations::read_current(annotations);
        let differs = target.desired.iter().filter(|(name, version)| {
            current.get(name.as_str()).is_none_or(|current| current != version.as_str())
        });
        let kubelet = target.desired.iter().find(|(name, _)| name.as_str() == "kubelet");
        Self {
            planned: annotations.contains_key(PLAN),
            // The hash alone is not enough: a person may have changed a version beside it.
            written: annotations::read_request(annotations)
                .is_ok_and(|request| request.plan.as_ref() == Some(target))
                && get(PERMITTED_PLAN).is_none_or(|permitted| permitted == id.as_str()),
            observed: get(PLAN_OBSERVED) == Some(id.as_str()),
            ready: get(READY) == Some("true"),
            state: get(STATE).and_then(|text| serde_json::from_str(text).ok()),
            cordon: Cordon::of(node.cordoned, get(CORDONED_BY)),
            differs: differs.map(|(name, version)| (name.clone(), version.clone())).collect(),
            kubelet: kubelet.map(|(_, version)| version.clone()),
            skew: check_skew(node, target).err(),
        }
    }

    /// Whether the cordon is a rollout's.
    fn cordoned_by_us(&self) -> bool {
        matches!(&self.cordon, Cordon::Marked(mark) if mark.starts_with(MARK))
    }

    /// The software that is in another version.
    pub(super) fn differs(&self) -> &[(SoftwareName, SoftwareVersion)] {
        &self.differs
    }

    /// Whether its agent is in the middle of something, whoever asked for it.
    fn at_work(&self) -> bool {
        let phase = self.state.as_ref().map(|state| state.phase);
        matches!(phase, Some(Phase::Changing | Phase::Rebooting | Phase::Verifying))
    }

    pub(super) fn at_target(&self) -> bool {
        self.written && self.observed && self.ready && self.differs.is_empty()
    }

    /// What its agent does for the target.
    fn phase(&self) -> Option<Phase> {
        self.state.as_ref().filter(|_| self.observed).map(|state| state.phase)
    }

    /// What its agent says.
    fn said(&self) -> String {
        self.state.as_ref().map_or_else(
            || "its node-agent says nothing".to_owned(),
            |state| {
                format!("{} ({}): {}", state.phase, state.reason, annotations::shorten_middle(&state.message))
            },
        )
    }

    /// What is about to change, for people.
    pub(super) fn change(&self) -> String {
        let parts: Vec<String> =
            self.differs.iter().map(|(name, version)| format!("{name} {version}")).collect();
        parts.join(", ")
    }
}

/// What a Node says of a rollout whatever its target is, read once as well.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signs {
    /// Whether it has a permit.
    pub(super) permit: bool,
    /// Whether it has a rollout's mark and no cordon.
    pub(super) left_mark: bool,
}

impl Signs {
    pub(super) fn of(node: &NodeView) -> Self {
        Self { permit: has_permit(node), left_mark: has_left_mark(node) }
    }
}

/// Whether a Node has a permit.
pub fn has_permit(node: &NodeView) -> bool {
    node.annotations.get(CHANGES_ALLOWED).is_some_and(|value| value == "true")
}

/// Whether a Node has a rollout's mark and no cordon.
pub(super) fn has_left_mark(node: &NodeView) -> bool {
    let marked = node.annotations.get(CORDONED_BY).is_some_and(|mark| mark.starts_with(MARK));
    !node.cordoned && (marked || node.annotations.contains_key(EXCLUDED_BY))
}

fn check_skew(node: &NodeView, target: &Plan) -> Result<(), String> {
    let Some(target) = kubernetes(target) else { return Ok(()) };
    let Ok(from) = node.kubelet.parse::<KubernetesVersion>() else { return Ok(()) };
    skew::check_step(&from, &target).map_err(|error| error.to_string())
}

/// Where a node is. `others` is whether pods have another node to go to.
pub fn assess(member: &Member, policy: &Policy, others: bool, now: Timestamp) -> Assessment {
    // A permit that was withdrawn does not end what its agent is in the middle of.
    let at_work = member.reading.as_ref().is_ok_and(Reading::at_work);
    let away = member.signs.permit || member.node.ready.is_err() || member.node.cordoned || at_work;
    let mut verdict = match &member.reading {
        Ok(reading) => Look { member, reading, policy, others, now }.assess(),
        Err(why) => (Stage::Stuck, Reason::TargetUnknown, why.clone(), None),
    };
    // Both take the mark along. What failed for good is not tried again.
    let minds = matches!(verdict.0, Stage::Do(Verb::Cordon | Verb::Withdraw));
    if member.signs.left_mark && !minds && verdict.1 != Reason::ActionFailed {
        verdict = step(Verb::Unmark, "a person lifted its cordon");
    }
    let (stage, reason, message, until) = verdict;
    Assessment { stage, reason, message, until, away }
}

type Verdict = (Stage, Reason, String, Option<Timestamp>);

fn step(verb: Verb, message: &str) -> Verdict {
    (Stage::Do(verb), Reason::UnderWay, message.to_owned(), None)
}

struct Look<'a> {
    member: &'a Member,
    reading: &'a Reading,
    policy: &'a Policy,
    others: bool,
    now: Timestamp,
}

impl Look<'_> {
    /// What goes for its group.
    fn terms(&self) -> Terms<'_> {
        self.policy.of(self.member)
    }

    fn assess(&self) -> Verdict {
        let Reading { planned, ref differs, .. } = *self.reading;
        let permit = self.member.signs.permit;
        let ours = self.reading.cordoned_by_us();
        if let Some(why) = &self.member.failed {
            return (Stage::Failed, Reason::ActionFailed, why.clone(), None);
        }
        if !permit && !ours && differs.is_empty() && (self.reading.at_target() || !planned) {
            return (Stage::Done, Reason::UpToDate, String::new(), None);
        }
        if let Some(why) = self.member.node.annotations.get(PAUSED) {
            let name = &self.member.node.name;
            let why = annotations::shorten(why);
            let message = format!("it is paused ({why}): `infrop resume --node {name}` ends that");
            return (Stage::Stuck, Reason::Paused, message, None);
        }
        if let Some(why) = &self.member.skipped {
            return self.skip(why);
        }
        if self.reading.phase() == Some(Phase::Quarantined) {
            // Nothing may go on there unseen, also if a person has its agent try again.
            if permit {
                return step(Verb::Withdraw, "its node-agent gave up");
            }
            let message = format!(
                "{}; when that is put right, run `node-agent retry` on it and this command again",
                self.reading.said()
            );
            return (Stage::Failed, Reason::AgentFailed, message, None);
        }
        if self.reading.at_target() {
            self.settle()
        } else if permit {
            self.go_on()
        } else {
            self.begin()
        }
    }

    /// A node whose pods do not go is given back as it was.
    fn skip(&self, why: &str) -> Verdict {
        if self.reading.at_work() {
            return self.patiently(Reason::AgentWorking, self.reading.said());
        }
        if self.reading.cordoned_by_us() {
            step(Verb::Uncordon, "its pods do not go")
        } else if self.member.signs.permit {
            step(Verb::Withdraw, "its pods do not go")
        } else {
            (Stage::Stuck, Reason::DrainBlocked, why.to_owned(), None)
        }
    }

    /// A node without a permit.
    fn begin(&self) -> Verdict {
        let Reading { state, differs, written, observed, skew, .. } = self.reading;
        if state.is_none() {
            let message =
                "its node-agent has not said anything on its Node yet: `systemctl status node-agent` there";
            return self.patiently(Reason::AgentMissing, message.to_owned());
        }
        let unheard = !observed && state.as_ref().is_some_and(|state| state.phase == Phase::Idle);
        if *written && (unheard || differs.is_empty()) {
            return self.patiently(Reason::AgentWorking, "its node-agent looks at the plan".to_owned());
        }
        if differs.is_empty() {
            // Only the plan is another: it asks for what is there, which needs no permit.
            return step(Verb::Plan, "it has its versions");
        }
        if self.reading.phase() == Some(Phase::Refused) {
            return (Stage::Failed, Reason::AgentRefused, self.reading.said(), None);
        }
        if let Err(why) = &self.member.node.ready {
            return (Stage::Stuck, Reason::NodeNotReady, annotations::shorten(why), None);
        }
        if let Some(why) = skew {
            return (Stage::Stuck, Reason::VersionSkew, why.clone(), None);
        }
        (Stage::Pending, Reason::Next, String::new(), None)
    }

    /// A node with a permit.
    fn go_on(&self) -> Verdict {
        let Reading { written, differs, cordon, .. } = self.reading;
        if !written {
            // Where there is no other place, pods that were made to go could not come back before its end either.
            let drain =
                self.others && differs.iter().any(|(name, _)| self.terms().disruption(name).needs_drain());
            return if drain && *cordon == Cordon::None {
                step(Verb::Cordon, "pods have to be elsewhere")
            } else if drain && !self.member.emptied {
                step(Verb::Drain, "pods have to be elsewhere")
            } else {
                step(Verb::Plan, &self.reading.change())
            };
        }
        if self.reading.phase() == Some(Phase::Refused) {
            // Nothing was tried on the host: it is given back as it was.
            let verb = if self.reading.cordoned_by_us() { Verb::Uncordon } else { Verb::Withdraw };
            return step(verb, "its node-agent refuses");
        }
        self.patiently(Reason::AgentWorking, self.reading.said())
    }

    /// A node that is where it should be, by its agent's word.
    fn settle(&self) -> Verdict {
        let (ours, now) = (self.reading.cordoned_by_us(), self.now);
        if let Err(why) = self.is_back() {
            return self.patiently(Reason::NodeNotBack, why);
        }
        let said = self.reading.state.as_ref().map(|state| state.since);
        // What a Node says of itself may be of a clock that is ahead: then it is well since now.
        let since = self.member.node.since.max(said).map_or(now, |since| since.min(now));
        let until = since.checked_add(self.terms().soak()).unwrap_or(now);
        if now < until {
            let message = format!("it has to be well until {until:.0}");
            return (Stage::Wait, Reason::Soaking, message, Some(until));
        }
        let Member { checked, tested, .. } = self.member;
        let untested = tested.is_none() && !self.terms().checks().is_empty();
        match (checked, tested) {
            (None, _) => step(Verb::Check, "it has its versions"),
            (Some(Err(failing)), _) => self.failing(Verb::Check, Reason::CheckFailed, failing),
            (_, Some(Err(failing))) => self.failing(Verb::Test, Reason::SiteCheckFailed, failing),
            _ if untested => step(Verb::Test, "it has its versions"),
            _ if ours => step(Verb::Uncordon, "it has its versions"),
            _ => step(Verb::Withdraw, "it has its versions"),
        }
    }

    /// Looks again, but not for ever. Not by when the Node changed: its kubelet writes there every few minutes, whatever
    /// is not well.
    fn failing(&self, verb: Verb, reason: Reason, failing: &Failing) -> Verdict {
        let Failing { why, since, again, failures: _ } = failing;
        let patience = self.policy.patience;
        if self.now.duration_since(*since) >= patience {
            let minutes = patience.as_mins();
            return (Stage::Failed, reason, format!("not well for {minutes} min: {why}"), None);
        }
        if self.now >= *again { step(verb, why) } else { (Stage::Wait, reason, why.clone(), Some(*again)) }
    }

    /// Whether its kubelet is there again, in the version and the boot that its agent speaks of.
    fn is_back(&self) -> Result<(), String> {
        let node = &self.member.node;
        node.ready.clone().map_err(|why| annotations::shorten(&why))?;
        let Reading { kubelet, state, .. } = self.reading;
        if let Some(version) = kubelet
            && node.kubelet.strip_prefix('v') != Some(version.as_str())
        {
            return Err(format!("its kubelet still reports {}", annotations::shorten(&node.kubelet)));
        }
        if state.as_ref().is_none_or(|state| state.boot_id != node.boot_id) {
            return Err("its kubelet has not reported since the restart".to_owned());
        }
        Ok(())
    }

    /// Waits for a sign of someone else, but not for ever.
    fn patiently(&self, reason: Reason, message: String) -> Verdict {
        let patience = self.policy.patience;
        let until = self.member.changed.checked_add(patience).unwrap_or(Timestamp::MAX);
        if self.now < until {
            (Stage::Wait, reason, message, Some(until))
        } else {
            let minutes = patience.as_mins();
            (Stage::Failed, Reason::NoSign, format!("nothing happened for {minutes} min: {message}"), None)
        }
    }
}

/// The Kubernetes version of a plan.
pub fn kubernetes(plan: &Plan) -> Option<KubernetesVersion> {
    let version = |name: &str| plan.desired.iter().find(|(key, _)| key.as_str() == name);
    let (_, version) = version("kubeadm").or_else(|| version("kubelet"))?;
    version.as_str().parse().ok()
}
