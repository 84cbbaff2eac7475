//! The host's own Node object, with the kubelet's credential: one watch, and patches of the agent's keys.
//!
//! The watch names the one object, starts with its present state, and ends after some minutes; the next one is
//! also the resync. Nothing is ever listed or polled.

mod credential;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use common::{KubernetesVersion, annotations, metadata::NodeName};
use futures::{Stream, StreamExt};
use hyper::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
    core::PartialObjectMeta,
};
use serde::Deserialize;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use self::credential::{connect, stamp, until_another};

/// Names the writer in the Node's managed fields.
const FIELD_MANAGER: &str = "node-agent";

/// How long one watch lasts; the API server's own limit for a client that asks for none is in this range.
const WATCH_SECONDS: u32 = 290;

/// By then the server has ended it. If not, something between holds a connection that leads nowhere.
const WATCH_LIMIT: Duration = Duration::from_mins(5);

/// Within this a new watch tells of a Node that is there.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// A server that does not answer a small request by then is away.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Between attempts to reach a server that is away: soon at first, and never a flood from many nodes.
const SHORTEST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// What is known of the Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// The kubelet has no credential: the host is in no cluster.
    NoCredential,
    /// The API server does not answer.
    Silent {
        /// Since when.
        since: Timestamp,
    },
    /// The API server answers, and has no such Node.
    Absent,
    /// The API server answers, and does not let us see the Node.
    Refused(String),
    /// These are the Node's annotations.
    Seen {
        /// All of them.
        annotations: BTreeMap<String, String>,
        /// The version they were read in.
        version: Option<u64>,
    },
}

/// What of a cluster's kubeadm-config is needed here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Cluster {
    /// The version that some control plane was brought to.
    #[serde(rename = "kubernetesVersion")]
    pub version: KubernetesVersion,
    /// Where its images come from, if that is not where kubeadm takes them from by itself.
    #[serde(rename = "imageRepository")]
    pub image_repository: Option<String>,
}

/// A request that brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The credential cannot be used.
    #[error("cannot use the kubelet's credential {}", .path.display())]
    Credential {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server did not answer.
    #[error("the API server does not answer")]
    Unreachable(#[source] Box<kube::Error>),
    /// The server did not answer in time.
    #[error("the API server did not answer within {} s", REQUEST_LIMIT.as_secs())]
    TimedOut,
    /// The server said no.
    #[error("the API server refused: {0}")]
    Refused(String),
    /// The cluster was not made by kubeadm.
    #[error("the cluster's kubeadm-config says no version")]
    NoVersion,
}

impl NodeError {
    /// Whether the server answered, and said no.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::NoVersion)
    }
}

impl From<kube::Error> for NodeError {
    fn from(error: kube::Error) -> Self {
        match error {
            // A server that starts or stops answers like this, too; it is as good as away.
            kube::Error::Api(status) if status.code < 500 && status.code != 429 && status.code != 401 => {
                Self::Refused(annotations::shorten_middle(&status.message))
            }
            other => Self::Unreachable(Box::new(other)),
        }
    }
}

/// The Node of this host.
#[derive(Debug)]
pub struct OwnNode {
    name: NodeName,
    kubeconfig: PathBuf,
    view: watch::Sender<View>,
    client: Mutex<Option<ClientBox>>,
    /// A request found the server away: a watch that hangs with it does not notice by itself.
    doubt: Notify,
}

/// How one watch ended.
enum Ended {
    /// By the server, or by a fault.
    Watch(Result<(), NodeError>),
    /// Nobody answers beside it.
    Doubt,
    /// It was made with a credential that is not the present one.
    Credential,
}

/// A client, which has nothing to show.
struct ClientBox(Client);

impl std::fmt::Debug for ClientBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl OwnNode {
    /// The Node of a name, reached with a credential that may not be there yet.
    pub fn new(name: NodeName, kubeconfig: PathBuf) -> Self {
        let (view, _) = watch::channel(silent_or_unjoined(&kubeconfig));
        Self { name, kubeconfig, view, client: Mutex::default(), doubt: Notify::new() }
    }

