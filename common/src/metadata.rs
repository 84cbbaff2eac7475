//! The initial metadata: what infrop gives a host before there is a Node to write on.
//!
//! Kept as `/etc/node-agent/metadata.yaml`. Versions of packages are named; a configuration stands there as its
//! content, and its version is the content's hash.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    KubernetesVersion,
    plan::{Plan, PlanId},
    software::{SoftwareName, SoftwareVersion},
};

/// The document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Metadata {
    /// The form of this document.
    pub api_version: ApiVersion,
    /// What it is.
    pub kind: Kind,
    /// The name of the host's Kubernetes Node.
    pub node: NodeName,
    /// Who hears that the host is initialized, beside the mark file on the host itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ironic: Option<Ironic>,
    /// Versions of packages to reach before the host joins a cluster.
    #[serde(default)]
    pub software: BTreeMap<SoftwareName, SoftwareVersion>,
    /// Where packages come from.
    #[serde(default)]
    pub repositories: Vec<Repository>,
    /// Where container images come from, if not from a registry: a bundle's directory. `{kubernetes}` stands for
    /// the Kubernetes version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<Template>,
    /// Contents the host is to have.
    #[serde(default)]
    pub configuration: Configuration,
}

/// What an agent tells the provider when the host has reached its metadata's plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializedMark {
    /// The Node's name.
    pub node: NodeName,
    /// The metadata's plan.
    pub plan: PlanId,
    /// When.
    pub at: Timestamp,
    /// In which boot.
    pub boot_id: String,
    /// By which agent.
    pub agent_version: String,
}

/// The form of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApiVersion {
    /// The only one so far.
    #[serde(rename = "infrop.caos.ch/v1alpha1")]
    V1Alpha1,
}

/// What the document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Initial metadata of a node.
    NodeMetadata,
}

/// The name of a Kubernetes Node, also the host's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

/// An Ironic node that the agent may mark by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Ironic {
    /// The API, for example `https://ironic.example:6385`.
    pub url: String,
    /// The node's UUID.
    pub node: IronicNode,
    /// A file on the host with `user:password` (HTTP basic) or a token of Keystone, readable by root only.
    pub credential_file: PathBuf,
    /// What the file holds.
    #[serde(default)]
    pub credential: CredentialKind,
    /// The CA that signed the API's certificate, if the host does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// How the agent shows who it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CredentialKind {
    /// `user:password`.
    #[default]
    Basic,
    /// A token, sent as `X-Auth-Token`.
    Token,
}

/// The UUID of an Ironic node: it becomes part of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IronicNode(String);

/// A package repository with its own key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Repository {
    /// Names its files on the host.
    pub name: SoftwareName,
    /// Where it is: `https://…` or `file:/…`.
    pub uri: Template,
    /// The suite; `./` for a flat repository.
    pub suite: Template,
    /// The components; none for a flat repository.
    #[serde(default)]
    pub components: Vec<Word>,
    /// The key that signs it.
    #[serde(flatten)]
    pub key: Key,
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Key {
    /// As armoured text.
    Key(String),
    /// As a file on the host.
    KeyFile(Template),
}

/// One word of an apt source: no white space, no control characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Word(String);

/// A word in which `{kubernetes}` stands for the Kubernetes version and `{kubernetesMinor}` for its first two
/// numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template(String);

/// Contents, each a software whose version is the content's hash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Configuration {
    /// `/etc/containerd/config.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containerd_config: Option<String>,
    /// `/etc/haproxy/haproxy.cfg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub haproxy_config: Option<String>,
    /// The host's name and its line in `/etc/hosts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Hostname>,
    /// Container images, imported ahead of use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<Vec<ImageArchive>>,
    /// `/etc/keepalived/keepalived.conf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keepalived_config: Option<String>,
    /// Kernel modules that are loaded, now and at every boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_modules: Option<BTreeSet<KernelModule>>,
    /// Drop-ins of the kubelet's unit by file name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_drop_ins: Option<BTreeMap<DropInName, String>>,
    /// Whether the host may swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<Swap>,
    /// Kernel settings by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysctl: Option<BTreeMap<SysctlKey, SysctlValue>>,
}

/// The host's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Hostname {
    /// The name.
    pub name: NodeName,
    /// The address it stands beside in `/etc/hosts`.
    pub address: IpAddr,
}

/// An image in a file on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ImageArchive {
    /// The image's name as containers ask for it.
    pub name: Word,
    /// An OCI archive.
    pub file: PathBuf,
    /// The file's sha256.
    pub sha256: Sha256Text,
}

