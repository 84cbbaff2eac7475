//! Calls without pause, and what became of them.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use infrop::provider::lab::Lab;
use jiff::Timestamp;
use nix::sched::{CloneFlags, setns};

use super::{CONTROL_PLANES, workload::NODE_PORT};
use crate::infrastructure::Infrastructure;

/// Longer than any call that did not get lost, also on a machine with far too much to do.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Until every node leads to a new service.
const WARM_UP: Duration = Duration::from_mins(1);

/// What became of calls.
#[derive(Debug, Default)]
pub struct Tally {
    calls: AtomicU64,
    failures: Mutex<Vec<String>>,
    first_failure: OnceLock<Timestamp>,
    silence: Mutex<Silence>,
}

/// How long no call succeeded.
#[derive(Debug, Default)]
struct Silence {
    last: Duration,
    longest: Duration,
}

impl Tally {
    pub fn take(&self, started: Instant, result: Result<(), String>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let now = started.elapsed();
        match result {
            Ok(()) => {
                let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
                silence.longest = silence.longest.max(now.saturating_sub(silence.last));
                silence.last = now;
            }
            Err(why) => {
                let _ = self.first_failure.set(Timestamp::now());
                let failure = format!("at {:.1} s: {why}", now.as_secs_f64());
                self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
            }
        }
    }

    /// What is to be said of them.
    pub fn summary(&self, what: &str) -> String {
        let calls = self.calls.load(Ordering::Relaxed);
        let failed = self.failures.lock().unwrap_or_else(PoisonError::into_inner).len();
        let longest = self.longest_silence().as_secs_f64();
        format!(
            "{failed} of {calls} calls to {what} failed; the longest time without an answer was {longest:.1} s"
        )
    }

    /// An error if one failed.
    pub fn insist(&self) -> anyhow::Result<()> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(failures.is_empty(), "calls failed: {failures:#?}");
        ensure!(self.calls.load(Ordering::Relaxed) > 0, "nothing was called");
        Ok(())
    }

    /// When the first failed.
    pub fn first_failure(&self) -> Option<Timestamp> {
        self.first_failure.get().copied()
    }

    /// How long at most no call succeeded.
    pub fn longest_silence(&self) -> Duration {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner).longest
    }
}

/// Calls of a web server in a network namespace, each by a connection of its own, at the addresses in turn.
#[derive(Debug)]
pub struct WebProbe {
    pub tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WebProbe {
    pub fn start(namespace: PathBuf, addresses: Vec<SocketAddr>) -> Self {
        let (tally, stop) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
        let (counts, ends) = (Arc::clone(&tally), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let started = Instant::now();
            // A namespace is the thread's.
            let entered = File::open(&namespace).map_err(anyhow::Error::from);
            let entered = entered.and_then(|file| Ok(setns(file, CloneFlags::CLONE_NEWNET)?));
            if let Err(error) = entered {
                return counts.take(started, Err(format!("cannot enter the lab's network: {error:#}")));
            }
            // Every node has to know of the service first.
            let known = |address: &&SocketAddr| call(**address).is_ok();
            while !addresses.iter().all(|address| known(&address)) && started.elapsed() < WARM_UP {
                std::thread::sleep(Duration::from_millis(100));
            }
            for address in addresses.iter().cycle() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let result = call(*address).map_err(|error| format!("{address}: {error:#}"));
                counts.take(started, result);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { tally, stop, thread: Some(thread) }
    }
}

impl Drop for WebProbe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn call(address: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, CALL_LIMIT).context("connect")?;
    stream.set_read_timeout(Some(CALL_LIMIT))?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").context("ask")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("hear")?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "it answered {answer:?}");
    Ok(())
}

/// Calls of the API through its endpoint, ten times a second, each by a connection of its own; ends when dropped.
pub struct ApiProbe {
    pub tally: Arc<Tally>,
    task: tokio::task::JoinHandle<()>,
}

/// What is asked for in turns: what the API server knows by itself, and what it has to read in etcd.
const QUESTIONS: [&str; 2] = ["/version", "/api/v1/namespaces/default"];

impl ApiProbe {
    pub fn start(config: kube::Config) -> Self {
        let tally = Arc::new(Tally::default());
        let counts = Arc::clone(&tally);
        let task = tokio::spawn(async move {
            let started = Instant::now();
            let mut ticks = tokio::time::interval(Duration::from_millis(100));
            for question in QUESTIONS.iter().cycle() {
                ticks.tick().await;
                let (config, counts) = (config.clone(), Arc::clone(&counts));
                // One that hangs does not keep the next from being made.
                tokio::spawn(async move { counts.take(started, ask(config, question).await) });
            }
        });
        Self { tally, task }
    }
}

/// One question; which failed, when and how, if it did.
async fn ask(mut config: kube::Config, question: &str) -> Result<(), String> {
    // kube would ask again after 429, 503 and 504, and only the last answer would count.
    config.default_retry = false;
    let (begun, at) = (Instant::now(), Timestamp::now());
    let call = async {
        let request = http::Request::get(question).body(Vec::new()).context("make the request")?;
        kube::Client::try_from(config)?.request_text(request).await.map_err(anyhow::Error::from)
    };
    let why = match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "no answer".to_owned(),
    };
    Err(format!("GET {question}, begun {at}, after {:.1} s: {why}", begun.elapsed().as_secs_f64()))
}

