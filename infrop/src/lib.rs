//! infrop: from bare-metal machines to a healthy Kubernetes cluster.

pub mod cli;
pub mod desired;
pub mod provider;
