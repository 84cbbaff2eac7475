//! What to do next: a pure function of what was seen. One action at a time; after it, everything is seen anew.

mod check;
#[cfg(test)]
mod tests;

use std::fmt;

use common::{
    KubernetesVersion,
    annotations::{Request, RequestError},
    plan::{Plan, PlanId},
    software::{SoftwareName, SoftwareVersion},
    state::{Phase, Reason},
};
use jiff::{SignedDuration, Timestamp};

use crate::{
    journal::{Active, Failed, Journal, Origin},
    observe::HostState,
    software::KUBERNETES,
};

/// When the cluster's version is asked for again, if it stands in the way.
const CLUSTER_AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// All that a decision is made of.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// Now.
    pub now: Timestamp,
    /// What was asked for, and by whom.
    pub asked: &'a Asked,
    /// The host.
    pub host: &'a HostState,
    /// What survived.
    pub journal: &'a Journal,
    /// The version in the cluster's kubeadm-config; none while nobody could read it.
    pub cluster: Option<&'a KubernetesVersion>,
    /// How long a plan under way waits for an API server.
    pub api_patience: SignedDuration,
}

/// What the agent was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Nobody said anything: no metadata, no cluster.
    Nothing,
    /// The host is in no cluster yet; its metadata says this.
    Metadata(Plan),
    /// The Node says this.
    Node(Result<Request, RequestError>),
    /// The host is in a cluster that has no Node of its name: nobody can permit anything.
    NoNode,
    /// The host is in a cluster whose API server does not let it see its Node, and says why.
    Refusal(String),
    /// The host is in a cluster, and its API server does not answer.
    Silence {
        /// Since when.
        since: Timestamp,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing, until something happens.
    Rest(Rest),
    /// Begin a plan: the journal has it, and the Node says `ready=false`, before anything is changed.
    Accept {
        /// The plan.
        plan: Plan,
        /// Who asked.
        origin: Origin,
        /// Whether it may change anything. What is at its versions is also looked at without a permit.
        permitted: bool,
    },
    /// Bring a software to a version.
    Change {
        /// Which.
        software: SoftwareName,
        /// To what.
        version: SoftwareVersion,
    },
    /// Restart the host.
    Reboot,
    /// Look whether everything works, and say that the plan is reached.
    Finish {
        /// Who asked.
        origin: Origin,
    },
    /// No attempt could ever succeed.
    GiveUp(Failed),
}

/// Why nothing is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rest {
    /// The phase.
    pub phase: Phase,
    /// The code.
    pub reason: Reason,
    /// The sentence.
    pub message: String,
    /// When to look again although nothing happened.
    pub until: Option<Timestamp>,
    /// What `ready` becomes.
    pub standing: Standing,
}

/// What the Node's `ready` and `plan-observed` become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// As they were.
    Keep,
    /// There is no plan, and the host is fine.
    NoPlan,
    /// The host is at this plan.
    At(PlanId),
    /// The host is not at this plan.
    Missed(PlanId),
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rest(rest) => write!(f, "{}: {}", rest.phase, rest.message),
            Self::Accept { plan, .. } => write!(f, "begin plan {}", plan.id()),
            Self::Change { software, version } => write!(f, "bring {software} to {version}"),
            Self::Reboot => f.write_str("restart the host"),
            Self::Finish { .. } => f.write_str("check services and report ready"),
            Self::GiveUp(failed) => write!(f, "give up: {}", failed.message),
        }
    }
}