impl Drop for ApiProbe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The workload and the API, called while something happens.
pub struct Probes {
    api: ApiProbe,
    web: WebProbe,
}

impl Probes {
    /// The workload is called at every node's own address, but for those of nodes that go away with all they have.
    pub async fn start(infrastructure: &Infrastructure, lab: &Lab, dark: &[&str]) -> anyhow::Result<Self> {
        let hosts = lab.definition()?.hosts;
        let lit = hosts.iter().filter(|host| !dark.contains(&host.name.as_str()));
        let lit = lit.map(|host| SocketAddr::new(host.address.into(), NODE_PORT)).collect();
        Ok(Self {
            api: ApiProbe::start(infrastructure.kube_config().await?),
            web: WebProbe::start(lab.network_namespace().await?, lit),
        })
    }

    /// The end: not one call failed, and there were some.
    pub async fn insist(self, lab: &Lab) -> anyhow::Result<()> {
        let Self { api, web } = self;
        eprintln!("{}", web.tally.summary("the workload"));
        eprintln!("{}", api.tally.summary("the API"));
        web.tally.insist()?;
        if let Some(at) = api.tally.first_failure() {
            tell_around(lab, at).await?;
        }
        api.tally.insist()
    }
}

/// Says what those who lead to API servers, and those who stop them, did around a moment.
async fn tell_around(lab: &Lab, at: Timestamp) -> anyhow::Result<()> {
    let (since, until) = (at.as_second() - 15, at.as_second() + 5);
    let look = format!(
        "journalctl --quiet --no-hostname -o short-precise --since @{since} --until @{until} \
         -u haproxy -u keepalived -u node-agent | cut -c1-240"
    );
    for host in CONTROL_PLANES {
        eprintln!("{host} around {at}:\n{}", lab.ssh(&host.parse()?).arg(&look).run().await?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted_server::{Answer, ScriptedServer};

    /// Those that kube would ask again for, too.
    #[tokio::test]
    async fn every_failed_answer_of_the_api_counts() {
        for status in ["429 Too Many Requests", "500 Internal Server Error", "503 Service Unavailable"] {
            let answers = vec![Answer::new(status, "not now"), Answer::new("200 OK", "{}")];
            let server = ScriptedServer::start(answers).await.unwrap();
            let config = kube::Config::new(server.url().parse().unwrap());
            let why = ask(config.clone(), QUESTIONS[1]).await.unwrap_err();
            assert!(
                why.contains("GET /api/v1/namespaces/default, begun ") && why.contains(&status[..3]),
                "{why}"
            );
            assert_eq!(server.asked().len(), 1);
            assert_eq!(ask(config, QUESTIONS[0]).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn the_api_is_asked_for_itself_and_for_what_etcd_has() {
        let server = ScriptedServer::start_with(|asked| match asked.path.as_str() {
            "/version" => Answer::new("200 OK", "{}"),
            _ => Answer::new("504 Gateway Timeout", "not now"),
        });
        let server = server.await.unwrap();
        let probe = ApiProbe::start(kube::Config::new(server.url().parse().unwrap()));
        tokio::time::timeout(CALL_LIMIT, async {
            while server.asked().len() < 4 || probe.tally.first_failure().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
        let asked: Vec<String> = server.asked().into_iter().map(|asked| asked.path).collect();
        assert_eq!(asked[..4], [QUESTIONS[0], QUESTIONS[1], QUESTIONS[0], QUESTIONS[1]]);
        let why = format!("{:#}", probe.tally.insist().unwrap_err());
        assert!(why.contains(QUESTIONS[1]) && !why.contains(QUESTIONS[0]), "{why}");
    }
}
