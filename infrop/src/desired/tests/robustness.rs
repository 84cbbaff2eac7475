//! Texts that nobody meant: there is an answer to each, and never a panic.

use std::{path::Path, sync::LazyLock};

use proptest::prelude::*;
use serde_json::Value;

use super::{GOOD, read};
use crate::desired::{
    Infrastructure,
    formats::{self, Format},
    read_from, schema, structure, yaml,
};

/// Every format and a judge of its pattern, made once.
static PATTERNS: LazyLock<Vec<(&Format, jsonschema::Validator)>> = LazyLock::new(|| {
    let judge = |pattern| jsonschema::draft202012::new(&serde_json::json!({ "pattern": pattern })).unwrap();
    formats::ALL.iter().map(|format| (format, judge(format.pattern))).collect()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_texts_have_an_answer(text in any::<String>()) {
        let _ = read(&text);
    }

    #[test]
    fn arbitrary_bytes_have_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_from(bytes.as_slice(), Path::new("x.yaml"));
    }

    #[test]
    fn arbitrary_yaml_has_an_answer(text in "([a-c]|: |- |\\n|  |\\{|\\}|\\[|\\]|,|&a |\\*a|!|#|'|\"|\\||>|---\\n|\\?|1|\\.|~|<<|\\t){0,60}") {
        let _ = read(&text);
    }

    /// A piece of the good document goes elsewhere, is cut off, or is said twice.
    #[test]
    fn mutations_have_an_answer_and_what_the_structure_accepts_serde_accepts(
        from in 0..GOOD.len(), length in 0..60_usize, to in 0..GOOD.len(), word in "[a-z:{}\\[\\],\\n 0-9.-]{0,6}",
    ) {
        let cut: String = GOOD.chars().skip(from).take(length).collect();
        let mut text = GOOD.replacen(&cut, &word, 1);
        let at = to.min(text.len());
        text.insert_str(at, &cut);
        let result = read(&text);
        if let (Some(tree), findings) = yaml::parse(&text)
            && findings.is_empty()
            && structure::check(&tree, schema()).is_empty()
        {
            prop_assert!(serde_json::from_value::<Infrastructure>(tree.value()).is_ok(), "{result:?}\n{text}");
        }
    }

    /// A value of the good document becomes something else.
    #[test]
    fn other_values_have_an_answer(line in 0..50_usize, value in prop_oneof![
        Just("null"), Just("[]"), Just("{}"), Just("-1"), Just("99999999999999999999"), Just("1e400"), Just(".inf"),
        Just("true"), Just("''"), Just("x"), Just("{ lab: { pools: {} } }"), Just("[[]]"), Just("0"),
    ]) {
        let lines = GOOD.lines().enumerate().map(|(number, text)| match text.split_once(": ") {
            Some((key, _)) if number == line => format!("{key}: {value}"),
            _ => text.to_owned(),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let accepted = read(&text);
        let (Some(tree), _) = yaml::parse(&text) else { return Ok(()) };
        if structure::check(&tree, schema()).is_empty() {
            prop_assert!(serde_json::from_value::<Infrastructure>(tree.value()).is_ok(), "{accepted:?}\n{text}");
        }
    }

    /// Patterns stand in the schema for programs; they must not refuse what infrop takes.
    #[test]
    fn patterns_accept_what_infrop_accepts(text in "[a-zA-Z0-9./:_ -]{0,30}") {
        for (format, pattern) in PATTERNS.iter().filter(|(format, _)| (format.accepts)(&text)) {
            prop_assert!(pattern.is_valid(&Value::from(text.as_str())), "{}: {text:?}", format.name);
        }
    }
}

/// Aliases of aliases would be billions of values.
#[test]
fn a_bomb_is_refused() {
    let mut text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, of) in ('b'..='j').zip('a'..) {
        text += &format!("{name}: &{name} [{}]\n", vec![format!("*{of}"); 10].join(", "));
    }
    let error = read(&text).unwrap_err().to_string();
    assert!(error.contains("larger than 200000 values"), "{error}");
}

#[test]
fn scalars_are_those_of_yaml_1_2() {
    for (text, expected) in [
        ("1", "1"),
        ("-1", "-1"),
        ("+1", "1"),
        ("0x1f", "31"),
        ("0o17", "15"),
        ("017", "17"),
        ("1.5", "1.5"),
        ("1e3", "1000.0"),
        ("~", "null"),
        ("true", "true"),
        ("off", "\"off\""),
        ("yes", "\"yes\""),
        ("1.37.1", "\"1.37.1\""),
        ("--1", "\"--1\""),
        ("1:2", "\"1:2\""),
        ("'1'", "\"1\""),
        ("\"~\"", "\"~\""),
        (".", "\".\""),
        ("1-2", "\"1-2\""),
        (".5", "0.5"),
        ("1e400", "\"1e400\""),
        ("infinity", "\"infinity\""),
    ] {
        let (tree, _) = yaml::parse(&format!("a: {text}"));
        assert_eq!(tree.unwrap().value()["a"].to_string(), expected, "{text}");
    }
}
