//! Bringing nodes to other versions, a few at a time, through annotations of their Nodes.
//!
//! ```text
//! observe ── Nodes (watch), etcd, Lease ──▶ Snapshot ── decide ──▶ Action ── act ──▶ Nodes
//! ```
//!
//! Nothing is remembered but what is on the Nodes: whoever comes next goes on.

pub mod assess;
pub mod decide;
pub mod policy;
pub mod reason;
pub mod snapshot;
pub mod window;
