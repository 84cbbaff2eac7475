//! kubectl, for people on the host.

use super::package::{Package, Scheme};

pub(super) const SOFTWARE: Package =
    Package { name: "kubectl", apt_name: "kubectl", scheme: Scheme::Upstream, unit: None };
