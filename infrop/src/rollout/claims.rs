//! Who may give permits, and to which nodes they are on their way.
//!
//! The writer's Lease says who works, but a writer that slept through its loss may still send what it was about to send.
//! So each permit is announced here first, in one object that every announcement must find as the last one left it. A
//! writer that comes after takes the object over: from then on the one before cannot announce anything, and what it
//! announced is fenced off by a write on the node, which its permit then does not find as it was.

use std::{cell::RefCell, collections::BTreeSet};

use common::metadata::NodeName;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use tokio::sync::Mutex;

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
    written: Mutex<Written>,
    /// Permits that are to be announced.
    wanted: RefCell<BTreeSet<NodeName>>,
    /// Announcements whose permits are there, or never will be.
    settled: RefCell<BTreeSet<NodeName>>,
}

/// The object as we last wrote it.
struct Written {
    version: String,
    nodes: BTreeSet<NodeName>,
}

impl std::fmt::Debug for Claims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claims").field("wanted", &self.wanted).finish_non_exhaustive()
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
                    let claims = Self {
                        api,
                        identity: identity.to_owned(),
                        written: Mutex::new(Written { version, nodes: nodes.clone() }),
                        wanted: RefCell::default(),
                        settled: RefCell::default(),
                    };
                    return Ok((claims, nodes));
                }
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(Error::claims(error)),
            }
        }
        Err(Error::Lost)
    }

    /// Announces a permit, together with all that are to be announced by then: many nodes may be begun at once.
    pub async fn announce(&self, node: &NodeName) -> Result<(), Error> {
        self.settled.borrow_mut().remove(node);
        self.wanted.borrow_mut().insert(node.clone());
        let mut written = self.written.lock().await;
        if !self.wanted.borrow().contains(node) {
            // Another's write, later than the line above, had it along.
            return Ok(());
        }
        self.write(&mut written).await
    }

    /// The permit of a node is there, or never will be: its announcement is taken back with the next write.
    pub fn settle(&self, node: &NodeName) {
        self.settled.borrow_mut().insert(node.clone());
    }

    /// Takes back what is settled.
    pub async fn end(&self) -> Result<(), Error> {
        let mut written = self.written.lock().await;
        self.wanted.borrow_mut().clear();
        if written.nodes.is_disjoint(&self.settled.borrow()) {
            return Ok(());
        }
        self.write(&mut written).await
    }

    async fn write(&self, written: &mut Written) -> Result<(), Error> {
        let wanted = self.wanted.borrow().clone();
        let settled = self.settled.borrow().clone();
        let nodes: BTreeSet<NodeName> = written.nodes.difference(&settled).chain(&wanted).cloned().collect();
        for _ in 0..ATTEMPTS {
            let lease = lease(&self.identity, &nodes, Some(written.version.clone()));
            match self.api.replace(NAME, &PostParams::default(), &lease).await {
                Ok(lease) => {
                    *written = Written { version: lease.resource_version().unwrap_or_default(), nodes };
                    self.wanted.borrow_mut().retain(|node| !wanted.contains(node));
                    self.settled.borrow_mut().retain(|node| !settled.contains(node));
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                    // A write of ours whose end we did not see, or someone who took over.
                    let found = self.api.get_opt(NAME).await.map_err(Error::claims)?;
                    let ours = found.filter(|lease| {
                        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
                        holder == Some(&self.identity)
                    });
                    written.version = ours.ok_or(Error::Lost)?.resource_version().unwrap_or_default();
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
