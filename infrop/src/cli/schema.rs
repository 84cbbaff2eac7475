//! `infrop schema`: the JSON Schema of the infrastructure document.

use std::io::Write;

use clap::Args;

use crate::desired;

const HELP: &str = "\
Draft 2020-12, with a description of every field. Editors that know JSON Schema complete and check with it:

  infrop schema > infrastructure.schema.json

and, for those with the YAML language server, this as the document's first line:

  # yaml-language-server: $schema=infrastructure.schema.json

It knows the form of a document; `infrop validate` knows more, for example which pools there are.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct SchemaArguments {}

pub(super) fn run(arguments: &SchemaArguments) -> anyhow::Result<()> {
    let SchemaArguments {} = arguments;
    // Not with print: a pager that is left early is no reason to panic.
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(desired::schema())?)?;
    Ok(())
}
