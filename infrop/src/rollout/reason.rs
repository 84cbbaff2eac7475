//! Why a node waits, as codes: docs/usage/rollout.md has an entry for each.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident,)+) => {
        /// Why a node is where it is in a rollout.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[$doc])* $variant,)+ }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The code, stable across releases.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }
        }

        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

reasons! {
    /// It has its versions.
    UpToDate,
    /// It may be begun.
    Next,
    /// infrop is about to do something with it.
    UnderWay,
    /// A person paused it.
    Paused,
    /// No window is open.
    WindowClosed,
    /// Control planes go first.
    ControlPlanesFirst,
    /// Groups of a lower order go first.
    LowerOrderFirst,
    /// As many nodes are away as may be.
    CapacityUsed,
    /// Nodes of another zone are away.
    ZoneBusy,
    /// The first nodes of its group are not through.
    CanaryFirst,
    /// Too many nodes have failed.
    TooManyFailed,
    /// etcd would lose its majority, or cannot be asked.
    EtcdAtRisk,
    /// Its kubelet does not say that it is well.
    NodeNotReady,
    /// Its node-agent has not said anything yet.
    AgentMissing,
    /// Its versions cannot follow those it has.
    VersionSkew,
    /// Nobody can say what it is to have.
    TargetUnknown,
    /// Its pods did not go.
    DrainBlocked,
    /// Its node-agent is at work.
    AgentWorking,
    /// Its node-agent gave up.
    AgentFailed,
    /// Its node-agent refuses.
    AgentRefused,
    /// It gives no sign.
    NoSign,
    /// Its node-agent is through, and its kubelet is not back.
    NodeNotBack,
    /// It has to be well for a while.
    Soaking,
    /// Pods that belong there are not well.
    CheckFailed,
    /// What a site checks is not well.
    SiteCheckFailed,
    /// infrop could not do its part.
    ActionFailed,
}
