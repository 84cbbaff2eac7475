//! What is: providers, hosts and cluster are asked, and nothing is changed.

use std::collections::{BTreeMap, BTreeSet};

use common::metadata::NodeName;
use futures::{StreamExt, future::join_all, stream};

use super::{
    context::Context,
    snapshot::{Cluster, ClusterView, Group, Host, Removals, Role, Snapshot},
};
use crate::{
    bootstrap::{
        host::{self, HostReport, KubeadmState},
        kubeadm::admin_kubeconfig,
    },
    cluster::{self, Access},
    provider::{Compute, Ownership, Power},
};

/// Everything there is, and the way to the API if there is one.
pub async fn observe(context: &Context, parallel: usize) -> anyhow::Result<(Snapshot, Option<Access>)> {
    let mut pools = Vec::new();
    for seen in join_all(context.providers.values().map(|provider| provider.observe())).await {
        pools.extend(seen?);
    }
    let groups = context.groups(&pools);
    let mut hosts = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        let pool = pools.iter().find(|pool| pool.provider == group.provider && pool.name == group.pool);
        for compute in pool.map(|pool| pool.computes.as_slice()).unwrap_or_default() {
            let host = new_host(context, group, index, compute.clone())?;
            hosts.insert(compute.name.clone(), host);
        }
    }
    let looks = hosts.values().filter(|host| is_ours_and_on(host)).map(|host| async {
        let report = look(context, &groups, host).await;
        (host.compute.name.clone(), report.map_err(|error| error.to_string()))
    });
    let reports: Vec<_> =
        stream::iter(looks.collect::<Vec<_>>()).buffer_unordered(parallel.max(1)).collect().await;
    for (name, report) in reports {
        if let Some(host) = hosts.get_mut(&name) {
            host.report = Some(report);
        }
    }
    let mut snapshot = Snapshot {
        groups,
        hosts,
        cluster: Cluster::None,
        busy: BTreeSet::new(),
        applying: false,
        control_plane_busy: false,
        failed: BTreeMap::new(),
        cluster_failed: None,
        kubeadm_failures: BTreeMap::new(),
        removals: Removals::default(),
    };
    let (cluster, access) = look_at_cluster(context, &snapshot).await;
    snapshot.cluster = cluster;
    Ok((snapshot, access))
}

fn is_ours_and_on(host: &Host) -> bool {
    host.compute.ownership == Ownership::Ours && host.compute.power != Power::Off
}

/// A compute that was not asked yet.
pub fn new_host(context: &Context, group: &Group, index: usize, compute: Compute) -> anyhow::Result<Host> {
    let delivery = context.delivery(&group.provider, &compute.name, compute.address)?;
    Ok(Host { compute, group: index, report: None, wanted: Some((delivery.digest, delivery.plan)) })
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
        let role = snapshot.groups.get(host.group).map(|group| group.role);
        role == Some(Role::ControlPlane)
            && host.seen().is_some_and(|report| report.control_plane && report.kubeadm == KubeadmState::Done)
    })
}

async fn access_through(context: &Context, snapshot: &Snapshot, host: &Host) -> anyhow::Result<Access> {
    let remote = connect(context, &snapshot.groups, host).await?;
    let text = admin_kubeconfig(&remote).await?;
    let group = snapshot.groups.get(host.group).ok_or_else(|| anyhow::anyhow!("a host of no group"))?;
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
