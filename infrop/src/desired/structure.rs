//! Whether a document has the form of the schema: fields, types, texts. Beside serde, because that stops at the first
//! error; not with a general validator of JSON Schema, because its errors would name keywords where people need
//! fields, and it would repeat values that may be secrets. It knows the keywords that our types make (a test with a
//! general one sees to that).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    formats::{self, Format},
    problem::{Field, Finding, Place, Spot},
    similar,
    yaml::{Content, Entry, Node},
};

/// Everything in which a document differs from a schema.
pub(super) fn check(node: &Node, schema: &Value) -> Vec<Finding> {
    let mut checker = Checker { schema, findings: Vec::new() };
    checker.check(node, schema, &Field::default());
    checker.findings
}

struct Checker<'s> {
    schema: &'s Value,
    findings: Vec<Finding>,
}

impl<'s> Checker<'s> {
    fn resolve(&self, schema: &'s Value) -> &'s Value {
        let reference = schema.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix('#'));
        reference.and_then(|name| self.schema.pointer(name)).unwrap_or(schema)
    }

    fn find(&mut self, field: &Field, place: Place, problem: impl Into<String>, hint: impl Into<String>) {
        self.findings.push(Finding::new(field.clone(), problem, hint).at(Spot::Place(place)));
    }

    fn check(&mut self, node: &Node, schema: &'s Value, field: &Field) {
        // Beside a reference stands what the field says of itself.
        let about = about(schema).or_else(|| about(self.resolve(schema)));
        let schema = self.resolve(schema);
        if let Some(alternatives) = schema.get("anyOf").and_then(Value::as_array) {
            // An optional field: its type or nothing.
            if !matches!(node.content, Content::Null)
                && let Some(other) = alternatives.iter().find(|other| !allows(other, "null"))
            {
                self.check(node, other, field);
            }
            return;
        }
        if let Some(choices) = choices(schema) {
            return self.choice(node, &choices, field, about);
        }
        if matches!(node.content, Content::Null) && allows(schema, "null") {
            return;
        }
        match &node.content {
            Content::Map(entries) if is_map(schema) => self.map(node.place, entries, schema, field),
            Content::List(items) if allows(schema, "array") => {
                if let Some(schema) = schema.get("items") {
                    for (index, item) in items.iter().enumerate() {
                        self.check(item, schema, &field.item(index));
                    }
                }
            }
            Content::Text(text) if allows(schema, "string") => self.text(text, schema, field, node.place),
            Content::Number(number, _) if allows(schema, "integer") => {
                let low = schema.get("minimum").and_then(Value::as_u64).unwrap_or(0);
                let high = schema.get("maximum").and_then(Value::as_u64).unwrap_or(u64::MAX);
                if !number.as_u64().is_some_and(|number| (low..=high).contains(&number)) {
                    let problem = format!("is {}, not a whole number from {low} to {high}", node.shown());
                    self.find(field, node.place, problem, hint(about));
                }
            }
            Content::Bool(_) if allows(schema, "boolean") => {}
            // `true` is the schema of what is not ours to judge.
            _ if schema.is_boolean() => {}
            _ => self.wrong_kind(node, schema, field, about),
        }
    }

    fn wrong_kind(&mut self, node: &Node, schema: &Value, field: &Field, about: Option<&str>) {
        let expected = [
            ("array", "a list"),
            ("string", "a text"),
            ("integer", "a whole number"),
            ("boolean", "true or false"),
        ];
        let expected = expected.into_iter().find(|(kind, _)| allows(schema, kind));
        let expected = expected.map_or("a map of fields", |(_, words)| words);
        let hint = match (&node.content, variants(schema)) {
            (Content::Number(..) | Content::Bool(_), _) if expected == "a text" => {
                let text = node.shown();
                if format(schema).is_some_and(|format| !(format.accepts)(&text)) {
                    // Quotes alone would not make it right.
                    return self.text(&text, schema, field, node.place);
                }
                format!("write it in quotes: \"{text}\"")
            }
            (_, variants @ [_, ..]) => alternatives(variants),
            _ => hint(about),
        };
        self.find(field, node.place, format!("is {}, not {expected}", node.kind()), hint);
    }

    fn choice(&mut self, node: &Node, choices: &[&Value], field: &Field, about: Option<&str>) {
        if choices.iter().any(|choice| **choice == node.value()) {
            return;
        }
        let words: Vec<String> = choices
            .iter()
            .map(|choice| choice.as_str().map_or_else(|| choice.to_string(), str::to_owned))
            .collect();
        let problem = format!("is {}, not {}", node.shown(), any_of(&words));
        let meant = match &node.content {
            Content::Text(text) => similar::among(text, words.iter().map(String::as_str)),
            _ => None,
        };
        let hint = meant.map_or_else(|| hint(about), |meant| format!("did you mean {meant}?"));
        self.find(field, node.place, problem, hint);
    }

