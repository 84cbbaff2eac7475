//! `infrop destroy`: gives everything back.

use anyhow::bail;
use clap::Args;

use super::{DONE, Shared, infrastructure::DocumentArguments};

const HELP: &str = "\
All computes of the infrastructure are given back, and the cluster on them is lost. Without --yes it only says what would \
go.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct DestroyArguments {
    #[command(flatten)]
    document: DocumentArguments,

    /// Really do it.
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(arguments: DestroyArguments, shared: &Shared) -> anyhow::Result<u8> {
    let DestroyArguments { document, yes } = arguments;
    let context = document.context(shared).await?;
    let mut pools = Vec::new();
    for provider in context.providers.values() {
        pools.extend(provider.observe().await?);
    }
    let names: Vec<String> =
        pools.iter().flat_map(|pool| &pool.computes).map(|compute| compute.name.to_string()).collect();
    if !yes && !names.is_empty() {
        bail!("this would give back {} and everything on them: repeat it with --yes", names.join(", "));
    }
    for pool in &pools {
        let provider = context.provider(&pool.provider)?;
        for compute in &pool.computes {
            let what = format!("remove {}", compute.name);
            shared.steps.step(what, provider.delete(compute)).await?;
        }
    }
    for provider in context.providers.values() {
        provider.release().await?;
    }
    println!("{} hosts were given back.", names.len());
    Ok(DONE)
}
