//! The directory of this process for the control sockets of ssh.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use tempfile::TempDir;

/// A socket's path has 108 bytes, so not below some deep directory.
const PLACE: &str = "/tmp";

/// What names of such directories begin with.
const PREFIX: &str = "infrop-ssh-";

/// The file in it that is locked for as long as its process lives.
const LOCK: &str = "lock";

/// A directory that is removed with its process; if that is killed, by the next infrop of the same user.
#[derive(Debug)]
pub(super) struct ControlDirectory {
    directory: TempDir,
    _lock: File,
}

impl ControlDirectory {
    pub(super) fn new() -> io::Result<Self> {
        Self::new_in(Path::new(PLACE))
    }

    fn new_in(place: &Path) -> io::Result<Self> {
        // What cannot be cleared is only some bytes too many.
        if let Err(error) = clear(place) {
            tracing::debug!("cannot clear {}: {error}", place.display());
        }
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        // It gets its name when it is locked: nobody sees it without.
        let lock = tempfile::NamedTempFile::new_in(&directory)?;
        lock.as_file().lock()?;
        let lock = lock.persist(directory.path().join(LOCK))?;
        Ok(Self { directory, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes directories of processes that are gone.
fn clear(place: &Path) -> io::Result<()> {
    let user = nix::unistd::geteuid().as_raw();
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Of the entry itself, not of what it may lead to. One that goes meanwhile is as good as cleared.
        if !named || !entry.metadata().is_ok_and(|data| data.is_dir() && data.uid() == user) {
            continue;
        }
        // One without the file is being made, or from an infrop that did not lock.
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok()
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            tracing::debug!("cannot remove {}: {error}", entry.path().display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_goes_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for name in ["infrop-ssh-dead", "infrop-ssh-unlocked", "other"] {
            fs::create_dir(path(name)).unwrap();
        }
        for name in ["infrop-ssh-dead", "other"] {
            File::create(path(name).join(LOCK)).unwrap();
        }
        fs::create_dir(path("infrop-ssh-dead/.ssh-connection")).unwrap();
        std::os::unix::fs::symlink(path("other"), path("infrop-ssh-link")).unwrap();

        let first = ControlDirectory::new_in(place.path()).unwrap();
        let second = ControlDirectory::new_in(place.path()).unwrap();
        assert!(first.path().join(LOCK).exists() && second.path().join(LOCK).exists());
        assert!(!path("infrop-ssh-dead").exists());
        for name in ["infrop-ssh-unlocked", "other", "infrop-ssh-link"] {
            assert!(path(name).join(".").exists(), "{name}");
        }
        let gone = first.path().to_owned();
        drop(first);
        assert!(!gone.exists());
    }
}
