//! node-agent: brings a host to the versions its Kubernetes node asks for, and says so.
//!
//! ```text
//! Node, metadata ─┐                         ┌─▶ software: apt, files, kubeadm
//! host ───────────┼─▶ observe ─▶ decide ─▶ act ─▶ reboot
//! journal ────────┘            (pure)       └─▶ journal, annotations, provider
//! ```

pub mod apt;
pub mod cli;
pub mod config;
pub mod contents;
pub mod decide;
pub mod endpoint;
pub mod engine;
pub mod failure;
pub mod files;
pub mod host;
pub mod inhibitor;
pub mod journal;
pub mod metrics;
pub mod node;
pub mod notify;
pub mod observe;
pub mod provider;
pub mod reboot;
pub mod report;
pub mod socket;
pub mod software;
pub mod status;
pub mod verify;
pub mod watch_files;
