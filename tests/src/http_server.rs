//! A web server on loopback that hands out files of a directory, as a release page or a proxy would.

use std::{
    net::SocketAddr,
    path::{Component, Path, PathBuf},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A server that ends when this is dropped.
#[derive(Debug)]
pub struct FileServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl FileServer {
    /// Serves the files below `directory`; anything else is not found.
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let directory = directory.to_owned();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let directory = directory.clone();
                tokio::spawn(async move {
                    // A client that goes away is no trouble of ours.
                    let _ = answer(stream, &directory).await;
                });
            }
        });
        Ok(Self { address, task })
    }

    /// Its address, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(stream: TcpStream, directory: &Path) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let mut header = String::new();
    while stream.read_line(&mut header).await? > 2 {
        header.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let file = match find(directory, path) {
        Some(path) => tokio::fs::File::open(path).await.ok(),
        None => None,
    };
    if let Some(mut file) = file {
        let length = file.metadata().await?.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        tokio::io::copy(&mut file, &mut stream).await?;
    } else {
        let head = "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\nConnection: close\r\n\r\nnot found";
        stream.write_all(head.as_bytes()).await?;
    }
    stream.shutdown().await
}

fn find(directory: &Path, path: &str) -> Option<PathBuf> {
    let relative = Path::new(path.trim_start_matches('/'));
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    let file = directory.join(relative);
    (plain && file.is_file()).then_some(file)
}
