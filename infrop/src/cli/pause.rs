//! `infrop pause` and `infrop resume`.

use clap::Args;
use common::{annotations, metadata::NodeName};

use super::{
    DONE, Shared,
    infrastructure::DocumentArguments,
    node::{answering, refuse_unknown},
    output::say,
};
use crate::{
    apply::{self, Cluster},
    cluster::{self, NodeView},
};

const PAUSE_HELP: &str = "\
A paused node is left alone: node-agent changes nothing on it, and infrop neither changes nor removes it. What is under \
way is brought to the end of its step. The reason stands on the Node, and `infrop status` shows it.

Example:
  infrop pause -f infrastructure.yaml --node worker-2 --reason 'disk is being changed, ask anna'
  infrop resume -f infrastructure.yaml --node worker-2";

const RESUME_HELP: &str = "\
Without --node all nodes go on, also those that were paused one by one.

Example: infrop resume -f infrastructure.yaml --node worker-2";

#[derive(Debug, Args)]
#[command(after_help = PAUSE_HELP)]
pub(super) struct PauseArguments {
    #[command(flatten)]
    document: DocumentArguments,

    /// Only this node.
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,

    /// Why, for whoever finds it.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
}

#[derive(Debug, Args)]
#[command(after_help = RESUME_HELP)]
pub(super) struct ResumeArguments {
    #[command(flatten)]
    document: DocumentArguments,

    /// Only this node.
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,
}

/// A text that says something.
fn reason(text: &str) -> Result<String, String> {
    let text = annotations::shorten(text.trim());
    if text.is_empty() { Err("a reason says who paused it and why".to_owned()) } else { Ok(text) }
}

pub(super) async fn pause(arguments: PauseArguments, shared: &Shared) -> anyhow::Result<u8> {
    let PauseArguments { document, node, reason } = arguments;
    change(&document, node.as_ref(), Some(&reason), shared).await
}

pub(super) async fn resume(arguments: ResumeArguments, shared: &Shared) -> anyhow::Result<u8> {
    let ResumeArguments { document, node } = arguments;
    change(&document, node.as_ref(), None, shared).await
}

async fn change(
    document: &DocumentArguments,
    only: Option<&NodeName>,
    reason: Option<&str>,
    shared: &Shared,
) -> anyhow::Result<u8> {
    let context = document.look(shared).await?;
    let (snapshot, access) = apply::observe(&context, 32).await?;
    let client = &answering(&snapshot.cluster, access.as_ref())?.client;
    let Cluster::There(view) = &snapshot.cluster else { return Ok(DONE) };
    if let Some(name) = only.filter(|name| !view.nodes.contains_key(*name)) {
        return Ok(refuse_unknown(name, view.nodes.keys()));
    }
    for node in view.nodes.values().filter(|node| only.is_none_or(|only| *only == node.name)) {
        if !is_so(node, reason) {
            cluster::annotate(client, &node.name, annotations::PAUSED, reason).await?;
        }
        match reason {
            Some(reason) => say(format_args!("{} is paused: {reason}", node.name))?,
            None => say(format_args!("{} is not paused.", node.name))?,
        }
    }
    Ok(DONE)
}

fn is_so(node: &NodeView, reason: Option<&str>) -> bool {
    node.annotations.get(annotations::PAUSED).map(String::as_str) == reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_says_something() {
        assert!(reason(" \t").is_err());
        assert_eq!(reason(" a\nb ").unwrap(), "a b");
    }
}
