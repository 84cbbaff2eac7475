//! `infrop bundle`: build, list, verify, path.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use common::KubernetesVersion;
use images::kubernetes::{self, Bundle, Request, Servers, Wish};
use serde::Serialize;

use super::{
    Shared,
    output::{Output, print_json, table},
};

const BUILD_HELP: &str = "\
The programs come from, in this order: the directory of --from; the official release, where its servers can be \
reached; the public Go modules, built by this machine's Go through its module proxy (some 15 minutes on 2 cores).
Versions 1.36.4 and 1.37.1 are pinned checksum by checksum; another one is asked for by number.

Example: infrop bundle build 1.37.1 && ls $(infrop bundle path 1.37.1)";

#[derive(Debug, Subcommand)]
pub(super) enum BundleCommand {
    /// Build the bundle of a version and print where it is; at once if it is there.
    #[command(after_help = BUILD_HELP)]
    Build(BuildArguments),
    /// List the bundles that are there.
    List {
        /// The form of the answer.
        #[arg(short, long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Compare every file with the bundle's checksums; name the first that differs.
    Verify {
        /// The Kubernetes version, for example 1.37.1.
        version: KubernetesVersion,
    },
    /// Print where the bundle of a version is.
    Path {
        /// The Kubernetes version, for example 1.37.1.
        version: KubernetesVersion,
    },
}

#[derive(Debug, Args)]
pub(super) struct BuildArguments {
    /// The Kubernetes version, for example 1.37.1.
    version: KubernetesVersion,
    /// A directory that has all programs (kubeadm, kubelet, etcd, containerd, ...).
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Another containerd than the one that goes with the Kubernetes version.
    #[arg(long, value_name = "VERSION")]
    containerd: Option<semver::Version>,
    /// Build it also if it is there.
    #[arg(long)]
    force: bool,
    /// Where Kubernetes' releases are downloaded from, if not from the official server: a mirror with its paths.
    #[arg(long, value_name = "URL")]
    kubernetes_url: Option<String>,
    /// Where the releases of etcd, CoreDNS and containerd are downloaded from: a mirror with GitHub's paths.
    #[arg(long, value_name = "URL")]
    github_url: Option<String>,
}

pub(super) async fn run(command: BundleCommand, shared: &Shared) -> anyhow::Result<()> {
    match command {
        BundleCommand::Build(arguments) => build(arguments, shared).await?,
        BundleCommand::List { output } => list(output, shared)?,
        BundleCommand::Verify { version } => {
            let bundle = Bundle::find(&shared.cache, &version)?;
            bundle.verify()?;
            println!("{}: all {} files are as built", bundle.path().display(), bundle.manifest().files.len());
        }
        BundleCommand::Path { version } => {
            println!("{}", Bundle::find(&shared.cache, &version)?.path().display());
        }
    }
    Ok(())
}

async fn build(arguments: BuildArguments, shared: &Shared) -> anyhow::Result<()> {
    let BuildArguments { version, from, containerd, force, kubernetes_url, github_url } = arguments;
    let official = Servers::default();
    let servers = Servers {
        kubernetes: kubernetes_url.unwrap_or(official.kubernetes),
        github: github_url.unwrap_or(official.github),
    };
    let containerd = containerd.map(|version| version.to_string());
    let request = Request { version, containerd, wish: Wish { directory: from, servers }, anew: force };
    let bundle = kubernetes::build(&shared.cache, &request, &shared.steps).await?;
    println!("{}", bundle.path().display());
    Ok(())
}

/// A bundle as `list` shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    kubernetes: String,
    containerd: String,
    etcd: String,
    coredns: String,
    source: String,
    built: String,
    size_bytes: u64,
    path: PathBuf,
}

fn list(output: Output, shared: &Shared) -> anyhow::Result<()> {
    let rows = Bundle::list(&shared.cache)?.into_iter().map(|bundle| {
        let manifest = bundle.manifest();
        let version = |name: &str| manifest.components.get(name).cloned().unwrap_or_default();
        Row {
            kubernetes: manifest.kubernetes.to_string(),
            containerd: version("containerd"),
            etcd: version("etcd"),
            coredns: version("coredns"),
            source: manifest.source.clone(),
            built: manifest.built.to_string(),
            size_bytes: manifest.files.values().map(|file| file.size).sum(),
            path: bundle.path().to_owned(),
        }
    });
    match output {
        Output::Json => print_json(&rows.collect::<Vec<_>>()),
        Output::Text => {
            let header = ["KUBERNETES", "CONTAINERD", "ETCD", "COREDNS", "SOURCE", "MIB", "PATH"];
            let rows = rows.map(|row| {
                let size = (row.size_bytes >> 20).to_string();
                let path = row.path.display().to_string();
                [row.kubernetes, row.containerd, row.etcd, row.coredns, row.source, size, path]
            });
            println!("{}", table(header, rows));
            Ok(())
        }
    }
}
