//! No swap, now and after every boot.

use common::{metadata, software::SoftwareVersion, state::Reason};
use futures::future::BoxFuture;
use program::Program;

use super::{Look, Observed, Software, Task, version_of_content};
use crate::failure::Failure;

const FSTAB: &str = "/etc/fstab";

pub(super) const SOFTWARE: NoSwap = NoSwap;

#[derive(Debug)]
pub(super) struct NoSwap;

fn is_swap(line: &str) -> bool {
    !line.trim_start().starts_with('#') && line.split_whitespace().nth(2) == Some("swap")
}

impl Software for NoSwap {
    fn name(&self) -> &'static str {
        "swap"
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        // Its first line is a heading.
        let active = look.host.read("/proc/swaps")?.unwrap_or_default().lines().nth(1).is_some();
        let kept = look.host.read(FSTAB)?.unwrap_or_default().lines().any(is_swap);
        let off = !active && !kept;
        Ok(Observed::now(if off { Some(version_of_content(&metadata::Swap::Off)?) } else { None }))
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let metadata::Swap::Off = task.content(self, version, |one| one.swap)?;
            if let Some(table) = task.host.read_whole(FSTAB)?
                && table.lines().any(is_swap)
            {
                let kept: String =
                    table
                        .lines()
                        .map(|line| {
                            if is_swap(line) {
                                format!("# node-agent: {line}\n")
                            } else {
                                format!("{line}\n")
                            }
                        })
                        .collect();
                task.host.write(FSTAB, &kept, 0o644)?;
            }
            task.host
                .insist(Reason::ConfigurationFailed, Program::new("swapoff").arg("--all"))
                .await
                .map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use common::metadata::Configuration;

    use super::*;
    use crate::{host::fake::FakeHost, software::testing::Bench};

    #[tokio::test]
    async fn swap_goes_now_and_for_good() {
        let mut bench = Bench::new(FakeHost::silent());
        let off = bench
            .deliver(&NoSwap, Configuration { swap: Some(metadata::Swap::Off), ..Configuration::default() });
        assert_eq!(bench.observe(&NoSwap), Observed::now(Some(off.clone())));
        bench.fake.write(FSTAB, "/dev/a / ext4 rw 0 1\n/dev/b none swap sw 0 0\n");
        assert_eq!(bench.observe(&NoSwap), Observed::now(None));
        bench.ensure(&NoSwap, &off).await.unwrap();
        assert_eq!(
            bench.fake.read(FSTAB).unwrap(),
            "/dev/a / ext4 rw 0 1\n# node-agent: /dev/b none swap sw 0 0\n"
        );
        assert_eq!(bench.fake.commands(), ["swapoff --all"]);
        assert_eq!(bench.observe(&NoSwap), Observed::now(Some(off)));
        bench.fake.write("/proc/swaps", "Filename Type\n/dev/b partition\n");
        assert_eq!(bench.observe(&NoSwap), Observed::now(None));
    }
}
