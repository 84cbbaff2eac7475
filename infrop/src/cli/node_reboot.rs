//! `infrop node reboot`: a restart in order, with the node emptied before and let in again after.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use common::{metadata::NodeName, state::Phase};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    DONE, Shared,
    apply::before_hosts,
    infrastructure::DocumentArguments,
    limit,
    node::{pause, refuse_unknown},
    node_drain::PodArguments,
    output::{Output, print_json, say},
    progress::{Lines, Telling},
};
use crate::{
    apply::{self, Cluster, Context, Host, Snapshot, Stop, Writer, unless_stopped},
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

    #[command(flatten)]
    telling: Telling,
}

/// What programs are told.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    node: NodeName,
    /// The boot it is in now.
    boot_id: String,
    /// Whether it was cordoned before, and so stays it.
    cordoned: bool,
}

pub(super) async fn run(arguments: RebootArguments, shared: &Shared, stop: Stop) -> anyhow::Result<u8> {
    let RebootArguments { name, document, force, pods, timeout, take_over, telling } = arguments;
    let looked = async {
        let context = document.context(shared).await?;
        let seen = apply::observe(&context, PARALLEL).await?;
        Ok((context, seen))
    };
    let (context, (snapshot, access)) = before_hosts(looked, &stop).await?;
    let Some(host) = snapshot.hosts.get(&name) else {
        return Ok(refuse_unknown(&name, snapshot.hosts.keys()));
    };
    // Said before anything is written, also who we are.
    if let Some(why) = obstacle(&snapshot, &name, host, force) {
        bail!(why);
    }
    let progress = telling.lines();
    let writer = Writer::enter(&context, take_over, &progress, access.as_ref()).await?;
    let reboot = Reboot {
        context: &context,
        name: &name,
        force,
        rules: &pods.rules(),
        limit: timeout,
        undo: &format!("infrop node drain {name} {} --undo", document.words()),
        progress: &progress,
        stop: &stop,
    };
    let answer = writer.during(reboot.run()).await?;
    progress.end();
    match telling.output {
        Output::Json => print_json(&answer)?,
        Output::Text => {
            let cordon = if answer.cordoned { "; it was cordoned before, and stays so" } else { "" };
            say(format_args!("{name} was restarted{cordon}."))?;
        }
    }
    Ok(DONE)
}

/// A restart.
struct Reboot<'a> {
    context: &'a Context,
    name: &'a NodeName,
    force: bool,
    rules: &'a DrainRules,
    /// Of each part.
    limit: Duration,
    /// The command that lets pods come again.
    undo: &'a str,
    progress: &'a Lines,
    stop: &'a Stop,
}

impl Reboot<'_> {
    /// Does it. Each wait can be left; what is asked of a host or its provider cannot.
    async fn run(&self) -> anyhow::Result<Answer> {
        let Self { context, name, force, .. } = *self;
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
                let note = self.notes(&what);
                let drain = async { Ok(cluster::drain(direct, name, self.rules, self.limit, &note).await?) };
                self.wait(&what, drain).await.with_context(|| self.stays(ours))?;
            }
        }
        // The drain may have taken minutes.
        refuse_if_missed(client, &snapshot, name, force).await.with_context(|| self.stays(ours))?;
        let what = format!("restart {name}");
        let asked = self.progress.step(name, what, restart(context, &snapshot, host)).await;
        asked.with_context(|| self.stays(ours))?;
        let what = format!("wait until {name} is back");
        let back = self.wait(&what, self.back(&snapshot, host, self.notes(&what))).await;
        let boot_id = back.with_context(|| self.restarts(ours))?;
        if let Some(client) = client {
            let what = format!("wait until {name} is Ready");
            let note = self.notes(&what);
            let ready = async {
                let ready = cluster::wait_until_ready(client, name, &boot_id, self.limit, &note).await;
                ready.map_err(|why| anyhow::anyhow!("its Node is not Ready: {why}"))
            };
            self.wait(&what, ready).await.with_context(|| self.restarts(ours))?;
            if ours {
                cluster::uncordon(client, name, |mark| mark == MARK).await?;
            }
        }
        Ok(Answer { node: name.clone(), boot_id, cordoned: client.is_some() && !ours })
    }

    /// Waits for something, unless someone asks to stop.
    async fn wait<T>(&self, what: &str, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        self.progress.step(self.name, what.to_owned(), unless_stopped(work, self.stop)).await
    }

    /// Says why something takes long.
    fn notes(&self, what: &str) -> impl Fn(String) {
        move |why| self.progress.note(self.name, what, why)
    }

    /// Waits until the host answers in another boot, whose id it gives.
    async fn back(&self, snapshot: &Snapshot, host: &Host, note: impl Fn(String)) -> anyhow::Result<String> {
        let Self { context, name, limit, .. } = self;
        let before = host.seen().map(|report| &report.boot_id);
        let deadline = Instant::now() + *limit;
        loop {
            let why = match apply::look(context, &snapshot.groups, host).await {
                Ok(report) if before != Some(&report.boot_id) => return Ok(report.boot_id),
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

    /// What is left of it before the host was asked.
    fn stays(&self, ours: bool) -> String {
        let Self { name, undo, .. } = self;
        if ours {
            format!("{name} stays cordoned; run the same command again to go on, or `{undo}`")
        } else {
            format!("{name} was not restarted")
        }
    }

    /// What is left of it afterwards.
    fn restarts(&self, ours: bool) -> String {
        let Self { name, undo, .. } = self;
        if ours {
            format!("{name} was asked to restart, and stays cordoned until `{undo}`")
        } else {
            format!("{name} was asked to restart")
        }
    }
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

/// Has a host restart.
async fn restart(context: &Context, snapshot: &Snapshot, host: &Host) -> anyhow::Result<()> {
    if host.seen().is_some() {
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
    context.connections.forget(&host.compute.name);
    Ok(())
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
