//! The bundle command: its sources, and what it says when something is wrong.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use images::{kubernetes::Bundle, sha256_file};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use program::Program;
use tests::{
    bundles,
    harness::{Case, Tier, suite},
    http_server::FileServer,
    infrop, infrop_path,
    lab::wait_for,
};

const LIMIT: Duration = Duration::from_mins(5);

/// Nothing listens there.
const NOBODY: &str = "http://127.0.0.1:9";

/// What a build from Go modules calls before it asks the proxy.
const MODULES: Tier = Tier::T2(&["go", "mmdebstrap", "dpkg-deb", "gpg", "cc"]);

fn main() -> ExitCode {
    suite([
        Case::new(MODULES, "a_version_nobody_released_is_one_sentence", LIMIT, unknown_version),
        Case::new(MODULES, "a_proxy_that_is_away_is_one_sentence", LIMIT, unreachable_proxy),
        Case::new(MODULES, "a_module_with_another_checksum_is_refused", LIMIT, wrong_module),
        Case::new(MODULES, "no_go_and_no_download_is_one_sentence", LIMIT, no_source),
        Case::new(Tier::T3, "a_second_build_does_nothing", LIMIT, second_build),
        Case::new(Tier::T3, "the_release_servers_paths_are_used_and_checksums_checked", LIMIT, from_release),
        Case::new(Tier::T3, "a_directory_of_the_user_serves", LIMIT, from_directory),
        Case::new(Tier::T3, "interrupted_builds_leave_no_half_bundle", LIMIT, interrupted),
        Case::new(Tier::T4, "a_full_disk_is_one_sentence", LIMIT, full_disk),
    ])
}

/// A cache of its own, with what must not be fetched again.
struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let cache = directory.path().join("cache");
        fs::create_dir(&cache)?;
        let kind = "kube-proxy-base";
        let real = bundles::cache()?.root().join(kind);
        if real.is_dir() {
            symlink(real, cache.join(kind))?;
        }
        Ok(Self { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn infrop(&self) -> anyhow::Result<Program> {
        Ok(infrop()?.arg("--cache-dir").arg(self.path("cache")).timeout(LIMIT))
    }

    /// A build that asks nobody but the Go modules of `proxy`.
    fn build_modules(&self, version: &str, proxy: &str) -> anyhow::Result<Program> {
        Ok(self
            .infrop()?
            .args(["bundle", "build", version, "--kubernetes-url", NOBODY])
            .env("GOPROXY", proxy)
            .env("GOMODCACHE", self.path("modules"))
            .env("GOFLAGS", "-modcacherw"))
    }

    /// The last line of stderr of a build that must fail with exit code 1 and leave nothing.
    async fn refused(&self, build: Program) -> anyhow::Result<String> {
        let sentence = refused(build).await?;
        let left = self.bundles()?;
        ensure!(left.is_empty(), "the failed build left {left:?}");
        Ok(sentence)
    }

    /// What there is of bundles, half ones included.
    fn bundles(&self) -> anyhow::Result<Vec<String>> {
        let directory = self.path("cache/bundles");
        if !directory.is_dir() {
            return Ok(Vec::new());
        }
        let names =
            fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: Vec<String> = names.collect::<anyhow::Result<_>>()?;
        let is_lock =
            |name: &String| Path::new(name).extension().is_some_and(|extension| extension == "lock");
        Ok(names.into_iter().filter(|name| !is_lock(name)).collect())
    }
}

async fn refused(build: Program) -> anyhow::Result<String> {
    match build.run().await {
        Ok(_) => anyhow::bail!("`{build}` succeeded"),
        Err(program::Error::Failed { status, stderr, .. }) if status.code() == Some(1) => {
            let last = stderr.lines().last().context("it says nothing")?;
            Ok(last.strip_prefix("infrop: ").context("it is not infrop who says it")?.to_owned())
        }
        Err(error) => Err(error.into()),
    }
}

async fn unknown_version() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let nothing = scratch.path("nothing");
    fs::create_dir(&nothing)?;
    let server = FileServer::start(&nothing).await?;
    // The module proxy does not know it.
    let sentence = scratch.refused(scratch.build_modules("1.36.99", &server.url())?).await?;
    let expected =
        "Kubernetes 1.36.99 is not known to the Go module proxy: check the number for a typing error";
    ensure!(sentence == expected, "{sentence}");
    // The release server does not know it.
    let build = scratch.infrop()?.args(["bundle", "build", "1.36.99", "--kubernetes-url", &server.url()]);
    let sentence = scratch.refused(build).await?;
    ensure!(
        sentence.starts_with("Kubernetes 1.36.99 cannot be had: there is no http://127.0.0.1:"),
        "{sentence}"
    );
    // It is no version at all: nothing is even tried.
    let error = scratch.infrop()?.args(["bundle", "build", "1.36"]).run().await;
    let Err(program::Error::Failed { status, stderr, .. }) = error else { anyhow::bail!("{error:?}") };
    ensure!(status.code() == Some(64) && stderr.contains("write a release as major.minor.patch"), "{stderr}");
    Ok(())
}

