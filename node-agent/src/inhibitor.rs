//! Keeps the host from being switched off or restarted while software is being changed.

use std::{io, process::Stdio, time::Duration};

use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    time::timeout,
};

/// logind answers at once; if it does not, software is changed all the same.
const PATIENCE: Duration = Duration::from_secs(5);

/// A block inhibitor of logind. It ends when this is dropped, and also when the agent dies: the holder waits on a
/// pipe that the kernel then closes.
#[derive(Debug)]
pub struct Inhibitor {
    holder: Option<Child>,
}

impl Inhibitor {
    /// Takes it; when this ends, logind knows. A host without logind is changed all the same: nobody there asks logind
    /// either.
    pub async fn take(why: &str) -> Self {
        let holder = timeout(PATIENCE, hold(why));
        match holder.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
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
            // It ends with its stdin; if it does not or cannot be waited for, dropping it ends it.
            let _ = timeout(PATIENCE, holder.wait()).await;
        }
    }
}

/// Starts who holds it, which begins only when logind has given it.
async fn hold(why: &str) -> io::Result<Child> {
    let mut holder = Command::new("systemd-inhibit")
        .args(["--what=shutdown:sleep", "--mode=block", "--who=node-agent"])
        .arg(format!("--why={why}"))
        .args(["sh", "-c", "echo && exec cat > /dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdout = holder.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // An end instead is its failure.
    stdout.read_u8().await?;
    Ok(holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock is stopped, so limits pass at once and only a wait without one takes its time.
    #[tokio::test(start_paused = true)]
    async fn a_holder_that_does_not_end_is_not_waited_for_for_ever() {
        const FOR_EVER: Duration = Duration::from_secs(20);
        let mut deaf = Command::new("sleep");
        deaf.arg(FOR_EVER.as_secs().to_string()).stdin(Stdio::piped()).kill_on_drop(true);
        let inhibitor = Inhibitor { holder: Some(deaf.spawn().unwrap()) };
        let begun = std::time::Instant::now();
        inhibitor.release().await;
        assert!(begun.elapsed() < FOR_EVER / 2, "{:?}", begun.elapsed());
    }
}
