//! haproxy, which spreads API calls over control planes.

use super::{
    Disruption,
    package::{Package, Scheme},
};

pub(super) const SOFTWARE: Package = Package {
    name: "haproxy",
    apt_name: "haproxy",
    scheme: Scheme::Exact,
    disruption: Disruption::Restart,
    unit: Some("haproxy.service"),
};
