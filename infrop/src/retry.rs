//! Trying again, later each time.

use std::time::Duration;

/// No wait is longer than the first one times two to this.
const DOUBLINGS: u32 = 4;

/// The wait before another attempt, if there were so many failures; each is twice as long as the one before. `fraction`,
/// from 0 to 1, makes it up to a quarter longer: what failed on many hosts at once, because of a mirror say, does not come
/// back there at once.
pub fn delay(first: Duration, failures: u32, fraction: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(DOUBLINGS);
    (first * (1 << doublings)).mul_f64(1.0 + fraction.clamp(0.0, 1.0) / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

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
}
