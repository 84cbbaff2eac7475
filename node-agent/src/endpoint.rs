//! The API's endpoint that control planes carry: it leaves this host before its API server stops, and comes back after.
//!
//! The load balancers of all control planes ask here (haproxy calls it an agent check) whether to send new connections
//! to this host's API server. Whoever has one already is told by the API server itself, which stops in order first.
//! While nobody answers here, for the agent restarts, they keep to what they heard last.

use std::{net::SocketAddr, time::Duration};

use program::Program;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{failure::Failure, host::Host};

/// Whether this host's API server is for everyone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Presence {
    /// The agent does not know yet; it says nothing.
    #[default]
    Unknown,
    /// It is.
    Here,
    /// It will stop, or may at any moment.
    Away,
}

impl Presence {
    fn word(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Here => "ready\n",
            Self::Away => "drain\n",
        }
    }
}

/// Between two attempts to listen: at boot the address may not be there yet.
const LISTEN_INTERVAL: Duration = Duration::from_secs(2);

/// A few bytes always fit; whoever does not take them gets none.
const WRITE_LIMIT: Duration = Duration::from_secs(1);

/// An API server goes on for its shutdown delay and ends what is under way, at most a minute.
const STOP_LIMIT: Duration = Duration::from_secs(90);

const STOP_INTERVAL: Duration = Duration::from_millis(250);

/// Answers on `address` for ever, once there is something to say.
pub async fn serve(address: SocketAddr, mut presence: watch::Receiver<Presence>) {
    // Without a sender there is never anything to say.
    if presence.wait_for(|presence| *presence != Presence::Unknown).await.is_err() {
        return std::future::pending().await;
    }
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => tracing::warn!("cannot listen on {address} for load balancers: {error}"),
        }
        sleep(LISTEN_INTERVAL).await;
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let word = presence.borrow().word();
                say(stream, word).await;
            }
            Err(error) => {
                tracing::warn!("a load balancer cannot be answered: {error}");
                sleep(LISTEN_INTERVAL).await;
            }
        }
    }
}

/// One word, whatever the other side says: one after the other, so that nobody can have many open.
async fn say(mut stream: TcpStream, word: &str) {
    let said = async {
        stream.write_all(word.as_bytes()).await?;
        stream.shutdown().await
    };
    let _ = timeout(WRITE_LIMIT, said).await;
}

/// Ends this host's API server in order, so that everyone who is connected to it goes elsewhere; the kubelet starts it
/// again. Load balancers were told before: they ask more often than its shutdown delay lasts.
pub async fn stop_api_server(host: &Host) -> Result<(), program::Error> {
    let filter = r#"labels."io.kubernetes.container.name"==kube-apiserver"#;
    let containers = host.run(ctr(&["containers", "list", "--quiet", filter])).await?;
    let containers: Vec<&str> = containers.lines().collect();
    let deadline = Instant::now() + STOP_LIMIT;
    let mut told = false;
    loop {
        let tasks = host.run(ctr(&["tasks", "list"])).await?;
        let running: Vec<&&str> =
            containers.iter().filter(|container| is_running(&tasks, container)).collect();
        if running.is_empty() || Instant::now() > deadline {
            return Ok(());
        }
        for container in running.iter().filter(|_| !told) {
            // One that ended meanwhile is what we want.
            let _ = host.run(ctr(&["tasks", "kill", "--signal", "SIGTERM", container])).await;
        }
        told = true;
        sleep(STOP_INTERVAL).await;
    }
}

fn ctr(arguments: &[&str]) -> Program {
    Program::new("ctr").args(["--namespace", "k8s.io"]).args(arguments)
}

/// Whether a list of tasks (name, process, status) has this one as running.
fn is_running(tasks: &str, container: &str) -> bool {
    tasks.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(container) && words.nth(1) == Some("RUNNING")
    })
}

/// Leaves: first for those who come, then for those who are there.
pub async fn leave(host: &Host, presence: &watch::Sender<Presence>) {
    presence.send_replace(Presence::Away);
    if let Err(error) = stop_api_server(host).await {
        // Its connections break when it stops, as they would without us.
        tracing::warn!("the API server cannot be stopped in order: {}", Failure::of(REASON, &error));
    }
}

const REASON: common::state::Reason = common::state::Reason::ServiceFailed;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::host::fake::FakeHost;

    async fn ask(address: SocketAddr) -> String {
        let mut text = String::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut stream = loop {
            match TcpStream::connect(address).await {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            sleep(Duration::from_millis(10)).await;
        };
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn load_balancers_hear_what_the_agent_knows() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let (presence, receiver) = watch::channel(Presence::Unknown);
        let server = tokio::spawn(serve(address, receiver));
        sleep(Duration::from_millis(50)).await;
        assert!(TcpStream::connect(address).await.is_err(), "it speaks before it knows");
        for (known, word) in
            [(Presence::Here, "ready\n"), (Presence::Away, "drain\n"), (Presence::Here, "ready\n")]
        {
            presence.send_replace(known);
            assert_eq!(ask(address).await, word);
        }
        server.abort();
    }

    #[tokio::test]
    async fn an_api_server_is_told_once_and_waited_for() {
        let looks = AtomicU32::new(0);
        let fake = FakeHost::new(move |command| {
            Ok(match command {
                _ if command.contains("containers list") => "old\nnow\n".to_owned(),
                _ if command.contains("tasks list") => {
                    let status =
                        if looks.fetch_add(1, Ordering::Relaxed) < 3 { "RUNNING" } else { "STOPPED" };
                    format!("TASK  PID  STATUS\nnow   12   {status}\nold   9    STOPPED\nother 3  RUNNING\n")
                }
                _ => String::new(),
            })
        });
        let (presence, _) = watch::channel(Presence::Here);
        leave(&fake.host, &presence).await;
        assert_eq!(*presence.borrow(), Presence::Away);
        let kills: Vec<String> =
            fake.commands().into_iter().filter(|command| command.contains("kill")).collect();
        assert_eq!(kills, ["ctr --namespace k8s.io tasks kill --signal SIGTERM now"]);
        assert_eq!(fake.commands().iter().filter(|command| command.contains("tasks list")).count(), 4);
    }
}