async fn unreachable_proxy() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    for version in ["1.36.4", "1.36.99"] {
        let sentence = scratch.refused(scratch.build_modules(version, NOBODY)?).await?;
        ensure!(sentence.starts_with("the Go module proxy cannot be reached ("), "{sentence}");
        ensure!(sentence.contains("connection refused") && sentence.contains("check GOPROXY"), "{sentence}");
    }
    Ok(())
}

async fn wrong_module() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let directory = scratch.path("proxy/k8s.io/kubernetes/@v");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("v1.36.4.info"), r#"{"Version":"v1.36.4"}"#)?;
    fs::write(directory.join("v1.36.4.mod"), "module k8s.io/kubernetes\n")?;
    let server = FileServer::start(&scratch.path("proxy")).await?;
    let sentence = scratch.refused(scratch.build_modules("1.36.4", &server.url())?).await?;
    ensure!(sentence.contains("does not match its published checksum"), "{sentence}");
    Ok(())
}

async fn no_source() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    // A PATH with everything that is needed, but Go.
    let bin = scratch.path("bin");
    fs::create_dir(&bin)?;
    for tool in ["dpkg-deb", "gpg", "gpg-agent", "gpgconf", "cc", "mmdebstrap"] {
        symlink(images::tools::find(tool).unwrap_or_else(|| "/bin/true".into()), bin.join(tool))?;
    }
    let build = scratch.build_modules("1.36.4", NOBODY)?.env("PATH", &bin);
    let sentence = scratch.refused(build).await?;
    ensure!(sentence.contains("Go is not installed; install Go 1.26 or newer"), "{sentence}");
    Ok(())
}

async fn second_build() -> anyhow::Result<()> {
    let started = Instant::now();
    let path = infrop()?.args(["bundle", "build", "1.37.1"]).run().await?;
    let elapsed = started.elapsed();
    ensure!(path.trim() == infrop()?.args(["bundle", "path", "1.37.1"]).run().await?.trim());
    ensure!(elapsed < Duration::from_secs(1), "a build that does nothing took {elapsed:?}");
    let list = infrop()?.args(["bundle", "list", "-o", "json"]).run().await?;
    let list: serde_json::Value = serde_json::from_str(&list)?;
    // The cache is the user's, who may have others.
    let versions: Vec<_> =
        list.as_array().context("a list")?.iter().filter_map(|row| row.get("kubernetes")?.as_str()).collect();
    let ours = versions.iter().filter(|version| ["1.36.4", "1.37.1"].contains(version));
    ensure!(ours.eq(&["1.36.4", "1.37.1"]), "{versions:?}");
    Ok(())
}

