//! What can go wrong in a rollout.

use crate::cluster::{self, DrainError};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API did not do what was asked.
    #[error(transparent)]
    Api(#[from] cluster::Error),
    /// Pods did not go.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// Another run has taken over.
    #[error("another run of infrop has taken over (the Lease kube-system/infrop-rollout)")]
    Lost,
    /// etcd did not answer as it should.
    #[error("etcd: {0}")]
    Etcd(String),
}

impl Error {
    pub(super) fn claims(source: kube::Error) -> Self {
        Self::api("announce a permit", source)
    }

    pub(super) fn api(what: impl Into<String>, source: kube::Error) -> Self {
        Self::Api(cluster::Error::Api { what: what.into(), source: Box::new(source) })
    }

    /// Whether the API does not answer now, but may later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Api(error) | Self::Drain(DrainError::Api(error)) if error.is_passing())
    }
}
