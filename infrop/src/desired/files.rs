//! Files that the document names. Not that of a secret: a document is also checked where its secrets are not.

use std::{fs, path::Path};

use super::{
    parts::Parts,
    problem::{Field, Finding},
};

/// Whether the files are there. Relative names begin at the document's directory.
pub(super) fn check(parts: &Parts, directory: &Path) -> Vec<Finding> {
    let manifests = parts.networking.iter().flat_map(|networking| &networking.manifests).enumerate();
    let manifests =
        manifests.map(|(index, path)| (Field::of(&["cluster", "networking", "manifests"]).item(index), path));
    let known_hosts = parts.ssh.iter().filter_map(|ssh| ssh.known_hosts.as_ref());
    let known_hosts = known_hosts.map(|path| (Field::of(&["ssh", "knownHosts"]), path));
    let mut findings = Vec::new();
    for (field, path) in manifests.chain(known_hosts) {
        let problem = match fs::metadata(directory.join(path)) {
            Ok(metadata) if metadata.is_file() => continue,
            Ok(_) => format!("{} is not a file", path.display()),
            Err(error) => format!("{} cannot be read: {error}", path.display()),
        };
        findings.push(Finding::new(
            field,
            problem,
            "names of files begin at the document's directory, or with /",
        ));
    }
    findings
}
