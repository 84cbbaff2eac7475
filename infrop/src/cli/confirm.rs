//! Asking a person.

use std::io::{IsTerminal, Write};

/// Whether there is somebody to ask.
pub(super) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks; anything but y or yes is no.
pub(super) async fn ask(question: &str) -> anyhow::Result<bool> {
    // On stderr: stdout is for results.
    write!(std::io::stderr(), "{question} [y/N] ")?;
    let read = || {
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map(|_| answer)
    };
    Ok(is_yes(&tokio::task::spawn_blocking(read).await??))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (answer, expected) in [
            ("y\n", true),
            ("YES\n", true),
            ("\n", false),
            ("", false),
            ("no\n", false),
            ("yesterday\n", false),
        ] {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }
}
