//! Package repositories: deb822 sources, each trusting its own key and no other.

use std::path::PathBuf;

use common::{
    KubernetesVersion,
    metadata::{Key, Repository},
    state::Reason,
};
use program::Program;

use crate::{failure::Failure, host::Host};

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
    let key_path = format!("/etc/apt/keyrings/node-agent-{name}.asc");
    let components: String = components.iter().map(|component| format!(" {component}")).collect();
    let components = if components.is_empty() { components } else { format!("Components:{components}\n") };
    let source = format!(
        "# Written by node-agent.\nTypes: deb\nURIs: {uri}\nSuites: {suite}\n{components}Signed-By: {key_path}\n"
    );
    let source_path = format!("/etc/apt/sources.list.d/node-agent-{name}.sources");
    for (path, text) in [(&key_path, &key), (&source_path, &source)] {
        if host.read(path)?.as_ref() != Some(text) {
            host.write(path, text, MODE)?;
        }
    }
    Ok(Some(Source { path: host.path(source_path), text: source }))
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
    fn a_key_that_is_not_there_is_not_trusted() {
        let fake = FakeHost::silent();
        let version = "1.37.1".parse().unwrap();
        let key = Key::KeyFile("/keys/{kubernetes}.asc".parse().unwrap());
        let error = configure(&fake.host, &repository(key), Some(&version)).unwrap_err();
        assert_eq!(error.reason, Reason::RepositoryUntrusted);
        assert!(error.message.contains("/keys/1.37.1.asc"), "{error}");
    }
}
