//! The JSON Schema of the document, made from its types: editors complete and check with it, and so does
//! `structure`.

use std::sync::LazyLock;

use schemars::{Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::Value;

use super::{formats, model::Infrastructure};

/// Made once: it is the same for every document.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    SchemaSettings::draft2020_12()
        .with_transform(RecursiveTransform(describe_variants))
        .with_transform(RecursiveTransform(polish))
        .into_generator()
        .into_root_schema_for::<Infrastructure>()
        .to_value()
});

/// The JSON Schema of the infrastructure document (draft 2020-12).
pub fn schema() -> &'static Value {
    &SCHEMA
}

/// What an enum's variant says of itself belongs to the field that it is in YAML.
fn describe_variants(schema: &mut Schema) {
    for variant in schema.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
        let (format, about) = (variant.get("format").cloned(), variant.get("description").cloned());
        let Some(variant) = variant.as_object_mut() else { continue };
        variant.remove("format");
        let Some(Value::Object(properties)) = variant.get_mut("properties") else { continue };
        for property in properties.values_mut().filter_map(Value::as_object_mut) {
            if let Some(about) = &about {
                property.entry("description").or_insert_with(|| about.clone());
            }
            if let Some(format) = &format {
                property.insert("format".to_owned(), format.clone());
            }
        }
    }
}

/// A pattern for programs that do not know our formats; descriptions in one line, as editors show them.
fn polish(schema: &mut Schema) {
    let format = schema.get("format").and_then(Value::as_str).and_then(formats::find);
    if let Some(format) = format {
        schema.insert("pattern".to_owned(), format.pattern.into());
    }
    if let Some(about) = schema.get("description").and_then(Value::as_str) {
        let line = about.replace('\n', " ");
        schema.insert("description".to_owned(), line.into());
    }
}
