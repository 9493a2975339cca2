//! A configuration as tables, lists and texts, each with its line: the common form of TOML, YAML and
//! Odyssey's files.

use saphyr_parser::{Event, Parser, ScalarStyle};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::limits::{DEPTH_MAX, NODES_MAX};

/// A value with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) line: u32,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// YAML's null.
    Null,
    /// A number, a switch or a text, as it is written.
    Text(String),
    List(Vec<Node>),
    Table(Table),
    /// Odyssey's `storage "name" { ... }`: the words before the brace, and the table.
    Block(Vec<String>, Table),
}

/// Keys and their values in the order of the file. A key may occur more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table(pub(crate) Vec<(String, Node)>);

/// The fault of a text, with its line.
pub(crate) type Broken = (u32, String);

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Node::text)
    }

    /// Returns the table of a key; an empty one if there is none.
    pub(crate) fn table(&self, key: &str) -> Table {
        match self.get(key).map(|node| &node.value) {
            Some(Value::Table(table)) => table.clone(),
            _ => Table::default(),
        }
    }

    /// Returns the blocks with this key, with their words.
    pub(crate) fn blocks<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (u32, &'a [String], &'a Table)> {
        self.0.iter().filter(move |(name, _)| name == key).filter_map(|(_, node)| match &node.value {
            Value::Block(words, table) => Some((node.line, words.as_slice(), table)),
            _ => None,
        })
    }
}

impl Node {
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> &[Node] {
        match &self.value {
            Value::List(nodes) => nodes,
            _ => &[],
        }
    }

    /// Returns the entries of a list of tables, or of a table whose keys are numbers (`[pools.x.users.0]`).
    pub(crate) fn entries(&self) -> Vec<(u32, &Table)> {
        let nodes: Vec<&Node> = match &self.value {
            Value::List(nodes) => nodes.iter().collect(),
            Value::Table(table) => table.0.iter().map(|(_, node)| node).collect(),
            _ => Vec::new(),
        };
        let table = |node| match node {
            &Node { line, value: Value::Table(ref table) } => Some((line, table)),
            _ => None,
        };
        nodes.into_iter().filter_map(table).collect()
    }
}

/// Reads TOML. The parser itself limits nesting.
pub(crate) fn toml(text: &str) -> Result<Table, Broken> {
    let lines = Lines::of(text);
    match DeTable::parse(text) {
        // The error's own text is not used: it repeats the line, which may contain a password.
        Err(error) => {
            let line = error.span().map_or(0, |span| lines.at(span.start));
            Err((line, "it is not valid TOML here".to_owned()))
        }
        Ok(table) => toml_table(table.get_ref(), &lines, 0),
    }
}

fn toml_table(table: &DeTable<'_>, lines: &Lines, depth: usize) -> Result<Table, Broken> {
    let mut out = Table::default();
    for (key, value) in table {
        let line = lines.at(key.span().start);
        out.0.push((key.get_ref().to_string(), Node { line, value: toml_value(value, lines, depth)? }));
    }
    Ok(out)
}

fn toml_value(value: &Spanned<DeValue<'_>>, lines: &Lines, depth: usize) -> Result<Value, Broken> {
    let line = lines.at(value.span().start);
    if depth > DEPTH_MAX {
        return Err((line, "it is nested too deep".to_owned()));
    }
    Ok(match value.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Text(number.to_string()),
            Err(_) => return Err((line, "the number is too large".to_owned())),
        },
        DeValue::Float(number) => Value::Text(number.as_str().to_owned()),
        DeValue::Boolean(switch) => Value::Text(switch.to_string()),
        DeValue::Datetime(time) => Value::Text(time.to_string()),
        DeValue::Array(values) => {
            let node = |value: &Spanned<DeValue<'_>>| {
                let line = lines.at(value.span().start);
                toml_value(value, lines, depth + 1).map(|value| Node { line, value })
            };
            Value::List(values.iter().map(node).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => Value::Table(toml_table(table, lines, depth + 1)?),
    })
}

/// The offsets at which the lines of a text begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        Lines(std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect())
    }

    fn at(&self, offset: usize) -> u32 {
        u32::try_from(self.0.partition_point(|begin| *begin <= offset)).unwrap_or(u32::MAX)
    }
}

