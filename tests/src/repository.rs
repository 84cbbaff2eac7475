//! A signed repository with packages that do what a test needs: fail, fill a disk, take their time.

use std::path::Path;

use anyhow::Context;
use images::{
    package::{Package, PackagedFile},
    repository,
};
use program::Program;

use crate::lab::TestLab;

/// Where hosts have it.
pub const PATH: &str = "/opt/test-repository";

/// A package to offer.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Its postinst; empty for none.
    pub postinst: &'static str,
    /// A file with this many MiB of noise.
    pub noise: Option<(&'static str, usize)>,
}

/// Makes a repository and puts it on a host.
pub async fn deliver(lab: &TestLab, host: &str, offers: &[Offer]) -> anyhow::Result<()> {
    let work = tempfile::tempdir()?;
    let directory = work.path().join("repository");
    std::fs::create_dir(&directory)?;
    let mut built = Vec::new();
    for Offer { name, version, postinst, noise } in offers {
        let mut files = Vec::new();
        if let Some((to, size)) = noise {
            let from = work.path().join("noise");
            // Noise, so that neither the package nor the disk makes it smaller.
            let count = format!("count={size}");
            let of = format!("of={}", from.display());
            Program::new("dd").args(["if=/dev/urandom", "bs=1M", &count, &of]).run().await?;
            files.push(PackagedFile::Program { from, to });
        }
        let package = Package {
            name,
            version: (*version).to_owned(),
            depends: "",
            recommends: "",
            description: "made by a test",
            files,
            postinst,
            prerm: "",
            postrm: "",
        };
        let scratch = tempfile::tempdir_in(work.path())?;
        built.push(package.build(&directory, scratch.path()).await?);
    }
    repository::publish(&directory, &built, "tests", jiff::Timestamp::now()).await?;
    copy(lab, host, &directory, work.path()).await
}

async fn copy(lab: &TestLab, host: &str, directory: &Path, work: &Path) -> anyhow::Result<()> {
    let archive = work.join("repository.tar");
    Program::new("tar").arg("-C").arg(directory).arg("-cf").arg(&archive).arg(".").run().await?;
    let remote = format!("{PATH}.tar");
    lab.run(host, &format!("mkdir -p {PATH}")).await?;
    lab.copy(host, &archive, &remote).await?;
    lab.run(host, &format!("tar -C {PATH} -xf {remote}")).await.context("unpacking the repository")?;
    Ok(())
}

/// Metadata of a host that takes packages from it.
pub fn metadata(host: &str, software: &str) -> String {
    format!(
        "apiVersion: infrop.caos.ch/v1alpha1\nkind: NodeMetadata\nnode: {host}\nsoftware: {software}\n\
         repositories:\n- {{ name: test, uri: 'file:{PATH}', suite: ./, keyFile: {PATH}/{} }}\n",
        repository::KEY_FILE
    )
}
