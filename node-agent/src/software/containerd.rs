//! containerd. Containers outlive its restart, but not every change of its shims: the host is drained.

use super::package::{Package, Scheme};

pub(super) const SOFTWARE: Package = Package {
    name: "containerd",
    apt_name: "containerd",
    scheme: Scheme::Upstream,
    unit: Some("containerd.service"),
};
