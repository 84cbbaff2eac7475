//! haproxy's configuration.

use super::config_file::ConfigFile;

pub(super) const SOFTWARE: ConfigFile = ConfigFile {
    name: "haproxy-config",
    path: "/etc/haproxy/haproxy.cfg",
    mode: 0o644,
    unit: "haproxy.service",
    content: |configuration| configuration.haproxy_config.as_ref(),
};
