//! Bringing nodes to other versions, a few at a time, through annotations of their Nodes.
//!
//! ```text
//! observe ── Nodes (watch), etcd, Lease ──▶ Snapshot ── decide ──▶ Action ── act ──▶ Nodes
//! ```
//!
//! Nothing is remembered but what is on the Nodes: whoever comes next goes on.

mod act;
mod action;
pub mod assess;
mod check;
mod claims;
pub mod decide;
mod defer;
mod error;
mod estimate;
pub mod etcd;
mod foresee;
mod gate;
mod history;
mod metrics;
mod patch;
pub mod policy;
pub mod reason;
mod report;
mod run;
pub mod saved;
mod sight;
pub mod snapshot;
mod tell;
#[cfg(test)]
pub(crate) mod tests;
pub mod window;

pub use self::{
    check::{Check, Probe},
    error::Error,
    estimate::{Estimate, GroupEstimate, estimate},
    foresee::{assume, foresee, reach},
    history::Kind,
    metrics::MetricsFile,
    report::{NodeReport, PhaseReport, Report, Waiting},
    run::{Outcome, Rollout, Targets},
};
