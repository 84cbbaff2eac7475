//! Telling systemd: ready, alive, busy, stopping.

use std::time::Duration;

use sd_notify::NotifyState;

/// While a step runs after systemd asked for the end, each message allows this much more time.
pub const EXTENSION: Duration = Duration::from_mins(1);

fn send(state: &[NotifyState<'_>]) {
    // Without systemd nobody listens, and that is fine.
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd cannot be notified");
    }
}

/// The service is up.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// What `systemctl status` shows.
pub fn status(text: &str) {
    // One line; a message from a program may have more.
    send(&[NotifyState::Status(&text.replace('\n', " "))]);
}

/// The service ends.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// The service needs longer to end.
pub fn extend() {
    send(&[NotifyState::ExtendTimeoutUsec(u32::try_from(EXTENSION.as_micros()).unwrap_or(u32::MAX))]);
}

/// Feeds the watchdog for ever, from the one thread that does everything: if that is stuck, so is this. It says nothing of
/// what others of its tasks wait for; they have limits of their own.
pub async fn feed_watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    loop {
        send(&[NotifyState::Watchdog]);
        tokio::time::sleep(limit / 2).await;
    }
}
