//! Package repositories: deb822 sources, each trusting its own key and no other.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use common::{
    KubernetesVersion,
    metadata::{Key, Repository},
    state::Reason,
};
use program::Program;

use crate::{failure::Failure, host::Host};

const SOURCES: &str = "/etc/apt/sources.list.d";

const KEYS: &str = "/etc/apt/keyrings";

/// Begins the names of our files; those of others stay as they are.
const OURS: &str = "node-agent-";

/// Anyone may read where packages come from, as apt's unprivileged user must.
const MODE: u32 = 0o644;

/// A source of apt.
#[derive(Debug)]
pub(super) struct Source {
    /// Its file.
    pub(super) path: PathBuf,
    /// What that says.
    pub(super) text: String,
}

/// Writes the source and key of a repository; none if the repository is for Kubernetes and the plan has no Kubernetes
/// version.
pub(super) fn configure(
    host: &Host,
    repository: &Repository,
    kubernetes: Option<&KubernetesVersion>,
) -> Result<Option<Source>, Failure> {
    let Repository { name, uri, suite, components, key } = repository;
    let (Some(uri), Some(suite)) = (uri.render(kubernetes), suite.render(kubernetes)) else {
        return Ok(None);
    };
    let key = match key {
        Key::Key(text) => text.clone(),
        Key::KeyFile(file) => {
            let Some(file) = file.render(kubernetes) else { return Ok(None) };
            host.read(&file)?.ok_or_else(|| {
                let message = format!("the key {file} of the repository {name} is not on this host");
                Failure::new(Reason::RepositoryUntrusted, message)
            })?
        }
    };
    let key_path = format!("{KEYS}/{OURS}{name}.asc");
    let components: String = components.iter().map(|component| format!(" {component}")).collect();
    let components = if components.is_empty() { components } else { format!("Components:{components}\n") };
    let source = format!(
        "# Written by node-agent.\nTypes: deb\nURIs: {uri}\nSuites: {suite}\n{components}Signed-By: {key_path}\n"
    );
    let source_path = format!("{SOURCES}/{OURS}{name}.sources");
    for (path, text) in [(&key_path, &key), (&source_path, &source)] {
        if host.read(path)?.as_ref() != Some(text) {
            host.write(path, text, MODE)?;
        }
    }
    Ok(Some(Source { path: host.path(source_path), text: source }))
}

/// Removes sources and keys that we wrote for repositories the host no longer has: nothing is to come from there.
pub(super) fn remove_others(host: &Host, repositories: &[Repository]) -> Result<(), Failure> {
    for (directory, ending) in [(SOURCES, ".sources"), (KEYS, ".asc")] {
        let path = host.path(directory);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Failure::io("read", &path, &error)),
        };
        for entry in entries {
            let file = entry.map_err(|error| Failure::io("read", &path, &error))?.file_name();
            let name = file.to_str().and_then(|file| file.strip_prefix(OURS)?.strip_suffix(ending));
            if name.is_some_and(|name| repositories.iter().all(|one| one.name.as_str() != name)) {
                host.remove(Path::new(directory).join(&file))?;
            }
        }
    }
    Ok(())
}

/// Fetches the lists of one source and of no other: what is wrong with someone else's is not our failure.
pub(super) fn update(source: &std::path::Path) -> Program {
    super::install::apt_get()
        .arg("update")
        .arg("--error-on=any")
        .arg("-o")
        .arg(format!("Dir::Etc::sourcelist={}", source.display()))
        .args(["-o", "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    fn repository(key: Key) -> Repository {
        Repository {
            name: "kubernetes".parse().unwrap(),
            uri: "https://packages.example/v{kubernetesMinor}/".parse().unwrap(),
            suite: "./".parse().unwrap(),
            components: Vec::new(),
            key,
        }
    }

    #[test]
    fn a_source_trusts_its_own_key() {
        let fake = FakeHost::silent();
        let version = "1.37.1".parse().unwrap();
        let path =
            configure(&fake.host, &repository(Key::Key("KEY".into())), Some(&version)).unwrap().unwrap();
        assert!(path.path.ends_with("etc/apt/sources.list.d/node-agent-kubernetes.sources"));
        assert_eq!(
            fake.read("/etc/apt/sources.list.d/node-agent-kubernetes.sources").unwrap(),
            "# Written by node-agent.\nTypes: deb\nURIs: https://packages.example/v1.37/\nSuites: ./\n\
             Signed-By: /etc/apt/keyrings/node-agent-kubernetes.asc\n"
        );
        assert_eq!(fake.read("/etc/apt/keyrings/node-agent-kubernetes.asc").unwrap(), "KEY");
        assert!(configure(&fake.host, &repository(Key::Key("KEY".into())), None).unwrap().is_none());
    }

    #[test]
    fn what_a_host_no_longer_has_goes_and_what_is_not_ours_stays() {
        let fake = FakeHost::silent();
        remove_others(&fake.host, &[]).unwrap();
        let version = "1.37.1".parse().unwrap();
        let one = repository(Key::Key("KEY".into()));
        configure(&fake.host, &one, Some(&version)).unwrap().unwrap();
        let foreign = "/etc/apt/sources.list.d/debian.sources";
        fake.write(foreign, "x");
        fake.write("/etc/apt/keyrings/node-agent-old.asc", "x");
        fake.write("/etc/apt/sources.list.d/node-agent-old.sources", "x");
        remove_others(&fake.host, std::slice::from_ref(&one)).unwrap();
        assert!(fake.read("/etc/apt/keyrings/node-agent-old.asc").is_none());
        assert!(fake.read("/etc/apt/sources.list.d/node-agent-old.sources").is_none());
        assert!(fake.read("/etc/apt/keyrings/node-agent-kubernetes.asc").is_some());
        remove_others(&fake.host, &[]).unwrap();
        assert!(fake.read("/etc/apt/sources.list.d/node-agent-kubernetes.sources").is_none());
        assert!(fake.read(foreign).is_some());
    }

    #[test]
    fn a_key_that_is_not_there_is_not_trusted() {
        let fake = FakeHost::silent();
        let version = "1.37.1".parse().unwrap();
        let key = Key::KeyFile("/keys/{kubernetes}.asc".parse().unwrap());
        let error = configure(&fake.host, &repository(key), Some(&version)).unwrap_err();
        assert_eq!(error.reason, Reason::RepositoryUntrusted);
        assert!(error.message.contains("/keys/1.37.1.asc"), "{error}");
    }
}
