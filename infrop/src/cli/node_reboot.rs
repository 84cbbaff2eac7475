//! `infrop node reboot`: a restart in order, with the node emptied before and let in again after.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use common::{metadata::NodeName, state::Phase};
use tokio::time::{Instant, sleep};

use super::{
    DONE, Shared,
    infrastructure::DocumentArguments,
    limit,
    node::{PodArguments, pause, refuse_unknown},
    output::say,
    progress::{Lines, Style},
};
use crate::{
    apply::{self, Cluster, Context, Host, Snapshot, Writer},
    bootstrap,
    cluster::{self, Clients, Cordon, DrainRules, NodeView},
    provider::{Ownership, Power},
    rollout::{
        etcd::{self, Leaves, missed},
        snapshot::Etcd,
    },
};

/// The mark of its cordons.
pub(super) const MARK: &str = "infrop node reboot";

/// To ask for a restart.
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// How many hosts are asked at once.
const PARALLEL: usize = 32;

/// Between two looks at a host that restarts.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct RebootArguments {
    /// The node.
    name: NodeName,

    #[command(flatten)]
    document: DocumentArguments,

    /// Switch the host off and on if ssh does not reach it; restart it undrained if the API does not answer, and unseen if etcd does not.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    pods: PodArguments,

    /// How long each part may take, in minutes: until it is empty, until it is back, until it is Ready.
    #[arg(long, value_name = "MINUTES", default_value = "10", value_parser = limit::minutes)]
    timeout: Duration,

    /// Go on although someone else seems to be at work; only if you know that it is dead.
    #[arg(long)]
    take_over: bool,
}

pub(super) async fn run(arguments: RebootArguments, shared: &Shared) -> anyhow::Result<u8> {
    let RebootArguments { name, document, force, pods, timeout, take_over } = arguments;
    let context = document.context(shared).await?;
    let (snapshot, access) = apply::observe(&context, PARALLEL).await?;
    let Some(host) = snapshot.hosts.get(&name) else {
        return Ok(refuse_unknown(&name, snapshot.hosts.keys()));
    };
    // Said before anything is written, also who we are.
    if let Some(why) = obstacle(&snapshot, &name, host, force) {
        bail!(why);
    }
    let progress = Lines::new(Style::for_people());
    let writer = Writer::enter(&context, take_over, &progress, access.as_ref()).await?;
    let cordon = writer.during(reboot(&context, &name, force, &pods.rules(), timeout, &progress)).await?;
    say(format_args!("{name} was restarted{cordon}."))?;
    Ok(DONE)
}

/// Does it; gives what is to be said of a cordon that stays.
async fn reboot(
    context: &Context,
    name: &NodeName,
    force: bool,
    rules: &DrainRules,
    limit: Duration,
    progress: &Lines,
) -> anyhow::Result<&'static str> {
    // What was seen before may have been changed by the writer before us.
    let (snapshot, access) = apply::observe(context, PARALLEL).await?;
    let host = snapshot.hosts.get(name).with_context(|| format!("{name} is gone"))?;
    if let Some(why) = obstacle(&snapshot, name, host, force) {
        bail!(why);
    }
    let is_node = snapshot.cluster.node(name).is_some();
    let access = access.as_ref().filter(|_| is_node);
    let client = access.map(|access| &access.client);
    refuse_if_missed(client, &snapshot, name, force).await?;
    let mut ours = false;
    if let Some(Clients { client, direct }) = access.map(|access| &access.clients) {
        ours = cluster::cordon(client, name, MARK).await? == Cordon::Marked(MARK.to_owned());
        // Pods of a host that is dead cannot end: their end is waited for after it is back.
        if host.seen().is_some() {
            let what = format!("drain {name}");
            let note = |why| progress.note(name, &what, why);
            let work = async { Ok(cluster::drain(direct, name, rules, limit, &note).await?) };
            progress.step(name, what.clone(), work).await.with_context(|| stays(name, ours))?;
        }
    }
    // The drain may have taken minutes.
    refuse_if_missed(client, &snapshot, name, force).await.with_context(|| stays(name, ours))?;
    let what = format!("restart {name}");
    let work = restart(context, &snapshot, host, limit, |why| progress.note(name, &what, why));
    let boot = progress.step(name, what.clone(), work).await.with_context(|| stays(name, ours))?;
    if let Some(client) = client {
        let what = format!("wait until {name} is Ready");
        let note = |why| progress.note(name, &what, why);
        let work = async {
            let ready = cluster::wait_until_ready(client, name, &boot, limit, &note).await;
            ready.map_err(|why| anyhow::anyhow!("its Node is not Ready: {why}"))
        };
        progress.step(name, what.clone(), work).await.with_context(|| stays(name, ours))?;
        if ours {
            cluster::uncordon(client, name, |mark| mark == MARK).await?;
        }
    }
    Ok(if client.is_some() && !ours { "; it was cordoned before, and stays so" } else { "" })
}

