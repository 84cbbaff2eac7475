//! `bundle.json`: what a bundle is and the sha256 of every file in it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use common::KubernetesVersion;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Error, error::At, sha256_file};

/// Its name in the bundle.
pub(crate) const FILE_NAME: &str = "bundle.json";

/// Raised when readers of the old form would misread the new one.
pub(crate) const FORMAT: u32 = 1;

/// The content of `bundle.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The form of this file.
    pub format: u32,
    /// The Kubernetes version.
    pub kubernetes: KubernetesVersion,
    /// What hosts it is for.
    pub architecture: String,
    /// Where the programs came from: `directory`, `release` or `go-modules`.
    pub source: String,
    /// When it was built.
    pub built: Timestamp,
    /// Versions of what is in it, by name.
    pub components: BTreeMap<String, String>,
    /// The packages in `apt/`.
    pub packages: Vec<PackageEntry>,
    /// The container images in `images/`.
    pub images: Vec<ImageEntry>,
    /// Every other file of the bundle, by its path in it.
    pub files: BTreeMap<String, FileEntry>,
}

/// A Debian package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageEntry {
    /// Its name.
    pub name: String,
    /// Its Debian version.
    pub version: String,
    /// Its path in the bundle.
    pub file: String,
}

/// A container image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageEntry {
    /// The name kubeadm gives it.
    pub name: String,
    /// Its archive's path in the bundle.
    pub file: String,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its sha256 in hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}

impl Manifest {
    /// Reads the manifest of the bundle in `directory`.
    pub(crate) fn read(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(FILE_NAME);
        let text = fs::read_to_string(&path).at("read", &path)?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Damaged { path, why: format!("is not what infrop wrote ({error})") })
    }

    /// Writes it.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), Error> {
        let path = directory.join(FILE_NAME);
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other).at("write", &path)?;
        fs::write(&path, text + "\n").at("write", &path)
    }

    /// Compares every file with the manifest; the first that differs, in the order of names, is the error.
    pub(crate) fn verify(&self, directory: &Path) -> Result<(), Error> {
        let mut present = list(directory)?;
        for name in self.files.keys() {
            if !present.contains(name) {
                present.push(name.clone());
            }
        }
        present.sort();
        for name in present {
            let path = directory.join(&name);
            let damaged = |why: String| Error::Damaged { path: path.clone(), why };
            let Some(expected) = self.files.get(&name) else {
                return Err(damaged("does not belong to the bundle".to_owned()));
            };
            if !path.is_file() {
                return Err(damaged("is missing".to_owned()));
            }
            let actual = describe(&path)?;
            if actual != *expected {
                return Err(damaged(format!(
                    "differs (sha256 {}, {} bytes; expected {}, {} bytes)",
                    actual.sha256, actual.size, expected.sha256, expected.size
                )));
            }
        }
        Ok(())
    }
}

/// Every file of the bundle but the manifest, with its sha256.
pub(crate) fn describe_all(directory: &Path) -> Result<BTreeMap<String, FileEntry>, Error> {
    let describe = |name: String| {
        let entry = describe(&directory.join(&name))?;
        Ok((name, entry))
    };
    list(directory)?.into_iter().map(describe).collect()
}

fn describe(path: &Path) -> Result<FileEntry, Error> {
    Ok(FileEntry { sha256: sha256_file(path)?, size: path.metadata().at("read", path)?.len() })
}

/// The paths of all files below `directory` but the manifest, relative to it.
fn list(directory: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    let mut queue = vec![PathBuf::new()];
    while let Some(relative) = queue.pop() {
        let path = directory.join(&relative);
        for entry in fs::read_dir(&path).at("list", &path)? {
            let entry = entry.at("list", &path)?;
            let name = relative.join(entry.file_name());
            if entry.file_type().at("list", &path)?.is_dir() {
                queue.push(name);
            } else if name != Path::new(FILE_NAME) {
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle() -> (tempfile::TempDir, Manifest) {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("apt")).unwrap();
        fs::write(directory.path().join("apt/a"), "a").unwrap();
        fs::write(directory.path().join("b"), "b").unwrap();
        let manifest = Manifest {
            format: FORMAT,
            kubernetes: "1.37.1".parse().unwrap(),
            architecture: "amd64".into(),
            source: "directory".into(),
            built: Timestamp::from_second(1).unwrap(),
            components: BTreeMap::new(),
            packages: Vec::new(),
            images: Vec::new(),
            files: describe_all(directory.path()).unwrap(),
        };
        manifest.write(directory.path()).unwrap();
        (directory, manifest)
    }

    #[test]
    fn what_was_written_is_read_and_verifies() {
        let (directory, manifest) = bundle();
        assert_eq!(Manifest::read(directory.path()).unwrap(), manifest);
        manifest.verify(directory.path()).unwrap();
    }

    #[test]
    fn the_first_file_that_differs_is_named() {
        type Change = fn(&Path);
        let tamper: [(Change, &str, &str); 4] = [
            (|d| fs::write(d.join("apt/a"), "x").unwrap(), "apt/a", "differs"),
            (|d| fs::remove_file(d.join("b")).unwrap(), "b", "is missing"),
            (|d| fs::write(d.join("apt/c"), "c").unwrap(), "apt/c", "does not belong"),
            (
                |d| {
                    fs::write(d.join("b"), "xx").unwrap();
                    fs::remove_file(d.join("apt/a")).unwrap();
                },
                "apt/a",
                "is missing",
            ),
        ];
        for (change, file, why) in tamper {
            let (directory, manifest) = bundle();
            change(directory.path());
            let error = manifest.verify(directory.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("/{file} {why}")), "{error}");
        }
    }
}
