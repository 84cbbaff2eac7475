//! What a site checks on a node before it is given back: programs here, or a Job there.

use std::{path::PathBuf, time::Duration};

use program::Program;

use super::{error::Error, snapshot::Member};
use crate::{
    cluster::{self, JobManifest},
    desired::CheckName,
};

/// As much of an output as a message carries.
const OUTPUT_LIMIT: usize = 1024;

/// A check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Its name, for people.
    pub name: CheckName,
    /// What is done.
    pub probe: Probe,
    /// How long that may take.
    pub limit: Duration,
}

/// What a check does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// Runs a program where infrop runs; it is well if that ends with 0.
    Command {
        /// Its name, or its path.
        program: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// Variables of infrop's environment that hold secrets, which are none of its business.
        without: Vec<String>,
    },
    /// Runs the Job of this file on the node; it is well if that completes.
    Job(PathBuf),
}

/// Runs all checks of a node, one after the other; why it is not well if one of them says so.
pub(super) async fn run(
    client: &kube::Client,
    checks: &[Check],
    member: &Member,
    note: &dyn Fn(String),
) -> Result<Result<(), String>, Error> {
    for check in checks {
        let Check { name, probe, limit } = check;
        note(format!("check {name}"));
        let result = match probe {
            Probe::Command { program, arguments, without } => {
                command(program, arguments, without, *limit, member).await
            }
            Probe::Job(file) => match JobManifest::read(file) {
                Ok(job) => cluster::run_job(client, &job, name, &member.node.name, *limit).await?,
                Err(error) => Err(error.to_string()),
            },
        };
        if let Err(why) = result {
            return Ok(Err(format!("check {name}: {}", cut(&why))));
        }
    }
    Ok(Ok(()))
}

async fn command(
    program: &str,
    arguments: &[String],
    without: &[String],
    limit: Duration,
    member: &Member,
) -> Result<(), String> {
    let run = Program::new(program)
        .args(arguments)
        .env("NODE", member.node.name.as_str())
        .env("GROUP", &member.group)
        .only_end()
        .timeout(limit);
    let run = without.iter().fold(run, Program::without);
    match run.run().await {
        Ok(_) => Ok(()),
        Err(program::Error::Failed { status, stderr, .. }) => {
            Err(format!("{program} failed ({status}): {stderr}"))
        }
        Err(program::Error::TimedOut { after, stderr, .. }) => {
            Err(format!("{program} did not end within {} s: {stderr}", after.as_secs()))
        }
        Err(error) => Err(format!("{:#}", anyhow::Error::new(error))),
    }
}

/// The beginning says what failed, the end of an output why.
fn cut(text: &str) -> String {
    let clean: Vec<char> = text
        .trim_end_matches([':', ' ', '\n'])
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if clean.len() <= OUTPUT_LIMIT {
        return clean.into_iter().collect();
    }
    let head = clean.iter().take(OUTPUT_LIMIT / 4);
    let end = clean.iter().skip(clean.len() - OUTPUT_LIMIT * 3 / 4);
    head.chain(&['…']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::rollout::tests::{plan, snapshot};

    async fn shell(script: &str, seconds: u64) -> Result<(), String> {
        let snapshot = snapshot(&["w-1"], &plan("1.37.1"));
        let member = &snapshot.members[&"w-1".parse().unwrap()];
        let check = Check {
            name: "smoke".parse().unwrap(),
            probe: Probe::Command {
                program: "sh".into(),
                arguments: vec!["-c".into(), script.into()],
                without: vec!["HOME".into()],
            },
            limit: Duration::from_secs(seconds),
        };
        // Nobody is asked.
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        run(&client, &[check], member, &|_| {}).await.unwrap()
    }

    #[tokio::test]
    async fn a_command_knows_its_node_and_no_secrets() {
        let script = "test \"$NODE $GROUP ${HOME-none}\" = 'w-1 w none'";
        assert_eq!(shell(script, 60).await, Ok(()));
    }

    #[tokio::test]
    async fn a_failure_shows_how_it_ended_and_what_it_said() {
        let said = shell("echo no answer; exit 3", 60).await.unwrap_err();
        assert_eq!(said, "check smoke: sh failed (exit status: 3): no answer");
        assert_eq!(shell("exit 3", 60).await.unwrap_err(), "check smoke: sh failed (exit status: 3)");
    }

    #[tokio::test]
    async fn a_command_that_does_not_end_is_ended() {
        let started = Instant::now();
        let said = shell("echo waits; sleep 100", 1).await.unwrap_err();
        assert_eq!(said, "check smoke: sh did not end within 1 s: waits");
        assert!(started.elapsed() < Duration::from_secs(50));
    }

    #[tokio::test]
    async fn an_output_is_cut_and_harmless() {
        let said = shell("yes \"$(printf 'a\\033')\" | head -c 99999; echo the cause; exit 1", 60)
            .await
            .unwrap_err();
        assert!(said.chars().count() < OUTPUT_LIMIT + 30, "{said}");
        assert!(said.starts_with("check smoke: sh failed") && said.ends_with("the cause"), "{said}");
        assert!(!said.contains(char::is_control), "{said}");
    }
}
