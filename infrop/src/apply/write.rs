//! Being the writer for as long as a run goes on.

use futures::future::{pending, select_all};
use tokio::time::sleep;

use super::{
    context::Context,
    progress::{Event, Progress, Stage},
};
use crate::{
    cluster::Access,
    writer::{Error, Holding, LeaseRecord, RENEWAL, Record, identity},
};

/// The records that are ours.
#[derive(Debug)]
pub struct Writer<'a> {
    identity: String,
    take_over: bool,
    progress: &'a dyn Progress,
    held: Vec<Holding>,
    /// Whether the cluster's is among them.
    in_cluster: bool,
}

impl<'a> Writer<'a> {
    /// Becomes the writer: by the cluster's Lease if it answers, else by marks at the provider of control planes.
    pub async fn enter(
        context: &Context,
        take_over: bool,
        progress: &'a dyn Progress,
        access: Option<&Access>,
    ) -> anyhow::Result<Self> {
        let mut writer =
            Self { identity: identity()?, take_over, progress, held: Vec::new(), in_cluster: false };
        if let Some(access) = access {
            writer.enter_cluster(access).await?;
            return Ok(writer);
        }
        let planes = &context.infrastructure.cluster.control_plane;
        let records = context.provider(&planes.provider)?.records(&planes.pool).await?;
        for record in records {
            if let Err(error) = writer.take(record).await {
                // Those that came before are let go, or the other would wait for us.
                writer.leave().await;
                return Err(error.into());
            }
        }
        Ok(writer)
    }

    /// Becomes the writer by a cluster's Lease.
    pub async fn of_cluster(
        client: &kube::Client,
        take_over: bool,
        progress: &'a dyn Progress,
    ) -> anyhow::Result<Self> {
        let mut writer =
            Self { identity: identity()?, take_over, progress, held: Vec::new(), in_cluster: true };
        writer.take(Box::new(LeaseRecord::new(client.clone()))).await?;
        Ok(writer)
    }

    /// Becomes the writer in the cluster, too, as soon as there is one.
    pub(super) async fn enter_cluster(&mut self, access: &Access) -> Result<(), Error> {
        if !self.in_cluster {
            self.take(Box::new(LeaseRecord::new(access.client.clone()))).await?;
            self.in_cluster = true;
        }
        Ok(())
    }

    async fn take(&mut self, record: Box<dyn Record>) -> Result<(), Error> {
        let progress = self.progress;
        let note = |text: String| {
            progress.event(&Event {
                host: None,
                what: "become the writer".to_owned(),
                stage: Stage::Note(text),
            });
        };
        let holding = Holding::acquire(record, &self.identity, self.take_over, &note).await?;
        self.held.push(holding);
        Ok(())
    }

    /// Renews all; ends only when one is lost.
    pub(super) async fn keep(&mut self) -> Error {
        if self.held.is_empty() {
            return pending().await;
        }
        let (lost, ..) = select_all(self.held.iter_mut().map(|holding| Box::pin(holding.keep()))).await;
        lost
    }

    /// Ends only when someone else took over.
    ///
    /// That a record cannot be renewed is no end: a control plane that restarts may take the API with it, and whoever
    /// works without the API leaves nodes alone.
    pub(super) async fn replaced(&mut self) -> Error {
        loop {
            match self.keep().await {
                held @ Error::Held { .. } => return held,
                away @ Error::Record { .. } => tracing::debug!("{:#}", anyhow::Error::from(away)),
            }
            sleep(RENEWAL).await;
        }
    }

    /// Who we are in the records.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Does something as the writer, and lets the next one in after it, however it ended. Only someone else who took over
    /// ends it early.
    pub async fn during<T>(mut self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let result = tokio::select! {
            result = work => result,
            held = self.replaced() => return Err(held.into()),
        };
        self.leave().await;
        result
    }

    /// Lets the next one in.
    pub async fn leave(self) {
        for holding in self.held {
            holding.release().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path, time::Duration};

    use common::metadata::NodeName;

    use super::*;
    use crate::writer::FileRecord;

    #[derive(Debug)]
    struct Silence;

    impl Progress for Silence {
        fn event(&self, _event: &Event) {}
        fn waiting(&self, _reasons: &BTreeMap<NodeName, String>) {}
    }

    async fn writer(directory: &Path, who: &str, take_over: bool) -> Writer<'static> {
        let mut writer = Writer {
            identity: who.to_owned(),
            take_over,
            progress: &Silence,
            held: Vec::new(),
            in_cluster: false,
        };
        writer.take(Box::new(FileRecord::new(directory.join("writer.json")))).await.unwrap();
        writer
    }

    async fn holder(directory: &Path) -> String {
        let record = FileRecord::new(directory.join("writer.json"));
        record.read().await.unwrap().entry.unwrap().holder
    }

    #[tokio::test(start_paused = true)]
    async fn the_record_is_held_until_the_end_and_free_after_it() {
        let directory = tempfile::tempdir().unwrap();
        for fails in [false, true] {
            let work = async {
                sleep(Duration::from_mins(1)).await;
                assert_eq!(holder(directory.path()).await, "a");
                if fails { Err(anyhow::anyhow!("no")) } else { Ok(()) }
            };
            let ended = writer(directory.path(), "a", false).await.during(work).await;
            assert_eq!(ended.is_err(), fails);
            assert_eq!(holder(directory.path()).await, "");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_while_the_record_is_away_and_ends_when_someone_else_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("place");
        fs::create_dir(&place).unwrap();
        let away = async {
            fs::rename(&place, directory.path().join("away")).unwrap();
            fs::write(&place, "").unwrap();
            sleep(Duration::from_mins(2)).await;
            fs::remove_file(&place).unwrap();
            fs::rename(directory.path().join("away"), &place).unwrap();
            sleep(Duration::from_mins(1)).await;
            Ok(())
        };
        writer(&place, "a", false).await.during(away).await.unwrap();

        let taken = async {
            writer(&place, "b", true).await;
            std::future::pending::<anyhow::Result<()>>().await
        };
        let error = writer(&place, "a", false).await.during(taken).await.unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Error::Held { holder, .. }) if holder == "b"), "{error}");
        assert_eq!(holder(&place).await, "b");
    }
}
