//! Kubernetes as kubeadm keeps it on this host: static pods of a control plane, the kubelet's configuration.
//!
//! Nobody asks for it by name: it follows kubeadm's version on a host that is part of a cluster.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use common::{KubernetesVersion, images::is_for_control_planes, software::SoftwareVersion, state::Reason};
use futures::future::BoxFuture;
use program::Program;
use serde::Deserialize;

use super::{Look, Observed, Software, Task, images};
use crate::{failure::Failure, host::Host, node::Cluster};

/// Its name in annotations.
pub const NAME: &str = "kubernetes";

/// The last version kubeadm finished here.
const DONE: &str = "/var/lib/node-agent/kubernetes-version";

/// The kubeadm command that was started and not finished: after a crash it is run again as it was.
const STARTED: &str = "/var/lib/node-agent/kubeadm-upgrade";

/// Where kubeadm leaves copies of what it replaced.
const BACKUPS: &str = "/etc/kubernetes/tmp";

/// A control plane takes some three minutes on a small machine.
const LIMIT: Duration = Duration::from_mins(20);

pub(super) const SOFTWARE: Kubernetes = Kubernetes;

#[derive(Debug)]
pub(super) struct Kubernetes;

/// What of a static pod's manifest is needed here.
#[derive(Debug, Deserialize)]
struct StaticPod {
    spec: StaticPodSpec,
}

#[derive(Debug, Deserialize)]
struct StaticPodSpec {
    containers: Vec<Container>,
}

#[derive(Debug, Deserialize)]
struct Container {
    image: String,
    #[serde(default)]
    command: Vec<String>,
}

/// The container of a control plane's component, by its manifest; none if there is none, or half of one.
fn component(host: &Host, name: &str) -> Result<Option<Container>, Failure> {
    let manifest = host.read(format!("/etc/kubernetes/manifests/{name}.yaml"))?.unwrap_or_default();
    // People may have written it anew, in whatever form YAML has.
    let pod = serde_yaml::from_str::<StaticPod>(&manifest).ok();
    Ok(pod.and_then(|pod| pod.spec.containers.into_iter().next()))
}

/// Where this host's API server listens.
pub(crate) fn api_server_port(host: &Host) -> Result<u16, Failure> {
    let command = component(host, "kube-apiserver")?.map(|container| container.command).unwrap_or_default();
    let port = command.iter().find_map(|word| word.strip_prefix("--secure-port=")?.parse().ok());
    Ok(port.unwrap_or(6443))
}

/// The version of the static pods; none while they differ.
fn of_static_pods(host: &Host) -> Result<Option<SoftwareVersion>, Failure> {
    let mut versions = Vec::new();
    for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        let image = component(host, name)?.map(|container| container.image);
        let tag = image.as_deref().and_then(|image| image.rsplit_once(":v")).map(|(_, tag)| tag.to_owned());
        versions.push(tag);
    }
    versions.dedup();
    match versions.as_slice() {
        [Some(version)] => Ok(version.parse().ok()),
        _ => Ok(None),
    }
}

impl Software for Kubernetes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&self, look: &Look<'_>) -> Result<Observed, Failure> {
        if !look.facts.joined {
            return Ok(Observed::now(None));
        }
        let version = if look.facts.control_plane {
            of_static_pods(look.host)?
        } else {
            // A worker has no manifests to look at. Its kubelet follows kubeadm, so a kubelet that is newer than
            // what we remember was upgraded by hand.
            let done = look.host.read(DONE)?.and_then(|text| text.trim().parse::<KubernetesVersion>().ok());
            let kubelet = look.facts.packages.get("kubelet");
            let kubelet = kubelet.and_then(|package| crate::apt::upstream(&package.version).parse().ok());
            done.max(kubelet).and_then(|version| version.to_string().parse().ok())
        };
        let mut observed = Observed::now(version);
        observed.stale = look.host.path(STARTED).exists();
        Ok(observed)
    }

    fn can_begin(&self, task: &Task<'_>, version: &SoftwareVersion) -> Result<(), Failure> {
        command(task, &parse(version)?).map(drop)
    }

    fn ensure<'a>(
        &'a self,
        task: &'a Task<'a>,
        version: &'a SoftwareVersion,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let version = parse(version)?;
            let command = command(task, &version)?;
            provide_images(task, &version).await?;
            // Before it, too: one that fails leaves a copy of etcd's data each time.
            remove_old_backups(&task.host.path(BACKUPS))?;
            task.host.write(STARTED, &format!("{command}\n"), 0o600)?;
            let mut program = Program::new("kubeadm").args(command.split(' ')).timeout(LIMIT);
            if !task.kubeadm.ignore_preflight_errors.is_empty() {
                program = program.arg(format!(
                    "--ignore-preflight-errors={}",
                    task.kubeadm.ignore_preflight_errors.join(",")
                ));
            }
            task.host.insist(Reason::KubeadmFailed, program).await?;
            task.host.write(DONE, &format!("{version}\n"), 0o644)?;
            task.host.remove(STARTED)?;
            remove_old_backups(&task.host.path(BACKUPS))
        })
    }
}

