//! `infrop kubeconfig`: the administrator's way into the cluster.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use secrecy::ExposeSecret;

use super::{DONE, Shared, infrastructure::DocumentArguments};
use crate::apply::{self, Cluster};

const HELP: &str = "\
It is the cluster's administrator: keep it as you would keep a root password.

Example:
  (umask 077; infrop kubeconfig -f infrastructure.yaml > kubeconfig)
  kubectl --kubeconfig kubeconfig get nodes";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct KubeconfigArguments {
    #[command(flatten)]
    document: DocumentArguments,
}

pub(super) async fn run(arguments: KubeconfigArguments, shared: &Shared) -> anyhow::Result<u8> {
    let KubeconfigArguments { document } = arguments;
    let context = document.look(shared).await?;
    let (snapshot, access) = apply::observe(&context, 32).await?;
    match (snapshot.cluster, access) {
        (_, Some(access)) => {
            std::io::stdout().write_all(access.kubeconfig.expose_secret().as_bytes())?;
            Ok(DONE)
        }
        (Cluster::Silent(why), _) => bail!("the cluster does not answer: {why}"),
        _ => bail!("there is no cluster yet: make it with `infrop apply`"),
    }
}
