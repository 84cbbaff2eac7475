//! What infrop and node-agent must agree on. Pure types and rules: no I/O, no clock.
//!
//! ```text
//! infrop ── desired-version, plan, changes-allowed ──▶ Node ◀── current-version, ready, state ── node-agent
//!                      (annotations)                                     (annotations, state)
//! ```

pub mod annotations;
pub mod catalogue;
pub mod disruption;
pub mod images;
pub mod metadata;
pub mod plan;
pub mod skew;
pub mod software;
pub mod state;
mod text;
mod version;

pub use version::{KubernetesVersion, KubernetesVersionError};
