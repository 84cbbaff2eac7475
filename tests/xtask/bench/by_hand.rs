//! The raw steps of a bring-up, as a good engineer would script them: hosts at the same time, one connection per host
//! and step, and nothing that looks twice.
//!
//! It does the work that `infrop apply` has done on the same hosts: the same packages, images, configuration and pod
//! network. What it leaves out is infrop's own: node-agent, admission policies, checks of what is there.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use ::tests::{bundles, infrastructure, kubeadm::Cluster, lab::TestLab};
use futures::future::try_join_all;

/// Named as infrop names them, the control plane first.
const HOSTS: [&str; 3] = ["cp-1", "w-1", "w-2"];

/// The steps, in their order.
pub(super) const STEPS: [&str; 6] =
    ["boot", "packages and images", "kubeadm init", "pod network", "kubeadm join", "Ready"];

/// Makes a cluster of one control plane and two workers; gives how long each of the [`STEPS`] took. `infrop` makes the
/// hosts and leads ssh to them, nothing else.
pub(super) async fn bring_up(infrop: &Path) -> anyhow::Result<[Duration; STEPS.len()]> {
    let mut clock = Clock(Instant::now());
    TestLab::with_program(infrop, "by-hand", &HOSTS, async |lab| {
        let boot = clock.lap();
        let [_, bundle] = bundles::pinned()?;
        let version = &bundle.manifest().kubernetes;
        let [_, workers @ ..] = HOSTS;
        let cluster = Cluster::prepare(lab, version, &workers).await?;
        let packages = clock.lap();
        let token = format!("{}.{}", infrop::random::hex(3)?, infrop::random::hex(8)?);
        let hash = cluster.initialize(version, Some(&token)).await?;
        let init = clock.lap();
        cluster.apply(&infrastructure::network()?).await?;
        let network = clock.lap();
        try_join_all(workers.iter().map(|host| cluster.join_worker(host, &token, &hash))).await?;
        let join = clock.lap();
        // It watches; a Node is there when `kubeadm join` ends.
        cluster.kubectl("wait --for=condition=Ready node --all --timeout=120s").await?;
        Ok([boot, packages, init, network, join, clock.lap()])
    })
    .await
}

/// How long each part took.
struct Clock(Instant);

impl Clock {
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let took = now - self.0;
        self.0 = now;
        took
    }
}
