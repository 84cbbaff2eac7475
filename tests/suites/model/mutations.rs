//! Guards, each of which can be taken away: then an invariant must break.

use std::fmt;

/// A guard of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// infrop counts nodes that are away against `maxUnavailable`.
    Capacity,
    /// It counts nodes whose permit it is about to write.
    OwnPermits,
    /// Control planes go one after the other.
    PlanesOneByOne,
    /// infrop begins no node whose kubelet does not report.
    NodeReady,
    /// etcd's voters are looked at before a control plane goes.
    EtcdWell,
    /// An etcd that cannot be asked keeps control planes back.
    EtcdAnswers,
    /// That look is forgotten when a control plane was begun.
    EtcdAnew,
    /// An old look is none.
    EtcdAge,
    /// etcd's data is saved before its version rises.
    EtcdSaved,
    /// Control planes go before workers.
    PlanesFirst,
    /// A permit is announced in the Lease first, which only its holder can.
    Announced,
    /// What another process announced counts until it is fenced off.
    Fenced,
    /// A write must find the Node as the decision saw it.
    Precondition,
    /// A watch event that is older than what is known is no news.
    OlderEvents,
    /// Only a cordon with a rollout's mark is lifted.
    CordonMark,
    /// The mark of a cordon that a person lifted goes, too.
    LeftMark,
    /// A node is back when its kubelet says so in the version that its agent speaks of.
    KubeletVersion,
    /// And in the boot.
    KubeletBoot,
    /// `ready` counts only with `plan-observed`.
    AgentsWord,
    /// Done is what has the desired versions.
    Versions,
    /// The permit of a node whose agent gave up is withdrawn.
    QuarantineWithdrawn,
    /// A node is cordoned before its pods are made to go.
    CordonFirst,
    /// Pods stay if what changes lets them.
    Disruption,
    /// The plan is written when pods are gone.
    PodsGone,
    /// A node whose agent works is away, also without a permit.
    AgentsAtWork,
    /// A node whose pods do not go is not given back while its agent works.
    SkippedWaits,
    /// infrop does not begin a node that a person paused.
    InfropPause,
    /// A permit is for the plan that infrop writes when pods are gone, and for none before.
    PermittedPlan,
    /// The agent begins nothing without a permit.
    AgentPermit,
    /// The agent reads permit and plan again before each step.
    AgentReads,
    /// The agent changes nothing on a node that a person paused.
    AgentPause,
    /// The agent remembers through silence that there was no permit.
    AgentRemembers,
    /// The agent refuses a kubelet that is newer than the control plane.
    AgentSkew,
    /// The agent changes a control plane's API server before its kubelet.
    AgentOrder,
    /// The agent gives up after some attempts.
    AgentAttempts,
    /// The agent remembers that it gave up.
    AgentQuarantine,
    /// The agent restarts a host for a plan once.
    AgentReboots,
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{self:?}");
        f.pad(&text)
    }
}
