//! Installing exactly one version of a package, and holding it there.

use std::{fs, io, time::Duration};

use common::{KubernetesVersion, metadata::Repository, plan::PlanId, state::Reason};
use program::Program;

use super::{packages::Packages, repositories, upstream};
use crate::{failure::Failure, host::Host};

/// Another program may be busy with packages; longer than a usual run of it, shorter than a person waits.
const LOCK_PATIENCE_SECONDS: u32 = 60;

/// A slow mirror and a big package; what takes longer hangs.
const LIMIT: Duration = Duration::from_mins(20);

/// Which version of a package is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// This Debian version.
    Exact(&'a str),
    /// The newest build of this upstream version.
    Upstream(&'a str),
}

impl Wanted<'_> {
    /// Whether a Debian version is the wanted one.
    pub fn is(self, version: &str) -> bool {
        match self {
            Self::Exact(wanted) => version == wanted,
            Self::Upstream(wanted) => upstream(version) == wanted,
        }
    }
}

/// Where packages come from.
#[derive(Debug)]
pub struct Sources<'a> {
    /// The host's repositories.
    pub repositories: &'a [Repository],
    /// The Kubernetes version some of them are for.
    pub kubernetes: Option<KubernetesVersion>,
    /// The plan they are needed for: their lists are fetched once for all packages of it.
    pub plan: PlanId,
}

/// From 1000 on, apt would also go back to a version.
const PIN_PRIORITY: u32 = 1001;

/// The plan and the sources whose lists were fetched last.
const FETCHED: &str = "/run/node-agent/lists";

/// Where dpkg keeps what it did since it last wrote the list of all packages anew. Empty unless it works or was cut off.
const DPKG_JOURNAL: &str = "/var/lib/dpkg/updates";

/// Installs a package in the wanted version from the repositories of the host, and holds it.
pub async fn install(
    host: &Host,
    from: &Sources<'_>,
    package: &str,
    wanted: Wanted<'_>,
) -> Result<(), Failure> {
    let installed = install_once(host, from, package, wanted).await;
    if installed.is_err()
        // Lists may be out of date by now: another attempt begins with new ones.
        && let Err(failure) = host.remove(FETCHED)
    {
        tracing::warn!("the lists of packages stay: {failure}");
    }
    installed
}

async fn install_once(
    host: &Host,
    from: &Sources<'_>,
    package: &str,
    wanted: Wanted<'_>,
) -> Result<(), Failure> {
    let sources = from
        .repositories
        .iter()
        .filter_map(|repository| {
            repositories::configure(host, repository, from.kubernetes.as_ref()).transpose()
        })
        .collect::<Result<Vec<_>, _>>()?;
    repositories::remove_others(host, from.repositories)?;
    finish_interrupted(host).await?;
    // Lists of another Kubernetes version may be there, so every plan fetches them anew.
    let mut fetched = from.plan.to_string();
    for source in &sources {
        fetched += &format!("\n{}", source.text);
    }
    if host.read(FETCHED)?.as_ref() != Some(&fetched) {
        for source in &sources {
            host.run(repositories::update(&source.path)).await.map_err(|error| classify(&error))?;
        }
        host.write(FETCHED, &fetched, 0o600)?;
    }
    let version = match candidate(host, package, wanted).await {
        // The distribution's own lists may be old; a repository of ours that has it needs no others.
        Err(failure) if failure.reason == Reason::PackageNotFound => {
            host.run(apt_get().arg("update")).await.map_err(|error| classify(&error))?;
            candidate(host, package, wanted).await?
        }
        other => other?,
    };
    pin(host, package, &version)?;
    let program = apt_get()
        .args(["install", "--yes", "--no-install-recommends"])
        // We hold it ourselves; a plan may also name an older build.
        .args(["--allow-change-held-packages", "--allow-downgrades"])
        // Nobody asked for the end of another package, which apt would remove if the two cannot be together.
        .arg("--no-remove")
        // Files the administrator changed stay; contents are a software of their own.
        .args(["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"])
        .arg(format!("{package}={version}"));
    host.run(program).await.map_err(|error| classify(&error))?;
    hold(host, package, &version).await
}

