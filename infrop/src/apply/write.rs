//! Being the writer for as long as a run goes on.

use futures::future::join_all;

use super::{
    context::Context,
    progress::{Event, Progress, Stage},
};
use crate::{
    cluster::Access,
    writer::{self, Error, Holding, LeaseRecord, Record, identity},
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
    fn new(take_over: bool, progress: &'a dyn Progress) -> anyhow::Result<Self> {
        Ok(Self { identity: identity()?, take_over, progress, held: Vec::new(), in_cluster: false })
    }

    /// Becomes the writer: by the cluster's Lease if it answers, else by marks at the provider of control planes.
    pub async fn enter(
        context: &Context,
        take_over: bool,
        progress: &'a dyn Progress,
        access: Option<&Access>,
    ) -> anyhow::Result<Self> {
        let mut writer = Self::new(take_over, progress)?;
        let entered = match access {
            Some(access) => writer.enter_cluster(access).await.map_err(Into::into),
            None => writer.enter_provider(context).await,
        };
        writer.or_leave(entered).await
    }

    /// Becomes the writer by both, for work that the cluster does not outlive.
    pub async fn enter_both(
        context: &Context,
        take_over: bool,
        progress: &'a dyn Progress,
        access: Option<&Access>,
    ) -> anyhow::Result<Self> {
        let mut writer = Self::new(take_over, progress)?;
        let entered = async {
            if let Some(access) = access {
                writer.enter_cluster(access).await?;
            }
            writer.enter_provider(context).await
        };
        let entered = entered.await;
        writer.or_leave(entered).await
    }

    /// What came before a failure is let go, or others would wait for us.
    async fn or_leave(self, entered: anyhow::Result<()>) -> anyhow::Result<Self> {
        match entered {
            Ok(()) => Ok(self),
            Err(error) => {
                self.leave().await;
                Err(error)
            }
        }
    }

    /// Becomes the writer by a cluster's Lease.
    pub async fn of_cluster(
        client: &kube::Client,
        take_over: bool,
        progress: &'a dyn Progress,
    ) -> anyhow::Result<Self> {
        let mut writer = Self { in_cluster: true, ..Self::new(take_over, progress)? };
        writer.take(Box::new(LeaseRecord::new(client.clone()))).await?;
        Ok(writer)
    }

    async fn enter_provider(&mut self, context: &Context) -> anyhow::Result<()> {
        let planes = &context.infrastructure.cluster.control_plane;
        let records = match context.provider(&planes.provider)?.records(&planes.pool).await {
            Ok(records) => records,
            Err(error) if self.take_over => {
                self.note(format!("{:#}; going on all the same", anyhow::Error::from(error)));
                return Ok(());
            }
            Err(error) => {
                let hint =
                    "nobody can tell who is at work; with --take-over it goes on, if you know that nobody is";
                return Err(anyhow::Error::from(error).context(hint));
            }
        };
        for record in records {
            self.take(record).await?;
        }
        Ok(())
    }

    /// Becomes the writer in the cluster, too, as soon as there is one. From then on that alone counts: hosts may
    /// restart.
    pub(super) async fn enter_cluster(&mut self, access: &Access) -> Result<(), Error> {
        if self.in_cluster {
            return Ok(());
        }
        self.move_to(Box::new(LeaseRecord::new(access.client.clone()))).await?;
        self.in_cluster = true;
        Ok(())
    }

    /// Becomes the writer by another record, and gives up those before it.
    async fn move_to(&mut self, record: Box<dyn Record>) -> Result<(), Error> {
        self.take(record).await?;
        let marks = self.held.drain(..self.held.len().saturating_sub(1));
        join_all(marks.map(Holding::release)).await;
        Ok(())
    }

    /// Becomes the writer by one more record; those that are ours stay ours meanwhile.
    async fn take(&mut self, record: Box<dyn Record>) -> Result<(), Error> {
        let progress = self.progress;
        let note = |text: String| note(progress, text);
        let holding = tokio::select! {
            holding = Holding::acquire(record, &self.identity, self.take_over, &note) => holding?,
            lost = writer::keep(&mut self.held) => return Err(lost),
        };
        self.held.push(holding);
        Ok(())
    }

    fn note(&self, text: String) {
        note(self.progress, text);
    }

    /// Renews all; ends only when we are not the writer any more.
    pub(super) async fn keep(&mut self) -> Error {
        writer::keep(&mut self.held).await
    }

    /// Does something for as long as we are the writer.
    pub(super) async fn keep_during<T>(
        &mut self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            result = work => result,
            lost = self.keep() => Err(lost.into()),
        }
    }

    /// Ends only when someone else took over: for work that takes the API away.
    pub(super) async fn replaced(&mut self) -> Error {
        writer::replaced(&mut self.held).await
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
            held = self.replaced() => Err(held.into()),
        };
        self.leave().await;
        result
    }

    /// Lets the next one in.
    pub async fn leave(self) {
        join_all(self.held.into_iter().map(Holding::release)).await;
    }
}

fn note(progress: &dyn Progress, text: String) {
    progress.event(&Event { host: None, what: "become the writer".to_owned(), stage: Stage::Note(text) });
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use tokio::time::sleep;

    use super::*;
    use crate::{
        apply::testing::{Fake, Silence, lab_context},
        writer::FileRecord,
    };

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

    #[tokio::test(start_paused = true)]
    async fn marks_before_the_cluster_are_given_back_when_its_own_is_held() {
        let directory = tempfile::tempdir().unwrap();
        let (mark, lease) = (directory.path().join("mark"), directory.path().join("lease"));
        let mut writer = writer(&mark, "a", false).await;
        // The Lease is of one that was killed: the mark stays ours until it is free.
        let record = || FileRecord::new(lease.join("writer.json"));
        let killed = jiff::Timestamp::now();
        let entry = writer::Entry { holder: "b".into(), renewed: killed, since: killed };
        record().write(&record().read().await.unwrap(), &entry).await.unwrap();
        let other = async {
            sleep(Duration::from_secs(8)).await;
            let record = FileRecord::new(mark.join("writer.json"));
            let refused = Holding::acquire(Box::new(record), "c", false, &|_| ()).await;
            assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
            assert_eq!(holder(&mark).await, "a");
        };
        let (moved, ()) = tokio::join!(writer.move_to(Box::new(record())), other);
        moved.unwrap();
        assert_eq!(holder(&mark).await, "");
        assert_eq!(holder(&lease).await, "a");
        writer.leave().await;
        assert_eq!(holder(&lease).await, "");
    }

    #[tokio::test]
    async fn without_a_place_for_a_record_nobody_works_unless_told_to() {
        let context = lab_context(Fake::default());
        let error = Writer::enter(&context, false, &Silence, None).await.unwrap_err();
        assert!(error.is::<crate::provider::Error>(), "{error:?}");
        let text = format!("{error:#}");
        assert!(text.contains("nobody can tell who is at work") && text.contains("it is a fake"), "{text}");
        assert!(Writer::enter(&context, true, &Silence, None).await.unwrap().held.is_empty());
    }
}
