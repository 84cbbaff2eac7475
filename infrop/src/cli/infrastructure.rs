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
    cache::Cache,
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
        lab_computes::{LabComputes, Means, Parts},
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

/// The kind of thing packages of node-agent are in the cache.
const PACKAGES: &str = "agent";

/// What a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// To change hosts: what they are to be given is built first.
    Work,
    /// To see what is, and to end it.
    Look,
}

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
        self.context_of(self.read()?, shared).await
    }

    /// What is enough to look at everything and to end it: nothing is built or installed for it, and what would have to
    /// be is in [`Context::unbuilt`].
    pub(super) async fn look(&self, shared: &Shared) -> anyhow::Result<Context> {
        self.context_with(self.read()?, shared, Need::Look).await
    }

    /// The same as [`Self::look`] with another Kubernetes version, on the way to the document's.
    pub(super) async fn look_at(
        &self,
        version: KubernetesVersion,
        shared: &Shared,
    ) -> anyhow::Result<Context> {
        self.context_with(self.read_at(version)?, shared, Need::Look).await
    }

    /// The same as [`Self::context`] with another Kubernetes version, on the way to the document's.
    pub(super) async fn context_at(
        &self,
        version: KubernetesVersion,
        shared: &Shared,
    ) -> anyhow::Result<Context> {
        self.context_of(self.read_at(version)?, shared).await
    }

    fn read_at(&self, version: KubernetesVersion) -> anyhow::Result<Infrastructure> {
        let mut infrastructure = self.read()?;
        infrastructure.software.kubernetes = version;
        Ok(infrastructure)
    }

    fn read(&self) -> anyhow::Result<Infrastructure> {
        if self.record_host_keys {
            make_known_hosts(&self.file)?;
        }
        Ok(desired::read(&self.file)?)
    }

    async fn context_of(&self, infrastructure: Infrastructure, shared: &Shared) -> anyhow::Result<Context> {
        self.context_with(infrastructure, shared, Need::Work).await
    }

    async fn context_with(
        &self,
        infrastructure: Infrastructure,
        shared: &Shared,
        need: Need,
    ) -> anyhow::Result<Context> {
        let connections = Arc::new(Connections::new()?);
        let mut providers: BTreeMap<_, Box<dyn Provider>> = BTreeMap::new();
        let mut unbuilt = Vec::new();
        for (name, wanted) in &infrastructure.providers {
            let owner = infrastructure.metadata.name.clone();
            let software = &infrastructure.software;
            let provider: Box<dyn Provider> = match wanted {
                Wanted::Lab(wanted) => {
                    // Said before minutes of building.
                    if let Some(obstacle) = lab::obstacle() {
                        bail!(obstacle);
                    }
                    let found = match need {
                        Need::Work => Found::building(&infrastructure, shared).await?,
                        Need::Look => Found::as_it_is(&infrastructure, &shared.cache, &mut unbuilt),
                    };
                    let (bundle, site) = (found.bundle.clone(), found.site.clone());
                    let means = self.lab_means(found, need, shared)?;
                    let (version, name) = (&software.kubernetes, name.clone());
                    let lab = LabComputes::new(
                        name,
                        owner,
                        wanted,
                        means,
                        version,
                        bundle.as_ref(),
                        site.as_deref(),
                    );
                    Box::new(lab?)
                }
                Wanted::Static(wanted) => {
                    let reach = self.reach(&infrastructure.ssh).await?;
                    let connections = Arc::clone(&connections);
                    let computes =
                        StaticComputes::new(name.clone(), owner, wanted, reach, connections, software);
                    Box::new(computes.await?)
                }
            };
            providers.insert(name.clone(), provider);
        }
        let package = self.agent_package(shared, need, &mut unbuilt).await?;
        let directory = self.file.parent().unwrap_or(Path::new(""));
        let mut context = Context::new(infrastructure, directory, providers, connections, package)?;
        // Two providers may lack the same.
        unbuilt.dedup();
        context.unbuilt = unbuilt;
        Ok(context)
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

    fn lab_means(&self, found: Found, need: Need, shared: &Shared) -> anyhow::Result<Means> {
        let Found { root, bundle, site } = found;
        let parts = match (need, root, bundle) {
            (Need::Work, Some(root), Some(bundle)) => Some(Parts { root, bundle, site }),
            _ => None,
        };
        let infrop = env::current_exe().context("cannot tell where this program is")?;
        Ok(Means { store: Store::new(&self.lab_dir), parts, infrop, steps: shared.steps.clone() })
    }

    /// node-agent's package: given, or made of a program.
    async fn agent_package(
        &self,
        shared: &Shared,
        need: Need,
        unbuilt: &mut Vec<String>,
    ) -> anyhow::Result<AgentPackage> {
        let ours = Version::parse(VERSION).ok();
        let file = match (&self.agent, need) {
            (Some(file), _) => file.clone(),
            (None, Need::Work) => program_beside_infrop(shared).await?,
            (None, Need::Look) => {
                env::current_exe().context("cannot tell where this program is")?.with_file_name(AGENT)
            }
        };
        if need == Need::Look && !file.is_file() {
            unbuilt.push("build node-agent".to_owned());
            return Ok(AgentPackage::unbuilt(ours));
        }
        let is_package = file.extension().is_some_and(|extension| extension == "deb");
        let version = if is_package { version_of(&file).await } else { version_said_by(&file).await };
        match judge(version.as_ref(), &Version::parse(VERSION)?) {
            Ok(None) => {}
            Ok(Some(doubt)) => tracing::warn!("{}: {doubt}", file.display()),
            Err(why) => bail!("{} cannot be used: {why}", file.display()),
        }
        // A program that does not say is packed as ours.
        let version = if is_package { version } else { version.or(ours) };
        let package = if is_package {
            file
        } else {
            let hash =
                images::sha256_file(&file).with_context(|| format!("cannot read {}", file.display()))?;
            // Hosts and later runs know it by what it calls itself.
            let called = version.as_ref().map_or_else(|| VERSION.to_owned(), ToString::to_string);
            let name = format!("{called}-{}", hash.get(..16).unwrap_or(&hash));
            if need == Need::Look && !shared.cache.path(PACKAGES, &name).is_dir() {
                // A runner of CI has it nowhere. The same program makes the same package, so what hosts have can be
                // compared with one that is forgotten at once.
                return packed(&file, &called, version.clone()).await.or_else(|error| {
                    tracing::debug!("cannot pack node-agent: {error:#}");
                    unbuilt.push("make a package of node-agent".to_owned());
                    Ok(AgentPackage::unbuilt(version))
                });
            }
            let make = |staging: PathBuf| async move {
                images::agent::package(&file, &called, &staging).await.map(|_| ())
            };
            let directory = shared.cache.produce(PACKAGES, &name, false, &shared.steps, make).await?;
            let mut files = std::fs::read_dir(&directory)?;
            files.next().context("the cached package of node-agent is not there")??.path()
        };
        AgentPackage::read(&package, version).map_err(|(path, error)| {
            anyhow::Error::from(error).context(format!("cannot read {}", path.display()))
        })
    }
}

