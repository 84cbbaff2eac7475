//! `infrop destroy`: gives everything back.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::Args;
use common::metadata::NodeName;
use futures::{StreamExt, stream};
use serde::Serialize;

use super::{
    BLOCKED, DONE, Shared,
    apply::before_hosts,
    confirm::{ask, can_ask, with_all_on},
    infrastructure::DocumentArguments,
    output::{Output, print_json, say},
    progress::{Lines, Telling},
};
use crate::{
    apply::{self, Cluster, Context, Stop, Stopped, Writer},
    bootstrap::{host, kubeadm},
    provider::{self, Compute, Ownership, Pool},
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

    #[command(flatten)]
    telling: Telling,
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

pub(super) async fn run(arguments: DestroyArguments, shared: &Shared, stop: Stop) -> anyhow::Result<u8> {
    let DestroyArguments { document, yes, take_over, telling } = arguments;
    let looked = async {
        let context = document.look(shared).await?;
        let pools = apply::pools(&context, PARALLEL).await?;
        Ok((context, pools))
    };
    let (context, pools) = before_hosts(looked, &stop).await?;
    let (ours, mut answer) = sort(&pools);
    let names: Vec<String> = ours.iter().map(|(_, compute)| compute.name.to_string()).collect();
    if !yes && !names.is_empty() {
        let what = with_all_on(&names);
        if !can_ask() {
            bail!("this would give back {what}: repeat it with --yes");
        }
        if !before_hosts(ask(&format!("Give back {what}?")), &stop).await? {
            bail!("nothing was given back");
        }
    }
    let progress = telling.lines();
    answer = destroy(&context, &pools, ours, answer, take_over, &progress, &stop).await?;
    progress.end();
    print(&answer, telling.output)?;
    if answer.failed.is_empty() {
        return Ok(DONE);
    }
    if *stop.borrow() {
        return Err(Stopped.into());
    }
    Ok(BLOCKED)
}

/// Gives them back, as the only writer. The Lease goes with the cluster, so there is a mark at the provider as well: the
/// next writer, who finds no cluster, looks there.
async fn destroy(
    context: &Context,
    pools: &[Pool],
    ours: Vec<(&Pool, &Compute)>,
    mut answer: Answer,
    take_over: bool,
    progress: &Lines,
    stop: &Stop,
) -> anyhow::Result<Answer> {
    let (snapshot, access) = apply::observe_in(context, pools, PARALLEL).await;
    if let Cluster::Silent(why) = &snapshot.cluster
        && !take_over
    {
        bail!(
            "the API does not answer, and there stands who is at work ({why}): try again in a minute, or give it back with \
             --take-over if you know that nobody is"
        );
    }
    let writer = match Writer::enter_both(context, take_over, progress, access.as_ref()).await {
        Ok(writer) => writer,
        // Where no host can be asked and none is to be given back, there is nothing to be alone at.
        Err(error) if ours.is_empty() && error.is::<provider::Error>() => return Ok(answer),
        Err(error) => return Err(error),
    };
    let work = async {
        let work = ours.iter().map(|(pool, compute)| {
            let name = &compute.name;
            let give_back = async move {
                if *stop.borrow() {
                    bail!("it was not begun; run the same command again to go on");
                }
                give_back(context, pool, compute).await
            };
            let result = progress.step(name, format!("give {name} back"), give_back);
            async move { (name, result.await) }
        });
        let results: Vec<_> =
            stream::iter(work.collect::<Vec<_>>()).buffer_unordered(PARALLEL).collect().await;
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
        Ok(answer)
    };
    writer.during(work).await
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
    use std::time::Duration;

    use tokio::{sync::watch, time::sleep};

    use super::*;
    use crate::{
        apply::testing::{Fake, lab_context},
        cli::progress::Style,
        provider::{Power, Spares},
        writer::{self, FileRecord, Holding, Record as _},
    };

    #[tokio::test(start_paused = true)]
    async fn nobody_else_gets_in_before_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let record = directory.path().join("writer.json");
        let computes = vec![Fake::compute("control-1", Power::Off)];
        let fake = Fake { computes, patience: Duration::from_mins(1), ..Fake::new(&record) };
        let context = lab_context(fake);
        let pools = apply::pools(&context, 1).await.unwrap();
        let (ours, answer) = sort(&pools);
        let (progress, (_ask, stop)) = (Lines::new(Style::Json), watch::channel(false));
        let other = async {
            for _ in 0..2 {
                sleep(Duration::from_secs(18)).await;
                let record = Box::new(FileRecord::new(record.clone()));
                let refused = Holding::acquire(record, "b", false, &|_| ()).await;
                assert!(matches!(refused, Err(writer::Error::Held { .. })), "{refused:?}");
            }
        };
        let (ended, ()) =
            tokio::join!(destroy(&context, &pools, ours, answer, false, &progress, &stop), other);
        assert_eq!(ended.unwrap().given_back, ["control-1".parse().unwrap()]);
        assert_eq!(FileRecord::new(record).read().await.unwrap().entry.unwrap().holder, "");
    }

    #[tokio::test]
    async fn whoever_asks_it_to_stop_keeps_what_was_not_begun() {
        let directory = tempfile::tempdir().unwrap();
        let computes = vec![Fake::compute("control-1", Power::Off)];
        let context = lab_context(Fake { computes, ..Fake::new(&directory.path().join("writer.json")) });
        let pools = apply::pools(&context, 1).await.unwrap();
        let (ours, answer) = sort(&pools);
        let (progress, (_ask, stop)) = (Lines::new(Style::Json), watch::channel(true));
        let answer = destroy(&context, &pools, ours, answer, false, &progress, &stop).await.unwrap();
        assert!(answer.given_back.is_empty(), "{answer:?}");
        let why = &answer.failed[&"control-1".parse().unwrap()];
        assert!(why.contains("run the same command again to go on"), "{why}");
    }

    #[tokio::test]
    async fn hosts_that_nobody_can_ask_are_an_answer_and_no_failure() {
        let foreign = Compute {
            ownership: Ownership::Foreign("someone".into()),
            ..Fake::compute("control-1", Power::Unknown)
        };
        let context = lab_context(Fake { computes: vec![foreign], ..Fake::default() });
        let pools = apply::pools(&context, 1).await.unwrap();
        let (ours, answer) = sort(&pools);
        let (progress, (_ask, stop)) = (Lines::new(Style::Json), watch::channel(false));
        let answer = destroy(&context, &pools, ours, answer, false, &progress, &stop).await.unwrap();
        assert_eq!(answer.left_alone.len(), 1);
        // With something to give back it is one.
        let computes = vec![Fake::compute("control-1", Power::Off)];
        let context = lab_context(Fake { computes, ..Fake::default() });
        let pools = apply::pools(&context, 1).await.unwrap();
        let (ours, answer) = sort(&pools);
        destroy(&context, &pools, ours, answer, false, &progress, &stop).await.unwrap_err();
    }

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
