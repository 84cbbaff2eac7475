//! The command line: arguments in, text or JSON out. One file per command.

mod bundle;
mod completions;
mod lab;
mod manifests;
mod output;
mod schema;
mod validate;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Parser, Subcommand, error::ErrorKind};
use images::{cache::Cache, steps::Steps};
use tracing_subscriber::EnvFilter;

/// Everything done.
const DONE: u8 = 0;
/// It was tried and failed; stderr says why and what to do.
const FAILED: u8 = 1;
/// The command line or other input is wrong; nothing was tried.
const BAD_INPUT: u8 = 64;
/// Stopped by ctrl-C or a termination signal.
const INTERRUPTED: u8 = 130;

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 64 bad input (nothing was tried), 130 interrupted.
Results go to stdout, progress and errors to stderr. INFROP_LOG=debug shows every program that is run.";

/// Takes bare-metal machines to a healthy Kubernetes cluster and keeps it there.
///
/// This version makes what that starts from: Kubernetes bundles, and hosts to run them on.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct Cli {
    /// Where bundles and root file systems are kept [default: infrop in the user's cache directory].
    #[arg(long, global = true, env = "INFROP_CACHE_DIR", value_name = "DIR")]
    cache_dir: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Packages and container images of one Kubernetes version, for hosts without a registry.
    #[command(subcommand)]
    Bundle(bundle::BundleCommand),
    /// Hosts on this computer, to try things on.
    Lab(lab::LabArguments),
    /// Objects that a cluster needs beside infrop, to be applied by a person or CI.
    Manifests(manifests::ManifestsArguments),
    /// Check an infrastructure document; say all that is wrong with it, where, and how to put it right.
    Validate(validate::ValidateArguments),
    /// Print the JSON Schema of the infrastructure document.
    Schema(schema::SchemaArguments),
    /// Print what a shell needs to complete infrop's commands.
    Completions(completions::CompletionsArguments),
}

/// What all commands share.
#[derive(Debug)]
struct Shared {
    cache: Cache,
    steps: Steps,
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            // A closed stdout or stderr is no reason to fail differently.
            let _ = error.print();
            return ExitCode::from(if is_answer { DONE } else { BAD_INPUT });
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_env("INFROP_LOG").unwrap_or_else(|_| EnvFilter::new("warn")))
        .with_writer(std::io::stderr)
        .init();
    match start(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("infrop: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<u8> {
    let Cli { cache_dir, command } = cli;
    // What needs neither a cache nor anything to wait for.
    match &command {
        Command::Lab(arguments) => {
            if let Some(result) = lab::run_internal(arguments) {
                return result.map(|()| DONE);
            }
        }
        Command::Validate(arguments) => return validate::run(arguments),
        Command::Schema(arguments) => return schema::run(arguments).map(|()| DONE),
        Command::Completions(arguments) => return completions::run(arguments).map(|()| DONE),
        Command::Bundle(_) | Command::Manifests(_) => {}
    }
    let cache = cache_dir
        .map(Cache::new)
        .or_else(Cache::of_user)
        .context("there is no home directory to keep the cache in: name a place with --cache-dir")?;
    let shared = Shared { cache, steps: Steps::stderr() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let work = async {
            match command {
                Command::Bundle(command) => bundle::run(command, &shared).await,
                Command::Lab(arguments) => lab::run(arguments, &shared).await,
                Command::Manifests(arguments) => manifests::run(&arguments),
                Command::Validate(_) | Command::Schema(_) | Command::Completions(_) => Ok(()),
            }
        };
        tokio::select! {
            result = work => result.map(|()| DONE),
            () = interruption() => {
                eprintln!("infrop: interrupted; run the same command again to go on");
                Ok(INTERRUPTED)
            }
        }
    });
    // A read of stdin or a lock that somebody else holds must not keep the process.
    runtime.shutdown_background();
    result
}

/// Resolves when someone asks this process to end. Dropping the work then ends the programs it runs and
/// removes what is half made.
async fn interruption() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}
