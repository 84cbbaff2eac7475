//! How long a rollout will take, by what nodes of this cluster took before.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use common::metadata::NodeName;
use jiff::SignedDuration;
use serde::Serialize;

use super::{
    assess::{Verb, has_permit},
    decide::Action,
    gate::{CONTROL_PLANES, group},
    history::{History, Kind},
    policy::Policy,
    snapshot::{Member, Snapshot},
};
use crate::{apply::natural, desired::Amount};

/// How long a rollout will take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// In all; none if nobody knows it of one of its parts.
    pub seconds: Option<u64>,
    /// Control planes, then groups of workers, which go side by side.
    pub groups: Vec<GroupEstimate>,
    /// Whether nodes also have to wait for windows, which the seconds do not count.
    pub windows: bool,
}

/// How long the nodes of a group will take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupEstimate {
    /// The group's name; none for control planes.
    pub group: Option<String>,
    /// What changes.
    pub kind: Kind,
    /// How many nodes.
    pub nodes: usize,
    /// How many times some of them go together.
    pub turns: usize,
    /// How long a turn takes; none if no node was changed this way yet.
    pub turn_seconds: Option<u64>,
}

impl Estimate {
    /// With that of a rollout after it.
    #[must_use]
    pub fn then(mut self, later: Self) -> Self {
        self.groups.extend(later.groups);
        let seconds = self.seconds.zip(later.seconds).map(|(first, second)| first + second);
        Self { seconds, windows: self.windows || later.windows, ..self }
    }
}

impl GroupEstimate {
    fn seconds(&self) -> Option<u64> {
        Some(self.turn_seconds? * u64::try_from(self.turns).ok()?)
    }
}

/// Of a rollout's steps; none if no node would have its turn.
pub fn estimate(snapshot: &Snapshot, steps: &[Action]) -> Option<Estimate> {
    // One that is under way already is not begun, but ends as the others do.
    let changed: BTreeSet<&NodeName> = steps
        .iter()
        .filter(|step| matches!(step, Action::Permit(_) | Action::Step(Verb::Withdraw, _)))
        .filter_map(Action::node)
        .collect();
    let mut groups: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for member in changed.into_iter().filter_map(|name| snapshot.members.get(name)) {
        groups.entry(group(member)).or_default().push(member);
    }
    // The one of control planes is the first: no other name is as short.
    let groups: Vec<GroupEstimate> =
        groups.into_iter().map(|(name, members)| of_group(snapshot, name, members)).collect();
    let seconds = in_all(&snapshot.policy, &groups);
    let waits = |group: &GroupEstimate| {
        let name = group.group.as_deref().unwrap_or(CONTROL_PLANES);
        !snapshot.policy.of_group(name).windows().is_empty()
    };
    let windows = groups.iter().any(waits);
    (!groups.is_empty()).then_some(Estimate { seconds, groups, windows })
}

/// Control planes, and then one order of workers after the other, in each of which groups go side by side.
fn in_all(policy: &Policy, groups: &[GroupEstimate]) -> Option<u64> {
    let mut longest: BTreeMap<Option<u16>, u64> = BTreeMap::new();
    for group in groups {
        let seconds = group.seconds()?;
        let longest = longest.entry(group.group.as_deref().map(|name| policy.order(name))).or_default();
        *longest = seconds.max(*longest);
    }
    Some(longest.into_values().sum())
}