/// Ends what a power cut or a failed script left half done.
async fn finish_interrupted(host: &Host) -> Result<(), Failure> {
    let packages = Packages::observe(host).await?;
    // Packages may all be whole and dpkg still not have come to its end: then apt refuses to begin.
    let journal = host.path(DPKG_JOURNAL);
    let is_cut_off = match fs::read_dir(&journal) {
        Ok(mut records) => records.next().is_some(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(Failure::io("read", &journal, &error)),
    };
    if packages.unfinished().is_empty() && !is_cut_off {
        return Ok(());
    }
    // If they cannot be finished, the new version may still replace them, so its own failure is the one to tell.
    let program = debian(Program::new("dpkg")).args(["--configure", "--pending"]).timeout(LIMIT);
    if let Err(error) = host.run(program).await {
        tracing::warn!(packages = ?packages.unfinished(), %error, "what dpkg left unfinished stays so");
    }
    Ok(())
}

/// Makes a version the one that apt would choose, whatever other repositories have: who lifts the hold by mistake gets no
/// other. Before the installation, which names its version, so that no crash leaves an older pin beside a newer package.
fn pin(host: &Host, package: &str, version: &str) -> Result<(), Failure> {
    let text = format!(
        "# Written by node-agent.\nPackage: {package}\nPin: version {version}\nPin-Priority: {PIN_PRIORITY}\n"
    );
    let path = format!("/etc/apt/preferences.d/node-agent-{package}.pref");
    if host.read(&path)?.as_ref() == Some(&text) { Ok(()) } else { host.write(&path, &text, 0o644) }
}

/// Keeps ordinary upgrades of the system away from a package that has this version.
pub async fn hold(host: &Host, package: &str, version: &str) -> Result<(), Failure> {
    pin(host, package, version)?;
    let program = debian(Program::new("apt-mark")).args(["hold", package]);
    host.run(program).await.map(drop).map_err(|error| classify(&error))
}

async fn candidate(host: &Host, package: &str, wanted: Wanted<'_>) -> Result<String, Failure> {
    let table = host
        .run(debian(Program::new("apt-cache")).args(["madison", package]))
        .await
        .map_err(|error| classify(&error))?;
    // `package | version | source`, newest first.
    let versions: Vec<&str> =
        table.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim).collect();
    versions.iter().find(|version| wanted.is(version)).map(|version| (*version).to_owned()).ok_or_else(|| {
        let (Wanted::Exact(wanted) | Wanted::Upstream(wanted)) = wanted;
        let offer = match versions.as_slice() {
            [] => "no repository has that package".to_owned(),
            some => format!("there is {}", some.join(", ")),
        };
        Failure::new(Reason::PackageNotFound, format!("no repository has {package} {wanted}: {offer}"))
    })
}

/// apt-get, patient with locks and asking nobody.
pub(super) fn apt_get() -> Program {
    debian(Program::new("apt-get"))
        .arg("-o")
        .arg(format!("DPkg::Lock::Timeout={LOCK_PATIENCE_SECONDS}"))
        // Through a pseudo terminal dpkg's errors would come out of stdout.
        .args(["-o", "Dpkg::Use-Pty=0"])
        .timeout(LIMIT)
}

fn debian(program: Program) -> Program {
    program
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Messages are read below, in the one language that does not change.
        .env("LC_ALL", "C.UTF-8")
        // It would restart services by itself; which restart and when is the plan's business.
        .env("NEEDRESTART_SUSPEND", "1")
        .env("APT_LISTCHANGES_FRONTEND", "none")
}

