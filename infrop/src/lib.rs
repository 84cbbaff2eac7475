//! infrop: from bare-metal machines to a healthy Kubernetes cluster.

pub mod apply;
pub mod bootstrap;
pub mod cli;
pub mod cluster;
pub mod desired;
pub mod provider;
pub mod random;
pub mod retry;
pub mod rollout;
pub mod secrets;
pub mod writer;
