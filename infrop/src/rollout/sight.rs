//! Nodes as the watch and our own writes show them: which there are, and how each is. Pure.

use std::collections::{BTreeMap, BTreeSet};

use common::metadata::NodeName;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::Event;

use super::snapshot::Member;
use crate::cluster::NodeView;

type Members = BTreeMap<NodeName, Member>;

/// What is known of the watch itself.
#[derive(Debug, Default)]
pub(super) struct Sight {
    /// The Nodes that a list under way had so far: after trouble all are listed again, and those that went meanwhile are in
    /// none of its events.
    listed: Option<BTreeSet<NodeName>>,
}

/// What an event told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// The node that it is about.
    pub(super) heard: Option<NodeName>,
    /// Nodes that are no more, or others of the same name: what was known of them is of no use.
    pub(super) gone: Vec<NodeName>,
    /// Whether all Nodes are known now.
    pub(super) complete: bool,
}

impl Sight {
    /// Learns from the watch.
    pub(super) fn take(
        &mut self,
        members: &mut Members,
        event: &Event<Node>,
        now: Timestamp,
        join: impl Fn(NodeView) -> Member,
    ) -> News {
        let mut news = News::default();
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitApply(node) | Event::Apply(node) => {
                let Some(node) = NodeView::new(node) else { return news };
                if let (Event::InitApply(_), Some(listed)) = (event, &mut self.listed) {
                    listed.insert(node.name.clone());
                }
                news.heard = Some(node.name.clone());
                match members.get_mut(&node.name) {
                    // The watch may be behind what our own writes gave back.
                    Some(member) if is_older(&node, &member.node) => {}
                    Some(member) if member.node.uid == node.uid => member.update(node, now),
                    known => {
                        // What was found out about another of that name says nothing of this one.
                        news.gone.extend(known.map(|member| member.node.name.clone()));
                        members.insert(node.name.clone(), join(node));
                    }
                }
            }
            Event::Delete(node) => {
                let node = NodeView::new(node);
                let same = |node: &NodeView| {
                    members.get(&node.name).is_some_and(|member| member.node.uid == node.uid)
                };
                if let Some(node) = node.filter(same) {
                    members.remove(&node.name);
                    news.gone.push(node.name);
                }
            }
            Event::InitDone => {
                if let Some(listed) = self.listed.take() {
                    news.gone = members.keys().filter(|name| !listed.contains(name)).cloned().collect();
                    members.retain(|name, _| listed.contains(name));
                }
                news.complete = true;
            }
        }
        news
    }
}

/// Learns from the answer to a write of ours. It may come after the Node went: then it is no news.
pub(super) fn take_answer(members: &mut Members, node: &Node, now: Timestamp) {
    let Some(node) = NodeView::new(node) else { return };
    let member = members.get_mut(&node.name).filter(|member| member.node.uid == node.uid);
    if let Some(member) = member
        && !is_older(&node, &member.node)
    {
        member.update(node, now);
    }
}

