//! All labs of this computer, and the removal of what killed ones left.
//!
//! A lab's directory is locked by its maker until a supervisor runs, and `lock` in it by the supervisor. A
//! lab with neither is not running; if it also was not completed, or was tied to a process, nobody will come
//! back for it.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{
    cgroup,
    error::{At, Error},
    model::{Definition, LabName},
    paths::{Paths, is_locked},
};

/// The directory with all labs.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// A lab as seen from outside.
#[derive(Debug, Clone)]
pub struct Summary {
    /// What it is.
    pub definition: Definition,
    /// Where its files are.
    pub directory: PathBuf,
    /// Whether its supervisor lives.
    pub running: bool,
}

/// A lab that is being made.
#[derive(Debug)]
pub(super) struct Creation {
    paths: Paths,
    /// Tells others that the lab is not a leftover.
    _lock: File,
}

impl Creation {
    pub(super) fn paths(&self) -> &Paths {
        &self.paths
    }
}

impl Store {
    /// The store in `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The labs there are, by name.
    pub fn list(&self) -> Result<Vec<LabName>, Error> {
        let mut names: Vec<LabName> = self
            .directories()?
            .into_iter()
            .filter(|paths| paths.definition().is_file())
            .filter_map(|paths| paths.root().file_name()?.to_str()?.parse().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// What a lab is and whether it runs.
    pub fn summary(&self, name: &LabName) -> Result<Summary, Error> {
        let paths = self.find(name)?;
        Ok(Summary {
            definition: Definition::read(&paths)?,
            directory: paths.root().to_owned(),
            running: paths.is_supervised()?,
        })
    }

    pub(super) fn find(&self, name: &LabName) -> Result<Paths, Error> {
        let paths = self.paths(name);
        if paths.definition().is_file() { Ok(paths) } else { Err(Error::NoLab(name.clone())) }
    }

    fn paths(&self, name: &LabName) -> Paths {
        Paths::new(self.root.join(name.as_str()))
    }

    /// Takes the name of a new lab.
    pub(super) fn reserve(&self, definition: &Definition) -> Result<Creation, Error> {
        let _store = self.lock()?;
        let paths = self.paths(&definition.name);
        match fs::create_dir(paths.root()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists(definition.name.clone()));
            }
            result => result.at("create", paths.root())?,
        }
        let lock = File::open(paths.root()).at("open", paths.root())?;
        lock.lock().at("lock", paths.root())?;
        Ok(Creation { paths, _lock: lock })
    }

    /// Holds a lab while it is started: others who start it wait, and nobody takes it for a leftover.
    pub(super) async fn claim(&self, name: &LabName) -> Result<File, Error> {
        let root = self.find(name)?.root().to_owned();
        let path = root.clone();
        let claim = tokio::task::spawn_blocking(move || {
            let directory = File::open(&root)?;
            directory.lock().map(|()| directory)
        });
        claim.await.map_err(io::Error::other).and_then(|claimed| claimed).at("lock", &path)
    }

    /// Removes all files of a lab that is not running.
    pub(super) fn remove(&self, name: &LabName) -> Result<(), Error> {
        remove(&self.paths(name))
    }

    /// Removes what killed labs left: see the head of this file. Labs that are only switched off stay.
    pub fn sweep(&self) -> Result<(), Error> {
        let _store = self.lock()?;
        for paths in self.directories()? {
            let directory = File::open(paths.root()).at("open", paths.root())?;
            if is_locked(&directory, paths.root())? || paths.is_supervised()? {
                continue;
            }
            let kept = paths.definition().is_file() && Definition::read(&paths)?.is_kept();
            if kept {
                cgroup::remove_recorded(&paths)?;
            } else {
                tracing::info!(directory = %paths.root().display(), "removing what a killed lab left");
                remove(&paths)?;
            }
        }
        Ok(())
    }

    /// Making and sweeping exclude each other.
    fn lock(&self) -> Result<File, Error> {
        fs::create_dir_all(&self.root).at("create", &self.root)?;
        let path = self.root.join(".lock");
        let file = File::create(&path).at("create", &path)?;
        file.lock().at("lock", &path)?;
        Ok(file)
    }

    fn directories(&self) -> Result<Vec<Paths>, Error> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.at("list", &self.root)?,
        };
        let mut labs = Vec::new();
        for entry in entries {
            let path = entry.at("list", &self.root)?.path();
            let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if path.is_dir() && !hidden {
                labs.push(Paths::new(path));
            }
        }
        Ok(labs)
    }
}

pub(super) fn remove(paths: &Paths) -> Result<(), Error> {
    cgroup::remove_recorded(paths)?;
    Ok(images::cache::remove_tree(paths.root())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("labs"));
        (directory, store)
    }

    fn definition(name: &str, tied: bool) -> Definition {
        let lab = Definition::new(name.parse().unwrap(), "/r".into(), "/i".into()).unwrap();
        Definition { complete: true, tied, ..lab }
    }

    #[test]
    fn only_leftovers_are_swept() {
        let (_guard, store) = store();
        let kept = definition("kept", false);
        let dead = definition("dead", true);
        let alive = definition("alive", true);
        let half = definition("half", false);
        let incomplete = Definition { complete: false, ..definition("incomplete", false) };
        let making = definition("making", false);
        for lab in [&kept, &dead, &alive, &incomplete] {
            lab.write(store.reserve(lab).unwrap().paths()).unwrap();
        }
        drop(store.reserve(&half).unwrap());
        let _making = store.reserve(&making).unwrap();
        let lock = File::create(store.paths(&alive.name).lock()).unwrap();
        lock.lock().unwrap();

        store.sweep().unwrap();
        let left = |lab: &Definition| store.paths(&lab.name).root().is_dir();
        assert!(left(&kept) && left(&alive) && left(&making));
        assert!(!left(&dead) && !left(&half) && !left(&incomplete));
        assert_eq!(store.list().unwrap(), [alive.name, kept.name]);
    }

    #[test]
    fn a_name_is_taken_once() {
        let (_guard, store) = store();
        let lab = definition("demo", false);
        let _creation = store.reserve(&lab).unwrap();
        assert!(matches!(store.reserve(&lab).unwrap_err(), Error::Exists(_)));
        assert!(matches!(store.find(&lab.name).unwrap_err(), Error::NoLab(_)));
    }

    #[test]
    fn a_store_that_never_was_is_empty() {
        let (_guard, store) = store();
        assert!(store.list().unwrap().is_empty());
        store.sweep().unwrap();
    }
}
