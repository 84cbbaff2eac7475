//! The Debian package of node-agent, as it was just built.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio::sync::OnceCell;

use crate::node_agent_path;

/// The version that packages of tests have unless they ask for another.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The package with the agent under test; made once per process.
pub async fn package() -> anyhow::Result<&'static Path> {
    static PACKAGE: OnceCell<PathBuf> = OnceCell::const_new();
    Ok(PACKAGE.get_or_try_init(|| package_of(VERSION)).await?)
}

/// The same program in a package that says another version, to upgrade to.
pub async fn package_of(version: &str) -> anyhow::Result<PathBuf> {
    let program = node_agent_path()?;
    // Beside the program, so that a clean build starts without it. Test processes that make it at the same time
    // replace each other's by the same.
    let directory = program.parent().context("node-agent is nowhere")?.join("debian");
    Ok(images::agent::package(program, version, &directory).await?)
}
