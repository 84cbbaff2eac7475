//! A provider that can only be asked, for tests of what goes on around it.

use std::{
    cell::Cell,
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::anyhow;
use common::metadata::NodeName;
use futures::future::LocalBoxFuture;
use tokio::time::sleep;

use super::{Context, Event, Progress};
use crate::{
    bootstrap::{
        agent::AgentPackage,
        ssh::{Access, Connections},
    },
    cluster::Route,
    desired::{self, PoolName},
    provider::{Compute, Error, HostDefaults, Ownership, Pool, Power, Provider, Spares},
    writer::{FileRecord, Record},
};

const DOCUMENT: &str = "\
apiVersion: infrop.caos.ch/v1alpha1
kind: Infrastructure
metadata: { name: site }
providers:
  here: { lab: { pools: { control: {} } } }
cluster:
  controlPlane: { provider: here, pool: control, nodes: 1 }
software:
  kubernetes: 1.37.1
";

/// It takes its time, and makes nothing.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) computes: Vec<Compute>,
    /// How long it takes to give one back, and to answer when it is asked again.
    pub(crate) patience: Duration,
    pub(crate) asked: Cell<bool>,
    /// Who is at work stands there; nowhere without it.
    pub(crate) record: Option<PathBuf>,
    pub(crate) defaults: HostDefaults,
}

impl Fake {
    pub(crate) fn new(record: &Path) -> Self {
        Self { record: Some(record.to_owned()), ..Self::default() }
    }

    pub(crate) fn compute(name: &str, power: Power) -> Compute {
        Compute {
            name: name.parse().unwrap(),
            pool: "control".parse().unwrap(),
            address: "192.0.2.1".parse().unwrap(),
            ownership: Ownership::Ours,
            power,
        }
    }

    fn cannot<T>(what: &str) -> Result<T, Error> {
        Err(Error {
            provider: "here".parse().unwrap(),
            what: what.to_owned(),
            source: anyhow!("it is a fake"),
        })
    }
}

/// A document whose only provider it is.
pub(crate) fn lab_context(fake: Fake) -> Context {
    let infrastructure = desired::parse(DOCUMENT, Path::new("x.yaml")).unwrap();
    let package = tempfile::NamedTempFile::new().unwrap();
    let package = AgentPackage::read(package.path(), Some("0.1.0".parse().unwrap())).unwrap();
    let providers = [("here".parse().unwrap(), Box::new(fake) as Box<dyn Provider>)].into();
    let connections = Arc::new(Connections::new().unwrap());
    Context::new(infrastructure, Path::new(""), providers, connections, package).unwrap()
}

/// Progress that nobody looks at.
#[derive(Debug)]
pub(crate) struct Silence;

impl Progress for Silence {
    fn event(&self, _event: &Event) {}
    fn waiting(&self, _reasons: &std::collections::BTreeMap<NodeName, String>) {}
}

impl Provider for Fake {
    fn observe(&self, _at_once: usize) -> LocalBoxFuture<'_, Result<Vec<Pool>, Error>> {
        Box::pin(async {
            if self.asked.replace(true) {
                sleep(self.patience).await;
            }
            Ok(vec![Pool {
                provider: "here".parse().unwrap(),
                name: "control".parse().unwrap(),
                computes: self.computes.clone(),
                spares: Spares::Numbered,
            }])
        })
    }

    fn addresses(&self, _pool: &PoolName) -> Option<BTreeSet<IpAddr>> {
        None
    }

    fn create<'a>(
        &'a self,
        _pool: &'a PoolName,
        _name: &'a NodeName,
    ) -> LocalBoxFuture<'a, Result<Compute, Error>> {
        Box::pin(async { Self::cannot("create") })
    }

    fn delete<'a>(&'a self, _compute: &'a Compute) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async {
            sleep(self.patience).await;
            Ok(())
        })
    }

    fn erases(&self) -> bool {
        true
    }

    fn power<'a>(&'a self, _compute: &'a Compute, _power: Power) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Self::cannot("switch") })
    }

    fn release(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn console<'a>(&'a self, _compute: &'a Compute) -> LocalBoxFuture<'a, Option<String>> {
        Box::pin(async { Some("its console ends with: no disk".to_owned()) })
    }

    fn access(&self, _compute: &Compute) -> Result<Access, Error> {
        Self::cannot("reach")
    }

    fn route(&self, _address: SocketAddr) -> LocalBoxFuture<'_, Result<Route, Error>> {
        Box::pin(async { Self::cannot("lead there") })
    }

    fn records<'a>(&'a self, _pool: &'a PoolName) -> LocalBoxFuture<'a, Result<Vec<Box<dyn Record>>, Error>> {
        Box::pin(async {
            let Some(record) = &self.record else { return Self::cannot("find a place for a record") };
            Ok(vec![Box::new(FileRecord::new(record.clone())) as Box<dyn Record>])
        })
    }

    fn defaults(&self) -> &HostDefaults {
        &self.defaults
    }
}
