//! A record in a file of a host, for providers that can keep nothing themselves.

use std::{sync::Arc, time::Duration};

use futures::future::LocalBoxFuture;

use super::{Entry, Record, Seen};
use crate::bootstrap::ssh::Remote;

/// Where it is on the host.
const PATH: &str = "/var/lib/infrop/writer.json";

/// To read or write a line.
const LIMIT: Duration = Duration::from_secs(10);

/// A record on a host.
#[derive(Debug)]
pub struct HostRecord {
    remote: Arc<Remote>,
}

impl HostRecord {
    /// On a host.
    pub fn new(remote: Arc<Remote>) -> Self {
        Self { remote }
    }
}

impl Record for HostRecord {
    fn place(&self) -> String {
        format!("{PATH} on {}", self.remote.host())
    }

    fn read(&self) -> LocalBoxFuture<'_, anyhow::Result<Seen>> {
        Box::pin(async {
            let script = format!("if test -e {PATH}; then cat {PATH}; fi");
            let text = self.remote.run("say who works on it", LIMIT, &script).await?;
            Ok(Seen { entry: serde_json::from_str(&text).ok(), version: text })
        })
    }

    fn write<'a>(
        &'a self,
        seen: &'a Seen,
        entry: &'a Entry,
    ) -> LocalBoxFuture<'a, anyhow::Result<Option<Seen>>> {
        Box::pin(async {
            let text = serde_json::to_string(entry)?;
            // Two lines come in: what was read and what is to be. Neither has a line's end in it.
            let script = format!(
                "IFS= read -r old || true\nIFS= read -r new\nmkdir -p \"$(dirname {PATH})\"\nexec 9> {PATH}.lock\nflock 9\n\
                 now=$(if test -e {PATH}; then cat {PATH}; fi)\n\
                 if test \"$now\" != \"$old\"; then echo other; exit 0; fi\n\
                 printf %s \"$new\" > {PATH}.new\nsync {PATH}.new\nmv {PATH}.new {PATH}\necho written"
            );
            let lines = format!("{}\n{text}\n", seen.version);
            let answer =
                self.remote.run_with("take down who works on it", LIMIT, &script, lines.as_bytes()).await?;
            Ok((answer.trim() == "written").then(|| Seen { entry: Some(entry.clone()), version: text }))
        })
    }
}
