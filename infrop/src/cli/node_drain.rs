//! `infrop node drain`: a node without pods, and pods let in again.

use std::time::Duration;

use clap::Args;
use common::{annotations, metadata::NodeName};
use serde::Serialize;

use super::{
    DONE, Shared,
    apply::before_hosts,
    infrastructure::DocumentArguments,
    limit,
    node::{answering, refuse_unknown},
    output::{Output, print_json, say},
    progress::{Lines, Telling},
};
use crate::{
    apply::{self, Cluster, Stop, Stopped, Writer, unless_stopped},
    cluster::{self, Access, AtDeadline, Cordon, DrainRules, Drained, Fate},
};

/// What marks of commands about nodes begin with; a rollout's has no blanks.
const MARK_PREFIX: &str = "infrop node ";

/// The mark of this one.
const MARK: &str = "infrop node drain";

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

    #[command(flatten)]
    telling: Telling,
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

/// What programs are told.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    node: &'a NodeName,
    cordoned: bool,
    /// Pods that were evicted, and those deleted when their time was over, as `namespace/name`.
    evicted: Vec<String>,
    deleted: Vec<String>,
    /// What lets pods come again.
    undo: Option<String>,
}

pub(super) async fn run(arguments: DrainArguments, shared: &Shared, stop: Stop) -> anyhow::Result<u8> {
    let DrainArguments { name, document, undo, pods, timeout, take_over, telling } = arguments;
    let looked = async {
        let context = document.context(shared).await?;
        let seen = apply::observe(&context, 32).await?;
        Ok((context, seen))
    };
    let (context, (snapshot, access)) = before_hosts(looked, &stop).await?;
    let access = answering(&snapshot.cluster, access.as_ref())?;
    if let Cluster::There(view) = &snapshot.cluster
        && !view.nodes.contains_key(&name)
    {
        return Ok(refuse_unknown(&name, view.nodes.keys()));
    }
    let progress = telling.lines();
    let writer = Writer::enter(&context, take_over, &progress, Some(access)).await?;
    let open = Answer { node: &name, cordoned: false, evicted: Vec::new(), deleted: Vec::new(), undo: None };
    let answer = if undo {
        writer.during(let_in(&access.client, &name)).await?;
        open
    } else {
        let undo = format!("infrop node drain {name} {} --undo", document.words());
        let rules = pods.rules();
        let work = empty(access, &name, &rules, timeout, &progress, &stop);
        let (cordon, Drained { evicted, deleted }) = writer.during(work).await.map_err(|error| {
            if !error.is::<Stopped>() {
                return error;
            }
            error.context(format!("{name} stays cordoned; run the same command again to go on, or `{undo}`"))
        })?;
        let undo = match cordon {
            // It was cordoned before, by a person.
            Cordon::Foreign => format!("kubectl uncordon {name}"),
            Cordon::None | Cordon::Marked(_) => undo,
        };
        let names = |pods: std::collections::BTreeSet<_>| pods.iter().map(ToString::to_string).collect();
        Answer { cordoned: true, evicted: names(evicted), deleted: names(deleted), undo: Some(undo), ..open }
    };
    progress.end();
    tell(&answer, telling.output)?;
    Ok(DONE)
}

fn tell(answer: &Answer, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        return print_json(answer);
    }
    let Answer { node, cordoned: _, evicted: _, deleted, undo } = answer;
    if !deleted.is_empty() {
        say(format_args!("deleted, for their time was over: {}", deleted.join(", ")))?;
    }
    match undo {
        Some(undo) => say(format_args!("{node} is empty. `{undo}` lets pods come again.")),
        None => say(format_args!("{node}: pods may come.")),
    }
}

/// Cordons and drains a node; gives what its cordon was or became. The drain can be left at any moment.
async fn empty(
    access: &Access,
    name: &NodeName,
    rules: &DrainRules,
    limit: Duration,
    progress: &Lines,
    stop: &Stop,
) -> anyhow::Result<(Cordon, Drained)> {
    let what = format!("drain {name}");
    let work = async {
        let cordon = cluster::cordon(&access.client, name, MARK).await?;
        let note = |why| progress.note(name, &what, why);
        let drain = async { Ok(cluster::drain(&access.direct, name, rules, limit, &note).await?) };
        Ok((cordon, unless_stopped(drain, stop).await?))
    };
    progress.step(name, what.clone(), work).await
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::node_reboot;

    #[test]
    fn marks_of_commands_are_told_from_those_of_rollouts() {
        assert!(MARK.starts_with(MARK_PREFIX) && node_reboot::MARK.starts_with(MARK_PREFIX));
    }
}
