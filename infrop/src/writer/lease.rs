//! A record as a Lease in the cluster.

use anyhow::Context as _;
use futures::future::LocalBoxFuture;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
};

use super::{DURATION, Entry, Record, Seen};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "infrop";

/// A record as a Lease.
pub struct LeaseRecord {
    api: Api<Lease>,
}

impl std::fmt::Debug for LeaseRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseRecord").finish_non_exhaustive()
    }
}

impl LeaseRecord {
    /// In a cluster.
    pub fn new(client: kube::Client) -> Self {
        Self { api: Api::namespaced(client, NAMESPACE) }
    }
}

fn seen(lease: &Lease) -> Seen {
    let spec = lease.spec.clone().unwrap_or_default();
    let time = |time: Option<MicroTime>| time.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let entry = Entry {
        holder: spec.holder_identity.unwrap_or_default(),
        renewed: time(spec.renew_time),
        since: time(spec.acquire_time),
    };
    Seen { entry: Some(entry), version: lease.resource_version().unwrap_or_default() }
}

impl Record for LeaseRecord {
    fn place(&self) -> String {
        format!("the Lease {NAMESPACE}/{NAME}")
    }

    fn read(&self) -> LocalBoxFuture<'_, anyhow::Result<Seen>> {
        Box::pin(async {
            let lease = self.api.get_opt(NAME).await.context("cannot read the Lease")?;
            Ok(lease.map_or(Seen { entry: None, version: String::new() }, |lease| seen(&lease)))
        })
    }

    fn write<'a>(
        &'a self,
        before: &'a Seen,
        entry: &'a Entry,
    ) -> LocalBoxFuture<'a, anyhow::Result<Option<Seen>>> {
        Box::pin(async {
            let spec = LeaseSpec {
                holder_identity: Some(entry.holder.clone()).filter(|holder| !holder.is_empty()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                acquire_time: Some(MicroTime(entry.since)),
                renew_time: Some(MicroTime(entry.renewed)),
                ..LeaseSpec::default()
            };
            let metadata = ObjectMeta {
                name: Some(NAME.to_owned()),
                // The API server compares it.
                resource_version: Some(before.version.clone()).filter(|version| !version.is_empty()),
                ..ObjectMeta::default()
            };
            let lease = Lease { metadata, spec: Some(spec) };
            let parameters = PostParams::default();
            let written = match &before.entry {
                None => self.api.create(&parameters, &lease).await,
                Some(_) => self.api.replace(NAME, &parameters, &lease).await,
            };
            match written {
                Ok(lease) => Ok(Some(seen(&lease))),
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
                Err(error) => Err(error).context("cannot write the Lease"),
            }
        })
    }
}
