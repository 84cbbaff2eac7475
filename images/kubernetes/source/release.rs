//! Programs from the official release downloads, each with its published checksum.

use std::{
    error::Error as StdError,
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use flate2::read::GzDecoder;
use reqwest::StatusCode;

use crate::{
    Error,
    digest::Hashing,
    error::At,
    kubernetes::{
        component::{ARCHITECTURE, Binary, Component, Release},
        source::Order,
    },
    steps::Steps,
};

/// A host that cannot be reached says so at once or is behind a filter; longer waits help nobody.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Without a byte for this long, a download is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Checksum files are short; anything longer is something else.
const CHECKSUM_LIMIT: usize = 64 << 10;

/// The hosts that publish releases. Another address (a mirror, a test) keeps their paths.
#[derive(Debug, Clone)]
pub struct Servers {
    /// Kubernetes' programs.
    pub kubernetes: String,
    /// The release pages of etcd, CoreDNS and containerd.
    pub github: String,
}

impl Default for Servers {
    fn default() -> Self {
        Self { kubernetes: "https://dl.k8s.io/release".to_owned(), github: "https://github.com".to_owned() }
    }
}

/// Whether the release servers can be used.
pub(super) enum Reach {
    Yes,
    /// Why not.
    No(String),
    /// They can, but this file of a release is not there.
    NotFound(String),
}

/// A file to download and where its checksum stands.
#[derive(Debug, PartialEq, Eq)]
struct Download {
    url: String,
    checksum_url: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    servers: Servers,
}

impl Client {
    pub(super) fn new(servers: Servers) -> Result<Self, Error> {
        // Only the first call of the process installs it; that one is ours or equal to ours.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .build()
            .map_err(|source| download_error(&servers.kubernetes, source))?;
        Ok(Self { http, servers })
    }

    /// Asks each server for a small file of a release.
    pub(super) async fn reach(&self, releases: &[&Release]) -> Reach {
        for release in releases {
            let url = match archive(&self.servers, release) {
                Some(download) => download.checksum_url,
                None => kubernetes_url(&self.servers, &release.version, "kubeadm") + ".sha256",
            };
            match self.http.get(&url).send().await {
                Ok(answer) if answer.status().is_success() => {}
                Ok(answer) if answer.status() == StatusCode::NOT_FOUND => return Reach::NotFound(url),
                Ok(answer) => return Reach::No(format!("{url} answers {}", answer.status())),
                Err(error) => return Reach::No(root_cause(&error)),
            }
        }
        Reach::Yes
    }

    pub(super) async fn fetch(&self, order: &Order<'_>, steps: &Steps) -> Result<(), Error> {
        let Order { release, binaries, bin, work } = order;
        if let Some(download) = archive(&self.servers, release) {
            let target = work.join(format!("{}.tar.gz", release.component.name()));
            steps.step(format_args!("download {release}"), self.download(&download, &target)).await?;
            return match unpack(&target, binaries, bin)? {
                None => Ok(()),
                Some(name) => {
                    Err(Error::Download { url: download.url, source: format!("it has no {name}").into() })
                }
            };
        }
        for binary in *binaries {
            let url = kubernetes_url(&self.servers, &release.version, binary.name);
            let download = Download { checksum_url: format!("{url}.sha256"), url };
            let target = bin.join(binary.name);
            let what = format!("download {} of {release}", binary.name);
            steps.step(what, self.download(&download, &target)).await?;
            make_executable(&target)?;
        }
        Ok(())
    }

    /// Downloads to `target` and compares with the published checksum.
    async fn download(&self, download: &Download, target: &Path) -> Result<(), Error> {
        let Download { url, checksum_url } = download;
        let expected = self.published_checksum(url, checksum_url).await?;
        let mut answer = self.get(url).await?;
        let file = fs::File::create(target).at("write", target)?;
        let mut file = Hashing::new(io::BufWriter::new(file));
        while let Some(chunk) = answer.chunk().await.map_err(|source| download_error(url, source))? {
            file.write_all(&chunk).at("write", target)?;
        }
        file.flush().at("write", target)?;
        let (actual, ..) = file.finish();
        if actual != expected {
            return Err(Error::Checksum { what: url.clone(), expected, actual });
        }
        Ok(())
    }

    async fn get(&self, url: &str) -> Result<reqwest::Response, Error> {
        let answer = self.http.get(url).send().await.and_then(reqwest::Response::error_for_status);
        answer.map_err(|source| download_error(url, source))
    }

    async fn published_checksum(&self, url: &str, checksum_url: &str) -> Result<String, Error> {
        let mut answer = self.get(checksum_url).await?;
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|source| download_error(checksum_url, source))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > CHECKSUM_LIMIT {
                break;
            }
        }
        let name = url.rsplit('/').next().unwrap_or_default();
        find_checksum(&String::from_utf8_lossy(&bytes), name).ok_or_else(|| Error::Download {
            url: checksum_url.to_owned(),
            source: format!("it has no sha256 for {name}").into(),
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", self.servers.kubernetes, self.servers.github)
    }
}

fn kubernetes_url(servers: &Servers, version: &str, binary: &str) -> String {
    format!("{}/v{version}/bin/linux/{ARCHITECTURE}/{binary}", servers.kubernetes)
}

/// The archive of a component; none for Kubernetes, whose programs are published one by one.
fn archive(servers: &Servers, release: &Release) -> Option<Download> {
    let Release { component, version } = release;
    let (project, file, checksum) = match component {
        Component::Kubernetes => return None,
        Component::Etcd => {
            ("etcd-io/etcd", format!("etcd-v{version}-linux-{ARCHITECTURE}.tar.gz"), "SHA256SUMS".to_owned())
        }
        Component::CoreDns => {
            let file = format!("coredns_{version}_linux_{ARCHITECTURE}.tgz");
            ("coredns/coredns", file.clone(), file + ".sha256")
        }
        // The static build runs whatever the host's C library is.
        Component::Containerd => {
            let file = format!("containerd-static-{version}-linux-{ARCHITECTURE}.tar.gz");
            ("containerd/containerd", file.clone(), file + ".sha256sum")
        }
    };
    let base = format!("{}/{project}/releases/download/v{version}", servers.github);
    Some(Download { url: format!("{base}/{file}"), checksum_url: format!("{base}/{checksum}") })
}

/// The checksum of `name` in a file that has one bare checksum, or lines of checksum and name.
fn find_checksum(text: &str, name: &str) -> Option<String> {
    let is_sha256 = |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let sum = words.next().filter(|word| is_sha256(word))?;
        let matches =
            words.next().is_none_or(|file| file.trim_start_matches('*').rsplit('/').next() == Some(name));
        matches.then(|| sum.to_lowercase())
    })
}

