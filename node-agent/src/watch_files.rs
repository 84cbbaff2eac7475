//! Notices when files come, go or change in a few directories, without looking again and again.

use std::path::{Path, PathBuf};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::watch;

/// Sends a signal for every change in the directories, from a thread that otherwise sleeps in the kernel. A
/// directory that is not there is waited for.
pub fn watch_files(directories: Vec<PathBuf>, changed: watch::Sender<()>) {
    std::thread::spawn(move || {
        let follow = || -> nix::Result<()> {
            let mut inotify = prepare(&directories)?;
            loop {
                inotify.read_events()?;
                // Made anew: a directory that was missing may be there now. Before the signal, so that what
                // happens while others look is a signal again.
                inotify = prepare(&directories)?;
                changed.send_replace(());
            }
        };
        if let Err(error) = follow() {
            tracing::warn!(%error, "files cannot be watched; changes are seen at the next resync only");
        }
        // Receivers would take a dropped sender for news without end.
        std::mem::forget(changed);
    });
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
    use std::{fs, time::Duration};

    use super::*;

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
