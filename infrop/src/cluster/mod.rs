//! The cluster, seen through its API.

mod access;
mod cordon;
mod drain;
mod error;
mod job;
mod manifests;
mod nodes;
mod removal;
mod token;

pub use self::{
    access::{Access, Clients, DirectClient, Route},
    cordon::{Cordon, cordon, uncordon},
    drain::{
        AtDeadline, Blocker, DrainRules, Drained, Error as DrainError, Fate, PodName, Preview, drain,
        drain_heard, preview,
    },
    error::Error,
    job::{JobManifest, run_job},
    manifests::{Manifests, Object},
    nodes::{NodeView, WAITING, WATCH_SECONDS, annotate, list, register, wait_until_ready},
    removal::{REMOVING, Removing, delete_node, mark_removing, unmark_removing},
    token::{CertificateKey, Token, remove_leftovers, withdraw},
};
