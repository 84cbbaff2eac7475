//! Where events of a lab come from: its control socket, its forwarded port, its maker's end.

use std::{
    fs, io,
    net::{SocketAddrV4, TcpListener as StdListener},
    path::Path,
    process::ExitStatus,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{mpsc, oneshot, watch},
};

use super::{
    control::{Answer, Request},
    error::{At, Error},
    model::HostName,
    paths::Paths,
};

/// Where an answer goes.
pub(super) type Reply = oneshot::Sender<Answer>;

/// What a supervisor acts on.
pub(super) enum Event {
    /// The nspawn of a host ended.
    Ended(HostName, ExitStatus),
    /// A host took too long to shut down from the boot of this number.
    Overdue(HostName, u64),
    /// The files of a removed host are deleted, or could not be.
    Deleted(HostName, Result<(), Error>),
    Asked(Request, Reply),
    /// The process that made the lab is gone.
    MakerEnded,
}

/// Answers on the lab's socket.
pub(super) fn serve_control(paths: &Paths, events: &mpsc::UnboundedSender<Event>) -> Result<(), Error> {
    let path = paths.control();
    // One left by a killed supervisor; we hold the lock, so nobody listens on it.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).at("remove", &path),
        _ => {}
    }
    let listener = UnixListener::bind(&path).at("listen on", &path)?;
    let events = events.clone();
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(converse(stream, events.clone()))),
                Err(error) => rest_after(&error).await,
            }
        }
    });
    Ok(())
}

/// One request and its answer. Whoever can open the socket is root; garbage still must not stop a lab.
async fn converse(stream: UnixStream, events: mpsc::UnboundedSender<Event>) {
    const LIMIT: u64 = 4096;
    let (reading, mut writing) = stream.into_split();
    let mut line = String::new();
    if BufReader::new(reading.take(LIMIT)).read_line(&mut line).await.is_err() || line.is_empty() {
        return;
    }
    let answer = match serde_json::from_str(&line) {
        Err(error) => Answer::Refused(format!("that is not a request: {error}")),
        Ok(request) => {
            let (reply, answer) = oneshot::channel();
            let _ = events.send(Event::Asked(request, reply));
            match answer.await {
                Ok(answer) => answer,
                Err(_) => return,
            }
        }
    };
    if let Ok(text) = serde_json::to_string(&answer) {
        // A caller that went away does not want it any more.
        let _ = writing.write_all((text + "\n").as_bytes()).await;
    }
}

/// Leads a port of the computer to the API endpoint in the lab.
pub(super) fn forward_api(
    listener: StdListener,
    address: watch::Receiver<Option<SocketAddrV4>>,
) -> Result<(), Error> {
    let listener = TcpListener::from_std(listener).at("listen for", Path::new("the API"))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    // Without an address the connection is closed: there is no endpoint yet.
                    let target = *address.borrow();
                    if let Some(address) = target {
                        tokio::spawn(forward(client, address));
                    }
                }
                Err(error) => rest_after(&error).await,
            }
        }
    });
    Ok(())
}

async fn forward(mut client: TcpStream, target: SocketAddrV4) {
    // Without a server there, the client sees its connection closed: the truth.
    if let Ok(mut server) = TcpStream::connect(target).await {
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

/// A connection that could not be taken (too many files, or gone again) must not end the listening.
async fn rest_after(error: &io::Error) {
    eprintln!("cannot take a connection: {error}");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Watches the maker's end of our stdin, which says nothing but is closed when the maker ends.
pub(super) fn watch_maker(events: &mpsc::UnboundedSender<Event>) {
    let events = events.clone();
    tokio::spawn(async move {
        if let Err(error) = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await {
            eprintln!("cannot watch the maker of the lab: {error}");
        }
        let _ = events.send(Event::MakerEnded);
    });
}
