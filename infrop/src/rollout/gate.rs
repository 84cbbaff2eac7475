//! Whether a node may be begun: what of all nodes has a say in that.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use common::metadata::NodeName;
use jiff::{SignedDuration, Timestamp};

use super::{
    action::Action,
    assess::{Assessment, Stage},
    decide::Decision,
    policy::Limits,
    reason::Reason,
    saved::Occasion,
    snapshot::{Etcd, EtcdSeen, InOrder, Member, Snapshot},
};
use crate::apply::natural_parts;

/// Between looks at an etcd that is not well.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(3);

/// What was seen of etcd is good for a permit so long: a decision follows a look at once, unless something else came
/// between (another control plane that was away, a window that closed, data being saved), and that may take hours.
const LOOK_GOOD_FOR: SignedDuration = SignedDuration::from_secs(10);

/// The group of control planes, whatever pools they are of. No pool's name is empty.
pub(super) const CONTROL_PLANES: &str = "";

pub(super) fn group(member: &Member) -> &str {
    if member.node.control_plane { CONTROL_PLANES } else { &member.group }
}

/// What of all nodes decides whether another one may be begun.
pub(super) struct Gate<'a> {
    snapshot: &'a Snapshot,
    decision: &'a mut Decision,
    /// Nodes that something is being done with.
    busy: BTreeSet<&'a NodeName>,
    /// Control planes that are not through.
    planes: BTreeSet<NodeName>,
    /// By order, a worker of it that is not through, and its group.
    orders: BTreeMap<u16, (&'a NodeName, &'a str)>,
    /// By group; control planes have one of their own.
    groups: BTreeMap<&'a str, Tally<'a>>,
}

/// How a group is.
#[derive(Debug, Default)]
struct Tally<'a> {
    /// How many nodes it has.
    all: usize,
    /// How many are through.
    through: usize,
    /// How many have failed.
    failed: usize,
    /// How many were begun and are not through, or failed.
    under_way: usize,
    /// Those that are away or about to be.
    away: BTreeSet<&'a NodeName>,
    /// By zone, the first of those: thousands may ask who is away in another zone.
    zones: BTreeMap<&'a str, &'a NodeName>,
    /// Why no node of it may be begun now, whichever.
    closed: Option<(Reason, String)>,
    /// Who is away, for people; made once for all that wait for them.
    full: OnceCell<String>,
}

impl<'a> Tally<'a> {
    fn add_away(&mut self, member: &'a Member, zone: &'a str) {
        let name = &member.node.name;
        self.away.insert(name);
        let first = self.zones.entry(zone).or_insert(name);
        *first = name.min(first);
        self.full.take();
    }
}

/// The zone of a node; those without a label are of one.
fn zone<'a>(snapshot: &Snapshot, member: &'a Member) -> &'a str {
    member.node.labels.get(&snapshot.policy.zone_label).map_or("", String::as_str)
}

