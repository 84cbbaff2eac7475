//! The Kubernetes bundles that fixtures take programs and packages from.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::Context;
use images::{
    cache::Cache,
    kubernetes::{Bundle, PINNED},
    steps::Steps,
};

/// The cache that `infrop` itself uses by default, so that nothing is built twice.
pub fn cache() -> anyhow::Result<Cache> {
    let named = std::env::var_os("INFROP_CACHE_DIR").map(|directory| Cache::new(PathBuf::from(directory)));
    named.or_else(Cache::of_user).context("there is no home directory to keep the cache in")
}

/// Why there are no bundles, if there are none.
pub fn obstacle() -> Option<String> {
    let find = |version: &str| {
        Bundle::find(&cache()?, &version.parse()?)?;
        anyhow::Ok(())
    };
    PINNED
        .iter()
        .find_map(|version| find(version).err())
        .map(|error| format!("{error:#} (`cargo xtask setup` makes all that tests need)"))
}

/// The pinned versions: the one to start from and the one to upgrade to.
pub fn pinned() -> anyhow::Result<[Bundle; 2]> {
    let cache = cache()?;
    let [old, new] = PINNED;
    Ok([Bundle::find(&cache, &old.parse()?)?, Bundle::find(&cache, &new.parse()?)?])
}

/// A program of the newest pinned bundle, on this computer's disk.
pub async fn program(name: &str) -> anyhow::Result<PathBuf> {
    let [_, newest] = pinned()?;
    Ok(programs(&newest).await?.join(name))
}

/// A directory with all programs of a bundle, taken out of its packages and images once.
pub async fn programs(bundle: &Bundle) -> anyhow::Result<PathBuf> {
    let name = bundle.path().file_name().context("a bundle has a name")?.to_string_lossy().into_owned();
    let unpack = |staging: PathBuf| async move { unpack(bundle, &staging).await };
    Ok(cache()?.produce("programs", &name, false, &Steps::new(|_| ()), unpack).await?)
}

async fn unpack(bundle: &Bundle, target: &Path) -> Result<(), images::Error> {
    for (image, directory, names) in [
        ("kube-apiserver", "/usr/local/bin", ["kube-apiserver"].as_slice()),
        ("kube-controller-manager", "/usr/local/bin", &["kube-controller-manager"]),
        ("kube-scheduler", "/usr/local/bin", &["kube-scheduler"]),
        ("kube-proxy", "/usr/local/bin", &["kube-proxy"]),
        ("etcd", "/usr/local/bin", &["etcd", "etcdctl", "etcdutl"]),
        ("coredns", "", &["coredns"]),
    ] {
        for name in names {
            bundle.extract(image, &format!("{directory}/{name}"), &target.join(name))?;
        }
    }
    for package in &bundle.manifest().packages {
        // The programs alone, without the directories they lie in.
        let script = "dpkg-deb --fsys-tarfile \"$1\" | tar -x -C \"$2\" --wildcards --transform 's,.*/,,' './usr/bin/?*'";
        let words = ["-ec", script, "sh"];
        let unpack =
            program::Program::new("sh").args(words).arg(bundle.path().join(&package.file)).arg(target);
        unpack.run().await?;
    }
    Ok(())
}

/// The programs of a bundle that is not in the common cache, taken out into `target`.
pub async fn unpack_into(bundle: &Bundle, target: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(target)?;
    Ok(unpack(bundle, target).await?)
}

/// A directory with a bundle's programs that may be changed: it has links to them. Symbolic ones, for a hard
/// link would touch the file that another test reads.
pub async fn link_programs(bundle: &Bundle, target: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(target)?;
    for entry in fs::read_dir(programs(bundle).await?)? {
        let path = entry?.path();
        symlink(&path, target.join(path.file_name().context("a program has a name")?))?;
    }
    Ok(())
}
