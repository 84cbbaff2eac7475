//! What a lab's supervisor is asked and answers: one JSON line each way, on a socket in the lab's directory.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use clap::ValueEnum;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::{Instant, sleep},
};

use super::{
    SUPERVISOR_START,
    error::{At, Error},
    model::{Host, HostName, LabName},
    paths::Paths,
};

/// Between two attempts to reach one that starts.
const START_INTERVAL: Duration = Duration::from_millis(50);

/// A switch of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Power {
    /// Boot it, if it is off.
    On,
    /// Shut it down in order.
    Off,
    /// Take the power away: nothing of it runs on.
    Cut,
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Cut => "cut",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    Status,
    /// All hosts answered its maker: the lab is what it is to be, and outlives its maker unless it is tied.
    Complete,
    Add {
        host: HostName,
    },
    Remove {
        host: HostName,
    },
    Power {
        host: HostName,
        power: Power,
    },
    LeadApi {
        address: SocketAddrV4,
    },
    Shutdown,
}

impl Request {
    /// The host it is about.
    pub(super) fn host(&self) -> Option<&HostName> {
        match self {
            Self::Add { host } | Self::Remove { host } | Self::Power { host, .. } => Some(host),
            Self::Status | Self::Complete | Self::LeadApi { .. } | Self::Shutdown => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    Status(Status),
    Host(Host),
    Done,
    Refused(String),
}

/// What runs of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its name.
    pub name: LabName,
    /// The infrastructure it belongs to, if it was made for one.
    pub owner: Option<String>,
    /// The port on 127.0.0.1 that leads to the API endpoint.
    pub api_port: u16,
    /// Where the port leads in the lab; nowhere before the first host.
    pub api_address: Option<SocketAddrV4>,
    /// Its hosts, by name.
    pub hosts: Vec<HostStatus>,
}

/// What a host does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostStatus {
    /// Its name.
    pub name: HostName,
    /// Its address in the lab.
    pub address: Ipv4Addr,
    /// Its public ssh host key.
    pub host_key: String,
    /// Whether it is switched on.
    pub running: bool,
    /// How often it booted since the supervisor runs.
    pub boots: u32,
}

/// Asks the supervisor and waits for its answer.
pub(super) async fn call(paths: &Paths, request: &Request) -> Result<Answer, Error> {
    let mut stream = open(paths).await?;
    let path = paths.control();
    let line = serde_json::to_string(request).map_err(io::Error::other).at("write to", &path)? + "\n";
    stream.write_all(line.as_bytes()).await.at("write to", &path)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).await.at("read from", &path)?;
    if answer.is_empty() {
        return Err(Error::Unanswered);
    }
    match serde_json::from_str(&answer).map_err(|source| Error::Damaged { path, source })? {
        Answer::Refused(why) => Err(Error::Refused(why)),
        answer => Ok(answer),
    }
}

pub(super) async fn status(paths: &Paths) -> Result<Status, Error> {
    match call(paths, &Request::Status).await? {
        Answer::Status(status) => Ok(status),
        other => Err(Error::Refused(format!("{other:?}"))),
    }
}

/// The supervisor's process, told by the kernel: a number in a file could be of someone else by now.
pub(super) async fn supervisor_pid(paths: &Paths) -> Result<i32, Error> {
    let stream = open(paths).await?;
    let credentials = getsockopt(&stream, PeerCredentials).at("look at", &paths.control())?;
    Ok(credentials.pid())
}

/// Connects. A supervisor that just started does not listen yet: whoever comes in that moment waits for it.
async fn open(paths: &Paths) -> Result<UnixStream, Error> {
    let path = paths.control();
    let deadline = Instant::now() + SUPERVISOR_START;
    loop {
        let connected = UnixStream::connect(&path).await;
        let early = connected.as_ref().is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        });
        if !early || Instant::now() > deadline || !paths.is_supervised()? {
            return connected.at("reach the lab's supervisor at", &path);
        }
        sleep(START_INTERVAL).await;
    }
}
