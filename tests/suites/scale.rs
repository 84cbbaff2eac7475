//! A rollout of many Nodes asks no more of the API server per node than one of a few. How it goes with thousands:
//! docs/development/benchmarks.md.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use anyhow::{Context, ensure};
use tests::{
    api_server::ApiServer,
    fleet::{self, Fleet, INFROP},
    harness::{Case, Tier, suite},
    infrop_path,
};

/// It takes seconds; the rest is for a machine that does something else as well.
const LIMIT: Duration = Duration::from_mins(4);

const NODES: usize = 50;
const AT_ONCE: usize = 10;

/// Five writes of a node, two lists of its pods, one of `DaemonSets`, four Events, and its announcement make 13. The rest
/// is what a run needs whatever its size, and writes that an agent's came before.
const REQUESTS_PER_NODE: usize = 15;

fn main() -> ExitCode {
    suite([Case::new(Tier::T3, "fifty_nodes", LIMIT, fifty_nodes)])
}

async fn fifty_nodes() -> anyhow::Result<()> {
    let server = ApiServer::start().await?;
    let fleet = Fleet::start(&server, NODES).await?;
    let status = fleet.infrop(&server, infrop_path()?, AT_ONCE)?.status().await?;
    ensure!(status.success(), "infrop ended with {status}:\n{}", fleet::last_words(&server)?);
    fleet.check().await?;
    let requests = server.audit().by(INFROP)?;
    let asked = requests.len();
    ensure!(asked <= NODES * REQUESTS_PER_NODE, "{asked} requests for {NODES} nodes");
    // What was announced is taken back: the object stays small however many nodes there are.
    let mut announced = BTreeSet::new();
    for request in requests.iter().filter(|request| request.verb == "update") {
        let names = request.request_object.as_ref().and_then(|lease| lease.pointer("/metadata/annotations"));
        let Some(names) = names.and_then(|keys| keys.get("infrop.caos.ch/nodes")) else { continue };
        let names: Vec<&str> = names.as_str().context("names are a text")?.split(',').collect();
        ensure!(names.len() <= AT_ONCE, "announced at once: {names:?}");
        announced.extend(names.into_iter().filter(|name| !name.is_empty()).map(str::to_owned));
    }
    ensure!(announced.len() == NODES, "announced: {announced:?}");
    // Whom a node waits for changes all the time; that it waits for its turn is said once.
    let log = fleet::log(&server)?;
    let waits = log.lines().filter(|line| line.contains(" waits: CapacityUsed")).count();
    ensure!(waits <= NODES, "{waits} lines say that one of {NODES} nodes waits for its turn");
    Ok(())
}
