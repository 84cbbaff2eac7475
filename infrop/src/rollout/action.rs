//! What a rollout does, one thing at a time.

use std::fmt;

use common::metadata::NodeName;

use super::{assess::Verb, saved::Occasion};

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Begin a node: give it the permit.
    Permit(NodeName),
    /// The next step with a node that was begun.
    Step(Verb, NodeName),
    /// Make sure that a permit which a writer before us may have on its way does not arrive.
    Fence(NodeName),
    /// Ask etcd how it is.
    LookAtEtcd,
    /// Save etcd's data on a control plane.
    SaveEtcd(NodeName, Occasion),
    /// Have pods prefer other nodes while it waits.
    Taint(NodeName),
    /// End that.
    Untaint(NodeName),
}

impl Action {
    /// The node it is about.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Self::Permit(name)
            | Self::Step(_, name)
            | Self::Fence(name)
            | Self::SaveEtcd(name, _)
            | Self::Taint(name)
            | Self::Untaint(name) => Some(name),
            Self::LookAtEtcd => None,
        }
    }

    /// What it is, in a word for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Permit(_) => "permit",
            Self::Step(Verb::Cordon, _) => "cordon",
            Self::Step(Verb::Drain, _) => "drain",
            Self::Step(Verb::Plan, _) => "plan",
            Self::Step(Verb::Check, _) => "check",
            Self::Step(Verb::Test, _) => "test",
            Self::Step(Verb::Uncordon, _) => "uncordon",
            Self::Step(Verb::Unmark, _) => "unmark",
            Self::Step(Verb::Withdraw, _) => "withdraw",
            Self::Fence(_) => "fence",
            Self::LookAtEtcd => "etcd",
            Self::SaveEtcd(..) => "save",
            Self::Taint(_) => "taint",
            Self::Untaint(_) => "untaint",
        }
    }

    /// Whether it only says where pods should rather not go.
    pub fn is_taint(&self) -> bool {
        matches!(self, Self::Taint(_) | Self::Untaint(_))
    }

    /// Whether it changes nothing: people need not see it unless it fails.
    pub fn is_look(&self) -> bool {
        matches!(self, Self::LookAtEtcd | Self::Step(Verb::Check, _))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permit(name) => write!(f, "permit changes on {name}"),
            Self::Step(Verb::Cordon, name) => write!(f, "cordon {name}"),
            Self::Step(Verb::Drain, name) => write!(f, "drain {name}"),
            Self::Step(Verb::Plan, name) => write!(f, "write the plan of {name}"),
            Self::Step(Verb::Check, name) => write!(f, "check {name}"),
            Self::Step(Verb::Test, name) => write!(f, "run the checks of {name}"),
            Self::Step(Verb::Uncordon, name) => write!(f, "uncordon {name}"),
            Self::Step(Verb::Unmark, name) => write!(f, "take our mark from {name}"),
            Self::Step(Verb::Withdraw, name) => write!(f, "withdraw the permit of {name}"),
            Self::Fence(name) => write!(f, "end what another run began on {name}"),
            Self::LookAtEtcd => f.write_str("look at etcd"),
            Self::SaveEtcd(name, Occasion::Kubernetes(version)) => {
                write!(f, "save etcd's data on {name} before {version}")
            }
            Self::SaveEtcd(name, Occasion::Change) => {
                write!(f, "save etcd's data on {name} before it changes")
            }
            Self::Taint(name) => write!(f, "taint {name} while it waits"),
            Self::Untaint(name) => write!(f, "remove the taint of {name}"),
        }
    }
}
