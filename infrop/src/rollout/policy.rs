//! What a rollout may do, when, and to how many nodes at once.

use std::collections::BTreeMap;

use common::{disruption::Disruption, software::SoftwareName};
use jiff::{SignedDuration, Timestamp};

use super::{check::Checks, window::Window};
use crate::desired::Amount;

/// What a rollout may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Of each group of workers.
    pub groups: BTreeMap<String, Limits>,
    /// The label that tells zones apart; nodes of two zones are never away at once.
    pub zone_label: String,
    /// How long a node has to be well before the next one goes.
    pub soak: SignedDuration,
    /// After so many failed nodes no other is begun.
    pub max_failed: usize,
    /// When nodes may be begun; at any time if there are none.
    pub windows: Vec<Window>,
    /// What a site knows better about software.
    pub disruption: BTreeMap<SoftwareName, Disruption>,
    /// How long a node may be under way without a sign before it counts as failed.
    pub patience: SignedDuration,
    /// What a site checks on a node before it is given back.
    pub checks: Checks,
    /// Whether load balancers outside of the cluster leave out nodes that are drained.
    pub exclude_from_load_balancers: bool,
    /// Whether pods prefer nodes that do not wait for their turn.
    pub prefer_ready: bool,
}

/// How many nodes of a group may be away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// At once, for whatever reason.
    pub max_unavailable: Amount,
    /// How many go first, before any other.
    pub canary: usize,
}

impl Policy {
    /// What changing a software does to pods.
    pub fn disruption(&self, software: &SoftwareName) -> Disruption {
        self.disruption.get(software).copied().unwrap_or_else(|| Disruption::of(software.as_str()))
    }

    /// When the next node may be begun, if not now; `None` in it if never.
    pub fn closed(&self, now: Timestamp) -> Option<Option<Timestamp>> {
        if self.windows.is_empty() || self.windows.iter().any(|window| window.contains(now)) {
            return None;
        }
        Some(self.windows.iter().filter_map(|window| window.next(now)).min())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_unavailable: Amount::Nodes(1), canary: 0 }
    }
}
