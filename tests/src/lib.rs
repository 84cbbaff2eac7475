//! Fixtures for tests on real servers and real hosts.
//!
//! * [`harness`]: suites whose cases are skipped with a reason, never passed, where they cannot run;
//! * [`api_server`]: a kube-apiserver and its etcd on loopback;
//! * [`lab`]: hosts, [`faults`] on their network, and [`kubeadm`] by hand;
//! * [`fingerprint`]: whether anything on a host changed that was not meant to;
//! * [`bundles`]: the Kubernetes both come from;
//! * [`agent`]: the Debian package of node-agent; [`agent_process`]: node-agent as a process of this machine;
//! * [`fleet`]: many Nodes whose agents decide as node-agent does, without hosts;
//! * [`policies`]: infrop's admission policies in an API server;
//! * [`rolling`]: a cluster that goes to other versions while things go wrong;
//! * [`http_server`], [`scripted_server`]: web servers on loopback.

pub mod agent;
pub mod agent_process;
pub mod api_server;
pub mod audit;
pub mod bundles;
pub mod faults;
pub mod fingerprint;
pub mod fleet;
pub mod harness;
pub mod holder;
pub mod http_server;
pub mod infrastructure;
mod keeper;
pub mod kills;
pub mod kubeadm;
pub mod lab;
mod pki;
pub mod policies;
mod programs;
pub mod repository;
pub mod rolling;
pub mod scripted_server;
pub mod setup;

pub use programs::{cargo, infrop, infrop_path, node_agent_path};
