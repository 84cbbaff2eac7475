//! The Kubernetes bundle: all that hosts without a registry or a package server need for one version.
//!
//! ```text
//! bundle.json             versions, and the sha256 of every file
//! apt/                    a signed repository with kubelet, kubeadm, kubectl, containerd
//!   repository.asc        the key for apt's Signed-By
//! images/NAME.tar         the container images of the control plane, for `ctr images import`
//! ```

mod archive;
mod build;
mod component;
mod contents;
mod manifest;
mod pins;
mod source;

use std::path::{Path, PathBuf};

use common::KubernetesVersion;

pub use self::{
    build::{Request, build},
    component::{ARCHITECTURE, containerd_for},
    manifest::{FileEntry, ImageEntry, Manifest, PackageEntry},
    pins::PINNED,
    source::{Servers, Wish},
};
use crate::{Error, cache::Cache};

/// The kind of thing a bundle is in the cache.
const KIND: &str = "bundles";

/// A finished bundle.
#[derive(Debug, Clone)]
pub struct Bundle {
    path: PathBuf,
    manifest: Manifest,
}

impl Bundle {
    /// The bundle of a version in the cache.
    pub fn find(cache: &Cache, version: &KubernetesVersion) -> Result<Self, Error> {
        let path = cache.path(KIND, &build::name(version));
        if !path.is_dir() {
            return Err(Error::NoBundle { version: version.to_string() });
        }
        Self::open(path)
    }

    /// All bundles in the cache, oldest version first. Those of another recipe (an older infrop) are not
    /// listed: they would be built anew.
    pub fn list(cache: &Cache) -> Result<Vec<Self>, Error> {
        let ours = build::name_suffix();
        let names = cache.names(KIND)?;
        let mut bundles = names
            .into_iter()
            .filter(|name| name.ends_with(&ours))
            .map(|name| Self::open(cache.path(KIND, &name)))
            .collect::<Result<Vec<_>, _>>()?;
        bundles.sort_by(|one, two| one.manifest.kubernetes.cmp(&two.manifest.kubernetes));
        Ok(bundles)
    }

    fn open(path: PathBuf) -> Result<Self, Error> {
        let manifest = Manifest::read(&path)?;
        Ok(Self { path, manifest })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it has.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Compares every file with `bundle.json`; the error names the first that differs.
    pub fn verify(&self) -> Result<(), Error> {
        self.manifest.verify(&self.path)
    }

    /// Takes a program out of one of the images, for example `/usr/local/bin/etcd` of `etcd`.
    pub fn extract(&self, image: &str, file: &str, target: &Path) -> Result<(), Error> {
        let entry = self.manifest.images.iter().find(|entry| contents::component_of(&entry.name) == image);
        let entry = entry.ok_or_else(|| Error::Damaged {
            path: self.path.clone(),
            why: format!("has no image {image}"),
        })?;
        archive::extract(&self.path.join(&entry.file), file, target)
    }
}
