//! A lab for one test: gone when the test is, with its journals kept if the test fails.

use std::{
    fs,
    os::unix::process::CommandExt,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context;
use futures::FutureExt;
use images::{node, steps::Steps};
use infrop::provider::lab::{BUNDLES_ON_HOSTS, HostName, Lab, Lifetime, Plan, Power, Store};

use crate::{bundles, infrop_path};

/// Where labs of tests are: apart from those of people. Short, for a socket is in there.
const STORE: &str = "/var/tmp/infrop-test-labs";

/// Where hosts see the bundles, one directory per version.
pub const BUNDLES: &str = BUNDLES_ON_HOSTS;

/// Hosts of a test.
#[derive(Debug)]
pub struct TestLab {
    lab: Lab,
}

impl TestLab {
    /// Makes a lab, runs the test on it, and ends the lab, however the test ends. If it fails, journals and
    /// consoles of all hosts are kept and the error says where.
    pub async fn with<T>(
        name: &str,
        hosts: &[&str],
        test: impl AsyncFnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        Self::with_program(infrop_path()?, name, hosts, test).await
    }

    /// The same, with another infrop program than the one that was just built for tests.
    pub async fn with_program<T>(
        infrop: &Path,
        name: &str,
        hosts: &[&str],
        test: impl AsyncFnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let lab = Self::create(infrop, name, hosts).await?;
        let result = AssertUnwindSafe(test(&lab)).catch_unwind().await;
        let result = match result {
            Ok(Ok(value)) => {
                lab.destroy().await?;
                return Ok(value);
            }
            Ok(Err(error)) => Ok(error),
            Err(panic) => Err(panic),
        };
        let kept = keep_logs(&lab.lab, name).await;
        lab.destroy().await?;
        let note = match kept {
            Ok(directory) => format!("journals and consoles are in {}", directory.display()),
            Err(error) => format!("journals could not be kept: {error:#}"),
        };
        match result {
            Ok(error) => Err(error.context(note)),
            Err(panic) => {
                eprintln!("{note}");
                std::panic::resume_unwind(panic)
            }
        }
    }

    async fn create(infrop: &Path, name: &str, hosts: &[&str]) -> anyhow::Result<Self> {
        let steps = Steps::stderr();
        let plan = Plan {
            name: format!("{name}-{}", std::process::id()).parse()?,
            hosts: hosts.iter().map(|host| host.parse()).collect::<Result<_, _>>()?,
            owner: None,
            root: node::ensure(&bundles::cache()?, &steps).await?,
            lifetime: Lifetime::Tied,
            infrop: infrop.to_owned(),
        };
        let bundles = bundles::pinned()?;
        let lab = Self { lab: Lab::create(&store(), plan, &steps).await? };
        for bundle in bundles {
            let offered = lab.lab.offer(&bundle.manifest().kubernetes.to_string(), bundle.path()).await;
            if let Err(error) = offered {
                lab.destroy().await?;
                return Err(error.into());
            }
        }
        Ok(lab)
    }

    /// The lab itself.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Runs a script on a host and gives its stdout.
    pub async fn run(&self, host: &str, script: &str) -> anyhow::Result<String> {
        self.run_for(host, Duration::from_mins(5), script).await
    }

    /// Runs a script that may take long.
    pub async fn run_for(&self, host: &str, limit: Duration, script: &str) -> anyhow::Result<String> {
        let ssh = self.lab.ssh(&host.parse()?).arg("bash -seuo pipefail").timeout(limit);
        ssh.stdin(script).run().await.with_context(|| format!("on {host}: {}", script.trim()))
    }

    /// Puts a file of this computer onto a host, mode 644.
    pub async fn copy(&self, host: &str, from: &Path, to: &str) -> anyhow::Result<()> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let ssh = self.lab.ssh(&host.parse()?).arg(format!("umask 022 && cat > '{to}'"));
        ssh.stdin(bytes).run().await.with_context(|| format!("cannot copy {} to {host}", from.display()))?;
        Ok(())
    }

    /// The boot a host is in.
    pub async fn boot_id(&self, host: &str) -> anyhow::Result<String> {
        Ok(self.run(host, "cat /proc/sys/kernel/random/boot_id").await?.trim().to_owned())
    }

    /// Switches a host.
    pub async fn power(&self, host: &str, power: Power) -> anyhow::Result<()> {
        Ok(self.lab.power(&host.parse()?, power).await?)
    }

    /// Reboots a host from inside and waits until it answers in another boot.
    pub async fn reboot(&self, host: &str) -> anyhow::Result<()> {
        let before = self.boot_id(host).await?;
        // The connection may end with the host before ssh knows how the command ended.
        let _ = self.run(host, "systemctl reboot").await;
        wait_for(Duration::from_mins(1), &format!("{host} in another boot"), async || {
            Ok(self.boot_id(host).await.is_ok_and(|now| now != before))
        })
        .await
    }

    /// The text of a file on a host's disk, seen from outside; an error if the host never wrote it.
    pub fn read_disk(&self, host: &str, file: &str) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.disk(host).join(file))?)
    }

    /// What a host wrote on its disk.
    fn disk(&self, host: &str) -> PathBuf {
        self.lab.directory().join("hosts").join(host).join("upper")
    }

    /// Cuts the power of a host at the moment when a file is on its disk, seen from outside.
    pub async fn cut_power_when(&self, host: &str, file: &str) -> anyhow::Result<()> {
        let path = self.disk(host).join(file);
        let deadline = tokio::time::Instant::now() + Duration::from_mins(5);
        while !path.exists() {
            anyhow::ensure!(tokio::time::Instant::now() < deadline, "{file} never came to {host}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.power(host, Power::Cut).await
    }

    async fn destroy(&self) -> anyhow::Result<()> {
        Ok(Lab::destroy(&store(), self.lab.name()).await?)
    }
}

/// Keeps journals and consoles of all hosts beside the build; gives where.
pub(crate) async fn keep_logs(lab: &Lab, name: &str) -> anyhow::Result<PathBuf> {
    // Two above a program of cargo's is its target directory, whatever that is called.
    let target = infrop_path()?.ancestors().nth(2).context("infrop is not in a target directory")?;
    let target = target.join("test-logs").join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&target)?;
    for host in lab.definition()?.hosts {
        fs::copy(lab.console(&host.name), target.join(format!("{}.console", host.name)))?;
        // One that never got so far has no journal; those of others are still wanted.
        let journal = lab.journal(&host.name).run().await.unwrap_or_else(|error| error.to_string());
        fs::write(target.join(format!("{}.journal", host.name)), journal)?;
    }
    Ok(target)
}

