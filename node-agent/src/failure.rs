//! Why something on the host did not work: a code for programs, a sentence for people.

use std::io;

use common::state::Reason;

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The code.
    pub reason: Reason,
    /// The sentence, with its causes.
    pub message: String,
}

impl Failure {
    /// A failure in words.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// A failure with its causes, one after the other. A full disk keeps its own code, whoever met it.
    pub fn of(reason: Reason, error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            next = cause.source();
        }
        // Programs say it in these words (in the C locale), and so does the standard library.
        let full = message.contains("No space left on device");
        Self { reason: if full { Reason::DiskFull } else { reason }, message }
    }

    /// The sentence as an annotation can carry it: the start says what was tried, the end what went wrong.
    pub fn summary(&self) -> String {
        const START: usize = 80;
        const END: usize = 420;
        let words: Vec<char> =
            self.message.split_whitespace().collect::<Vec<_>>().join(" ").chars().collect();
        let words: Vec<char> = words.into_iter().filter(|c| !c.is_control()).collect();
        if words.len() <= START + END {
            return words.into_iter().collect();
        }
        let start: String = words.iter().take(START).collect();
        let end: String = words.iter().skip(words.len() - END).collect();
        format!("{start} … {end}")
    }

    /// A file that could not be handled.
    pub fn io(doing: &str, path: &std::path::Path, error: &io::Error) -> Self {
        let reason = if error.kind() == io::ErrorKind::StorageFull {
            Reason::DiskFull
        } else {
            Reason::ConfigurationFailed
        };
        Self { reason, message: format!("cannot {doing} {}: {error}", path.display()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_keeps_what_was_tried_and_what_went_wrong() {
        let long = format!("`apt-get install x` failed:\n{}\nthe cause", "noise\u{1b}\n".repeat(1000));
        let summary = Failure::new(Reason::PackageFailed, long).summary();
        assert!(
            summary.starts_with("`apt-get install x` failed: noise") && summary.ends_with("noise the cause")
        );
        assert!(summary.len() < 600 && !summary.contains(char::is_control), "{summary}");
        assert_eq!(Failure::new(Reason::PackageFailed, "short\ntext").summary(), "short text");
    }

    #[test]
    fn a_full_disk_is_told_apart_from_other_failures() {
        let path = std::path::Path::new("/x");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(Failure::io("write", path, &full).reason, Reason::DiskFull);
        let other = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(Failure::io("write", path, &other).reason, Reason::ConfigurationFailed);
    }
}
