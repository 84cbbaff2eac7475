//! `infrop apply`: what it adds to the raw steps of a bring-up, and whether many hosts take longer each than few.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use ::tests::{
    infrastructure::{Infrastructure, lab_document},
    setup,
};
use anyhow::ensure;
use images::steps::Steps;

use super::{
    Figure,
    by_hand::{self, STEPS},
    seconds,
};
use crate::package;

/// infrop's time, in times of the raw steps.
const RATIO_LIMIT: f64 = 1.15;

/// How often each is done: single ones differ by some percent.
const GROWTHS: usize = 3;

/// Workers that join at once: a few at a time until they are many, or all of them.
const FEW: u16 = 5;
const MANY: u16 = 20;

/// The programs as they are released.
pub(super) struct Programs {
    pub(super) infrop: PathBuf,
    agent: PathBuf,
}

/// Bring-ups by hand and with infrop in turns, then growth by few and by many workers.
pub(super) async fn run(rounds: usize, growth: bool, steps: &Steps) -> anyhow::Result<Vec<Figure>> {
    let programs = Programs::build(steps).await?;
    let mut figures = Vec::new();
    let mut hand = Vec::new();
    let mut apply = Vec::new();
    for round in 1..=rounds {
        hand.push(steps.step(format!("round {round}: by hand"), by_hand::bring_up(&programs.infrop)).await?);
        apply.push(steps.step(format!("round {round}: infrop apply"), bring_up(&programs)).await?);
    }
    if rounds > 0 {
        figures.extend(bring_up_figures(&hand, &apply));
    }
    if growth {
        figures.extend(steps.step("growth", grow(&programs, steps)).await?);
    }
    Ok(figures)
}

impl Programs {
    /// Builds them, on a machine that has all they need.
    pub(super) async fn build(steps: &Steps) -> anyhow::Result<Self> {
        setup::run(true, steps).await?;
        let infrop = steps.step("build infrop", package::build("infrop", "release")).await?;
        Ok(Self { infrop, agent: package::run(false, steps).await? })
    }

    fn infrastructure(&self, name: &str, workers: u16) -> anyhow::Result<Infrastructure> {
        self.of_document(name, &lab_document(name, workers))
    }

    /// A document and its lab, under their care.
    pub(super) fn of_document(&self, name: &str, document: &str) -> anyhow::Result<Infrastructure> {
        Ok(Infrastructure::new(name, document)?.using(&self.infrop, &self.agent))
    }
}

/// From nothing to one control plane and two workers.
async fn bring_up(programs: &Programs) -> anyhow::Result<Duration> {
    programs
        .infrastructure("bring-up", 2)?
        .with(async |infrastructure| timed_apply(infrastructure).await)
        .await
}

async fn timed_apply(infrastructure: &Infrastructure) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let said = infrastructure.insist(&["apply"]).await?;
    let took = started.elapsed();
    ensure!(said.contains("Done in"), "it had nothing to do: {said}");
    Ok(took)
}

/// How long it took to add workers.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// Few at a time until they are many: the first few, and all of them.
    first: Duration,
    few: Duration,
    /// All of them at once.
    many: Duration,
}

/// From one control plane to many workers and back: few at a time and all at once, in turns. Both end with as many hosts
/// on this computer, whose memory and cores they share also when they are at rest.
async fn grow(programs: &Programs, steps: &Steps) -> anyhow::Result<Vec<Figure>> {
    let grown = programs.infrastructure("growth", 0)?.with(async |infrastructure| {
        timed_apply(infrastructure).await?;
        let mut grown = Vec::new();
        for round in 1..=GROWTHS {
            let step = |count: u16| format!("round {round}: {MANY} workers, {count} at once");
            let few = steps.step(step(FEW), grow_by(infrastructure, FEW)).await?;
            let many = steps.step(step(MANY), grow_by(infrastructure, MANY)).await?;
            let first = few.first().copied().unwrap_or_default();
            grown.push(Growth { first, few: few.iter().sum(), many: many.iter().sum() });
        }
        Ok(grown)
    });
    Ok(growth_figures(&grown.await?))
}

