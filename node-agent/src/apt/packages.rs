//! What dpkg says is installed: one call for all packages.

use std::collections::BTreeMap;

use common::state::Reason;
use program::Program;

use crate::{failure::Failure, host::Host};

/// A package that is wholly installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Its Debian version.
    pub version: String,
    /// Whether it is held, so that no ordinary upgrade moves it.
    pub held: bool,
}

/// All packages of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packages {
    installed: BTreeMap<String, Installed>,
    unfinished: Vec<String>,
}

impl Packages {
    /// Asks dpkg.
    pub async fn observe(host: &Host) -> Result<Self, Failure> {
        let program = Program::new("dpkg-query")
            .arg(format!("--admindir={}", host.path("/var/lib/dpkg").display()))
            .args(["--show", "--showformat", "${Package}\t${Version}\t${db:Status-Abbrev}\n"]);
        let text = host.insist(Reason::ObservationFailed, program).await?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut packages = Self::default();
        for line in text.lines() {
            let mut fields = line.split('\t');
            let (Some(name), Some(version), Some(status)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            // Want, status, error: `ii ` is installed, `hi ` held, `iF ` failed to configure, `rc ` removed.
            let mut letters = status.chars();
            let (want, state) = (letters.next(), letters.next());
            match state {
                Some('i') => {
                    let installed = Installed { version: version.to_owned(), held: want == Some('h') };
                    packages.installed.insert(name.to_owned(), installed);
                }
                Some('n' | 'c') => {}
                _ => packages.unfinished.push(name.to_owned()),
            }
        }
        packages
    }

    /// A package, if it is wholly installed.
    pub fn get(&self, name: &str) -> Option<&Installed> {
        self.installed.get(name)
    }

    /// Packages that an interrupted or failed run left half done.
    pub fn unfinished(&self) -> &[String] {
        &self.unfinished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wholly_installed_counts() {
        let text = "kubelet\t1.36.4-1.1\thi \ncurl\t7.88\tii \nkubectl\t1.37.1-1.1\tiF \n\
            old\t1\trc \nhalf\t2\tiU \nbroken\t3\tiHR\n";
        let packages = Packages::parse(text);
        assert_eq!(packages.get("kubelet"), Some(&Installed { version: "1.36.4-1.1".into(), held: true }));
        assert!(!packages.get("curl").unwrap().held);
        assert!(packages.get("kubectl").is_none() && packages.get("old").is_none());
        assert_eq!(packages.unfinished(), ["kubectl", "half", "broken"]);
    }
}
