//! What to do next: a pure function of what was seen. One action at a time; after it, everything is seen anew.

use std::fmt;

use common::{
    KubernetesVersion,
    annotations::{Request, RequestError},
    plan::{Plan, PlanId},
    skew::{self, SkewError},
    software::{SoftwareName, SoftwareVersion},
    state::{Phase, Reason},
};
use jiff::{SignedDuration, Timestamp};

use crate::{
    journal::{Active, Failed, Journal, Origin},
    observe::HostState,
    software::{self, KUBERNETES},
};

/// Packages whose version is that of Kubernetes.
const KUBERNETES_PACKAGES: [&str; 3] = ["kubeadm", "kubelet", "kubectl"];

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
        Asked::Silence { since } => in_silence(snapshot, *since),
    }
}

/// The API server is away. A plan that was begun with a permit goes on: it may be what brings the server back.
fn in_silence(snapshot: &Snapshot<'_>, since: Timestamp) -> Decision {
    let message = "the API server does not answer";
    match &snapshot.journal.active {
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
    if let Err(refusal) = check(snapshot, plan) {
        return refusal.into_rest(id);
    }
    let wanted = wanted(plan, host);
    let observed = |name: &SoftwareName| host.observed(name.as_str()).cloned().unwrap_or_default();
    let pending = wanted.iter().find(|(name, version)| observed(name).needs_change(version));
    let reboot = wanted.iter().any(|(name, version)| observed(name).needs_reboot(version));
    let active = journal.active.as_ref().filter(|active| active.plan.id() == id && active.origin == origin);
    if pending.is_none() && !reboot {
        return match active {
            Some(Active { retry_at: Some(until), failure: Some(failed), .. }) if *until > snapshot.now => {
                retrying(failed, *until, id)
            }
            Some(_) => Decision::Finish { origin },
            // Metadata is finished by telling the provider, also if there was nothing to change.
            None if origin == Origin::Metadata => Decision::Accept { plan: plan.clone(), origin },
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
    let Some(active) = active else { return Decision::Accept { plan: plan.clone(), origin } };
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

/// A plan that cannot be tried, or not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    phase: Phase,
    reason: Reason,
    message: String,
}

impl Refusal {
    fn new(reason: Reason, message: String) -> Self {
        Self { phase: Phase::Refused, reason, message }
    }

    fn into_rest(self, id: PlanId) -> Decision {
        let Self { phase, reason, message } = self;
        // Waiting for an answer is no verdict on the plan.
        let standing = if phase == Phase::Refused { Standing::Missed(id) } else { Standing::Keep };
        Decision::Rest(Rest { phase, reason, message, until: None, standing })
    }
}

impl From<SkewError> for Refusal {
    fn from(error: SkewError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

/// Whether a plan can be tried on this host.
fn check(snapshot: &Snapshot<'_>, plan: &Plan) -> Result<(), Refusal> {
    let Snapshot { host, .. } = snapshot;
    for (name, version) in &plan.desired {
        let Some(software) = software::find(name) else {
            let message = format!("this node-agent does not know the software {name}");
            return Err(Refusal::new(Reason::UnknownSoftware, message));
        };
        let differs = host.observed(name.as_str()).is_none_or(|observed| observed.needs_change(version));
        if software.has_contents() && differs && !host.contents.contains(&(name.clone(), version.clone())) {
            let message = format!("the content {version} of {name} was not delivered to this host");
            return Err(Refusal::new(Reason::ContentMissing, message));
        }
    }
    check_kubernetes(snapshot, plan)
}

/// The rules of Kubernetes' version skew.
fn check_kubernetes(snapshot: &Snapshot<'_>, plan: &Plan) -> Result<(), Refusal> {
    let Snapshot { host, cluster, .. } = snapshot;
    let mut target: Option<KubernetesVersion> = None;
    for (name, version) in &plan.desired {
        if !KUBERNETES_PACKAGES.contains(&name.as_str()) && name.as_str() != KUBERNETES {
            continue;
        }
        let version: KubernetesVersion = version
            .as_str()
            .parse()
            .map_err(|error| Refusal::new(Reason::InvalidAnnotation, format!("{name}: {error}")))?;
        match &target {
            Some(other) if *other != version => {
                let message = format!("{name} is to be {version} and other parts of Kubernetes {other}");
                return Err(Refusal::new(Reason::SkewMixedVersions, message));
            }
            _ => target = Some(version),
        }
    }
    let Some(target) = target else { return Ok(()) };
    if !host.facts.joined {
        return Ok(());
    }
    for name in [KUBERNETES, "kubelet"] {
        if let Some(from) = host.kubernetes_version(name) {
            skew::check_step(&from, &target)?;
        }
    }
    let is_there = |name: &str| host.kubernetes_version(name).as_ref() == Some(&target);
    if is_there(KUBERNETES) && is_there("kubelet") {
        return Ok(());
    }
    match cluster {
        Some(cluster) if host.facts.control_plane => Ok(skew::check_step(cluster, &target)?),
        Some(cluster) => Ok(skew::check_worker(&target, cluster)?),
        // kubeadm has done its part of this version, so the cluster was asked then.
        None if is_there(KUBERNETES) => Ok(()),
        None => Err(Refusal {
            phase: Phase::Waiting,
            reason: Reason::ApiUnreachable,
            message: "the cluster's kubeadm-config, which says what version may come next, cannot be read"
                .to_owned(),
        }),
    }
}
