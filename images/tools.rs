//! Programs of the machine that building and lab hosts need, and the Debian packages they come in.

use std::{env, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use program::Program;

use crate::{Error, steps::Steps};

/// A program and the Debian package that has it.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// The program's name in PATH.
    pub program: &'static str,
    /// The package's name; several where one is not enough, with spaces between.
    pub package: &'static str,
}

/// Shorthand for a table of tools.
pub const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package }
}

/// Where a program is. The sbin directories count also where PATH leaves them out.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(program))
        .find(|file| {
            file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

/// The Debian packages, in order, of those of `tools` that are not there. Installs nothing.
pub fn missing(tools: &[Tool]) -> Vec<&'static str> {
    let missing = tools.iter().filter(|tool| find(tool.program).is_none());
    let mut packages: Vec<&str> = missing.flat_map(|tool| tool.package.split_whitespace()).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Makes sure that all `tools` are there: as root on Debian it installs what is missing, after saying so;
/// elsewhere it says what to install.
pub async fn ensure(tools: &[Tool], steps: &Steps) -> Result<(), Error> {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| find(tool.program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = self::missing(tools);
    let list = packages.join(" ");
    let refuse = |advice: String| {
        let programs = missing.iter().map(|tool| tool.program).collect::<Vec<_>>().join(", ");
        Err(Error::MissingTools { programs, advice })
    };
    if find("apt-get").is_none() {
        return refuse(format!("install what Debian calls {list}"));
    }
    if !nix::unistd::geteuid().is_root() {
        return refuse(format!("run `apt-get install {list}` as root"));
    }
    steps
        .step(format_args!("install with apt-get: {list}"), async {
            apt_get().arg("update").run().await?;
            apt_get().args(["install", "--yes", "--no-install-recommends"]).args(&packages).run().await
        })
        .await?;
    Ok(())
}

fn apt_get() -> Program {
    // A mirror can be slow; another apt may hold the lock for a while.
    Program::new("apt-get")
        .args(["--quiet", "-o", "DPkg::Lock::Timeout=300"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .timeout(Duration::from_mins(15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_directories_are_not_programs() {
        assert!(find("sh").is_some_and(|path| path.is_absolute()));
        assert!(find("no-such-program").is_none());
        assert!(find("").is_none());
    }
}
