//! What the agent shows of itself: on its socket, and from there to `node-agent status`.

use std::sync::{Mutex, PoisonError};

use common::{
    disruption::Disruption,
    plan::{Plan, PlanId},
    software::{SoftwareName, SoftwareVersion},
    state::State,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use crate::{decide, endpoint::Presence, journal::Journal, metrics::Metrics, observe::HostState, software};

/// The answer to `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The Node's name.
    pub node: String,
    /// What the agent does and why.
    pub state: State,
    /// Whether the host is at the observed plan.
    pub ready: bool,
    /// The plan `ready` speaks of.
    pub plan_observed: Option<PlanId>,
    /// When a plan was last finished.
    pub last_success: Option<Timestamp>,
    /// Each software that is there or asked for.
    pub software: Vec<SoftwareStatus>,
}

/// One software.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SoftwareStatus {
    /// Its name.
    pub name: SoftwareName,
    /// The version verified on the host.
    pub current: Option<SoftwareVersion>,
    /// The version asked for.
    pub desired: Option<SoftwareVersion>,
    /// What would happen to it.
    pub change: Change,
    /// What its change does to pods.
    pub disruption: Disruption,
}

/// What has to be done to a software.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Nothing.
    None,
    /// It has to be changed.
    Change,
    /// A reboot is missing.
    Reboot,
}

/// Each software that is there or asked for, in the order of change.
pub fn software(host: &HostState, plan: Option<&Plan>) -> Vec<SoftwareStatus> {
    let wanted = plan.map(|plan| decide::wanted(plan, host)).unwrap_or_default();
    host.software
        .iter()
        .filter_map(|(name, observed)| {
            let desired = wanted.iter().find(|(known, _)| known == name).map(|(_, version)| version.clone());
            let change = match &desired {
                Some(version) if observed.needs_change(version) => Change::Change,
                Some(version) if observed.needs_reboot(version) => Change::Reboot,
                _ => Change::None,
            };
            let disruption = software::find(name)?.disruption();
            let current = observed.version.clone();
            (current.is_some() || desired.is_some()).then(|| SoftwareStatus {
                name: name.clone(),
                current,
                desired,
                change,
                disruption,
            })
        })
        .collect()
}

/// What the loop and the socket share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Metrics.
    pub metrics: Metrics,
    /// A person asked for another attempt.
    pub retry: Notify,
    /// Whether the API's endpoint may lead here.
    pub presence: watch::Sender<Presence>,
    status: Mutex<Option<Status>>,
}

impl Shared {
    /// The last status; none before the host was first looked at.
    pub fn status(&self) -> Option<Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// There is news.
    pub fn set(&self, node: &str, state: &State, host: &HostState, journal: &Journal, plan: Option<&Plan>) {
        self.metrics.set_state(state);
        self.metrics.set_last_success(journal.last_success);
        let status = Status {
            node: node.to_owned(),
            state: state.clone(),
            ready: journal.ready,
            plan_observed: journal.observed.clone(),
            last_success: journal.last_success,
            software: software(host, plan),
        };
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }
}
