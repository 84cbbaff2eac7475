//! node-agent on a host: its package, settings and metadata, delivered together.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use common::{
    metadata::{ImageArchive, Metadata},
    plan::{Plan, PlanId},
};
use semver::Version;
use sha2::{Digest, Sha256};

use super::{
    error::Error,
    host::{DELIVERED, MARK},
    ssh::Remote,
};

/// Where the package lies on a host until it is installed.
const PACKAGE: &str = "/var/lib/infrop/node-agent.deb";

const METADATA: &str = "/etc/node-agent/metadata.yaml";

/// The contents of the metadata before.
const CONTENTS_BEFORE: &str = "/etc/node-agent/configuration.d/infrop-before.yaml";

/// A file of some kilobytes.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// A few hundred MiB from a slow disk.
const IMPORT_LIMIT: Duration = Duration::from_mins(10);

/// dpkg and a start of the service, on a slow host; a service that has to end a step first takes longer.
const INSTALL_LIMIT: Duration = Duration::from_mins(10);

/// The package, read once.
#[derive(Debug, Clone)]
pub struct AgentPackage {
    bytes: Arc<Vec<u8>>,
    /// Of the bytes, made once: there is a delivery for each host.
    digest: [u8; 32],
    /// Its version, if it is one that can be compared.
    pub version: Option<Version>,
}

impl AgentPackage {
    /// Reads the package at `path`, which is of that version.
    pub fn read(path: &Path, version: Option<Version>) -> Result<Self, (PathBuf, std::io::Error)> {
        let bytes = std::fs::read(path).map_err(|error| (path.to_owned(), error))?;
        let digest = Sha256::digest(&bytes).into();
        Ok(Self { bytes: Arc::new(bytes), digest, version })
    }

    /// One that is not built yet: whatever a host has is another.
    pub fn unbuilt(version: Option<Version>) -> Self {
        Self { bytes: Arc::default(), digest: Sha256::digest([]).into(), version }
    }

    #[cfg(test)]
    pub(crate) fn is_the_same_as(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// What a host is given.
#[derive(Debug, Clone)]
pub struct Delivery {
    package: AgentPackage,
    metadata: String,
    settings: String,
    /// Tells it from others.
    pub digest: String,
    /// The plan of its metadata.
    pub plan: Plan,
    /// The container images it is to have.
    images: Vec<ImageArchive>,
}

impl Delivery {
    /// Of a package, settings (YAML) and metadata.
    pub fn new(package: AgentPackage, settings: String, metadata: &Metadata) -> anyhow::Result<Self> {
        let plan = metadata.plan()?;
        let images = metadata.configuration.images.clone().unwrap_or_default();
        let metadata = serde_yaml::to_string(metadata)?;
        let mut hash = Sha256::new();
        // The package by its own hash, so that no part can pass for the end of another.
        hash.update(package.digest);
        hash.update(Sha256::digest(settings.as_bytes()));
        hash.update(Sha256::digest(metadata.as_bytes()));
        let digest = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { package, metadata, settings, digest, plan, images })
    }
}

/// Keeps the contents of the metadata there, if it is another one: until its rollout comes, a node is at the plan that
/// names them.
async fn keep_contents(remote: &Remote, metadata: &str) -> Result<(), Error> {
    let script = format!("if test -e {METADATA}; then cat {METADATA}; fi");
    let before = remote.run("read its metadata", READ_LIMIT, &script).await?;
    if before == metadata {
        return Ok(());
    }
    // What cannot be read is nobody's plan.
    let before = serde_yaml::from_str::<Metadata>(&before).ok();
    match before.and_then(|before| serde_yaml::to_string(&before.configuration).ok()) {
        Some(contents) => remote.write(CONTENTS_BEFORE, 0o600, contents.as_bytes()).await,
        None => Ok(()),
    }
}

/// A script that imports the images that are not there, if they are the ones that were meant.
fn import(images: &[ImageArchive]) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let mut script = "present=$(ctr --namespace k8s.io images list --quiet)\n\
        image() {\n\
            if ! printf '%s\\n' \"$present\" | grep --quiet --line-regexp --fixed-strings \"$1\"; then\n\
                echo \"$3  $2\" | sha256sum --check --quiet\n\
                ctr --namespace k8s.io images import --local \"$2\"\n\
            fi\n\
        }\n"
    .to_owned();
    for ImageArchive { name, file, sha256 } in images {
        let (name, file) = (quoted(name.as_str()), quoted(&file.display().to_string()));
        script += &format!("image {name} {file} {}\n", sha256.as_str());
    }
    script
}

