//! The kubelet. Its restart leaves pods running, but another minor version may not: the host is drained.

use super::{
    Disruption,
    package::{Package, Scheme},
};

pub(super) const SOFTWARE: Package = Package {
    name: "kubelet",
    apt_name: "kubelet",
    scheme: Scheme::Upstream,
    disruption: Disruption::Drain,
    unit: Some("kubelet.service"),
};
