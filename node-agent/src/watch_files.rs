//! Notices when files come, go or change in a few directories, without looking again and again.

use std::{
    convert::Infallible,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::watch;

/// Where the kernel has no watch left to give (its limit is one for all programs of a user), files are compared this
/// often instead, until it has one.
const COMPARE: Duration = Duration::from_secs(15);

/// Sends a signal for every change in the directories, from a thread that otherwise sleeps in the kernel. A
/// directory that is not there is waited for.
pub fn watch_files(directories: Vec<PathBuf>, changed: watch::Sender<()>) {
    std::thread::spawn(move || {
        let mut warned = false;
        loop {
            let before = stamps(&directories);
            let Err(error) = follow(&directories, &changed);
            if !warned {
                tracing::warn!(
                    "files cannot be watched and are compared every {} s: {error}",
                    COMPARE.as_secs()
                );
                warned = true;
            }
            std::thread::sleep(COMPARE);
            if stamps(&directories) != before {
                changed.send_replace(());
            }
        }
    });
}

/// Follows the directories for as long as the kernel lets us.
fn follow(directories: &[PathBuf], changed: &watch::Sender<()>) -> nix::Result<Infallible> {
    let mut inotify = prepare(directories)?;
    loop {
        inotify.read_events()?;
        // Made anew: a directory that was missing may be there now. Before the signal, so that what happens while
        // others look is a signal again.
        let next = prepare(directories);
        changed.send_replace(());
        inotify = next?;
    }
}

/// What tells one state of the directories from another.
fn stamps(directories: &[PathBuf]) -> Vec<(PathBuf, Option<SystemTime>)> {
    let mut stamps = Vec::new();
    for directory in directories {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).chain([directory.clone()]) {
            let changed = fs::metadata(&path).and_then(|meta| meta.modified()).ok();
            stamps.push((path, changed));
        }
    }
    stamps.sort();
    stamps
}

fn prepare(directories: &[PathBuf]) -> nix::Result<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let flags = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE_SELF;
    for directory in directories {
        inotify.add_watch(nearest(directory), flags)?;
    }
    Ok(inotify)
}

/// The directory, or the nearest one above it that is there.
fn nearest(directory: &Path) -> &Path {
    directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_can_be_told_apart_without_a_watch() {
        let root = tempfile::tempdir().unwrap();
        let directories = [root.path().join("a"), root.path().join("b")];
        let nothing = stamps(&directories);
        fs::create_dir(&directories[0]).unwrap();
        let empty = stamps(&directories);
        fs::write(directories[0].join("file"), "x").unwrap();
        let filled = stamps(&directories);
        assert!(nothing != empty && empty != filled && filled == stamps(&directories));
    }

    #[tokio::test]
    async fn changes_are_noticed_also_in_a_directory_that_comes_later() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("later");
        let (sender, mut receiver) = watch::channel(());
        watch_files(vec![directory.clone()], sender);
        tokio::time::sleep(Duration::from_millis(50)).await;
        fs::create_dir(&directory).unwrap();
        receiver.changed().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        fs::write(directory.join("file"), "x").unwrap();
        receiver.changed().await.unwrap();
    }
}
