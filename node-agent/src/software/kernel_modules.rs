//! Kernel modules, now and at every boot.

use std::collections::BTreeSet;

use common::{metadata::KernelModule, software::SoftwareVersion, state::Reason};
use futures::future::BoxFuture;
use program::Program;

use super::{Look, Observed, Software, Task, version_of_content};
use crate::{failure::Failure, host::Host};

const FILE: &str = "/etc/modules-load.d/90-node-agent.conf";

pub(super) const SOFTWARE: KernelModules = KernelModules;

#[derive(Debug)]
pub(super) struct KernelModules;

/// Whether the kernel has a module: it writes names with _ only, and shows most built-in ones there, too.
fn is_loaded(host: &Host, name: &KernelModule) -> bool {
    host.path(format!("/sys/module/{}", name.as_str().replace('-', "_"))).exists()
}

impl Software for KernelModules {
    fn name(&self) -> &'static str {
        "kernel-modules"
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        let Some(text) = look.host.read(FILE)? else { return Ok(Observed::now(None)) };
        let names: Option<BTreeSet<KernelModule>> =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| line.parse().ok()).collect();
        let Some(names) = names else { return Ok(Observed::now(None)) };
        if !names.iter().all(|name| is_loaded(look.host, name)) {
            return Ok(Observed::now(None));
        }
        Ok(Observed::now(Some(version_of_content(&names)?)))
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let names = task.content(self, version, |one| one.kernel_modules.clone())?;
            let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
            task.host.write(FILE, &format!("# Written by node-agent.\n{lines}"), 0o644)?;
            // A kernel with everything built in has no modules to load, and modprobe would say so.
            let missing: Vec<&str> =
                names.iter().filter(|name| !is_loaded(task.host, name)).map(KernelModule::as_str).collect();
            if missing.is_empty() {
                return Ok(());
            }
            let program = Program::new("modprobe").arg("--all").args(missing);
            task.host.insist(Reason::ConfigurationFailed, program).await.map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use common::metadata::Configuration;

    use super::*;
    use crate::{host::fake::FakeHost, software::testing::Bench};

    #[tokio::test]
    async fn modules_must_be_loaded() {
        let mut bench = Bench::new(FakeHost::silent());
        let names = ["overlay", "br-netfilter"].map(|name| name.parse().unwrap()).into();
        let version = bench.deliver(
            &KernelModules,
            Configuration { kernel_modules: Some(names), ..Configuration::default() },
        );
        bench.ensure(&KernelModules, &version).await.unwrap();
        assert_eq!(bench.fake.commands(), ["modprobe --all br-netfilter overlay"]);
        bench.fake.write("/sys/module/overlay/x", "");
        assert_eq!(bench.observe(&KernelModules), Observed::now(None));
        bench.fake.write("/sys/module/br_netfilter/x", "");
        assert_eq!(bench.observe(&KernelModules), Observed::now(Some(version)));
    }
}
