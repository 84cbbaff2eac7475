//! From a host that answers by SSH to a node of the cluster.

pub mod agent;
mod control;
pub mod endpoint;
mod error;
pub mod etcd;
pub mod host;
pub mod kubeadm;
pub mod ssh;

pub use self::error::Error;
