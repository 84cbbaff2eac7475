//! Running all tests: set up, build, then the cluster tests beside the others, for they mostly wait.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use ::tests::harness::is_ci;
use anyhow::{Context, ensure};
use images::steps::Steps;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::Command,
};

use crate::cargo;

/// Suites on hosts.
const HOST_SUITES: [&str; 7] =
    ["lab", "agent_package", "agent_host", "agent_cluster", "first_cluster", "apply", "rollout"];

/// The longest suites. They spend their minutes waiting for kubeadm, one after the other, beside all others.
const CLUSTER_SUITES: [&str; 2] = ["first_cluster", "agent_cluster"];

/// What no call may fail in, also on two cores: it runs alone, at the end.
const LONE_SUITE: &str = "rollout";

/// The longest suite without hosts, which runs beside the others if there are no clusters to wait for.
const LONGEST_QUICK_SUITE: [&str; 1] = ["agent_api"];

/// A test program that cargo built.
#[derive(Debug, Clone)]
struct Suite {
    name: String,
    executable: PathBuf,
    directory: PathBuf,
}

/// How many tests passed, failed and were skipped, and what the failed ones said.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
    failures: Vec<String>,
}

/// Runs everything; false if a test failed.
pub(crate) async fn run(quick: bool, steps: &Steps) -> anyhow::Result<bool> {
    let started = Instant::now();
    ::tests::setup::run(is_ci(), steps).await?;
    let suites = steps.step("build the tests", build()).await?;
    let wanted = |suite: &Suite| !quick || !HOST_SUITES.contains(&suite.name.as_str());
    let apart = if quick { &LONGEST_QUICK_SUITE[..] } else { &CLUSTER_SUITES[..] };
    let (lone, suites): (Vec<Suite>, Vec<Suite>) =
        suites.into_iter().filter(wanted).partition(|suite| suite.name == LONE_SUITE);
    let (long, others): (Vec<Suite>, Vec<Suite>) =
        suites.into_iter().partition(|suite| apart.contains(&suite.name.as_str()));
    let others = async {
        let mut tally = run_all(&others, steps).await?;
        tally.add(steps.step("test the documentation", run_documentation()).await?);
        anyhow::Ok(tally)
    };
    let (mut total, others) = tokio::try_join!(run_all(&long, steps), others)?;
    total.add(others);
    total.add(run_all(&lone, steps).await?);
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    println!("all tests, set-up included, took {minutes:.1} minutes");
    let Tally { passed, failed, skipped, failures } = total;
    // Once more at the end: whoever sees only the end of a log must learn what failed.
    for line in failures {
        println!("{line}");
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}

/// Builds all test programs of the workspace.
async fn build() -> anyhow::Result<Vec<Suite>> {
    let output = cargo()
        .args(["test", "--workspace", "--no-run", "--quiet", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .await?;
    ensure!(output.status.success(), "the tests do not build");
    let suites: Vec<Suite> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(parse_artifact).collect();
    ensure!(!suites.is_empty(), "cargo built no tests");
    Ok(suites)
}

/// The test program that a line of cargo's output tells of, if it does.
fn parse_artifact(line: &str) -> Option<Suite> {
    #[derive(Deserialize)]
    struct Artifact {
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    let artifact: Artifact = serde_json::from_str(line).ok()?;
    let executable = artifact.executable.filter(|_| artifact.profile.test)?;
    let directory = artifact.manifest_path.parent().map(Path::to_owned)?;
    Some(Suite { name: artifact.target.name, executable, directory })
}

async fn run_all(suites: &[Suite], steps: &Steps) -> anyhow::Result<Tally> {
    let mut total = Tally::default();
    for suite in suites {
        let mut command = Command::new(&suite.executable);
        command.current_dir(&suite.directory);
        total.add(steps.step(format_args!("run {}", suite.name), run_one(&suite.name, command)).await?);
    }
    Ok(total)
}

async fn run_documentation() -> anyhow::Result<Tally> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--doc", "--quiet"]);
    run_one("doc", command).await
}

/// Runs one program, showing its lines with its name before them.
async fn run_one(name: &str, mut command: Command) -> anyhow::Result<Tally> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (one, two) = tokio::try_join!(show(name, stdout), show(name, stderr))?;
    let status = child.wait().await?;
    let mut tally = one;
    tally.add(two);
    // A program that dies before it counts is a failure, too.
    if !status.success() && tally.failed == 0 {
        let line = format!("{name} | it ended with {status}");
        println!("{line}");
        tally.failures.push(line);
        tally.failed = 1;
    }
    Ok(tally)
}

async fn show(name: &str, pipe: Option<impl AsyncRead + Unpin>) -> anyhow::Result<Tally> {
    let mut total = Tally::default();
    let Some(pipe) = pipe else { return Ok(total) };
    let mut lines = BufReader::new(pipe).lines();
    let mut tells_failures = false;
    while let Some(line) = lines.next_line().await? {
        let shown = format!("{name} | {line}");
        if !line.trim().is_empty() {
            println!("{shown}");
        }
        tells_failures = (tells_failures || line == "failures:") && !line.starts_with("test result: ");
        if tells_failures {
            total.failures.push(shown);
        }
        total.add(Tally::parse(&line));
    }
    Ok(total)
}

impl Tally {
    /// The counts in a closing line, such as `test result: ok. 5 passed; 0 failed; 1 ignored; ...`.
    fn parse(line: &str) -> Self {
        let mut tally = Self::default();
        let Some(counts) = line.trim().strip_prefix("test result: ") else { return tally };
        for part in counts.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(count)), Some(what)) = (words.next().map(str::parse), words.next()) else {
                continue;
            };
            match what {
                "passed" => tally.passed = count,
                "failed" => tally.failed = count,
                "ignored" => tally.skipped = count,
                _ => {}
            }
        }
        tally
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted_and_others_are_not() {
        let line = "test result: FAILED. 5 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.50s";
        assert_eq!(Tally::parse(line), Tally { passed: 5, failed: 2, skipped: 1, failures: vec![] });
        assert_eq!(Tally::parse("test a ... ok"), Tally::default());
    }

    #[tokio::test]
    async fn what_failed_tests_said_is_kept_for_the_end() {
        let output = "test a ... FAILED\nfailures:\n---- a ----\ntoo late\nfailures:\n    a\n\
                      test result: FAILED. 0 passed; 1 failed; 0 ignored\nlater";
        let tally = show("lab", Some(output.as_bytes())).await.unwrap();
        assert_eq!(
            tally.failures,
            ["lab | failures:", "lab | ---- a ----", "lab | too late", "lab | failures:", "lab |     a"]
        );
    }

    #[test]
    fn only_test_programs_are_taken_from_cargos_output() {
        let artifact = |test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{{"name":"lab"}},
                "profile":{{"test":{test}}},"executable":"/w/target/debug/deps/lab-1"}}"#
            )
        };
        assert_eq!(parse_artifact(&artifact(true)).unwrap().directory, Path::new("/w/tests"));
        assert!(parse_artifact(&artifact(false)).is_none());
        assert!(parse_artifact("{\"reason\":\"build-finished\"}").is_none());
    }
}
