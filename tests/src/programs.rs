//! The programs under test, as they were just built.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context, ensure};
use program::Program;

/// Where each program is.
#[derive(Debug)]
struct Programs {
    infrop: PathBuf,
    node_agent: PathBuf,
}

impl Programs {
    /// All of them; the first call builds them, so that a test never sees an older one.
    fn get() -> anyhow::Result<&'static Self> {
        static PROGRAMS: OnceLock<Result<Programs, String>> = OnceLock::new();
        let programs = PROGRAMS.get_or_init(|| Self::build().map_err(|error| format!("{error:#}")));
        programs.as_ref().map_err(|error| anyhow::anyhow!("cannot build the programs under test: {error}"))
    }

    fn build() -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tests have no workspace")?;
        // The whole workspace, as the tests themselves are built: one package alone has other features.
        let output =
            cargo().args(["build", "--quiet", "--workspace", "--bins"]).current_dir(root).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // target/debug/deps/<suite> and target/debug/xtask both lie below target/debug.
        let this = env::current_exe()?;
        let find = |name: &str| {
            let found = this.ancestors().map(|directory| directory.join(name)).find(|path| path.is_file());
            found.with_context(|| format!("{name} is not where cargo puts it"))
        };
        Ok(Self { infrop: find("infrop")?, node_agent: find("node-agent")? })
    }
}

/// Cargo, called from a program that cargo runs: without what it tells such a program about its package,
/// which would make dependencies look changed.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Where the infrop program is.
pub fn infrop_path() -> anyhow::Result<&'static Path> {
    Ok(&Programs::get()?.infrop)
}

/// Where the node-agent program is.
pub fn node_agent_path() -> anyhow::Result<&'static Path> {
    Ok(&Programs::get()?.node_agent)
}

/// The infrop command line.
pub fn infrop() -> anyhow::Result<Program> {
    Ok(Program::new(infrop_path()?))
}
