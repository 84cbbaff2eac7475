//! keepalived's configuration. It has a password, so only root reads it.

use super::config_file::ConfigFile;

pub(super) const SOFTWARE: ConfigFile = ConfigFile {
    name: "keepalived-config",
    path: "/etc/keepalived/keepalived.conf",
    mode: 0o600,
    unit: "keepalived.service",
    content: |configuration| configuration.keepalived_config.as_ref(),
};
