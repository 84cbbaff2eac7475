//! What must survive a crash: which plan is under way, which step of it, how often it was tried.
//!
//! A small JSON file, replaced in one step and written through to the disk before the step it tells of begins.

#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
};

use common::{
    annotations::Request,
    plan::{Plan, PlanId},
    software::SoftwareName,
    state::Reason,
};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    decide::{Asked, Standing},
    failure::Failure,
    files,
    observe::BootId,
};

/// The form of the file. An agent refuses to read a later one: it would lose what it does not know.
const FORMAT: u32 = 1;

/// No retry waits longer.
const LONGEST_DELAY: SignedDuration = SignedDuration::from_mins(5);

/// The content of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    format: u32,
    /// The initial metadata's plan that was reached and told to the provider.
    pub initialized: Option<PlanId>,
    /// The plan that `ready` speaks of.
    pub observed: Option<PlanId>,
    /// Whether the host is at that plan.
    pub ready: bool,
    /// The plan under way.
    pub active: Option<Active>,
    /// The plan that failed too often.
    pub quarantine: Option<Quarantine>,
    /// When a plan was last finished.
    pub last_success: Option<Timestamp>,
    /// Whether services were not found well since something was changed or found broken: versions alone say nothing
    /// of them, so no plan counts as reached before they are looked at.
    #[serde(default)]
    pub unverified: bool,
}

/// A plan under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Active {
    /// The plan.
    pub plan: Plan,
    /// Who asked for it.
    pub origin: Origin,
    /// The attempt this is, from 1.
    pub attempt: u32,
    /// When it began.
    pub since: Timestamp,
    /// The step that has begun and not ended.
    pub step: Option<Step>,
    /// Why the last attempt failed.
    pub failure: Option<Failed>,
    /// Not before this.
    pub retry_at: Option<Timestamp>,
    /// The boot in which this plan's reboot was ordered.
    pub rebooted_from: Option<BootId>,
    /// Whether the Node's last word was no permit for this plan.
    #[serde(default)]
    pub withdrawn: bool,
}

/// Who asked for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// The initial metadata.
    Metadata,
    /// Annotations of the Node.
    Node,
}

/// A step that changes the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Changing a software.
    Change(SoftwareName),
    /// Restarting the host.
    Reboot,
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    /// The code.
    pub reason: Reason,
    /// The sentence.
    pub message: String,
}

/// A plan that failed too often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Quarantine {
    /// The plan.
    pub plan: PlanId,
    /// Why.
    #[serde(flatten)]
    pub failure: Failed,
    /// How often it was tried.
    pub attempts: u32,
    /// Since when.
    pub since: Timestamp,
}

/// How often and how fast a plan is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Attempts before quarantine.
    pub attempts: u32,
    /// The delay before the second attempt.
    pub delay: SignedDuration,
}

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read.
    #[error("cannot read the journal {}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no journal.
    #[error("the journal {} is damaged", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        source: serde_json::Error,
    },
    /// A later node-agent wrote it.
    #[error(
        "the journal {} has form {found}, and this node-agent knows forms up to {FORMAT}: install the later version again",
        .path.display()
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its form.
        found: u32,
    },
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            format: FORMAT,
            initialized: None,
            observed: None,
            ready: false,
            active: None,
            quarantine: None,
            last_success: None,
            unverified: false,
        }
    }
}

impl Journal {
    /// Reads the journal; a host without one has done nothing yet.
    pub fn read(path: &Path) -> Result<Self, JournalError> {
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let unreadable = |source| JournalError::Unreadable { path: path.to_owned(), source };
        let Some(text) = files::read_bytes(path).map_err(unreadable)? else { return Ok(Self::default()) };
        if let Ok(Form { format: found }) = serde_json::from_slice(&text)
            && found > FORMAT
        {
            return Err(JournalError::TooNew { path: path.to_owned(), found });
        }
        serde_json::from_slice(&text)
            .map_err(|source| JournalError::Damaged { path: path.to_owned(), source })
    }

    /// Reads the journal for the service. A damaged one is kept aside for people: we replace it in one step, so
    /// someone else wrote it, and without it a plan starts again from the first attempt, which is safe.
    pub fn take(path: &Path) -> Result<Self, JournalError> {
        match Self::read(path) {
            Err(JournalError::Damaged { source, .. }) => {
                let aside = path.with_extension("damaged");
                std::fs::rename(path, &aside)
                    .map_err(|source| JournalError::Unreadable { path: path.to_owned(), source })?;
                tracing::error!(kept = %aside.display(), "the journal is damaged ({source}); starting a new one");
                Ok(Self::default())
            }
            other => other,
        }
    }

