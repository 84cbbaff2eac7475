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

    /// What is enough to look at everything and to end it: nothing is built or installed for it, and what would have to
    /// be is in [`Context::unbuilt`].
    pub(super) async fn look(&self, shared: &Shared) -> anyhow::Result<Context> {
        self.context_with(desired::read(&self.file)?, shared, Need::Look).await
    }

    /// The same as [`Self::context`] with another Kubernetes version, on the way to the document's.
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
        let (package, version) = if file.extension().is_some_and(|extension| extension == "deb") {
            let version = version_of(&file).await;
            (file, version)
        } else {
            let hash =
                images::sha256_file(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let name = format!("{VERSION}-{}", hash.get(..16).unwrap_or(&hash));
            if need == Need::Look && !shared.cache.path(PACKAGES, &name).is_dir() {
                // A runner of CI has it nowhere. The same program makes the same package, so what hosts have can be
                // compared with one that is forgotten at once.
                return packed(&file, ours.clone()).await.or_else(|error| {
                    tracing::debug!("cannot pack node-agent: {error:#}");
                    unbuilt.push("make a package of node-agent".to_owned());
                    Ok(AgentPackage::unbuilt(ours))
                });
            }
            let make = |staging: PathBuf| async move {
                images::agent::package(&file, VERSION, &staging).await.map(|_| ())
            };
            let directory = shared.cache.produce(PACKAGES, &name, false, &shared.steps, make).await?;
            let mut files = std::fs::read_dir(&directory)?;
            let file = files.next().context("the cached package of node-agent is not there")??.path();
            (file, ours)
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

/// Whether control planes carry the API's address.
fn carries(infrastructure: &Infrastructure) -> bool {
    infrastructure.cluster.endpoint.as_ref().and_then(Carried::of).is_some()
}

/// A package of a program that is kept nowhere.
async fn packed(program: &Path, version: Option<Version>) -> anyhow::Result<AgentPackage> {
    let directory = tempfile::tempdir()?;
    let package = images::agent::package(program, VERSION, directory.path()).await?;
    AgentPackage::read(&package, version).map_err(|(path, error)| {
        anyhow::Error::from(error).context(format!("cannot read {}", path.display()))
    })
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

#[cfg(test)]
mod tests {
    use images::steps::Steps;

    use super::*;

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
