//! Why a Node is not empty.

use std::time::Duration;

use common::metadata::NodeName;

use super::pods::{Blocker, list};

/// Why a Node is not empty.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API did not do what was asked.
    #[error(transparent)]
    Api(#[from] super::super::Error),
    /// There are pods that the rules do not let go.
    #[error("{node} is not drained: {}", list(.pods))]
    Refused {
        /// The Node.
        node: NodeName,
        /// The pods.
        pods: Vec<Blocker>,
    },
    /// There are pods that have more than one budget.
    #[error(
        "{node} cannot be drained: {}; leave each of these pods one PodDisruptionBudget (`kubectl get pdb` in their \
         namespaces shows the selectors)",
        list(.pods)
    )]
    TooManyBudgets {
        /// The Node.
        node: NodeName,
        /// The pods.
        pods: Vec<Blocker>,
    },
    /// The time is over.
    #[error("{node} is not empty after {} s: {}", .after.as_secs(), list(.blockers))]
    Blocked {
        /// The Node.
        node: NodeName,
        /// How long it was tried.
        after: Duration,
        /// What is left, and why.
        blockers: Vec<Blocker>,
    },
}
