//! An infrastructure under test: a document, and the real infrop that works on it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use infrop::provider::lab::{Lab, Store};
use kube::config::{KubeConfigOptions, Kubeconfig};
use program::Program;
use tokio::process::{Child, Command};

use crate::{
    bundles, infrop_path,
    lab::{Clearing, keep_logs},
    node_agent_path,
};

/// Longer than any bring-up on a busy machine.
const LIMIT: Duration = Duration::from_mins(15);

/// A document and its lab.
#[derive(Debug)]
pub struct Infrastructure {
    labs: Clearing,
    name: String,
    document: PathBuf,
    /// The network namespace infrop runs in, if not this computer's.
    namespace: Option<PathBuf>,
    /// infrop, and node-agent or its package, if not those that were just built for tests.
    programs: Option<(PathBuf, PathBuf)>,
}

/// How infrop ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code.
    pub code: i32,
    /// What it said on stdout.
    pub stdout: String,
    /// What it said on stderr.
    pub stderr: String,
}

impl Infrastructure {
    /// Of a document's text, beside which the examples' manifests lie.
    pub fn new(name: &str, text: &str) -> anyhow::Result<Self> {
        let labs = Clearing::new()?;
        let document = labs.path().join("infrastructure.yaml");
        fs::write(&document, text)?;
        fs::write(labs.path().join("lab-network.yaml"), network()?)?;
        Ok(Self { labs, name: name.to_owned(), document, namespace: None, programs: None })
    }

    /// With infrop inside a network namespace, where hosts that are not a lab's computes are reached.
    #[must_use]
    pub fn inside(mut self, namespace: PathBuf) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// With another infrop, and another node-agent or package of it, than those that were just built for tests.
    #[must_use]
    pub fn using(mut self, infrop: &Path, agent: &Path) -> Self {
        self.programs = Some((infrop.to_owned(), agent.to_owned()));
        self
    }

    /// Runs a test on it. If that fails, journals of its hosts are kept and the error says where; its lab ends in any
    /// case.
    pub async fn with<T>(self, test: impl AsyncFnOnce(&Self) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let result = test(&self).await;
        match (result, self.lab()) {
            (Err(error), Ok(lab)) => {
                let kept = keep_logs(&lab, &self.name).await;
                let note = kept.map_or_else(
                    |error| format!("journals could not be kept: {error:#}"),
                    |directory| format!("journals and consoles are in {}", directory.display()),
                );
                Err(error.context(note))
            }
            (result, _) => result,
        }
    }

    /// Replaces the document's text.
    pub fn edit(&self, from: &str, to: &str) -> anyhow::Result<()> {
        let text = fs::read_to_string(&self.document)?;
        let new = text.replacen(from, to, 1);
        ensure!(new != text, "the document has no {from:?}");
        Ok(fs::write(&self.document, new)?)
    }

    /// Its lab, if it runs.
    pub fn lab(&self) -> anyhow::Result<Lab> {
        Ok(Lab::open(&Store::new(self.labs.path()), &self.name.parse()?)?)
    }

    /// Where its lab's files are.
    pub fn lab_directory(&self) -> PathBuf {
        self.labs.path().join(&self.name)
    }

    /// infrop, and node-agent or its package.
    fn programs(&self) -> anyhow::Result<(&Path, &Path)> {
        Ok(match &self.programs {
            Some((infrop, agent)) => (infrop.as_path(), agent.as_path()),
            None => (infrop_path()?, node_agent_path()?),
        })
    }

    fn command(&self, words: &[&str]) -> anyhow::Result<Command> {
        let (infrop, agent) = self.programs()?;
        let mut command = match &self.namespace {
            None => Command::new(infrop),
            Some(namespace) => {
                let mut option = std::ffi::OsString::from("--net=");
                option.push(namespace);
                let mut command = Command::new("nsenter");
                command.arg(option).arg(infrop);
                command
            }
        };
        command.args(words).arg("--file").arg(&self.document);
        command.env("INFROP_AGENT", agent).env("INFROP_LAB_DIR", self.labs.path());
        command.env("INFROP_CACHE_DIR", bundles::cache()?.root());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        Ok(command)
    }

