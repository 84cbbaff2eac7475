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

/// A program says its version at once.
const ASK_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// The document, and what goes with it.
#[derive(Debug, Args)]
pub(super) struct DocumentArguments {
    /// The infrastructure document.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,

    /// node-agent's program or Debian package, of infrop's version [default: the program beside infrop].
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
        let is_package = file.extension().is_some_and(|extension| extension == "deb");
        let version = if is_package { version_of(&file).await } else { version_said_by(&file).await };
        match judge(version.as_ref(), &Version::parse(VERSION)?) {
            Ok(None) => {}
            Ok(Some(doubt)) => tracing::warn!("{}: {doubt}", file.display()),
            Err(why) => bail!("{} cannot be used: {why}", file.display()),
        }
        let package = if is_package {
            file
        } else {
            let hash =
                images::sha256_file(&file).with_context(|| format!("cannot read {}", file.display()))?;
            // Hosts and later runs know it by what it calls itself.
            let version = version.as_ref().map_or_else(|| VERSION.to_owned(), ToString::to_string);
            let name = format!("{version}-{}", hash.get(..16).unwrap_or(&hash));
            let make = |staging: PathBuf| async move {
                images::agent::package(&file, &version, &staging).await.map(|_| ())
            };
            let directory = shared.cache.produce("agent", &name, false, &shared.steps, make).await?;
            let mut files = std::fs::read_dir(&directory)?;
            files.next().context("the cached package of node-agent is not there")??.path()
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
        // Debian writes a pre-release in its own way.
        Ok(text) => Version::parse(&text.trim().replacen('~', "-", 1)).ok(),
        Err(error) => {
            tracing::warn!("hosts with a newer node-agent cannot be told: {error:#}");
            None
        }
    }
}

/// What a program of node-agent says of its version; none if it does not run here: it may be for other computers.
async fn version_said_by(program: &Path) -> Option<Version> {
    let program = std::path::absolute(program).ok()?;
    let said = Program::new(program).arg("--version").timeout(ASK_LIMIT).run().await;
    let said = said.inspect_err(|error| tracing::debug!("the version cannot be asked: {error:#}")).ok()?;
    Version::parse(said.trim().strip_prefix(AGENT)?.trim()).ok()
}

/// Whether a node-agent goes with this infrop: what is in doubt if it may not, an error if it does not. What they tell
/// each other through files and annotations may change with a minor version.
fn judge(agent: Option<&Version>, ours: &Version) -> Result<Option<String>, String> {
    let Some(agent) = agent else {
        return Ok(Some(format!("its version cannot be told: it should be {ours}, as this infrop is")));
    };
    if (agent.major, agent.minor) != (ours.major, ours.minor) {
        return Err(format!(
            "it is node-agent {agent}, and this infrop is {ours}: use those of one version (without --agent that is the \
             program beside infrop)"
        ));
    }
    Ok(agent
        .cmp_precedence(ours)
        .is_ne()
        .then(|| format!("it is node-agent {agent}, and this infrop is {ours}")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_of_another_version_is_refused_or_at_least_said() {
        for (agent, ours, goes, is_said) in [
            (Some("0.2.1"), "0.2.1", true, false),
            (Some("0.2.1+build"), "0.2.1", true, false),
            (Some("0.2.0"), "0.2.1", true, true),
            (Some("0.2.2"), "0.2.1", true, true),
            (Some("0.2.1-rc.1"), "0.2.1", true, true),
            (Some("0.1.9"), "0.2.1", false, true),
            (Some("0.3.0"), "0.2.1", false, true),
            (Some("1.2.1"), "0.2.1", false, true),
            (None, "0.2.1", true, true),
        ] {
            let version = agent.map(|text| text.parse().unwrap());
            let judged = judge(version.as_ref(), &ours.parse().unwrap());
            assert_eq!(judged.is_ok(), goes, "{agent:?}: {judged:?}");
            let said = match &judged {
                Ok(doubt) => doubt.as_ref(),
                Err(why) => Some(why),
            };
            assert_eq!(said.is_some(), is_said, "{agent:?}: {judged:?}");
            assert!(said.is_none_or(|said| said.contains(ours)), "{judged:?}");
        }
    }

    #[tokio::test]
    async fn a_program_is_asked_for_its_version() {
        let directory = tempfile::tempdir().unwrap();
        for (text, expected) in [
            ("#!/bin/sh\necho node-agent 1.2.3\n", Some("1.2.3")),
            ("#!/bin/sh\necho other 1.2.3\n", None),
            ("#!/bin/sh\nexit 1\n", None),
            ("", None),
        ] {
            let file = directory.path().join("agent");
            // Written by another process: no child of this one may have it open for writing when it is run.
            let script = format!("printf %s '{text}' > \"$0\" && chmod 755 \"$0\"");
            Program::new("sh").args(["-c", &script]).arg(&file).run().await.unwrap();
            let said = version_said_by(&file).await.map(|version| version.to_string());
            assert_eq!(said.as_deref(), expected, "{text}");
        }
    }
}
