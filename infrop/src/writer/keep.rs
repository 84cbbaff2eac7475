//! Staying the writer by several records at once.

use futures::future::{pending, select_all};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Error, Health, Holding, RENEWAL};
use std::rc::Rc;

/// Renews all; ends when someone else has one of them, or when most of them could not be renewed for longer than their
/// patience is. It may be dropped and called again at any moment.
///
/// A single host that restarts takes its record with it for minutes, and nobody else reaches it either.
pub async fn keep(held: &mut [Holding]) -> Error {
    let health: Vec<Rc<Health>> = held.iter().map(|holding| Rc::clone(&holding.health)).collect();
    tokio::select! {
        biased;
        lost = renew(held) => lost,
        lost = outlast(&health) => lost,
    }
}

/// Renews all; ends only when someone else took over.
///
/// That a record cannot be renewed is no end: a control plane that restarts may take the API with it, and whoever
/// works without the API leaves nodes alone.
pub async fn replaced(held: &mut [Holding]) -> Error {
    loop {
        match renew(held).await {
            held @ Error::Held { .. } => return held,
            away => tracing::debug!("{:#}", anyhow::Error::from(away)),
        }
        sleep(RENEWAL).await;
    }
}

async fn renew(held: &mut [Holding]) -> Error {
    if held.is_empty() {
        return pending().await;
    }
    let (lost, ..) = select_all(held.iter_mut().map(|holding| Box::pin(holding.keep()))).await;
    lost
}

/// Ends when most of the records are over their time, with the one that is last of those.
async fn outlast(health: &[Rc<Health>]) -> Error {
    loop {
        let Some((end, last)) = end(health) else { return pending().await };
        if end <= Instant::now() {
            let source = last.trouble.take().unwrap_or_else(|| anyhow::anyhow!("it does not answer"));
            return Error::Lost { place: last.place.clone(), source };
        }
        sleep_until(end).await;
    }
}

/// When more than half of them will be over their time, if none is renewed until then.
fn end(health: &[Rc<Health>]) -> Option<(Instant, &Health)> {
    let mut ends: Vec<(Instant, &Health)> =
        health.iter().map(|one| (one.renewed.get() + one.patience, one.as_ref())).collect();
    ends.sort_by_key(|(end, _)| *end);
    ends.get(ends.len() / 2).copied()
}