    /// Starts infrop; whoever has the child ends it.
    pub fn start(&self, words: &[&str]) -> anyhow::Result<Child> {
        self.command(words)?.spawn().context("cannot start infrop")
    }

    /// Runs infrop to its end.
    pub async fn run(&self, words: &[&str]) -> anyhow::Result<Ended> {
        let output = self.command(words)?.output();
        let output = tokio::time::timeout(LIMIT, output).await.context("infrop did not end")??;
        Ok(Ended::of(&output))
    }

    /// Runs infrop, which has to succeed; gives its stdout.
    pub async fn insist(&self, words: &[&str]) -> anyhow::Result<String> {
        let ended = self.run(words).await?;
        ensure!(ended.code == 0, "infrop {} ended with {}: {}", words.join(" "), ended.code, ended.stderr);
        Ok(ended.stdout)
    }

    /// Runs infrop with the kubeconfig instead of the document.
    pub async fn run_on_cluster(&self, words: &[&str]) -> anyhow::Result<Ended> {
        let mut command = Command::new(self.programs()?.0);
        command.args(words).arg("--kubeconfig").arg(self.kubeconfig_file().await?);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(LIMIT, output).await.context("infrop did not end")??;
        Ok(Ended::of(&output))
    }

    async fn kubeconfig_file(&self) -> anyhow::Result<PathBuf> {
        let file = self.labs.path().join("kubeconfig");
        fs::write(&file, self.kubeconfig().await?)?;
        Ok(file)
    }

    /// The administrator's kubeconfig, as infrop prints it.
    pub async fn kubeconfig(&self) -> anyhow::Result<String> {
        self.insist(&["kubeconfig"]).await
    }

    /// The settings of a client with that kubeconfig.
    pub async fn kube_config(&self) -> anyhow::Result<kube::Config> {
        // Only the first call of the process installs it; that one is ours or equal to ours.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kubeconfig = Kubeconfig::from_yaml(&self.kubeconfig().await?)?;
        Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
    }

    /// A client with that kubeconfig.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        Ok(kube::Client::try_from(self.kube_config().await?)?)
    }

    /// Runs the bundle's kubectl on this computer with that kubeconfig.
    pub async fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        let kubectl = Program::new(bundles::program("kubectl").await?).arg("--kubeconfig");
        let kubectl = kubectl.arg(self.kubeconfig_file().await?);
        Ok(kubectl.args(words).run().await?)
    }
}

impl Ended {
    /// Of a process.
    pub fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            // A signal has no code.
            code: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

/// The manifest of the examples' pod network.
pub fn network() -> anyhow::Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../infrop/examples/lab-network.yaml");
    fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// The document of an example, whose infrastructure has another name here.
pub fn example(file: &str, name: &str) -> anyhow::Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../infrop/examples").join(file);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let named = text.lines().map(|line| {
        if line.starts_with("  name: lab") { format!("  name: {name}") } else { line.to_owned() }
    });
    let named = named.collect::<Vec<_>>().join("\n") + "\n";
    ensure!(named != text, "{} has no name", file.display());
    Ok(named)
}

/// A document with one control plane and some workers of a lab.
pub fn lab_document(name: &str, workers: u16) -> String {
    format!(
        "apiVersion: infrop.caos.ch/v1alpha1\n\
         kind: Infrastructure\n\
         metadata: {{ name: {name} }}\n\
         providers:\n  here:\n    lab:\n      pools: {{ cp: {{}}, w: {{}} }}\n\
         cluster:\n  controlPlane: {{ provider: here, pool: cp, nodes: 1 }}\n  \
         workers:\n  - {{ provider: here, pool: w, nodes: {workers} }}\n  \
         networking: {{ manifests: [lab-network.yaml] }}\n\
         software: {{ kubernetes: 1.37.1 }}\n"
    )
}