impl<'a> Gate<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        decision: &'a mut Decision,
        busy: BTreeSet<&'a NodeName>,
    ) -> Self {
        let mut groups: BTreeMap<&str, Tally<'a>> = BTreeMap::new();
        let mut planes = BTreeSet::new();
        let mut orders = BTreeMap::new();
        let begun = snapshot.begun_nodes();
        let mut is_begun = InOrder::of(&begun);
        // Both are in the order of names.
        for ((name, member), assessment) in snapshot.members.iter().zip(decision.nodes.values()) {
            let tally = groups.entry(group(member)).or_default();
            tally.all += 1;
            tally.through += usize::from(assessment.stage == Stage::Done);
            // One that a permit is being written for, or will be when etcd is saved, is as good as away.
            let begun = is_begun.has(name);
            if assessment.away || begun {
                tally.add_away(member, zone(snapshot, member));
            }
            let failed = assessment.stage == Stage::Failed;
            tally.under_way += usize::from(begun || failed || member.signs.permit);
            if member.node.control_plane && assessment.stage != Stage::Done {
                planes.insert(name.clone());
            }
            // Who is of no group is before none.
            let group = group(member);
            if snapshot.policy.groups.contains_key(group) && assessment.stage != Stage::Done {
                orders.entry(snapshot.policy.order(group)).or_insert((name, group));
            }
            tally.failed += usize::from(assessment.stage == Stage::Failed);
        }
        let failed = groups.values().map(|tally| tally.failed).sum();
        for (group, tally) in &mut groups {
            tally.closed = closed(snapshot, group, tally.failed, failed);
        }
        Self { snapshot, decision, busy, planes, orders, groups }
    }

    /// Begins what may be begun, in order; the others get their reason.
    pub(super) fn begin(mut self) {
        // Whoever is in the way of a node before any is begun is so afterwards: only the others need an order, which
        // matters where thousands wait for a few.
        let mut next = Vec::new();
        let mut nodes = std::mem::take(&mut self.decision.nodes);
        let mut is_busy = InOrder::of(&self.busy);
        // Both are in the order of names.
        for ((name, member), node) in self.snapshot.members.iter().zip(nodes.values_mut()) {
            if is_busy.has(name) || node.stage != Stage::Pending || self.snapshot.claims.contains(name) {
                continue;
            }
            match self.obstacle(member) {
                Ok(_) => next.push(member),
                Err(why) => self.refuse(node, why),
            }
        }
        next.sort_by_cached_key(|member| {
            (!member.node.control_plane, zone(self.snapshot, member), natural_parts(&member.node.name))
        });
        for member in next {
            match self.obstacle(member) {
                Ok(action) => {
                    let tally = self.groups.entry(group(member)).or_default();
                    tally.add_away(member, zone(self.snapshot, member));
                    tally.under_way += 1;
                    if !self.snapshot.busy.contains(&action) && !self.decision.actions.contains(&action) {
                        self.decision.actions.push(action);
                    }
                }
                Err(why) => {
                    if let Some(node) = nodes.get_mut(&member.node.name) {
                        self.refuse(node, why);
                    }
                }
            }
        }
        self.decision.nodes = nodes;
    }

    /// A node that is not begun has its reason.
    fn refuse(&self, node: &mut Assessment, (reason, message): (Reason, String)) {
        // etcd is no Node: nobody tells when it is well again.
        let again =
            Some(self.look_again()).filter(|time| reason == Reason::EtcdAtRisk && *time < Timestamp::MAX);
        (node.reason, node.message) = (reason, message);
        if again.is_some() {
            (node.stage, node.until) = (Stage::Wait, again);
        }
    }

    /// What to do to begin a node, or why it may not be begun.
    fn obstacle(&self, member: &Member) -> Result<Action, (Reason, String)> {
        if let Some(why) = self.groups.get(group(member)).and_then(|tally| tally.closed.as_ref()) {
            return Err(why.clone());
        }
        if member.node.control_plane {
            return self.control_plane(member);
        }
        if let Some(plane) = self.planes.first() {
            let message = format!("control planes go first, and {plane} is not through");
            return Err((Reason::ControlPlanesFirst, message));
        }
        let order = self.snapshot.policy.order(&member.group);
        if let Some((_, (other, group))) = self.orders.range(..order).next() {
            let message = format!("groups of a lower order go first, and {other} of {group} is not through");
            return Err((Reason::LowerOrderFirst, message));
        }
        self.worker(member)
    }

    /// The nodes of its group that are away beside it.
    fn others_away(&self, member: &Member) -> impl Iterator<Item = &NodeName> {
        let away = self.groups.get(group(member)).map(|tally| &tally.away).into_iter().flatten();
        away.copied().filter(|name| **name != member.node.name)
    }

    /// One at a time, and only while etcd can do without it.
    fn control_plane(&self, member: &Member) -> Result<Action, (Reason, String)> {
        let name = &member.node.name;
        if let Some(other) = self.others_away(member).next() {
            let message =
                format!("control planes go one after the other, and {other} is away or about to be");
            return Err((Reason::CapacityUsed, message));
        }
        let risk = match &self.snapshot.etcd.etcd {
            Etcd::Unknown => return Ok(Action::LookAtEtcd),
            Etcd::External => return Ok(Action::Permit(name.clone())),
            Etcd::Silent(why) => Some(format!("etcd cannot be asked: {why}")),
            Etcd::Voters(voters) => risk(voters),
        };
        if let Some(risk) = risk {
            let again = self.snapshot.now >= self.look_again();
            return if again { Ok(Action::LookAtEtcd) } else { Err((Reason::EtcdAtRisk, risk)) };
        }
        if self.snapshot.now.duration_since(self.snapshot.etcd.at) > LOOK_GOOD_FOR {
            return Ok(Action::LookAtEtcd);
        }
        let occasion = Occasion::of(member);
        if !self.is_saved(&occasion) {
            return Ok(Action::SaveEtcd(name.clone(), occasion));
        }
        Ok(Action::Permit(name.clone()))
    }

    /// When etcd is looked at again.
    fn look_again(&self) -> Timestamp {
        let EtcdSeen { at, since, .. } = self.snapshot.etcd;
        let patient = at.duration_since(since) < self.snapshot.policy.patience;
        at.checked_add(LOOK_AGAIN).ok().filter(|_| patient).unwrap_or(Timestamp::MAX)
    }

    /// Whether etcd's data was saved before that, on whichever control plane.
    fn is_saved(&self, occasion: &Occasion) -> bool {
        let mut planes = self.snapshot.members.values().filter(|member| member.node.control_plane);
        planes.any(|member| occasion.is_saved(member, self.snapshot.now))
    }

    /// As many as its group's limits allow.
    fn worker(&self, member: &Member) -> Result<Action, (Reason, String)> {
        let Snapshot { policy, .. } = self.snapshot;
        let usual = Limits::default();
        let Limits { max_unavailable, canary, .. } = policy.groups.get(&member.group).unwrap_or(&usual);
        let canary = *canary;
        let none = Tally::default();
        let tally = self.groups.get(group(member)).unwrap_or(&none);
        let Tally { all, through, under_way, .. } = *tally;
        let limit = max_unavailable.of(all);
        // Where there is room beside it, there is also without it.
        let itself = tally.away.len() >= limit && tally.away.contains(&member.node.name);
        let away = tally.away.len() - usize::from(itself);
        if away >= limit {
            let message = || {
                let names: Vec<&str> = self.others_away(member).take(3).map(NodeName::as_str).collect();
                format!("{away} of its group are away ({}), and {limit} may be", names.join(", "))
            };
            let message = if itself { message() } else { tally.full.get_or_init(message).clone() };
            return Err((Reason::CapacityUsed, message));
        }
        let zone = zone(self.snapshot, member);
        let elsewhere = tally.zones.iter().filter(|(other, _)| **other != zone);
        if let Some(other) = elsewhere.map(|(_, name)| name).min() {
            return Err((Reason::ZoneBusy, format!("{other} of another zone is away")));
        }
        // A node that is away for another reason is no canary.
        if through < canary && through + under_way >= canary {
            let message = format!("{through} of the first {canary} of its group are through");
            return Err((Reason::CanaryFirst, message));
        }
        Ok(Action::Permit(member.node.name.clone()))
    }
}

