//! keepalived, which carries the API's address from control plane to control plane.

use super::package::{Package, Scheme};

pub(super) const SOFTWARE: Package = Package {
    name: "keepalived",
    apt_name: "keepalived",
    scheme: Scheme::Exact,
    unit: Some("keepalived.service"),
};
