//! The initial metadata: what infrop gives a host before there is a Node to write on.
//!
//! Kept as `/etc/node-agent/metadata.yaml`. Versions of packages are named; a configuration stands there as its
//! content, and its version is the content's hash.

mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::text::{
    DropInName, IronicNode, KernelModule, NodeName, Sha256Text, SysctlKey, SysctlValue, Template, TextError,
    Word,
};
use crate::{
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

/// A package repository with its own key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Key {
    /// As armoured text.
    Key(String),
    /// As a file on the host.
    KeyFile(Template),
}

/// Makes a field of each software that is a content.
macro_rules! configuration {
    ({ $($fields:tt)* } $(#[$attribute:meta])* $name:ident: $disruption:ident, Content($content:ty); $($more:tt)*) => {
        configuration! {
            {
                $($fields)*
                $(#[$attribute])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $name: Option<$content>,
            }
            $($more)*
        }
    };
    ({ $($fields:tt)* } $(#[$attribute:meta])* $name:ident: $disruption:ident, $source:ident; $($more:tt)*) => {
        configuration! { { $($fields)* } $($more)* }
    };
    ({ $($fields:tt)* }) => {
        /// Contents, each a software whose version is the content's hash.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct Configuration {
            $($fields)*
        }
    };
    ($($lines:tt)*) => {
        configuration! { {} $($lines)* }
    };
}

crate::for_every_software!(configuration);

/// The host's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Hostname {
    /// The name.
    pub name: NodeName,
    /// The address it stands beside in `/etc/hosts`.
    pub address: IpAddr,
}

/// An image in a file on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Swap {
    /// No swap now or after a boot.
    Off,
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
    use crate::{
        KubernetesVersion,
        catalogue::{self, Source},
    };

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
        let document = include_str!("../../../docs/usage/node-agent.md");
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
            configuration,
        } = metadata
        else {
            panic!("a field is missing")
        };
        assert!(!software.is_empty());
        let contents = configuration.versions().unwrap().into_keys().map(String::from).collect();
        assert_eq!(catalogue::names_of(Source::Content), contents);
        assert!(repositories.iter().any(|one| matches!(one.key, Key::Key(_)) && !one.components.is_empty()));
        assert!(repositories.iter().any(|one| matches!(one.key, Key::KeyFile(_))));
    }

    #[test]
    fn the_documented_hashes_are_right() {
        let document = include_str!("../../../docs/usage/annotations.md");
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
