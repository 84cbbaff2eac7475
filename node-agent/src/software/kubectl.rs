//! kubectl, for people on the host.

use super::{
    Disruption,
    package::{Package, Scheme},
};

pub(super) const SOFTWARE: Package = Package {
    name: "kubectl",
    apt_name: "kubectl",
    scheme: Scheme::Upstream,
    disruption: Disruption::None,
    unit: None,
};
