//! The Debian package of node-agent: the program, its unit, and what happens when they come and go.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Error,
    error::At,
    package::{Package, PackagedFile},
};

/// The unit, as it is installed.
const SERVICE: &str = include_str!("../../systemd/node-agent.service");

/// What the program is linked with, in dpkg-shlibdeps' words, and what it cannot work without. Not kubeadm or
/// containerd: installing them is the agent's work.
const DEPENDS: &str = "apt, libc6 (>= 2.34), libgcc-s1 (>= 4.2), systemd";

/// Makes `node-agent_VERSION_ARCHITECTURE.deb` of a built program in `directory` and gives its path.
///
/// It appears there by one rename: whoever finds it, finds all of it, also while others make the same.
pub async fn package(program: &Path, version: &str, directory: &Path) -> Result<PathBuf, Error> {
    fs::create_dir_all(directory).at("create", directory)?;
    let work = tempfile::tempdir_in(directory).at("create a directory in", directory)?;
    let built = contents(program, version).build(work.path(), work.path()).await?;
    let (from, to) = (work.path().join(&built.file_name), directory.join(&built.file_name));
    fs::rename(&from, &to).at("rename", &from)?;
    Ok(to)
}

fn contents(program: &Path, version: &str) -> Package {
    Package {
        name: "node-agent",
        version: debian_version(version),
        depends: DEPENDS,
        recommends: "",
        description: "brings this host to its desired software versions",
        files: vec![
            PackagedFile::Program { from: program.to_owned(), to: "/usr/bin/node-agent" },
            PackagedFile::Text { text: SERVICE, to: "/usr/lib/systemd/system/node-agent.service" },
            // Without config.yaml: a missing file means the defaults, and a conffile would make apt ask questions.
            PackagedFile::Directory { to: "/etc/node-agent" },
            PackagedFile::Text { text: include_str!("copyright"), to: "/usr/share/doc/node-agent/copyright" },
        ],
        postinst: include_str!("postinst"),
        prerm: include_str!("prerm"),
        postrm: include_str!("postrm"),
    }
}

/// A pre-release comes before its release: semver says so with a hyphen, Debian with a tilde.
fn debian_version(version: &str) -> String {
    version.replacen('-', "~", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pre_release_is_older_than_its_release_for_apt() {
        assert_eq!(debian_version("0.2.0-rc.1"), "0.2.0~rc.1");
        assert_eq!(debian_version("0.2.0"), "0.2.0");
    }

    #[test]
    fn the_unit_starts_the_program_that_is_installed() {
        let installed = |path: &str| {
            contents(Path::new("agent"), "0.1.0")
                .files
                .iter()
                .any(|file| matches!(file, PackagedFile::Program { to, .. } if *to == path))
        };
        let command = SERVICE.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        assert!(installed(command.split(' ').next().unwrap()), "{command}");
    }
}
