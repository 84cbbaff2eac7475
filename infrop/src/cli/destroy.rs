//! `infrop destroy`: gives everything back.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::Args;
use common::metadata::NodeName;
use futures::{StreamExt, stream};
use serde::Serialize;

use super::{
    BLOCKED, DONE, Shared,
    confirm::{ask, can_ask, with_all_on},
    infrastructure::DocumentArguments,
    output::{Output, print_json, say},
    progress::{Lines, Style},
};
use crate::{
    apply::{self, Context, Writer},
    bootstrap::{host, kubeadm},
    provider::{Compute, Ownership, Pool},
};

/// How many hosts are worked on at once.
const PARALLEL: usize = 32;

const HELP: &str = "\
All computes of the infrastructure are given back, and the cluster on them is lost. Given hosts (provider static) are \
reset first and keep their other software. A host that does not answer keeps what it has and is named; one that \
belongs to somebody else is left alone. Without --yes it asks on a terminal, and elsewhere only says what would go.

Example: infrop destroy -f infrastructure.yaml --yes

Exit codes: 0 all are given back, 1 failed, 3 some are not (each has its reason), 5 someone \
else is at work, 64 bad input, 130 interrupted.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct DestroyArguments {
    #[command(flatten)]
    document: DocumentArguments,

    /// Really do it.
    #[arg(long)]
    yes: bool,

    /// Go on although someone else seems to be at work; only if you know that it is dead.
    #[arg(long)]
    take_over: bool,

    /// The form of the answer.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// What became of the hosts.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    given_back: Vec<NodeName>,
    /// Those that were not, and why.
    failed: BTreeMap<NodeName, String>,
    /// Those of others.
    left_alone: BTreeMap<NodeName, String>,
}

pub(super) async fn run(arguments: DestroyArguments, shared: &Shared) -> anyhow::Result<u8> {
    let DestroyArguments { document, yes, take_over, output } = arguments;
    let context = document.context(shared).await?;
    let pools = apply::pools(&context).await?;
    let (ours, mut answer) = sort(&pools);
    let names: Vec<String> = ours.iter().map(|(_, compute)| compute.name.to_string()).collect();
    if !yes && !names.is_empty() {
        let what = with_all_on(&names);
        if !can_ask() {
            bail!("this would give back {what}: repeat it with --yes");
        }
        if !ask(&format!("Give back {what}?")).await? {
            bail!("nothing was given back");
        }
    }
    let progress = Lines::new(Style::for_people());
    let (_, access) = apply::observe_in(&context, &pools, PARALLEL).await;
    // Not renewed: where it stands goes with the hosts.
    let writer = Writer::enter(&context, take_over, &progress, access.as_ref()).await?;
    let work = ours.iter().map(|(pool, compute)| {
        let (context, name) = (&context, &compute.name);
        let result = progress.step(name, format!("give {name} back"), give_back(context, pool, compute));
        async move { (name, result.await) }
    });
    let results: Vec<_> = stream::iter(work.collect::<Vec<_>>()).buffer_unordered(PARALLEL).collect().await;
    for (name, result) in results {
        match result {
            Ok(()) => answer.given_back.push(name.clone()),
            Err(error) => drop(answer.failed.insert(name.clone(), format!("{error:#}"))),
        }
    }
    answer.given_back.sort_by_key(apply::natural);
    if answer.failed.is_empty() {
        for provider in context.providers.values() {
            provider.release().await?;
        }
    }
    if access.is_none() {
        writer.leave().await;
    }
    progress.end();
    print(&answer, output)?;
    Ok(if answer.failed.is_empty() { DONE } else { BLOCKED })
}

/// Which computes are ours to give back, and what is known of the others.
fn sort(pools: &[Pool]) -> (Vec<(&Pool, &Compute)>, Answer) {
    let mut ours = Vec::new();
    let mut answer = Answer::default();
    for (pool, compute) in
        pools.iter().flat_map(|pool| pool.computes.iter().map(move |compute| (pool, compute)))
    {
        let name = compute.name.clone();
        match &compute.ownership {
            Ownership::Ours => ours.push((pool, compute)),
            Ownership::Foreign(owner) => {
                answer.left_alone.insert(name, format!("it belongs to {owner}"));
            }
            // It may be ours, so it is not nothing.
            Ownership::Unknown(why) => {
                answer.failed.insert(name, why.clone());
            }
        }
    }
    (ours, answer)
}

async fn give_back(context: &Context, pool: &Pool, compute: &Compute) -> anyhow::Result<()> {
    let provider = context.provider(&pool.provider)?;
    if !provider.erases() {
        let remote = context.connections.get(&compute.name, &provider.access(compute)?).await?;
        let report = host::inspect(&remote).await?;
        if report.kubeadm != host::KubeadmState::None {
            kubeadm::reset(&remote, &report.kubeadm).await?;
        }
    }
    Ok(provider.delete(compute).await?)
}

fn print(answer: &Answer, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        return print_json(answer);
    }
    let Answer { given_back, failed, left_alone } = answer;
    say(format_args!("{} hosts were given back.", given_back.len()))?;
    for (name, why) in left_alone {
        say(format_args!("{name} was left alone: {why}"))?;
    }
    for (name, why) in failed {
        eprintln!("infrop: {name} was not given back: {why}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{Power, Spares};

    #[test]
    fn only_what_is_ours_is_given_back() {
        let compute = |name: &str, ownership| Compute {
            name: name.parse().unwrap(),
            pool: "p".parse().unwrap(),
            address: "10.0.0.1".parse().unwrap(),
            ownership,
            power: Power::On,
        };
        let computes = vec![
            compute("a", Ownership::Ours),
            compute("b", Ownership::Foreign("someone".into())),
            compute("c", Ownership::Unknown("no route".into())),
        ];
        let pool = Pool {
            provider: "here".parse().unwrap(),
            name: "p".parse().unwrap(),
            computes,
            spares: Spares::Numbered,
        };
        let (ours, answer) = sort(std::slice::from_ref(&pool));
        let ours: Vec<&str> = ours.iter().map(|(_, compute)| compute.name.as_str()).collect();
        assert_eq!(ours, ["a"]);
        let json = serde_json::to_value(&answer).unwrap();
        let expected = serde_json::json!({
            "givenBack": [], "failed": { "c": "no route" }, "leftAlone": { "b": "it belongs to someone" },
        });
        assert_eq!(json, expected);
    }
}
