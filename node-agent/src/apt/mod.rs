//! Debian packages: what is installed, from where it comes, and installing exactly one version.

mod install;
mod packages;
mod repositories;

pub use self::{
    install::{Sources, Wanted, hold, install},
    packages::{Installed, Packages},
};

/// The version without epoch and Debian revision: `2.2.7` of `1:2.2.7-1+b2`.
pub fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version.rsplit_once('-').map_or(version, |(upstream, _)| upstream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_versions() {
        for (version, expected) in [
            ("1.37.1-1.1", "1.37.1"),
            ("1:2.2.7-1+b2", "2.2.7"),
            ("2.4.2", "2.4.2"),
            ("1.0-rc1-2", "1.0-rc1"),
        ] {
            assert_eq!(upstream(version), expected);
        }
    }
}
