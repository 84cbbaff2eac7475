//! What is: providers, hosts and cluster are asked, and nothing is changed.

use std::collections::BTreeMap;

use common::metadata::NodeName;
use futures::{StreamExt, future::join_all, stream};

use super::{
    context::Context,
    snapshot::{Cluster, ClusterView, Group, Host, Snapshot},
};
use crate::{
    bootstrap::{
        host::{self, HostReport, KubeadmState},
        kubeadm::admin_kubeconfig,
    },
    cluster::{self, Access},
    provider::{Compute, Ownership, Pool, Power},
};

/// Everything there is, and the way to the API if there is one.
pub async fn observe(context: &Context, parallel: usize) -> anyhow::Result<(Snapshot, Option<Access>)> {
    Ok(observe_in(context, &pools(context, parallel).await?, parallel).await)
}

/// What providers have, also in pools that nothing is asked of. Of each provider, up to `parallel` hosts are asked at once.
pub async fn pools(context: &Context, parallel: usize) -> anyhow::Result<Vec<Pool>> {
    let mut pools = Vec::new();
    for seen in join_all(context.providers.values().map(|provider| provider.observe(parallel))).await {
        pools.extend(seen?);
    }
    Ok(pools)
}

/// Everything there is, with the providers asked already.
pub async fn observe_in(context: &Context, pools: &[Pool], parallel: usize) -> (Snapshot, Option<Access>) {
    let groups = context.groups(pools);
    let mut hosts = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        let pool = pools.iter().find(|pool| pool.provider == group.provider && pool.name == group.pool);
        for compute in pool.map(|pool| pool.computes.as_slice()).unwrap_or_default() {
            hosts.insert(compute.name.clone(), new_host(index, compute.clone()));
        }
    }
    let agent_version = context.package.version.clone();
    let kubernetes = Some(context.infrastructure.software.kubernetes.clone());
    let mut snapshot = Snapshot { groups, hosts, kubernetes, agent_version, ..Snapshot::default() };
    let looks = snapshot.hosts.values().filter(|host| is_ours_and_on(host)).map(|host| async {
        let report = look(context, &snapshot.groups, host).await;
        (host.compute.name.clone(), report.map_err(|error| error.to_string()))
    });
    let reports: Vec<_> =
        stream::iter(looks.collect::<Vec<_>>()).buffer_unordered(parallel.max(1)).collect().await;
    for (name, report) in reports {
        take_report(context, &mut snapshot, &name, report);
    }
    let (cluster, access) = look_at_cluster(context, &snapshot).await;
    snapshot.cluster = cluster;
    (snapshot, access)
}

fn is_ours_and_on(host: &Host) -> bool {
    host.compute.ownership == Ownership::Ours && host.compute.power != Power::Off
}

/// A compute that was not asked yet.
fn new_host(group: usize, compute: Compute) -> Host {
    Host { compute, group, report: None, wanted: None }
}

/// Notes what a host said, and what it is to have because of that.
pub fn take_report(
    context: &Context,
    snapshot: &mut Snapshot,
    name: &NodeName,
    report: Result<HostReport, String>,
) {
    let Some(host) = snapshot.hosts.get_mut(name) else { return };
    if report.is_ok() {
        snapshot.unclear.remove(name);
    }
    host.report = Some(report);
    want(context, snapshot, name);
}

/// The same hosts, with what is wanted of them by another document.
pub fn aim(context: &Context, snapshot: &mut Snapshot) {
    snapshot.kubernetes = Some(context.infrastructure.software.kubernetes.clone());
    for name in snapshot.hosts.keys().cloned().collect::<Vec<_>>() {
        want(context, snapshot, &name);
    }
}

/// Notes a compute that is new, or was switched on.
pub fn take_compute(context: &Context, snapshot: &mut Snapshot, group: usize, compute: Compute) {
    snapshot.hosts.insert(compute.name.clone(), new_host(group, compute));
    take_peers(context, snapshot, group);
}

/// Notes that a compute is no more.
pub fn take_end(context: &Context, snapshot: &mut Snapshot, name: &NodeName) {
    if let Some(host) = snapshot.hosts.remove(name) {
        take_peers(context, snapshot, host.group);
    }
}

