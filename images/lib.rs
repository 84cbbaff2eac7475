//! What hosts are made of.
//!
//! * [`kubernetes`]: the bundle, packages and container images of one Kubernetes version;
//! * [`node`]: the root file system a host starts from;
//! * [`site`]: Debian packages for hosts without a network;
//! * [`agent`]: the Debian package of node-agent.
//!
//! All but the last are built once, under the user's cache directory, and published there by one rename: see [`cache`].

pub mod agent;
pub mod cache;
pub mod debian;
mod digest;
mod error;
pub mod kubernetes;
pub mod node;
pub mod package;
pub mod repository;
pub mod site;
pub mod steps;
pub mod tools;

pub use digest::sha256_file;
pub use error::Error;
