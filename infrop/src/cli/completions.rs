//! `infrop completions`: scripts for shells.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;

const HELP: &str = "\
Examples:
  infrop completions bash > /etc/bash_completion.d/infrop
  infrop completions zsh > \"${fpath[1]}/_infrop\"
  infrop completions fish > ~/.config/fish/completions/infrop.fish";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct CompletionsArguments {
    /// Which shell.
    shell: Shell,
}

pub(super) fn run(arguments: &CompletionsArguments) -> anyhow::Result<()> {
    let CompletionsArguments { shell } = arguments;
    // Not straight to stdout: the generator panics if that is closed.
    std::io::stdout().write_all(&script(*shell))?;
    Ok(())
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "infrop", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_learns_the_commands() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            for command in ["validate", "schema", "bundle"] {
                assert!(script.contains(command), "{shell}: {command}");
            }
        }
    }
}