/// The code for what apt and dpkg say. It is for people and programs to look at; nothing is decided by it.
fn classify(error: &program::Error) -> Failure {
    let stderr = error.stderr();
    let says = |texts: &[&str]| texts.iter().any(|text| stderr.contains(text));
    let reason =
        if says(&["No space left on device", "don't have enough free space", "not enough free disk space"]) {
            Reason::DiskFull
        } else if says(&[
            "Could not get lock",
            "Unable to acquire the dpkg frontend lock",
            "was locked by another process",
        ]) {
            Reason::PackageLockHeld
        } else if says(&[
            "is not signed",
            "NO_PUBKEY",
            "BADSIG",
            "EXPKEYSIG",
            "REVKEYSIG",
            "couldn't be verified",
            "is no longer signed",
            "Hash Sum mismatch",
            "signatures were invalid",
            "unsupported filetype",
        ]) {
            Reason::RepositoryUntrusted
        } else if says(&["Unable to locate package", "was not found", "has no installation candidate"]) {
            Reason::PackageNotFound
        } else if says(&[
            "Failed to fetch",
            "Could not resolve",
            "Could not connect",
            "does not have a Release file",
        ]) {
            Reason::RepositoryUnreachable
        } else {
            Reason::PackageFailed
        };
    Failure::of(reason, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    const MADISON: &str = "kubectl | 1.37.1-1.2 | x\nkubectl | 1.37.1-1.1 | x\nkubectl | 1.36.4-1.1 | x\n";

    async fn run(fake: &FakeHost, wanted: Wanted<'_>) -> Result<(), Failure> {
        install(&fake.host, &sources(&[]), "kubectl", wanted).await
    }

    fn sources(repositories: &[Repository]) -> Sources<'_> {
        Sources { repositories, kubernetes: None, plan: common::plan::Plan::default().id() }
    }

    #[tokio::test]
    async fn lists_are_fetched_once_for_a_plan_and_again_after_a_failure() {
        let fake = FakeHost::new(|command| match command {
            _ if command.starts_with("apt-cache") => Ok(MADISON.to_owned()),
            _ if command.ends_with("kubectl=1.36.4-1.1") => Err("broken".to_owned()),
            _ => Ok(String::new()),
        });
        let repository = Repository {
            name: "one".parse().unwrap(),
            uri: "https://packages.example/".parse().unwrap(),
            suite: "./".parse().unwrap(),
            components: Vec::new(),
            key: common::metadata::Key::Key("KEY".into()),
        };
        let updates = || fake.commands().iter().filter(|command| command.contains(" update ")).count();
        let repositories = [repository];
        let good = Wanted::Upstream("1.37.1");
        for (wanted, expected) in
            [(good, 1), (good, 1), (Wanted::Exact("1.36.4-1.1"), 1), (good, 2), (good, 2)]
        {
            let result = install(&fake.host, &sources(&repositories), "kubectl", wanted).await;
            assert_eq!(result.is_ok(), wanted == good);
            assert_eq!(updates(), expected);
        }
        // Another plan may need what came since.
        let plan = common::plan::Plan::new([("kubectl".parse().unwrap(), "1.37.1".parse().unwrap())].into());
        let other = Sources { plan: plan.id(), ..sources(&repositories) };
        install(&fake.host, &other, "kubectl", good).await.unwrap();
        assert_eq!(updates(), 3);
    }

    fn installing(command: &str) -> bool {
        command.starts_with("apt-get") && command.contains(" install ")
    }

    #[tokio::test]
    async fn the_newest_build_of_the_version_is_installed_and_held() {
        let fake = FakeHost::new(|command| {
            Ok(if command.starts_with("apt-cache") { MADISON.to_owned() } else { String::new() })
        });
        run(&fake, Wanted::Upstream("1.37.1")).await.unwrap();
        run(&fake, Wanted::Exact("1.36.4-1.1")).await.unwrap();
        let commands = fake.commands();
        let installs: Vec<&String> = commands.iter().filter(|command| installing(command)).collect();
        assert!(installs[0].ends_with("kubectl=1.37.1-1.2") && installs[1].ends_with("kubectl=1.36.4-1.1"));
        assert!(installs.iter().all(|command| command.contains(" --no-remove ")));
        assert_eq!(commands.iter().filter(|command| *command == "apt-mark hold kubectl").count(), 2);
        let pin = fake.read("/etc/apt/preferences.d/node-agent-kubectl.pref").unwrap();
        assert_eq!(
            pin,
            "# Written by node-agent.\nPackage: kubectl\nPin: version 1.36.4-1.1\nPin-Priority: 1001\n"
        );
        assert!(!commands.iter().any(|command| command.starts_with("dpkg --configure")));
    }

    #[tokio::test]
    async fn a_version_nobody_has_is_not_found_and_the_others_are_named() {
        let fake = FakeHost::new(|command| {
            Ok(if command.starts_with("apt-cache") { MADISON.to_owned() } else { String::new() })
        });
        let error = run(&fake, Wanted::Upstream("1.38.0")).await.unwrap_err();
        assert_eq!(error.reason, Reason::PackageNotFound);
        assert!(error.message.contains("1.36.4-1.1"), "{error}");
        assert!(!fake.commands().iter().any(|command| installing(command)));
    }

    #[tokio::test]
    async fn unfinished_packages_are_finished_first_and_their_failure_does_not_matter() {
        let fake = FakeHost::new(|command| match command {
            _ if command.starts_with("dpkg-query") => Ok("kubectl\t1.37.1-1.1\tiF \n".to_owned()),
            _ if command.starts_with("dpkg ") => Err("post-installation script failed".to_owned()),
            _ if command.starts_with("apt-cache") => Ok(MADISON.to_owned()),
            _ => Ok(String::new()),
        });
        run(&fake, Wanted::Upstream("1.37.1")).await.unwrap();
        assert!(fake.commands().iter().any(|command| command == "dpkg --configure --pending"));
    }

    /// dpkg was cut off between its last word on a package and the end of its own books.
    #[tokio::test]
    async fn a_dpkg_that_was_cut_off_is_finished_although_every_package_is_whole() {
        const FINISH: &str = "dpkg --configure --pending";
        for (record, expected) in [(None, 0), (Some("/var/lib/dpkg/updates/0007"), 1)] {
            let fake = FakeHost::new(|command| match command {
                _ if command.starts_with("dpkg-query") => Ok("kubectl\t1.36.4-1.1\thi \n".to_owned()),
                _ if command.starts_with("apt-cache") => Ok(MADISON.to_owned()),
                _ => Ok(String::new()),
            });
            std::fs::create_dir_all(fake.host.path("/var/lib/dpkg/updates")).unwrap();
            if let Some(record) = record {
                fake.write(record, "Package: kubectl\n");
            }
            run(&fake, Wanted::Upstream("1.37.1")).await.unwrap();
            let commands = fake.commands();
            assert_eq!(commands.iter().filter(|command| *command == FINISH).count(), expected);
            let place = |wanted: &dyn Fn(&str) -> bool| commands.iter().position(|command| wanted(command));
            assert!(place(&|command| command == FINISH) < place(&installing), "{commands:?}");
        }
    }

    #[tokio::test]
    async fn what_apt_says_has_a_code() {
        for (stderr, reason) in [
            (
                "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7",
                Reason::PackageLockHeld,
            ),
            ("dpkg: error: dpkg frontend lock was locked by another process", Reason::PackageLockHeld),
            ("dpkg: unable to write: No space left on device", Reason::DiskFull),
            ("E: You don't have enough free space in /var/cache/apt/archives/.", Reason::DiskFull),
            ("E: The repository 'file:/x ./ InRelease' is not signed.", Reason::RepositoryUntrusted),
            ("W: GPG error: x InRelease: NO_PUBKEY 1234", Reason::RepositoryUntrusted),
            ("E: Failed to fetch http://x  Could not connect", Reason::RepositoryUnreachable),
            ("E: Version '9' for 'kubectl' was not found", Reason::PackageNotFound),
            (
                "subprocess installed post-installation script returned error exit status 1",
                Reason::PackageFailed,
            ),
        ] {
            let fake = FakeHost::new(move |command| match command {
                _ if command.starts_with("apt-cache") => Ok(MADISON.to_owned()),
                _ if installing(command) => Err(stderr.to_owned()),
                _ => Ok(String::new()),
            });
            let error = run(&fake, Wanted::Upstream("1.37.1")).await.unwrap_err();
            assert_eq!(error.reason, reason, "{stderr}");
            assert!(error.message.contains(stderr), "{error}");
        }
    }
}