    fn text(&mut self, text: &str, schema: &Value, field: &Field, place: Place) {
        if let Some(format) = format(schema).filter(|format| !(format.accepts)(text)) {
            let what = if format.confidential { "this text".to_owned() } else { formats::shown(text) };
            let problem = format!("{what} is not {}", format.expected);
            self.find(field, place, problem, format.hint);
        }
    }

    fn map(&mut self, place: Place, entries: &[Entry], schema: &'s Value, field: &Field) {
        let variants = variants(schema);
        let mut known: BTreeMap<&str, &Value> = BTreeMap::new();
        for one in variants.iter().chain([schema]) {
            known.extend(properties(one).into_iter().flatten().map(|(name, schema)| (name.as_str(), schema)));
        }
        for Entry { key, place, node } in entries {
            let inner = field.key(key);
            if let Some(names) = schema.get("propertyNames") {
                self.text(key, names, &inner, *place);
            }
            match (known.get(key.as_str()), schema.get("additionalProperties")) {
                (Some(schema), _) => self.check(node, schema, &inner),
                (None, Some(others)) if *others != Value::Bool(false) => self.check(node, others, &inner),
                (None, _) => self.unknown(key, &known, &inner, *place),
            }
        }
        let is_there = |name: &str| entries.iter().any(|entry| entry.key == name);
        for name in required(schema).filter(|name| !is_there(name)) {
            let about = known.get(name).and_then(|schema| about(schema));
            self.find(&field.key(name), place, "is missing", hint(about));
        }
        self.variant(variants, &is_there, field, place);
    }

    /// Of fields that exclude each other there has to be one.
    fn variant(&mut self, variants: &[Value], is_there: &dyn Fn(&str) -> bool, field: &Field, place: Place) {
        let names: Vec<String> = variants.iter().flat_map(required).map(|name| format!("`{name}`")).collect();
        let there = variants.iter().filter(|variant| required(variant).all(is_there)).count();
        if !variants.is_empty() && there != 1 {
            let what = if there == 0 { "has none of" } else { "has more than one of" };
            self.find(field, place, format!("{what} {}", names.join(", ")), alternatives(variants));
        }
    }

    fn unknown(&mut self, key: &str, known: &BTreeMap<&str, &Value>, field: &Field, place: Place) {
        let names: Vec<&str> = known.keys().copied().collect();
        let hint = match similar::among(key, names.iter().copied()) {
            Some(meant) => format!("did you mean {meant}?"),
            None if names.is_empty() => "there are no fields here: remove it".to_owned(),
            None => format!("fields here are {}", names.join(", ")),
        };
        self.find(field, place, "is no field of this document", hint);
    }
}

fn format(schema: &Value) -> Option<&'static Format> {
    schema.get("format").and_then(Value::as_str).and_then(formats::find)
}

/// Fields that exclude each other, as schemas of maps.
fn variants(schema: &Value) -> &[Value] {
    schema.get("oneOf").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn alternatives(variants: &[Value]) -> String {
    let describe = |name: &str, variant| format!(" `{name}`: {}", about(variant).unwrap_or_default());
    let of_variant = |one| required(one).map(move |name| describe(name, one)).collect::<String>();
    format!("write one of these fields.{}", variants.iter().map(of_variant).collect::<String>())
}

fn about(schema: &Value) -> Option<&str> {
    schema.get("description").and_then(Value::as_str)
}

fn hint(about: Option<&str>) -> String {
    about.map_or_else(|| "see `infrop schema`".to_owned(), |about| format!("what it is: {about}"))
}

fn allows(schema: &Value, kind: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == kind,
        Some(Value::Array(names)) => names.iter().any(|name| name == kind),
        _ => false,
    }
}

fn is_map(schema: &Value) -> bool {
    allows(schema, "object") || schema.get("oneOf").is_some()
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The values of a field that takes only some.
fn choices(schema: &Value) -> Option<Vec<&Value>> {
    if let Some(choices) = schema.get("enum").and_then(Value::as_array) {
        return Some(choices.iter().collect());
    }
    schema.get("oneOf").and_then(Value::as_array)?.iter().map(|one| one.get("const")).collect()
}

/// `a, b or c`.
fn any_of(words: &[String]) -> String {
    match words {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}
