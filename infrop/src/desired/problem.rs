//! What is wrong with a document: where, what, and how it is put right.

use std::{error::Error, fmt, path::Path};

use serde::Serialize;

use super::formats::shown;

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The document, as it was named.
    pub file: String,
    /// The line, from 1; none if the file cannot be read at all.
    pub line: Option<usize>,
    /// The column, from 1, in characters.
    pub column: Option<usize>,
    /// The field, as `cluster.workers[0].pool`; empty for the document as a whole.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// How it is put right.
    pub hint: String,
}

/// All that is wrong with a document, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

/// A place in the text, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub line: usize,
    pub column: usize,
}

impl Place {
    /// Where a document begins.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// A field of the document, from its root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Field(Vec<Step>);

/// One step to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Into a map.
    Key(String),
    /// Into a list.
    Item(usize),
}

/// Something wrong, before it is known where that stands in the text.
#[derive(Debug)]
pub(super) struct Finding {
    pub field: Field,
    pub spot: Spot,
    pub problem: String,
    pub hint: String,
}

/// What of a field an error points at.
#[derive(Debug, Clone, Copy)]
pub(super) enum Spot {
    /// Its value; if there is none, that of the next field around it.
    Value,
    /// Its name.
    Key,
    /// Here.
    Place(Place),
}

impl Field {
    /// A field by its names.
    pub fn of(keys: &[&str]) -> Self {
        Self(keys.iter().map(|key| Step::Key((*key).to_owned())).collect())
    }

    /// A field in this one.
    pub fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.to_owned()))
    }

    /// An item of this one.
    pub fn item(&self, number: usize) -> Self {
        self.with(Step::Item(number))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// As a JSON pointer.
    pub fn pointer(&self) -> String {
        let escape = |step: &Step| match step {
            Step::Key(key) => key.replace('~', "~0").replace('/', "~1"),
            Step::Item(number) => number.to_string(),
        };
        self.0.iter().map(|step| format!("/{}", escape(step))).collect()
    }

    pub fn steps(&self) -> &[Step] {
        &self.0
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Item(number) => write!(f, "[{number}]")?,
                Step::Key(key) if is_plain(key) && index == 0 => f.write_str(key)?,
                Step::Key(key) if is_plain(key) => write!(f, ".{key}")?,
                Step::Key(key) => write!(f, "[{}]", shown(key))?,
            }
        }
        Ok(())
    }
}

/// Whether a key can stand between dots.
fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.len() <= 63 && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

impl Finding {
    /// Something wrong with a field's value.
    pub fn new(field: Field, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { field, spot: Spot::Value, problem: problem.into(), hint: hint.into() }
    }

    /// Pointing at something else of the field.
    pub fn at(self, spot: Spot) -> Self {
        Self { spot, ..self }
    }
}

impl Problems {
    /// The one problem of a file that has no lines.
    pub(super) fn of_file(file: &Path, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self(vec![Problem {
            file: file.display().to_string(),
            line: None,
            column: None,
            field: String::new(),
            problem: problem.into(),
            hint: hint.into(),
        }])
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, field, problem, hint } = self;
        f.write_str(file)?;
        for number in [line, column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        let separator = if field.is_empty() { "" } else { ": " };
        write!(f, ": {field}{separator}{problem}\n  hint: {hint}")
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl Error for Problems {}
