//! Decisions, as tables.

use std::collections::BTreeMap;

use crate::cluster::NodeView;

/// A Node that is Ready.
pub(crate) fn node(name: &str, control_plane: bool) -> NodeView {
    NodeView {
        name: name.parse().unwrap(),
        resource_version: "1".into(),
        ready: Ok(()),
        since: None,
        cordoned: false,
        control_plane,
        kubelet: "v1.36.4".into(),
        boot_id: "boot".into(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}
