//! Who may give permits, and to which nodes they are on their way.
//!
//! The writer's Lease says who works, but a writer that slept through its loss may still send what it was about to send.
//! So each permit is announced here first, in one object that every announcement must find as the last one left it. A
//! writer that comes after takes the object over: from then on the one before cannot announce anything, and what it
//! announced is fenced off by a write on the node, which its permit then does not find as it was.

use std::collections::BTreeSet;

use common::metadata::NodeName;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
};

use super::error::Error;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "infrop-rollout";

/// The nodes, with commas between.
const NODES: &str = "infrop.caos.ch/nodes";

/// How often a write may find that another was faster: more than there are people who start infrop at once.
const ATTEMPTS: u32 = 10;

/// The object, taken over.
pub struct Claims {
    api: Api<Lease>,
    identity: String,
    version: String,
    nodes: BTreeSet<NodeName>,
}

impl std::fmt::Debug for Claims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claims").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl Claims {
    /// Takes the object over; gives the nodes that were announced there.
    pub async fn take_over(
        client: kube::Client,
        identity: &str,
    ) -> Result<(Self, BTreeSet<NodeName>), Error> {
        let api = Api::<Lease>::namespaced(client, NAMESPACE);
        for _ in 0..ATTEMPTS {
            let found = api.get_opt(NAME).await.map_err(Error::claims)?;
            let nodes = found.as_ref().map(announced).unwrap_or_default();
            let lease = lease(identity, &nodes, found.as_ref().and_then(ResourceExt::resource_version));
            let written = match found {
                None => api.create(&PostParams::default(), &lease).await,
                Some(_) => api.replace(NAME, &PostParams::default(), &lease).await,
            };
            match written {
                Ok(lease) => {
                    let version = lease.resource_version().unwrap_or_default();
                    let claims = Self { api, identity: identity.to_owned(), version, nodes: nodes.clone() };
                    return Ok((claims, nodes));
                }
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(Error::claims(error)),
            }
        }
        Err(Error::Lost)
    }

    /// Announces a permit.
    pub async fn announce(&mut self, node: &NodeName) -> Result<(), Error> {
        let mut nodes = self.nodes.clone();
        nodes.insert(node.clone());
        self.write(nodes).await
    }

    /// Takes announcements back whose permits are there, or never will be.
    pub async fn forget(&mut self, nodes: &BTreeSet<NodeName>) -> Result<(), Error> {
        let left: BTreeSet<NodeName> = self.nodes.difference(nodes).cloned().collect();
        if left == self.nodes { Ok(()) } else { self.write(left).await }
    }

    async fn write(&mut self, nodes: BTreeSet<NodeName>) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let lease = lease(&self.identity, &nodes, Some(self.version.clone()));
            match self.api.replace(NAME, &PostParams::default(), &lease).await {
                Ok(lease) => {
                    self.version = lease.resource_version().unwrap_or_default();
                    self.nodes = nodes;
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                    // A write of ours whose end we did not see, or someone who took over.
                    let found = self.api.get_opt(NAME).await.map_err(Error::claims)?;
                    let ours = found.filter(|lease| {
                        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
                        holder == Some(&self.identity)
                    });
                    self.version = ours.ok_or(Error::Lost)?.resource_version().unwrap_or_default();
                }
                Err(error) => return Err(Error::claims(error)),
            }
        }
        Err(Error::Lost)
    }
}

fn lease(identity: &str, nodes: &BTreeSet<NodeName>, version: Option<String>) -> Lease {
    let names: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    Lease {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            annotations: Some([(NODES.to_owned(), names.join(","))].into()),
            resource_version: version,
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec { holder_identity: Some(identity.to_owned()), ..LeaseSpec::default() }),
    }
}

/// Names that no node can have are nobody's.
fn announced(lease: &Lease) -> BTreeSet<NodeName> {
    let names = lease.annotations().get(NODES).map(String::as_str).unwrap_or_default();
    names.split(',').filter_map(|name| name.parse().ok()).collect()
}
