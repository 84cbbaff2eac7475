//! What can go wrong while building; each message says what to do.

use std::{
    io,
    path::{Path, PathBuf},
};

/// A build or a check that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An external program failed.
    #[error(transparent)]
    Program(#[from] program::Error),
    /// Reading or writing failed.
    #[error("cannot {what} {}", .path.display())]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The disk filled up.
    #[error(
        "the disk filled up while building in {}: a bundle needs about 6 GB there and in Go's build cache \
         (`go env GOCACHE`); free some, or name another place with --cache-dir",
        .0.display()
    )]
    DiskFull(PathBuf),
    /// Nobody has released that version.
    #[error("{component} {version} is not known to the Go module proxy: check the number for a typing error")]
    UnknownVersion {
        /// Kubernetes or a part of the bundle.
        component: &'static str,
        /// The version asked for.
        version: String,
    },
    /// The release servers answer, but do not have it.
    #[error("Kubernetes {kubernetes} cannot be had: there is no {url}; check the number for a typing error")]
    NotReleased {
        /// The version asked for.
        kubernetes: String,
        /// The file that is not there.
        url: String,
    },
    /// The Go module proxy does not answer.
    #[error(
        "the Go module proxy cannot be reached ({detail}): check GOPROXY and HTTPS_PROXY, or name a \
         directory that has the binaries with --from"
    )]
    ProxyUnreachable {
        /// The Go command's own words.
        detail: String,
    },
    /// A download does not have its published checksum.
    #[error(
        "{what} does not match its published checksum (published {expected}, received {actual}): nothing was \
         kept; try again, and if it happens again, do not trust that server"
    )]
    Checksum {
        /// The file or module.
        what: String,
        /// The published sha256.
        expected: String,
        /// What was received.
        actual: String,
    },
    /// A download failed.
    #[error("cannot download {url}: try again, or name a directory that has the binaries with --from")]
    Download {
        /// The address.
        url: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The user's directory lacks a binary.
    #[error("{} has no {binary}: the directory must hold {needed}", .directory.display())]
    MissingBinary {
        /// The directory the user named.
        directory: PathBuf,
        /// What is missing.
        binary: String,
        /// All that is needed.
        needed: String,
    },
    /// No source is left.
    #[error(
        "there is no source for Kubernetes {version}: the release server cannot be reached ({release}) and Go \
         is not installed; install Go 1.26 or newer, or name a directory that has the binaries with --from"
    )]
    NoSource {
        /// The version asked for.
        version: String,
        /// Why the release server is out.
        release: String,
    },
    /// A bundle of this version exists, but not the one that was asked for.
    #[error("there is a bundle {version} with {existing}: add --force to build it anew with {asked}")]
    OtherBundle {
        /// The version.
        version: String,
        /// What the present one has.
        existing: String,
        /// What was asked for now.
        asked: String,
    },
    /// kubeadm of this version wants something we do not know.
    #[error("kubeadm of this version {0}, which this infrop cannot bundle: use a newer infrop")]
    Kubeadm(String),
    /// There is no bundle of this version.
    #[error("there is no bundle of Kubernetes {version}: make it with `infrop bundle build {version}`")]
    NoBundle {
        /// The version.
        version: String,
    },
    /// A file of a bundle or archive is not what it should be.
    #[error("{} {why}: build the bundle anew with --force", .path.display())]
    Damaged {
        /// The first file that differs.
        path: PathBuf,
        /// How.
        why: String,
    },
    /// Programs are missing and cannot be installed by us.
    #[error("needs {programs}: {advice}")]
    MissingTools {
        /// The missing programs.
        programs: String,
        /// How to get them.
        advice: String,
    },
}

impl Error {
    /// Whether a full disk is at the bottom of this.
    pub(crate) fn is_disk_full(&self) -> bool {
        match self {
            Self::Program(error) => error.stderr().to_lowercase().contains("no space left on device"),
            Self::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            _ => false,
        }
    }
}

/// Says what was attempted on which file.
pub(crate) trait At<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io { what, path: path.to_owned(), source })
    }
}
