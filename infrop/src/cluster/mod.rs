//! The cluster, seen through its API.

mod access;
mod cordon;
mod drain;
mod error;
mod manifests;
mod nodes;
mod token;

pub use self::{
    access::{Access, Route},
    cordon::{Cordon, cordon, uncordon},
    drain::{REMOVING, delete_node, drain, mark_removing},
    error::Error,
    manifests::{Manifests, Object},
    nodes::{NodeView, annotate, label, list, wait_until_ready},
    token::{CertificateKey, Token},
};
