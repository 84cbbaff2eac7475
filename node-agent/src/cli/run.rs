//! `node-agent run`: the service.

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    config::{self, Settings},
    endpoint,
    engine::{Engine, JOURNAL, Wiring},
    host::Host,
    journal::Journal,
    node::OwnNode,
    notify,
    observe::BootId,
    socket,
    status::Shared,
    watch_files::watch_files,
};

pub(super) async fn run(root: PathBuf) -> anyhow::Result<()> {
    log_as_a_service();
    // Fails only if there is one already, and then it is this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let host = Host::this_machine(root);
    let directory = host.path(config::DIRECTORY);
    let settings = Settings::read(&directory)?;
    let journal = Journal::take(&host.path(JOURNAL))?;
    let boot = BootId::of(&host)?;
    let kubeconfig = host.path(&settings.config.kubeconfig);
    let node = Arc::new(OwnNode::new(super::node_name(&settings)?, kubeconfig.clone()));
    let shared = Arc::new(Shared::default());
    let (files, changes) = watch::channel(());
    let (stop, stopped) = watch::channel(false);
    let metrics_address = settings.config.metrics_address;
    let endpoint_address = settings.config.endpoint_address;
    let watched = [kubeconfig.parent().map(PathBuf::from), Some(directory.clone())];
    let engine = Engine::new(Wiring {
        directory: directory.clone(),
        settings,
        host: host.clone(),
        node: Arc::clone(&node),
        journal,
        shared: Arc::clone(&shared),
        files: changes.clone(),
        stop: stopped,
    });

    let mut watched: Vec<PathBuf> = watched.into_iter().flatten().collect();
    watched.push(directory.join("configuration.d"));
    watch_files(watched, files);
    tokio::spawn(async move { node.follow(changes).await });
    tokio::spawn(notify::feed_watchdog());
    if let Some(address) = endpoint_address {
        tokio::spawn(endpoint::serve(address, shared.presence.subscribe()));
    }
    tokio::spawn(end_with_signals(stop));
    let listener = socket::listen(&host.path(socket::PATH)).context("cannot open the local socket")?;
    tokio::spawn(socket::serve(listener, Arc::clone(&shared)));
    if let Some(address) = metrics_address {
        tokio::spawn(socket::serve_metrics(address, shared));
    }
    engine.run(&boot).await;
    notify::stopping();
    // A retry of the agent must not find the socket of this one.
    crate::files::remove(&host.path(socket::PATH))?;
    Ok(())
}

async fn end_with_signals(stop: watch::Sender<bool>) {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping after the step under way");
    stop.send_replace(true);
}

fn filter() -> EnvFilter {
    // What the client library says of broken connections, the agent says once and in its own words.
    EnvFilter::try_from_env("NODE_AGENT_LOG").unwrap_or_else(|_| EnvFilter::new("info,kube_client=off"))
}

/// To journald with fields where systemd runs us, else to stderr.
fn log_as_a_service() {
    let journald = std::env::var_os("JOURNAL_STREAM").and_then(|_| tracing_journald::layer().ok());
    match journald {
        Some(layer) => tracing_subscriber::registry().with(filter()).with(layer).init(),
        None => tracing_subscriber::fmt().with_env_filter(filter()).with_writer(std::io::stderr).init(),
    }
}

/// For commands of people: only what is wrong.
pub(super) fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("NODE_AGENT_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