/// A control plane is not restarted while etcd could not decide without it. A person may know better of an etcd that does
/// not answer.
async fn refuse_if_missed(
    client: Option<&kube::Client>,
    snapshot: &Snapshot,
    name: &NodeName,
    force: bool,
) -> anyhow::Result<()> {
    let is_plane = snapshot.cluster.node(name).is_some_and(|node| node.control_plane);
    let Some(client) = client.filter(|_| is_plane) else { return Ok(()) };
    let etcd = etcd::look(client).await;
    match missed(&etcd, name, Leaves::ForNow) {
        Some(_) if force && matches!(etcd, Etcd::Silent(_)) => Ok(()),
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

fn stays(name: &NodeName, ours: bool) -> String {
    if ours {
        format!("{name} stays cordoned; run the same command again to go on, or `infrop node drain --undo`")
    } else {
        format!("cannot restart {name}")
    }
}

/// Why a host may not be restarted now.
fn obstacle(snapshot: &Snapshot, name: &NodeName, host: &Host, force: bool) -> Option<String> {
    match &host.compute.ownership {
        Ownership::Foreign(owner) => return Some(format!("{name} belongs to {owner}")),
        // A host that is dead cannot say whose it is; its Node can.
        Ownership::Unknown(why) if !force || snapshot.cluster.node(name).is_none() => {
            return Some(format!("nobody knows what is on {name}: {why}"));
        }
        Ownership::Unknown(_) | Ownership::Ours => {}
    }
    if let Some(why) = pause(snapshot, name) {
        return Some(why);
    }
    let Some(report) = host.seen() else {
        let why = host.report.as_ref().and_then(|report| report.as_ref().err());
        let why = why.map_or("it is switched off", String::as_str);
        return (!force).then(|| format!("{name} does not answer: {why}; --force switches it off and on"));
    };
    if let Some(state) = report.agent.as_ref().filter(|state| is_at_work(state.phase)) {
        return Some(format!("the node-agent of {name} is at work ({}: {})", state.phase, state.message));
    }
    match &snapshot.cluster {
        Cluster::Silent(why) if !force => {
            Some(format!("{name} cannot be drained, for the API does not answer: {why}; --force goes on"))
        }
        Cluster::Silent(_) | Cluster::None => None,
        Cluster::There(view) => quorum(&view.nodes, name),
    }
}

fn is_at_work(phase: Phase) -> bool {
    match phase {
        Phase::Changing | Phase::Rebooting | Phase::Verifying => true,
        Phase::Idle | Phase::Waiting | Phase::Refused | Phase::Retrying | Phase::Quarantined => false,
    }
}

/// Why etcd could not decide without this node, although it can with it.
fn quorum(nodes: &BTreeMap<NodeName, NodeView>, name: &NodeName) -> Option<String> {
    let planes = || nodes.values().filter(|node| node.control_plane);
    let node = nodes.get(name).filter(|node| node.control_plane && node.ready.is_ok())?;
    let (all, needed) = (planes().count(), planes().count() / 2 + 1);
    let others = planes().filter(|other| other.name != node.name && other.ready.is_ok()).count();
    // One or two of them never have one to spare.
    (all > 2 && others < needed).then(|| {
        format!("without {name} {others} of {all} control planes would be well, and etcd needs {needed}")
    })
}

/// Restarts a host and waits until it answers in another boot, whose id it gives.
async fn restart(
    context: &Context,
    snapshot: &Snapshot,
    host: &Host,
    limit: Duration,
    note: impl Fn(String),
) -> anyhow::Result<String> {
    let name = &host.compute.name;
    let before = host.seen().map(|report| report.boot_id.clone());
    if before.is_some() {
        let remote = apply::connect(context, &snapshot.groups, host).await?;
        match remote.run("restart", ASK_LIMIT, "systemctl reboot").await {
            // It may be gone before it says that it goes.
            Ok(_) | Err(bootstrap::Error::Connection { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    } else {
        let group = snapshot.group(host)?;
        let provider = context.provider(&group.provider)?;
        if host.compute.power != Power::Off {
            provider.power(&host.compute, Power::Off).await?;
        }
        provider.power(&host.compute, Power::On).await?;
    }
    context.connections.forget(name);
    let deadline = Instant::now() + limit;
    loop {
        let why = match apply::look(context, &snapshot.groups, host).await {
            Ok(report) if before.as_ref() != Some(&report.boot_id) => return Ok(report.boot_id),
            Ok(_) => "it has not gone down yet".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() > deadline {
            bail!("{name} is not back after {} min: {why}", limit.as_secs() / 60);
        }
        note(why);
        sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_plane_is_not_restarted_if_etcd_could_not_decide_meanwhile() {
        let node = |number: usize, control_plane: bool, ready: bool| NodeView {
            name: format!("cp-{number}").parse().unwrap(),
            uid: String::new(),
            resource_version: String::new(),
            ready: if ready { Ok(()) } else { Err("away".into()) },
            since: None,
            cordoned: false,
            taints: Vec::new(),
            control_plane,
            kubelet: String::new(),
            boot_id: String::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        };
        // Whether each control plane is Ready; the first is to be restarted.
        for (ready, allowed) in [
            (&[true][..], true),
            (&[true, true], true),
            (&[true, true, true], true),
            (&[true, false, true], false),
            // It is away already.
            (&[false, false, true], true),
            (&[true, false, true, true, true], true),
            (&[true, false, false, true, true], false),
        ] {
            let mut nodes: BTreeMap<_, _> = ready
                .iter()
                .enumerate()
                .map(|(number, ready)| node(number, true, *ready))
                .map(|node| (node.name.clone(), node))
                .collect();
            let worker = node(9, false, true);
            nodes.insert(worker.name.clone(), worker.clone());
            assert_eq!(quorum(&nodes, &"cp-0".parse().unwrap()).is_none(), allowed, "{ready:?}");
            assert_eq!(quorum(&nodes, &worker.name), None);
        }
    }
}
