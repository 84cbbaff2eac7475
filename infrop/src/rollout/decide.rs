//! What to do next: a pure function of what is. Nodes that were begun go on; others are begun as far as rules allow.

use std::collections::BTreeMap;

use common::metadata::NodeName;
use jiff::Timestamp;

pub use super::action::Action;
use super::{
    assess::{Assessment, Stage, assess},
    defer::defer,
    gate::Gate,
    snapshot::{InOrder, Member, Snapshot},
};

/// What is to be done, and where every node is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// To be done now, all at once.
    pub actions: Vec<Action>,
    /// Where every node is.
    pub nodes: BTreeMap<NodeName, Assessment>,
    /// When to decide anew although nothing happened.
    pub until: Option<Timestamp>,
}

impl Decision {
    /// The nodes that are not through, and where they are.
    pub fn left(&self) -> impl Iterator<Item = (&NodeName, &Assessment)> {
        self.nodes.iter().filter(|(_, node)| node.stage != Stage::Done)
    }

    /// Every node and where it is, with where it was by a decision before. Both are in the order of names, so no node is
    /// looked up: there may be thousands, and many decisions.
    pub(super) fn beside<'d>(
        &'d self,
        before: &'d Self,
    ) -> impl Iterator<Item = (&'d NodeName, &'d Assessment, Option<&'d Assessment>)> {
        let mut known = before.nodes.iter().peekable();
        self.nodes.iter().map(move |(name, node)| {
            while known.next_if(|(other, _)| *other < name).is_some() {}
            (name, node, known.next_if(|(other, _)| *other == name).map(|(_, node)| node))
        })
    }

    /// Whether something goes on by itself.
    pub fn is_moving(&self) -> bool {
        !self.actions.is_empty() || self.nodes.values().any(|node| node.stage == Stage::Wait)
    }
}

/// Decides.
pub fn decide(snapshot: &Snapshot) -> Decision {
    let open = open_nodes(snapshot);
    let assessed = snapshot.members.iter().map(|(name, member)| {
        let mut assessment = assess_beside(snapshot, member, &open);
        assessment.away |= snapshot.claims.contains(name);
        (name.clone(), assessment)
    });
    let nodes = assessed.collect();
    let busy = snapshot.busy_nodes();
    let mut is_busy = InOrder::of(&busy);
    let mut decision = Decision { actions: Vec::new(), nodes, until: None };
    // Both are in the order of names.
    let members = snapshot.members.values().zip(decision.nodes.values());
    let idle = members.filter(|(member, _)| !is_busy.has(&member.node.name));
    decision.actions = idle.filter_map(|(member, node)| own_step(snapshot, member, node)).collect();
    Gate::new(snapshot, &mut decision, busy.clone()).begin();
    defer(snapshot, &mut decision, &busy);
    decision.until = decision.nodes.values().filter_map(|assessment| assessment.until).min();
    decision
}

/// The steps of some nodes that were begun, as [`decide`] has them: no other node has a say in those, so none is looked at.
pub fn go_on<'a>(snapshot: &'a Snapshot, names: impl IntoIterator<Item = &'a NodeName>) -> Vec<Action> {
    let (open, busy) = (open_nodes(snapshot), snapshot.busy_nodes());
    let members =
        names.into_iter().filter(|name| !busy.contains(name)).map(|name| snapshot.members.get(name));
    let step = |member| own_step(snapshot, member, &assess_beside(snapshot, member, &open));
    members.flatten().filter_map(step).collect()
}

/// Up to two nodes that pods can go to: one of them is another than the one they are on.
fn open_nodes(snapshot: &Snapshot) -> Vec<&NodeName> {
    let open = snapshot.members.values().filter(|member| member.node.ready.is_ok() && !member.node.cordoned);
    open.map(|member| &member.node.name).take(2).collect()
}

fn assess_beside(snapshot: &Snapshot, member: &Member, open: &[&NodeName]) -> Assessment {
    let others = open.iter().any(|other| **other != member.node.name);
    assess(member, &snapshot.policy, others, snapshot.now)
}

fn own_step(snapshot: &Snapshot, member: &Member, assessment: &Assessment) -> Option<Action> {
    let name = &member.node.name;
    if !member.signs.permit && snapshot.claims.contains(name) {
        return Some(Action::Fence(name.clone()));
    }
    match assessment.stage {
        Stage::Do(verb) => Some(Action::Step(verb, name.clone())),
        _ => None,
    }
}
