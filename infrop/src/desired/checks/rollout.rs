//! What a site checks on nodes.

use crate::desired::{
    parts::Parts,
    problem::{Field, Finding},
    rollout::{Check, Probe},
};

/// Where lists of checks stand.
pub(in crate::desired) fn lists(parts: &Parts) -> Vec<Vec<(Field, Check)>> {
    let groups = parts.groups.iter().map(|group| group.field.key("rollout").key("checks"));
    let fields = groups.chain([Field::of(&["rollout", "checks"])]);
    fields.map(|field| parts.list(&field)).collect()
}

/// People tell them apart by their names.
pub(super) fn names_are_different(parts: &Parts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for list in lists(parts) {
        for (index, (field, check)) in list.iter().enumerate() {
            if let Some((first, _)) = list.iter().take(index).find(|(_, other)| other.name == check.name) {
                let problem = format!("{} is the name of {first} already", check.name);
                findings.push(Finding::new(field.key("name"), problem, "give it another name"));
            }
        }
    }
    findings
}

/// A command names a program.
pub(super) fn commands_are_there(parts: &Parts) -> Vec<Finding> {
    let checks = lists(parts).into_iter().flatten();
    let nothing = checks.filter(|(_, check)| match &check.probe {
        Probe::Command(words) => words.first().is_none_or(String::is_empty),
        Probe::Job(_) => false,
    });
    let hint = "write the program and its arguments: [./smoke.sh, --fast]";
    nothing.map(|(field, _)| Finding::new(field.key("command"), "names no program", hint)).collect()
}