/// What lab hosts are made of, as far as it is there.
#[derive(Debug)]
struct Found {
    root: Option<PathBuf>,
    bundle: Option<Bundle>,
    site: Option<PathBuf>,
}

impl Found {
    /// All of it: what is not there is built.
    async fn building(infrastructure: &Infrastructure, shared: &Shared) -> anyhow::Result<Self> {
        let Shared { cache, steps } = shared;
        let root = node::ensure(cache, steps).await?;
        let version = infrastructure.software.kubernetes.clone();
        let request = Request { version, containerd: None, wish: Wish::default(), anew: false };
        let bundle = kubernetes::build(cache, &request, steps).await?;
        lab::ensure_tools(steps).await?;
        let site = if carries(infrastructure) { Some(site::ensure(cache, steps).await?) } else { None };
        Ok(Self { root: Some(root), bundle: Some(bundle), site })
    }

    /// What is there; the rest goes to `unbuilt`.
    fn as_it_is(infrastructure: &Infrastructure, cache: &Cache, unbuilt: &mut Vec<String>) -> Self {
        let version = &infrastructure.software.kubernetes;
        let tools = lab::missing_tools();
        if !tools.is_empty() {
            unbuilt.push(format!("install with apt-get: {}", tools.join(" ")));
        }
        let found = Self {
            root: node::find(cache),
            bundle: Bundle::find(cache, version).ok(),
            site: site::find(cache).filter(|_| carries(infrastructure)),
        };
        for (missing, what) in [
            (found.root.is_none(), "build the root file system of lab hosts".to_owned()),
            (found.bundle.is_none(), format!("build the bundle of Kubernetes {version}")),
            (
                found.site.is_none() && carries(infrastructure),
                "fetch the packages that carry the API's address".to_owned(),
            ),
        ] {
            if missing {
                unbuilt.push(what);
            }
        }
        found
    }
}

/// Makes the file in which host keys are to be taken down, if it is not there yet: a document that names none is refused.
/// What else is wrong with the document is said when it is read.
fn make_known_hosts(document: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(document).unwrap_or_default();
    let named: Option<PathBuf> = serde_yaml::from_str::<serde_yaml::Value>(&text)
        .ok()
        .and_then(|document| document.get("ssh")?.get("knownHosts")?.as_str().map(PathBuf::from));
    let Some(named) = named else { return Ok(()) };
    let path = document.parent().unwrap_or(Path::new("")).join(named);
    let made = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    made.map(drop).with_context(|| format!("cannot take host keys down in {}", path.display()))
}

