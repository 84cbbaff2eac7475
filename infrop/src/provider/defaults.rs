//! What hosts need to run Kubernetes, whoever has them.

use std::path::Path;

use anyhow::Context as _;
use common::metadata::ImageArchive;
use images::kubernetes::Manifest;

/// How containerd is to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Containerd<'a> {
    /// The image that holds a pod's namespaces; containerd's own choice without one.
    pub(super) pause: Option<&'a str>,
    /// Whether systemd makes control groups.
    pub(super) systemd: bool,
    /// Whether hosts share a computer: OOM scores cannot be lowered there, for want of `CAP_SYS_RESOURCE`, and what
    /// containerd does every second for its figures (asking the shim of each container) it does on all of them.
    pub(super) shared: bool,
}

impl Containerd<'_> {
    /// `/etc/containerd/config.toml`.
    pub(super) fn config(self) -> String {
        let Self { pause, systemd, shared } = self;
        let pause = pause.map(|image| {
            format!("[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = '{image}'\n")
        });
        let stats = if shared { "  stats_collect_period = '30s'\n" } else { "" };
        // Plugins are where Debian has them, or where the documentation of most networks puts them.
        format!(
            "version = 3\n\
             [plugins.'io.containerd.cri.v1.runtime']\n  restrict_oom_score_adj = {shared}\n{stats}  \
             [plugins.'io.containerd.cri.v1.runtime'.cni]\n    bin_dirs = ['/opt/cni/bin', '/usr/lib/cni']\n    \
             conf_dir = '/etc/cni/net.d'\n  \
             [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n    \
             runtime_type = 'io.containerd.runc.v2'\n    \
             [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n      \
             SystemdCgroup = {systemd}\n{}",
            pause.unwrap_or_default()
        )
    }
}

/// The pause image of a bundle.
pub(super) fn pause(bundle: &Manifest) -> anyhow::Result<&str> {
    let pause = bundle.images.iter().find(|image| image.name.contains("/pause:"));
    Ok(&pause.context("the bundle has no pause image")?.name)
}

/// The images of a bundle that hosts see in `directory`.
pub(super) fn images(bundle: &Manifest, directory: &Path) -> anyhow::Result<Vec<ImageArchive>> {
    let mut archives = Vec::new();
    for image in &bundle.images {
        let entry = bundle
            .files
            .get(&image.file)
            .with_context(|| format!("the bundle does not list {}", image.file))?;
        archives.push(ImageArchive {
            name: image.name.parse()?,
            file: directory.join(&image.file),
            sha256: entry.sha256.parse()?,
        });
    }
    Ok(archives)
}