fn parse(version: &SoftwareVersion) -> Result<KubernetesVersion, Failure> {
    version.as_str().parse().map_err(|error| Failure::of(Reason::KubeadmFailed, &error))
}

/// `apply` on the first control plane of a new version, `node` elsewhere. The cluster itself says which this is:
/// its kubeadm-config has the version that some control plane was upgraded to.
fn command(task: &Task<'_>, version: &KubernetesVersion) -> Result<String, Failure> {
    let apply = format!("upgrade apply {} --yes", version.tag());
    if task.host.read(STARTED)?.is_some_and(|started| started.trim() == apply) {
        return Ok(apply);
    }
    // Nobody failed: which command it is can be told as soon as the API server answers.
    let cluster = task.cluster.ok_or_else(|| {
        Failure::new(
            Reason::ApiUnreachable,
            "the cluster's kubeadm-config, which says what kubeadm has to do here, cannot be read",
        )
    })?;
    Ok(if task.facts.control_plane && cluster.version < *version { apply } else { "upgrade node".to_owned() })
}

/// Puts the images of a version on the host before anything needs them.
async fn provide_images(task: &Task<'_>, version: &KubernetesVersion) -> Result<(), Failure> {
    if let Some(bundle) = task.contents.bundle.as_ref().and_then(|bundle| bundle.render(Some(version)))
        && let Some(text) = task.host.read(format!("{bundle}/bundle.json"))?
    {
        let bundled: Bundle = serde_json::from_str(&text).map_err(|error| {
            Failure::new(Reason::ImageFailed, format!("{bundle}/bundle.json cannot be read: {error}"))
        })?;
        let present = images::list(task.host).await?;
        let needed = bundled.images.iter().filter(|image| {
            !present.contains(&image.name)
                && (task.facts.control_plane || !is_for_control_planes(&image.name))
        });
        for image in needed {
            let sha256 = bundled.files.get(&image.file).map(|file| file.sha256.as_str()).unwrap_or_default();
            images::import(task.host, &Path::new(&bundle).join(&image.file), sha256).await?;
        }
        return Ok(());
    }
    if !task.facts.control_plane {
        // A kubelet fetches the few images of a worker by itself.
        return Ok(());
    }
    // Without an answer this is a command that was started before, after its images had come.
    let Some(Cluster { image_repository, .. }) = task.cluster else { return Ok(()) };
    let mut pull = Program::new("kubeadm")
        .args(["config", "images", "pull", "--kubernetes-version"])
        .arg(version.tag())
        .timeout(LIMIT);
    if let Some(repository) = image_repository {
        pull = pull.arg(format!("--image-repository={repository}"));
    }
    task.host.insist(Reason::ImageFailed, pull).await.map(drop)
}

/// What of a bundle's manifest is needed here.
#[derive(Debug, Deserialize)]
struct Bundle {
    images: Vec<BundledImage>,
    files: BTreeMap<String, BundledFile>,
}

#[derive(Debug, Deserialize)]
struct BundledImage {
    name: String,
    file: String,
}

#[derive(Debug, Deserialize)]
struct BundledFile {
    sha256: String,
}

