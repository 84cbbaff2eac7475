//! Which nodes pods should rather not go to: those that will be emptied soon, so that a pod does not have to move again.

use std::collections::BTreeSet;

use common::metadata::NodeName;

use super::{
    assess::Stage,
    decide::{Action, Decision},
    reason::Reason,
    snapshot::{InOrder, Member, Snapshot},
};

/// So many are written at once: a group may have a thousand nodes, and nothing waits for it.
const AT_ONCE: usize = 10;

/// Taints workers whose turn comes while others of their group have theirs, and takes our taint from all that do not wait.
/// Only as far as nothing else is done with a node.
pub(super) fn defer(snapshot: &Snapshot, decision: &mut Decision, busy: &BTreeSet<&NodeName>) {
    let begun: BTreeSet<&NodeName> = decision.actions.iter().filter_map(Action::node).collect();
    let (mut is_begun, mut is_busy) = (InOrder::of(&begun), InOrder::of(busy));
    let mut actions = Vec::new();
    // Both are in the order of names.
    for ((name, member), assessment) in snapshot.members.iter().zip(decision.nodes.values()) {
        if is_busy.has(name) || is_begun.has(name) {
            continue;
        }
        let waits = snapshot.policy.prefer_ready && is_next(member, assessment.stage, assessment.reason);
        let through = assessment.stage == Stage::Done || !snapshot.policy.prefer_ready;
        if waits && !member.node.is_deferred() {
            actions.push(Action::Taint(name.clone()));
        } else if through && member.node.is_deferred() {
            actions.push(Action::Untaint(name.clone()));
        }
    }
    let under_way = snapshot.busy.iter().filter(|action| action.is_taint()).count();
    decision.actions.extend(actions.into_iter().take(AT_ONCE.saturating_sub(under_way)));
}

/// Whether it is held by nothing but others of its group that go before it.
fn is_next(member: &Member, stage: Stage, reason: Reason) -> bool {
    !member.node.control_plane
        && stage == Stage::Pending
        && matches!(reason, Reason::CapacityUsed | Reason::ZoneBusy | Reason::CanaryFirst)
}
