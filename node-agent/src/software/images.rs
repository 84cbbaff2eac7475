//! Container images, imported ahead of use.

use std::{
    collections::BTreeSet,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use common::{software::SoftwareVersion, state::Reason};
use futures::future::BoxFuture;
use program::Program;
use sha2::{Digest, Sha256};

use super::{Look, Observed, Software, Task, name_of};
use crate::{failure::Failure, host::Host};

/// The namespace the kubelet's images are in.
const NAMESPACE: [&str; 2] = ["--namespace", "k8s.io"];

/// A few hundred MiB from a slow disk.
const IMPORT_LIMIT: Duration = Duration::from_mins(10);

pub(super) const SOFTWARE: Images = Images;

#[derive(Debug)]
pub(super) struct Images;

impl Software for Images {
    fn name(&self) -> &'static str {
        "images"
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        // Images come and go; the question is only whether those asked for are there.
        let (Some(desired), Some(present)) = (look.desired, &look.facts.images) else {
            return Ok(Observed::now(None));
        };
        let wanted = look.contents.find(&name_of(self)?, desired).and_then(|one| one.images.as_ref());
        let there =
            wanted.is_some_and(|wanted| wanted.iter().all(|image| present.contains(image.name.as_str())));
        Ok(Observed::now(there.then(|| desired.clone())))
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let wanted = task.content(self, version, |one| one.images.clone())?;
            let present = list(task.host).await?;
            for image in wanted.iter().filter(|image| !present.contains(image.name.as_str())) {
                import(task.host, &image.file, image.sha256.as_str()).await?;
            }
            Ok(())
        })
    }
}

/// The names of all images the kubelet could use.
pub(crate) async fn list(host: &Host) -> Result<BTreeSet<String>, Failure> {
    let program = Program::new("ctr").args(NAMESPACE).args(["images", "list", "--quiet"]);
    let text = host.insist(Reason::ImageFailed, program).await?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Imports an archive if it is the one that was meant.
pub(crate) async fn import(host: &Host, file: &Path, sha256: &str) -> Result<(), Failure> {
    let actual = hash(host.path(file)).await?;
    if actual != sha256 {
        let message =
            format!("{} has sha256 {actual} instead of {sha256}: it is not imported", file.display());
        return Err(Failure::new(Reason::ImageFailed, message));
    }
    // Locally: through containerd's transfer service it takes half as much again.
    let program = Program::new("ctr")
        .args(NAMESPACE)
        .args(["images", "import", "--local"])
        .arg(file)
        .timeout(IMPORT_LIMIT);
    host.insist(Reason::ImageFailed, program).await.map(drop)
}

/// The sha256 of a file, beside the loop: it takes seconds.
async fn hash(path: PathBuf) -> Result<String, Failure> {
    let work = move || {
        let failed = |error: &std::io::Error| Failure {
            reason: Reason::ImageFailed,
            message: format!("cannot read {}: {error}", path.display()),
        };
        let mut file = std::fs::File::open(&path).map_err(|error| failed(&error))?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = file.read(&mut buffer).map_err(|error| failed(&error))?;
            match buffer.get(..count) {
                Some(bytes) if count > 0 => hash.update(bytes),
                _ => break,
            }
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| Failure::of(Reason::ImageFailed, &error))?
}

#[cfg(test)]
mod tests {
    use common::metadata::{Configuration, ImageArchive};

    use super::*;
    use crate::{host::fake::FakeHost, software::testing::Bench};

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn content(sha256: &str) -> Configuration {
        let image = |name: &str| ImageArchive {
            name: name.parse().unwrap(),
            file: format!("/images/{name}.tar").into(),
            sha256: sha256.parse().unwrap(),
        };
        Configuration { images: Some(vec![image("pause"), image("etcd")]), ..Configuration::default() }
    }

    #[tokio::test]
    async fn what_is_missing_is_imported() {
        let mut bench = Bench::new(FakeHost::new(|command| {
            Ok(if command.ends_with("--quiet") { "pause\n".into() } else { String::new() })
        }));
        bench.fake.write("/images/etcd.tar", "");
        let version = bench.deliver(&Images, content(EMPTY));
        bench.ensure(&Images, &version).await.unwrap();
        assert_eq!(
            bench.fake.commands()[1..],
            ["ctr --namespace k8s.io images import --local /images/etcd.tar"]
        );
        bench.facts.images = Some(["pause".to_owned()].into());
        assert!(bench.observe_wanting(&Images, Some(&version)).needs_change(&version));
        bench.facts.images = Some(["pause".to_owned(), "etcd".to_owned()].into());
        assert!(!bench.observe_wanting(&Images, Some(&version)).needs_change(&version));
    }

    #[tokio::test]
    async fn another_archive_is_not_imported() {
        let mut bench = Bench::new(FakeHost::silent());
        bench.fake.write("/images/pause.tar", "other");
        let version = bench.deliver(&Images, content(EMPTY));
        let error = bench.ensure(&Images, &version).await.unwrap_err();
        assert_eq!(error.reason, Reason::ImageFailed);
        assert!(!bench.fake.commands().iter().any(|command| command.contains("import")));
    }
}
