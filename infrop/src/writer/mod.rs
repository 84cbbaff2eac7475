//! One writer: of all infrops that work on an infrastructure, one changes things and the others say who does.
//!
//! A record names the writer. It is a Lease in the cluster; before there is a cluster, a mark at the provider. The
//! writer renews it. One that is not renewed for a while, watched by the one who wants it, belongs to nobody: no clocks
//! are compared, unless they differ by far more than clocks do.

mod file;
mod keep;
mod lease;
mod remote;

use std::{cell::Cell, fmt, rc::Rc, time::Duration};

use futures::future::LocalBoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, sleep_until, timeout};

pub use self::{
    file::FileRecord,
    keep::{keep, replaced},
    lease::LeaseRecord,
    remote::{HostRecord, clearing},
};
use crate::random;

/// A record that is not renewed for this long belongs to nobody.
pub const DURATION: Duration = Duration::from_secs(15);

/// Between renewals: two may fail.
pub const RENEWAL: Duration = Duration::from_secs(5);

/// Between looks at someone else's record.
const LOOK: Duration = Duration::from_secs(1);

/// A record this old belongs to nobody, whoever's clock is wrong.
const ANCIENT: SignedDuration = SignedDuration::from_mins(10);

/// What gives a record up may take this long: one that stays is free after [`DURATION`].
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// How often one is written anew that changed meanwhile, by a write of ours whose end we did not see.
const WRITES: u32 = 3;

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Who writes; nobody if it is empty.
    pub holder: String,
    /// When it was last renewed, by the writer's clock.
    pub renewed: Timestamp,
    /// Since when it is this writer.
    pub since: Timestamp,
}

/// A record as it was read: what it says, and the version that a write must find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What it says; none if there is no record yet.
    pub entry: Option<Entry>,
    /// Its version.
    pub version: String,
}

/// Where a record is.
pub trait Record: fmt::Debug {
    /// For people: `the Lease kube-system/infrop`.
    fn place(&self) -> String;

    /// Reads it.
    fn read(&self) -> LocalBoxFuture<'_, anyhow::Result<Seen>>;

    /// Writes it if it still is as it was read; gives it as it is now, or none if someone else was faster.
    fn write<'a>(
        &'a self,
        seen: &'a Seen,
        entry: &'a Entry,
    ) -> LocalBoxFuture<'a, anyhow::Result<Option<Seen>>>;

    /// Makes it nobody's if it still is as it was read; says whether it was. `nobody` is what it says then, if it stays.
    fn give_up<'a>(&'a self, seen: &'a Seen, nobody: &'a Entry) -> LocalBoxFuture<'a, anyhow::Result<bool>> {
        Box::pin(async { Ok(self.write(seen, nobody).await?.is_some()) })
    }

    /// How long the writer goes on without being able to renew it: as long as others would wait, less the time to stop.
    fn patience(&self) -> Duration {
        DURATION.saturating_sub(RENEWAL)
    }
}

/// Why one is not the writer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Someone else is.
    #[error(
        "{holder} is at work since {since} ({place}): wait for its end, or take over with --take-over if you know that \
         it is dead"
    )]
    Held {
        /// Who.
        holder: String,
        /// Since when.
        since: Timestamp,
        /// Where that stands.
        place: String,
    },
    /// The record cannot be read or written.
    #[error("cannot become the writer by {place}")]
    Record {
        /// Where.
        place: String,
        /// Why.
        source: anyhow::Error,
    },
    /// The record was ours, and others may take it by now.
    #[error("cannot stay the writer by {place}")]
    Lost {
        /// Where.
        place: String,
        /// Why.
        source: anyhow::Error,
    },
}

/// Who we are: a CI job by its address, anyone else as user@computer; and a word that no other process has.
pub fn identity() -> std::io::Result<String> {
    let named = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
    let job = named("CI_JOB_URL").or_else(|| {
        let (server, repository, run) =
            (named("GITHUB_SERVER_URL")?, named("GITHUB_REPOSITORY")?, named("GITHUB_RUN_ID")?);
        Some(format!("{server}/{repository}/actions/runs/{run}"))
    });
    let name = job.unwrap_or_else(|| {
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
        let user = user.map_or_else(|| nix::unistd::geteuid().to_string(), |user| user.name);
        let host = nix::unistd::gethostname().unwrap_or_default();
        format!("{user}@{}", host.to_string_lossy())
    });
    Ok(format!("{name} ({}-{})", std::process::id(), random::hex(3)?))
}

/// A record that is ours.
#[derive(Debug)]
pub struct Holding {
    record: Box<dyn Record>,
    seen: Seen,
    entry: Entry,
    health: Rc<Health>,
}

