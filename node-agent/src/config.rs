//! The agent's own settings and the metadata it was given: files below `/etc/node-agent`.

use std::{
    fs, io,
    net::SocketAddr,
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use common::metadata::{Configuration, Metadata, NodeName};
use serde::{Deserialize, de::DeserializeOwned};

use crate::contents::Contents;

/// Where the agent's files are unless told otherwise.
pub const DIRECTORY: &str = "/etc/node-agent";

/// `config.yaml`. Every field has a default, so the file may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Config {
    /// The Node's name, if it is neither the one in the metadata nor, without metadata, the host's name.
    pub node: Option<NodeName>,
    /// The kubelet's credential.
    pub kubeconfig: PathBuf,
    /// How often a plan may fail before it is quarantined.
    pub attempts: u32,
    /// Seconds until the second attempt; each later one waits twice as long.
    pub retry_seconds: u32,
    /// Seconds that a plan under way waits for an API server that is away, before it goes on without.
    pub api_patience_seconds: u32,
    /// Seconds until the host is looked at again although nothing happened.
    pub resync_seconds: NonZeroU32,
    /// Where metrics are served beside the socket; a loopback address.
    pub metrics_address: Option<LoopbackAddress>,
    /// On a control plane that carries the API's endpoint: where load balancers ask whether to lead calls to it.
    pub endpoint_address: Option<SocketAddr>,
    /// How kubeadm is called.
    pub kubeadm: Kubeadm,
}

/// How kubeadm is called.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Kubeadm {
    /// Its checks that may fail.
    pub ignore_preflight_errors: Vec<String>,
}

/// An address only this host reaches: metrics name what runs here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "SocketAddr")]
pub struct LoopbackAddress(pub SocketAddr);

impl TryFrom<SocketAddr> for LoopbackAddress {
    type Error = String;

    fn try_from(address: SocketAddr) -> Result<Self, Self::Error> {
        if address.ip().is_loopback() {
            Ok(Self(address))
        } else {
            Err(format!("{address} is not a loopback address such as 127.0.0.1:9754"))
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: None,
            kubeconfig: "/etc/kubernetes/kubelet.conf".into(),
            // With the delays below some two minutes of trying: longer than a mirror's hiccup or a busy dpkg.
            attempts: 5,
            retry_seconds: 10,
            // An API server's restart takes 10 to 20 s; one that stays away longer may need this very plan.
            api_patience_seconds: 45,
            // Only a net below the watch: drift by hand is seen within the hour.
            resync_seconds: const { NonZeroU32::new(3600).unwrap() },
            metrics_address: None,
            endpoint_address: None,
            kubeadm: Kubeadm::default(),
        }
    }
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It says something it may not say.
    #[error("{}{}: {field}{why}", .path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line.
        line: Option<usize>,
        /// The field and `: `, or nothing for the document as a whole.
        field: String,
        /// What is wrong.
        why: String,
    },
}

/// All that is configured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `config.yaml`.
    pub config: Config,
    /// `metadata.yaml`; none on a host that somebody else set up.
    pub metadata: Option<Metadata>,
    /// What was delivered.
    pub contents: Contents,
}

impl Settings {
    /// Reads everything in a directory.
    pub fn read(directory: &Path) -> Result<Self, ConfigError> {
        let config: Config = read(&directory.join("config.yaml"))?.unwrap_or_default();
        let metadata: Option<Metadata> = read(&directory.join("metadata.yaml"))?;
        let mut further = Vec::new();
        for path in list(&directory.join("configuration.d"))? {
            if let Some(configuration) = read::<Configuration>(&path)? {
                further.push(configuration);
            }
        }
        let contents = Contents::new(metadata.as_ref(), further);
        Ok(Self { config, metadata, contents })
    }
}

