//! YAML with the place of every value, from a parser's events. The tree is JSON's: what YAML has beyond that (tags,
//! keys that are no text) is refused, because two readers could see two documents in it.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput};
use serde_json::{Map, Number, Value};

use super::{
    formats::shown,
    problem::{Field, Finding, Place, Spot, Step},
};

/// Deeper than any document of ours, and far from what a stack bears.
const MAX_DEPTH: usize = 64;

/// Aliases make many values from few characters; a document of a thousand hosts has some ten thousand.
const MAX_NODES: usize = 200_000;

/// A value and where it begins.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub place: Place,
    pub content: Content,
}

/// A value.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Null,
    Bool(bool),
    /// With the text as it is written: 1.10 is the number 1.1, but a version 1.10.
    Number(Number, String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A field of a map.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: String,
    pub place: Place,
    pub node: Node,
}

/// Reads a text that holds one document. Keys that stand twice are findings beside the tree; without a tree there is
/// only what stopped the reading.
pub(super) fn parse(text: &str) -> (Option<Node>, Vec<Finding>) {
    let mut reader = Reader {
        parser: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        findings: Vec::new(),
    };
    match reader.document() {
        Ok(node) => (Some(node), reader.findings),
        Err(finding) => {
            reader.findings.push(finding);
            (None, reader.findings)
        }
    }
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    findings: Vec<Finding>,
}

fn stop(field: &Field, place: Place, problem: impl Into<String>, hint: &str) -> Finding {
    Finding::new(field.clone(), problem, hint).at(Spot::Place(place))
}

fn place(marker: Marker) -> Place {
    Place { line: marker.line().max(1), column: marker.col() + 1 }
}

fn no_yaml(error: &ScanError) -> Finding {
    stop(
        &Field::default(),
        place(*error.marker()),
        format!("is not YAML: {}", error.info()),
        "look at indentation, colons and quotes around here",
    )
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Finding> {
        match self.parser.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(no_yaml(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn document(&mut self) -> Result<Node, Finding> {
        let root = Field::default();
        let empty = |place| {
            let hint = "begin with `apiVersion: infrop.caos.ch/v1alpha1`; examples are in infrop/examples/";
            stop(&root, place, "is empty", hint)
        };
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Err(empty(Place::START)),
                (Event::DocumentStart(_), _) => break,
                _ => {}
            }
        }
        let (event, span) = self.next()?;
        let node = self.node(event, span, &root, 0)?;
        if matches!(node.content, Content::Null) {
            return Err(empty(node.place));
        }
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(node),
                (Event::DocumentStart(_), span) => {
                    let hint = "write one document per file: remove this `---` and what follows";
                    return Err(stop(&root, place(span.start), "a second document begins here", hint));
                }
                _ => {}
            }
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, field: &Field, depth: usize) -> Result<Node, Finding> {
        let place = place(span.start);
        if depth > MAX_DEPTH {
            return Err(stop(
                field,
                place,
                "is nested too deeply",
                "no field is that deep: look at the brackets",
            ));
        }
        self.count(1, field, place)?;
        let (content, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                refuse_tag(tag.is_some(), field, place)?;
                let content =
                    if style == ScalarStyle::Plain { plain(&text) } else { Content::Text(text.into_owned()) };
                (content, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_tag(tag.is_some(), field, place)?;
                (self.list(field, depth)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                refuse_tag(tag.is_some(), field, place)?;
                (self.map(field, depth)?, anchor)
            }
            Event::Alias(anchor) => return self.alias(anchor, field, place),
            _ => return Err(stop(field, place, "is not YAML", "write a value here")),
        };
        let node = Node { place, content };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, field: &Field, depth: usize) -> Result<Content, Finding> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(Content::List(items));
            }
            items.push(self.node(event, span, &field.item(items.len()), depth + 1)?);
        }
    }

    fn map(&mut self, field: &Field, depth: usize) -> Result<Content, Finding> {
        let mut entries: Vec<Entry> = Vec::new();
        // Beside the list, so that a large map does not take the square of its size.
        let mut places: HashMap<String, Place> = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            let at = place(span.start);
            let key = match event {
                Event::MappingEnd => return Ok(Content::Map(entries)),
                Event::Scalar(text, _, _, None) => text.into_owned(),
                _ => {
                    return Err(stop(
                        field,
                        at,
                        "has a key that is not a text",
                        "write a plain word as the key",
                    ));
                }
            };
            let inner = field.key(&key);
            let (event, span) = self.next()?;
            let mut node = self.node(event, span, &inner, depth + 1)?;
            if matches!(node.content, Content::Null) {
                // A value that is not written has no place of its own.
                node.place = at;
            }
            if let Some(first) = places.get(&key) {
                let problem = format!("stands here a second time, after line {}", first.line);
                let hint = "remove one of the two";
                self.findings.push(Finding::new(inner, problem, hint).at(Spot::Place(at)));
            } else {
                places.insert(key.clone(), at);
                entries.push(Entry { key, place: at, node });
            }
        }
    }

    fn alias(&mut self, anchor: usize, field: &Field, place: Place) -> Result<Node, Finding> {
        // An anchor whose value has not ended is not there yet: a value cannot contain itself.
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err(stop(field, place, "contains itself", "write the value instead of an alias"));
        };
        self.count(node.size(), field, place)?;
        Ok(node)
    }

    fn count(&mut self, nodes: usize, field: &Field, place: Place) -> Result<(), Finding> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            let problem = format!("makes the document larger than {MAX_NODES} values");
            return Err(stop(field, place, problem, "write less, or fewer aliases of aliases"));
        }
        Ok(())
    }
}

