//! A web server on loopback that answers by script and keeps what it was asked.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// PATCH and the like.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Code and words: `200 OK`.
    pub status: &'static str,
    /// More headers, each with a line end.
    pub headers: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// An answer without special headers.
    pub fn new(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, headers: String::new(), body: body.into() }
    }
}

/// What is answered to a request.
type Reply = Box<dyn FnMut(&Asked) -> Answer + Send>;

struct Script {
    reply: Reply,
    asked: Vec<Asked>,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").field("asked", &self.asked).finish_non_exhaustive()
    }
}

/// These answers in their order; the last one again and again.
fn in_order(mut answers: Vec<Answer>) -> Reply {
    Box::new(move |_| {
        let answer = if answers.len() > 1 { Some(answers.remove(0)) } else { answers.first().cloned() };
        answer.unwrap_or_else(|| Answer::new("500 Internal Server Error", "the script has no answer"))
    })
}

/// A server that ends when this is dropped.
#[derive(Debug)]
pub struct ScriptedServer {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    task: JoinHandle<()>,
}

impl ScriptedServer {
    /// Gives these answers in their order; the last one again and again.
    pub async fn start(answers: Vec<Answer>) -> anyhow::Result<Self> {
        Self::start_with(in_order(answers)).await
    }

    /// Gives the answers that `reply` makes of requests.
    pub async fn start_with(reply: impl FnMut(&Asked) -> Answer + Send + 'static) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let script = Arc::new(Mutex::new(Script { reply: Box::new(reply), asked: Vec::new() }));
        let shared = Arc::clone(&script);
        let task = tokio::spawn(async move {
            let mut conversations = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                // A client that goes away is no trouble of ours.
                conversations.spawn(async move { drop(converse(stream, &shared).await) });
            }
        });
        Ok(Self { address, script, task })
    }

    /// Its address, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).asked.clone()
    }

    /// From now on it gives these answers.
    pub fn set_answers(&self, answers: Vec<Answer>) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).reply = in_order(answers);
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn converse(stream: TcpStream, script: &Mutex<Script>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let body = String::from_utf8_lossy(&body).into_owned();
    let asked = Asked { method, path, headers, body };
    let Answer { status, headers, body } = {
        let mut script = script.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = (script.reply)(&asked);
        script.asked.push(asked);
        answer
    };
    let length = body.len();
    let text =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}");
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}
