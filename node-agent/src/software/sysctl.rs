//! Kernel settings, now and at every boot.

use std::collections::BTreeMap;

use common::{
    metadata::{SysctlKey, SysctlValue},
    software::SoftwareVersion,
    state::Reason,
};
use futures::future::BoxFuture;
use program::Program;

use super::{Look, Observed, Software, Task, version_of_content};
use crate::failure::Failure;

const FILE: &str = "/etc/sysctl.d/90-node-agent.conf";

pub(super) const SOFTWARE: Sysctl = Sysctl;

#[derive(Debug)]
pub(super) struct Sysctl;

/// The settings a file of ours has.
fn parse(text: &str) -> Option<BTreeMap<SysctlKey, SysctlValue>> {
    let setting = |line: &str| {
        let (key, value) = line.split_once(" = ")?;
        Some((key.parse().ok()?, value.parse().ok()?))
    };
    text.lines().filter(|line| !line.starts_with('#')).map(setting).collect()
}

impl Software for Sysctl {
    fn name(&self) -> &'static str {
        "sysctl"
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        let Some(settings) = look.host.read(FILE)?.as_deref().and_then(parse) else {
            return Ok(Observed::now(None));
        };
        for (key, value) in &settings {
            let live = look.host.read(format!("/proc/sys/{}", key.as_str().replace('.', "/")))?;
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            if live.as_deref().map(words) != Some(words(value.as_str())) {
                return Ok(Observed::now(None));
            }
        }
        Ok(Observed::now(Some(version_of_content(&settings)?)))
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let settings = task.content(self, version, |one| one.sysctl.clone())?;
            let lines: String = settings.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
            task.host.write(FILE, &format!("# Written by node-agent.\n{lines}"), 0o644)?;
            let program = Program::new("sysctl")
                .arg("--quiet")
                .arg(format!("--load={}", task.host.path(FILE).display()));
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
    async fn the_kernel_and_the_file_must_both_have_the_values() {
        let mut bench = Bench::new(FakeHost::silent());
        let settings: BTreeMap<SysctlKey, SysctlValue> = [
            ("net.ipv4.ip_forward".parse().unwrap(), "1".parse().unwrap()),
            ("net.ipv4.tcp_rmem".parse().unwrap(), "4096 1 2".parse().unwrap()),
        ]
        .into();
        let version =
            bench.deliver(&Sysctl, Configuration { sysctl: Some(settings), ..Configuration::default() });
        bench.ensure(&Sysctl, &version).await.unwrap();
        assert_eq!(bench.observe(&Sysctl), Observed::now(None), "the kernel has other values");
        bench.fake.write("/proc/sys/net/ipv4/ip_forward", "1\n");
        bench.fake.write("/proc/sys/net/ipv4/tcp_rmem", "4096\t1\t2\n");
        assert_eq!(bench.observe(&Sysctl), Observed::now(Some(version)));
        bench.fake.write("/proc/sys/net/ipv4/ip_forward", "0\n");
        assert_eq!(bench.observe(&Sysctl), Observed::now(None));
    }
}
