//! containerd's configuration; containerd reads it only when it starts.

use super::config_file::ConfigFile;

pub(super) const SOFTWARE: ConfigFile = ConfigFile {
    name: "containerd-config",
    path: "/etc/containerd/config.toml",
    mode: 0o644,
    unit: "containerd.service",
    content: |configuration| configuration.containerd_config.as_ref(),
};
