//! Programs built from the public Go modules, by the machine's Go through its module proxy.
//!
//! `k8s.io/kubernetes` cannot be installed by `go install`: its go.mod replaces the staging modules by
//! directories that the published module lacks. A small module of ours requires it and replaces them by the
//! published staging modules of the same release. For the pinned versions that module is part of this
//! project, go.sum included; for others it is written here and its sums come from Go's checksum database.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use program::Program;
use serde::Deserialize;

use crate::{
    Error,
    error::At,
    kubernetes::{
        component::{ARCHITECTURE, Component, Release},
        pins,
        source::Order,
    },
    steps::Steps,
};

/// The API server takes five minutes cold on two cores; a slow machine may take six times that.
const BUILD_TIMEOUT: Duration = Duration::from_mins(30);

pub(super) async fn build(order: &Order<'_>, steps: &Steps) -> Result<(), Error> {
    let Order { release, binaries, bin, work } = order;
    let directory = work.join(format!("{}-{}", release.component.name(), release.version));
    if !directory.is_dir() {
        fs::create_dir_all(&directory).at("create", &directory)?;
        write_module(release, &directory, steps).await?;
        let download = go(&directory).args(["mod", "download"]);
        steps
            .step(format_args!("download the Go modules of {release}"), async {
                download.run().await.map_err(|error| explain(error, release))
            })
            .await?;
    }
    for binary in *binaries {
        let compile = go(&directory)
            .args(["build", "-trimpath", "-ldflags", &release.linker_flags(), "-o"])
            .arg(bin.join(binary.name))
            .arg(binary.package);
        steps
            .step(format_args!("compile {} of {release}", binary.name), async {
                compile.run().await.map_err(|error| explain(error, release))
            })
            .await?;
    }
    Ok(())
}

fn go(directory: &Path) -> Program {
    Program::new("go")
        .directory(directory)
        .env("CGO_ENABLED", "0")
        .env("GOOS", "linux")
        .env("GOARCH", ARCHITECTURE)
        // What the user set for work of their own must not change what is built.
        .env("GOWORK", "off")
        .env("GOFLAGS", "")
        .timeout(BUILD_TIMEOUT)
}

async fn write_module(release: &Release, directory: &Path, steps: &Steps) -> Result<(), Error> {
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).at("write", &path)
    };
    if let Some(pinned) = pins::module(release) {
        write("go.mod", pinned.go_mod)?;
        return write("go.sum", pinned.go_sum);
    }
    let upstream = upstream_go_mod(release, directory).await?;
    write("go.mod", &go_mod(release, &upstream))?;
    write("tools.go", &tools_go(release.component))?;
    let tidy = go(directory).args(["mod", "tidy"]);
    steps
        .step(format_args!("resolve the Go modules of {release}, which is not pinned here"), async {
            tidy.run().await.map_err(|error| explain(error, release))
        })
        .await?;
    Ok(())
}

/// The text of the release's own go.mod.
async fn upstream_go_mod(release: &Release, directory: &Path) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Downloaded {
        #[serde(rename = "GoMod")]
        go_mod: PathBuf,
    }
    let module = release.component.modules().first().copied().unwrap_or_default();
    let module = format!("{module}@v{}", release.version);
    let download = go(directory).args(["mod", "download"]);
    // Twice, the second time from disk: with -json, errors would not be on stderr.
    download.clone().arg(&module).run().await.map_err(|error| explain(error, release))?;
    let text = download.args(["-json", &module]).run().await?;
    let downloaded: Downloaded = serde_json::from_str(&text)
        .map_err(std::io::Error::other)
        .at("understand what `go mod download` says in", directory)?;
    fs::read_to_string(&downloaded.go_mod).at("read", &downloaded.go_mod)
}

/// A go.mod that requires the release with the same Go, debug settings and staging modules.
fn go_mod(release: &Release, upstream: &str) -> String {
    let mut text = format!("module infrop.caos.ch/images/{}\n\n", release.component.name());
    for line in upstream.lines().filter(|line| line.starts_with("go ") || line.starts_with("godebug default"))
    {
        let _ = writeln!(text, "{line}\n");
    }
    for module in release.component.modules() {
        let _ = writeln!(text, "require {module} v{}\n", release.version);
    }
    if release.component == Component::Kubernetes {
        let staging = release.version.replacen("1.", "v0.", 1);
        for line in upstream.lines() {
            if let Some((module, target)) = line.trim().trim_start_matches("replace ").split_once(" => ")
                && target.starts_with("./staging")
            {
                let _ = writeln!(text, "replace {module} => {module} {staging}");
            }
        }
    }
    text
}

