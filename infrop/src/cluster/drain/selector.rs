//! Which pods a label selector means. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Whether a selector means something with these labels. An empty one means everything.
pub(super) fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let LabelSelector { match_labels, match_expressions } = selector;
    let equal = match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal && match_expressions.iter().flatten().all(|requirement| is_met(requirement, labels))
}

fn is_met(requirement: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let LabelSelectorRequirement { key, operator, values } = requirement;
    let value = labels.get(key);
    let listed = value.is_some_and(|value| values.iter().flatten().any(|one| one == value));
    match operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        // The API server takes a selector that it does not understand for one that means nothing.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_mean_what_the_api_server_says() {
        let labels: BTreeMap<String, String> =
            [("app", "web"), ("tier", "front")].map(|(key, value)| (key.into(), value.into())).into();
        let expression = |key: &str, operator: &str, values: &[&str]| json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
        for (selector, expected) in [
            (json!({}), true),
            (json!({ "matchLabels": { "app": "web" } }), true),
            (json!({ "matchLabels": { "app": "db" } }), false),
            (json!({ "matchLabels": { "app": "web", "zone": "a" } }), false),
            (expression("app", "In", &["web", "db"]), true),
            (expression("app", "In", &["db"]), false),
            (expression("zone", "In", &["a"]), false),
            (expression("app", "NotIn", &["db"]), true),
            (expression("app", "NotIn", &["web"]), false),
            (expression("zone", "NotIn", &["a"]), true),
            (expression("app", "Exists", &[]), true),
            (expression("zone", "Exists", &[]), false),
            (expression("app", "DoesNotExist", &[]), false),
            (expression("zone", "DoesNotExist", &[]), true),
            (expression("app", "Like", &["web"]), false),
            (
                json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["back"] }] }),
                false,
            ),
        ] {
            let parsed = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(matches(&parsed, &labels), expected, "{selector}");
        }
    }
}
