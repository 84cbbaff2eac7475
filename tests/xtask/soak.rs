//! What needs many repetitions: a few are in the tests, all of them here.

use std::time::Instant;

use anyhow::ensure;
use images::steps::Steps;
use tests::kills::{Kills, Random, round};

/// In one bring-up; more would mostly hit one that is done.
const KILLS_PER_ROUND: Kills = Kills { bring_up: 5, removal: 5 };

/// Kills infrop so often while clusters come up, and while workers go.
pub(crate) async fn run(kills: u32, steps: &Steps) -> anyhow::Result<bool> {
    tests::setup::run(false, steps).await?;
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