/// A file that imports what is built: for `go mod tidy` only, which would drop what nobody imports.
fn tools_go(component: Component) -> String {
    let imports: String =
        component.binaries().iter().map(|binary| format!("\t_ \"{}\"\n", binary.package)).collect();
    format!("//go:build tools\n\npackage tools\n\nimport (\n{imports})\n")
}

fn unknown(release: &Release) -> Error {
    let component = release.component.name();
    Error::UnknownVersion {
        component: if component == "kubernetes" { "Kubernetes" } else { component },
        version: release.version.clone(),
    }
}

/// Go's errors are long; the common ones have a sentence of ours.
fn explain(error: program::Error, release: &Release) -> Error {
    classify(error.stderr(), release).unwrap_or(Error::Program(error))
}

fn classify(words: &str, release: &Release) -> Option<Error> {
    let says = |text: &str| words.contains(text);
    let line_with =
        |text: &str| words.lines().find(|line| line.contains(text)).unwrap_or_default().trim().to_owned();
    if says("checksum mismatch") {
        let sum = |prefix: &str| {
            let line = words.lines().map(str::trim).find_map(|line| line.strip_prefix(prefix));
            line.unwrap_or("unknown").trim().to_owned()
        };
        let mut what = line_with("checksum mismatch");
        what.truncate(what.find(": checksum mismatch").unwrap_or(what.len()));
        return Some(Error::Checksum {
            what: what.trim_start_matches("verifying ").to_owned(),
            expected: sum("go.sum:"),
            actual: sum("downloaded:"),
        });
    }
    let unreachable = [
        "connection refused",
        "no such host",
        "i/o timeout",
        "proxyconnect",
        "network is unreachable",
        "dial tcp",
    ];
    if let Some(sign) = unreachable.into_iter().find(|sign| says(sign)) {
        return Some(Error::ProxyUnreachable { detail: line_with(sign) });
    }
    ["unknown revision", "404 Not Found", "410 Gone", "invalid version"]
        .into_iter()
        .any(says)
        .then(|| unknown(release))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unpinned_kubernetes_gets_its_staging_modules_of_the_same_release() {
        let upstream = "module k8s.io/kubernetes\n\ngo 1.25.0\n\ngodebug default=go1.25\n\nrequire (\n\tk8s.io/api v0.0.0\n)\n\n\
            replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kubelet => ./staging/src/k8s.io/kubelet\n)\n";
        let text = go_mod(&Release::new(Component::Kubernetes, "1.35.8"), upstream);
        assert_eq!(
            text,
            "module infrop.caos.ch/images/kubernetes\n\ngo 1.25.0\n\ngodebug default=go1.25\n\n\
             require k8s.io/kubernetes v1.35.8\n\nreplace k8s.io/api => k8s.io/api v0.35.8\n\
             replace k8s.io/kubelet => k8s.io/kubelet v0.35.8\n"
        );
    }

    #[test]
    fn what_go_says_becomes_one_sentence() {
        let release = Release::new(Component::Kubernetes, "1.99.0");
        for (words, expected) in [
            (
                "go: k8s.io/kubernetes@v1.99.0: invalid version: unknown revision v1.99.0",
                "Kubernetes 1.99.0 is not known to the Go module proxy: check the number for a typing error",
            ),
            (
                "go: x: Get \"http://127.0.0.1:1/x\": dial tcp 127.0.0.1:1: connect: connection refused",
                "the Go module proxy cannot be reached (go: x: Get",
            ),
            (
                "verifying k8s.io/api@v0.36.4: checksum mismatch\n\tdownloaded: h1:aaa=\n\tgo.sum:     h1:bbb=\n",
                "k8s.io/api@v0.36.4 does not match its published checksum (published h1:bbb=, received h1:aaa=)",
            ),
        ] {
            let text = classify(words, &release).unwrap().to_string();
            assert!(text.starts_with(expected), "{text}");
        }
        assert!(classify("undefined: x", &release).is_none());
    }
}
