//! What changing a software does to the pods of its host: infrop decides by it whether pods have to go first.

use serde::{Deserialize, Serialize};

use crate::catalogue;

/// What a change does to the pods of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Disruption {
    /// Nothing.
    None,
    /// A service restarts; pods go on.
    Restart,
    /// Pods should be elsewhere.
    Drain,
    /// The host restarts.
    Reboot,
}

impl Disruption {
    /// Of a software, unless a site knows better. What nobody knows is expected to disturb pods.
    pub fn of(software: &str) -> Self {
        catalogue::find(software).map_or(Self::Drain, |entry| entry.disruption)
    }

    /// Whether pods have to be elsewhere meanwhile.
    pub fn needs_drain(self) -> bool {
        self >= Self::Drain
    }
}
