//! Saying what is done and why: to systemd, to the socket, to the Node.

use common::{
    annotations,
    state::{Phase, Reason, State},
};
use jiff::Timestamp;

use super::Engine;
use crate::{
    node::{Chain, View},
    notify, report,
};

impl Engine {
    pub(super) fn set_state(&mut self, phase: Phase, reason: Reason, message: String) {
        let same = |state: &State| state.phase == phase && state.reason == reason;
        let since = if same(&self.state) {
            self.state.since
        } else {
            // After a restart of the agent the Node still knows since when.
            let published = match &*self.view.borrow() {
                View::Seen { annotations, .. } => annotations.get(annotations::STATE).cloned(),
                _ => None,
            };
            let published = published.and_then(|text| serde_json::from_str::<State>(&text).ok());
            published.filter(same).map_or_else(Timestamp::now, |state| state.since)
        };
        let attempt = match (&self.journal.active, &self.journal.quarantine) {
            (Some(active), _) => active.attempt,
            (None, Some(quarantine)) if phase == Phase::Quarantined => quarantine.attempts,
            _ => 0,
        };
        self.state = State {
            phase,
            reason,
            message,
            since,
            attempt,
            boot_id: self.seen.facts.boot.to_string(),
            agent_version: std::mem::take(&mut self.state.agent_version),
        };
        let text = format!("{phase} ({reason}): {}", self.state.message);
        tracing::debug!(phase = %phase, reason = %reason, attempt, "{text}");
        notify::status(&text);
        let plan = self.asked_plan();
        let name = self.node.name().as_str().to_owned();
        self.shared.set(&name, &self.state, &self.seen, &self.journal, plan.as_ref());
    }

    /// Brings the Node's annotations up to date if it can be reached. Whether it wrote (and so read) anything.
    pub(super) async fn publish(&mut self) -> bool {
        let patch = match &*self.view.borrow() {
            View::Seen { annotations, .. } => {
                report::patch(annotations, &report::report(&self.seen, &self.journal, &self.state))
            }
            View::NoCredential | View::Silent { .. } | View::Absent | View::Refused(_) => None,
        };
        let Some(patch) = patch else { return false };
        match self.node.patch(&patch).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("the Node's annotations cannot be written: {}", Chain(&error));
                if error.is_refusal() {
                    self.refused = Some(error.to_string());
                }
                false
            }
        }
    }
}
