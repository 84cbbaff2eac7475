//! A plan: the versions a permit is for, and the short hash that names it.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::software::{SoftwareName, SoftwareVersion, hexadecimal};

/// 48 bits of sha256: a node sees few plans, and both sides compute the hash from the same annotations.
const ID_DIGITS: usize = 12;

/// No host has this much software under care; more is an attack or an accident.
pub const SOFTWARE_LIMIT: usize = 64;

/// The versions to reach. A requested reboot is a version of the software `reboot`, so it is part of the hash
/// like any other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    /// The version of each software.
    pub desired: BTreeMap<SoftwareName, SoftwareVersion>,
}

/// The short hash of a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PlanId(String);

/// A text that is no plan's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a plan's hash has {ID_DIGITS} digits of 0-9 and a-f")]
pub struct PlanIdError;

impl Plan {
    /// The plan with these versions.
    pub fn new(desired: BTreeMap<SoftwareName, SoftwareVersion>) -> Self {
        Self { desired }
    }

    /// Its short hash. Names and versions have neither `=` nor line ends, so two plans never read the same.
    pub fn id(&self) -> PlanId {
        let text: String = self.desired.iter().map(|(name, version)| format!("{name}={version}\n")).collect();
        PlanId(hexadecimal(text.as_bytes(), ID_DIGITS))
    }
}

impl PlanId {
    /// The hash as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PlanId {
    type Err = PlanIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if text.len() == ID_DIGITS && text.chars().all(digit) {
            Ok(Self(text.to_owned()))
        } else {
            Err(PlanIdError)
        }
    }
}

impl TryFrom<String> for PlanId {
    type Error = PlanIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PlanId> for String {
    fn from(id: PlanId) -> Self {
        id.0
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(versions: &[(&str, &str)]) -> Plan {
        Plan::new(
            versions
                .iter()
                .map(|(name, version)| (name.parse().unwrap(), version.parse().unwrap()))
                .collect(),
        )
    }

    #[test]
    fn the_hash_is_of_all_versions_in_any_order() {
        let one = plan(&[("kubelet", "1.37.1"), ("containerd", "2.4.2")]);
        assert_eq!(one.id(), plan(&[("containerd", "2.4.2"), ("kubelet", "1.37.1")]).id());
        assert_ne!(one.id(), plan(&[("containerd", "2.4.2")]).id());
        assert_ne!(one.id(), plan(&[("containerd", "1.37.1"), ("kubelet", "2.4.2")]).id());
        assert_eq!(one.id().as_str().parse(), Ok(one.id()));
    }

    #[test]
    fn the_hash_is_the_same_in_every_release() {
        // infrop and node-agent of different releases meet: this value must never change.
        assert_eq!(plan(&[("kubelet", "1.37.1")]).id().as_str(), "e7f3a664afe9");
    }

    #[test]
    fn other_texts_are_no_hash() {
        for text in ["", "abc", "ABCDEF012345", "abcdef01234g", "abcdef0123456"] {
            assert!(text.parse::<PlanId>().is_err(), "{text}");
        }
    }
}
