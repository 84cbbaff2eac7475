//! What all commands about a document share: reading it, and finding what it needs on this computer.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use clap::Args;
use common::KubernetesVersion;
use images::{
    kubernetes::{self, Bundle, Request, Wish},
    node, site,
};
use program::Program;
use semver::Version;

use super::{DEFAULT_LABS, Shared};
use crate::{
    apply::Context,
    bootstrap::{agent::AgentPackage, endpoint::Carried, ssh::Connections},
    desired::{self, Infrastructure, Provider as Wanted, SecretReference, Ssh},
    provider::{
        Provider,
        lab::{self, Store},
        lab_computes::{LabComputes, Means},
        static_computes::{Reach, StaticComputes, write_key},
    },
    secrets,
};

/// The name of node-agent's program.
const AGENT: &str = "node-agent";

/// The version of infrop, and of the node-agent that goes with it.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A release build of node-agent from nothing, on a slow computer.
const BUILD_LIMIT: std::time::Duration = std::time::Duration::from_mins(30);

/// The document, and what goes with it.
#[derive(Debug, Args)]
pub(super) struct DocumentArguments {
    /// The infrastructure document.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,

    /// node-agent's program or Debian package [default: the program beside infrop].
    #[arg(long, env = "INFROP_AGENT", value_name = "FILE")]
    agent: Option<PathBuf>,

    /// Trust hosts that nobody knows yet, and take their keys down in the file `ssh.knownHosts` names.
    #[arg(long)]
    record_host_keys: bool,

    /// Where labs are kept.
    #[arg(long, env = "INFROP_LAB_DIR", value_name = "DIR", default_value = DEFAULT_LABS)]
    lab_dir: PathBuf,
}

impl DocumentArguments {
    /// As they stand on a command line, for commands that people may want next.
    pub(super) fn words(&self) -> String {
        let mut words = format!("-f {}", quoted(&self.file));
        if self.lab_dir != Path::new(DEFAULT_LABS) {
            words += &format!(" --lab-dir {}", quoted(&self.lab_dir));
        }
        words
    }

    /// Everything a run works with; what has to be built first is built. A document that is wrong is the error
    /// [`desired::Problems`].
    pub(super) async fn context(&self, shared: &Shared) -> anyhow::Result<Context> {
        self.context_of(desired::read(&self.file)?, shared).await
    }

    /// The same with another Kubernetes version, on the way to the document's.
    pub(super) async fn context_at(
        &self,
        version: KubernetesVersion,
        shared: &Shared,
    ) -> anyhow::Result<Context> {
        let mut infrastructure = desired::read(&self.file)?;
        infrastructure.software.kubernetes = version;
        self.context_of(infrastructure, shared).await
    }

    async fn context_of(&self, infrastructure: Infrastructure, shared: &Shared) -> anyhow::Result<Context> {
        let connections = Arc::new(Connections::new()?);
        let mut providers: BTreeMap<_, Box<dyn Provider>> = BTreeMap::new();
        for (name, wanted) in &infrastructure.providers {
            let provider: Box<dyn Provider> = match wanted {
                Wanted::Lab(wanted) => {
                    let owner = infrastructure.metadata.name.clone();
                    let (means, bundle) = self.lab_means(&infrastructure, shared).await?;
                    let endpoint = infrastructure.cluster.endpoint.as_ref();
                    let site = match endpoint.and_then(Carried::of) {
                        Some(_) => Some(site::ensure(&shared.cache, &shared.steps).await?),
                        None => None,
                    };
                    Box::new(LabComputes::new(name.clone(), owner, wanted, means, bundle, site)?)
                }
                Wanted::Static(wanted) => {
                    let owner = infrastructure.metadata.name.clone();
                    let reach = self.reach(&infrastructure.ssh).await?;
                    let (connections, software) = (Arc::clone(&connections), &infrastructure.software);
                    let computes =
                        StaticComputes::new(name.clone(), owner, wanted, reach, connections, software);
                    Box::new(computes.await?)
                }
            };
            providers.insert(name.clone(), provider);
        }
        let package = self.agent_package(shared).await?;
        let directory = self.file.parent().unwrap_or(Path::new(""));
        Context::new(infrastructure, directory, providers, connections, package)
    }

