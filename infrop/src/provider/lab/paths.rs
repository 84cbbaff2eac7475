//! Where the files of a lab are.
//!
//! ```text
//! lab.json                what the lab is; the only truth about which hosts it has
//! lock, keep.lock         held by its supervisor
//! control                 the supervisor's socket
//! ssh/                    the key, and derived from lab.json: config, known_hosts
//! hosts/<name>/           the disk and the console of a host
//! removed/                what is being deleted
//! bundles/                what all hosts see
//! ```

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
};

use super::{
    error::{At, Error},
    model::HostName,
};

/// Where the files of a lab are.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    root: PathBuf,
}

impl Paths {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn definition(&self) -> PathBuf {
        self.root.join("lab.json")
    }

    /// Held by the supervisor for as long as it lives.
    pub(super) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Held by the process that runs the hosts: it can outlive a killed supervisor by some milliseconds.
    pub(super) fn keeper_lock(&self) -> PathBuf {
        self.root.join("keep.lock")
    }

    pub(super) fn control(&self) -> PathBuf {
        self.root.join("control")
    }

    pub(super) fn supervisor_log(&self) -> PathBuf {
        self.root.join("supervisor.log")
    }

    /// The control groups that were made for the lab, one path a line.
    pub(super) fn cgroups(&self) -> PathBuf {
        self.root.join("cgroups")
    }

    pub(super) fn ssh_directory(&self) -> PathBuf {
        self.root.join("ssh")
    }

    pub(super) fn ssh_config(&self) -> PathBuf {
        self.ssh_directory().join("config")
    }

    pub(super) fn ssh_key(&self) -> PathBuf {
        self.ssh_directory().join("id_ed25519")
    }

    pub(super) fn known_hosts(&self) -> PathBuf {
        self.ssh_directory().join("known_hosts")
    }

    /// All hosts, one directory each, and leftovers of some that are none.
    pub(super) fn hosts(&self) -> PathBuf {
        self.root.join("hosts")
    }

    pub(super) fn host(&self, name: &HostName) -> HostPaths {
        HostPaths { root: self.hosts().join(name.as_str()) }
    }

    /// Where directories go before they are deleted, so that their names are free at once.
    pub(super) fn removed(&self) -> PathBuf {
        self.root.join("removed")
    }

    /// What all hosts see.
    pub(super) fn bundles(&self) -> PathBuf {
        self.root.join("bundles")
    }

    /// Where something is put together before it appears among the bundles.
    pub(super) fn offering(&self) -> PathBuf {
        self.root.join("offering")
    }

    /// Held by who puts it together.
    pub(super) fn offering_lock(&self) -> PathBuf {
        self.root.join("offering.lock")
    }

    /// Whether a supervisor lives.
    pub(super) fn is_supervised(&self) -> Result<bool, Error> {
        let path = self.lock();
        if !path.exists() {
            return Ok(false);
        }
        is_locked(&File::open(&path).at("open", &path)?, &path)
    }
}

/// Whether another process holds the lock.
pub(super) fn is_locked(file: &File, path: &Path) -> Result<bool, Error> {
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error).at("lock", path),
    }
}

/// Where the files of a host are.
#[derive(Debug, Clone)]
pub(super) struct HostPaths {
    root: PathBuf,
}

impl HostPaths {
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// What differs from the common root file system.
    pub(super) fn upper(&self) -> PathBuf {
        self.root.join("upper")
    }

    /// The overlay's own scratch.
    pub(super) fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    /// Where the root file system is mounted, seen by the supervisor only.
    pub(super) fn mount(&self) -> PathBuf {
        self.root.join("root")
    }

    /// A directory of the real disk, for what does not work on an overlay.
    pub(super) fn data(&self, name: &str) -> PathBuf {
        self.root.join("data").join(name)
    }

    pub(super) fn console(&self) -> PathBuf {
        self.root.join("console.log")
    }
}
