//! Being the writer for as long as a run goes on.

use futures::future::{pending, select_all};

use super::{
    context::Context,
    progress::{Event, Progress, Stage},
};
use crate::{
    cluster::Access,
    writer::{Error, Holding, LeaseRecord, Record, identity},
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

    /// Lets the next one in.
    pub async fn leave(self) {
        for holding in self.held {
            holding.release().await;
        }
    }
}
