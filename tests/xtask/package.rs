//! The Debian package of node-agent, for hosts that are not a test's.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context, ensure};
use images::steps::Steps;
use serde::Deserialize;

use crate::cargo;

/// Builds the program and the package; gives where the package is: `target/debian/`.
pub(crate) async fn run(debug: bool, steps: &Steps) -> anyhow::Result<PathBuf> {
    let program = steps.step("build node-agent", build(debug)).await?;
    // target/<profile>/node-agent
    let directory = program.ancestors().nth(2).context("node-agent is not below target/")?.join("debian");
    let package = images::agent::package(&program, env!("CARGO_PKG_VERSION"), &directory);
    Ok(steps.step("write the package", package).await?)
}

/// The agent alone: together with the tests it would have features that only they ask for.
pub(crate) async fn build(debug: bool) -> anyhow::Result<PathBuf> {
    let output = cargo()
        .args(["build", "--quiet", "--package", "node-agent", "--message-format=json-render-diagnostics"])
        .args(["--profile", if debug { "dev" } else { "agent" }])
        .stderr(Stdio::inherit())
        .output()
        .await?;
    ensure!(output.status.success(), "node-agent does not build");
    let found = String::from_utf8_lossy(&output.stdout).lines().find_map(parse_program);
    found.context("cargo does not say where node-agent is")
}

/// The agent's program, if a line of cargo's output tells of it.
fn parse_program(line: &str) -> Option<PathBuf> {
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
    artifact.executable.filter(|_| artifact.target.name == "node-agent")
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
        assert_eq!(parse_program(&line("node-agent", "\"/w/target/release/node-agent\"")), Some(path));
        assert_eq!(parse_program(&line("node-agent", "null")), None);
        assert_eq!(parse_program(&line("build-script", "\"/w/build\"")), None);
        assert_eq!(parse_program("{\"reason\":\"build-finished\"}"), None);
    }
}
