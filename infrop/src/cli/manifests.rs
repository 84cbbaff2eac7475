//! `infrop manifests`: YAML that is part of infrop and is applied with kubectl.

use std::io::Write;

use clap::{Args, ValueEnum};

use super::output::table;

const HELP: &str = "\
Example: infrop manifests admission | kubectl apply -f -

Apply them again after an update of infrop. infrop does not do it by itself: it needs no right to change policies.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ManifestsArguments {
    /// Which one to print; without a name they are listed.
    name: Option<Manifest>,
}

/// What can be printed. The comments are the list's text, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Manifest {
    /// Policies that say who may write which of infrop's annotations on a Node.
    Admission,
}

impl Manifest {
    fn text(self) -> &'static str {
        match self {
            Self::Admission => include_str!("../../manifests/admission.yaml"),
        }
    }
}

pub(super) fn run(arguments: &ManifestsArguments) -> anyhow::Result<()> {
    let ManifestsArguments { name } = arguments;
    let text = name.map_or_else(list, |manifest| manifest.text().to_owned());
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn list() -> String {
    let rows = Manifest::value_variants().iter().filter_map(ValueEnum::to_possible_value).map(|value| {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        [value.get_name().to_owned(), help]
    });
    format!("{}\n", table(["NAME", "WHAT"], rows))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use common::annotations::{AGENTS_KEYS, CHANGES_ALLOWED, OTHERS_KEYS, current_version};
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;

    fn admission() -> Vec<Value> {
        serde_yaml::Deserializer::from_str(Manifest::Admission.text())
            .map(|document| Value::deserialize(document).unwrap())
            .filter(|object| !object.is_null())
            .collect()
    }

    /// The expression of a variable of a policy.
    fn variable(policy: &str, name: &str) -> String {
        let policy = admission()
            .into_iter()
            .find(|object| {
                object["kind"] == "ValidatingAdmissionPolicy" && object["metadata"]["name"] == policy
            })
            .unwrap();
        let variables = policy["spec"]["variables"].as_array().unwrap();
        let variable = variables.iter().find(|variable| variable["name"] == name).unwrap();
        variable["expression"].as_str().unwrap().to_owned()
    }

    /// The texts between apostrophes.
    fn quoted(expression: &str) -> BTreeSet<&str> {
        expression.split('\'').skip(1).step_by(2).collect()
    }

    #[test]
    fn it_is_listed() {
        assert!(list().contains("admission  Policies that say who may write"), "{}", list());
    }

    #[test]
    fn every_policy_is_bound_denies_and_fails_closed() {
        let objects = admission();
        let of_kind = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
        let bindings = of_kind("ValidatingAdmissionPolicyBinding");
        let policies = of_kind("ValidatingAdmissionPolicy");
        assert_eq!((policies.len(), bindings.len()), (3, 3));
        for policy in policies {
            let name = &policy["metadata"]["name"];
            let binding = bindings.iter().find(|binding| binding["spec"]["policyName"] == *name).unwrap();
            assert_eq!(binding["spec"]["validationActions"], serde_json::json!(["Deny"]), "{name}");
            assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{name}");
            let rule = &policy["spec"]["matchConstraints"]["resourceRules"][0];
            assert_eq!(rule["operations"], serde_json::json!(["CREATE", "UPDATE"]), "{name}");
            assert_eq!(rule["resources"], serde_json::json!(["nodes", "nodes/status"]), "{name}");
        }
    }

    #[test]
    fn the_policies_know_the_keys_of_the_protocol() {
        let software = current_version(&"kubelet".parse().unwrap());
        let (prefix, suffix) = software.split_once("kubelet").unwrap();
        let agents: BTreeSet<&str> = AGENTS_KEYS.into_iter().chain([suffix]).collect();
        for (policy, name) in [("infrop-node-writes", "others"), ("infrop-agent-keys", "agents")] {
            assert_eq!(quoted(&variable(policy, name)), agents, "{policy}");
            let written = variable(policy, "written");
            let domain = quoted(&written);
            assert_eq!(domain, [prefix, ".caos.ch/"].into(), "{policy}");
            for key in AGENTS_KEYS.into_iter().chain(OTHERS_KEYS).chain([software.as_str()]) {
                assert!(key.starts_with(prefix) && key.contains(".caos.ch/"), "{key}");
            }
        }
        assert!(Manifest::Admission.text().contains(&format!("annotations['{CHANGES_ALLOWED}'] in")));
    }
}
