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
use jiff::Timestamp;
use nix::sched::{CloneFlags, setns};

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

impl ApiProbe {
    pub fn start(config: kube::Config) -> Self {
        let tally = Arc::new(Tally::default());
        let counts = Arc::clone(&tally);
        let task = tokio::spawn(async move {
            let started = Instant::now();
            let mut ticks = tokio::time::interval(Duration::from_millis(100));
            loop {
                ticks.tick().await;
                let (config, counts) = (config.clone(), Arc::clone(&counts));
                // One that hangs does not keep the next from being made.
                tokio::spawn(async move {
                    let (begun, at) = (Instant::now(), Timestamp::now());
                    let call = async { kube::Client::try_from(config)?.apiserver_version().await };
                    let call = tokio::time::timeout(CALL_LIMIT, call).await;
                    let result = match call {
                        Ok(Ok(_)) => Ok(()),
                        Ok(Err(error)) => Err(format!("{:#}", anyhow::Error::from(error))),
                        Err(_) => Err("no answer".to_owned()),
                    };
                    let after = begun.elapsed().as_secs_f64();
                    counts.take(
                        started,
                        result.map_err(|why| format!("begun {at}, after {after:.1} s: {why}")),
                    );
                });
            }
        });
        Self { tally, task }
    }
}

impl Drop for ApiProbe {
    fn drop(&mut self) {
        self.task.abort();
    }
}
