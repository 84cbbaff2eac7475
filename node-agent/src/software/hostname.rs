//! The host's name, and its line in `/etc/hosts`.

use common::{metadata, software::SoftwareVersion, state::Reason};
use futures::future::BoxFuture;
use program::Program;

use super::{Look, Observed, Software, Task, version_of_content};
use crate::failure::Failure;

/// Ends our line, so that it is found again; the others are the administrator's.
const MARK: &str = "# node-agent";

pub(super) const SOFTWARE: Hostname = Hostname;

#[derive(Debug)]
pub(super) struct Hostname;

impl Software for Hostname {
    fn name(&self) -> &'static str {
        "hostname"
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        let read = |path: &str| Ok(look.host.read(path)?.unwrap_or_default().trim().to_owned());
        let (kept, running) = (read("/etc/hostname")?, read("/proc/sys/kernel/hostname")?);
        let hosts = look.host.read("/etc/hosts")?.unwrap_or_default();
        let ours = hosts.lines().find_map(|line| line.strip_suffix(MARK)).unwrap_or_default();
        let mut words = ours.split_whitespace();
        let (Some(address), Some(name)) = (words.next(), words.next()) else {
            return Ok(Observed::now(None));
        };
        let (Ok(address), Ok(name)) = (address.parse(), name.parse::<metadata::NodeName>()) else {
            return Ok(Observed::now(None));
        };
        if kept != name.as_str() || running != name.as_str() {
            return Ok(Observed::now(None));
        }
        Ok(Observed::now(Some(version_of_content(&metadata::Hostname { name, address })?)))
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let metadata::Hostname { name, address } =
                task.content(self, version, |one| one.hostname.clone())?;
            let hosts = task.host.read_whole("/etc/hosts")?.unwrap_or_default();
            let others: String =
                hosts.lines().filter(|line| !line.ends_with(MARK)).map(|line| format!("{line}\n")).collect();
            task.host.write("/etc/hosts", &format!("{others}{address} {name} {MARK}\n"), 0o644)?;
            task.host.write("/etc/hostname", &format!("{name}\n"), 0o644)?;
            let program = Program::new("hostnamectl").args(["set-hostname", name.as_str()]);
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
    async fn our_line_is_replaced_and_the_others_stay() {
        let mut bench = Bench::new(FakeHost::silent());
        let content = |address: &str| Configuration {
            hostname: Some(metadata::Hostname {
                name: "w1".parse().unwrap(),
                address: address.parse().unwrap(),
            }),
            ..Configuration::default()
        };
        bench.fake.write("/etc/hosts", "127.0.0.1 localhost\n");
        let old = bench.deliver(&Hostname, content("10.0.0.1"));
        bench.ensure(&Hostname, &old).await.unwrap();
        let new = bench.deliver(&Hostname, content("10.0.0.2"));
        bench.ensure(&Hostname, &new).await.unwrap();
        assert_eq!(bench.fake.read("/etc/hosts").unwrap(), "127.0.0.1 localhost\n10.0.0.2 w1 # node-agent\n");
        // The kernel must have heard of it, too.
        assert_eq!(bench.observe(&Hostname), Observed::now(None));
        bench.fake.write("/proc/sys/kernel/hostname", "w1\n");
        assert_eq!(bench.observe(&Hostname), Observed::now(Some(new)));
        assert_eq!(bench.fake.commands(), ["hostnamectl set-hostname w1"; 2]);
    }
}