/// Whether a Node is older than another version of it. What cannot be compared is taken as it comes.
fn is_older(node: &NodeView, than: &NodeView) -> bool {
    let version = |node: &NodeView| node.resource_version.parse::<u64>().ok();
    version(node).zip(version(than)).is_some_and(|(one, other)| one < other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, uid: &str, version: u64) -> Node {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": name, "uid": uid, "resourceVersion": version.to_string() },
        }))
        .unwrap()
    }

    fn join(node: NodeView) -> Member {
        Member::new(node, "w".into(), Err("x".into()), Timestamp::UNIX_EPOCH)
    }

    struct World {
        sight: Sight,
        members: Members,
    }

    impl World {
        /// Of a list with `w-1` and `w-2`, both of which something was found out about.
        fn new() -> Self {
            let mut world = Self { sight: Sight::default(), members: Members::new() };
            world.take(&Event::Init);
            for name in ["w-1", "w-2"] {
                assert!(!world.take(&Event::InitApply(node(name, "a", 10))).complete);
            }
            assert!(world.take(&Event::InitDone).complete);
            for member in world.members.values_mut() {
                member.failed = Some("no".into());
            }
            world
        }

        fn take(&mut self, event: &Event<Node>) -> News {
            self.sight.take(&mut self.members, event, Timestamp::UNIX_EPOCH, join)
        }

        /// Name, UID, version, and whether something is known of it.
        fn shown(&self) -> Vec<String> {
            let show = |member: &Member| {
                let NodeView { name, uid, resource_version, .. } = &member.node;
                let known = if member.failed.is_some() { " known" } else { "" };
                format!("{name} {uid}{resource_version}{known}")
            };
            self.members.values().map(show).collect()
        }
    }

    fn names(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn nodes_that_went_while_nobody_watched_are_gone_with_the_next_list() {
        let mut world = World::new();
        // Until it is complete nobody knows.
        world.take(&Event::Init);
        world.take(&Event::InitApply(node("w-1", "a", 10)));
        assert_eq!(world.shown(), ["w-1 a10 known", "w-2 a10 known"]);
        // It breaks off and begins anew; what an answer of ours has is newer than what it has.
        world.take(&Event::Init);
        take_answer(&mut world.members, &node("w-2", "a", 14), Timestamp::UNIX_EPOCH);
        world.take(&Event::InitApply(node("w-2", "a", 13)));
        world.take(&Event::InitApply(node("w-3", "a", 12)));
        assert_eq!(world.take(&Event::InitDone).gone, names(&["w-1"]));
        assert_eq!(world.shown(), ["w-2 a14 known", "w-3 a12"]);
        // Afterwards single events come, and none of them is a list.
        world.take(&Event::Apply(node("w-3", "a", 15)));
        assert_eq!(world.shown(), ["w-2 a14 known", "w-3 a15"]);
    }

    #[test]
    fn a_node_that_was_made_anew_is_another() {
        for listed in [false, true] {
            let mut world = World::new();
            let again = node("w-1", "b", 20);
            let news = if listed {
                world.take(&Event::Init);
                world.take(&Event::InitApply(again))
            } else {
                world.take(&Event::Apply(again))
            };
            assert_eq!((news.heard, news.gone), (Some("w-1".parse().unwrap()), names(&["w-1"])));
            assert_eq!(world.shown(), ["w-1 b20", "w-2 a10 known"]);
            // What still comes of the one before is none of it.
            take_answer(&mut world.members, &node("w-1", "a", 19), Timestamp::UNIX_EPOCH);
            take_answer(&mut world.members, &node("w-1", "a", 30), Timestamp::UNIX_EPOCH);
            world.take(&Event::Delete(node("w-1", "a", 20)));
            assert_eq!(world.shown(), ["w-1 b20", "w-2 a10 known"]);
        }
    }

    /// Answers and the watch overtake each other, and a decision on what was would permit a node twice.
    #[test]
    fn what_is_older_than_what_is_known_is_no_news() {
        type Comes = fn(&mut World, Node);
        let ways: [(&str, Comes); 3] = [
            ("an event", |world, node| drop(world.take(&Event::Apply(node)))),
            ("a list", |world, node| {
                world.take(&Event::Init);
                world.take(&Event::InitApply(node));
            }),
            ("an answer", |world, node| take_answer(&mut world.members, &node, Timestamp::UNIX_EPOCH)),
        ];
        for (what, comes) in ways {
            // The second is one digit longer: these are numbers.
            for (version, known) in [(9, 10), (100, 100), (99, 100), (101, 101)] {
                let mut world = World::new();
                if known >= 100 {
                    world.take(&Event::Apply(node("w-1", "a", 100)));
                }
                comes(&mut world, node("w-1", "a", version));
                assert_eq!(world.shown()[0], format!("w-1 a{known} known"), "{what} of {version}");
            }
        }
    }

    #[test]
    fn an_answer_that_comes_after_its_node_went_brings_nobody_back() {
        let mut world = World::new();
        assert_eq!(world.take(&Event::Delete(node("w-1", "a", 11))).gone, names(&["w-1"]));
        take_answer(&mut world.members, &node("w-1", "a", 12), Timestamp::UNIX_EPOCH);
        assert_eq!(world.shown(), ["w-2 a10 known"]);
        take_answer(&mut world.members, &node("w-2", "a", 12), Timestamp::UNIX_EPOCH);
        world.take(&Event::Apply(node("w-2", "a", 11)));
        assert_eq!(world.shown(), ["w-2 a12 known"]);
    }
}