/// How a record that is ours fares.
struct Health {
    place: String,
    patience: Duration,
    /// When it was last written.
    renewed: Cell<Instant>,
    /// What kept us from it since.
    trouble: Cell<Option<anyhow::Error>>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is in a cell can be seen only by taking it out.
        f.debug_struct("Health").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Holding {
    /// Becomes the writer. `note` hears what is waited for.
    pub async fn acquire(
        record: Box<dyn Record>,
        identity: &str,
        take_over: bool,
        note: &dyn Fn(String),
    ) -> Result<Self, Error> {
        let place = record.place();
        let broken = |source| Error::Record { place: place.clone(), source };
        let mut watched: Option<(Entry, Instant)> = None;
        loop {
            let seen = record.read().await.map_err(broken)?;
            if let Some(entry) = seen.entry.as_ref().filter(|entry| !entry.holder.is_empty() && !take_over) {
                let ancient = Timestamp::now().duration_since(entry.renewed) > ANCIENT;
                let unchanged = match &watched {
                    Some((first, since)) if first == entry => since.elapsed() > DURATION,
                    Some((first, _)) if first.holder == entry.holder => {
                        let Entry { holder, since, .. } = entry.clone();
                        return Err(Error::Held { holder, since, place });
                    }
                    _ => {
                        watched = Some((entry.clone(), Instant::now()));
                        false
                    }
                };
                if !ancient && !unchanged {
                    note(format!("{} may be at work; looking whether it still is", entry.holder));
                    sleep(LOOK).await;
                    continue;
                }
            }
            let now = Timestamp::now();
            let entry = Entry { holder: identity.to_owned(), renewed: now, since: now };
            if let Some(seen) = record.write(&seen, &entry).await.map_err(broken)? {
                let health = Health {
                    place,
                    patience: record.patience(),
                    renewed: Cell::new(Instant::now()),
                    trouble: Cell::default(),
                };
                return Ok(Self { record, seen, entry, health: Rc::new(health) });
            }
            // Someone was faster; it shows on the next look.
        }
    }

    /// Renews for as long as it is ours. While it cannot be reached it is tried again: how long that may go on is for
    /// whoever holds it to say. It may be dropped and called again at any moment.
    pub async fn keep(&mut self) -> Error {
        let mut wake = self.health.renewed.get() + RENEWAL;
        loop {
            sleep_until(wake).await;
            wake = Instant::now() + RENEWAL;
            match self.renew().await {
                Ok(None) => {}
                Ok(Some(lost)) => return lost,
                // Expected while the only control plane is upgraded, or while a host restarts.
                Err(error) => {
                    tracing::info!(place = self.record.place(), "cannot renew: {error:#}");
                    self.health.trouble.set(Some(error));
                }
            }
        }
    }

    /// Writes the record anew; gives the reason if it is someone else's.
    async fn renew(&mut self) -> anyhow::Result<Option<Error>> {
        let lost = self.write(&Entry { renewed: Timestamp::now(), ..self.entry.clone() }).await?;
        if lost.is_none() {
            self.health.renewed.set(Instant::now());
            self.health.trouble.set(None);
        }
        Ok(lost)
    }

    /// Writes what the record is to say; gives the reason if it is someone else's.
    async fn write(&mut self, entry: &Entry) -> anyhow::Result<Option<Error>> {
        for _ in 0..WRITES {
            if let Some(seen) = self.record.write(&self.seen, entry).await? {
                self.seen = seen;
                return Ok(None);
            }
            if let Some(lost) = self.look().await? {
                return Ok(Some(lost));
            }
        }
        Err(anyhow::anyhow!("it changes all the time"))
    }

    /// Reads the record again; gives the reason if it is no longer ours.
    async fn look(&mut self) -> anyhow::Result<Option<Error>> {
        let place = self.record.place();
        let seen = self.record.read().await?;
        Ok(match seen.entry.clone() {
            // A write of ours whose end we did not see.
            Some(entry) if entry.holder == self.entry.holder => {
                self.seen = seen;
                None
            }
            Some(Entry { holder, since, .. }) => Some(Error::Held { holder, since, place }),
            // Also by one that took over and is through.
            None => Some(Error::Lost { place, source: anyhow::anyhow!("someone removed it") }),
        })
    }

    /// Lets the next one in at once.
    pub async fn release(mut self) {
        let place = self.record.place();
        match timeout(RELEASE_LIMIT, self.give_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(place, "cannot give up: {error:#}"),
            Err(_) => tracing::info!(place, "cannot give up in time"),
        }
    }

    async fn give_up(&mut self) -> anyhow::Result<()> {
        let nobody = Entry { holder: String::new(), ..self.entry.clone() };
        for _ in 0..WRITES {
            if self.record.give_up(&self.seen, &nobody).await? || self.look().await?.is_some() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
