//! The command line: arguments in, text or JSON out. One file per command.

mod plan;
mod retry;
mod run;
mod status;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand, ValueEnum, error::ErrorKind};
use common::metadata::NodeName;

use crate::config::{self, Settings};

/// Everything done; for `plan`: nothing to do.
const DONE: u8 = 0;
/// It was tried and failed; stderr says why and what to do.
const FAILED: u8 = 1;
/// `plan`: there is something to do.
const CHANGES: u8 = 2;
/// The command line or a configuration file is wrong; nothing was tried.
const BAD_INPUT: u8 = 64;

const HELP: &str = "\
Files:
  /etc/node-agent/config.yaml       settings of the agent; may be missing
  /etc/node-agent/metadata.yaml     what infrop gave this host before it joined a cluster
  /etc/node-agent/configuration.d/  contents delivered since, one YAML file each
  /var/lib/node-agent/journal.json  the plan under way

Exit codes: 0 done, 1 failed, 2 there are changes (plan), 64 bad input (nothing was tried).
NODE_AGENT_LOG=debug shows every program that is run.";

/// Brings a host to the software versions its Kubernetes node asks for, and says so.
#[derive(Debug, Parser)]
#[command(version, after_help = HELP, arg_required_else_help = true)]
struct Cli {
    /// The directory all files are below; another one than / is for tests.
    #[arg(long, global = true, default_value = "/", hide = true)]
    root: PathBuf,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The service: follow the metadata, later the Node; change, reboot, report.
    Run,
    /// What the service would do now. Changes nothing; exit code 2 if there is something to do.
    Plan {
        /// Text for people, json for programs.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// What the service does and why; without a running service, what its journal says.
    Status {
        /// Text for people, json for programs.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// End the quarantine of a plan, or the wait before its next attempt.
    Retry,
    /// The version of node-agent.
    Version,
}

/// The form of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let Cli { root, command } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            // A closed stdout or stderr is no reason to fail differently.
            let _ = error.print();
            return ExitCode::from(if is_answer { DONE } else { BAD_INPUT });
        }
    };
    if let Command::Version = command {
        println!("node-agent {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::from(DONE);
    }
    let result = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(dispatch(root, command)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("node-agent: {error:#}");
            let bad_input = error.downcast_ref::<config::ConfigError>().is_some();
            ExitCode::from(if bad_input { BAD_INPUT } else { FAILED })
        }
    }
}

async fn dispatch(root: PathBuf, command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Run => run::run(root).await.map(|()| DONE),
        Command::Plan { output } => {
            run::log_to_stderr();
            plan::run(root, output).await
        }
        Command::Status { output } => status::run(root, output).await.map(|()| DONE),
        Command::Retry => retry::run(root).await.map(|()| DONE),
        Command::Version => Ok(DONE),
    }
}

/// The Node's name: configured, given with the metadata, or the host's name as kubeadm takes it.
fn node_name(settings: &Settings) -> anyhow::Result<NodeName> {
    if let Some(name) = &settings.config.node {
        return Ok(name.clone());
    }
    if let Some(metadata) = &settings.metadata {
        return Ok(metadata.node.clone());
    }
    let name = nix::unistd::gethostname()?;
    Ok(name.to_string_lossy().to_lowercase().parse()?)
}
