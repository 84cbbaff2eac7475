//! What a rollout may do, when, and to how many nodes at once.

use std::{collections::BTreeMap, time::Duration};

use common::{disruption::Disruption, software::SoftwareName};
use jiff::{SignedDuration, Timestamp};

use super::{
    check::Check,
    gate::{CONTROL_PLANES, group},
    snapshot::Member,
    window::Window,
};
use crate::{cluster::DrainRules, desired::Amount};

/// What a rollout may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Of each group of workers.
    pub groups: BTreeMap<String, Limits>,
    /// Of control planes, where it is not as for all. How many of them go at once is nobody's choice.
    pub control_planes: Own,
    /// The label that tells zones apart; nodes of two zones are never away at once.
    pub zone_label: String,
    /// How long a node has to be well before the next one goes.
    pub soak: SignedDuration,
    /// After so many failed nodes no other is begun, of whatever group.
    pub max_failed: usize,
    /// When nodes may be begun; at any time if there are none.
    pub windows: Vec<Window>,
    /// How pods are made to go.
    pub drain: Drain,
    /// What a site knows better about software.
    pub disruption: BTreeMap<SoftwareName, Disruption>,
    /// How long a node may be under way without a sign before it counts as failed.
    pub patience: SignedDuration,
    /// What a site checks on a node before it is given back, in the order in which it is done.
    pub checks: Vec<Check>,
    /// Whether load balancers outside of the cluster leave out nodes that are drained.
    pub exclude_from_load_balancers: bool,
    /// Whether pods prefer nodes that do not wait for their turn.
    pub prefer_ready: bool,
}

/// How many nodes of a group of workers may be away, and what else it has of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// At once, for whatever reason.
    pub max_unavailable: Amount,
    /// How many go first, before any other.
    pub canary: usize,
    /// After so many failed nodes of the group no other of it is begun; the number for all groups holds beside it.
    pub max_failed: Option<usize>,
    /// It begins when all groups of a lower order are through.
    pub order: u16,
    /// What is not as for all.
    pub own: Own,
}

/// What a group has instead of what goes for all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// How long its nodes have to be well.
    pub soak: Option<SignedDuration>,
    /// When its nodes may be begun; at any time if the list is empty.
    pub windows: Option<Vec<Window>>,
    /// How pods are made to go from its nodes.
    pub drain: Option<Drain>,
    /// What software does there; what is not named is as for all.
    pub disruption: BTreeMap<SoftwareName, Disruption>,
    /// What is checked on its nodes.
    pub checks: Option<Vec<Check>>,
}

/// How pods are made to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Which.
    pub rules: DrainRules,
    /// How long they have; after that the node is left as it was.
    pub limit: Duration,
}

/// What goes for the nodes of a group: what it has of its own, and the rest as for all.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    all: &'a Policy,
    own: Option<&'a Own>,
}

impl Policy {
    /// What goes for a node.
    pub fn of(&self, member: &Member) -> Terms<'_> {
        self.of_group(group(member))
    }

    pub(super) fn of_group(&self, group: &str) -> Terms<'_> {
        let own = match group {
            CONTROL_PLANES => Some(&self.control_planes),
            _ => self.groups.get(group).map(|limits| &limits.own),
        };
        Terms { all: self, own }
    }

    /// Which groups of workers go before others.
    pub(super) fn order(&self, group: &str) -> u16 {
        self.groups.get(group).map_or(0, |limits| limits.order)
    }
}

impl<'a> Terms<'a> {
    /// How long a node has to be well.
    pub fn soak(self) -> SignedDuration {
        self.own.and_then(|own| own.soak).unwrap_or(self.all.soak)
    }

    /// How pods are made to go.
    pub fn drain(self) -> &'a Drain {
        self.own.and_then(|own| own.drain.as_ref()).unwrap_or(&self.all.drain)
    }

    /// What is checked.
    pub fn checks(self) -> &'a [Check] {
        self.own.and_then(|own| own.checks.as_ref()).unwrap_or(&self.all.checks)
    }

    /// When nodes may be begun; at any time if there are none.
    pub(super) fn windows(self) -> &'a [Window] {
        self.own.and_then(|own| own.windows.as_ref()).unwrap_or(&self.all.windows)
    }

    /// What changing a software does to pods.
    pub fn disruption(self, software: &SoftwareName) -> Disruption {
        let known = self.own.and_then(|own| own.disruption.get(software));
        let known = known.or_else(|| self.all.disruption.get(software));
        known.copied().unwrap_or_else(|| Disruption::of(software.as_str()))
    }

    /// When the next node may be begun, if not now; `None` in it if never.
    pub fn closed(self, now: Timestamp) -> Option<Option<Timestamp>> {
        let windows = self.windows();
        if windows.is_empty() || windows.iter().any(|window| window.contains(now)) {
            return None;
        }
        Some(windows.iter().filter_map(|window| window.next(now)).min())
    }
}

impl Default for Limits {
    fn default() -> Self {
        let own = Own::default();
        Self { max_unavailable: Amount::Nodes(1), canary: 0, max_failed: None, order: 0, own }
    }
}