/// Why etcd cannot do without one of its voters, whichever.
fn risk(voters: &BTreeMap<String, bool>) -> Option<String> {
    // The only voter takes the API with it; there is no other way, and `plan` says so.
    if voters.len() <= 1 {
        return None;
    }
    let (well, majority) = (voters.values().filter(|well| **well).count(), voters.len() / 2 + 1);
    (well <= majority).then(|| {
        format!(
            "{well} of {} voters of etcd are well, and {majority} have to be left when it goes",
            voters.len()
        )
    })
}

/// Why no node of a group may be begun now; so many of it have failed, and so many of all.
fn closed(snapshot: &Snapshot, group: &str, of_group: usize, of_all: usize) -> Option<(Reason, String)> {
    let Snapshot { now, policy, .. } = snapshot;
    if let Some(next) = policy.of_group(group).closed(*now) {
        let message = match next {
            Some(next) => format!("the next window opens at {next:.0}"),
            None => "no window ever opens".to_owned(),
        };
        return Some((Reason::WindowClosed, message));
    }
    let limit = policy.max_failed.max(1);
    if of_all >= limit {
        let message = format!("{of_all} nodes have failed, and after {limit} no other is begun");
        return Some((Reason::TooManyFailed, message));
    }
    let own = policy.groups.get(group).and_then(|limits| limits.max_failed).map(|limit| limit.max(1));
    own.filter(|limit| of_group >= *limit).map(|limit| {
        let message = format!("{of_group} of {group} failed, and after {limit} no other of it is begun");
        (Reason::TooManyFailed, message)
    })
}

