//! Debian packages: those of the bundle, the agent's, those that tests make, and Debian's own.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use program::Program;

use crate::{Error, error::At, kubernetes::ARCHITECTURE, sha256_file};

const MAINTAINER: &str = "infrop <infrop@caos.ch>";

/// The time that packaged files are from, at the latest: the year 2020, as good as any.
const SOURCE_DATE_EPOCH: &str = "1577836800";

/// A package to build.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its name.
    pub name: &'static str,
    /// With the revision, where there is one.
    pub version: String,
    /// What it needs; empty for nothing.
    pub depends: &'static str,
    /// What usually comes with it; empty for nothing.
    pub recommends: &'static str,
    /// One line.
    pub description: &'static str,
    /// Its files.
    pub files: Vec<PackagedFile>,
    /// Runs after unpacking; empty for none.
    pub postinst: &'static str,
    /// Runs before removal; empty for none.
    pub prerm: &'static str,
    /// Runs after removal and when it is purged; empty for none.
    pub postrm: &'static str,
}

/// A file of a package.
#[derive(Debug, Clone)]
pub enum PackagedFile {
    /// A program, copied from the build.
    Program {
        /// Where it is now.
        from: PathBuf,
        /// Where it will be.
        to: &'static str,
    },
    /// A text, mode 644.
    Text {
        /// The text.
        text: &'static str,
        /// Where it will be.
        to: &'static str,
    },
    /// An empty directory, mode 755.
    Directory {
        /// Where it will be.
        to: &'static str,
    },
}

/// A package that was built, with what an index says of it.
#[derive(Debug, Clone)]
pub struct Built {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The file's name.
    pub file_name: String,
    /// The stanza of the repository's index.
    pub index_entry: String,
}

impl Package {
    /// Builds the package into `directory`, with `work` as scratch.
    pub async fn build(&self, directory: &Path, work: &Path) -> Result<Built, Error> {
        let tree = work.join(format!("deb-{}", self.name));
        let size = self.lay_out(&tree)?;
        let control = self.control(size);
        let meta = tree.join("DEBIAN");
        fs::create_dir_all(&meta).at("create", &meta)?;
        write(&meta.join("control"), control.as_bytes(), 0o644)?;
        for (name, script) in [("postinst", self.postinst), ("prerm", self.prerm), ("postrm", self.postrm)] {
            if !script.is_empty() {
                write(&meta.join(name), script.as_bytes(), 0o755)?;
            }
        }
        let file_name = format!("{}_{}_{ARCHITECTURE}.deb", self.name, self.version);
        let file = directory.join(&file_name);
        // zstd: a quarter of xz's time to pack, and hosts unpack it while others wait for them.
        Program::new("dpkg-deb")
            .args(["--root-owner-group", "-Zzstd", "-z3", "--build"])
            // The same files make the same package: whoever compares hashes sees a change only where there is one.
            .env("SOURCE_DATE_EPOCH", SOURCE_DATE_EPOCH)
            .args([&tree, &file])
            .timeout(Duration::from_mins(10))
            .run()
            .await?;
        let index_entry = index_entry(&control, &file, &file_name)?;
        Ok(Built { name: self.name.to_owned(), version: self.version.clone(), file_name, index_entry })
    }

    /// Puts all files in their places; gives their size in KiB.
    fn lay_out(&self, tree: &Path) -> Result<u64, Error> {
        let mut bytes = 0;
        for file in &self.files {
            let (PackagedFile::Program { to, .. }
            | PackagedFile::Text { to, .. }
            | PackagedFile::Directory { to }) = file;
            let target = tree.join(to.trim_start_matches('/'));
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent).at("create", parent)?;
            }
            match file {
                PackagedFile::Program { from, .. } => {
                    fs::copy(from, &target).at("copy", from)?;
                    set_mode(&target, 0o755)?;
                }
                PackagedFile::Text { text, .. } => write(&target, text.as_bytes(), 0o644)?,
                PackagedFile::Directory { .. } => {
                    fs::create_dir_all(&target).at("create", &target)?;
                    set_mode(&target, 0o755)?;
                    continue;
                }
            }
            bytes += target.metadata().at("read", &target)?.len();
        }
        Ok(bytes.div_ceil(1024))
    }

    fn control(&self, installed_size: u64) -> String {
        let mut text = String::new();
        let size = installed_size.to_string();
        for (field, value) in [
            ("Package", self.name),
            ("Version", &self.version),
            ("Architecture", ARCHITECTURE),
            ("Maintainer", MAINTAINER),
            ("Installed-Size", &size),
            ("Depends", self.depends),
            ("Recommends", self.recommends),
            ("Section", "admin"),
            ("Priority", "optional"),
            ("Description", self.description),
        ] {
            if !value.is_empty() {
                let _ = writeln!(text, "{field}: {value}");
            }
        }
        text
    }
}

impl Built {
    /// Moves a package that somebody else built into `directory`.
    pub async fn adopt(file: &Path, directory: &Path) -> Result<Self, Error> {
        let control = Program::new("dpkg-deb").arg("--field").arg(file).run().await?;
        let [name, version, architecture] = ["Package", "Version", "Architecture"].map(|field| {
            let value = control.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
            value.map(|value| value.trim().to_owned()).unwrap_or_default()
        });
        // Without the epoch, as Debian's own archive names files: a colon means something in addresses.
        let without_epoch = version.split_once(':').map_or(version.as_str(), |(_, version)| version);
        let file_name = format!("{name}_{without_epoch}_{architecture}.deb");
        let target = directory.join(&file_name);
        fs::rename(file, &target).at("move", file)?;
        let index_entry = index_entry(&control, &target, &file_name)?;
        Ok(Self { name, version, file_name, index_entry })
    }
}

fn index_entry(control: &str, file: &Path, file_name: &str) -> Result<String, Error> {
    let length = file.metadata().at("read", file)?.len();
    let control = control.trim_end();
    Ok(format!("{control}\nFilename: ./{file_name}\nSize: {length}\nSHA256: {}\n", sha256_file(file)?))
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    fs::write(path, bytes).at("write", path)?;
    set_mode(path, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).at("set the mode of", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_leaves_empty_fields_out() {
        let package = Package {
            name: "kubectl",
            version: "1.37.1-1.1".into(),
            depends: "",
            recommends: "bash-completion",
            description: "command line client of Kubernetes",
            files: Vec::new(),
            postinst: "",
            prerm: "",
            postrm: "",
        };
        assert_eq!(
            package.control(7),
            "Package: kubectl\nVersion: 1.37.1-1.1\nArchitecture: amd64\nMaintainer: infrop <infrop@caos.ch>\n\
             Installed-Size: 7\nRecommends: bash-completion\nSection: admin\nPriority: optional\n\
             Description: command line client of Kubernetes\n"
        );
    }
}
