//! When nodes may be begun.

use jiff::{
    SignedDuration, Timestamp, Zoned,
    civil::{Time, Weekday},
    tz::TimeZone,
};

/// Hours of some days of the week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The days on which it opens; every day if there are none.
    pub days: Vec<Weekday>,
    /// When it opens.
    pub start: Time,
    /// For how long.
    pub length: SignedDuration,
    /// Whose clock.
    pub zone: TimeZone,
}

/// A window that opened up to this many days ago may still be open, and one opens within as many.
const WEEK: i64 = 7;

impl Window {
    /// Whether it is open.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.openings(now).any(|opening| {
            let since = now.duration_since(opening);
            since >= SignedDuration::ZERO && since < self.length
        })
    }

    /// When it opens next.
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        self.openings(now).filter(|opening| *opening > now).min()
    }

    /// Around a moment. Where a clock change leaves the time out, it opens right after.
    fn openings(&self, now: Timestamp) -> impl Iterator<Item = Timestamp> {
        let today = now.to_zoned(self.zone.clone());
        (-WEEK..=WEEK).filter_map(move |days| {
            let date = today.date().checked_add(SignedDuration::from_hours(24 * days)).ok()?;
            let opens = self.days.is_empty() || self.days.contains(&date.weekday());
            let opening: Zoned =
                opens.then(|| date.to_datetime(self.start).to_zoned(self.zone.clone()).ok())??;
            Some(opening.timestamp())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(days: &[Weekday], start: &str, hours: i64, zone: &str) -> Window {
        Window {
            days: days.to_vec(),
            start: start.parse().unwrap(),
            length: SignedDuration::from_hours(hours),
            zone: TimeZone::get(zone).unwrap(),
        }
    }

    #[test]
    fn a_window_is_open_from_its_start_for_its_length_by_its_own_clock() {
        let nights = window(&[Weekday::Friday], "22:00", 6, "Europe/Zurich");
        for (time, open) in [
            ("2026-11-13T20:59:59Z", false),
            ("2026-11-13T21:00:00Z", true),
            // It is Saturday there, and the window opened on Friday.
            ("2026-11-14T02:59:59Z", true),
            ("2026-11-14T03:00:00Z", false),
            // In summer the clock is two hours ahead.
            ("2026-07-03T20:00:00Z", true),
            ("2026-07-03T19:59:59Z", false),
        ] {
            assert_eq!(nights.contains(time.parse().unwrap()), open, "{time}");
        }
    }

    #[test]
    fn the_next_opening_is_told() {
        let monday = window(&[Weekday::Monday], "08:00", 1, "UTC");
        let next = |now: &str| monday.next(now.parse().unwrap()).unwrap().to_string();
        assert_eq!(next("2026-11-16T07:00:00Z"), "2026-11-16T08:00:00Z");
        assert_eq!(next("2026-11-16T08:00:00Z"), "2026-11-23T08:00:00Z");
        let daily = window(&[], "00:00", 24, "UTC");
        assert!(daily.contains("2026-11-16T23:59:59Z".parse().unwrap()));
    }

    #[test]
    fn an_hour_that_the_clock_leaves_out_opens_after_it() {
        // On 2026-03-29 it is never half past two there.
        let window = window(&[], "02:30", 1, "Europe/Zurich");
        assert!(window.contains("2026-03-29T01:45:00Z".parse().unwrap()));
        assert!(!window.contains("2026-03-29T00:45:00Z".parse().unwrap()));
    }
}
