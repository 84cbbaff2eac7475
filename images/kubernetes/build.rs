//! Building a bundle: programs, then packages and images, then the manifest.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use common::KubernetesVersion;
use jiff::Timestamp;
use program::Program;

use super::{
    Bundle, KIND,
    component::{ARCHITECTURE, Binary, Component, Release, containerd_for},
    contents,
    manifest::{self, FORMAT, ImageEntry, Manifest, PackageEntry},
    pins,
    source::{Order, Source, Wish},
};
use crate::{
    Error,
    cache::{Cache, remove_tree},
    debian,
    digest::sha256,
    error::At,
    repository,
    steps::Steps,
    tools::{self, Tool, tool},
};

/// Raised when the code below makes something else of the same input.
const RECIPE: &str = "1";

/// The kind of thing kube-proxy's base is in the cache.
const KUBE_PROXY_KIND: &str = "kube-proxy-base";

/// What is needed beside mmdebstrap. Go is not in it: a release or a directory does without.
const TOOLS: [Tool; 2] = [tool("dpkg-deb", "dpkg"), tool("cc", "gcc libc6-dev")];

/// What to build.
#[derive(Debug, Clone)]
pub struct Request {
    /// The Kubernetes version.
    pub version: KubernetesVersion,
    /// Another containerd than the one infrop would choose.
    pub containerd: Option<String>,
    /// Where programs come from.
    pub wish: Wish,
    /// Build it also if it is there.
    pub anew: bool,
}

/// The directory's name in the cache: the version and what infrop makes of it.
pub(super) fn name(version: &KubernetesVersion) -> String {
    format!("kubernetes-{version}{}", name_suffix())
}

pub(super) fn name_suffix() -> String {
    let inputs = pins::texts().chain(contents::texts()).chain([RECIPE]);
    let digest = sha256(inputs.collect::<Vec<_>>().join("\0"));
    format!("-{}", digest.get(..12).unwrap_or_default())
}

/// Gives the bundle of a version, building it unless it is there.
pub async fn build(cache: &Cache, request: &Request, steps: &Steps) -> Result<Bundle, Error> {
    let Request { version, anew, .. } = request;
    if !anew && let Ok(bundle) = Bundle::find(cache, version) {
        return check_wishes(bundle, request);
    }
    let tools: Vec<Tool> = TOOLS.into_iter().chain(repository::TOOLS).chain(debian::TOOLS).collect();
    tools::ensure(&tools, steps).await?;
    let what = format!("bundle Kubernetes {version}");
    let path = cache
        .produce(KIND, &name(version), *anew, steps, |staging| async move {
            steps.step(&what, fill(cache, &staging, request, steps)).await
        })
        .await?;
    Bundle::open(path)
}

/// A bundle that is there serves, unless it is not what was asked for.
fn check_wishes(bundle: Bundle, request: &Request) -> Result<Bundle, Error> {
    let Request { version, containerd, wish, anew: _ } = request;
    let other = |existing: &str, asked: String| Error::OtherBundle {
        version: version.to_string(),
        existing: existing.to_owned(),
        asked,
    };
    let manifest = bundle.manifest();
    if let Some(directory) = &wish.directory
        && manifest.source != "directory"
    {
        return Err(other(&format!("source {}", manifest.source), directory.display().to_string()));
    }
    let present = manifest.components.get("containerd");
    if let (Some(wanted), Some(present)) = (containerd, present)
        && wanted != present
    {
        return Err(other(&format!("containerd {present}"), format!("containerd {wanted}")));
    }
    Ok(bundle)
}

/// Makes the bundle in `staging`.
async fn fill(cache: &Cache, staging: &Path, request: &Request, steps: &Steps) -> Result<(), Error> {
    let Request { version, containerd, wish, anew: _ } = request;
    let containerd = containerd.clone().unwrap_or_else(|| containerd_for(version).to_owned());
    let containerd = Release::new(Component::Containerd, containerd);
    let kubernetes = Release::new(Component::Kubernetes, version.to_string());
    let source = Source::choose(wish, &kubernetes, &containerd, steps).await?;
    let work = Workshop::new(staging.join("work"))?;
    let (kubeadm, others): (Vec<Binary>, Vec<Binary>) =
        Component::Kubernetes.binaries().iter().partition(|binary| binary.name == "kubeadm");
    source.fetch(&work.order(&kubernetes, &kubeadm), steps).await?;
    let images = images_of(version, &work.bin).await?;
    source.fetch(&work.order(&kubernetes, &others), steps).await?;

    let mut components = BTreeMap::from([
        ("kubernetes".to_owned(), version.to_string()),
        ("containerd".to_owned(), containerd.version.clone()),
    ]);
    for name in ["etcd", "coredns", "pause"] {
        let image = images.iter().find(|image| contents::component_of(image) == name);
        let image = image.ok_or_else(|| Error::Kubeadm(format!("lists no image of {name}")))?;
        components.insert(name.to_owned(), contents::version_of(image).to_owned());
    }
    let release = |component: Component| {
        Release::new(component, components.get(component.name()).cloned().unwrap_or_default())
    };
    for release in [&release(Component::Etcd), &release(Component::CoreDns), &containerd] {
        source.fetch(&work.order(release, release.component.binaries()), steps).await?;
    }
    let pause = components.get("pause").cloned().unwrap_or_default();
    compile_pause(&pause, &work).await?;

    let packages = make_packages(staging, &work, version, &containerd.version, steps).await?;
    let base = kube_proxy_base(cache, steps).await?;
    let images = make_images(staging, &work, &images, &base, steps).await?;
    remove_tree(&work.root)?;
    let manifest = Manifest {
        format: FORMAT,
        kubernetes: version.clone(),
        architecture: ARCHITECTURE.to_owned(),
        source: source.kind().to_owned(),
        built: Timestamp::now(),
        components,
        packages,
        images,
        files: manifest::describe_all(staging)?,
    };
    manifest.write(staging)
}

