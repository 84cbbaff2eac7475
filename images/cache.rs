//! Things that are dear to make and kept: under the cache directory, published by one rename.
//!
//! ```text
//! <root>/<kind>/<name>/            a finished thing; never changed
//! <root>/<kind>/.<name>.lock       held by who makes it
//! <root>/<kind>/.<name>.staging/   half made; removed by the next one who holds the lock
//! ```

use std::{
    env,
    fs::{self, File, TryLockError},
    future::Future,
    io,
    path::{Path, PathBuf},
};

use crate::{Error, error::At, steps::Steps};

/// The cache directory.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache at `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The user's own: `infrop` in the user's cache directory; none without a home directory.
    pub fn of_user() -> Option<Self> {
        let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let directory = named.or_else(|| env::home_dir().map(|home| home.join(".cache")))?;
        Some(Self::new(directory.join("infrop")))
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the thing is or will be.
    pub fn path(&self, kind: &str, name: &str) -> PathBuf {
        self.root.join(kind).join(name)
    }

    /// The names of all finished things of a kind, sorted.
    pub fn names(&self, kind: &str) -> Result<Vec<String>, Error> {
        let directory = self.root.join(kind);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).at("list", &directory),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.at("list", &directory)?.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Gives the thing, making it with `make` in a directory of its own unless it is there.
    ///
    /// `anew` makes it also if it is there. If two callers come at once, the second waits, says so, and
    /// finds the thing made.
    pub async fn produce<F: Future<Output = Result<(), Error>>>(
        &self,
        kind: &str,
        name: &str,
        anew: bool,
        steps: &Steps,
        make: impl FnOnce(PathBuf) -> F,
    ) -> Result<PathBuf, Error> {
        let path = self.path(kind, name);
        if !anew && path.is_dir() {
            return Ok(path);
        }
        let directory = self.root.join(kind);
        fs::create_dir_all(&directory).at("create", &directory)?;
        let (_lock, waited) = lock(&directory.join(format!(".{name}.lock")), name, steps).await?;
        if path.is_dir() && (waited || !anew) {
            return Ok(path);
        }
        let staging = directory.join(format!(".{name}.staging"));
        remove_tree(&staging)?;
        fs::create_dir(&staging).at("create", &staging)?;
        // Removes what is half made also if the caller gives up waiting (ctrl-C).
        let staging = Staging(staging);
        make(staging.0.clone())
            .await
            .map_err(|error| if error.is_disk_full() { Error::DiskFull(self.root.clone()) } else { error })?;
        // What the name promises must be on the disk before the name is.
        nix::unistd::sync();
        if path.is_dir() {
            let old = directory.join(format!(".{name}.old"));
            remove_tree(&old)?;
            fs::rename(&path, &old).at("move away", &path)?;
            fs::rename(&staging.0, &path).at("publish", &path)?;
            remove_tree(&old)?;
        } else {
            fs::rename(&staging.0, &path).at("publish", &path)?;
        }
        Ok(path)
    }
}

struct Staging(PathBuf);

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.0) {
            tracing::warn!(%error, "half-made files stay until the next build");
        }
    }
}

/// Takes the lock; true if someone else had it.
async fn lock(path: &Path, name: &str, steps: &Steps) -> Result<(File, bool), Error> {
    let file = File::create(path).at("create", path)?;
    match file.try_lock() {
        Ok(()) => return Ok((file, false)),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error).at("lock", path),
    }
    steps.note(format_args!("waiting: another process is making {name} (it holds {})", path.display()));
    let waiting = tokio::task::spawn_blocking(move || file.lock().map(|()| file));
    let locked = waiting.await.map_err(io::Error::other).and_then(|result| result);
    Ok((locked.at("lock", path)?, true))
}

/// Removes a directory and all below it; none there is fine.
pub fn remove_tree(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).at("remove", path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    fn cache() -> (tempfile::TempDir, Cache, Steps) {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path().join("deep/cache"));
        (directory, cache, Steps::new(|_| ()))
    }

    #[tokio::test]
    async fn a_thing_is_made_once() {
        let (_guard, cache, steps) = cache();
        let made = AtomicUsize::new(0);
        for _ in 0..3 {
            let make = |staging: PathBuf| {
                made.fetch_add(1, Ordering::Relaxed);
                async move { fs::write(staging.join("file"), "x").at("write", &staging) }
            };
            let path = cache.produce("kind", "name", false, &steps, make).await.unwrap();
            assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "x");
        }
        assert_eq!(made.into_inner(), 1);
        assert_eq!(cache.names("kind").unwrap(), ["name"]);
        assert!(cache.names("other").unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_failed_or_dropped_build_leaves_nothing_half_made() {
        let (_guard, cache, steps) = cache();
        let fail = |staging: PathBuf| async move {
            fs::write(staging.join("half"), "x").at("write", &staging)?;
            Err(Error::NoBundle { version: "x".into() })
        };
        cache.produce("kind", "name", false, &steps, fail).await.unwrap_err();
        let never = |staging: PathBuf| async move {
            fs::write(staging.join("half"), "x").at("write", &staging)?;
            std::future::pending().await
        };
        let build = cache.produce("kind", "name", false, &steps, never);
        tokio::time::timeout(std::time::Duration::from_millis(50), build).await.unwrap_err();
        assert!(!cache.path("kind", "name").exists());
        assert!(!cache.root().join("kind/.name.staging").exists());
    }

    #[tokio::test]
    async fn the_leftover_of_a_killed_build_is_replaced() {
        let (_guard, cache, steps) = cache();
        let leftover = cache.root().join("kind/.name.staging");
        fs::create_dir_all(&leftover).unwrap();
        fs::write(leftover.join("half"), "x").unwrap();
        let path = cache.produce("kind", "name", false, &steps, |_| async { Ok(()) }).await.unwrap();
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_full_disk_is_said_in_words_that_help() {
        let (_guard, cache, steps) = cache();
        let full = |staging: PathBuf| async move {
            Err(io::Error::from(io::ErrorKind::StorageFull)).at("write", &staging)
        };
        let error = cache.produce("kind", "name", false, &steps, full).await.unwrap_err();
        assert!(matches!(error, Error::DiskFull(_)), "{error}");
    }

    #[tokio::test]
    async fn the_second_of_two_waits_and_says_so() {
        let (_guard, cache, _) = cache();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = lines.clone();
        let steps = Steps::new(move |line| seen.lock().unwrap().push(line.to_owned()));
        let made = AtomicUsize::new(0);
        let make = |_| {
            made.fetch_add(1, Ordering::Relaxed);
            async {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                Ok(())
            }
        };
        let (one, two) = futures::join!(
            cache.produce("kind", "name", false, &steps, make),
            cache.produce("kind", "name", false, &steps, make)
        );
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!(made.load(Ordering::Relaxed), 1);
        assert!(lines.lock().unwrap().iter().any(|line| line.starts_with("waiting: another process")));
    }
}
