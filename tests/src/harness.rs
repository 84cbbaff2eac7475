//! Test suites whose cases say what they need.
//!
//! A case whose need is not met is reported as skipped, with the reason; with `CI=true` it fails.

use std::{future::Future, process::ExitCode, time::Duration};

use anyhow::{Context, anyhow};
use infrop::provider::lab;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::bundles;

/// How dear a case is: see docs/development/testing.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Decisions alone, without anything of the machine.
    T1,
    /// A conversation with a scripted server, by these programs of the machine.
    T2(&'static [&'static str]),
    /// A real kube-apiserver and etcd.
    T3,
    /// Real hosts.
    T4,
}

impl Tier {
    /// Why cases of this tier cannot run here, if they cannot.
    fn obstacle(self) -> Option<String> {
        match self {
            Self::T1 => None,
            Self::T2(programs) => missing(programs),
            Self::T3 => bundles::obstacle(),
            Self::T4 => {
                lab::obstacle().or_else(|| missing(&["systemd-nspawn", "nft"])).or_else(bundles::obstacle)
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::T1 => "T1",
            Self::T2(_) => "T2",
            Self::T3 => "T3",
            Self::T4 => "T4",
        }
    }
}

fn missing(programs: &[&str]) -> Option<String> {
    let program = programs.iter().find(|program| images::tools::find(program).is_none())?;
    Some(format!("{program} is not installed"))
}

/// Whether this is CI, where nothing may be skipped.
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// A case of a suite.
#[derive(Debug)]
pub struct Case {
    trial: Trial,
}

impl Case {
    /// A case that must end within `limit`.
    pub fn new<F, Fut>(tier: Tier, name: &str, limit: Duration, test: F) -> Self
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>>,
    {
        Self { trial: trial(tier, verdict(tier.obstacle(), is_ci()), name, move || run(limit, test)) }
    }
}

/// What becomes of a case.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Run,
    Skip(String),
    Fail(String),
}

fn verdict(obstacle: Option<String>, ci: bool) -> Verdict {
    match obstacle {
        None => Verdict::Run,
        Some(reason) if ci => Verdict::Fail(format!("it cannot run, which CI does not allow: {reason}")),
        Some(reason) => Verdict::Skip(format!("skipped: {reason}")),
    }
}

fn trial(
    tier: Tier,
    verdict: Verdict,
    name: &str,
    test: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    match verdict {
        Verdict::Run => Trial::test(name, test).with_kind(tier.name()),
        Verdict::Fail(reason) => Trial::test(name, || Err(reason.into())).with_kind(tier.name()),
        Verdict::Skip(reason) => {
            Trial::test(name, test).with_kind(format!("{}, {reason}", tier.name())).with_ignored_flag(true)
        }
    }
}

fn run<F, Fut>(limit: Duration, test: F) -> Result<(), Failed>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let outcome = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        let result = runtime.block_on(async {
            tokio::time::timeout(limit, test())
                .await
                .unwrap_or_else(|_| Err(anyhow!("it did not end within {} s", limit.as_secs())))
        });
        runtime.shutdown_timeout(Duration::from_secs(10));
        result
    };
    outcome().map_err(|error: anyhow::Error| {
        // The chain of causes, without the stack: a test's error says where it is.
        error.chain().map(ToString::to_string).collect::<Vec<_>>().join("\n  because: ").into()
    })
}

/// Runs the cases that the command line selects.
pub fn suite(cases: impl IntoIterator<Item = Case>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A skipped case cannot run: asking for ignored ones must not run it all the same.
    arguments.include_ignored = false;
    arguments.ignored = false;
    libtest_mimic::run(&arguments, cases.into_iter().map(|case| case.trial).collect()).exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_run_is_skipped_and_in_ci_fails_but_never_passes() {
        let obstacle = || Some("lab hosts need root".to_owned());
        assert_eq!(verdict(None, false), Verdict::Run);
        assert_eq!(verdict(None, true), Verdict::Run);
        assert_eq!(verdict(obstacle(), false), Verdict::Skip("skipped: lab hosts need root".into()));
        let Verdict::Fail(reason) = verdict(obstacle(), true) else { panic!("CI accepts a skip") };
        assert!(reason.ends_with("lab hosts need root"));
    }

    #[test]
    fn a_skipped_case_is_shown_as_ignored_with_its_reason() {
        let skipped = trial(Tier::T4, Verdict::Skip("skipped: no hosts".into()), "case", || Ok(()));
        assert!(skipped.has_ignored_flag());
        assert_eq!(skipped.kind(), "T4, skipped: no hosts");
        let failing = trial(Tier::T4, Verdict::Fail("no hosts".into()), "case", || Ok(()));
        assert!(!failing.has_ignored_flag());
    }

    #[test]
    fn a_missing_program_is_named() {
        assert_eq!(missing(&["sh", "no-such-program"]).unwrap(), "no-such-program is not installed");
        assert_eq!(missing(&["sh"]), None);
    }
}
