//! `node-agent retry`: a person says that the plan may be tried again.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use hyper::Method;

use crate::{host::Host, socket};

pub(super) async fn run(root: PathBuf) -> anyhow::Result<()> {
    let path = Host::this_machine(root).path(socket::PATH);
    let (code, text) = socket::ask(&path, Method::POST, "/retry")
        .await
        .with_context(|| format!("cannot reach the service on {}: does it run?", path.display()))?;
    ensure!(code.is_success(), "the service answers {code}: {text}");
    println!("a plan that waits or is quarantined is tried again; node-agent status shows how it goes");
    Ok(())
}
