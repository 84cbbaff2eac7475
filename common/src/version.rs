//! Kubernetes versions as infrop writes and compares them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A released Kubernetes version such as `1.37.1`.
///
/// Written with or without the leading `v`; always three numbers, because a package, an image tag and a
/// kubelet's report all name a patch release.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(with = "String", inline, extend("format" = "kubernetes-version")))]
#[serde(try_from = "String", into = "String")]
pub struct KubernetesVersion(semver::Version);

/// The text is no released Kubernetes version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a Kubernetes version: write a release as major.minor.patch, for example 1.37.1")]
pub struct KubernetesVersionError {
    text: String,
}

impl KubernetesVersion {
    /// The minor version: 37 of 1.37.1.
    pub fn minor(&self) -> u64 {
        self.0.minor
    }

    /// The patch version: 1 of 1.37.1.
    pub fn patch(&self) -> u64 {
        self.0.patch
    }

    /// The release's tag and image tag: `v1.37.1`.
    pub fn tag(&self) -> String {
        format!("v{self}")
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for KubernetesVersion {
    type Err = KubernetesVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || KubernetesVersionError { text: text.to_owned() };
        let version = semver::Version::parse(text.strip_prefix('v').unwrap_or(text)).map_err(|_| error())?;
        // There is one major version, and pre-releases are neither packaged nor supported by skew rules.
        if version.major != 1 || !version.pre.is_empty() || !version.build.is_empty() {
            return Err(error());
        }
        Ok(Self(version))
    }
}

impl TryFrom<String> for KubernetesVersion {
    type Error = KubernetesVersionError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<KubernetesVersion> for String {
    fn from(version: KubernetesVersion) -> Self {
        version.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_parse_with_and_without_v() {
        for (text, minor, patch) in [("1.36.4", 36, 4), ("v1.37.1", 37, 1), ("1.100.0", 100, 0)] {
            let version: KubernetesVersion = text.parse().unwrap();
            assert_eq!((version.minor(), version.patch()), (minor, patch));
            assert_eq!(version.to_string(), text.trim_start_matches('v'));
            assert_eq!(version.tag(), format!("v{}", text.trim_start_matches('v')));
        }
    }

    #[test]
    fn anything_else_is_refused_and_named() {
        for text in [
            "",
            "1",
            "1.36",
            "2.0.0",
            "1.36.x",
            "1.37.0-rc.1",
            "1.37.1+x",
            "vv1.36.4",
            " 1.36.4",
            "../1.36.4",
        ] {
            let error = text.parse::<KubernetesVersion>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("{text:?} is not")), "{error}");
        }
    }

    #[test]
    fn order_is_by_number_not_by_text() {
        let parse = |text: &str| text.parse::<KubernetesVersion>().unwrap();
        assert!(parse("1.9.0") < parse("1.36.4"));
        assert!(parse("1.36.4") < parse("1.36.10"));
    }

    #[test]
    fn json_is_the_plain_text() {
        let version: KubernetesVersion = serde_json::from_str("\"1.36.4\"").unwrap();
        assert_eq!(serde_json::to_string(&version).unwrap(), "\"1.36.4\"");
        assert!(serde_json::from_str::<KubernetesVersion>("\"1.36\"").is_err());
    }
}
