//! Names and versions of software, as they stand in annotations: text from outside, so both are narrow.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::checked_text;

/// A name is part of an annotation's key, whose prefix may have 253 characters in labels of 63.
const NAME_LIMIT: usize = 63;

/// Longer than any Debian version or hash, and short enough for a table.
const VERSION_LIMIT: usize = 128;

/// Of a content's sha256, 64 bits: enough to tell the handful of contents a host ever sees apart.
const HASH_DIGITS: usize = 16;

/// What a content's version starts with.
const HASH_PREFIX: &str = "sha256:";

/// The name of a software: `kubelet`, `containerd-config`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "software-name")))]
#[serde(try_from = "String", into = "String")]
pub struct SoftwareName(String);

/// The version of a software, compared as exact text: `1.37.1`, `1:2.2.7-1+b2`, `sha256:0123456789abcdef`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline, extend("format" = "software-version")))]
#[serde(try_from = "String", into = "String")]
pub struct SoftwareVersion(String);

/// A text that is no name or version of a software.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SoftwareError {
    /// No name.
    #[error(
        "{} is not a software's name: up to {NAME_LIMIT} of a-z, 0-9 and -, beginning and ending with a letter or digit",
        shown(.0)
    )]
    Name(String),
    /// No version.
    #[error("{} is not a version: up to {VERSION_LIMIT} of A-Z, a-z, 0-9 and . + ~ : _ -", shown(.0))]
    Version(String),
}

/// The start of a text from outside, harmless in a log.
fn shown(text: &str) -> String {
    const SHOWN: usize = 40;
    let mut start: String = text.chars().take(SHOWN).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    format!("{start:?}")
}

impl SoftwareVersion {
    /// The version of a content: a hash of its canonical JSON.
    pub fn of_content(content: &impl Serialize) -> Result<Self, serde_json::Error> {
        let mut text = String::new();
        write_canonical(&serde_json::to_value(content)?, &mut text);
        Ok(Self(format!("{HASH_PREFIX}{}", hexadecimal(text.as_bytes(), HASH_DIGITS))))
    }
}

/// JSON with sorted keys and no white space, however the JSON library is built: the same content must be the same
/// text on every host.
fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            text.push('{');
            for (key, value) in sorted {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write_canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(values) => {
            text.push('[');
            for value in values {
                write_canonical(value, text);
                text.push(',');
            }
            text.push(']');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

/// The first digits of a text's sha256.
pub(crate) fn hexadecimal(text: &[u8], digits: usize) -> String {
    let mut hash: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    hash.truncate(digits);
    hash
}

fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty()
        && text.len() <= NAME_LIMIT
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_version(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".+~:_-".contains(c);
    // A leading - would read as an option of a program.
    !text.is_empty() && text.len() <= VERSION_LIMIT && text.chars().all(allowed) && !text.starts_with('-')
}

checked_text!(SoftwareName, SoftwareError::Name, is_name);
checked_text!(SoftwareVersion, SoftwareError::Version, is_version);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_are_narrow() {
        for good in ["kubelet", "containerd-config", "a", "x2"] {
            assert_eq!(good.parse::<SoftwareName>().unwrap().as_str(), good);
        }
        let long = "a".repeat(64);
        for bad in ["", "-a", "a-", "Kubelet", "a.b", "a b", "a/b", "ä", "a\n", long.as_str()] {
            assert!(bad.parse::<SoftwareName>().is_err(), "{bad:?}");
        }
        for good in ["1.37.1", "1:2.2.7-1+b2", "6.1.153-1~bpo12", "sha256:00ff"] {
            assert_eq!(good.parse::<SoftwareVersion>().unwrap().as_str(), good);
        }
        let long = "1".repeat(129);
        for bad in ["", "--help", "1 2", "1\n", "1;reboot", "$(x)", "\u{1b}[0m", "1=2", long.as_str()] {
            assert!(bad.parse::<SoftwareVersion>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_error_never_repeats_much_of_the_text_or_its_control_characters() {
        let error = "\u{1b}".repeat(200_000).parse::<SoftwareVersion>().unwrap_err().to_string();
        assert!(error.len() < 500 && !error.contains('\u{1b}'), "{error}");
    }

    #[test]
    fn a_contents_version_does_not_depend_on_the_order_of_fields_and_never_changes() {
        let content = serde_json::json!({ "b": ["x", 1, null], "a": { "d": true, "c": "\"" } });
        let other = serde_json::json!({ "a": { "c": "\"", "d": true }, "b": ["x", 1, null] });
        let version = SoftwareVersion::of_content(&content).unwrap();
        assert_eq!(version, SoftwareVersion::of_content(&other).unwrap());
        // infrop and node-agent of different releases compare these.
        assert_eq!(version.as_str(), "sha256:a73cdb425265cd0a");
    }

    #[test]
    fn the_same_content_has_the_same_version_and_another_another() {
        let one = SoftwareVersion::of_content(&[("a", 1)]).unwrap();
        assert_eq!(one, SoftwareVersion::of_content(&[("a", 1)]).unwrap());
        assert_ne!(one, SoftwareVersion::of_content(&[("a", 2)]).unwrap());
        assert_eq!(one.as_str().len(), HASH_PREFIX.len() + HASH_DIGITS);
        assert_eq!(one.as_str().parse::<SoftwareVersion>().unwrap(), one);
    }
}
