//! The local socket: `GET /status`, `GET /metrics`, `POST /retry`; and, if configured, metrics on loopback.

use std::{
    convert::Infallible,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

use crate::{config::LoopbackAddress, status::Shared};

/// Where it is; its directory comes from systemd.
pub const PATH: &str = "/run/node-agent/node-agent.sock";

/// Only root talks to it: `retry` starts changes.
const MODE: u32 = 0o600;

/// Whoever connects says what they want within this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves the socket for ever.
pub async fn serve(path: PathBuf, shared: Arc<Shared>) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    // One that a killed agent left.
    crate::files::remove(&path)?;
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(MODE))?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(converse(stream, Arc::clone(&shared), true));
    }
}

/// Serves metrics, and nothing else, on a loopback address for ever.
pub async fn serve_metrics(address: LoopbackAddress, shared: Arc<Shared>) -> io::Result<()> {
    let listener = TcpListener::bind(address.0).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(converse(stream, Arc::clone(&shared), false));
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, shared: Arc<Shared>, trusted: bool) {
    let service = service_fn(|request: Request<Incoming>| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(&request, &shared, trusted)) }
    });
    // A client that goes away is no trouble of ours.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(request: &Request<Incoming>, shared: &Shared, trusted: bool) -> Response<Full<Bytes>> {
    let (code, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => (
            StatusCode::OK,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            shared.metrics.text(),
        ),
        (&Method::GET, "/status") if trusted => match shared.status() {
            Some(status) => {
                let text = serde_json::to_string(&status).unwrap_or_default();
                (StatusCode::OK, "application/json", text)
            }
            None => {
                (StatusCode::SERVICE_UNAVAILABLE, "text/plain", "the host is being looked at\n".to_owned())
            }
        },
        (&Method::POST, "/retry") if trusted => {
            shared.retry.notify_one();
            (StatusCode::ACCEPTED, "text/plain", String::new())
        }
        _ => (StatusCode::NOT_FOUND, "text/plain", "there is no such thing here\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

/// Asks the running service; gives the code and the text.
pub async fn ask(path: &Path, method: Method, uri: &str) -> io::Result<(StatusCode, String)> {
    request(UnixStream::connect(path).await?, method, uri).await
}

/// Asks a web server on this host; gives the code.
pub async fn probe(address: &str, uri: &str) -> io::Result<StatusCode> {
    Ok(request(TcpStream::connect(address).await?, Method::GET, uri).await?.0)
}

async fn request(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    method: Method,
    uri: &str,
) -> io::Result<(StatusCode, String)> {
    let exchange = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let mut request = Request::new(Full::<Bytes>::default());
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().unwrap_or_default();
        request
            .headers_mut()
            .insert(hyper::header::HOST, hyper::header::HeaderValue::from_static("localhost"));
        let response = sender.send_request(request).await?;
        let code = response.status();
        let text = response.into_body().collect().await?.to_bytes();
        connection.abort();
        hyper::Result::Ok((code, String::from_utf8_lossy(&text).into_owned()))
    };
    match tokio::time::timeout(PATIENCE, exchange).await {
        Ok(answer) => answer.map_err(io::Error::other),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn metrics_status_and_retry_are_served_on_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/socket");
        let shared = Arc::new(Shared::default());
        tokio::spawn(serve(path.clone(), Arc::clone(&shared)));
        while !path.exists() {
            tokio::task::yield_now().await;
        }
        let (code, text) = ask(&path, Method::GET, "/metrics").await.unwrap();
        assert!(code.is_success() && text.contains("node_agent_build"), "{text}");
        assert_eq!(ask(&path, Method::GET, "/status").await.unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(&path, Method::GET, "/retry").await.unwrap().0, StatusCode::NOT_FOUND);
        assert_eq!(ask(&path, Method::POST, "/retry").await.unwrap().0, StatusCode::ACCEPTED);
        shared.retry.notified().await;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
    }

    #[tokio::test]
    async fn on_loopback_there_are_only_metrics() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        tokio::spawn(serve_metrics(LoopbackAddress(free), Arc::new(Shared::default())));
        let address = free.to_string();
        let mut metrics = probe(&address, "/metrics").await;
        while metrics.is_err() {
            tokio::task::yield_now().await;
            metrics = probe(&address, "/metrics").await;
        }
        assert_eq!(metrics.unwrap(), StatusCode::OK);
        assert_eq!(probe(&address, "/status").await.unwrap(), StatusCode::NOT_FOUND);
    }
}