/// The YAML files of a directory, in order; none if it is not there.
fn list(directory: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads a YAML file; none if it is not there.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ConfigError> {
    match fs::read_to_string(path) {
        Ok(text) => parse(path, &text).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Unreadable { path: path.to_owned(), source }),
    }
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    let document = serde_yaml::Deserializer::from_str(text);
    serde_path_to_error::deserialize(document).map_err(|error| {
        let field = match error.path().to_string().as_str() {
            "." => String::new(),
            field => format!("{field}: "),
        };
        let cause = error.inner();
        let line = cause.location().map(|location| location.line());
        // The parser repeats field and place; both stand before it already.
        let text = cause.to_string();
        let why = text.split(" at line ").next().unwrap_or_default();
        let path_of_parser = why.split(": ").next().unwrap_or_default();
        let repeats = !path_of_parser.is_empty() && error.path().to_string().starts_with(path_of_parser);
        let why = why.split_once(": ").filter(|_| repeats).map_or(why, |(_, rest)| rest).to_owned();
        ConfigError::Invalid { path: path.to_owned(), line, field, why }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn error(file: &str, text: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("configuration.d")).unwrap();
        fs::write(directory.path().join(file), text).unwrap();
        let error = Settings::read(directory.path()).unwrap_err().to_string();
        error.replace(&format!("{}/", directory.path().display()), "")
    }

    #[test]
    fn nothing_there_means_defaults() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::read(directory.path()).unwrap();
        assert_eq!(settings.config, Config::default());
        assert!(settings.metadata.is_none());
    }

    #[test]
    fn an_error_names_file_line_and_field() {
        const HEAD: &str = "apiVersion: infrop.caos.ch/v1alpha1\nkind: NodeMetadata\nnode: w1\n";
        for (file, text, expected) in [
            ("config.yaml", "attempts: many\n", "config.yaml:1: attempts: "),
            ("config.yaml", "attempts: 3\natempts: 3\n", "config.yaml:2: "),
            (
                "config.yaml",
                "metricsAddress: 0.0.0.0:80\n",
                "config.yaml:1: metricsAddress: 0.0.0.0:80 is not a loopback",
            ),
            (
                "config.yaml",
                "kubeadm:\n  ignorePreflightErrors: x\n",
                "config.yaml:2: kubeadm.ignorePreflightErrors: ",
            ),
            ("metadata.yaml", "kind: Node\n", "metadata.yaml:1: kind: unknown variant `Node`"),
            (
                "metadata.yaml",
                &format!("{HEAD}software:\n  kubelet: 1 2\n"),
                "metadata.yaml:5: software.kubelet: \"1 2\" is not a version",
            ),
            (
                "metadata.yaml",
                &format!("{HEAD}configuration:\n  sysctl:\n    ../x: '1'\n"),
                "metadata.yaml:6: configuration.sysctl",
            ),
            (
                "metadata.yaml",
                &format!("{HEAD}configuration:\n  swop: off\n"),
                "metadata.yaml:5: configuration",
            ),
            (
                "configuration.d/a.yaml",
                "kubelet-drop-ins: []\n",
                "configuration.d/a.yaml:1: kubelet-drop-ins: ",
            ),
            ("metadata.yaml", "node: w1\n\tkind: x\n", "metadata.yaml:2: "),
        ] {
            let error = error(file, text);
            assert!(error.starts_with(expected), "{error}\n  expected {expected}");
        }
    }

    /// The names of a type's fields, from the error for a field that no type has.
    fn fields<T: DeserializeOwned + std::fmt::Debug>() -> BTreeSet<String> {
        let error = serde_json::from_str::<T>(r#"{"?": 0}"#).unwrap_err().to_string();
        let (_, expected) = error.split_once(", expected ").unwrap();
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_documented_example_has_every_field_with_its_default() {
        let document = include_str!("../../docs/usage/node-agent.md");
        let mut blocks = document.split("```yaml\n").filter_map(|rest| rest.split("```").next());
        let example = blocks.find(|block| block.starts_with("# config.yaml\n")).unwrap();
        assert_eq!(parse::<Config>(Path::new("config.yaml"), example).unwrap(), Config::default());
        let shown: BTreeMap<String, serde_json::Value> = serde_yaml::from_str(example).unwrap();
        assert_eq!(shown.keys().cloned().collect::<BTreeSet<_>>(), fields::<Config>());
        let kubeadm = shown["kubeadm"].as_object().unwrap();
        assert_eq!(kubeadm.keys().cloned().collect::<BTreeSet<_>>(), fields::<Kubeadm>());
    }
}