/// Whether control planes carry the API's address.
fn carries(infrastructure: &Infrastructure) -> bool {
    infrastructure.cluster.endpoint.as_ref().and_then(Carried::of).is_some()
}

/// A package of a program that is kept nowhere.
async fn packed(program: &Path, called: &str, version: Option<Version>) -> anyhow::Result<AgentPackage> {
    let directory = tempfile::tempdir()?;
    let package = images::agent::package(program, called, directory.path()).await?;
    AgentPackage::read(&package, version).map_err(|(path, error)| {
        anyhow::Error::from(error).context(format!("cannot read {}", path.display()))
    })
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
    use images::steps::Steps;

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

    #[test]
    fn the_file_for_host_keys_is_made_and_never_emptied() {
        let directory = tempfile::tempdir().unwrap();
        let document = directory.path().join("x.yaml");
        let keys = directory.path().join("keys");
        for text in ["", "ssh: 1", "a: [", "ssh: { user: x }"] {
            std::fs::write(&document, text).unwrap();
            make_known_hosts(&document).unwrap();
            assert!(!keys.exists(), "{text}");
        }
        std::fs::write(&document, "ssh: { knownHosts: keys }").unwrap();
        make_known_hosts(&document).unwrap();
        std::fs::write(&keys, "host key").unwrap();
        make_known_hosts(&document).unwrap();
        assert_eq!(std::fs::read_to_string(&keys).unwrap(), "host key");
        std::fs::write(&document, "ssh: { knownHosts: none/keys }").unwrap();
        let error = make_known_hosts(&document).unwrap_err();
        assert!(error.to_string().starts_with("cannot take host keys down in "), "{error:#}");
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

    const DOCUMENT: &str = "\
apiVersion: infrop.caos.ch/v1alpha1
kind: Infrastructure
metadata: { name: site }
providers:
  here: { lab: { pools: { control: {}, worker: {} } } }
cluster:
  controlPlane: { provider: here, pool: control, nodes: 3 }
  workers: [{ provider: here, pool: worker, nodes: 1 }]
  endpoint: { host: 10.88.0.5 }
software:
  kubernetes: 1.37.1
";

    /// A place with a document, and what a command line would say of it. Whatever is built is an error.
    fn place() -> (tempfile::TempDir, Shared, DocumentArguments) {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.yaml");
        std::fs::write(&file, DOCUMENT).unwrap();
        let steps = Steps::new(|step| panic!("something is built: {step}"));
        let shared = Shared { cache: Cache::new(place.path().join("cache")), steps };
        let lab_dir = place.path().join("labs");
        (place, shared, DocumentArguments { file, agent: None, record_host_keys: false, lab_dir })
    }

    #[tokio::test]
    async fn who_only_looks_builds_nothing_and_says_what_is_not_built() {
        if let Some(obstacle) = lab::obstacle() {
            eprintln!("skipped: {obstacle}");
            return;
        }
        let (place, shared, arguments) = place();
        let context = arguments.look(&shared).await.unwrap();
        let mut unbuilt = context.unbuilt.clone();
        // Whether tools are there is this computer's own affair.
        unbuilt.retain(|what| !what.starts_with("install with apt-get: "));
        assert_eq!(
            unbuilt,
            [
                "build the root file system of lab hosts",
                "build the bundle of Kubernetes 1.37.1",
                "fetch the packages that carry the API's address",
                "build node-agent",
            ]
        );
        // A look at all of it changes nothing either.
        let (snapshot, _) = crate::apply::observe(&context, 1).await.unwrap();
        assert!(snapshot.hosts.is_empty());
        let mut left: Vec<_> =
            std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["x.yaml"]);
    }

    #[tokio::test]
    async fn who_only_looks_knows_the_package_of_a_program_that_is_there() {
        let (place, shared, mut arguments) = place();
        let program = place.path().join("agent");
        std::fs::write(&program, "a program").unwrap();
        arguments.agent = Some(program);
        let mut unbuilt = Vec::new();
        let seen = arguments.agent_package(&shared, Need::Look, &mut unbuilt).await.unwrap();
        if images::tools::find("dpkg-deb").is_none() {
            assert_eq!(unbuilt, ["make a package of node-agent"]);
            return;
        }
        assert_eq!(unbuilt, [""; 0]);
        assert!(!place.path().join("cache").exists());
        let shared = Shared { steps: Steps::new(|_| ()), ..shared };
        let made = arguments.agent_package(&shared, Need::Work, &mut unbuilt).await.unwrap();
        assert!(seen.is_the_same_as(&made));
    }
}
