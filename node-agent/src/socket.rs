//! The local socket: `GET /status`, `GET /metrics`, `POST /retry`; and, if configured, metrics on loopback.

use std::{
    convert::Infallible, fs, io, os::unix::fs::PermissionsExt, path::Path, pin::pin, sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt, stream};
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
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{config::LoopbackAddress, status::Shared};

/// Where it is; its directory comes from systemd.
pub const PATH: &str = "/run/node-agent/node-agent.sock";

/// Only root talks to it: `retry` starts changes.
const MODE: u32 = 0o600;

/// Whoever connects says what they want within this.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many talk to it at the same time; others wait. Without a bound they could use up the agent's files.
const TALKERS: usize = 16;

/// Between two attempts to listen or to accept: what is in the way may go.
const AGAIN: Duration = Duration::from_secs(5);

/// Opens the socket.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    // One that a killed agent left.
    crate::files::remove(path)?;
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    Ok(listener)
}

/// Serves the socket for ever.
pub async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    let clients = stream::poll_fn(|context| {
        listener.poll_accept(context).map(|client| Some(client.map(|(stream, _)| stream)))
    });
    serve_all(clients, shared, true).await;
}

/// Serves metrics, and nothing else, on a loopback address for ever. They are no reason not to work: somebody else may
/// have the port.
pub async fn serve_metrics(address: LoopbackAddress, shared: Arc<Shared>) {
    let listener = loop {
        match TcpListener::bind(address.0).await {
            Ok(listener) => break listener,
            Err(error) => tracing::warn!("cannot serve metrics on {}: {error}", address.0),
        }
        sleep(AGAIN).await;
    };
    let clients = stream::poll_fn(|context| {
        listener.poll_accept(context).map(|client| Some(client.map(|(stream, _)| stream)))
    });
    serve_all(clients, shared, false).await;
}

async fn serve_all<S>(clients: impl Stream<Item = io::Result<S>>, shared: Arc<Shared>, trusted: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut clients = pin!(clients);
    let talkers = Arc::new(Semaphore::new(TALKERS));
    // Nobody closes either.
    while let Ok(talker) = Arc::clone(&talkers).acquire_owned().await
        && let Some(client) = clients.next().await
    {
        match client {
            Ok(stream) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    // Also one who listens slowly makes room for others.
                    let _ = timeout(PATIENCE * 2, converse(stream, shared, trusted)).await;
                    drop(talker);
                });
            }
            // A client that went away, or no file to spare: neither may end what is under way.
            Err(error) => {
                tracing::warn!("a client cannot be answered: {error}");
                sleep(AGAIN).await;
            }
        }
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
    match timeout(PATIENCE, exchange).await {
        Ok(answer) => answer.map_err(io::Error::other),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn metrics_status_and_retry_are_served_on_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/socket");
        let shared = Arc::new(Shared::default());
        tokio::spawn(serve(listen(&path).unwrap(), Arc::clone(&shared)));
        let (code, text) = ask(&path, Method::GET, "/metrics").await.unwrap();
        assert!(code.is_success() && text.contains("node_agent_build"), "{text}");
        assert_eq!(ask(&path, Method::GET, "/status").await.unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(&path, Method::GET, "/retry").await.unwrap().0, StatusCode::NOT_FOUND);
        assert_eq!(ask(&path, Method::POST, "/retry").await.unwrap().0, StatusCode::ACCEPTED);
        shared.retry.notified().await;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
    }

    async fn metrics_on(address: &str) {
        while probe(address, "/metrics").await.ok() != Some(StatusCode::OK) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn on_loopback_there_are_only_metrics() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        tokio::spawn(serve_metrics(LoopbackAddress(free), Arc::new(Shared::default())));
        let address = free.to_string();
        metrics_on(&address).await;
        assert_eq!(probe(&address, "/status").await.unwrap(), StatusCode::NOT_FOUND);
        // Those who come and say nothing keep others waiting, not away.
        let mut silent = Vec::new();
        for _ in 0..TALKERS * 2 {
            silent.push(TcpStream::connect(&address).await.unwrap());
        }
        drop(silent);
        metrics_on(&address).await;
    }

    #[tokio::test]
    async fn a_client_that_cannot_be_accepted_ends_nothing() {
        tokio::time::pause();
        let (mut ours, theirs) = tokio::io::duplex(1000);
        let clients = [Err(io::Error::other("no file to spare")), Ok(theirs)];
        let clients = stream::iter(clients).chain(stream::pending());
        let asks = async {
            ours.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            ours.read_to_end(&mut answer).await.unwrap();
            String::from_utf8(answer).unwrap()
        };
        let serves = serve_all(clients, Arc::new(Shared::default()), false);
        let answer = tokio::select! {
            answer = asks => answer,
            () = serves => panic!("it ended"),
        };
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