/// Whether the host may swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Swap {
    /// No swap now or after a boot.
    Off,
}

/// The name of a kernel module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KernelModule(String);

/// The file name of a unit's drop-in: `20-name.conf`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DropInName(String);

/// The name of a kernel setting: `net.ipv4.ip_forward`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SysctlKey(String);

/// The value of a kernel setting, one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SysctlValue(String);

/// A sha256 in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256Text(String);

/// A text that a field does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct TextError {
    text: String,
    expected: &'static str,
}

/// A text type that allows only what `accepts` does.
macro_rules! checked_text {
    ($type:ident, $expected:literal, $accepts:expr) => {
        impl $type {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $type {
            type Err = TextError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let accepts: fn(&str) -> bool = $accepts;
                if accepts(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(TextError { text: crate::annotations::shorten(text), expected: $expected })
                }
            }
        }

        impl TryFrom<String> for $type {
            type Error = TextError;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn consists_of(text: &str, others: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

checked_text!(
    NodeName,
    "a node's name: labels of a-z, 0-9 and -, separated by dots, up to 253 characters",
    |text| {
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        text.len() <= 253 && text.split('.').all(label)
    }
);
checked_text!(IronicNode, "a UUID", |text| {
    text.len() == 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
});
checked_text!(Word, "one word without white space", is_word);
checked_text!(
    Template,
    "one word without white space, with no other braces than {kubernetes} and {kubernetesMinor}",
    |text| {
        let rest = text.replace(KUBERNETES, "").replace(KUBERNETES_MINOR, "");
        is_word(text) && !rest.contains(['{', '}'])
    }
);
checked_text!(KernelModule, "a kernel module's name", |text| {
    consists_of(text, "_-") && !text.starts_with('-')
});
checked_text!(DropInName, "a drop-in's file name such as 20-name.conf", |text| {
    consists_of(text, "_-.") && !text.starts_with(['.', '-']) && text.strip_suffix(".conf").is_some()
});
checked_text!(SysctlKey, "a kernel setting's name such as net.ipv4.ip_forward", |text| {
    consists_of(text, "_-.") && text.split('.').all(|part| !part.is_empty()) && !text.starts_with('-')
});
checked_text!(SysctlValue, "a value of one line", |text| {
    !text.trim().is_empty() && !text.contains(|c: char| c.is_control() && c != '\t')
});
checked_text!(Sha256Text, "a sha256 of 64 digits of 0-9 and a-f", |text| {
    text.len() == 64 && text.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
});

const KUBERNETES: &str = "{kubernetes}";
const KUBERNETES_MINOR: &str = "{kubernetesMinor}";

impl Template {
    /// The text for a Kubernetes version; none if it needs one and there is none.
    pub fn render(&self, kubernetes: Option<&KubernetesVersion>) -> Option<String> {
        match kubernetes {
            Some(version) => Some(
                self.0
                    .replace(KUBERNETES, &version.to_string())
                    .replace(KUBERNETES_MINOR, &format!("1.{}", version.minor())),
            ),
            None => (!self.0.contains('{')).then(|| self.0.clone()),
        }
    }
}

impl Configuration {
    /// The version of each content that is there.
    pub fn versions(&self) -> Result<BTreeMap<SoftwareName, SoftwareVersion>, serde_json::Error> {
        // Every content is a field, and its key is the software's name.
        let serde_json::Value::Object(contents) = serde_json::to_value(self)? else {
            return Ok(BTreeMap::new());
        };
        let mut versions = BTreeMap::new();
        for (name, content) in contents {
            if let Ok(name) = name.parse() {
                versions.insert(name, SoftwareVersion::of_content(&content)?);
            }
        }
        Ok(versions)
    }
}

impl Metadata {
    /// The versions to reach before the host joins: of packages as named, of contents by hash.
    pub fn plan(&self) -> Result<Plan, serde_json::Error> {
        let mut desired = self.configuration.versions()?;
        desired.extend(self.software.clone());
        Ok(Plan::new(desired))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
apiVersion: infrop.caos.ch/v1alpha1
kind: NodeMetadata
node: w1
software: { kubelet: 1.36.4, containerd: 2.3.3 }
repositories:
- name: kubernetes
  uri: file:/bundles/{kubernetes}/apt
  suite: ./
  keyFile: /bundles/{kubernetes}/apt/repository.asc
bundle: /bundles/{kubernetes}
configuration:
  sysctl: { net.ipv4.ip_forward: '1' }
  kernel-modules: [overlay]
  swap: off
  hostname: { name: w1, address: 10.0.0.1 }
  kubelet-drop-ins: { 20-x.conf: '[Service]' }
";

    fn sample() -> Metadata {
        serde_yaml::from_str(SAMPLE).unwrap()
    }

    #[test]
    fn a_document_is_a_plan_of_packages_and_contents() {
        let plan = sample().plan().unwrap();
        let names: Vec<&str> = plan.desired.keys().map(SoftwareName::as_str).collect();
        assert_eq!(
            names,
            ["containerd", "hostname", "kernel-modules", "kubelet", "kubelet-drop-ins", "swap", "sysctl"]
        );
        let other: Metadata = serde_yaml::from_str(&SAMPLE.replace("'1'", "'0'")).unwrap();
        assert_ne!(other.plan().unwrap().id(), plan.id());
        let same: Metadata = serde_yaml::from_str(&serde_yaml::to_string(&sample()).unwrap()).unwrap();
        assert_eq!(same, sample());
    }

    #[test]
    fn templates_name_the_version() {
        let version: KubernetesVersion = "1.37.1".parse().unwrap();
        let template: Template = "https://x/v{kubernetesMinor}/{kubernetes}/".parse().unwrap();
        assert_eq!(template.render(Some(&version)).unwrap(), "https://x/v1.37/1.37.1/");
        assert_eq!(template.render(None), None);
        assert_eq!("plain".parse::<Template>().unwrap().render(None).unwrap(), "plain");
    }

    #[test]
    fn what_could_escape_its_file_or_line_is_refused() {
        for (from, to) in [
            ("kubelet: 1.36.4", "kubelet: '1 36'"),
            ("net.ipv4.ip_forward: '1'", "'../x': '1'"),
            ("'1'", "\"1\\nkernel.x = 1\""),
            ("20-x.conf", "../20-x.conf"),
            ("swap: off", "swap: maybe"),
            ("suite: ./", "suite: 'a b'"),
            ("{kubernetes}/apt\n", "{other}/apt\n"),
            ("node: w1", "node: W_1"),
            ("kind: NodeMetadata", "kind: Node"),
            ("bundle:", "bundel:"),
        ] {
            let text = SAMPLE.replacen(from, to, 1);
            assert_ne!(text, SAMPLE, "{from}");
            assert!(serde_yaml::from_str::<Metadata>(&text).is_err(), "{to}");
        }
    }

    /// The YAML block of a document that begins with the comment `# NAME`.
    fn example<'a>(document: &'a str, name: &str) -> &'a str {
        let start = format!("# {name}\n");
        let mut blocks = document.split("```yaml\n").filter_map(|rest| rest.split("```").next());
        blocks.find(|block| block.starts_with(&start)).unwrap()
    }

    #[test]
    fn the_documented_example_has_every_field() {
        let document = include_str!("../../docs/usage/node-agent.md");
        let metadata: Metadata = serde_yaml::from_str(example(document, "metadata.yaml")).unwrap();
        // Without dots: a new field has to be documented.
        let Metadata {
            api_version: ApiVersion::V1Alpha1,
            kind: Kind::NodeMetadata,
            node: _,
            ironic: Some(Ironic { url: _, node: _, credential_file: _, credential: _, ca_file: Some(_) }),
            software,
            repositories,
            bundle: Some(_),
            configuration:
                Configuration {
                    containerd_config: Some(_),
                    haproxy_config: Some(_),
                    hostname: Some(_),
                    images: Some(_),
                    keepalived_config: Some(_),
                    kernel_modules: Some(_),
                    kubelet_drop_ins: Some(_),
                    swap: Some(_),
                    sysctl: Some(_),
                },
        } = metadata
        else {
            panic!("a field is missing")
        };
        assert!(!software.is_empty());
        assert!(repositories.iter().any(|one| matches!(one.key, Key::Key(_)) && !one.components.is_empty()));
        assert!(repositories.iter().any(|one| matches!(one.key, Key::KeyFile(_))));
    }

    #[test]
    fn the_documented_hashes_are_right() {
        let document = include_str!("../../docs/usage/annotations.md");
        let content: Configuration =
            serde_yaml::from_str(example(document, "configuration.d/sysctl.yaml")).unwrap();
        let mut desired = content.versions().unwrap();
        for name in ["kubeadm", "kubelet", "kubectl"] {
            desired.insert(name.parse().unwrap(), "1.37.1".parse().unwrap());
        }
        let written = crate::annotations::write_plan(&Plan::new(desired));
        // The worked example writes just these annotations.
        for (key, value) in written {
            assert!(document.contains(&format!("{key}={value}")), "{key}={value}");
        }
    }
}
