//! Contents by software and hash: what was delivered to the host, whether or not it is in use.
//!
//! `/etc/node-agent/metadata.yaml` has the first ones. Later ones come as files in
//! `/etc/node-agent/configuration.d/`; a file there changes nothing until a plan names its hash.

use std::collections::BTreeSet;

use common::{
    metadata::{Configuration, Template},
    metadata::{Metadata, Repository},
    software::{SoftwareName, SoftwareVersion},
};

/// All that was delivered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    configurations: Vec<Configuration>,
    /// Where packages come from.
    pub repositories: Vec<Repository>,
    /// Where container images come from, if not from a registry.
    pub bundle: Option<Template>,
}

impl Contents {
    /// What the metadata and further files bring.
    pub fn new(metadata: Option<&Metadata>, further: Vec<Configuration>) -> Self {
        let mut configurations = further;
        let mut contents = Self::default();
        if let Some(metadata) = metadata {
            configurations.push(metadata.configuration.clone());
            contents.repositories.clone_from(&metadata.repositories);
            contents.bundle.clone_from(&metadata.bundle);
        }
        contents.configurations = configurations;
        contents
    }

    /// The configuration that has this content of a software.
    pub fn find(&self, software: &SoftwareName, version: &SoftwareVersion) -> Option<&Configuration> {
        self.configurations
            .iter()
            .find(|one| one.versions().is_ok_and(|versions| versions.get(software) == Some(version)))
    }

    /// Every content there is.
    pub fn versions(&self) -> BTreeSet<(SoftwareName, SoftwareVersion)> {
        self.configurations.iter().filter_map(|one| one.versions().ok()).flatten().collect()
    }
}