/// How long each apply takes that adds so many workers, until they are many; afterwards they are gone again.
async fn grow_by(infrastructure: &Infrastructure, count: u16) -> anyhow::Result<Vec<Duration>> {
    let nodes = |count: u16| format!("pool: w, nodes: {count} ");
    let mut took = Vec::new();
    for before in (0..MANY).step_by(count.into()) {
        infrastructure.edit(&nodes(before), &nodes(before + count))?;
        took.push(timed_apply(infrastructure).await?);
    }
    infrastructure.edit(&nodes(MANY), &nodes(0))?;
    infrastructure.insist(&["apply", "--yes", "--max-delete", &MANY.to_string()]).await?;
    Ok(took)
}

fn growth_figures(grown: &[Growth]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let per_worker = |took: fn(&Growth) -> Duration, count: u16| {
        median(&grown.iter().map(took).collect::<Vec<_>>()) / f64::from(count)
    };
    for (round, one) in (1_u32..).zip(grown) {
        for (name, took) in [
            (format!("the first {FEW} workers"), one.first),
            (format!("{MANY} workers, {FEW} at once"), one.few),
            (format!("{MANY} workers at once"), one.many),
        ] {
            figures.push(Figure::new(format!("round {round}: {name}"), seconds(took), "s"));
        }
    }
    let limit = per_worker(|one| one.first, FEW);
    let few = per_worker(|one| one.few, MANY);
    figures.push(Figure::new(format!("per worker of the first {FEW}, median"), limit, "s"));
    figures.push(Figure::new(format!("per worker of {MANY}, {FEW} at once, median"), few, "s"));
    let many = per_worker(|one| one.many, MANY);
    figures.push(Figure::new(format!("per worker of {MANY} at once, median"), many, "s").at_most(limit));
    figures
}

/// All rounds, the medians of both, and how they stand to each other.
fn bring_up_figures(hand: &[[Duration; STEPS.len()]], apply: &[Duration]) -> Vec<Figure> {
    let sums: Vec<Duration> = hand.iter().map(|laps| laps.iter().sum()).collect();
    let mut figures = Vec::new();
    for (round, (sum, took)) in (1_u32..).zip(sums.iter().zip(apply)) {
        figures.push(Figure::new(format!("round {round}: by hand"), seconds(*sum), "s"));
        figures.push(Figure::new(format!("round {round}: infrop apply"), seconds(*took), "s"));
    }
    let all = |step: usize| hand.iter().filter_map(|laps| laps.get(step).copied()).collect::<Vec<_>>();
    for (step, name) in STEPS.iter().enumerate() {
        figures.push(Figure::new(format!("  by hand, median of {name}"), median(&all(step)), "s"));
    }
    let (by_hand, by_infrop) = (median(&sums), median(apply));
    figures.push(Figure::new("1 + 2 by hand, median of the sums", by_hand, "s"));
    figures.push(Figure::new("1 + 2 with infrop apply, median", by_infrop, "s"));
    figures.push(Figure::new("infrop / by hand", by_infrop / by_hand, "").at_most(RATIO_LIMIT));
    figures
}

/// The middle one, or what lies between the two middle ones; no number of none.
pub(super) fn median(durations: &[Duration]) -> f64 {
    let mut sorted: Vec<f64> = durations.iter().copied().map(seconds).collect();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN);
    let lower = sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN);
    f64::midpoint(lower, upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(numbers: &[u64]) -> Vec<Duration> {
        numbers.iter().copied().map(Duration::from_secs).collect()
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert!((median(&whole(&[9, 1, 2])) - 2.0).abs() < 1e-9);
        assert!((median(&whole(&[9, 1, 2, 3])) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn infrop_may_add_15_percent() {
        let hand = [[Duration::from_secs(10); STEPS.len()]];
        let missed = |took| bring_up_figures(&hand, &whole(&[took])).iter().any(Figure::is_missed);
        assert!(!missed(69));
        assert!(missed(70));
    }

    #[test]
    fn many_hosts_may_not_take_longer_each() {
        let missed = |first, many| {
            let (first, many) = (Duration::from_secs(first), Duration::from_secs(many));
            growth_figures(&[Growth { first, few: first * 5, many }]).iter().any(Figure::is_missed)
        };
        assert!(!missed(50, 200));
        assert!(missed(50, 201));
    }
}