#[cfg(test)]
mod tests {
    use common::{
        annotations::STATE,
        plan::Plan,
        state::{Phase, Reason as Code, State},
    };

    use super::*;
    use crate::rollout::{
        decide::decide,
        policy::Policy,
        saved::SAVED,
        tests::{self, node},
    };

    fn planes(now: Timestamp) -> Snapshot {
        let policy = Policy {
            groups: BTreeMap::new(),
            soak: SignedDuration::ZERO,
            patience: SignedDuration::from_hours(1),
            ..tests::policy()
        };
        let state = State {
            phase: Phase::Idle,
            reason: Code::NoPlan,
            message: String::new(),
            since: now,
            attempt: 0,
            boot_id: "boot".into(),
            agent_version: String::new(),
        };
        let target = Plan::new([("kubelet".parse().unwrap(), "1.37.1".parse().unwrap())].into());
        let members = ["a", "b", "c"].map(|name| {
            let mut node = node(name, true);
            node.annotations.insert(STATE.into(), serde_json::to_string(&state).unwrap());
            let occasion = Occasion::Kubernetes("1.37.1".parse().unwrap());
            node.annotations.insert(SAVED.into(), occasion.mark(now));
            (node.name.clone(), Member::new(node, String::new(), Ok(target.clone()), now))
        });
        Snapshot::new(policy, members.into(), now)
    }

    /// An etcd of its own is neither asked nor saved; control planes go one after the other all the same.
    #[test]
    fn an_etcd_outside_of_the_cluster_is_in_nobodys_way() {
        let now = Timestamp::UNIX_EPOCH.checked_add(SignedDuration::from_hours(9)).unwrap();
        let mut snapshot = planes(now);
        for member in snapshot.members.values_mut() {
            let mut node = member.node.clone();
            node.annotations.remove(SAVED);
            member.update(node, now);
        }
        snapshot.etcd.take(Etcd::External, now - SignedDuration::from_hours(1));
        let decision = decide(&snapshot);
        assert_eq!(decision.actions, [Action::Permit("a".parse().unwrap())]);
        assert_eq!(decision.nodes[&"b".parse().unwrap()].reason, Reason::CapacityUsed);
    }

    /// A permit may rest on a look at etcd for some seconds only: what came between may have taken hours.
    #[test]
    fn an_old_look_at_etcd_is_none() {
        let now = Timestamp::UNIX_EPOCH.checked_add(SignedDuration::from_hours(9)).unwrap();
        let permit = Action::Permit("a".parse().unwrap());
        for (age, expected) in [
            (SignedDuration::ZERO, permit.clone()),
            (LOOK_GOOD_FOR, permit),
            (LOOK_GOOD_FOR + SignedDuration::from_secs(1), Action::LookAtEtcd),
            (SignedDuration::from_hours(8), Action::LookAtEtcd),
        ] {
            let mut snapshot = planes(now);
            let well = ["a", "b", "c"].map(|name| (name.to_owned(), true)).into();
            snapshot.etcd.take(Etcd::Voters(well), now - age);
            assert_eq!(decide(&snapshot).actions, [expected], "{age:#}");
        }
    }
}
