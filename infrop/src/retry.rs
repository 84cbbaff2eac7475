//! Trying again, later each time.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use tokio::time::Instant;

use crate::random;

/// No wait is longer than the first one times two to this.
const DOUBLINGS: u32 = 4;

/// The wait before another attempt, if there were so many failures; each is twice as long as the one before. `fraction`,
/// from 0 to 1, makes it up to a quarter longer: what failed on many hosts at once, because of a mirror say, does not come
/// back there at once.
pub fn delay(first: Duration, failures: u32, fraction: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(DOUBLINGS);
    (first * (1 << doublings)).mul_f64(1.0 + fraction.clamp(0.0, 1.0) / 4.0)
}

/// The first wait of a watch.
const WATCH_DELAY: Duration = Duration::from_millis(125);

/// A watch without a failure for this long begins with the first wait again.
const WATCH_CALM: Duration = Duration::from_secs(30);

/// The waits of a watch that the API server does not answer. A control plane that is upgraded takes its API server away for
/// a minute and more; with waits of up to half a minute, as is usual for the many watches of a cluster, we would learn that
/// late of what happened then. Ours is the only one, and nodes wait for it.
#[derive(Debug, Default)]
pub struct Watching {
    failures: u32,
    last: Option<Instant>,
}

impl Iterator for Watching {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.last.is_none_or(|last| last.elapsed() > WATCH_CALM) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.last = Some(Instant::now());
        Some(delay(WATCH_DELAY, self.failures, random::fraction()))
    }
}

impl Backoff for Watching {
    // That is asked for with each event, and one is that a list begins, before anyone knows whether it can.
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_longer_each_time_and_not_all_equally_long() {
        let first = Duration::from_secs(2);
        for (failures, fraction, milliseconds) in [
            (0, 0.0, 2000),
            (1, 0.0, 2000),
            (1, 1.0, 2500),
            (2, 0.0, 4000),
            (2, 0.5, 4500),
            (5, 0.0, 32000),
            (u32::MAX, 0.0, 32000),
        ] {
            assert_eq!(delay(first, failures, fraction), Duration::from_millis(milliseconds));
        }
        let spread: Vec<f64> = (0..100).map(|_| random::fraction()).collect();
        assert!(spread.iter().all(|fraction| (0.0..=1.0).contains(fraction)));
        assert!(
            spread.iter().any(|fraction| *fraction < 0.5) && spread.iter().any(|fraction| *fraction > 0.5)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_never_deaf_for_long_and_asks_seldom_where_nobody_answers() {
        let mut waits = Watching::default();
        let longest = Duration::from_millis(2500);
        let mut attempt = || {
            waits.reset();
            waits.next().unwrap()
        };
        let outage: Vec<Duration> = (0..100).map(|_| attempt()).collect();
        assert!(outage.iter().all(|wait| *wait <= longest), "{outage:?}");
        assert!(outage.iter().skip(4).all(|wait| *wait >= longest.mul_f64(0.8)), "{outage:?}");
        tokio::time::advance(WATCH_CALM * 2).await;
        assert!(attempt() < WATCH_DELAY * 2);
    }
}
