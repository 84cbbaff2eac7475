//! The cluster, seen through its API.

mod access;
mod drain;
mod error;
mod manifests;
mod nodes;
mod token;

pub use self::{
    access::{Access, Route},
    drain::{REMOVING, delete_node, drain, mark_removing},
    error::Error,
    manifests::{Manifests, Object},
    nodes::{NodeView, label, list, wait_until_ready},
    token::{CertificateKey, Token},
};