/// The hosts of a group are others: those who have to know each other are to have something else.
///
/// What is delivered to a node that is in the cluster already is there for its next rollout, which is what changes
/// software on nodes.
fn take_peers(context: &Context, snapshot: &mut Snapshot, group: usize) {
    if snapshot.groups.get(group).is_none_or(|group| group.peers.is_none()) {
        return;
    }
    let members = snapshot.hosts.iter().filter(|(_, host)| host.group == group);
    for name in members.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
        want(context, snapshot, &name);
    }
}

fn want(context: &Context, snapshot: &mut Snapshot, name: &NodeName) {
    let Some(host) = snapshot.hosts.get(name) else { return };
    let wanted = match context.delivery(snapshot, host) {
        Ok(delivery) => delivery.map(|delivery| Ok((delivery.digest, delivery.plan))),
        Err(error) => Some(Err(format!("{error:#}"))),
    };
    if let Some(host) = snapshot.hosts.get_mut(name) {
        host.wanted = wanted;
    }
}

/// Asks one host.
pub async fn look(context: &Context, groups: &[Group], host: &Host) -> anyhow::Result<HostReport> {
    let remote = connect(context, groups, host).await?;
    match host::inspect(&remote).await {
        Ok(report) => Ok(report),
        Err(error) => {
            // The next attempt is with a new connection: the host may have restarted.
            context.connections.forget(&host.compute.name);
            Err(error.into())
        }
    }
}

/// What the console of a host tells that does not answer, where its provider can see it.
pub async fn console(context: &Context, snapshot: &Snapshot, host: &Host) -> Option<String> {
    let provider = context.provider(&snapshot.group(host).ok()?.provider).ok()?;
    provider.console(&host.compute).await
}

/// The connection to a host.
pub async fn connect(
    context: &Context,
    groups: &[Group],
    host: &Host,
) -> anyhow::Result<std::sync::Arc<crate::bootstrap::ssh::Remote>> {
    let group =
        groups.get(host.group).ok_or_else(|| anyhow::anyhow!("{} is of no group", host.compute.name))?;
    let access = context.provider(&group.provider)?.access(&host.compute)?;
    Ok(context.connections.get(&host.compute.name, &access).await?)
}

/// Asks the cluster, through the first control plane that has its administrator's credential.
pub async fn look_at_cluster(context: &Context, snapshot: &Snapshot) -> (Cluster, Option<Access>) {
    let mut trouble = None;
    for host in control_planes(snapshot) {
        match access_through(context, snapshot, host).await {
            Ok(access) => match view(context, &access).await {
                Ok(view) => return (Cluster::There(view), Some(access)),
                Err(error) => trouble = Some(format!("{:#}", anyhow::Error::from(error))),
            },
            Err(error) => trouble = Some(format!("{error:#}")),
        }
    }
    match trouble {
        Some(why) => (Cluster::Silent(why), None),
        None => (Cluster::None, None),
    }
}

/// Control planes on which kubeadm ended well.
pub fn control_planes(snapshot: &Snapshot) -> impl Iterator<Item = &Host> {
    snapshot.hosts.values().filter(|host| {
        snapshot.is_control_plane(host)
            && host.seen().is_some_and(|report| report.control_plane && report.kubeadm == KubeadmState::Done)
    })
}

async fn access_through(context: &Context, snapshot: &Snapshot, host: &Host) -> anyhow::Result<Access> {
    let remote = connect(context, &snapshot.groups, host).await?;
    let text = admin_kubeconfig(&remote).await?;
    let group = snapshot.group(host)?;
    let address = context.api_address(host.compute.address);
    let route = context.provider(&group.provider)?.route(address).await?;
    Ok(Access::new(&text, &route).await?)
}

/// What of the cluster matters here.
pub async fn view(context: &Context, access: &Access) -> Result<ClusterView, cluster::Error> {
    let (nodes, pending) =
        futures::future::try_join(cluster::list(&access.client), context.manifests.pending(&access.client))
            .await?;
    Ok(ClusterView { nodes, pending: pending.iter().map(cluster::Object::title).collect() })
}

/// Names of hosts in the order people expect.
pub fn sorted(snapshot: &Snapshot) -> Vec<&NodeName> {
    let mut names: Vec<&NodeName> = snapshot.hosts.keys().collect();
    names.sort_by_key(|name| super::decide::natural(name));
    names
}
