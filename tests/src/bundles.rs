//! The Kubernetes bundles that fixtures take programs and packages from.

use std::{
    fs,
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
    let directory = match std::env::var_os("INFROP_CACHE_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => dirs::cache_dir().context("there is no home directory to keep the cache in")?.join("infrop"),
    };
    Ok(Cache::new(directory))
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

/// A program of the newest pinned bundle, on this computer's disk: taken out of its image once.
pub async fn program(name: &str) -> anyhow::Result<PathBuf> {
    let [_, bundle] = pinned()?;
    let image = if name.starts_with("etcd") { "etcd" } else { name };
    let file = if name == "coredns" { "/coredns".to_owned() } else { format!("/usr/local/bin/{name}") };
    let key = bundle.path().file_name().context("a bundle has a name")?.to_string_lossy().into_owned();
    let extract = |staging: PathBuf| async move { bundle.extract(image, &file, &staging.join(name)) };
    let directory =
        cache()?.produce("programs", &format!("{key}-{name}"), false, &Steps::new(|_| ()), extract).await?;
    Ok(directory.join(name))
}

/// All programs of a bundle in one directory, as a user would have them from elsewhere.
pub async fn unpack(bundle: &Bundle, target: &Path) -> anyhow::Result<()> {
    for (image, names) in [
        ("kube-apiserver", ["kube-apiserver"].as_slice()),
        ("kube-controller-manager", &["kube-controller-manager"]),
        ("kube-scheduler", &["kube-scheduler"]),
        ("kube-proxy", &["kube-proxy"]),
        ("etcd", &["etcd", "etcdctl", "etcdutl"]),
    ] {
        for name in names {
            bundle.extract(image, &format!("/usr/local/bin/{name}"), &target.join(name))?;
        }
    }
    bundle.extract("coredns", "/coredns", &target.join("coredns"))?;
    for package in &bundle.manifest().packages {
        let tree = target.join("tree");
        let file = bundle.path().join(&package.file);
        program::Program::new("dpkg-deb").arg("-x").args([&file, &tree]).run().await?;
        let bin = tree.join("usr/bin");
        for entry in fs::read_dir(&bin)? {
            let path = entry?.path();
            fs::rename(&path, target.join(path.file_name().context("a program has a name")?))?;
        }
        fs::remove_dir_all(&tree)?;
    }
    Ok(())
}
