//! A record in a file of this computer, for providers that are on it.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use futures::future::LocalBoxFuture;

use super::{Entry, Record, Seen};

/// A record in a file.
#[derive(Debug)]
pub struct FileRecord {
    path: PathBuf,
}

impl FileRecord {
    /// In the file at `path`.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn load(&self) -> anyhow::Result<Seen> {
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("cannot read {}", self.path.display()))?,
        };
        // What cannot be read is nobody's: it was cut off by a full disk.
        Ok(Seen { entry: serde_json::from_str(&text).ok(), version: text })
    }

    fn store(&self, seen: &Seen, entry: &Entry) -> anyhow::Result<Option<Seen>> {
        let what = || format!("cannot write {}", self.path.display());
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory).with_context(what)?;
        // Held for the moment of the comparison and the write only.
        let lock = File::create(self.path.with_extension("lock")).with_context(what)?;
        lock.lock().with_context(what)?;
        if self.load()?.version != seen.version {
            return Ok(None);
        }
        let text = serde_json::to_string(entry)?;
        let mut new = tempfile::NamedTempFile::new_in(directory).with_context(what)?;
        new.write_all(text.as_bytes()).with_context(what)?;
        new.as_file().sync_all().with_context(what)?;
        new.persist(&self.path).map_err(|error| error.error).with_context(what)?;
        Ok(Some(Seen { entry: Some(entry.clone()), version: text }))
    }
}

impl Record for FileRecord {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&self) -> LocalBoxFuture<'_, anyhow::Result<Seen>> {
        Box::pin(async { self.load() })
    }

    fn write<'a>(
        &'a self,
        seen: &'a Seen,
        entry: &'a Entry,
    ) -> LocalBoxFuture<'a, anyhow::Result<Option<Seen>>> {
        Box::pin(async { self.store(seen, entry) })
    }
}