fn refuse_tag(is_there: bool, field: &Field, place: Place) -> Result<(), Finding> {
    if is_there {
        return Err(stop(
            field,
            place,
            "has a YAML tag",
            "remove the word that begins with !; quote a text instead",
        ));
    }
    Ok(())
}

/// What a text without quotes is, by YAML 1.2: `on`, `off`, `yes` and `no` are texts.
fn plain(text: &str) -> Content {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Content::Null,
        "true" | "True" | "TRUE" => return Content::Bool(true),
        "false" | "False" | "FALSE" => return Content::Bool(false),
        _ => {}
    }
    match number(text) {
        Some(number) => Content::Number(number, text.to_owned()),
        None => Content::Text(text.to_owned()),
    }
}

fn number(text: &str) -> Option<Number> {
    let based = |prefix: &str, radix: u32| {
        text.strip_prefix(prefix).and_then(|digits| u64::from_str_radix(digits, radix).ok())
    };
    if let Some(number) = based("0x", 16).or_else(|| based("0o", 8)) {
        return Some(number.into());
    }
    let unsigned = text.trim_start_matches(['-', '+']);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') || text.len() > unsigned.len() + 1 {
        return None;
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    if unsigned.chars().all(|c| c.is_ascii_digit()) {
        return text.parse::<u64>().map(Number::from).or_else(|_| text.parse::<i64>().map(Number::from)).ok();
    }
    let is_decimal = unsigned.chars().all(|c| c.is_ascii_digit() || ".eE+-".contains(c));
    text.parse::<f64>().ok().filter(|_| is_decimal).and_then(Number::from_f64)
}

impl Node {
    fn size(&self) -> usize {
        1 + match &self.content {
            Content::List(items) => items.iter().map(Self::size).sum(),
            Content::Map(entries) => entries.iter().map(|entry| entry.node.size()).sum(),
            _ => 0,
        }
    }

    /// What it is, for people.
    pub fn kind(&self) -> &'static str {
        match self.content {
            Content::Null => "empty",
            Content::Bool(_) => "a boolean",
            Content::Number(..) => "a number",
            Content::Text(_) => "a text",
            Content::List(_) => "a list",
            Content::Map(_) => "a map of fields",
        }
    }

    /// A number, true or false as it may be repeated; texts as far as they are harmless.
    pub fn shown(&self) -> String {
        match &self.content {
            Content::Bool(value) => value.to_string(),
            Content::Number(_, text) => text.clone(),
            Content::Text(text) => shown(text),
            _ => self.kind().to_owned(),
        }
    }

    /// As JSON, without places.
    pub fn value(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Bool(value) => Value::Bool(*value),
            Content::Number(value, _) => Value::Number(value.clone()),
            Content::Text(text) => Value::String(text.clone()),
            Content::List(items) => Value::Array(items.iter().map(Self::value).collect()),
            Content::Map(entries) => Value::Object(
                entries.iter().map(|entry| (entry.key.clone(), entry.node.value())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// Where a field stands; for one that is not there, the place of what should have it.
    pub fn find(&self, field: &Field, spot: Spot) -> Place {
        if let Spot::Place(place) = spot {
            return place;
        }
        let (mut node, mut key) = (self, None);
        for step in field.steps() {
            match (&node.content, step) {
                (Content::Map(entries), Step::Key(name)) => {
                    let Some(entry) = entries.iter().find(|entry| entry.key == *name) else {
                        return node.place;
                    };
                    (node, key) = (&entry.node, Some(entry.place));
                }
                (Content::List(items), Step::Item(number)) => {
                    let Some(item) = items.get(*number) else { return node.place };
                    (node, key) = (item, None);
                }
                _ => return node.place,
            }
        }
        key.filter(|_| matches!(spot, Spot::Key)).unwrap_or(node.place)
    }
}