/// Waits until whoever holds its stdin is gone, then ends what runs on labs of a directory, the labs, and the directory.
const CLEAR: &str = "\
cat > /dev/null
pkill -KILL -f -- \"--file $1/\"
for lab in $(\"$2\" lab list --lab-dir \"$1\" | awk 'NR > 1 { print $1 }'); do
    \"$2\" lab destroy \"$lab\" --lab-dir \"$1\" || { echo \"the lab $lab in $1 is left\" >&2; exit 1; }
done
rm -rf \"$1\"
";

/// A directory for labs that nothing ties to the test: they end with this, or with this process, however it ends.
#[derive(Debug)]
pub struct Clearing {
    directory: PathBuf,
    clearer: Child,
}

impl Clearing {
    /// With no labs yet.
    pub fn new() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?.keep();
        let clearer = Command::new("sh")
            .args(["-c", CLEAR, "sh"])
            .args([&directory, infrop_path()?])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A ctrl-C in the terminal of the test is not for who clears up after it.
            .process_group(0)
            .spawn()?;
        Ok(Self { directory, clearer })
    }

    /// Where the labs are.
    pub fn path(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Clearing {
    fn drop(&mut self) {
        drop(self.clearer.stdin.take());
        if let Err(error) = self.clearer.wait() {
            eprintln!("whoever clears {} is lost: {error}", self.directory.display());
        }
    }
}

/// The labs of all tests.
pub fn store() -> Store {
    Store::new(STORE)
}

/// A host's name, known to be good.
pub fn host(name: &str) -> anyhow::Result<HostName> {
    Ok(name.parse()?)
}

/// Waits until `condition` holds; says what was waited for if it never does.
pub async fn wait_for(
    limit: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        if condition().await? {
            return Ok(());
        }
        anyhow::ensure!(tokio::time::Instant::now() < deadline, "{what}: not within {} s", limit.as_secs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