/// Reads the first document of a YAML text. Anchors and aliases are refused: no pooler documents them, and they can make a small file
/// a large one.
pub(crate) fn yaml(text: &str) -> Result<Table, Broken> {
    let mut open: Vec<Open> = Vec::new();
    let mut nodes = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event
            .map_err(|error| (line_of(error.marker().line()), "it is not valid YAML here".to_owned()))?;
        let line = line_of(span.start.line());
        nodes += 1;
        if nodes > NODES_MAX || open.len() > DEPTH_MAX {
            return Err((line, "it has too many values, or they are nested too deep".to_owned()));
        }
        let done = match event {
            Event::Alias(_) => return Err((line, "aliases are not supported".to_owned())),
            Event::Scalar(text, style, ..) => Some(Node { line, value: scalar(&text, style) }),
            Event::SequenceStart(..) => {
                open.push(Open::List(line, Vec::new()));
                None
            }
            Event::MappingStart(..) => {
                open.push(Open::Table(line, Table::default(), None));
                None
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(Open::close),
            Event::StreamEnd | Event::DocumentEnd => return Ok(Table::default()),
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => None,
        };
        let Some(node) = done else { continue };
        match open.last_mut() {
            Some(parent) => parent.take(node)?,
            None => {
                return match node.value {
                    Value::Table(table) => Ok(table),
                    _ => Err((line, "a table of settings was expected".to_owned())),
                };
            }
        }
    }
    Ok(Table::default())
}

/// A list or a table that is being read.
enum Open {
    List(u32, Vec<Node>),
    Table(u32, Table, Option<(u32, String)>),
}

impl Open {
    fn take(&mut self, node: Node) -> Result<(), Broken> {
        match self {
            Open::List(_, nodes) => nodes.push(node),
            Open::Table(_, table, key) => match key.take() {
                Some((line, name)) => {
                    if table.get(&name).is_some() {
                        return Err((line, "a key comes twice".to_owned()));
                    }
                    table.0.push((name, Node { line, ..node }));
                }
                None => match node.value {
                    Value::Text(name) => *key = Some((node.line, name)),
                    _ => return Err((node.line, "a key is a text".to_owned())),
                },
            },
        }
        Ok(())
    }

    fn close(self) -> Node {
        match self {
            Open::List(line, nodes) => Node { line, value: Value::List(nodes) },
            Open::Table(line, table, _) => Node { line, value: Value::Table(table) },
        }
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    match (style, text) {
        (ScalarStyle::Plain, "" | "~" | "null" | "Null" | "NULL") => Value::Null,
        _ => Value::Text(text.to_owned()),
    }
}

fn line_of(line: usize) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_and_yaml_read_alike() {
        let from_toml = toml("[a]\nb = 1_000\nc = \"x\"\n\n[[a.d]]\ne = true\n[a.f.0]\ng = 0x10\n").unwrap();
        let from_yaml =
            yaml("a:\n  b: 1000\n  c: x\n  d:\n    - e: true\n  f:\n    0:\n      g: 16\n").unwrap();
        for tree in [from_toml, from_yaml] {
            let a = tree.table("a");
            assert_eq!((a.text("b"), a.text("c")), (Some("1000"), Some("x")));
            assert_eq!(a.get("d").unwrap().entries()[0].1.text("e"), Some("true"));
            assert_eq!(a.get("f").unwrap().entries()[0].1.text("g"), Some("16"));
        }
    }

    #[test]
    fn lines_are_known() {
        assert_eq!(toml("a = 1\n\n[b]\nc = 2\n").unwrap().table("b").get("c").unwrap().line, 4);
        assert_eq!(yaml("a: 1\n\nb:\n  c: 2\n").unwrap().table("b").get("c").unwrap().line, 4);
    }

    #[test]
    fn hostile_texts_are_refused() {
        assert!(toml(&format!("a = {}", "[".repeat(100_000))).is_err());
        assert!(yaml(&"[".repeat(100_000)).is_err());
        assert!(yaml("a: &x [1]\nb: *x\n").is_err(), "aliases");
        assert!(yaml("a: 1\na: 2\n").is_err());
        assert!(yaml("- a\n").is_err());
        assert_eq!(toml("a = 1\nb = \"hunter2\nc = 3\n").unwrap_err().0, 2);
        assert!(!toml("password = \"hunter2\n").unwrap_err().1.contains("hunter2"));
        assert!(toml("a = 99999999999999999999\n").is_err());
    }
}
