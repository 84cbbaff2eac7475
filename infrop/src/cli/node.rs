//! `infrop node`: list, drain, reboot, replace.

use std::time::Duration;

use clap::{Args, Subcommand};
use common::{annotations, metadata::NodeName};

use super::{
    BAD_INPUT, DONE, INTERRUPTED, Shared,
    apply::{RunArguments, execute, unless_stopped},
    infrastructure::DocumentArguments,
    limit, node_reboot,
    output::say,
    progress::{Lines, Style},
    status::{self, StatusArguments},
};
use crate::{
    apply::{self, Agreed, Cluster, Removals, Snapshot, Stop, Writer},
    cluster::{self, Access, AtDeadline, Cordon, DrainRules, Drained, Fate},
};

/// What marks of these commands begin with; a rollout's has no blanks.
const MARK_PREFIX: &str = "infrop node ";

/// The mark of `drain`.
const DRAIN_MARK: &str = "infrop node drain";

const DRAIN_HELP: &str = "\
The node is cordoned, and its pods are evicted; budgets are honoured, so this may wait for other pods. Pods of DaemonSets \
stay. A pod that no controller would make again is lost with its eviction: while there is one, nothing is evicted, unless \
--unmanaged agrees to it. --undo lets pods come again, if it was this command that kept them away: the cordon of a person stays.

Example:
  infrop node drain worker-2 -f infrastructure.yaml
  infrop node drain worker-2 -f infrastructure.yaml --undo

Exit codes: 0 done, 1 failed, 5 someone else is at work, 64 bad input, 130 interrupted.";

const REBOOT_HELP: &str = "\
The node is drained, restarted in order, waited for until it is Ready in its new boot, and pods may come again. If it was \
cordoned before, it stays so. --force switches a host off and on that ssh does not reach; its provider has to be able \
to.

Example: infrop node reboot worker-2 -f infrastructure.yaml

Exit codes: 0 done, 1 failed, 5 someone else is at work, 64 bad input, 130 interrupted.";

const REPLACE_HELP: &str = "\
The node is taken out of the cluster and its compute given back; then `apply` brings another one. Also for a host that \
is dead: its etcd member is removed through another control plane. Progress, rules and exit codes are those of `infrop \
apply`.

Example: infrop node replace worker-2 -f infrastructure.yaml --yes";

#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// List computes and nodes; the table of `infrop status`.
    List(StatusArguments),
    /// Empty a node and keep pods away from it.
    #[command(after_help = DRAIN_HELP)]
    Drain(DrainArguments),
    /// Drain a node, restart its host, and let pods come again.
    #[command(after_help = REBOOT_HELP)]
    Reboot(node_reboot::RebootArguments),
    /// Remove a node, also a dead one, and bring another in its place.
    #[command(after_help = REPLACE_HELP)]
    Replace(ReplaceArguments),
}

impl NodeCommand {
    /// Whether it stops by itself at a safe point when it is asked to.
    pub(super) fn stops_by_itself(&self) -> bool {
        matches!(self, Self::Replace(_))
    }
}

#[derive(Debug, Args)]
pub(super) struct DrainArguments {
    /// The node.
    name: NodeName,

    #[command(flatten)]
    document: DocumentArguments,

    /// Let pods come again.
    #[arg(long)]
    undo: bool,

    #[command(flatten)]
    pods: PodArguments,

    /// How long it may take until all pods are gone, in minutes.
    #[arg(long, value_name = "MINUTES", default_value = "10", value_parser = limit::minutes)]
    timeout: Duration,

    /// Go on although someone else seems to be at work; only if you know that it is dead.
    #[arg(long)]
    take_over: bool,
}

/// What may be done to pods; also by `reboot`.
#[derive(Debug, Args)]
pub(super) struct PodArguments {
    /// Also evict pods that no controller makes again.
    #[arg(long)]
    unmanaged: bool,

    /// Delete pods that are left when the time is over, whatever their budgets say.
    #[arg(long)]
    then_delete: bool,
}

impl PodArguments {
    pub(super) fn rules(&self) -> DrainRules {
        let Self { unmanaged, then_delete } = self;
        DrainRules {
            unmanaged: if *unmanaged { Fate::Evict } else { Fate::Refuse },
            at_deadline: if *then_delete { AtDeadline::Delete } else { AtDeadline::GiveUp },
            ..DrainRules::default()
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ReplaceArguments {
    /// The node.
    name: NodeName,

    #[command(flatten)]
    document: DocumentArguments,

    #[command(flatten)]
    run: RunArguments,

    /// Really do it: everything on the host is lost.
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(command: NodeCommand, shared: &Shared, stop: Stop) -> anyhow::Result<u8> {
    match command {
        NodeCommand::List(arguments) => status::list(arguments, shared).await,
        NodeCommand::Drain(arguments) => drain(arguments, shared).await,
        NodeCommand::Reboot(arguments) => node_reboot::run(arguments, shared).await,
        NodeCommand::Replace(arguments) => replace(arguments, shared, stop).await,
    }
}

/// The API, or why there is none.
pub(super) fn answering<'a>(cluster: &Cluster, access: Option<&'a Access>) -> anyhow::Result<&'a Access> {
    match (access, cluster) {
        (Some(access), _) => Ok(access),
        (None, Cluster::Silent(why)) => anyhow::bail!("the cluster does not answer: {why}"),
        (None, _) => anyhow::bail!("there is no cluster yet: make it with `infrop apply`"),
    }
}

/// That a name is not there, and which are.
pub(super) fn unknown<'a>(name: &NodeName, known: impl Iterator<Item = &'a NodeName>) -> String {
    let mut known: Vec<&NodeName> = known.collect();
    known.sort_by_key(|name| apply::natural(name));
    let known: Vec<&str> = known.into_iter().map(NodeName::as_str).collect();
    if known.is_empty() {
        format!("there is no node {name}, nor any other")
    } else {
        format!("there is no node {name}; there are {}", known.join(", "))
    }
}

/// Says that a name is not there.
pub(super) fn refuse_unknown<'a>(name: &NodeName, known: impl Iterator<Item = &'a NodeName>) -> u8 {
    eprintln!("infrop: {}", unknown(name, known));
    BAD_INPUT
}

