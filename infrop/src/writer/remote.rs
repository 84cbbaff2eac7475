//! A record in a file of a host, for providers that can keep nothing themselves.

use std::{sync::Arc, time::Duration};

use common::metadata::NodeName;
use futures::future::LocalBoxFuture;

use super::{Entry, Record, Seen};
use crate::{
    bootstrap::{
        self,
        ssh::{Access, Connections},
    },
    desired::InfrastructureName,
};

/// Where records are on hosts.
const DIRECTORY: &str = "/var/lib/infrop";

/// What their names begin with.
const PREFIX: &str = "writer-";

/// To read or write a line.
const LIMIT: Duration = Duration::from_secs(10);

/// A server that restarts checks its memory first. Meanwhile nobody reaches its record, and who does before us watches it
/// for a while, and has it then. After about this time it is nobody's for everyone.
const RESTART: Duration = Duration::from_mins(10);

/// A record on a host.
#[derive(Debug)]
pub struct HostRecord {
    host: NodeName,
    access: Access,
    connections: Arc<Connections>,
    path: String,
}

impl HostRecord {
    /// Of an infrastructure, on a host: several infrastructures may look at the same free hosts.
    pub fn new(
        infrastructure: &InfrastructureName,
        host: NodeName,
        access: Access,
        connections: Arc<Connections>,
    ) -> Self {
        let path = format!("{DIRECTORY}/{PREFIX}{infrastructure}.json");
        Self { host, access, connections, path }
    }

    /// Runs a script over the connection that is open, or over a new one: the host may have restarted.
    async fn run(&self, what: &str, script: &str, stdin: &[u8]) -> Result<String, bootstrap::Error> {
        let remote = self.connections.get(&self.host, &self.access).await?;
        let answer = remote.run_with(what, LIMIT, script, stdin).await;
        if matches!(&answer, Err(error) if error.is_away() || matches!(error, bootstrap::Error::TimedOut { .. }))
        {
            self.connections.forget(&self.host);
        }
        answer
    }
}

/// A script that removes what infrop keeps on a host, but for records: whoever gives a host back is still at work.
pub fn clearing() -> String {
    format!(
        "if test -d {DIRECTORY}; then find {DIRECTORY} -mindepth 1 -maxdepth 1 ! -name '{PREFIX}*' -exec rm -rf {{}} +; fi\n\
         rmdir --ignore-fail-on-non-empty {DIRECTORY} 2>/dev/null || true"
    )
}

/// Waits for the lock of a record. Whoever gives a record up removes the lock with it, so the one that was waited for may
/// be no file any more, while others already hold the next: only the one that has the name counts.
fn lock(path: &str) -> String {
    format!(
        "mkdir -p \"$(dirname {path})\"\n\
         while true; do\n\
             exec 9> {path}.lock\n\
             flock 9\n\
             if test /proc/self/fd/9 -ef {path}.lock; then break; fi\n\
         done\n\
         now=$(if test -e {path}; then cat {path}; fi)\n\
         if test \"$now\" != \"$old\"; then echo other; exit 0; fi"
    )
}

/// Two lines come in: what was read and what is to be. Neither has a line's end in it.
fn writing(path: &str) -> String {
    format!(
        "IFS= read -r old || true\nIFS= read -r new\n{}\n\
         printf %s \"$new\" > {path}.new\nsync {path}.new\nmv {path}.new {path}\necho written",
        lock(path)
    )
}

/// What was read comes in. The lock goes last, while it is held.
fn giving_up(path: &str) -> String {
    format!("IFS= read -r old || true\n{}\nrm -f {path} {path}.new {path}.lock\necho written", lock(path))
}

impl Record for HostRecord {
    fn place(&self) -> String {
        format!("{} on {}", self.path, self.host)
    }

    fn read(&self) -> LocalBoxFuture<'_, anyhow::Result<Seen>> {
        Box::pin(async {
            let path = &self.path;
            let script = format!("if test -e {path}; then cat {path}; fi");
            let text = self.run("say who works on it", &script, &[]).await?;
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
            let lines = format!("{}\n{text}\n", seen.version);
            let answer =
                self.run("take down who works on it", &writing(&self.path), lines.as_bytes()).await?;
            Ok((answer.trim() == "written").then(|| Seen { entry: Some(entry.clone()), version: text }))
        })
    }

    fn give_up<'a>(&'a self, seen: &'a Seen, _nobody: &'a Entry) -> LocalBoxFuture<'a, anyhow::Result<bool>> {
        Box::pin(async {
            let line = format!("{}\n", seen.version);
            let answer = self.run("forget who works on it", &giving_up(&self.path), line.as_bytes()).await?;
            Ok(answer.trim() == "written")
        })
    }

    fn patience(&self) -> Duration {
        RESTART
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write as _,
        path::Path,
        process::{Command, Stdio},
    };

    use super::*;

    /// Runs a script here, as a host does.
    fn run(script: &str, stdin: &str) -> String {
        let mut bash = Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        bash.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        let output = bash.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    fn files(directory: &Path) -> Vec<String> {
        let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name());
        let mut files: Vec<String> = files.map(|name| name.into_string().unwrap()).collect();
        files.sort();
        files
    }

    #[test]
    fn a_record_is_written_only_as_it_was_read_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/writer-x.json");
        let name = path.to_str().unwrap();
        for (script, stdin, expected, left) in [
            (writing(name), "\na\n", "written\n", Some("a")),
            (writing(name), "\nb\n", "other\n", Some("a")),
            (writing(name), "a\nb\n", "written\n", Some("b")),
            (giving_up(name), "a\n", "other\n", Some("b")),
            (giving_up(name), "b\n", "written\n", None),
            (giving_up(name), "\n", "written\n", None),
        ] {
            assert_eq!(run(&script, stdin), expected, "{stdin}");
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), left, "{stdin}");
        }
        assert_eq!(files(path.parent().unwrap()), [""; 0]);
    }

    #[test]
    fn a_lock_that_was_removed_while_it_was_waited_for_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("writer-x.json");
        let name = path.to_str().unwrap().to_owned();
        let lock = fs::File::create(directory.path().join("writer-x.json.lock")).unwrap();
        lock.lock().unwrap();
        let waiting = std::thread::spawn({
            let script = writing(&name);
            move || run(&script, "\na\n")
        });
        // It is in its wait or on its way there: both end well.
        std::thread::sleep(Duration::from_millis(300));
        fs::remove_file(directory.path().join("writer-x.json.lock")).unwrap();
        let next = fs::File::create(directory.path().join("writer-x.json.lock")).unwrap();
        next.lock().unwrap();
        lock.unlock().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(!path.exists(), "two hold the lock");
        next.unlock().unwrap();
        assert_eq!(waiting.join().unwrap(), "written\n");
    }

    #[test]
    fn two_infrastructures_have_two_records() {
        let record = |name: &str| {
            let host = "c1".parse().unwrap();
            let connections = Arc::new(Connections::new().unwrap());
            HostRecord::new(&name.parse().unwrap(), host, Access::default(), connections)
        };
        assert_eq!(record("site").place(), "/var/lib/infrop/writer-site.json on c1");
        assert_ne!(record("site").place(), record("other").place());
    }
}
