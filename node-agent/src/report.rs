//! What the agent says on its Node: the whole of its keys, and the patch from what stands there.

use std::collections::BTreeMap;

use common::{annotations, state::State};
use serde_json::{Map, Value, json};

use crate::{journal::Journal, observe::HostState};

/// All keys of the agent with their values.
pub fn report(host: &HostState, journal: &Journal, state: &State) -> BTreeMap<String, String> {
    let mut report = BTreeMap::new();
    for (name, observed) in &host.software {
        if let Some(version) = &observed.version {
            report.insert(annotations::current_version(name), version.to_string());
        }
    }
    report.insert(annotations::READY.to_owned(), journal.ready.to_string());
    if let Some(plan) = &journal.observed {
        report.insert(annotations::PLAN_OBSERVED.to_owned(), plan.to_string());
    }
    // It has no maps with other keys than text, so it always is JSON.
    report.insert(annotations::STATE.to_owned(), serde_json::to_string(state).unwrap_or_default());
    report
}

/// The merge patch from the annotations that stand there to the report; none if they agree. Only keys of the
/// agent are touched.
pub fn patch(seen: &BTreeMap<String, String>, report: &BTreeMap<String, String>) -> Option<Value> {
    let mut changes = Map::new();
    for (key, value) in report {
        if seen.get(key) != Some(value) {
            changes.insert(key.clone(), Value::String(value.clone()));
        }
    }
    for key in seen.keys().filter(|key| annotations::is_agents(key) && !report.contains_key(*key)) {
        changes.insert(key.clone(), Value::Null);
    }
    (!changes.is_empty()).then(|| json!({ "metadata": { "annotations": changes } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_has_only_what_differs_and_only_our_keys() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let seen = map(&[
            ("alpha.node.caos.ch/ready", "true"),
            ("alpha.haproxy.caos.ch/current-version", "1"),
            ("alpha.kubelet.caos.ch/desired-version", "2"),
            ("foreign", "x"),
        ]);
        let report =
            map(&[("alpha.node.caos.ch/ready", "false"), ("alpha.kubelet.caos.ch/current-version", "2")]);
        assert_eq!(
            patch(&seen, &report).unwrap(),
            json!({ "metadata": { "annotations": {
                "alpha.node.caos.ch/ready": "false",
                "alpha.kubelet.caos.ch/current-version": "2",
                "alpha.haproxy.caos.ch/current-version": null,
            } } })
        );
        assert_eq!(patch(&report, &report), None);
    }
}