/// Directories for what does not stay.
struct Workshop {
    root: PathBuf,
    bin: PathBuf,
    scratch: PathBuf,
}

impl Workshop {
    fn new(root: PathBuf) -> Result<Self, Error> {
        let workshop = Self { bin: root.join("bin"), scratch: root.join("scratch"), root };
        for directory in [&workshop.bin, &workshop.scratch] {
            fs::create_dir_all(directory).at("create", directory)?;
        }
        Ok(workshop)
    }

    fn order<'a>(&'a self, release: &'a Release, binaries: &'a [Binary]) -> Order<'a> {
        Order { release, binaries, bin: &self.bin, work: &self.scratch }
    }
}

/// The images kubeadm of this version runs, under the names it gives them.
async fn images_of(version: &KubernetesVersion, bin: &Path) -> Result<Vec<String>, Error> {
    let list = Program::new(bin.join("kubeadm"))
        .args(["config", "images", "list", "--kubernetes-version"])
        .arg(version.tag())
        .run()
        .await?;
    Ok(list.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect())
}

async fn compile_pause(version: &str, work: &Workshop) -> Result<(), Error> {
    let source = work.scratch.join("pause.c");
    fs::write(&source, contents::PAUSE_C).at("write", &source)?;
    Program::new("cc")
        .args(["-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-DVERSION=\"{version}\""))
        .arg("-o")
        .arg(work.bin.join("pause"))
        .arg(&source)
        .run()
        .await?;
    Ok(())
}

async fn make_packages(
    staging: &Path,
    work: &Workshop,
    version: &KubernetesVersion,
    containerd: &str,
    steps: &Steps,
) -> Result<Vec<PackageEntry>, Error> {
    let apt = staging.join("apt");
    fs::create_dir(&apt).at("create", &apt)?;
    steps
        .step("build the packages and sign their repository", async {
            let mut built = Vec::new();
            for package in contents::packages(&work.bin, &version.to_string(), containerd) {
                built.push(package.build(&apt, &work.scratch).await?);
            }
            let label = format!("Kubernetes {version}");
            repository::publish(&apt, &built, &label, Timestamp::now()).await?;
            Ok(built
                .into_iter()
                .map(|built| PackageEntry {
                    name: built.name,
                    version: built.version,
                    file: format!("apt/{}", built.file_name),
                })
                .collect())
        })
        .await
}

/// The Debian programs of the kube-proxy image, as a tar; the same for all versions.
async fn kube_proxy_base(cache: &Cache, steps: &Steps) -> Result<PathBuf, Error> {
    const FILE: &str = "base.tar";
    let sources = debian::sources(Path::new("/etc/apt"))?;
    let packages = contents::KUBE_PROXY_PACKAGES;
    let name = debian::name(&packages, &sources);
    let directory = cache
        .produce(KUBE_PROXY_KIND, &name, false, steps, |staging| async move {
            let what = format!("fetch for kube-proxy: {}", packages.join(" "));
            let fetch = debian::mmdebstrap("extract", &packages, &sources, &staging.join(FILE));
            steps.step(what, async { fetch.run().await }).await?;
            Ok(())
        })
        .await?;
    Ok(directory.join(FILE))
}

async fn make_images(
    staging: &Path,
    work: &Workshop,
    names: &[String],
    base: &Path,
    steps: &Steps,
) -> Result<Vec<ImageEntry>, Error> {
    let directory = staging.join("images");
    fs::create_dir(&directory).at("create", &directory)?;
    steps
        .step("write the container images", async {
            let mut entries = Vec::new();
            for name in names {
                let image = contents::image(name, &work.bin, base)
                    .ok_or_else(|| Error::Kubeadm(format!("wants the image {name}")))?;
                let file = format!("images/{}.tar", contents::component_of(name));
                image.write(&staging.join(&file), &work.scratch)?;
                entries.push(ImageEntry { name: name.clone(), file });
            }
            Ok(entries)
        })
        .await
}
