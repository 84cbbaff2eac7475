//! The schema: it describes every field, and a general validator agrees with ours.

use std::{collections::BTreeSet, fs, path::Path};

use common::catalogue::{self, Source};
use serde_json::Value;

use super::{GOOD, problems};
use crate::desired::{parse, read, schema};

const DOCUMENTATION: &str = include_str!("../../../../docs/usage/infrastructure.md");

fn examples() -> Vec<std::path::PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let documents: Vec<_> =
        paths.filter(|path| fs::read_to_string(path).unwrap().contains("kind: Infrastructure\n")).collect();
    assert!(documents.len() >= 3, "{documents:?}");
    documents
}

/// Calls a function with the name and schema of every property.
fn properties(schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    match schema {
        Value::Object(fields) => {
            for (name, property) in fields.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                visit(name, property);
            }
            fields.values().for_each(|inner| properties(inner, visit));
        }
        Value::Array(items) => items.iter().for_each(|inner| properties(inner, visit)),
        _ => {}
    }
}

#[test]
fn every_example_is_valid_and_has_the_schemas_form() {
    let validator = jsonschema::draft202012::new(schema()).unwrap();
    for path in examples() {
        read(&path).unwrap_or_else(|problems| panic!("{problems}"));
        let value: Value = serde_yaml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert_eq!(errors, Vec::<String>::new(), "{}", path.display());
    }
}

#[test]
fn the_schema_is_one_and_describes_every_field() {
    let schema = schema();
    jsonschema::draft202012::meta::validate(schema).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let mut count = 0;
    properties(schema, &mut |name, property| {
        count += 1;
        assert!(property["description"].as_str().is_some_and(|text| text.len() > 5), "{name}: {property}");
    });
    assert!(count > 50, "{count}");
}

/// Ours knows the keywords that our types make: what the general one refuses, it refuses, too.
#[test]
fn a_general_validator_agrees() {
    let validator = jsonschema::draft202012::new(schema()).unwrap();
    let mut refused = 0;
    for (line, _) in GOOD.lines().enumerate() {
        for change in ["", "nodes: x", "  - 1", "x: 1", "      - {}", "    host: 7", "  lab: {}", "key: *"] {
            let lines = GOOD.lines().enumerate().map(|(n, text)| if n == line { change } else { text });
            let text = lines.collect::<Vec<_>>().join("\n");
            let Ok(value) = serde_yaml::from_str::<Value>(&text) else { continue };
            if !validator.is_valid(&value) {
                refused += 1;
                assert!(!problems(&text).is_empty(), "{text}");
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn the_documentation_names_every_field() {
    let mut missing = BTreeSet::new();
    properties(schema(), &mut |name, _| {
        if !DOCUMENTATION.contains(&format!("{name}`")) {
            missing.insert(name.to_owned());
        }
    });
    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn the_documentation_names_every_default() {
    properties(schema(), &mut |name, property| {
        let default = match &property["default"] {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return,
        };
        let row = DOCUMENTATION.lines().find(|line| {
            line.starts_with('|') && line.contains(&format!("{name}` |")) && line.contains(&default)
        });
        assert!(row.is_some(), "{name}: {default}");
    });
}

/// What the documentation shows is what people see.
#[test]
fn the_documented_errors_are_those_of_the_documented_example() {
    let mut blocks = DOCUMENTATION.split("```yaml\n").filter_map(|rest| rest.split("```").next());
    let example = blocks.find(|block| block.starts_with("# infrastructure.yaml\n")).unwrap();
    assert_eq!(problems(example), Vec::<String>::new());
    let wrong = example.replace("pool: worker,", "pool: workers,").replace("1.37.1", "1.37");
    let errors = parse(&wrong, Path::new("infrastructure.yaml")).unwrap_err().to_string();
    let shown: String = errors.lines().map(|line| format!("    {line}\n")).collect();
    assert!(DOCUMENTATION.contains(&shown), "{shown}");
}

#[test]
fn the_documented_rollouts_of_groups_are_right() {
    let mut blocks = DOCUMENTATION.split("```yaml\n").filter_map(|rest| rest.split("```").next());
    let example = blocks.find(|block| block.starts_with("# infrastructure.yaml\n")).unwrap();
    let groups = blocks.find(|block| block.starts_with("cluster:\n")).unwrap();
    let (head, rest) = example.split_once("cluster:\n").unwrap();
    let (_, software) = rest.split_once("software:\n").unwrap();
    let head = head.replace("worker: {}", "stateless: {}, databases: {}");
    assert_eq!(problems(&format!("{head}{groups}software:\n{software}")), Vec::<String>::new());
}

/// A software that is added gets its row.
#[test]
fn software_by_version_is_what_the_agent_documents() {
    let agent = include_str!("../../../../docs/usage/node-agent.md");
    let documented: BTreeSet<String> = agent
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .filter(|(_, rest)| {
            ["upstream version", "exact Debian", "any text"].iter().any(|kind| rest.starts_with(kind))
        })
        .map(|(name, _)| name.to_owned())
        .filter(|name| !name.starts_with("kube"))
        .collect();
    assert_eq!(documented, catalogue::names_of(Source::Named));
}
