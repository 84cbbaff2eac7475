//! What stands between an agent and its API server: connections that can break, or hang.

use std::net::SocketAddr;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// Connections to a server. They end when this is dropped.
pub(crate) struct Relay {
    server: SocketAddr,
    port: u16,
    hang: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
    /// Hold connections that hang.
    hung: Vec<JoinHandle<()>>,
}

impl Relay {
    pub(crate) async fn start(server: SocketAddr) -> anyhow::Result<Self> {
        let mut relay =
            Self { server, port: 0, hang: watch::Sender::new(false), task: None, hung: Vec::new() };
        relay.heal().await?;
        Ok(relay)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on connections are accepted and passed on. Those that hang go on hanging.
    pub(crate) async fn heal(&mut self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await?;
        self.port = listener.local_addr()?.port();
        self.hang = watch::Sender::new(false);
        self.task = Some(tokio::spawn(accept(listener, self.server, self.hang.subscribe())));
        Ok(())
    }

    /// Breaks every connection, as a router does that goes away and says so.
    pub(crate) fn cut(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    /// Every connection stays open and says nothing more; new ones are refused.
    pub(crate) fn hang(&mut self) {
        self.hang.send_replace(true);
        self.hung.extend(self.task.take());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
        self.hung.iter().for_each(JoinHandle::abort);
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, mut hang: watch::Receiver<bool>) {
    // Dropped with the task, and each connection with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((near, _)) = listener.accept() => {
                connections.spawn(pass(near, server, hang.clone()));
            }
            _ = hang.changed() => break,
        }
    }
    drop(listener);
    std::future::pending::<()>().await;
}

async fn pass(mut near: TcpStream, server: SocketAddr, mut hang: watch::Receiver<bool>) {
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    let must_hang = tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => false,
        hangs = hang.wait_for(|hang| *hang) => hangs.is_ok(),
    };
    if must_hang {
        std::future::pending::<()>().await;
    }
}
