//! The infrastructure document: what people want, as they write it.

mod model;
mod names;

pub use self::{
    model::{
        ApiVersion, Cluster, ControlPlane, Endpoint, Infrastructure, Kind, LabPool, LabProvider, Networking,
        Provider, Rollout, SecretReference, SecretSource, Software, Ssh, StaticHost, StaticProvider, Taint,
        TaintEffect, Title, Workers,
    },
    names::{Count, HostKey, InfrastructureName, NameError, PoolName, ProviderName, Subnet},
};
