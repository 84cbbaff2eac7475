//! Before what etcd's data was saved, and when: a word on the Node of the control plane where the copy is. Pure.

use std::fmt;

use common::KubernetesVersion;
use jiff::{SignedDuration, Timestamp};

use super::{assess::kubernetes, snapshot::Member};

/// On a control plane: before what etcd's data was last saved there, and when.
pub const SAVED: &str = "infrop.caos.ch/etcd-saved-before";

/// A copy is good so long: all control planes of a cluster take less. Whoever goes on later, or weeks after a rollout was
/// left lying, does not want to come back to what was then.
const GOOD_FOR: SignedDuration = SignedDuration::from_hours(3);

/// What is about to happen to a control plane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occasion {
    /// It gets another Kubernetes version.
    Kubernetes(KubernetesVersion),
    /// Anything else.
    Change,
}

impl Occasion {
    /// The next one of a control plane.
    pub(super) fn of(member: &Member) -> Self {
        let version = member.target.as_ref().ok().and_then(kubernetes);
        let version = version.filter(|version| member.node.kubelet != version.tag());
        version.map_or(Self::Change, Self::Kubernetes)
    }

    /// The value of the annotation.
    pub fn mark(&self, now: Timestamp) -> String {
        format!("{self} {now:.0}")
    }

    /// Whether a control plane has a copy that is good for this.
    pub(super) fn is_saved(&self, member: &Member, now: Timestamp) -> bool {
        let mark = member.node.annotations.get(SAVED).and_then(|mark| mark.split_once(' '));
        mark.is_some_and(|(before, at)| {
            // Of a clock that is ahead as well.
            let good = |at: Timestamp| now.duration_since(at).abs() <= GOOD_FOR;
            before == self.to_string() && at.parse().is_ok_and(good)
        })
    }
}

/// In a word, for files and marks.
impl fmt::Display for Occasion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubernetes(version) => write!(f, "{version}"),
            Self::Change => f.write_str("change"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{
        decide::{Action, decide},
        snapshot::Etcd,
        tests::{annotate, plan, snapshot},
    };

    #[test]
    fn a_copy_is_good_for_one_occasion_and_some_hours() {
        let minutes = SignedDuration::from_mins;
        let mut containerd = plan("1.36.4");
        containerd.desired.insert("containerd".parse().unwrap(), "2.4.2".parse().unwrap());
        let new = Occasion::Kubernetes("1.37.1".parse().unwrap());
        for (target, mark, expected) in [
            (plan("1.37.1"), None, Some(&new)),
            (plan("1.37.1"), Some((new.to_string(), minutes(1))), None),
            (plan("1.37.1"), Some((new.to_string(), minutes(180))), None),
            (plan("1.37.1"), Some((new.to_string(), minutes(181))), Some(&new)),
            (plan("1.37.1"), Some((new.to_string(), minutes(21 * 24 * 60))), Some(&new)),
            (plan("1.37.1"), Some((new.to_string(), minutes(-1))), None),
            (plan("1.37.1"), Some((new.to_string(), minutes(-181))), Some(&new)),
            (plan("1.37.1"), Some(("1.37.0".to_owned(), minutes(1))), Some(&new)),
            (plan("1.37.1"), Some(("change".to_owned(), minutes(1))), Some(&new)),
            (containerd.clone(), None, Some(&Occasion::Change)),
            (containerd.clone(), Some(("change".to_owned(), minutes(1))), None),
            (containerd.clone(), Some(("change".to_owned(), minutes(181))), Some(&Occasion::Change)),
            (containerd, Some((new.to_string(), minutes(1))), Some(&Occasion::Change)),
        ] {
            let mut world = snapshot(&["cp-1", "cp-2", "cp-3"], &target);
            let well = ["cp-1", "cp-2", "cp-3"].map(|name| (name.to_owned(), true)).into();
            world.etcd.take(Etcd::Voters(well), world.now);
            // On whichever of them.
            if let Some((before, age)) = &mark {
                let at = world.now - *age;
                annotate(&mut world, "cp-3", SAVED, &format!("{before} {at}"));
            }
            let name = "cp-1".parse().unwrap();
            let expected = expected.map_or(Action::Permit("cp-1".parse().unwrap()), |occasion| {
                Action::SaveEtcd(name, occasion.clone())
            });
            assert_eq!(decide(&world).actions, [expected], "{mark:?}");
        }
    }

    #[test]
    fn a_mark_is_read_as_it_was_written_and_one_without_time_is_none() {
        let mut world = snapshot(&["cp-1"], &plan("1.37.1"));
        let occasion = Occasion::of(&world.members[&"cp-1".parse().unwrap()]);
        for (mark, expected) in
            [(occasion.mark(world.now), true), ("1.37.1".into(), false), ("1.37.1 soon".into(), false)]
        {
            annotate(&mut world, "cp-1", SAVED, &mark);
            let member = &world.members[&"cp-1".parse().unwrap()];
            assert_eq!(occasion.is_saved(member, world.now), expected, "{mark}");
        }
    }
}
