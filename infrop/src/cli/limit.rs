//! How long something may take, as people say it.

use std::time::Duration;

/// A week: longer than the greatest cluster takes, and no sum of it with a time of day overflows.
const MOST_MINUTES: u64 = 7 * 24 * 60;

/// A day, as in the document.
const MOST_SECONDS: u64 = 24 * 60 * 60;

/// For an argument in minutes.
pub(super) fn minutes(text: &str) -> Result<Duration, String> {
    whole(text, MOST_MINUTES, "minutes").map(Duration::from_mins)
}

/// For an argument in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    whole(text, MOST_SECONDS, "seconds").map(Duration::from_secs)
}

fn whole(text: &str, most: u64, unit: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("write a number of {unit} from 1 to {most}"))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn limits_are_such_as_can_be_waited_for() {
        for (text, in_minutes, in_seconds) in [
            ("1", Some(60), Some(1)),
            ("90", Some(5400), Some(90)),
            ("10080", Some(604_800), Some(10_080)),
            ("10081", None, Some(10_081)),
            ("86400", None, Some(86_400)),
            ("86401", None, None),
            ("0", None, None),
            ("-1", None, None),
            ("1h", None, None),
            ("", None, None),
            ("307445734561825861", None, None),
            ("18446744073709551615", None, None),
        ] {
            assert_eq!(minutes(text).ok().map(|limit| limit.as_secs()), in_minutes, "{text}");
            assert_eq!(seconds(text).ok().map(|limit| limit.as_secs()), in_seconds, "{text}");
        }
        assert!(Instant::now().checked_add(minutes("10080").unwrap()).is_some());
        assert_eq!(minutes("0").unwrap_err(), "write a number of minutes from 1 to 10080");
    }
}