async fn from_release() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let [_, original] = bundles::pinned()?;
    let bin = scratch.path("bin");
    bundles::link_programs(&original, &bin).await?;
    let site = scratch.path("site");
    publish(&original, &bin, &site).await?;
    let server = FileServer::start(&site).await?;
    let build = || {
        let urls = ["--kubernetes-url", &server.url(), "--github-url", &server.url()];
        anyhow::Ok(scratch.infrop()?.args(["bundle", "build", "1.37.1"]).args(urls))
    };

    let kubelet_sum = site.join("v1.37.1/bin/linux/amd64/kubelet.sha256");
    let right = fs::read_to_string(&kubelet_sum)?;
    fs::write(&kubelet_sum, "0".repeat(64))?;
    let sentence = scratch.refused(build()?).await?;
    ensure!(
        sentence.contains("/v1.37.1/bin/linux/amd64/kubelet does not match its published checksum"),
        "{sentence}"
    );

    fs::write(&kubelet_sum, right)?;
    build()?.run().await?;
    let built = scratch_bundle(&scratch)?;
    ensure!(built.manifest().source == "release", "{}", built.manifest().source);
    same_programs(&scratch, &built, &bin).await?;

    scratch.infrop()?.args(["bundle", "verify", "1.37.1"]).run().await?;
    let victim = built.path().join("images/etcd.tar");
    fs::write(&victim, "x")?;
    let sentence = refused(scratch.infrop()?.args(["bundle", "verify", "1.37.1"])).await?;
    ensure!(sentence.starts_with(&format!("{} differs", victim.display())), "{sentence}");
    Ok(())
}

fn scratch_bundle(scratch: &Scratch) -> anyhow::Result<Bundle> {
    Ok(Bundle::find(&images::cache::Cache::new(scratch.path("cache")), &"1.37.1".parse()?)?)
}

/// The bundle has the programs of `bin`, byte by byte.
async fn same_programs(scratch: &Scratch, bundle: &Bundle, bin: &Path) -> anyhow::Result<()> {
    let again = scratch.path("again");
    bundles::unpack_into(bundle, &again).await?;
    let mut count = 0;
    for entry in fs::read_dir(bin)? {
        let path = entry?.path();
        let copy = again.join(path.file_name().context("a program has a name")?);
        ensure!(sha256_file(&path)? == sha256_file(&copy)?, "{} differs", copy.display());
        count += 1;
    }
    ensure!(count == 14, "there are {count} programs");
    Ok(())
}

/// Lays programs out as the official servers do.
async fn publish(bundle: &Bundle, bin: &Path, site: &Path) -> anyhow::Result<()> {
    let version = |name: &str| bundle.manifest().components.get(name).cloned().unwrap_or_default();
    let kubernetes = site.join(format!("v{}/bin/linux/amd64", version("kubernetes")));
    fs::create_dir_all(&kubernetes)?;
    for name in [
        "kubeadm",
        "kubectl",
        "kubelet",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
    ] {
        symlink(bin.join(name), kubernetes.join(name))?;
        fs::write(kubernetes.join(format!("{name}.sha256")), sha256_file(&bin.join(name))?)?;
    }
    let (etcd, coredns, containerd) = (version("etcd"), version("coredns"), version("containerd"));
    let archives = [
        (
            format!("etcd-io/etcd/releases/download/v{etcd}"),
            format!("etcd-v{etcd}-linux-amd64.tar.gz"),
            "SHA256SUMS".to_owned(),
            vec!["etcd", "etcdctl", "etcdutl"],
        ),
        (
            format!("coredns/coredns/releases/download/v{coredns}"),
            format!("coredns_{coredns}_linux_amd64.tgz"),
            format!("coredns_{coredns}_linux_amd64.tgz.sha256"),
            vec!["coredns"],
        ),
        (
            format!("containerd/containerd/releases/download/v{containerd}"),
            format!("containerd-static-{containerd}-linux-amd64.tar.gz"),
            format!("containerd-static-{containerd}-linux-amd64.tar.gz.sha256sum"),
            vec!["containerd", "containerd-shim-runc-v2", "ctr"],
        ),
    ];
    for (directory, archive, sums, names) in archives {
        let directory = site.join(directory);
        fs::create_dir_all(&directory)?;
        let file = directory.join(&archive);
        let pack = Program::new("tar")
            .args(["--dereference", "--use-compress-program=gzip -1", "-C"])
            .arg(bin)
            .arg("-cf")
            .arg(&file);
        pack.args(names).run().await?;
        fs::write(directory.join(sums), format!("{}  {archive}\n", sha256_file(&file)?))?;
    }
    Ok(())
}