    /// How static hosts are reached.
    async fn reach(&self, ssh: &Ssh) -> anyhow::Result<Reach> {
        let beside = |file: &Path| self.file.parent().unwrap_or(Path::new("")).join(file);
        let directory = tempfile::Builder::new().prefix("infrop-").tempdir()?;
        let key = match &ssh.private_key {
            None => None,
            // ssh reads it by itself, also if it is in hardware or has a passphrase that an agent knows.
            Some(SecretReference::File(file)) => Some(beside(file)),
            Some(reference) => Some(write_key(directory.path(), &secrets::read(reference).await?)?),
        };
        let known_hosts = ssh.known_hosts.as_deref().map(beside);
        Ok(Reach { ssh: ssh.clone(), key, known_hosts, record: self.record_host_keys, directory })
    }

    async fn lab_means(
        &self,
        infrastructure: &Infrastructure,
        shared: &Shared,
    ) -> anyhow::Result<(Means, Bundle)> {
        // Said before minutes of building.
        if let Some(obstacle) = lab::obstacle() {
            bail!(obstacle);
        }
        let root = node::ensure(&shared.cache, &shared.steps).await?;
        let version = infrastructure.software.kubernetes.clone();
        let request = Request { version, containerd: None, wish: Wish::default(), anew: false };
        let bundle = kubernetes::build(&shared.cache, &request, &shared.steps).await?;
        lab::ensure_tools(&shared.steps).await?;
        let infrop = env::current_exe().context("cannot tell where this program is")?;
        let means = Means { store: Store::new(&self.lab_dir), root, infrop, steps: shared.steps.clone() };
        Ok((means, bundle))
    }

    /// node-agent's package: given, or made of a program.
    async fn agent_package(&self, shared: &Shared) -> anyhow::Result<AgentPackage> {
        let file = match &self.agent {
            Some(file) => file.clone(),
            None => program_beside_infrop(shared).await?,
        };
        let (package, version) = if file.extension().is_some_and(|extension| extension == "deb") {
            let version = version_of(&file).await;
            (file, version)
        } else {
            let hash =
                images::sha256_file(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let name = format!("{VERSION}-{}", hash.get(..16).unwrap_or(&hash));
            let make = |staging: PathBuf| async move {
                images::agent::package(&file, VERSION, &staging).await.map(|_| ())
            };
            let directory = shared.cache.produce("agent", &name, false, &shared.steps, make).await?;
            let mut files = std::fs::read_dir(&directory)?;
            let file = files.next().context("the cached package of node-agent is not there")??.path();
            (file, Version::parse(VERSION).ok())
        };
        AgentPackage::read(&package, version).map_err(|(path, error)| {
            anyhow::Error::from(error).context(format!("cannot read {}", path.display()))
        })
    }
}

/// The version of a Debian package; none if it is not one that can be compared, or dpkg-deb is not there to ask: a
/// computer without it can still deliver the package.
async fn version_of(package: &Path) -> Option<Version> {
    match Program::new("dpkg-deb").arg("--field").arg(package).arg("Version").run().await {
        Ok(text) => Version::parse(text.trim()).ok(),
        Err(error) => {
            tracing::warn!("hosts with a newer node-agent cannot be told: {error:#}");
            None
        }
    }
}

/// A path as a shell reads it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// The program that was built or installed with this infrop. Under `cargo run` it is built if need be: cargo only
/// builds what it was asked for.
async fn program_beside_infrop(shared: &Shared) -> anyhow::Result<PathBuf> {
    let infrop = env::current_exe().context("cannot tell where this program is")?;
    let program = infrop.with_file_name(AGENT);
    if let (Some(cargo), Some(manifest)) = (env::var_os("CARGO"), env::var_os("CARGO_MANIFEST_DIR")) {
        let directory = infrop.parent().and_then(Path::file_name).unwrap_or_default();
        let mut build =
            Program::new(cargo).args(["build", "--quiet", "--package", AGENT]).directory(manifest);
        if directory == "release" {
            build = build.arg("--release");
        }
        let target = infrop.parent().and_then(Path::parent).context("infrop is nowhere")?;
        let build = build.arg("--target-dir").arg(target).timeout(BUILD_LIMIT);
        shared.steps.step("build node-agent", build.run()).await?;
    }
    if program.is_file() {
        return Ok(program);
    }
    bail!("there is no {AGENT} beside {}: name its program or package with --agent", infrop.display())
}
