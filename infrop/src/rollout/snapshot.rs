//! What is, beside what is wanted: all that a decision about a rollout is made of.

use std::{
    collections::{BTreeMap, BTreeSet, btree_set},
    iter::Peekable,
};

use common::{metadata::NodeName, plan::Plan};
use jiff::{SignedDuration, Timestamp};

use super::{
    assess::{Reading, Signs},
    decide::Action,
    history::Kind,
    policy::Policy,
};
use crate::cluster::NodeView;

/// What the names of all annotations of infrop and node-agent have before the slash.
const DOMAIN: &str = "caos.ch";

/// A Node, and what it is to become.
#[derive(Debug, Clone)]
pub struct Member {
    /// The Node.
    pub node: NodeView,
    /// Its group: those of a group are away in turn.
    pub group: String,
    /// The versions it is to have; an error's text if nobody can say.
    pub target: Result<Plan, String>,
    /// What the Node says of its way there; read once, for decisions are made often.
    pub(super) reading: Result<Reading, String>,
    /// What it says whatever it is to become.
    pub(super) signs: Signs,
    /// Whether it was seen empty of pods that have to go, since it was cordoned.
    pub emptied: bool,
    /// Whether pods were kept away without a break since its drain was begun.
    pub(super) closed: bool,
    /// Why its drain was given up, if it was.
    pub skipped: Option<String>,
    /// Why an action on it failed for good in this run.
    pub failed: Option<String>,
    /// Whether the pods that belong there are well since the node is; none while nobody looked.
    pub checked: Option<Result<(), Failing>>,
    /// Whether what a site checks is well since the node is; none while nobody looked.
    pub tested: Option<Result<(), Failing>>,
    /// When it last gave a sign of being on its way, as far as this run saw.
    pub changed: Timestamp,
}

impl Member {
    /// Of a Node that was just seen.
    pub fn new(node: NodeView, group: String, target: Result<Plan, String>, now: Timestamp) -> Self {
        let reading = read(&node, &target);
        let signs = Signs::of(&node);
        Self {
            node,
            group,
            target,
            reading,
            signs,
            emptied: false,
            closed: false,
            skipped: None,
            failed: None,
            checked: None,
            tested: None,
            changed: now,
        }
    }

    /// What kind of change it is to have.
    pub(super) fn kind(&self, policy: &Policy) -> Kind {
        self.reading.as_ref().map_or(Kind::Other, |reading| Kind::of(reading.differs(), policy.of(self)))
    }

    /// What is to change on it, for people; nothing if that is unknown.
    pub fn change(&self) -> String {
        self.reading.as_ref().map(Reading::change).unwrap_or_default()
    }

    /// Whether it is where it should be, by its agent's word.
    pub(super) fn at_target(&self) -> bool {
        self.reading.as_ref().is_ok_and(Reading::at_target)
    }

    /// Its pods are made to go from now on.
    pub(super) fn begin_drain(&mut self) {
        self.closed = self.node.cordoned;
    }

    /// Its pods are gone: those that were there when its drain was begun, and no others, unless pods could come meanwhile.
    pub(super) fn end_drain(&mut self) {
        self.emptied = std::mem::take(&mut self.closed);
    }

    /// The Node has changed.
    pub fn update(&mut self, node: NodeView, now: Timestamp) {
        if !node.cordoned {
            // Pods may have come, also to one that is just being emptied.
            (self.emptied, self.closed) = (false, false);
        }
        if node.ready.is_err() || node.boot_id != self.node.boot_id {
            // What was well then need not be when it comes back. What was not keeps its time.
            self.checked.take_if(|result| result.is_ok());
            self.tested.take_if(|result| result.is_ok());
        }
        if is_sign(&self.node, &node) {
            self.changed = now;
        }
        self.reading = read(&node, &self.target);
        self.signs = Signs::of(&node);
        self.node = node;
    }
}

/// Whether a Node has changed in what a node on its way changes. Its kubelet writes every few minutes, whatever is not well,
/// and says in other words each time why it is not; and anyone may write labels and annotations of their own.
fn is_sign(before: &NodeView, after: &NodeView) -> bool {
    let ours = |node: &NodeView| {
        let domain = |key: &str| key.split_once('/').is_some_and(|(domain, _)| domain.ends_with(DOMAIN));
        let mut ours = node.annotations.clone();
        ours.retain(|key, _| domain(key));
        ours
    };
    let NodeView { uid, ready, since, cordoned, kubelet, boot_id, .. } = before;
    (uid, ready.is_ok(), since, cordoned, kubelet, boot_id)
        != (&after.uid, after.ready.is_ok(), &after.since, &after.cordoned, &after.kubelet, &after.boot_id)
        || ours(before) != ours(after)
}