/// Keeps the newest of each kind of backup and removes the others.
fn remove_old_backups(directory: &Path) -> Result<(), Failure> {
    let mut kinds: BTreeMap<String, Vec<(std::time::SystemTime, std::path::PathBuf)>> = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Their names end with a date and a number.
        let kind = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-' || c == '.').to_owned();
        if let Ok(changed) = entry.metadata().and_then(|meta| meta.modified())
            && kind.starts_with("kubeadm-")
        {
            kinds.entry(kind).or_default().push((changed, entry.path()));
        }
    }
    for backups in kinds.values_mut() {
        backups.sort();
        backups.pop();
        for (_, path) in backups {
            let removed = if path.is_dir() { fs::remove_dir_all(&*path) } else { fs::remove_file(&*path) };
            removed.map_err(|error| Failure::io("remove", path, &error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake::FakeHost, software::testing::Bench};

    fn bench(control_plane: bool, cluster: &str) -> Bench {
        let mut bench = Bench::new(FakeHost::silent());
        bench.facts.joined = true;
        bench.facts.control_plane = control_plane;
        bench.cluster = Some(Cluster { version: cluster.parse().unwrap(), image_repository: None });
        bench
    }

    fn write_pods(bench: &Bench, versions: [&str; 3]) {
        for (component, version) in
            ["kube-apiserver", "kube-controller-manager", "kube-scheduler"].iter().zip(versions)
        {
            let text = format!(
                "spec:\n  containers:\n  - command:\n    image: registry:5000/{component}:v{version}\n"
            );
            bench.fake.write(&format!("/etc/kubernetes/manifests/{component}.yaml"), &text);
        }
    }

    fn kubeadm(bench: &Bench) -> Vec<String> {
        bench.fake.commands().into_iter().filter(|command| command.starts_with("kubeadm upgrade")).collect()
    }

    #[tokio::test]
    async fn the_cluster_says_which_command_it_is() {
        let target = "1.37.1".parse().unwrap();
        for (control_plane, cluster, expected) in [
            (true, "1.36.4", "kubeadm upgrade apply v1.37.1 --yes"),
            (true, "1.37.1", "kubeadm upgrade node"),
            (false, "1.37.1", "kubeadm upgrade node"),
        ] {
            let bench = bench(control_plane, cluster);
            bench.ensure(&Kubernetes, &target).await.unwrap();
            assert_eq!(kubeadm(&bench), [expected]);
            assert!(bench.fake.read(STARTED).is_none());
        }
    }

    #[tokio::test]
    async fn an_apply_that_was_interrupted_is_an_apply_again() {
        let target = "1.37.1".parse().unwrap();
        let mut bench = bench(true, "1.37.1");
        write_pods(&bench, ["1.37.1"; 3]);
        bench.fake.write(STARTED, "upgrade apply v1.37.1 --yes\n");
        assert!(bench.observe(&Kubernetes).needs_change(&target));
        // It need not be decided again, so nobody need be asked.
        bench.cluster = None;
        Kubernetes.can_begin(&bench.task(), &target).unwrap();
        bench.ensure(&Kubernetes, &target).await.unwrap();
        assert_eq!(bench.fake.commands(), ["kubeadm upgrade apply v1.37.1 --yes"]);
        assert!(!bench.observe(&Kubernetes).needs_change(&target));
    }

    #[tokio::test]
    async fn without_the_clusters_answer_kubeadm_waits_and_has_not_failed() {
        for started in [None, Some("upgrade node\n"), Some("upgrade apply v1.36.4 --yes\n")] {
            let mut bench = bench(true, "1.37.1");
            if let Some(started) = started {
                bench.fake.write(STARTED, started);
            }
            bench.cluster = None;
            let target = "1.37.1".parse().unwrap();
            let refused = Kubernetes.can_begin(&bench.task(), &target).unwrap_err();
            assert_eq!(refused.reason, Reason::ApiUnreachable);
            assert_eq!(bench.ensure(&Kubernetes, &target).await.unwrap_err(), refused);
            assert!(bench.fake.commands().is_empty(), "something was changed");
            assert_eq!(bench.fake.read(STARTED).as_deref(), started);
        }
    }

    #[tokio::test]
    async fn images_of_a_control_plane_come_from_where_the_clusters_come_from() {
        for (repository, expected) in
            [(None, ""), (Some("mirror:5000/k8s"), " --image-repository=mirror:5000/k8s")]
        {
            let mut bench = bench(true, "1.36.4");
            let cluster = bench.cluster.as_mut().unwrap();
            cluster.image_repository = repository.map(str::to_owned);
            bench.ensure(&Kubernetes, &"1.37.1".parse().unwrap()).await.unwrap();
            let pull = format!("kubeadm config images pull --kubernetes-version v1.37.1{expected}");
            assert_eq!(bench.fake.commands()[0], pull);
        }
    }

    #[tokio::test]
    async fn backups_of_a_kubeadm_that_fails_do_not_pile_up() {
        let mut bench = Bench::new(FakeHost::new(|command| {
            if command.starts_with("kubeadm upgrade") { Err("no".to_owned()) } else { Ok(String::new()) }
        }));
        bench.facts.joined = true;
        bench.cluster = Some(Cluster { version: "1.37.1".parse().unwrap(), image_repository: None });
        for number in 1..9 {
            bench.fake.write(&format!("{BACKUPS}/kubeadm-backup-etcd-2026-11-16-06-00-0{number}/x"), "");
            bench.ensure(&Kubernetes, &"1.37.1".parse().unwrap()).await.unwrap_err();
            assert_eq!(fs::read_dir(bench.fake.host.path(BACKUPS)).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_control_plane_between_two_versions_has_none() {
        let bench = bench(true, "1.36.4");
        write_pods(&bench, ["1.36.4"; 3]);
        assert_eq!(bench.observe(&Kubernetes).version.unwrap().as_str(), "1.36.4");
        write_pods(&bench, ["1.37.1", "1.36.4", "1.36.4"]);
        assert_eq!(bench.observe(&Kubernetes).version, None);
        // Written by a program, and half written.
        let manifest = "/etc/kubernetes/manifests/kube-apiserver.yaml";
        let text = r#"{"spec":{"containers":[{"image":"registry:5000/kube-apiserver:v1.36.4"}]}}"#;
        bench.fake.write(manifest, text);
        assert_eq!(bench.observe(&Kubernetes).version.unwrap().as_str(), "1.36.4");
        bench.fake.write(manifest, &text[..30]);
        assert_eq!(bench.observe(&Kubernetes).version, None);
    }

    #[tokio::test]
    async fn images_of_a_bundle_are_checked_and_imported_first() {
        let mut bench = bench(false, "1.37.1");
        bench.contents.bundle = Some("/b/{kubernetes}".parse().unwrap());
        let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let manifest = format!(
            r#"{{"images":[{{"name":"pause","file":"images/p.tar"}},{{"name":"etcd:3.7.0-0","file":"images/e.tar"}}],
                "files":{{"images/p.tar":{{"sha256":"{hash}"}},"images/e.tar":{{"sha256":"{hash}"}}}}}}"#
        );
        bench.fake.write("/b/1.37.1/bundle.json", &manifest);
        bench.fake.write("/b/1.37.1/images/p.tar", "");
        bench.ensure(&Kubernetes, &"1.37.1".parse().unwrap()).await.unwrap();
        assert_eq!(
            bench.fake.commands(),
            [
                "ctr --namespace k8s.io images list --quiet",
                "ctr --namespace k8s.io images import --local /b/1.37.1/images/p.tar",
                "kubeadm upgrade node"
            ]
        );
        // Only control planes run etcd.
        bench.facts.control_plane = true;
        bench.fake.write("/b/1.37.1/images/e.tar", "");
        bench.ensure(&Kubernetes, &"1.37.1".parse().unwrap()).await.unwrap();
        let etcd = "ctr --namespace k8s.io images import --local /b/1.37.1/images/e.tar";
        assert!(bench.fake.commands().iter().any(|command| command == etcd));
        bench.fake.write("/b/1.37.1/images/p.tar", "tampered");
        let error = bench.ensure(&Kubernetes, &"1.37.1".parse().unwrap()).await.unwrap_err();
        assert_eq!(error.reason, Reason::ImageFailed);
    }

    #[test]
    fn old_backups_go_and_the_newest_of_each_kind_stays() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "kubeadm-backup-etcd-2026-11-16-06-00-01",
            "kubeadm-backup-etcd-2026-11-16-07-00-01",
            "kubeadm-backup-manifests-2026-11-16-06-00-01",
            "other-2026",
            "other-2027",
        ] {
            fs::create_dir(directory.path().join(name)).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        remove_old_backups(directory.path()).unwrap();
        let mut left: Vec<String> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "kubeadm-backup-etcd-2026-11-16-07-00-01",
                "kubeadm-backup-manifests-2026-11-16-06-00-01",
                "other-2026",
                "other-2027"
            ]
        );
        remove_old_backups(Path::new("/does/not/exist")).unwrap();
    }
}
