//! containerd. Containers outlive its restart, but not every change of its shims: the host is drained.

use super::{
    Disruption,
    package::{Package, Scheme},
};

pub(super) const SOFTWARE: Package = Package {
    name: "containerd",
    apt_name: "containerd",
    scheme: Scheme::Upstream,
    disruption: Disruption::Drain,
    unit: Some("containerd.service"),
};
