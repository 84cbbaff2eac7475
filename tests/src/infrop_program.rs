//! The infrop program under test, as it was just built.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context, ensure};
use program::Program;

/// Where the infrop program is; the first call builds it, so that a test never sees an older one.
pub fn infrop_path() -> anyhow::Result<&'static Path> {
    static PATH: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let path = PATH.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    path.as_deref().map_err(|error| anyhow::anyhow!("cannot build infrop: {error}"))
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

fn build() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tests have no workspace")?;
    // The whole workspace, as the tests themselves are built: one package alone has other features.
    let output = cargo().args(["build", "--quiet", "--workspace", "--bins"]).current_dir(root).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // target/debug/deps/<suite> and target/debug/xtask both lie below target/debug.
    let this = env::current_exe()?;
    let found = this.ancestors().map(|directory| directory.join("infrop")).find(|path| path.is_file());
    found.context("it is not where cargo puts it")
}

/// The infrop command line.
pub fn infrop() -> anyhow::Result<Program> {
    Ok(Program::new(infrop_path()?))
}
