//! `cargo xtask`: the commands of development.

mod bench;
mod package;
mod soak;
mod suites;

use std::process::ExitCode;

use clap::Parser;
use images::steps::Steps;
use tokio::process::Command;

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
    /// Build the Debian package of node-agent and print where it is.
    Package {
        /// Of the dev profile: builds faster, runs slower.
        #[arg(long)]
        debug: bool,
    },
    /// What needs many repetitions or much time: a part of it is in the tests, all of it here (T4).
    #[command(subcommand)]
    Soak(soak::Soak),
    /// Measure, and say whether targets are met.
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    let run = || -> anyhow::Result<bool> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let steps = Steps::stderr();
        runtime.block_on(async {
            match Xtask::parse() {
                Xtask::Setup => tests::setup::run(true, &steps).await.map(|()| true),
                Xtask::Test { quick } => suites::run(quick, &steps).await,
                Xtask::Package { debug } => {
                    println!("{}", package::run(debug, &steps).await?.display());
                    Ok(true)
                }
                Xtask::Soak(soak) => soak::run(&soak, &steps).await,
                Xtask::Bench(bench) => bench::run(bench, &steps).await,
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

/// Cargo, ended with whoever waits for it.
fn cargo() -> Command {
    let mut command = Command::from(tests::cargo());
    command.kill_on_drop(true);
    command
}
