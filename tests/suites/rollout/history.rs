//! Every state of every Node, as a watch tells it, and whether it was allowed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::ensure;
use common::annotations::{CHANGES_ALLOWED, CORDONED_BY};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt as _, watcher},
};

/// A Node at a moment, as far as rules speak of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Moment {
    permit: bool,
    cordoned: bool,
    mark: Option<String>,
    control_plane: bool,
    kubelet: String,
}

impl Moment {
    fn of(node: &Node) -> Self {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        Self {
            permit: node.annotations().get(CHANGES_ALLOWED).is_some_and(|value| value == "true"),
            cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
            mark: node.annotations().get(CORDONED_BY).cloned(),
            control_plane: node.labels().contains_key("node-role.kubernetes.io/control-plane"),
            kubelet: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
        }
    }
}

/// What was seen, in order.
#[derive(Debug, Default)]
struct Seen {
    moments: Vec<(String, Moment)>,
}

/// Watches from its start until it is dropped.
pub(crate) struct History {
    seen: Arc<Mutex<Seen>>,
    task: tokio::task::JoinHandle<()>,
}

impl History {
    pub(crate) fn start(client: kube::Client) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let takes = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            // Longer than the connection's own limit would cut it off; it goes on where it was.
            let config = watcher::Config::default().timeout(20);
            let mut events = watcher(Api::<Node>::all(client), config).default_backoff().boxed();
            while let Some(event) = events.next().await {
                if let Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = event {
                    let mut seen = takes.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.moments.push((node.name_any(), Moment::of(&node)));
                }
            }
        });
        Self { seen, task }
    }

    /// Whether no rule was broken: of `limit` workers at most had a permit at once, and `foreign` was cordoned by a person.
    pub(crate) fn check(&self, limit: usize, foreign: &str, version: &str) -> anyhow::Result<usize> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now: BTreeMap<&str, &Moment> = BTreeMap::new();
        for (name, moment) in &seen.moments {
            let before = now.insert(name, moment);
            let permitted = |control_plane: bool| {
                let nodes =
                    now.iter().filter(move |(_, node)| node.permit && node.control_plane == control_plane);
                nodes.map(|(name, _)| *name).collect::<Vec<_>>()
            };
            ensure!(permitted(false).len() <= limit, "I1: {:?} were permitted at once", permitted(false));
            ensure!(permitted(true).len() <= 1, "I2: {:?} were permitted at once", permitted(true));
            let begun = moment.permit && before.is_some_and(|before| !before.permit);
            if begun && !moment.control_plane {
                let late = now.iter().find(|(_, node)| node.control_plane && node.kubelet != version);
                ensure!(late.is_none(), "I6: {name} was permitted before {late:?}");
            }
            ensure!(name != foreign || moment.cordoned, "I5: {foreign} was uncordoned");
            ensure!(name != foreign || moment.mark.is_none(), "I5: {foreign} was marked as ours");
            let oldest = now.values().filter(|node| node.control_plane).map(|node| &node.kubelet).min();
            ensure!(
                moment.control_plane || oldest.is_none_or(|oldest| moment.kubelet <= *oldest),
                "I7: the kubelet of {name} is newer than a control plane"
            );
        }
        for (name, node) in now {
            ensure!(!node.permit, "{name} still has its permit");
            ensure!(node.kubelet == version, "{name} has {}", node.kubelet);
            ensure!(node.cordoned == (name == foreign), "{name} is cordoned: {}", node.cordoned);
        }
        Ok(seen.moments.len())
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.task.abort();
    }
}
