//! Values in the form of each project (switches, times, sizes), and their form in pgweir.

use pgweir_settings::Kind as SettingKind;

use crate::kinds::Kind;
use crate::tree::{Node, Value};

/// The kind of value that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// A switch.
    Flag,
    /// A whole number from 0.
    Count,
    /// A port, 1 to 65535.
    Port,
    /// A time; without a unit in milliseconds.
    Milliseconds,
    /// A time; without a unit in seconds.
    Seconds,
    /// A size in bytes.
    Bytes,
    /// One of these words, each with pgweir's name for it.
    Word(&'static [(&'static str, &'static str)]),
    /// Any text.
    Text,
    /// Texts with commas between them, or a list.
    List,
    /// Any value, which is not read.
    Anything,
}

/// A value, as far as it was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Text(String),
    TimeMs(u64),
}

impl Given {
    /// Returns the value in the form of a setting of this kind. Whole seconds are rounded up, so that a short
    /// time does not become "never".
    pub(crate) fn write(&self, kind: SettingKind) -> String {
        match self {
            Given::Text(text) => text.clone(),
            Given::TimeMs(ms) => match kind {
                SettingKind::Milliseconds => ms.to_string(),
                SettingKind::WholeSeconds(least) => ms.div_ceil(1000).max(least).to_string(),
                _ if ms % 1000 == 0 => (ms / 1000).to_string(),
                _ => format!("{}.{:03}", ms / 1000, ms % 1000).trim_end_matches('0').to_owned(),
            },
        }
    }
}

/// The longest time that is accepted: a hundred years. Longer ones mean "never" in all projects.
const TIME_MS_MAX: u64 = 100 * 365 * 86_400_000;

/// Reads a value. The error describes the values that are accepted, without the value itself.
pub(crate) fn understand(takes: Takes, kind: Kind, node: &Node) -> Result<Given, String> {
    if takes == Takes::Anything {
        return Ok(Given::Text(String::new()));
    }
    if let (Takes::List, Value::List(nodes)) = (takes, &node.value) {
        let texts: Option<Vec<&str>> = nodes.iter().map(Node::text).collect();
        let texts = texts.ok_or("it must be a list of texts")?;
        return Ok(Given::Text(texts.join(",")));
    }
    let text = match &node.value {
        Value::Null => "",
        _ => node.text().ok_or("it must be a single value")?,
    };
    understand_text(takes, kind, text)
}

pub(crate) fn understand_text(takes: Takes, kind: Kind, text: &str) -> Result<Given, String> {
    let text_of = |text: &str| Given::Text(text.to_owned());
    match takes {
        Takes::Flag => flag(kind, text).map(|on| text_of(if on { "1" } else { "0" })),
        Takes::Count => count(text).map(|number| Given::Text(number.to_string())),
        Takes::Port => match count(text) {
            Ok(port @ 1..=65535) => Ok(Given::Text(port.to_string())),
            _ => Err("it must be a port, 1 to 65535".to_owned()),
        },
        Takes::Milliseconds => time_ms(kind, text, 1).map(Given::TimeMs),
        Takes::Seconds => time_ms(kind, text, 1000).map(Given::TimeMs),
        Takes::Bytes => bytes(kind, text).map(|number| Given::Text(number.to_string())),
        Takes::Word(words) => {
            let found = words.iter().find(|(theirs, _)| theirs.eq_ignore_ascii_case(text));
            let known = || words.iter().map(|(theirs, _)| *theirs).collect::<Vec<_>>().join(", ");
            found.map(|(_, ours)| text_of(ours)).ok_or_else(|| format!("it must be one of {}", known()))
        }
        Takes::Text | Takes::List | Takes::Anything => Ok(text_of(text)),
    }
}

/// Reads a switch, in the words of this project.
pub(crate) fn flag(kind: Kind, text: &str) -> Result<bool, String> {
    let (on, off): (&[&str], &[&str]) = match kind {
        Kind::Pgpool => (&["on", "true", "yes", "1"], &["off", "false", "no", "0"]),
        Kind::Odyssey => (&["yes"], &["no"]),
        Kind::Environment => (&["yes", "true", "1", "on"], &["no", "false", "0", "off", ""]),
        Kind::PgCat | Kind::PgDog | Kind::PgDoorman => (&["true"], &["false"]),
    };
    let is = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    match (is(on), is(off)) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(format!("it must be {} or {}", on[0], off[0])),
    }
}

fn count(text: &str) -> Result<u32, String> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if plain { text.parse().ok() } else { None };
    // PgBouncer's counts are C's int.
    number
        .filter(|number| i32::try_from(*number).is_ok())
        .ok_or_else(|| "it must be a whole number from 0".to_owned())
}

/// Returns the units that a project knows, the longest first, each with its length in the smallest one.
fn time_units(kind: Kind) -> &'static [(&'static str, u64)] {
    match kind {
        Kind::Pgpool => &[("min", 60_000), ("ms", 1), ("s", 1000), ("h", 3_600_000), ("d", 86_400_000)],
        Kind::PgDoorman => &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)],
        _ => &[],
    }
}

