//! `cargo xtask`: the commands of development.

mod suites;

use std::process::ExitCode;

use clap::Parser;
use images::steps::Steps;

/// Sets up a machine for the tests and runs them.
#[derive(Debug, Parser)]
enum Xtask {
    /// Install tools, and build the bundles and the root file system that tests need.
    Setup,
    /// Set up, then run all tests.
    Test {
        /// Leave out tests on hosts (T4).
        #[arg(long)]
        quick: bool,
    },
}

fn main() -> ExitCode {
    let run = || -> anyhow::Result<bool> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let steps = Steps::stderr();
        runtime.block_on(async {
            match Xtask::parse() {
                Xtask::Setup => tests::setup::run(true, &steps).await.map(|()| true),
                Xtask::Test { quick } => suites::run(quick, &steps).await,
            }
        })
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
