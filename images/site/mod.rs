//! Debian packages that a cluster's endpoint needs and the [`node`] root lacks, as a signed repository for
//! hosts without a network: keepalived carries a virtual address, haproxy spreads calls over API servers.
//!
//! What they depend on is here as far as a fresh host does not have it: with this repository alone apt
//! installs them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;

use crate::{
    Error,
    cache::{Cache, remove_tree},
    debian,
    error::At,
    node,
    package::Built,
    repository,
    steps::Steps,
    tools::{self, Tool, tool},
};

/// The kind of thing it is in the cache.
const KIND: &str = "site-packages";

/// Raised when the code below makes something else of the same packages.
const RECIPE: &str = "1";

/// What hosts are to be able to install.
const PACKAGES: [&str; 2] = ["haproxy", "keepalived"];

/// What making the repository needs beside mmdebstrap and gpg.
const TOOLS: [Tool; 2] = [tool("apt-get", "apt"), tool("dpkg-deb", "dpkg")];

/// The repository for hosts that start from `root`. What is needed depends on what they have already.
fn name(root: &Path, sources: &[String]) -> String {
    let base = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let inputs: Vec<&str> = PACKAGES.into_iter().chain([base.as_str()]).collect();
    format!("{}-{RECIPE}", debian::name(&inputs, sources))
}

/// The directory with the repository, if it is there. Builds nothing.
pub fn find(cache: &Cache) -> Option<PathBuf> {
    let sources = debian::sources(Path::new("/etc/apt")).ok()?;
    Some(cache.path(KIND, &name(&node::find(cache)?, &sources))).filter(|path| path.is_dir())
}

/// Gives the directory with the repository, downloading it unless it is there. Its key is in
/// [`repository::KEY_FILE`].
pub async fn ensure(cache: &Cache, steps: &Steps) -> Result<PathBuf, Error> {
    let root = node::ensure(cache, steps).await?;
    let sources = debian::sources(Path::new("/etc/apt"))?;
    let name = name(&root, &sources);
    let path = cache.path(KIND, &name);
    if path.is_dir() {
        return Ok(path);
    }
    let needed: Vec<Tool> = TOOLS.into_iter().chain(repository::TOOLS).chain(debian::TOOLS).collect();
    tools::ensure(&needed, steps).await?;
    cache
        .produce(KIND, &name, false, steps, |staging| async move {
            let what = format!("Debian packages for hosts without a network: {}", PACKAGES.join(", "));
            steps.step(what, fill(&staging, &root, &sources)).await
        })
        .await
}

/// The Debian versions of the packages that hosts are to be able to install, by name, in the repository that
/// [`ensure`] gave.
pub fn versions(repository: &Path) -> Result<Vec<(&'static str, String)>, Error> {
    let path = repository.join("Packages");
    let index = fs::read_to_string(&path).at("read", &path)?;
    let version = |package| {
        let missing = || io::Error::new(io::ErrorKind::InvalidData, format!("it does not list {package}"));
        Ok((package, listed_version(&index, package).ok_or_else(missing).at("use", &path)?))
    };
    PACKAGES.into_iter().map(version).collect()
}

fn listed_version(index: &str, package: &str) -> Option<String> {
    index.split("\n\n").find_map(|entry| {
        let field = |name: &str| {
            entry.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
        };
        (field("Package") == Some(package)).then(|| field("Version")).flatten().map(str::to_owned)
    })
}

async fn fill(directory: &Path, root: &Path, sources: &[String]) -> Result<(), Error> {
    let work = tempfile::tempdir_in(directory).at("create a directory in", directory)?;
    // A copy, because apt locks the directory that this is in, and the root is not to change.
    let (from, status) = (root.join("var/lib/dpkg/status"), work.path().join("status"));
    fs::copy(&from, &status).at("copy", &from)?;
    let archives = work.path().join("archives");
    fs::create_dir(&archives).at("create", &archives)?;
    debian::download(&PACKAGES, &status, sources, &archives).run().await?;
    let mut built = Vec::new();
    for file in packages(&archives)? {
        built.push(Built::adopt(&file, directory).await?);
    }
    remove_tree(work.path())?;
    repository::publish(directory, &built, "site", Timestamp::now()).await
}

fn packages(archives: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for entry in fs::read_dir(archives).at("list", archives)? {
        let path = entry.at("list", archives)?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_index() {
        let index = "Package: libhaproxy\nVersion: 9\n\n\
            Package: haproxy\nArchitecture: amd64\nVersion: 2.6.12-1+deb12u4\n\n\
            Package: keepalived\nVersion: 1:2.2.7-1+b2\nDepends: haproxy\n";
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("Packages"), index).unwrap();
        let versions = versions(directory.path()).unwrap();
        assert_eq!(
            versions,
            [("haproxy", "2.6.12-1+deb12u4".to_owned()), ("keepalived", "1:2.2.7-1+b2".to_owned())]
        );
        fs::write(directory.path().join("Packages"), "Package: haproxy\nVersion: 1\n").unwrap();
        assert!(super::versions(directory.path()).is_err());
    }
}
