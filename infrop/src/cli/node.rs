//! `infrop node`: list, drain, reboot, replace.

use clap::{Args, Subcommand};
use common::{annotations, metadata::NodeName};

use super::{
    BAD_INPUT, Shared,
    apply::{RunArguments, before_hosts, execute},
    infrastructure::DocumentArguments,
    node_drain, node_reboot,
    status::{self, StatusArguments},
};
use crate::{
    apply::{self, Agreed, Cluster, Removals, Snapshot, Stop},
    cluster::Access,
};

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
    Drain(node_drain::DrainArguments),
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
        !matches!(self, Self::List(_))
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
        NodeCommand::Drain(arguments) => node_drain::run(arguments, shared, stop).await,
        NodeCommand::Reboot(arguments) => node_reboot::run(arguments, shared, stop).await,
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
    let (context, pools) = before_hosts(looked, &stop).await?;
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
    execute(&context, &run, metrics, removals, stop).await?.tell(&document, run.telling.output)
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
}