/// Why nothing may be done to a node, if a person paused it.
pub(super) fn pause(snapshot: &Snapshot, name: &NodeName) -> Option<String> {
    let reason = snapshot.cluster.node(name)?.annotations.get(annotations::PAUSED)?;
    let reason = annotations::shorten(reason);
    Some(format!("{name} is paused ({reason}): `infrop resume --node {name}` ends that"))
}

async fn drain(arguments: DrainArguments, shared: &Shared) -> anyhow::Result<u8> {
    let DrainArguments { name, document, undo, pods, timeout, take_over } = arguments;
    let context = document.context(shared).await?;
    let (snapshot, access) = apply::observe(&context, 32).await?;
    let access = answering(&snapshot.cluster, access.as_ref())?;
    if let Cluster::There(view) = &snapshot.cluster
        && !view.nodes.contains_key(&name)
    {
        return Ok(refuse_unknown(&name, view.nodes.keys()));
    }
    let progress = Lines::new(Style::for_people());
    let writer = Writer::enter(&context, take_over, &progress, Some(access)).await?;
    if undo {
        writer.during(let_in(&access.client, &name)).await?;
        say(format_args!("{name}: pods may come."))?;
        return Ok(DONE);
    }
    let undo = match writer.during(empty(access, &name, &pods.rules(), timeout, &progress)).await? {
        // It was cordoned before, by a person.
        Cordon::Foreign => format!("kubectl uncordon {name}"),
        Cordon::None | Cordon::Marked(_) => format!("infrop node drain {name} {} --undo", document.words()),
    };
    say(format_args!("{name} is empty. `{undo}` lets pods come again."))?;
    Ok(DONE)
}

/// Cordons and drains a node; gives what its cordon was or became.
async fn empty(
    access: &Access,
    name: &NodeName,
    rules: &DrainRules,
    limit: Duration,
    progress: &Lines,
) -> anyhow::Result<Cordon> {
    let what = format!("drain {name}");
    let work = async {
        let cordon = cluster::cordon(&access.client, name, DRAIN_MARK).await?;
        let note = |why| progress.note(name, &what, why);
        Ok((cordon, cluster::drain(&access.direct, name, rules, limit, &note).await?))
    };
    let (cordon, Drained { evicted: _, deleted }) = progress.step(name, what.clone(), work).await?;
    if !deleted.is_empty() {
        let deleted: Vec<String> = deleted.iter().map(ToString::to_string).collect();
        say(format_args!("deleted, for their time was over: {}", deleted.join(", ")))?;
    }
    Ok(cordon)
}

/// Lifts the cordon of a command.
async fn let_in(client: &kube::Client, name: &NodeName) -> anyhow::Result<()> {
    match cluster::uncordon(client, name, |mark| mark.starts_with(MARK_PREFIX)).await? {
        Cordon::None => Ok(()),
        Cordon::Marked(mark) => {
            anyhow::bail!("{name} is cordoned by {}, which lifts it itself", annotations::shorten(&mark))
        }
        Cordon::Foreign => {
            anyhow::bail!("{name} was cordoned by a person: `kubectl uncordon {name}` lifts that")
        }
    }
}

async fn replace(arguments: ReplaceArguments, shared: &Shared, stop: Stop) -> anyhow::Result<u8> {
    let ReplaceArguments { name, document, run, yes } = arguments;
    if !yes {
        eprintln!("infrop: everything on {name} would be lost: repeat it with --yes");
        return Ok(BAD_INPUT);
    }
    let looked = async {
        let context = document.context(shared).await?;
        let pools = apply::pools(&context, 32).await?;
        Ok((context, pools))
    };
    let Some((context, pools)) = unless_stopped(looked, &stop).await? else { return Ok(INTERRUPTED) };
    let names: Vec<_> = pools.iter().flat_map(|pool| &pool.computes).map(|compute| &compute.name).collect();
    if !names.contains(&&name) {
        return Ok(refuse_unknown(&name, names.into_iter()));
    }
    let removals = Removals {
        limit: 1,
        replace: [name.clone()].into(),
        agreed: Agreed::These([name].into()),
        ..Removals::default()
    };
    let metrics = run.metrics()?;
    execute(&context, &run, metrics, removals, stop).await?.tell(&document, run.output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_comes_with_those_there_are() {
        let name = |text: &str| text.parse::<NodeName>().unwrap();
        let known = [name("w-10"), name("w-2")];
        assert_eq!(unknown(&name("w-3"), known.iter()), "there is no node w-3; there are w-2, w-10");
        assert_eq!(unknown(&name("w-3"), [].iter()), "there is no node w-3, nor any other");
    }

    #[test]
    fn marks_of_commands_are_told_from_those_of_rollouts() {
        assert!(DRAIN_MARK.starts_with(MARK_PREFIX) && node_reboot::MARK.starts_with(MARK_PREFIX));
    }
}