fn size_units(kind: Kind) -> &'static [(&'static str, u64)] {
    match kind {
        Kind::Pgpool => &[("kb", 1 << 10), ("mb", 1 << 20), ("gb", 1 << 30), ("tb", 1 << 40), ("b", 1)],
        Kind::PgDoorman => &[
            ("kb", 1 << 10),
            ("mb", 1 << 20),
            ("gb", 1 << 30),
            ("k", 1 << 10),
            ("m", 1 << 20),
            ("g", 1 << 30),
            ("b", 1),
        ],
        _ => &[],
    }
}

/// Reads a number with or without a unit. A number without a unit is multiplied by `alone`.
fn number_with_unit(text: &str, units: &[(&str, u64)], alone: u64) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let number: u64 = digits.parse().ok()?;
    let unit = unit.trim_start();
    let factor = match unit {
        "" => alone,
        _ => units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1,
    };
    number.checked_mul(factor)
}

fn time_ms(kind: Kind, text: &str, alone_ms: u64) -> Result<u64, String> {
    let units = time_units(kind);
    let right = || match units {
        [] if alone_ms == 1 => "it must be a whole number of milliseconds".to_owned(),
        [] => "it must be a whole number of seconds".to_owned(),
        _ => {
            let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
            format!("it must be a number, with one of the units {} or none", names.join(", "))
        }
    };
    number_with_unit(text, units, alone_ms).map(|ms| ms.min(TIME_MS_MAX)).ok_or_else(right)
}

fn bytes(kind: Kind, text: &str) -> Result<u64, String> {
    number_with_unit(text, size_units(kind), 1).ok_or_else(|| "it must be a number of bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(takes: Takes, kind: Kind, text: &str) -> Option<Given> {
        understand_text(takes, kind, text).ok()
    }

    #[test]
    fn each_project_has_its_switches() {
        for (kind, on, no_switch) in [
            (Kind::Pgpool, "on", "ja"),
            (Kind::Odyssey, "yes", "on"),
            (Kind::PgCat, "true", "yes"),
            (Kind::PgDog, "true", "1"),
            (Kind::PgDoorman, "true", "on"),
        ] {
            assert_eq!(read(Takes::Flag, kind, on), Some(Given::Text("1".to_owned())), "{kind:?}");
            assert_eq!(read(Takes::Flag, kind, no_switch), None, "{kind:?}");
        }
    }

    #[test]
    fn each_project_has_its_units() {
        let table = [
            (Takes::Seconds, Kind::Pgpool, "5min", Some(300_000)),
            (Takes::Seconds, Kind::Pgpool, "20", Some(20_000)),
            (Takes::Milliseconds, Kind::Pgpool, "10 s", Some(10_000)),
            (Takes::Seconds, Kind::Pgpool, "5m", None),
            (Takes::Milliseconds, Kind::PgDoorman, "5m", Some(300_000)),
            (Takes::Milliseconds, Kind::PgDoorman, "3000", Some(3000)),
            (Takes::Milliseconds, Kind::PgDoorman, "5min", None),
            (Takes::Milliseconds, Kind::PgDog, "5s", None),
            (Takes::Milliseconds, Kind::PgDog, "53.5", None),
            (Takes::Milliseconds, Kind::PgCat, "-1", None),
            (Takes::Seconds, Kind::Odyssey, "60", Some(60_000)),
            (Takes::Milliseconds, Kind::PgDog, "18446744073709551615", Some(TIME_MS_MAX)),
        ];
        for (takes, kind, text, expected) in table {
            assert_eq!(read(takes, kind, text), expected.map(Given::TimeMs), "{kind:?} {text}");
        }
        assert_eq!(read(Takes::Bytes, Kind::Pgpool, "400kB"), Some(Given::Text("409600".to_owned())));
        assert_eq!(read(Takes::Bytes, Kind::PgDoorman, "1M"), Some(Given::Text("1048576".to_owned())));
        assert_eq!(read(Takes::Bytes, Kind::PgDog, "1M"), None);
    }

    #[test]
    fn times_are_written_as_the_setting_wants_them() {
        for (ms, kind, text) in [
            (5000, SettingKind::Seconds, "5"),
            (1500, SettingKind::Seconds, "1.5"),
            (1, SettingKind::Seconds, "0.001"),
            (1500, SettingKind::WholeSeconds(0), "2"),
            (0, SettingKind::WholeSeconds(1), "1"),
            (1500, SettingKind::Milliseconds, "1500"),
        ] {
            assert_eq!(Given::TimeMs(ms).write(kind), text);
        }
    }

    #[test]
    fn words_ports_and_counts() {
        let modes = Takes::Word(&[("loc", "x"), ("random", "y")]);
        assert_eq!(read(modes, Kind::PgCat, "LOC"), Some(Given::Text("x".to_owned())));
        assert_eq!(understand_text(modes, Kind::PgCat, "z"), Err("it must be one of loc, random".to_owned()));
        assert_eq!(read(Takes::Port, Kind::PgCat, "0"), None);
        assert_eq!(read(Takes::Port, Kind::PgCat, "65536"), None);
        assert_eq!(read(Takes::Count, Kind::PgCat, "4294967295"), None);
        assert_eq!(read(Takes::Count, Kind::PgCat, "+5"), None);
    }
}