    /// Its name.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// What is known of it, and a signal when that changes.
    pub fn view(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// Follows the Node for ever. `files` tells when a credential may have come, gone or changed.
    pub async fn follow(&self, mut files: watch::Receiver<()>) {
        let mut delay = SHORTEST_DELAY;
        loop {
            if !self.kubeconfig.exists() {
                self.set(View::NoCredential);
                // The sender lives as long as the agent.
                let _ = files.changed().await;
                continue;
            }
            let started = Instant::now();
            let credential = stamp(&self.kubeconfig);
            let ended = tokio::select! {
                result = self.watch_once() => Ended::Watch(result),
                () = self.doubt.notified() => Ended::Doubt,
                () = until_another(&self.kubeconfig, credential, &mut files) => Ended::Credential,
            };
            let lasted = started.elapsed() >= LONGEST_DELAY;
            if lasted {
                delay = SHORTEST_DELAY;
            }
            match ended {
                Ended::Credential => {
                    // It may be of another cluster, whose versions begin anew.
                    self.view.send_replace(silent_or_unjoined(&self.kubeconfig));
                    continue;
                }
                Ended::Watch(Ok(())) if lasted => continue,
                // A server that ends every watch at once must not be flooded.
                Ended::Watch(Ok(())) | Ended::Doubt => {}
                Ended::Watch(Err(error)) if error.is_refusal() => self.note_refusal(&error),
                Ended::Watch(Err(error)) => self.note_silence(&error),
            }
            let pause = delay.mul_f64(0.5 + random() / 2.0);
            delay = (delay * 2).min(LONGEST_DELAY);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = files.changed() => {}
            }
        }
    }

    /// One watch from its start to its end.
    async fn watch_once(&self) -> Result<(), NodeError> {
        // Made anew each time: the kubelet may have renewed its certificate since.
        let api: Api<Node> = Api::all(self.connect().await?);
        let parameters =
            WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(WATCH_SECONDS);
        // No version: the watch starts with the newest state.
        let stream = tokio::time::timeout(REQUEST_LIMIT, api.watch_metadata(&parameters, "")).await;
        let stream = stream.map_err(|_| NodeError::TimedOut)??;
        self.hear_all(stream, WATCH_LIMIT).await
    }

    /// Hears events until they end, at the latest until the limit.
    async fn hear_all(
        &self,
        events: impl Stream<Item = kube::Result<WatchEvent<PartialObjectMeta<Node>>>>,
        limit: Duration,
    ) -> Result<(), NodeError> {
        let mut events = std::pin::pin!(events);
        let end = Instant::now() + limit;
        // A Node that is there comes at once; bookmarks say nothing of it.
        let mut first_word = Some(Instant::now() + FIRST_WORD);
        loop {
            match tokio::time::timeout_at(first_word.unwrap_or(end), events.next()).await {
                Ok(None) => return Ok(()),
                Ok(Some(event)) => {
                    let event = event?;
                    first_word.take_if(|_| !matches!(event, WatchEvent::Bookmark(_)));
                    self.hear(event)?;
                }
                Err(_) if first_word.take().is_some() => self.set(View::Absent),
                Err(_) => {
                    tracing::warn!("the watch of the Node did not end in time and is begun anew");
                    return Ok(());
                }
            }
        }
    }

    fn hear(&self, event: WatchEvent<PartialObjectMeta<Node>>) -> Result<(), NodeError> {
        match event {
            WatchEvent::Added(node) | WatchEvent::Modified(node) => self.see(node),
            WatchEvent::Deleted(_) => self.set(View::Absent),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        }
        Ok(())
    }

    /// Writes the agent's keys; what the server then shows is the newest state there is.
    pub async fn patch(&self, patch: &serde_json::Value) -> Result<(), NodeError> {
        let api: Api<Node> = Api::all(self.client().await?);
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let merge = Patch::Merge(patch);
        let answer = self.answer(api.patch_metadata(self.name.as_str(), &parameters, &merge)).await?;
        self.see(answer);
        Ok(())
    }

    /// Reads the newest state.
    pub async fn read(&self) -> Result<(), NodeError> {
        let api: Api<Node> = Api::all(self.client().await?);
        match self.answer(api.get_metadata_opt(self.name.as_str())).await? {
            Some(node) => self.see(node),
            None => self.set(View::Absent),
        }
        Ok(())
    }

