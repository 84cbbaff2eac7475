//! The command line: arguments in, text or JSON out. One file per command.

mod apply;
mod bundle;
mod completions;
mod confirm;
mod destroy;
mod ending;
mod infrastructure;
mod kubeconfig;
mod lab;
mod limit;
mod manifests;
mod node;
mod node_drain;
mod node_reboot;
mod output;
mod pause;
mod plan;
mod progress;
mod rollout;
mod schema;
mod status;
#[cfg(test)]
mod tests;
mod validate;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Parser, Subcommand, error::ErrorKind};
use images::{cache::Cache, steps::Steps};
use tracing_subscriber::EnvFilter;

use crate::{apply::Stopped, desired::Problems, writer};

/// Everything done.
const DONE: u8 = 0;
/// It was tried and failed; stderr says why and what to do.
const FAILED: u8 = 1;
/// `plan`: there is something to do.
const CHANGES: u8 = 2;
/// Some of it cannot be done, and each has its reason; the rest is done.
const BLOCKED: u8 = 3;
/// Time was up.
const TIMED_OUT: u8 = 4;
/// Someone else is at work, or took over.
const NOT_THE_WRITER: u8 = 5;
/// The command line or other input is wrong; nothing was tried.
const BAD_INPUT: u8 = 64;
/// Stopped by ctrl-C or a termination signal.
const INTERRUPTED: u8 = 130;

/// Where labs are kept: system-wide, because machines and networks are.
const DEFAULT_LABS: &str = "/var/lib/infrop/labs";

/// What is logged unless `INFROP_LOG` says otherwise. kube reports every refused connection as an error, also those to an
/// API server that is waited for; real ones are in our own errors.
const LOG: &str = "warn,kube_client=off,kube_runtime=off";

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 64 bad input (nothing was tried), 130 interrupted.
Results go to stdout, progress and errors to stderr. INFROP_LOG=debug shows every program that is run.";

/// Takes bare-metal machines to a healthy Kubernetes cluster and keeps it there.
///
/// A document says what there is to be; `infrop apply -f DOCUMENT` makes it so. Try it with infrop/examples/lab.yaml.
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
    /// Bring providers, hosts and cluster to what a document says.
    Apply(apply::ApplyArguments),
    /// Show what `apply` would do.
    Plan(plan::PlanArguments),
    /// Show every compute and node: phase, versions, what it waits for, since when.
    Status(status::StatusArguments),
    /// List, drain, reboot and replace nodes.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Leave nodes alone until `resume`.
    Pause(pause::PauseArguments),
    /// Let paused nodes be changed again.
    Resume(pause::ResumeArguments),
    /// Take nodes of any cluster to other versions, without a document.
    Rollout(rollout::RolloutArguments),
    /// Print the administrator's kubeconfig of the cluster.
    Kubeconfig(kubeconfig::KubeconfigArguments),
    /// Give all computes of a document back.
    Destroy(destroy::DestroyArguments),
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
        .with_env_filter(EnvFilter::try_from_env("INFROP_LOG").unwrap_or_else(|_| EnvFilter::new(LOG)))
        .with_writer(std::io::stderr)
        .init();
    match start(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) if error.is::<Problems>() => {
            eprintln!("{error}");
            ExitCode::from(BAD_INPUT)
        }
        Err(error) if error.is::<Stopped>() => {
            eprintln!("infrop: {error:#}");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("infrop: {error:#}");
            let held = matches!(error.downcast_ref(), Some(writer::Error::Held { .. }))
                || matches!(error.downcast_ref(), Some(crate::rollout::Error::Lost));
            ExitCode::from(if held { NOT_THE_WRITER } else { FAILED })
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
        _ => {}
    }
    let cache = cache_dir
        .map(Cache::new)
        .or_else(Cache::of_user)
        .context("there is no home directory to keep the cache in: name a place with --cache-dir")?;
    let shared = Shared { cache, steps: Steps::stderr() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let (ask_to_stop, stop) = tokio::sync::watch::channel(false);
        let stops_by_itself = match &command {
            Command::Apply(_) | Command::Rollout(_) | Command::Destroy(_) => true,
            Command::Node(command) => command.stops_by_itself(),
            _ => false,
        };
        let work = async {
            match command {
                Command::Apply(arguments) => apply::run(arguments, &shared, stop).await,
                Command::Plan(arguments) => plan::run(arguments, &shared).await,
                Command::Status(arguments) => status::run(arguments, &shared).await,
                Command::Node(command) => node::run(command, &shared, stop).await,
                Command::Pause(arguments) => pause::pause(arguments, &shared).await,
                Command::Resume(arguments) => pause::resume(arguments, &shared).await,
                Command::Rollout(arguments) => rollout::run(arguments, stop).await,
                Command::Kubeconfig(arguments) => kubeconfig::run(arguments, &shared).await,
                Command::Destroy(arguments) => destroy::run(arguments, &shared, stop).await,
                Command::Bundle(command) => bundle::run(command, &shared).await.map(|()| DONE),
                Command::Lab(arguments) => lab::run(arguments, &shared).await.map(|()| DONE),
                Command::Manifests(arguments) => manifests::run(&arguments).map(|()| DONE),
                Command::Validate(_) | Command::Schema(_) | Command::Completions(_) => Ok(DONE),
            }
        };
        let interruption = async {
            if stops_by_itself {
                interruption().await;
                eprintln!("infrop: stopping at the next safe point; interrupt again to leave at once");
                let _ = ask_to_stop.send(true);
            }
            interruption().await;
        };
        tokio::select! {
            result = work => result,
            () = interruption => {
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