async fn from_directory() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let [_, original] = bundles::pinned()?;
    let bin = scratch.path("bin");
    bundles::link_programs(&original, &bin).await?;
    let build = || anyhow::Ok(scratch.infrop()?.args(["bundle", "build", "1.37.1", "--from"]).arg(&bin));

    fs::rename(bin.join("etcd"), scratch.path("etcd"))?;
    let sentence = scratch.refused(build()?).await?;
    ensure!(sentence.starts_with(&format!("{} has no etcd: ", bin.display())), "{sentence}");
    fs::rename(scratch.path("etcd"), bin.join("etcd"))?;

    // Two at once: one builds, the other waits, says so, and finds it built.
    let log = scratch.path("second.log");
    let (one, two) = (build()?, build()?);
    let first = tokio::spawn(async move { one.run().await });
    wait_for(Duration::from_secs(30), "the first build is under way", async || {
        Ok(scratch.bundles()?.iter().any(|name| name.contains("staging")))
    })
    .await?;
    let second = Program::new("sh").args(["-c", &format!("{two} 2> {}", log.display())]).timeout(LIMIT);
    let second = second.run().await?;
    let first = first.await??;
    ensure!(first == second, "{first} and {second}");
    let said = fs::read_to_string(&log)?;
    ensure!(said.starts_with("waiting: another process is making kubernetes-1.37.1"), "{said}");
    ensure!(!said.contains("build the packages"), "{said}");

    let built = scratch_bundle(&scratch)?;
    ensure!(built.manifest().source == "directory", "{}", built.manifest().source);
    same_programs(&scratch, &built, &bin).await
}

async fn interrupted() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let [_, original] = bundles::pinned()?;
    let bin = scratch.path("bin");
    bundles::link_programs(&original, &bin).await?;
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut build = std::process::Command::new(infrop_path()?)
            .arg("--cache-dir")
            .arg(scratch.path("cache"))
            .args(["bundle", "build", "1.37.1", "--from"])
            .arg(&bin)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()?;
        wait_for(Duration::from_mins(1), "the build is under way", async || {
            let apt = |name: &String| scratch.path("cache/bundles").join(name).join("apt").is_dir();
            Ok(scratch.bundles()?.iter().any(apt))
        })
        .await?;
        kill(Pid::from_raw(i32::try_from(build.id())?), signal)?;
        let status = build.wait()?;
        let list = scratch.infrop()?.args(["bundle", "list", "-o", "json"]).run().await?;
        ensure!(list.trim() == "[]", "{list}");
        if signal == Signal::SIGINT {
            ensure!(status.code() == Some(130), "{status}");
            ensure!(scratch.bundles()?.is_empty(), "{:?}", scratch.bundles()?);
        }
    }
    // What the killed one left does not disturb the next.
    scratch.infrop()?.args(["bundle", "build", "1.37.1", "--from"]).arg(&bin).run().await?;
    scratch.infrop()?.args(["bundle", "verify", "1.37.1"]).run().await?;
    ensure!(scratch.bundles()?.len() == 1, "{:?}", scratch.bundles()?);
    Ok(())
}

async fn full_disk() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let [_, original] = bundles::pinned()?;
    let bin = scratch.path("bin");
    bundles::link_programs(&original, &bin).await?;
    let small = scratch.path("small");
    fs::create_dir(&small)?;
    // Room for some programs, not for all; the mount goes with its namespace.
    let script = format!(
        "mount -t tmpfs -o size=200m none {small} && {infrop} --cache-dir {small} bundle build 1.37.1 --from {bin}; \
         code=$?; find {small}/bundles -mindepth 1 -not -name '*.lock' >&2; exit $code",
        small = small.display(),
        infrop = infrop_path()?.display(),
        bin = bin.display(),
    );
    let build = Program::new("unshare").args(["--mount", "sh", "-c", &script]).timeout(LIMIT);
    let sentence = refused(build).await?;
    ensure!(sentence.starts_with("the disk filled up while building in "), "{sentence}");
    Ok(())
}
