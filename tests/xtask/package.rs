//! The Debian package of node-agent, for hosts that are not a test's.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context, ensure};
use images::steps::Steps;
use serde::Deserialize;

use crate::cargo;

/// The package of the agent.
pub(crate) const AGENT: &str = "node-agent";

/// Builds the program and the package; gives where the package is: `target/debian/`.
pub(crate) async fn run(debug: bool, steps: &Steps) -> anyhow::Result<PathBuf> {
    let program = steps.step("build node-agent", build(AGENT, profile(debug))).await?;
    // target/<profile>/node-agent
    let directory = program.ancestors().nth(2).context("node-agent is not below target/")?.join("debian");
    let package = images::agent::package(&program, env!("CARGO_PKG_VERSION"), &directory);
    Ok(steps.step("write the package", package).await?)
}

/// The profile node-agent is packaged in.
pub(crate) const fn profile(debug: bool) -> &'static str {
    if debug { "dev" } else { "agent" }
}

/// Builds a package's program alone: together with the tests it would have features that only they ask for.
pub(crate) async fn build(name: &str, profile: &str) -> anyhow::Result<PathBuf> {
    let output = cargo()
        .args(["build", "--quiet", "--message-format=json-render-diagnostics"])
        .args(["--package", name, "--profile", profile])
        .stderr(Stdio::inherit())
        .output()
        .await?;
    ensure!(output.status.success(), "{name} does not build");
    let found = String::from_utf8_lossy(&output.stdout).lines().find_map(|line| parse_program(name, line));
    found.with_context(|| format!("cargo does not say where {name} is"))
}

/// A program, if a line of cargo's output tells of it.
fn parse_program(name: &str, line: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Artifact {
        target: Target,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }
    let artifact: Artifact = serde_json::from_str(line).ok()?;
    artifact.executable.filter(|_| artifact.target.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_what_cargo_says() {
        let line = |name: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"name":"{name}"}},"executable":{executable}}}"#
            )
        };
        let path = PathBuf::from("/w/target/release/node-agent");
        assert_eq!(parse_program(AGENT, &line("node-agent", "\"/w/target/release/node-agent\"")), Some(path));
        assert_eq!(parse_program(AGENT, &line("node-agent", "null")), None);
        assert_eq!(parse_program(AGENT, &line("build-script", "\"/w/build\"")), None);
        assert_eq!(parse_program(AGENT, "{\"reason\":\"build-finished\"}"), None);
    }
}
