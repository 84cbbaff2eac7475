//! What can go wrong with the API.

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error("cannot {what}")]
    Api {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: Box<kube::Error>,
    },
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig of the cluster cannot be used: {0}")]
    Kubeconfig(String),
    /// A manifest is not what it should be.
    #[error("{file}: {why}")]
    Manifest {
        /// Its file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// No randomness.
    #[error("cannot read random bytes")]
    Random(#[from] std::io::Error),
}

/// Says what was attempted.
pub(super) trait Attempt<T> {
    fn to(self, what: impl Into<String>) -> Result<T, Error>;
}

impl<T> Attempt<T> for Result<T, kube::Error> {
    fn to(self, what: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::Api { what: what.into(), source: Box::new(source) })
    }
}

impl Error {
    /// Whether the API does not answer at all, as opposed to an answer that is no.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Api { source, .. } if !matches!(**source, kube::Error::Api(_)))
    }

    /// Whether the API says that there is no such thing.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Api { source, .. }
            if matches!(&**source, kube::Error::Api(status) if status.code == 404))
    }

    /// Whether the same request may go well a little later.
    pub fn is_passing(&self) -> bool {
        let busy = |code: u16| matches!(code, 408 | 429 | 500..);
        self.is_silence()
            || matches!(self, Self::Api { source, .. }
                if matches!(&**source, kube::Error::Api(status) if busy(status.code)))
    }

    /// With its causes.
    pub fn in_full(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }
}
