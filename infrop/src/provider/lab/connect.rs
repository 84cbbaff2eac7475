//! `infrop lab connect`: ssh's way into a lab's network.

use std::{
    fs::File,
    io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sched::{CloneFlags, setns};
use tokio::{
    io::{copy, stdin, stdout},
    net::TcpStream,
};

use super::{
    control,
    error::{At, Error},
    paths::Paths,
};

/// A host that is on answers in milliseconds; the kernel would wait two minutes for one that is off.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Carries bytes between this process's stdin and stdout and a port of a host, until either side ends.
///
/// Changes the network namespace of the calling thread: for a process that does nothing else.
pub fn connect(directory: &Path, address: Ipv4Addr, port: u16) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.at("connect into", directory)?;
    let result = runtime.block_on(carry(directory, address, port));
    // A read of stdin that nobody answers any more must not keep the process.
    runtime.shutdown_background();
    result
}

async fn carry(directory: &Path, address: Ipv4Addr, port: u16) -> Result<(), Error> {
    let paths = Paths::new(directory.to_owned());
    let pid = control::supervisor_pid(&paths).await?;
    let namespace = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let file = File::open(&namespace).at("open", &namespace)?;
    setns(file, CloneFlags::CLONE_NEWNET).at("enter", &namespace)?;
    let host = PathBuf::from(format!("{address}:{port}"));
    let attempt = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((address, port)));
    let attempt = attempt.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let mut stream = attempt.at("connect to", &host)?;
    let (mut from_host, mut to_host) = stream.split();
    let (mut input, mut output) = (stdin(), stdout());
    tokio::select! {
        result = copy(&mut input, &mut to_host) => result,
        result = copy(&mut from_host, &mut output) => result,
    }
    .at("talk to", &host)?;
    Ok(())
}
