//! Limits of the kernel that all hosts share.

use std::{fs, path::Path};

use images::steps::Steps;

/// How many inotify instances all hosts have together: they share the kernel, and with it root's limit.
const INSTANCES: &str = "/proc/sys/fs/inotify/max_user_instances";

/// A cluster's host takes some 15 of them; this is enough for a full lab and what else runs here. The kernel gives
/// 128, and a host that gets none does not boot to its end.
const ENOUGH: u32 = 8192;

/// Raises what is too low, and says so.
pub fn raise_limits(steps: &Steps) {
    if let Some(note) = raise(Path::new(INSTANCES)) {
        steps.note(note);
    }
}

fn raise(file: &Path) -> Option<String> {
    let now: u32 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    if now >= ENOUGH {
        return None;
    }
    let what = format!("{} from {now} to {ENOUGH}: lab hosts share it", file.display());
    Some(match fs::write(file, ENOUGH.to_string()) {
        Ok(()) => format!("raised {what}"),
        // Small labs work all the same.
        Err(error) => {
            format!("cannot raise {what}, and with more than some eight they may not boot: {error}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_low_is_raised_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("limit");
        fs::write(&file, "128\n").unwrap();
        assert!(raise(&file).unwrap().starts_with("raised "));
        assert_eq!(fs::read_to_string(&file).unwrap(), "8192");
        assert_eq!(raise(&file), None);
        fs::write(&file, "65536\n").unwrap();
        assert_eq!(raise(&file), None);
        assert_eq!(raise(&directory.path().join("none")), None);
    }
}