/// What to do next.
pub fn decide(snapshot: &Snapshot<'_>) -> Decision {
    match snapshot.asked {
        Asked::Nothing => {
            rest(Phase::Idle, Reason::NoPlan, "there is neither metadata nor a cluster", Standing::Keep)
        }
        // The credential came after the Node was last looked for: from now on only its permit counts.
        Asked::Metadata(_) if snapshot.host.facts.joined => rest(
            Phase::Waiting,
            Reason::ApiUnreachable,
            "the host has just become part of a cluster, whose API server was not asked yet",
            Standing::Keep,
        ),
        Asked::Metadata(plan) if snapshot.journal.initialized.as_ref() == Some(&plan.id()) => rest(
            Phase::Idle,
            Reason::UpToDate,
            "initialized; waiting to become part of a cluster",
            Standing::Keep,
        ),
        Asked::Metadata(plan) => pursue(snapshot, plan, Origin::Metadata, Ok(())),
        Asked::Node(Err(error)) => rest(Phase::Refused, error.reason(), &error.to_string(), Standing::Keep),
        Asked::Node(Ok(Request { plan: None, .. })) => {
            rest(Phase::Idle, Reason::NoPlan, "nobody asked for anything", Standing::NoPlan)
        }
        Asked::Node(Ok(Request { plan: Some(plan), permit, paused })) => {
            let permit = match (paused, permit) {
                (Some(why), _) => Err((Reason::Paused, format!("paused by a person: {why}"))),
                (None, false) => Err((Reason::NoPermit, "there is no permit".to_owned())),
                (None, true) => Ok(()),
            };
            pursue(snapshot, plan, Origin::Node, permit)
        }
        Asked::NoNode => {
            let message = "the API server has no Node of this name; the kubelet makes it when it starts";
            rest(Phase::Waiting, Reason::NodeMissing, message, Standing::Keep)
        }
        // However long: a server that answers can be asked for a permit, and this one gives none.
        Asked::Refusal(why) => rest(Phase::Waiting, Reason::ApiRefused, why, Standing::Keep),
        Asked::Silence { since } => in_silence(snapshot, *since),
    }
}

/// The API server is away. A plan that was begun with a permit goes on: it may be what brings the server back.
fn in_silence(snapshot: &Snapshot<'_>, since: Timestamp) -> Decision {
    let message = "the API server does not answer";
    match &snapshot.journal.active {
        Some(Active { origin: Origin::Node, withdrawn: true, .. }) => {
            let message = format!("{message}; when it last did, there was no permit for the plan under way");
            rest(Phase::Waiting, Reason::ApiUnreachable, &message, Standing::Keep)
        }
        Some(Active { plan, origin: Origin::Node, .. }) => {
            let until = since.checked_add(snapshot.api_patience).unwrap_or(Timestamp::MAX);
            if snapshot.now >= until {
                return pursue(snapshot, plan, Origin::Node, Ok(()));
            }
            Decision::Rest(Rest {
                phase: Phase::Waiting,
                reason: Reason::ApiUnreachable,
                message: format!("{message}; the plan goes on without it at {until:.0}"),
                until: Some(until),
                standing: Standing::Keep,
            })
        }
        _ => rest(Phase::Waiting, Reason::ApiUnreachable, message, Standing::Keep),
    }
}