fn of_group(snapshot: &Snapshot, name: &str, mut members: Vec<&Member>) -> GroupEstimate {
    let policy = &snapshot.policy;
    let all = snapshot.members.values().filter(|member| group(member) == name).count();
    let limits = policy.groups.get(name).cloned().unwrap_or_default();
    let (at_once, canary) = if name == CONTROL_PLANES {
        (Amount::Nodes(1), 0)
    } else {
        // Those that have their versions count as the first ones.
        (limits.max_unavailable, limits.canary.saturating_sub(all - members.len()))
    };
    let zone = |member: &Member| member.node.labels.get(&policy.zone_label).cloned().unwrap_or_default();
    members.sort_by_key(|member| (zone(member), natural(&member.node.name)));
    let zones: Vec<String> = members.iter().map(|member| zone(member)).collect();
    let kind = members.iter().map(|member| kind(snapshot, member)).max().unwrap_or(Kind::Other);
    let (planes, soak) = (name == CONTROL_PLANES, policy.of_group(name).soak());
    GroupEstimate {
        group: (!planes).then(|| name.to_owned()),
        kind,
        nodes: members.len(),
        turns: turns(&zones, at_once.of(all).max(1), canary),
        turn_seconds: median(snapshot, kind, soak, |member| group(member) == name)
            .or_else(|| median(snapshot, kind, soak, |member| member.node.control_plane == planes)),
    }
}

/// What changes on a node; on one that is under way, what it was begun for.
fn kind(snapshot: &Snapshot, member: &Member) -> Kind {
    let begun = History::read(&member.node).kind().filter(|_| has_permit(&member.node));
    begun.unwrap_or_else(|| member.kind(&snapshot.policy))
}

/// How often some go together: up to `at_once` of a zone, and nobody beside the last of the first ones.
fn turns(zones: &[String], at_once: usize, canary: usize) -> usize {
    let (mut turns, mut room, mut last) = (0, 0, None);
    for (index, zone) in zones.iter().enumerate() {
        if room == 0 || last != Some(zone) || index == canary {
            turns += 1;
            room = at_once;
        }
        room -= 1;
        last = Some(zone);
    }
    turns
}

/// How long such nodes took before; the middle, because one that somebody had to help says little.
fn median(
    snapshot: &Snapshot,
    kind: Kind,
    soak: SignedDuration,
    of: impl Fn(&Member) -> bool,
) -> Option<u64> {
    let members = snapshot.members.values().filter(|member| of(member));
    let mut seconds: Vec<u64> =
        members.filter_map(|member| History::read(&member.node).seconds(kind, soak)).collect();
    seconds.sort_unstable();
    seconds.get(seconds.len() / 2).copied()
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<String> = self.groups.iter().filter_map(part).collect();
        let (known, windows) =
            (known.join(", "), if self.windows { ", and what windows make it wait" } else { "" });
        match self.seconds {
            Some(seconds) => write!(
                f,
                "Estimate: about {}{windows}, by what nodes of this cluster took before ({known})",
                rounded(seconds)
            ),
            None if known.is_empty() => {
                f.write_str("No estimate: no node of this cluster was changed this way yet")
            }
            None => {
                let unknown = self.groups.iter().filter(|group| group.turn_seconds.is_none()).map(title);
                let unknown = unknown.collect::<Vec<_>>().join(", ");
                write!(
                    f,
                    "No estimate: no node like those of {unknown} was changed this way yet (known: {known})"
                )
            }
        }
    }
}

fn title(group: &GroupEstimate) -> &str {
    group.group.as_deref().unwrap_or("control planes")
}

fn part(group: &GroupEstimate) -> Option<String> {
    let (seconds, turns) = (group.turn_seconds?, group.turns);
    let word = if turns == 1 { "turn" } else { "turns" };
    Some(format!("{}: {turns} {word} of {}", title(group), rounded(seconds)))
}