/// Takes the programs out of an archive, wherever in it they are; gives the first that is not there.
fn unpack(archive: &Path, binaries: &[Binary], bin: &Path) -> Result<Option<&'static str>, Error> {
    let file = fs::File::open(archive).at("read", archive)?;
    let mut tar = tar::Archive::new(GzDecoder::new(file));
    let mut missing: Vec<&'static str> = binaries.iter().map(|binary| binary.name).collect();
    for entry in tar.entries().at("unpack", archive)? {
        let mut entry = entry.at("unpack", archive)?;
        let path: PathBuf = entry.path().at("unpack", archive)?.into_owned();
        let Some(index) = missing.iter().position(|name| path.file_name() == Some(name.as_ref())) else {
            continue;
        };
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let target = bin.join(missing.remove(index));
        let mut file = fs::File::create(&target).at("write", &target)?;
        io::copy(&mut entry, &mut file).at("write", &target)?;
        make_executable(&target)?;
    }
    Ok(missing.first().copied())
}

fn make_executable(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).at("set the mode of", path)
}

fn download_error(url: &str, source: reqwest::Error) -> Error {
    Error::Download { url: url.to_owned(), source: source.without_url().into() }
}

fn root_cause(error: &dyn StdError) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF";

    #[test]
    fn checksums_are_found_in_the_three_published_forms() {
        let lower = SUM.to_lowercase();
        for text in [
            SUM.to_owned(),
            format!("{SUM}\n"),
            format!("{SUM}  file.tgz\n"),
            format!("{}  other\n{SUM} *dist/file.tgz\n", "0".repeat(64)),
        ] {
            assert_eq!(find_checksum(&text, "file.tgz").as_deref(), Some(lower.as_str()), "{text}");
        }
        for text in ["", "<html>", &format!("{SUM}  other.tgz"), &SUM[1..]] {
            assert_eq!(find_checksum(text, "file.tgz"), None, "{text}");
        }
    }

    #[test]
    fn archives_are_asked_for_under_the_publishers_paths() {
        let servers = Servers { kubernetes: "k".into(), github: "g".into() };
        let url = |component, version: &str| archive(&servers, &Release::new(component, version)).unwrap();
        assert_eq!(
            url(Component::Etcd, "3.7.0"),
            Download {
                url: "g/etcd-io/etcd/releases/download/v3.7.0/etcd-v3.7.0-linux-amd64.tar.gz".into(),
                checksum_url: "g/etcd-io/etcd/releases/download/v3.7.0/SHA256SUMS".into(),
            }
        );
        assert_eq!(
            url(Component::CoreDns, "1.14.6").checksum_url,
            "g/coredns/coredns/releases/download/v1.14.6/coredns_1.14.6_linux_amd64.tgz.sha256"
        );
        assert_eq!(
            url(Component::Containerd, "2.4.2").url,
            "g/containerd/containerd/releases/download/v2.4.2/containerd-static-2.4.2-linux-amd64.tar.gz"
        );
        assert_eq!(kubernetes_url(&servers, "1.37.1", "kubelet"), "k/v1.37.1/bin/linux/amd64/kubelet");
    }
}
