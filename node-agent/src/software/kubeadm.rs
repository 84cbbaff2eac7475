//! kubeadm: only a program, run by `kubernetes`.

use super::package::{Package, Scheme};

pub(super) const SOFTWARE: Package =
    Package { name: "kubeadm", apt_name: "kubeadm", scheme: Scheme::Upstream, unit: None };
