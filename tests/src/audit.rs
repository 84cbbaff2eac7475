//! What the API server says it was asked, and by whom.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Context;
use jiff::Timestamp;
use serde::Deserialize;

/// A user whose requests are not logged: those of thousands of agents would only cost time.
pub const UNLOGGED: &str = "unlogged";

/// What is logged: every request once, with what it wrote.
pub(crate) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [unlogged]
- level: Request
";

/// The audit log of an API server.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
}

/// A request as the API server saw it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// `ResponseStarted` for a watch that goes on, `ResponseComplete` for what is over.
    pub stage: String,
    /// get, list, watch, create, patch, ...
    pub verb: String,
    /// The path with its query.
    #[serde(rename = "requestURI")]
    pub uri: String,
    /// Who asked.
    pub user: User,
    /// What was asked about; nothing for paths outside of the API.
    #[serde(default)]
    pub object_ref: Option<ObjectRef>,
    /// The answer.
    #[serde(default)]
    pub response_status: Option<ResponseStatus>,
    /// What was to be written.
    #[serde(default)]
    pub request_object: Option<serde_json::Value>,
    /// When the server read the request.
    pub request_received_timestamp: Timestamp,
    /// When this stage was reached; for what is over, when the answer was given.
    pub stage_timestamp: Timestamp,
}

/// Who asked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct User {
    /// The name the certificate gives.
    #[serde(default)]
    pub username: String,
    /// More about them, such as which of their certificates it was.
    #[serde(default)]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The hash of the certificate that was shown.
    pub fn certificate(&self) -> Option<&str> {
        Some(self.extra.get("authentication.kubernetes.io/credential-id")?.first()?.as_str())
    }
}

/// What was asked about.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ObjectRef {
    /// The plural of the kind.
    #[serde(default)]
    pub resource: String,
    /// The object's name, empty for many.
    #[serde(default)]
    pub name: String,
    /// `status` and the like.
    #[serde(default)]
    pub subresource: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResponseStatus {
    /// The HTTP status.
    #[serde(default)]
    pub code: u16,
}

impl AuditLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// All requests so far, in the order of their answers. A watch stands there when it starts and again
    /// when it ends.
    pub fn requests(&self) -> anyhow::Result<Vec<Request>> {
        let text =
            fs::read_to_string(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        // The last line may be half written.
        let complete = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
        complete.lines().map(|line| serde_json::from_str(line).context("not an audit event")).collect()
    }

    /// The requests of one user.
    pub fn by(&self, user: &str) -> anyhow::Result<Vec<Request>> {
        Ok(self.requests()?.into_iter().filter(|request| request.user.username == user).collect())
    }
}
