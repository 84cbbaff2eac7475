//! The root file system that hosts start from: Debian with systemd and sshd, and what a kubelet calls.
//!
//! It has no identity: no host keys, no machine id, no name. Whoever makes a host of it adds them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{Error, cache::Cache, debian, error::At, steps::Steps, tools};

/// The kind of thing it is in the cache.
const KIND: &str = "node-root";

/// Raised when the code below makes something else of the same packages.
const RECIPE: &str = "1";

/// What a Kubernetes node needs beside the bundle's packages, and what its administrator expects. containerd
/// is not here: the bundle brings it.
const PACKAGES: [&str; 22] = [
    "apt-utils",
    "ca-certificates",
    "conntrack",
    "containernetworking-plugins",
    "curl",
    "dbus",
    "ethtool",
    "iproute2",
    "iptables",
    "iputils-ping",
    "kmod",
    "libpam-systemd",
    "nftables",
    "openssh-server",
    "procps",
    "runc",
    "socat",
    "sudo",
    "systemd",
    "systemd-sysv",
    "systemd-timesyncd",
    "udev",
];

fn name(sources: &[String]) -> String {
    format!("{}-{RECIPE}", debian::name(&PACKAGES, sources))
}

/// The directory with the root file system, if it is there. Builds nothing.
pub fn find(cache: &Cache) -> Option<PathBuf> {
    // Without sources nothing can have been built from them.
    let sources = debian::sources(Path::new("/etc/apt")).ok()?;
    Some(cache.path(KIND, &name(&sources))).filter(|path| path.is_dir())
}

/// Gives the directory with the root file system, building it unless it is there.
pub async fn ensure(cache: &Cache, steps: &Steps) -> Result<PathBuf, Error> {
    let sources = debian::sources(Path::new("/etc/apt"))?;
    let name = name(&sources);
    let path = cache.path(KIND, &name);
    if path.is_dir() {
        return Ok(path);
    }
    tools::ensure(&debian::TOOLS, steps).await?;
    cache
        .produce(KIND, &name, false, steps, |staging| async move {
            let what = format!("root file system of a node, Debian {}", debian::CODENAME);
            steps.step(what, fill(&staging, &sources)).await
        })
        .await
}

async fn fill(root: &Path, sources: &[String]) -> Result<(), Error> {
    debian::mmdebstrap("minbase", &PACKAGES, sources, root).run().await?;
    remove_identity(root)?;
    // A journal that survives reboots and power cuts: it is the first thing wanted after one.
    let journal = root.join("var/log/journal");
    fs::create_dir_all(&journal).at("create", &journal)?;
    // Where names and packages come from is for the provider and the administrator to say.
    let resolv = root.join("etc/resolv.conf");
    remove(&resolv)?;
    fs::write(&resolv, "").at("write", &resolv)?;
    let parts = root.join("etc/apt/sources.list.d");
    for entry in fs::read_dir(&parts).at("list", &parts)? {
        remove(&entry.at("list", &parts)?.path())?;
    }
    remove(&root.join("etc/apt/sources.list"))
}

fn remove_identity(root: &Path) -> Result<(), Error> {
    let ssh = root.join("etc/ssh");
    for entry in fs::read_dir(&ssh).at("list", &ssh)? {
        let path = entry.at("list", &ssh)?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ssh_host_")) {
            remove(&path)?;
        }
    }
    for name in ["etc/machine-id", "etc/hostname", "var/lib/dbus/machine-id"] {
        remove(&root.join(name))?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).at("remove", path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_sorted_and_unique() {
        assert!(PACKAGES.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
