//! Tables for people, JSON for programs.

use std::io::Write;

use clap::ValueEnum;
use comfy_table::{Table, presets};
use serde::Serialize;

/// The form of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A table without lines, as kubectl prints them.
pub(super) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Prints a result. Not with print: a pager that is left early is no reason to panic.
pub(super) fn say(text: impl std::fmt::Display) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

pub(super) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    say(serde_json::to_string_pretty(value)?)
}
