//! Files that the document names. Not that of a secret: a document is also checked where its secrets are not.

use std::{fs, path::Path};

use super::{
    checks::rollout,
    parts::Parts,
    problem::{Field, Finding},
    rollout::Probe,
};
use crate::cluster::JobManifest;

const HINT: &str = "names of files begin at the document's directory, or with /";

const HOST_KEYS: &str =
    "names of files begin at the document's directory, or with /; --record-host-keys makes it";

/// Whether the files are there. Relative names begin at the document's directory.
pub(super) fn check(parts: &Parts, directory: &Path) -> Vec<Finding> {
    let manifests = parts.networking.iter().flat_map(|networking| &networking.manifests).enumerate();
    let manifests = manifests
        .map(|(index, path)| (Field::of(&["cluster", "networking", "manifests"]).item(index), path, HINT));
    let known_hosts = parts.ssh.iter().filter_map(|ssh| ssh.known_hosts.as_ref());
    let known_hosts = known_hosts.map(|path| (Field::of(&["ssh", "knownHosts"]), path, HOST_KEYS));
    let mut findings: Vec<Finding> = manifests
        .chain(known_hosts)
        .filter_map(|(field, path, hint)| Some(Finding::new(field, is_file(directory, path).err()?, hint)))
        .collect();
    for (field, check) in rollout::lists(parts).into_iter().flatten() {
        let Probe::Job(path) = &check.probe else { continue };
        let field = field.key("job");
        if let Err(problem) = is_file(directory, path) {
            findings.push(Finding::new(field, problem, HINT));
            continue;
        }
        let text = fs::read_to_string(directory.join(path)).map_err(|error| error.to_string());
        if let Err(why) = text.and_then(|text| JobManifest::parse(&text)) {
            let problem = format!("{} {why}", path.display());
            findings.push(Finding::new(
                field,
                problem,
                "write one Job into it, as `kubectl create -f` takes it",
            ));
        }
    }
    findings
}

fn is_file(directory: &Path, path: &Path) -> Result<(), String> {
    match fs::metadata(directory.join(path)) {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(_) => Err(format!("{} is not a file", path.display())),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}
