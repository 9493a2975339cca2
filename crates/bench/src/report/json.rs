//! Writes JSON: the few shapes that a report has.

use std::fmt::{self, Display, Write as _};

/// A value of a report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    /// A number; one that JSON has no word for (infinite, not a number) becomes null.
    Number(f64),
    /// A text.
    Text(String),
    /// Values in order.
    List(Vec<Json>),
    /// Named values, in the order given.
    Object(Vec<(&'static str, Json)>),
    /// Named values whose names are data.
    Map(Vec<(String, Json)>),
    /// Not known.
    Null,
}

impl Json {
    /// A text.
    #[must_use]
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

impl From<f64> for Json {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Json {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) if number.is_finite() => write!(f, "{number}"),
            Self::Number(_) | Self::Null => f.write_str("null"),
            Self::Text(text) => write_text(f, text),
            Self::List(values) => {
                f.write_char('[')?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index == 0 { "" } else { ", " })?;
                }
                f.write_char(']')
            }
            Self::Object(fields) => write_fields(f, fields.iter().map(|(name, value)| (*name, value))),
            Self::Map(fields) => write_fields(f, fields.iter().map(|(name, value)| (name.as_str(), value))),
        }
    }
}

fn write_fields<'a>(
    f: &mut fmt::Formatter<'_>,
    fields: impl Iterator<Item = (&'a str, &'a Json)>,
) -> fmt::Result {
    f.write_char('{')?;
    for (index, (name, value)) in fields.enumerate() {
        f.write_str(if index == 0 { "\n" } else { ",\n" })?;
        write_text(f, name)?;
        write!(f, ": {value}")?;
    }
    f.write_str("\n}")
}

fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            _ if u32::from(character) < 0x20 => write!(f, "\\u{:04x}", u32::from(character))?,
            _ => f.write_char(character)?,
        }
    }
    f.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_escapes() {
        let value = Json::Object(vec![
            ("a", Json::List(vec![1_u32.into(), 0.5.into(), f64::NAN.into()])),
            ("b", Json::text("x\"\\\n")),
            ("c", Json::Map(vec![("d".to_owned(), Json::Null)])),
        ]);
        let expected = "{\n\"a\": [1, 0.5, null],\n\"b\": \"x\\\"\\\\\\u000a\",\n\"c\": {\n\"d\": null\n}\n}";
        assert_eq!(value.to_string(), expected);
    }
}
