//! `infrop validate`: what is wrong with an infrastructure document.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::Args;

use super::{BAD_INPUT, DONE, output::Output};
use crate::desired::{self, Cluster, Count, Infrastructure, Problems};

/// How the document is called that comes from stdin.
const STDIN: &str = "<stdin>";

const HELP: &str = "\
Nothing but the document and the files it names is looked at: no host, no cluster, no secret. All problems are named \
at once, in the order of the document:

  x.yaml:7:37: cluster.workers[0].pool: provider here has no pool workers
    hint: did you mean worker?

With -o json they are a list of objects with file, line, column, field, problem and hint; the list is empty if there \
are none.

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
    let (text, code) = answer(name, result, *output)?;
    // Not with print: a pager that is left early is no reason to panic.
    writeln!(std::io::stdout(), "{text}")?;
    Ok(code)
}

fn answer(
    name: &Path,
    result: Result<Infrastructure, Problems>,
    output: Output,
) -> serde_json::Result<(String, u8)> {
    Ok(match (result, output) {
        (Ok(infrastructure), Output::Text) => {
            (format!("{} is valid: {}", name.display(), summary(&infrastructure)), DONE)
        }
        (Ok(_), Output::Json) => ("[]".to_owned(), DONE),
        (Err(problems), Output::Text) => (problems.to_string(), BAD_INPUT),
        (Err(Problems(problems)), Output::Json) => (serde_json::to_string_pretty(&problems)?, BAD_INPUT),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "\
apiVersion: infrop.caos.ch/v1alpha1
kind: Infrastructure
metadata: { name: lab }
providers: { here: { lab: { pools: { control: {}, worker: {} } } } }
cluster:
  controlPlane: { provider: here, pool: control, nodes: 3 }
  workers: [{ provider: here, pool: worker, nodes: 1 }]
  endpoint: { host: 10.88.0.5 }
software: { kubernetes: 1.37.1 }
";

    fn ask(text: &str, output: Output) -> (String, u8) {
        let name = Path::new("x.yaml");
        answer(name, desired::parse(text, name), output).unwrap()
    }

    #[test]
    fn a_valid_document_is_summed_up() {
        let text = "x.yaml is valid: lab, Kubernetes 1.37.1, 3 control planes behind 10.88.0.5, 1 worker";
        assert_eq!(ask(DOCUMENT, Output::Text), (text.to_owned(), 0));
        assert_eq!(ask(DOCUMENT, Output::Json), ("[]".to_owned(), 0));
    }

    #[test]
    fn problems_are_for_people_or_programs() {
        let wrong = DOCUMENT.replace("pool: worker,", "pool: workers,");
        let text = "\
x.yaml:7:37: cluster.workers[0].pool: provider here has no pool workers
  hint: did you mean worker?";
        assert_eq!(ask(&wrong, Output::Text), (text.to_owned(), 64));
        let (json, code) = ask(&wrong, Output::Json);
        let expected = serde_json::json!([{
            "file": "x.yaml",
            "line": 7,
            "column": 37,
            "field": "cluster.workers[0].pool",
            "problem": "provider here has no pool workers",
            "hint": "did you mean worker?",
        }]);
        assert_eq!((serde_json::from_str::<serde_json::Value>(&json).unwrap(), code), (expected, 64));
    }

    /// The help shows what people see.
    #[test]
    fn the_help_is_right() {
        let wrong = DOCUMENT.replace("pool: worker,", "pool: workers,");
        let (text, _) = ask(&wrong, Output::Text);
        assert!(text.lines().all(|line| HELP.contains(&format!("  {line}\n"))), "{text}");
    }
}
