//! What can go wrong with a lab.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::model::{HostName, LabName};

/// An operation on a lab that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Labs cannot run on this computer or for this user.
    #[error("{0}")]
    NotHere(String),
    /// A name that cannot be used.
    #[error("{text:?} is not a {what} name: use up to {limit} of a-z, 0-9 and -, starting with a letter")]
    Name {
        /// Of what.
        what: &'static str,
        /// What was given.
        text: String,
        /// The longest that fits.
        limit: usize,
    },
    /// A host is named twice.
    #[error("hosts of a lab have different names, not {names}")]
    Hosts {
        /// What was given.
        names: String,
    },
    /// No address is left.
    #[error("a lab has at most {limit} hosts")]
    Full {
        /// The largest number.
        limit: usize,
    },
    /// The name is taken.
    #[error("there is a lab {0} already: choose another name, or `infrop lab destroy {0}` first")]
    Exists(LabName),
    /// There is no such lab.
    #[error("there is no lab {0}: `infrop lab list` shows those there are")]
    NoLab(LabName),
    /// The lab has no such host.
    #[error("the lab {lab} has no host {host}: it has {hosts}")]
    NoHost {
        /// The lab.
        lab: LabName,
        /// What was asked for.
        host: HostName,
        /// What it has.
        hosts: String,
    },
    /// What is offered to hosts has a name that is none.
    #[error("{0:?} is not the name of a directory that hosts can see")]
    Offer(String),
    /// The supervisor did not start.
    #[error("the lab's supervisor did not start; it said: {0}")]
    Supervisor(String),
    /// Nobody answers for the lab.
    #[error("the lab {0} does not run: `infrop lab start {0}` boots its hosts again")]
    NotRunning(LabName),
    /// The supervisor refused.
    #[error("the lab's supervisor says: {0}")]
    Refused(String),
    /// The supervisor ended while it was asked.
    #[error("the lab's supervisor ended before it answered: `infrop lab start` boots the lab again")]
    Unanswered,
    /// A host did not come up.
    #[error("the host {host} does not answer by ssh; the end of its console:\n{console}\n")]
    NoBoot {
        /// The host.
        host: HostName,
        /// The end of what its console showed.
        console: String,
        /// The last attempt.
        source: Box<program::Error>,
    },
    /// A file that infrop wrote is not as it was.
    #[error("{} is not what infrop wrote", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How.
        source: serde_json::Error,
    },
    /// An external program failed.
    #[error(transparent)]
    Program(#[from] program::Error),
    /// The root file system or a tool is missing.
    #[error(transparent)]
    Images(#[from] images::Error),
    /// Reading, writing or a system call failed.
    #[error("cannot {what} {}", .path.display())]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// An error with its causes, where only text goes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Says what was attempted on which file.
pub(super) trait At<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io { what, path: path.to_owned(), source: source.into() })
    }
}
