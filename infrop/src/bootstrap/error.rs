//! What can go wrong between infrop and a host.

use std::{io, time::Duration};

use common::metadata::NodeName;

/// What went wrong on the way to a host or on it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No place for control sockets.
    #[error("cannot make a directory for ssh's sockets")]
    Control(#[source] io::Error),
    /// It does not answer.
    #[error("{host} does not answer by ssh: {why}")]
    Unreachable {
        /// The host.
        host: NodeName,
        /// What ssh says.
        why: String,
    },
    /// Its key is not the one that is trusted.
    #[error(
        "{host} is not trusted: {why}; compare its key (`ssh-keyscan`) with the document's hostKeys or ssh.knownHosts"
    )]
    HostKey {
        /// The host.
        host: NodeName,
        /// What ssh says.
        why: String,
    },
    /// It does not let us in.
    #[error("{host} does not let us in: {why}; see the document's ssh.user and ssh.privateKey")]
    Login {
        /// The host.
        host: NodeName,
        /// What ssh says.
        why: String,
    },
    /// The connection broke.
    #[error("the connection to {host} broke (to {what})")]
    Connection {
        /// The host.
        host: NodeName,
        /// What for.
        what: String,
        /// How.
        source: openssh::Error,
    },
    /// It took too long.
    #[error("{host} did not {what} within {} s", .after.as_secs())]
    TimedOut {
        /// The host.
        host: NodeName,
        /// What.
        what: String,
        /// The limit.
        after: Duration,
    },
    /// A script ended with something else than success.
    #[error("{host} could not {what}{}: {stderr}", .code.map(|code| format!(" ({code})")).unwrap_or_default())]
    Script {
        /// The host.
        host: NodeName,
        /// What for.
        what: String,
        /// Its exit code.
        code: Option<i32>,
        /// The end of its stderr.
        stderr: String,
    },
    /// A host said something else than it should.
    #[error("{host} answered {what} in a way that infrop does not understand: {why}")]
    Answer {
        /// The host.
        host: NodeName,
        /// The question.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    /// Sorts out why there is no connection. ssh says it in words only.
    pub(super) fn of_connect(host: &NodeName, error: openssh::Error) -> Self {
        let host = host.clone();
        let openssh::Error::Connect(io) = &error else {
            return Self::Connection { host, what: "connect".to_owned(), source: error };
        };
        // Its last line; before it may stand a banner.
        let text = io.to_string();
        let why =
            text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("ssh ended").trim().to_owned();
        if text.contains("Host key verification failed") || text.contains("HOST IDENTIFICATION HAS CHANGED") {
            Self::HostKey { host, why }
        } else if io.kind() == io::ErrorKind::PermissionDenied || text.contains("Permission denied (") {
            Self::Login { host, why }
        } else {
            Self::Unreachable { host, why }
        }
    }

    /// Whether the host may simply not be there yet.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Connection { .. })
    }
}
