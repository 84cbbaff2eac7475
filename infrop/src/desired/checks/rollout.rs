//! What a site checks on nodes.

use crate::desired::{
    names::Count,
    parts::Parts,
    problem::{Field, Finding},
    rollout::{Check, Probe, Rollout},
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

/// What stops all stops a group, too: a higher number of its own would never count.
pub(super) fn groups_fail_before_all(parts: &Parts) -> Vec<Finding> {
    let written = "/rollout/maxFailed";
    let usual = parts.value(written).is_none().then(|| Rollout::default().max_failed);
    // One that cannot be read is reported already.
    let Some(Count(most)) = usual.or_else(|| parts.read(written)) else { return Vec::new() };
    let workers = parts.groups.iter().filter(|group| !group.is_control_plane);
    let fields = workers.map(|group| group.field.key("rollout").key("maxFailed"));
    let own = fields.filter_map(|field| Some((parts.read::<Count>(&field.pointer())?, field)));
    own.filter(|(Count(own), _)| *own > most)
        .map(|(Count(own), field)| {
            let problem =
                format!("is {own}, but no node at all is begun after {most} failed (rollout.maxFailed)");
            Finding::new(
                field,
                problem,
                format!("write up to {most}, or a higher number into rollout.maxFailed"),
            )
        })
        .collect()
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