    /// The cluster as kubeadm keeps it. Every node may read it.
    pub async fn cluster(&self) -> Result<Cluster, NodeError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client().await?, "kube-system");
        let config = self.answer(api.get("kubeadm-config")).await?;
        let text = config
            .data
            .and_then(|mut data| data.remove("ClusterConfiguration"))
            .ok_or(NodeError::NoVersion)?;
        serde_yaml::from_str(&text).map_err(|_| NodeError::NoVersion)
    }

    /// Whether the API server at an address, and no other, is ready.
    pub async fn is_ready(&self, server: SocketAddr) -> Result<(), NodeError> {
        let client = self.connect_to(Some(server)).await?;
        let request = Request::get("/readyz").body(Vec::new()).map_err(kube::Error::HttpError)?;
        match tokio::time::timeout(REQUEST_LIMIT, client.request_text(request)).await {
            Ok(answer) => Ok(answer.map(drop)?),
            Err(_) => Err(NodeError::TimedOut),
        }
    }

    async fn answer<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, NodeError> {
        let answer = match tokio::time::timeout(REQUEST_LIMIT, request).await {
            Ok(answer) => answer.map_err(NodeError::from),
            Err(_) => Err(NodeError::TimedOut),
        };
        if let Err(error) = &answer
            && !error.is_refusal()
        {
            self.note_silence(error);
            self.doubt.notify_waiters();
        }
        answer
    }

    fn see(&self, node: PartialObjectMeta<Node>) {
        let version = node.metadata.resource_version.and_then(|version| version.parse().ok());
        let annotations = node.metadata.annotations.unwrap_or_default();
        self.view.send_if_modified(|view| {
            if let View::Seen { version: Some(known), annotations: old } = view {
                // An answer to a patch may overtake an event of the watch.
                if version.is_some_and(|version| version < *known) {
                    return false;
                }
                // Heartbeats of the kubelet are no news.
                if ours(old).eq(ours(&annotations)) {
                    *view = View::Seen { annotations, version };
                    return false;
                }
            }
            *view = View::Seen { annotations, version };
            true
        });
    }

    fn note_silence(&self, error: &NodeError) {
        let was_heard = self.view.send_if_modified(|view| {
            if matches!(view, View::Silent { .. }) {
                return false;
            }
            *view = View::Silent { since: Timestamp::now() };
            true
        });
        if was_heard {
            tracing::warn!("the Node cannot be followed: {}", Chain(error));
        }
    }

    /// It is not silence, which a plan under way waits out: nobody knows what the Node says.
    fn note_refusal(&self, error: &NodeError) {
        let refused = View::Refused(error.to_string());
        if self.view.send_if_modified(|view| {
            *view != refused && {
                *view = refused.clone();
                true
            }
        }) {
            tracing::warn!("the Node cannot be followed: {}", Chain(error));
        }
    }

    fn set(&self, new: View) {
        self.view.send_if_modified(|view| {
            let other = std::mem::discriminant(view) != std::mem::discriminant(&new);
            if other {
                *view = new;
            }
            other
        });
    }

    async fn client(&self) -> Result<Client, NodeError> {
        let known = self.client.lock().ok().and_then(|client| client.as_ref().map(|client| client.0.clone()));
        match known {
            Some(client) => Ok(client),
            None => self.connect().await,
        }
    }

    async fn connect_to(&self, server: Option<SocketAddr>) -> Result<Client, NodeError> {
        let client = connect(&self.kubeconfig, server).await;
        client.map_err(|source| NodeError::Credential { path: self.kubeconfig.clone(), source })
    }

    async fn connect(&self) -> Result<Client, NodeError> {
        let client = self.connect_to(None).await?;
        if let Ok(mut known) = self.client.lock() {
            *known = Some(ClientBox(client.clone()));
        }
        Ok(client)
    }
}

fn silent_or_unjoined(kubeconfig: &Path) -> View {
    if kubeconfig.exists() { View::Silent { since: Timestamp::now() } } else { View::NoCredential }
}

/// The annotations both sides speak through.
fn ours(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = (&String, &String)> {
    annotations.iter().filter(|(key, _)| key.contains(".caos.ch/"))
}

/// A number between 0 and 1, good enough to spread retries.
pub fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let number = RandomState::new().hash_one(std::process::id());
    f64::from(u32::try_from(number >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

/// An error with its causes.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn std::error::Error + 'static));

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_watch_that_nobody_ends_ends() {
        let node = OwnNode::new("n1".parse().unwrap(), "/does/not/exist".into());
        let limit = Duration::from_millis(20);
        let event = r#"{"type":"ADDED","object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata",
            "metadata":{"name":"n1","resourceVersion":"1","annotations":{"a":"b"}}}}"#;
        let first = futures::stream::iter([Ok(serde_json::from_str(event).unwrap())]);
        let heard = node.hear_all(first.chain(futures::stream::pending()), limit);
        tokio::time::timeout(Duration::from_secs(20), heard).await.unwrap().unwrap();
        assert!(matches!(&*node.view().borrow(), View::Seen { version: Some(1), .. }));
    }
}
