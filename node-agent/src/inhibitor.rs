//! Keeps the host from being switched off or restarted while software is being changed.

use std::process::Stdio;

use tokio::process::{Child, Command};

/// A block inhibitor of logind. It ends when this is dropped, and also when the agent dies: the holder waits on a
/// pipe that the kernel then closes.
#[derive(Debug)]
pub struct Inhibitor {
    holder: Option<Child>,
}

impl Inhibitor {
    /// Takes it. A host without logind is changed all the same: nobody there asks logind either.
    pub fn take(why: &str) -> Self {
        let holder = Command::new("systemd-inhibit")
            .args(["--what=shutdown:sleep", "--mode=block", "--who=node-agent"])
            .arg(format!("--why={why}"))
            .arg("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        match holder {
            Ok(holder) => Self { holder: Some(holder) },
            Err(error) => {
                tracing::warn!(%error, "shutdown cannot be inhibited while software is changed");
                Self { holder: None }
            }
        }
    }

    /// Gives it back and waits until logind knows.
    pub async fn release(mut self) {
        if let Some(mut holder) = self.holder.take() {
            drop(holder.stdin.take());
            // It ends with its stdin; if it cannot be waited for, dropping it ends it.
            let _ = holder.wait().await;
        }
    }
}