fn pursue(
    snapshot: &Snapshot<'_>,
    plan: &Plan,
    origin: Origin,
    permit: Result<(), (Reason, String)>,
) -> Decision {
    let Snapshot { host, journal, .. } = snapshot;
    let id = plan.id();
    if let Some(quarantine) = journal.quarantine.as_ref().filter(|quarantine| quarantine.plan == id) {
        let Failed { reason, message } = &quarantine.failure;
        let message = format!("given up after {} attempts: {message}", quarantine.attempts);
        return rest(Phase::Quarantined, *reason, &message, Standing::Missed(id));
    }
    let wanted = wanted(plan, host);
    let observed = |name: &SoftwareName| host.observed(name.as_str()).cloned().unwrap_or_default();
    let pending = wanted.iter().find(|(name, version)| observed(name).needs_change(version));
    let reboot = wanted.iter().any(|(name, version)| observed(name).needs_reboot(version));
    let active = journal.active.as_ref().filter(|active| active.plan.id() == id && active.origin == origin);
    let reached = pending.is_none() && !reboot;
    if let Err(refusal) = check::check(snapshot, plan)
        // What is not known yet matters only to a host that is to change.
        && !(reached && refusal.phase == Phase::Waiting)
    {
        let check::Refusal { phase, reason, message } = refusal;
        // Waiting for an answer is no verdict on the plan, unless `ready` says that the host is at it.
        let missed = phase == Phase::Refused || journal.observed.as_ref() == Some(&id);
        let standing = if missed { Standing::Missed(id) } else { Standing::Keep };
        // The control plane may catch up, and that is no event on this Node.
        let again = phase == Phase::Waiting || reason == Reason::SkewNewerThanApiServer;
        let until = snapshot.now.checked_add(CLUSTER_AGAIN).ok().filter(|_| again);
        return Decision::Rest(Rest { phase, reason, message, until, standing });
    }
    if reached {
        return match active {
            Some(Active { retry_at: Some(until), failure: Some(failed), .. }) if *until > snapshot.now => {
                retrying(failed, *until, id)
            }
            Some(_) => Decision::Finish { origin },
            // Metadata is finished by telling the provider, also if there was nothing to change; and where services
            // were last found broken, or not looked at since a change, right versions are not enough.
            None if origin == Origin::Metadata || journal.unverified => {
                Decision::Accept { plan: plan.clone(), origin, permitted: permit.is_ok() }
            }
            None => {
                rest(Phase::Idle, Reason::UpToDate, "all versions are the desired ones", Standing::At(id))
            }
        };
    }
    if let Err((reason, message)) = permit {
        let (reason, standing) = match (active, reason) {
            (Some(_), Reason::NoPermit) => (Reason::PermitWithdrawn, Standing::Missed(id)),
            (Some(_), _) => (reason, Standing::Missed(id)),
            // What `ready` speaks of is another plan, or this one, which the host has left.
            (None, _) if journal.observed.as_ref() == Some(&id) => (reason, Standing::Missed(id)),
            (None, _) => (reason, Standing::Keep),
        };
        let message = match pending {
            Some((name, version)) => format!("{message}; next would be {name} {version}"),
            None => format!("{message}; next would be a reboot"),
        };
        return rest(Phase::Waiting, reason, &message, standing);
    }
    let Some(active) = active else {
        return Decision::Accept { plan: plan.clone(), origin, permitted: true };
    };
    if let (Some(until), Some(failed)) = (active.retry_at, &active.failure)
        && until > snapshot.now
    {
        return retrying(failed, until, id);
    }
    match pending {
        Some((name, version)) => Decision::Change { software: name.clone(), version: version.clone() },
        None if active.rebooted_from.as_ref().is_some_and(|boot| *boot != host.facts.boot) => {
            let message = "the host was restarted for this plan, and a restart is still due".to_owned();
            Decision::GiveUp(Failed { reason: Reason::RebootIneffective, message })
        }
        None => Decision::Reboot,
    }
}

fn retrying(failed: &Failed, until: Timestamp, id: PlanId) -> Decision {
    Decision::Rest(Rest {
        phase: Phase::Retrying,
        reason: failed.reason,
        message: format!("next attempt at {until:.0}: {}", failed.message),
        until: Some(until),
        standing: Standing::Missed(id),
    })
}

fn rest(phase: Phase, reason: Reason, message: &str, standing: Standing) -> Decision {
    Decision::Rest(Rest { phase, reason, message: message.to_owned(), until: None, standing })
}

/// Whether the way to a Kubernetes version depends on the one that the cluster has. A kubeadm that was started and not
/// finished has to be told its part again, also where a person brought everything to the version meanwhile.
pub fn needs_cluster(host: &HostState, target: &KubernetesVersion) -> bool {
    let is_there = |name: &str| host.kubernetes_version(name).as_ref() == Some(target);
    let unfinished = host.observed(KUBERNETES).is_some_and(|observed| observed.stale);
    unfinished || !is_there(KUBERNETES) || !is_there("kubelet")
}

/// The versions of a plan in the order of change. On a host in a cluster, what kubeadm keeps follows kubeadm.
pub fn wanted(plan: &Plan, host: &HostState) -> Vec<(SoftwareName, SoftwareVersion)> {
    let desired =
        |name: &str| plan.desired.iter().find(|(key, _)| key.as_str() == name).map(|(_, version)| version);
    host.software
        .iter()
        .filter_map(|(name, _)| {
            let version = match name.as_str() {
                KUBERNETES if !host.facts.joined => None,
                KUBERNETES => desired(KUBERNETES).or_else(|| desired("kubeadm")),
                other => desired(other),
            };
            version.map(|version| (name.clone(), version.clone()))
        })
        .collect()
}
