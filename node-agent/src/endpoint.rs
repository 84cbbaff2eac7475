//! The API's endpoint that control planes carry: it leaves this host before its API server stops, and comes back after.
//!
//! The load balancers of all control planes ask here (haproxy calls it an agent check) whether to send new connections
//! to this host's API server. Whoever has one already is told by the API server itself, which stops in order first.
//! While nobody answers here, for the agent restarts, they keep to what they heard last.

use std::{net::SocketAddr, time::Duration};

use common::state::Reason;
use program::Program;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{failure::Failure, host::Host, software::api_server_port};

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

/// An API server goes on for its shutdown delay, which someone may have made longer.
const STOP_LIMIT: Duration = Duration::from_secs(90);

/// What was asked before it closed its door is answered within this, but for watches.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// How long an API server is ready without a break until it counts.
const STEADY: Duration = Duration::from_secs(15);

const SETTLE_INTERVAL: Duration = Duration::from_millis(500);

/// etcd and an API server start within a minute also on a busy host.
const SETTLE_LIMIT: Duration = Duration::from_mins(5);

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
async fn stop_api_server(host: &Host, address: SocketAddr) -> Result<(), Failure> {
    let run = async |program: Program| host.insist(Reason::ServiceFailed, program).await;
    let filter = r#"labels."io.kubernetes.container.name"==kube-apiserver"#;
    let containers = run(ctr(&["containers", "list", "--quiet", filter])).await?;
    let address = SocketAddr::new(address.ip(), api_server_port(host)?);
    let deadline = Instant::now() + STOP_LIMIT;
    let mut told: Option<&str> = None;
    let mut closed = None;
    loop {
        let tasks = run(ctr(&["tasks", "list"])).await?;
        let running: Vec<&str> = containers.lines().filter(|one| is_running(&tasks, one)).collect();
        if running.is_empty() || Instant::now() > deadline {
            return Ok(());
        }
        // It has told all who are connected to go when it does not listen any more. Those who watch stay for as long as
        // it lets them; they lose nothing.
        if closed.is_none() && told.is_some() && TcpStream::connect(address).await.is_err() {
            closed = Some(Instant::now());
        }
        let signal =
            if closed.is_some_and(|closed| closed.elapsed() > REQUEST_LIMIT) { "SIGKILL" } else { "SIGTERM" };
        for container in running.iter().filter(|_| told != Some(signal)) {
            // One that ended meanwhile is what we want.
            let _ = host.run(ctr(&["tasks", "kill", "--signal", signal, container])).await;
        }
        told = Some(signal);
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

/// Waits until this host's API server is there for good. A new kubelet makes all static pods anew some seconds after its
/// start, etcd among them: one that is ready before that is about to stop.
pub async fn settle<F>(is_ready: impl Fn() -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), String>>,
{
    let deadline = Instant::now() + SETTLE_LIMIT;
    let mut since = Instant::now();
    loop {
        if let Err(why) = is_ready().await {
            since = Instant::now();
            if since > deadline {
                let message = format!("the API server of this host is not ready: {why}");
                return Err(Failure::new(Reason::ServiceFailed, message));
            }
        } else if since.elapsed() >= STEADY {
            return Ok(());
        }
        sleep(SETTLE_INTERVAL).await;
    }
}

/// Leaves: first for those who come, then for those who are there. `address` is one of the host's.
pub async fn leave(host: &Host, address: SocketAddr, presence: &watch::Sender<Presence>) {
    presence.send_replace(Presence::Away);
    if let Err(failure) = stop_api_server(host, address).await {
        // Its connections break when it stops, as they would without us.
        tracing::warn!("the API server cannot be stopped in order: {failure}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

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

    /// What is done to an API server of which `tasks` are listed one after the other; its door is closed.
    async fn signals(tasks: &'static [&'static str]) -> Vec<String> {
        let looks = AtomicUsize::new(0);
        let fake = FakeHost::new(move |command| {
            Ok(match command {
                _ if command.contains("containers list") => "old\nnow\n".to_owned(),
                _ if command.contains("tasks list") => {
                    let look = looks.fetch_add(1, Ordering::Relaxed).min(tasks.len() - 1);
                    format!(
                        "TASK  PID  STATUS\nnow   12   {}\nold   9    STOPPED\nother 3  RUNNING\n",
                        tasks[look]
                    )
                }
                _ => String::new(),
            })
        });
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let manifest = format!(
            "spec: {{ containers: [{{ image: x, command: [kube-apiserver, --secure-port={}] }}] }}",
            free.port()
        );
        fake.write("/etc/kubernetes/manifests/kube-apiserver.yaml", &manifest);
        let (presence, _) = watch::channel(Presence::Here);
        leave(&fake.host, free, &presence).await;
        assert_eq!(*presence.borrow(), Presence::Away);
        let words = "ctr --namespace k8s.io tasks kill --signal ";
        fake.commands().iter().filter_map(|command| command.strip_prefix(words)).map(str::to_owned).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_counts_when_it_stays() {
        let started = Instant::now();
        // Ready at once, away from 5 to 20 s, and then for good.
        let settled = settle(|| async move {
            match started.elapsed().as_secs() {
                5..20 => Err("etcd".to_owned()),
                _ => Ok(()),
            }
        });
        settled.await.unwrap();
        assert!(started.elapsed() >= Duration::from_secs(34), "{:?}", started.elapsed());
        let failure = settle(|| async { Err("etcd".to_owned()) }).await.unwrap_err();
        assert!(failure.message.ends_with(": etcd"), "{failure}");
    }

    #[tokio::test]
    async fn an_api_server_is_told_once_and_waited_for() {
        assert_eq!(signals(&["RUNNING", "RUNNING", "STOPPED"]).await, ["SIGTERM now"]);
        assert!(signals(&["STOPPED"]).await.is_empty());
    }

    #[tokio::test]
    async fn one_that_only_has_watches_left_is_ended() {
        let mut tasks = vec!["RUNNING"; 12];
        tasks.push("STOPPED");
        assert_eq!(signals(tasks.leak()).await, ["SIGTERM now", "SIGKILL now"]);
    }
}
