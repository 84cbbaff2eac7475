//! kubectl, for people on the host.

use super::{
    Disruption,
    package::{Package, Scheme},
};

pub(crate) const KUBECTL: Package = Package {
    name: "kubectl",
    apt_name: "kubectl",
    scheme: Scheme::Upstream,
    disruption: Disruption::None,
    unit: None,
};
