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

/// TEMPORARY
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Problems(String);

/// TEMPORARY
pub fn read(path: &std::path::Path) -> Result<Infrastructure, Problems> {
    let text = std::fs::read_to_string(path).map_err(|e| Problems(e.to_string()))?;
    let v: serde_json::Value = serde_yaml::from_str(&text).map_err(|e| Problems(e.to_string()))?;
    serde_json::from_value(v).map_err(|e| Problems(e.to_string()))
}
