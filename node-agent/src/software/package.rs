//! Software that is one Debian package.

use common::software::SoftwareVersion;
use futures::future::BoxFuture;

use super::{Look, Observed, Software, Task};
use crate::{
    apt::{self, Wanted},
    failure::Failure,
};

/// A package, perhaps with a service.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) apt_name: &'static str,
    pub(crate) scheme: Scheme,
    pub(crate) unit: Option<&'static str>,
}

/// How a version of the software names a version of the package.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scheme {
    /// `1.37.1` for any build of that release, as Kubernetes itself speaks.
    Upstream,
    /// `2.2.7-1+b2` and no other: a distribution's builds differ in what they fix.
    Exact,
}

impl Software for Package {
    fn name(&self) -> &'static str {
        self.name
    }

    fn unit(&self) -> Option<&'static str> {
        self.unit
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        let Some(installed) = look.facts.packages.get(self.apt_name) else { return Ok(Observed::now(None)) };
        let version = match self.scheme {
            Scheme::Upstream => apt::upstream(&installed.version),
            Scheme::Exact => &installed.version,
        };
        // A version dpkg accepts and we do not cannot be asked for, so it counts as none of ours.
        let mut observed = Observed::now(version.parse().ok());
        if self.unit.is_some_and(|unit| look.facts.runs_old_program(unit)) {
            // Which version it is that still runs, nobody can tell.
            observed.version = None;
            observed.stale = true;
        }
        // A package that is not held moves with the next upgrade of the system: not what was asked for.
        observed.stale |= !installed.held;
        Ok(observed)
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let wanted = match self.scheme {
                Scheme::Upstream => Wanted::Upstream(version.as_str()),
                Scheme::Exact => Wanted::Exact(version.as_str()),
            };
            match task.facts.packages.get(self.apt_name).filter(|installed| wanted.is(&installed.version)) {
                Some(installed) if installed.held => {}
                // Nothing about it changes, so nothing restarts.
                Some(installed) => return apt::hold(task.host, self.apt_name, &installed.version).await,
                None => {
                    apt::install(task.host, &task.sources(), self.apt_name, wanted).await?;
                }
            }
            match self.unit {
                Some(unit) if task.runs(unit) => {
                    task.host.systemctl(&["daemon-reload"]).await?;
                    task.host.systemctl(&["restart", unit]).await
                }
                // systemd was told of a new one by its package, and each time it is told it runs all its generators.
                _ => Ok(()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake::FakeHost,
        observe::{Service, ServiceState},
        software::{containerd::SOFTWARE as CONTAINERD, kubectl::SOFTWARE as KUBECTL, testing::Bench},
    };

    async fn bench(line: &'static str) -> Bench {
        let fake = FakeHost::new(move |command| {
            Ok(match command {
                _ if command.starts_with("dpkg-query") => line.to_owned(),
                _ if command.starts_with("apt-cache") => "containerd | 2.4.2-1.1 | x\n".to_owned(),
                _ => String::new(),
            })
        });
        let mut bench = Bench::new(fake);
        bench.facts.packages = crate::apt::Packages::observe(&bench.fake.host).await.unwrap();
        bench
    }

    fn version(text: &str) -> SoftwareVersion {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn the_version_is_what_dpkg_has_installed() {
        for (line, expected) in [
            ("kubectl\t1.36.4-1.1\thi ", Observed::now(Some(version("1.36.4")))),
            ("kubectl\t1.36.4-1.1\tiF ", Observed::now(None)),
            ("other\t1\tii ", Observed::now(None)),
            ("kubectl\t1.36.4-1.1\tii ", Observed { stale: true, ..Observed::now(Some(version("1.36.4"))) }),
        ] {
            assert_eq!(bench(line).await.observe(&KUBECTL), expected, "{line}");
        }
    }

    #[tokio::test]
    async fn a_service_that_runs_the_old_program_is_not_done() {
        let mut bench = bench("containerd\t2.4.2-1.1\thi ").await;
        assert!(!bench.observe(&CONTAINERD).needs_change(&version("2.4.2")));
        let old = Service { state: ServiceState::Active, old_program: true };
        bench.facts.services.insert("containerd.service".into(), old);
        assert!(bench.observe(&CONTAINERD).needs_change(&version("2.4.2")));
        bench.ensure(&CONTAINERD, &version("2.4.2")).await.unwrap();
        let commands = bench.fake.commands();
        // Only the restart was missing.
        assert_eq!(commands[1..], ["systemctl daemon-reload", "systemctl restart containerd.service"]);
    }

    #[tokio::test]
    async fn a_package_that_only_lost_its_hold_gets_it_back_without_a_restart() {
        let mut bench = bench("containerd\t2.4.2-1.1\tii ").await;
        bench.start("containerd.service");
        bench.ensure(&CONTAINERD, &version("2.4.2")).await.unwrap();
        assert_eq!(bench.fake.commands()[1..], ["apt-mark hold containerd"]);
    }

    #[tokio::test]
    async fn another_version_is_installed() {
        let bench = bench("containerd\t2.3.3-1.1\thi ").await;
        bench.ensure(&CONTAINERD, &version("2.4.2")).await.unwrap();
        let commands = bench.fake.commands();
        assert!(commands.iter().any(|command| command.ends_with("containerd=2.4.2-1.1")));
        // Its service did not run.
        assert!(!commands.iter().any(|command| command.starts_with("systemctl")), "{commands:?}");
    }
}
