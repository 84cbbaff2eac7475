//! The infrastructure document: what people want, as they write it.
//!
//! ```text
//! text ── yaml ──> tree with places ── structure (schema) ──> findings ──┐
//!                        │                                               ├──> Problems, or
//!                        └── parts (as far as readable) ── checks, files ┘    Infrastructure
//! ```

mod checks;
mod files;
mod formats;
mod model;
mod names;
mod parts;
mod problem;
mod rollout;
mod schema;
mod similar;
mod structure;
#[cfg(test)]
mod tests;
mod yaml;

use std::{fs::File, io::Read as _, path::Path};

pub use self::{
    model::{
        ApiVersion, Cluster, ControlPlane, Endpoint, Infrastructure, Kind, LabPool, LabProvider, Networking,
        Provider, SecretReference, SecretSource, Software, Ssh, StaticHost, StaticProvider, Taint,
        TaintEffect, Title, Workers,
    },
    names::{CheckName, Count, HostKey, InfrastructureName, NameError, PoolName, ProviderName, Subnet},
    problem::{Problem, Problems},
    rollout::{
        Amount, AmountError, AtTimeout, Check, ControlPlaneRollout, Day, Drain, GroupRollout,
        MaintenanceWindow, Probe, Rollout,
    },
    schema::schema,
};
use self::{
    parts::Parts,
    problem::{Field, Finding},
    yaml::Node,
};

/// A document of a thousand hosts has some 300 kB.
const MAX_BYTES: u64 = 4 << 20;

/// Reads a document from a file. Names of files in it begin at its directory.
pub fn read(path: &Path) -> Result<Infrastructure, Problems> {
    let file = File::open(path).map_err(|error| {
        Problems::of_file(path, format!("cannot be read: {error}"), "name a file that is there")
    })?;
    read_from(file, path)
}

/// Reads a document from an open file or a pipe that is called `file` in errors.
pub fn read_from(source: impl std::io::Read, file: &Path) -> Result<Infrastructure, Problems> {
    let mut bytes = Vec::new();
    source.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| {
        Problems::of_file(file, format!("cannot be read: {error}"), "name a file with a document")
    })?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Problems::of_file(
            file,
            format!("is larger than {MAX_BYTES} bytes"),
            "name another file",
        ));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Problems::of_file(file, "is not text in UTF-8", "name a YAML file, saved as UTF-8"))?;
    parse(&text, file)
}

/// Reads a document from its text, which is that of `file`. All problems are found at once.
pub fn parse(text: &str, file: &Path) -> Result<Infrastructure, Problems> {
    let (tree, mut findings) = yaml::parse(text);
    let Some(tree) = tree else { return Err(problems(None, findings, file)) };
    findings.extend(structure::check(&tree, schema()));
    let value = tree.value();
    let parts = Parts::new(&value);
    findings.extend(checks::check(&parts));
    findings.extend(files::check(&parts, file.parent().unwrap_or(Path::new(""))));
    if !findings.is_empty() {
        return Err(problems(Some(&tree), findings, file));
    }
    serde_path_to_error::deserialize(&value).map_err(|error| {
        // The structure says the same before; this is a net below it. The error may repeat a value: it is not shown.
        let field = error.path().iter().fold(Field::default(), |field, segment| match segment {
            serde_path_to_error::Segment::Seq { index } => field.item(*index),
            serde_path_to_error::Segment::Map { key } => field.key(key),
            serde_path_to_error::Segment::Enum { variant } => field.key(variant),
            serde_path_to_error::Segment::Unknown => field,
        });
        let finding = Finding::new(field, "is not what this field takes", "see `infrop schema`");
        problems(Some(&tree), vec![finding], file)
    })
}

/// Findings with their places, in the order of the text.
fn problems(tree: Option<&Node>, findings: Vec<Finding>, file: &Path) -> Problems {
    let mut placed: Vec<_> = findings
        .into_iter()
        .map(|finding| {
            let place = match (tree, finding.spot) {
                (_, problem::Spot::Place(place)) => place,
                (Some(tree), spot) => tree.find(&finding.field, spot),
                (None, _) => problem::Place::START,
            };
            (place, finding)
        })
        .collect();
    placed.sort_by_key(|(place, _)| *place);
    let problem = |(place, finding): (problem::Place, Finding)| Problem {
        file: file.display().to_string(),
        line: Some(place.line),
        column: Some(place.column),
        field: finding.field.to_string(),
        problem: finding.problem,
        hint: finding.hint,
    };
    Problems(placed.into_iter().map(problem).collect())
}
