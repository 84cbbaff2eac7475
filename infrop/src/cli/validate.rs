//! `infrop validate`: what is wrong with an infrastructure document.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{
    BAD_INPUT, DONE,
    output::{Output, print_json},
};
use crate::desired::{self, Cluster, Count, Infrastructure, Problems};

/// How the document is called that comes from stdin.
const STDIN: &str = "<stdin>";

const HELP: &str = "\
Nothing but the document and the files it names is looked at: no host, no cluster, no secret. All problems are named at
once, in the order of the document:

  lab.yaml:12:13: cluster.controlPlane.nodes: is 2, not 1, 3 or 5
    hint: what it is: How many: 1, 3 or 5. …

With -o json they are a list of objects with file, line, column, field, problem and hint; the list is empty if there are
none.

Examples:
  infrop validate -f infrastructure.yaml
  envsubst < infrastructure.yaml | infrop validate -f -

Exit codes: 0 valid, 64 not valid.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ValidateArguments {
    /// The document; - is stdin, and names of files in it then begin at the working directory.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// The form of the answer.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

pub(super) fn run(arguments: &ValidateArguments) -> anyhow::Result<u8> {
    let ValidateArguments { file, output } = arguments;
    let (name, result) = if file == Path::new("-") {
        let name = Path::new(STDIN);
        (name, desired::read_from(std::io::stdin().lock(), name))
    } else {
        (file.as_path(), desired::read(file))
    };
    match (result, output) {
        (Ok(infrastructure), Output::Text) => {
            println!("{} is valid: {}", name.display(), summary(&infrastructure));
            Ok(DONE)
        }
        (Ok(_), Output::Json) => print_json(&[(); 0]).map(|()| DONE),
        (Err(problems), Output::Text) => {
            println!("{problems}");
            Ok(BAD_INPUT)
        }
        (Err(Problems(problems)), Output::Json) => print_json(&problems).map(|()| BAD_INPUT),
    }
}

/// What the document asks for, in one line.
fn summary(infrastructure: &Infrastructure) -> String {
    let Infrastructure { metadata, cluster, software, .. } = infrastructure;
    let Cluster { control_plane, workers, endpoint, .. } = cluster;
    let Count(control_planes) = control_plane.nodes;
    let workers: u32 = workers.iter().map(|group| u32::from(group.nodes.0)).sum();
    let plural = |number: u32| if number == 1 { "" } else { "s" };
    let endpoint = endpoint.as_ref().map(|endpoint| format!(" behind {}", endpoint.host)).unwrap_or_default();
    format!(
        "{}, Kubernetes {}, {control_planes} control plane{}{endpoint}, {workers} worker{}",
        metadata.name,
        software.kubernetes,
        plural(control_planes.into()),
        plural(workers)
    )
}
