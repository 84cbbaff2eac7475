//! The kubelet's credential: a client with it, and when it becomes another.

use std::{fs, net::SocketAddr, os::unix::fs::MetadataExt, path::Path, time::Duration};

use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use kube::{
    Client, Config,
    client::ConfigExt,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::sync::watch;

use super::REQUEST_LIMIT;

/// A dead connection is noticed within a minute instead of when the watch ends.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// What tells one state of a file from another without reading it.
pub(super) fn stamp(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let file = fs::metadata(path).ok()?;
    Some((file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
}

/// Waits until a file is another than it was. `files` tells when it may be.
pub(super) async fn until_another(
    path: &Path,
    known: Option<(u64, u64, i64, i64)>,
    files: &mut watch::Receiver<()>,
) {
    while stamp(path) == known {
        if files.changed().await.is_err() {
            // Nobody tells any more; the end of the watch is the net below.
            std::future::pending::<()>().await;
        }
    }
}

/// A client that tries once: who waits how long is decided elsewhere. It asks the API server at `server`, or else the one
/// that the kubelet does.
pub(super) async fn connect(
    kubeconfig: &Path,
    server: Option<SocketAddr>,
) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    if let Some(server) = server {
        config.cluster_url = format!("https://{server}").parse()?;
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(3));
    connector.set_connect_timeout(Some(REQUEST_LIMIT));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(tower::BoxError::from)
        .service(client);
    Ok(Client::new(service, config.default_namespace))
}
