//! The kernel: the distribution's package, and the reboot into it.

use common::software::SoftwareVersion;
use futures::future::BoxFuture;

use super::{Look, Observed, Software, Task};
use crate::{
    apt::{self, Wanted},
    failure::Failure,
};

/// The package that always stands for the newest kernel of the release.
const PACKAGE: &str = if cfg!(target_arch = "aarch64") { "linux-image-arm64" } else { "linux-image-amd64" };

pub(super) const SOFTWARE: Kernel = Kernel;

#[derive(Debug)]
pub(super) struct Kernel;

/// The package version of the running kernel, which Debian writes into its build text: `… Debian 6.1.153-1 (…)`.
fn running(text: &str) -> Option<SoftwareVersion> {
    let (_, rest) = text.split_once(" Debian ")?;
    rest.split_whitespace().next()?.parse().ok()
}

impl Software for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        let Some(installed) = look.facts.packages.get(PACKAGE) else { return Ok(Observed::now(None)) };
        Ok(Observed {
            version: running(&look.host.read("/proc/version")?.unwrap_or_default()),
            after_reboot: installed.version.parse().ok(),
            stale: !installed.held,
        })
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            apt::install(task.host, &task.sources(), PACKAGE, Wanted::Exact(version.as_str())).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake::FakeHost, software::testing::Bench};

    #[tokio::test]
    async fn the_version_is_that_of_the_running_kernel_and_a_newer_package_needs_a_reboot() {
        let mut bench = Bench::new(FakeHost::new(|_| Ok(format!("{PACKAGE}\t6.1.153-1\thi \n"))));
        bench.facts.packages = apt::Packages::observe(&bench.fake.host).await.unwrap();
        let build = |version: &str| {
            format!("Linux version 6.1.0-37-amd64 (x) #1 SMP Debian {version} (2025-05-22)\n")
        };
        let desired = "6.1.153-1".parse().unwrap();
        bench.fake.write("/proc/version", &build("6.1.140-1"));
        let observed = bench.observe(&Kernel);
        assert_eq!(observed.version.as_ref().unwrap().as_str(), "6.1.140-1");
        assert!(!observed.needs_change(&desired) && observed.needs_reboot(&desired));
        bench.fake.write("/proc/version", &build("6.1.153-1"));
        let observed = bench.observe(&Kernel);
        assert!(!observed.needs_change(&desired) && !observed.needs_reboot(&desired));
    }
}
