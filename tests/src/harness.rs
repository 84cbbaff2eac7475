//! Test suites whose cases say what they need.
//!
//! A case whose need is not met is reported as skipped, with the reason; with `CI=true` it fails.

use std::{env, future::Future, process::ExitCode, time::Duration};

use anyhow::{Context, anyhow};
use infrop::provider::lab;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::bundles;

/// How dear a case is: see docs/development/testing.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// A conversation with a scripted server.
    T2,
    /// A real kube-apiserver and etcd.
    T3,
    /// Real hosts.
    T4,
}

impl Tier {
    /// Why cases of this tier cannot run here, if they cannot.
    fn obstacle(self) -> Option<String> {
        match self {
            Self::T2 => None,
            Self::T3 => bundles::obstacle(),
            Self::T4 => lab::obstacle().or_else(bundles::obstacle).or_else(|| {
                images::tools::find("systemd-nspawn")
                    .is_none()
                    .then(|| "systemd-nspawn is not installed: run `cargo xtask setup` first".to_owned())
            }),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::T2 => "T2",
            Self::T3 => "T3",
            Self::T4 => "T4",
        }
    }
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
        let ci = env::var("CI").is_ok_and(|value| value == "true");
        let name = name.to_owned();
        let trial =
            match tier.obstacle() {
                None => Trial::test(name, move || run(limit, test)).with_kind(tier.name()),
                Some(reason) if ci => Trial::test(name, move || {
                    Err(format!("cannot run, which CI does not allow: {reason}").into())
                })
                .with_kind(tier.name()),
                Some(reason) => Trial::test(name, || Ok(()))
                    .with_kind(format!("{}, skipped: {reason}", tier.name()))
                    .with_ignored_flag(true),
            };
        Self { trial }
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
    // A skipped case has nothing to run: asking for ignored ones must not turn it into a passed one.
    arguments.include_ignored = false;
    arguments.ignored = false;
    libtest_mimic::run(&arguments, cases.into_iter().map(|case| case.trial).collect()).exit_code()
}