/// As exact as people can use it.
fn rounded(seconds: u64) -> String {
    let minutes = seconds.div_ceil(60);
    match minutes {
        0..=2 => format!("{seconds} s"),
        3..=120 => format!("{minutes} min"),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use common::annotations::HISTORY;

    use super::*;
    use crate::rollout::{
        foresee,
        policy::Limits,
        tests::{annotate, plan, snapshot},
    };

    fn took(snapshot: &mut Snapshot, name: &str, kind: &str, seconds: u32) {
        let text = format!(r#"{{"took":{{"{kind}":{{"seconds":{seconds},"soakSeconds":10}}}}}}"#);
        annotate(snapshot, name, HISTORY, &text);
    }

    fn text(snapshot: &Snapshot) -> String {
        estimate(snapshot, &foresee(snapshot).0).unwrap().to_string()
    }

    #[test]
    fn without_history_it_says_so() {
        let mut snapshot = snapshot(&["cp-1", "w-1"], &plan("1.37.1"));
        assert_eq!(text(&snapshot), "No estimate: no node of this cluster was changed this way yet");
        annotate(&mut snapshot, "w-1", HISTORY, "{{{");
        // Another kind of change says nothing.
        took(&mut snapshot, "cp-1", "reboot", 100);
        assert_eq!(text(&snapshot), "No estimate: no node of this cluster was changed this way yet");
        took(&mut snapshot, "cp-1", "kubernetes", 100);
        assert_eq!(
            text(&snapshot),
            "No estimate: no node like those of w was changed this way yet (known: control planes: 1 turn of 100 s)"
        );
    }

    #[test]
    fn turns_of_the_median_of_a_group_and_its_role() {
        let names = ["cp-1", "cp-2", "cp-3", "w-1", "w-2", "w-3", "w-4", "w-5"];
        let mut snapshot = snapshot(&names, &plan("1.37.1"));
        snapshot
            .policy
            .groups
            .insert("w".into(), Limits { max_unavailable: Amount::Nodes(2), canary: 1, ..Limits::default() });
        // The soak of that time is taken away, and today's is added.
        snapshot.policy.soak = SignedDuration::from_secs(20);
        for (name, seconds) in [("cp-2", 190), ("w-1", 40), ("w-2", 90), ("w-3", 4000)] {
            took(&mut snapshot, name, "kubernetes", seconds);
        }
        let estimate = estimate(&snapshot, &foresee(&snapshot).0).unwrap();
        let of = |group: &GroupEstimate| (group.nodes, group.turns, group.turn_seconds);
        assert_eq!(
            estimate.groups.iter().map(of).collect::<Vec<_>>(),
            [(3, 3, Some(200)), (5, 3, Some(100))]
        );
        assert_eq!(estimate.seconds, Some(900));
        assert_eq!(
            estimate.to_string(),
            "Estimate: about 15 min, by what nodes of this cluster took before \
             (control planes: 3 turns of 4 min, w: 3 turns of 100 s)"
        );
        // Nodes of a new group are taken to be like other workers.
        for name in ["w-4", "w-5"] {
            snapshot.members.get_mut(&name.parse().unwrap()).unwrap().group = "new".into();
        }
        let estimate = super::estimate(&snapshot, &foresee(&snapshot).0).unwrap();
        let seconds: Vec<_> = estimate.groups.iter().map(|group| group.turn_seconds).collect();
        assert_eq!(seconds, [Some(200), Some(100), Some(100)]);
        assert_eq!(estimate.seconds, Some(3 * 200 + 2 * 100));
    }

    #[test]
    fn who_changes_nothing_needs_no_estimate() {
        let snapshot = snapshot(&["cp-1", "w-1"], &plan("1.36.4"));
        assert_eq!(estimate(&snapshot, &foresee(&snapshot).0), None);
    }

    #[test]
    fn zones_and_the_first_ones_do_not_share_a_turn() {
        for (zones, at_once, canary, expected) in [
            (&["", "", "", "", ""][..], 1, 0, 5),
            (&["", "", "", "", ""], 2, 0, 3),
            (&["", "", "", "", ""], 9, 2, 2),
            (&["a", "b", "b"], 9, 0, 2),
            (&["a", "a", "b"], 1, 0, 3),
            (&[], 1, 0, 0),
        ] {
            let zones: Vec<String> = zones.iter().map(|zone| (*zone).to_owned()).collect();
            assert_eq!(turns(&zones, at_once, canary), expected, "{zones:?} {at_once} {canary}");
        }
    }
}