/// Something that is looked at again until it is well, but not for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// What is not well.
    pub why: String,
    /// Since when.
    pub since: Timestamp,
    /// When to look again.
    pub again: Timestamp,
    /// How often it was seen so.
    pub failures: u32,
}

impl Failing {
    /// After another look, if it was not well before either; `wait` is how long to wait after so many of them.
    pub(super) fn new(
        before: Option<&Result<(), Self>>,
        why: String,
        now: Timestamp,
        wait: impl Fn(u32) -> SignedDuration,
    ) -> Self {
        let before = before.and_then(|before| before.as_ref().err());
        let failures = before.map_or(0, |before| before.failures).saturating_add(1);
        Self {
            why,
            since: before.map_or(now, |before| before.since),
            again: now.checked_add(wait(failures)).unwrap_or(Timestamp::MAX),
            failures,
        }
    }
}

fn read(node: &NodeView, target: &Result<Plan, String>) -> Result<Reading, String> {
    target.as_ref().map(|target| Reading::new(node, target)).map_err(Clone::clone)
}

/// etcd, as a control plane's permit needs to know it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Etcd {
    /// Nobody looked, or not since the last control plane was begun.
    #[default]
    Unknown,
    /// It is not on the control planes: its own keeper looks after it.
    External,
    /// It could not be asked.
    Silent(String),
    /// Each voter, and whether it is well.
    Voters(BTreeMap<String, bool>),
}

/// etcd, and when that was seen.
#[derive(Debug, Clone, Default)]
pub struct EtcdSeen {
    /// How it is.
    pub etcd: Etcd,
    /// When that was seen.
    pub at: Timestamp,
    /// Since when looks follow each other without a control plane having been begun.
    pub since: Timestamp,
}

impl EtcdSeen {
    /// It was looked at.
    pub fn take(&mut self, etcd: Etcd, now: Timestamp) {
        if self.etcd == Etcd::Unknown {
            self.since = now;
        }
        self.etcd = etcd;
        self.at = now;
    }
}

/// Everything.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Now.
    pub now: Timestamp,
    /// What the rollout may do.
    pub policy: Policy,
    /// The nodes.
    pub members: BTreeMap<NodeName, Member>,
    /// etcd.
    pub etcd: EtcdSeen,
    /// Nodes that a writer before us may be about to permit: it said so in the Lease.
    pub claims: BTreeSet<NodeName>,
    /// What is under way.
    pub busy: BTreeSet<Action>,
}

impl Snapshot {
    /// Of nodes that were just seen.
    pub fn new(policy: Policy, members: BTreeMap<NodeName, Member>, now: Timestamp) -> Self {
        Self {
            now,
            policy,
            members,
            etcd: EtcdSeen::default(),
            claims: BTreeSet::new(),
            busy: BTreeSet::new(),
        }
    }

    /// The nodes that something is being done with which takes them away, or is about to.
    pub(super) fn begun_nodes(&self) -> BTreeSet<&NodeName> {
        self.busy.iter().filter(|action| !action.is_taint()).filter_map(Action::node).collect()
    }

    /// The nodes that something is being done with.
    pub fn busy_nodes(&self) -> BTreeSet<&NodeName> {
        self.busy.iter().filter_map(Action::node).collect()
    }
}

/// A set of names that is asked for names in their order: each is found beside the one before, without a search. Thousands
/// are asked for in each decision.
#[derive(Debug)]
pub(super) struct InOrder<'s, 'n>(Peekable<btree_set::Iter<'s, &'n NodeName>>);

impl<'s, 'n> InOrder<'s, 'n> {
    pub(super) fn of(names: &'s BTreeSet<&'n NodeName>) -> Self {
        Self(names.iter().peekable())
    }

    /// Whether a name is in the set; it comes after all that were asked for.
    pub(super) fn has(&mut self, name: &NodeName) -> bool {
        while self.0.next_if(|other| **other < name).is_some() {}
        self.0.next_if(|other| **other == name).is_some()
    }
}
