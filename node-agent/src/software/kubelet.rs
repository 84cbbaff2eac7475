//! The kubelet. Its restart leaves pods running, but another minor version may not: the host is drained.

use super::package::{Package, Scheme};

pub(super) const SOFTWARE: Package =
    Package { name: "kubelet", apt_name: "kubelet", scheme: Scheme::Upstream, unit: Some("kubelet.service") };