/// Puts all of it on a host and starts the agent. A host that has joined gets container images, too, ahead of its rollout. The mark comes last, so that half a delivery is none.
pub async fn deliver(remote: &Remote, delivery: &Delivery, joined: bool) -> Result<(), Error> {
    let Delivery { package, metadata, settings, digest, plan: _, images } = delivery;
    keep_contents(remote, metadata).await?;
    remote.write("/etc/node-agent/config.yaml", 0o644, settings.as_bytes()).await?;
    // 600: metadata may one day name what is nobody's business.
    remote.write(METADATA, 0o600, metadata.as_bytes()).await?;
    remote.write(PACKAGE, 0o644, &package.bytes).await?;
    let install = format!(
        "export DEBIAN_FRONTEND=noninteractive\ndpkg --install {PACKAGE} >&2\nrm -f {PACKAGE}\n\
         systemctl is-enabled --quiet node-agent\nsystemctl start node-agent"
    );
    remote.run("install node-agent", INSTALL_LIMIT, &install).await?;
    if joined {
        // kubeadm has kube-proxy replaced on all nodes at once when the last control plane is through, and the new one
        // has to be there by then.
        remote.run("import container images", IMPORT_LIMIT, &import(images)).await?;
    }
    remote.write(DELIVERED, 0o644, digest.as_bytes()).await
}

/// Waits a while on the host until its agent has marked the plan as reached; true if it has.
pub async fn wait(remote: &Remote, plan: &PlanId) -> Result<bool, Error> {
    let script = wait_for(plan, MARK);
    Ok(remote.run("wait for its agent", READ_LIMIT, &script).await?.trim() == "reached")
}

/// A script that looks for a plan in a file, some seconds long. It starts no program to do so: many hosts that do it
/// take the time of those that work.
fn wait_for(plan: &PlanId, file: &str) -> String {
    format!(
        "exec {{never}}<> <(:)\nfor _ in {{1..25}}; do\n  mark=\n  \
         {{ read -r -d '' mark < {file}; }} 2> /dev/null || true\n  \
         if [[ $mark == *'\"{plan}\"'* ]]; then echo reached; exit 0; fi\n  \
         read -r -t 0.2 -u \"$never\" || true\ndone"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("mark");
        let plan = Plan::new([("kubelet".parse().unwrap(), "1.37.1".parse().unwrap())].into()).id();
        let script = wait_for(&plan, file.to_str().unwrap());
        let wait = || {
            let mut bash = std::process::Command::new("bash");
            bash.args(["-euo", "pipefail", "-c", &script]).stdout(std::process::Stdio::piped());
            bash.spawn().unwrap()
        };
        let waits = wait();
        std::thread::sleep(Duration::from_millis(300));
        std::fs::write(&file, format!("{{\"plan\":\"{plan}\"}}")).unwrap();
        assert_eq!(waits.wait_with_output().unwrap().stdout, b"reached\n");
        std::fs::write(&file, "{\"plan\":\"other\"}").unwrap();
        let output = wait().wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    }

    #[test]
    fn images_are_imported_by_name_file_and_hash() {
        let image = ImageArchive {
            name: "registry.k8s.io/pause:3.10.2".parse().unwrap(),
            file: "/opt/it's/pause.tar".into(),
            sha256: "0".repeat(64).parse().unwrap(),
        };
        let script = import(&[image]);
        let call =
            format!("image 'registry.k8s.io/pause:3.10.2' '/opt/it'\\''s/pause.tar' {}", "0".repeat(64));
        assert_eq!(script.lines().last(), Some(call.as_str()));
        assert!(!import(&[]).contains("\nimage '"));
    }
}