    /// Writes it through to the disk.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Failure::of(Reason::ConfigurationFailed, &error))?;
        files::write(path, &text, 0o600).map_err(|error| Failure::io("write", path, &error))
    }

    /// A plan begins; whatever was before is over. Without a permit, silence gives none.
    pub fn accept(&mut self, plan: Plan, origin: Origin, permitted: bool, now: Timestamp) {
        self.observed = Some(plan.id());
        self.ready = false;
        self.quarantine = None;
        if origin == Origin::Metadata {
            // If the metadata goes back to the plan before, the host is no longer at it.
            self.initialized = None;
        }
        self.active = Some(Active {
            plan,
            origin,
            attempt: 1,
            since: now,
            step: None,
            failure: None,
            retry_at: None,
            rebooted_from: None,
            withdrawn: !permitted,
        });
    }

    /// Keeps what the Node says of the plan under way: silence does not give back a permit that was taken away.
    /// Whether it says anything new.
    pub fn hear(&mut self, asked: &Asked) -> bool {
        let Some(active) = self.active.as_mut().filter(|active| active.origin == Origin::Node) else {
            return false;
        };
        let withdrawn = match asked {
            Asked::Silence { .. } | Asked::Refusal(_) => active.withdrawn,
            Asked::Node(Ok(Request { plan: Some(plan), permit: true, paused: None })) => *plan != active.plan,
            // Without a credential, too: a permit is of the cluster the host was part of.
            Asked::Node(_) | Asked::NoNode | Asked::Nothing | Asked::Metadata(_) => true,
        };
        std::mem::replace(&mut active.withdrawn, withdrawn) != withdrawn
    }

    /// What `ready` and `plan-observed` become while the agent rests.
    pub fn stand(&mut self, standing: Standing) {
        match standing {
            Standing::Keep => {}
            Standing::NoPlan => {
                self.observed = None;
                self.ready = true;
                self.active = None;
            }
            Standing::At(plan) => {
                self.observed = Some(plan);
                self.ready = true;
                self.active = None;
            }
            Standing::Missed(plan) => {
                // `plan-observed` never names another plan than the one under way.
                self.active.take_if(|active| active.plan.id() != plan);
                self.observed = Some(plan);
                self.ready = false;
            }
        }
    }

    /// A step is about to begin. Written before it does.
    pub fn begin(&mut self, step: Step, boot: &BootId) {
        if let Some(active) = &mut self.active {
            self.unverified = true;
            if step == Step::Reboot {
                active.rebooted_from = Some(boot.clone());
            }
            active.step = Some(step);
            active.retry_at = None;
        }
    }

    /// The step ended well.
    pub fn end_step(&mut self) {
        if let Some(active) = &mut self.active {
            active.step = None;
        }
    }

    /// The attempt failed: another one later, or quarantine. `jitter` is between 0 and 1.
    pub fn fail(&mut self, failure: Failed, now: Timestamp, limits: Limits, jitter: f64) {
        let Some(active) = &mut self.active else { return };
        self.unverified = true;
        active.step = None;
        if active.attempt >= limits.attempts {
            return self.give_up(failure, now);
        }
        let doublings = active.attempt.saturating_sub(1).min(16);
        let delay = limits.delay.saturating_mul(1 << doublings).min(LONGEST_DELAY);
        active.attempt += 1;
        active.failure = Some(failure);
        active.retry_at = now.checked_add(with_jitter(delay, jitter)).ok();
    }

    /// Someone else is not ready yet: again later, without counting an attempt.
    pub fn postpone(&mut self, failure: Failed, now: Timestamp, limits: Limits, jitter: f64) {
        if let Some(active) = &mut self.active {
            active.retry_at = now.checked_add(with_jitter(limits.delay, jitter)).ok();
            active.failure = Some(failure);
        }
    }

    /// The plan is not tried again.
    pub fn give_up(&mut self, failure: Failed, now: Timestamp) {
        let Some(active) = self.active.take() else { return };
        self.quarantine =
            Some(Quarantine { plan: active.plan.id(), failure, attempts: active.attempt, since: now });
    }

    /// What a start of the agent makes of a step that never ended: a reboot that happened is done; everything else
    /// was cut off, which counts as an attempt, for it may be the step that brings the host down.
    pub fn recover(&mut self, boot: &BootId, now: Timestamp, limits: Limits) {
        let Some(active) = &mut self.active else { return };
        let Some(step) = active.step.take() else { return };
        match step {
            Step::Reboot if active.rebooted_from.as_ref() != Some(boot) => {}
            Step::Reboot => {
                let message = "the host did not restart although it was asked to".to_owned();
                self.fail(Failed { reason: Reason::RebootFailed, message }, now, limits, 0.0);
            }
            Step::Change(software) => {
                let message = format!("node-agent or the host ended while {software} was being changed");
                self.fail(Failed { reason: Reason::Interrupted, message }, now, limits, 0.0);
                if let Some(active) = &mut self.active {
                    // Nothing to wait for: nobody refused anything.
                    active.retry_at = None;
                }
            }
        }
    }

    /// The plan is reached.
    pub fn finish(&mut self, now: Timestamp) {
        if let Some(active) = self.active.take() {
            if active.origin == Origin::Metadata {
                self.initialized = Some(active.plan.id());
            }
            self.observed = Some(active.plan.id());
            self.ready = true;
            self.unverified = false;
            self.last_success = Some(now);
        }
    }

    /// A person says: try again.
    pub fn retry(&mut self) -> bool {
        let quarantined = self.quarantine.take().is_some();
        if let Some(active) = &mut self.active {
            active.retry_at = None;
        }
        quarantined
    }
}

/// Up to a quarter more, so that many hosts do not come back to a mirror at once.
fn with_jitter(delay: SignedDuration, jitter: f64) -> SignedDuration {
    let more = SignedDuration::try_from_secs_f64(delay.as_secs_f64() * jitter.clamp(0.0, 1.0) / 4.0);
    delay.saturating_add(more.unwrap_or_default())
}
