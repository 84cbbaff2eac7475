//! What needs many repetitions or much time: a part of it is in the tests, all of it here.

use std::time::Instant;

use anyhow::ensure;
use clap::{Subcommand, ValueEnum};
use images::steps::Steps;
use tests::{
    kills::{Kills, Random, round},
    rolling::{Fault, upgrade, with_cluster},
};

/// In one bring-up; more would mostly hit one that is done.
const KILLS_PER_ROUND: Kills = Kills { bring_up: 5, removal: 5 };

#[derive(Debug, Subcommand)]
pub(crate) enum Soak {
    /// Kill infrop with -9 at many random moments of bring-ups and removals (about half an hour).
    BringUp {
        /// How many of each.
        #[arg(long, default_value_t = 30)]
        kills: u32,
    },
    /// Take 3 + 3 nodes to the next Kubernetes version once per fault, under load (a quarter of an hour each).
    Rollout {
        /// Only these.
        #[arg(long = "fault", value_enum)]
        faults: Vec<RolloutFault>,
    },
}

/// What goes wrong in a rollout.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RolloutFault {
    /// Nothing.
    None,
    /// infrop and agents are killed with -9.
    Kills,
    /// A person cordoned a node.
    Cordon,
    /// No package can be installed on a node.
    Package,
    /// A budget can never be met.
    Budget,
    /// A node loses its power while it is changed.
    PowerCut,
}

impl RolloutFault {
    fn faults(self) -> Vec<Fault> {
        match self {
            Self::None => Vec::new(),
            Self::Kills => vec![Fault::Kills(10)],
            Self::Cordon => vec![Fault::Cordon("w-3")],
            Self::Package => vec![Fault::Package("w-2")],
            Self::Budget => vec![Fault::Budget("w-3")],
            Self::PowerCut => vec![Fault::PowerCut("w-1")],
        }
    }
}

pub(crate) async fn run(soak: &Soak, steps: &Steps) -> anyhow::Result<bool> {
    tests::setup::run(false, steps).await?;
    match soak {
        Soak::BringUp { kills } => bring_up(*kills).await,
        Soak::Rollout { faults } if faults.is_empty() => rollouts(RolloutFault::value_variants()).await,
        Soak::Rollout { faults } => rollouts(faults).await,
    }
}

/// Each fault alone; one that goes wrong does not keep the others from being tried.
async fn rollouts(faults: &[RolloutFault]) -> anyhow::Result<bool> {
    let mut good = true;
    for fault in faults {
        println!("{fault:?}:");
        let started = Instant::now();
        let rollout = with_cluster("soak", async |infrastructure, client| {
            upgrade(infrastructure, client, &fault.faults()).await
        });
        let result = rollout.await;
        let minutes = started.elapsed().as_secs_f64() / 60.0;
        match &result {
            Ok(()) => println!("{fault:?}: as it should be, in {minutes:.0} min"),
            Err(error) => println!("{fault:?}: {error:#}"),
        }
        good &= result.is_ok();
    }
    Ok(good)
}

/// Kills infrop so often while clusters come up, and while workers go.
async fn bring_up(kills: u32) -> anyhow::Result<bool> {
    let started = Instant::now();
    let mut random = Random::new()?;
    let mut total = Kills::default();
    let mut rounds = 0;
    while total.bring_up < kills || total.removal < kills {
        rounds += 1;
        let wanted = Kills {
            bring_up: if total.bring_up < kills { KILLS_PER_ROUND.bring_up } else { 0 },
            removal: if total.removal < kills { KILLS_PER_ROUND.removal } else { 0 },
        };
        let done = round("soak", &mut random, wanted).await?;
        ensure!(done.bring_up + done.removal > 0, "no kill hit infrop at work");
        total.bring_up += done.bring_up;
        total.removal += done.removal;
        println!("{rounds} clusters: {} kills of a bring-up, {} of a removal", total.bring_up, total.removal);
    }
    println!("all ended as they should, in {:.0} min", started.elapsed().as_secs_f64() / 60.0);
    Ok(true)
}
