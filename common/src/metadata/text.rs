//! Texts of the metadata that become file names, lines of files, arguments or parts of URLs: each allows only what
//! cannot be anything else there.

use serde::{Deserialize, Serialize};

use crate::{KubernetesVersion, annotations, checked_text};

/// The name of a Kubernetes Node, also the host's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "node-name")))]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

/// The UUID of an Ironic node: it becomes part of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IronicNode(String);

/// One word of an apt source: no white space, no control characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "word")))]
#[serde(try_from = "String", into = "String")]
pub struct Word(String);

/// A word in which `{kubernetes}` stands for the Kubernetes version and `{kubernetesMinor}` for its first two
/// numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "template")))]
#[serde(try_from = "String", into = "String")]
pub struct Template(String);

/// The name of a kernel module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "kernel-module")))]
#[serde(try_from = "String", into = "String")]
pub struct KernelModule(String);

/// The file name of a unit's drop-in: `20-name.conf`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "drop-in-name")))]
#[serde(try_from = "String", into = "String")]
pub struct DropInName(String);

/// The name of a kernel setting: `net.ipv4.ip_forward`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "sysctl-key")))]
#[serde(try_from = "String", into = "String")]
pub struct SysctlKey(String);

/// The value of a kernel setting, one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "sysctl-value")))]
#[serde(try_from = "String", into = "String")]
pub struct SysctlValue(String);

/// A sha256 in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "sha256")))]
#[serde(try_from = "String", into = "String")]
pub struct Sha256Text(String);

/// A text that a field does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct TextError {
    text: String,
    expected: &'static str,
}

impl TextError {
    /// Of a text that is not what was expected.
    fn expecting(expected: &'static str) -> impl Fn(String) -> Self {
        move |text| Self { text: annotations::shorten(&text), expected }
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn consists_of(text: &str, others: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

checked_text!(
    NodeName,
    TextError::expecting("a node's name: labels of a-z, 0-9 and -, separated by dots, up to 253 characters"),
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
checked_text!(IronicNode, TextError::expecting("a UUID"), |text| {
    text.len() == 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
});
checked_text!(Word, TextError::expecting("one word without white space"), is_word);
checked_text!(
    Template,
    TextError::expecting(
        "one word without white space, with no other braces than {kubernetes} and {kubernetesMinor}"
    ),
    |text| {
        let rest = text.replace(KUBERNETES, "").replace(KUBERNETES_MINOR, "");
        is_word(text) && !rest.contains(['{', '}'])
    }
);
checked_text!(KernelModule, TextError::expecting("a kernel module's name"), |text| {
    consists_of(text, "_-") && !text.starts_with('-')
});
checked_text!(DropInName, TextError::expecting("a drop-in's file name such as 20-name.conf"), |text| {
    consists_of(text, "_-.") && !text.starts_with(['.', '-']) && text.strip_suffix(".conf").is_some()
});
checked_text!(
    SysctlKey,
    TextError::expecting("a kernel setting's name such as net.ipv4.ip_forward"),
    |text| {
        consists_of(text, "_-.") && text.split('.').all(|part| !part.is_empty()) && !text.starts_with('-')
    }
);
checked_text!(SysctlValue, TextError::expecting("a value of one line"), |text| {
    !text.trim().is_empty() && !text.contains(|c: char| c.is_control() && c != '\t')
});
checked_text!(Sha256Text, TextError::expecting("a sha256 of 64 digits of 0-9 and a-f"), |text| {
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
