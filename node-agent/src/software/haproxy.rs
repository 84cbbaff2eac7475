//! haproxy, which spreads API calls over control planes.

use super::package::{Package, Scheme};

pub(super) const SOFTWARE: Package =
    Package { name: "haproxy", apt_name: "haproxy", scheme: Scheme::Exact, unit: Some("haproxy.service") };
