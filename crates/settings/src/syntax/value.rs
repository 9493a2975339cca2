//! Turns texts into typed values and back, with one implementation for each Rust type that a setting can
//! have.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::password::masked;
use crate::syntax::number::{self, MILLISECOND_US, SECOND_US};
use crate::{Kind, Password};

/// A type that a setting can have.
pub(crate) trait Value: Sized {
    /// Reads the text of a setting of this kind. The error is the end of a message: "it must be ...".
    fn parse(text: &str, kind: Kind) -> Result<Self, String>;

    /// Writes the value as `SHOW CONFIG` does; `None` is NULL.
    fn show(&self, kind: Kind) -> Option<String>;

    /// The value of a setting that is not set and has no default.
    fn unset() -> Self;

    /// Returns whether an empty value means "not set", for settings that may be unset.
    fn means_unset(&self) -> bool {
        false
    }
}

/// The value that a setting has before any file is read.
pub(crate) fn initial<T: Value>(default: Option<&str>, kind: Kind) -> T {
    default.map_or_else(T::unset, |text| T::parse(text, kind).expect("a test walks over all defaults"))
}

/// The maximum of whole seconds. They are C's `int` in PgBouncer, and in the socket options that some of them
/// become.
const SECONDS_INT_MAX: u64 = i32::MAX as u64;

fn wanted(what: &str) -> String {
    format!("it must be {what}")
}

fn in_range<T: TryFrom<i64>>(number: i64, range: RangeInclusive<i64>) -> Result<T, String> {
    let outside = || wanted(&format!("between {} and {}", range.start(), range.end()));
    if !range.contains(&number) {
        return Err(outside());
    }
    T::try_from(number).map_err(|_| outside())
}

impl Value for bool {
    fn parse(text: &str, _: Kind) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "on" | "true" | "yes" => Ok(true),
            "off" | "false" | "no" => Ok(false),
            // Any other number than zero is true, as in C.
            number => number::whole(number).map(|n| n != 0).map_err(|_| wanted("0 or 1")),
        }
    }

    fn show(&self, _: Kind) -> Option<String> {
        Some(u8::from(*self).to_string())
    }

    fn unset() -> Self {
        false
    }
}

impl Value for u32 {
    fn parse(text: &str, kind: Kind) -> Result<Self, String> {
        let number = match kind {
            Kind::Bytes { .. } => i64::try_from(number::bytes(text).map_err(wanted)?).unwrap_or(i64::MAX),
            _ => number::whole(text).map_err(wanted)?,
        };
        // A number below zero means the same as zero: PgBouncer applies its limits only if they are positive.
        let number = if kind == Kind::Limit { number.max(0) } else { number };
        in_range(number, kind.range())
    }

    fn show(&self, _: Kind) -> Option<String> {
        Some(self.to_string())
    }

    fn unset() -> Self {
        0
    }
}

impl Value for u16 {
    fn parse(text: &str, kind: Kind) -> Result<Self, String> {
        in_range(number::whole(text).map_err(wanted)?, kind.range())
    }

    fn show(&self, _: Kind) -> Option<String> {
        Some(self.to_string())
    }

    fn unset() -> Self {
        0
    }
}

impl Value for Duration {
    fn parse(text: &str, kind: Kind) -> Result<Self, String> {
        match kind {
            Kind::Milliseconds => number::time(text, MILLISECOND_US).map_err(wanted),
            Kind::WholeSeconds(min) => {
                let time = number::time(text, SECOND_US).map_err(wanted)?;
                if time.subsec_nanos() != 0 || !(min..=SECONDS_INT_MAX).contains(&time.as_secs()) {
                    return Err(wanted(&format!(
                        "a whole number of seconds between {min} and {SECONDS_INT_MAX}"
                    )));
                }
                Ok(time)
            }
            // PgBouncer's file format uses a number below zero for "no limit" here.
            Kind::OwnSeconds if number::whole(text).is_ok_and(|n| n < 0) => Ok(Duration::ZERO),
            _ => number::time(text, SECOND_US).map_err(wanted),
        }
    }

    fn show(&self, kind: Kind) -> Option<String> {
        match kind {
            Kind::Milliseconds => Some(self.as_millis().to_string()),
            Kind::WholeSeconds(_) => Some(self.as_secs().to_string()),
            _ => Some(number::show_time(*self, SECOND_US)),
        }
    }

    fn unset() -> Self {
        Duration::ZERO
    }
}

impl Value for String {
    fn parse(text: &str, kind: Kind) -> Result<Self, String> {
        if kind == Kind::AuthDatabase && text == crate::ADMIN_DATABASE {
            return Err(r#"cannot use the reserved "pgbouncer" database as an auth_dbname"#.to_owned());
        }
        Ok(text.to_owned())
    }

    fn show(&self, _: Kind) -> Option<String> {
        Some(self.clone())
    }

    fn unset() -> Self {
        String::new()
    }

    fn means_unset(&self) -> bool {
        self.is_empty()
    }
}

impl Value for Password {
    fn parse(text: &str, _: Kind) -> Result<Self, String> {
        Ok(Password::new(text))
    }

    fn show(&self, kind: Kind) -> Option<String> {
        Some(if kind == Kind::TextWithSecret { masked(self.reveal()) } else { "***".to_owned() })
    }

    fn unset() -> Self {
        Password::new("")
    }

    fn means_unset(&self) -> bool {
        self.reveal().is_empty()
    }
}

impl Value for Vec<String> {
    fn parse(text: &str, kind: Kind) -> Result<Self, String> {
        let blanks = matches!(kind, Kind::Names);
        let items = text.split(|c: char| c == ',' || blanks && c.is_ascii_whitespace()).map(str::trim);
        Ok(items.filter(|item| !item.is_empty()).map(str::to_owned).collect())
    }

    fn show(&self, _: Kind) -> Option<String> {
        Some(self.join(","))
    }

    fn unset() -> Self {
        Vec::new()
    }
}

/// A value that may be unset: then the global value counts, or PgBouncer's NULL.
impl<T: Value> Value for Option<T> {
    fn parse(text: &str, kind: Kind) -> Result<Self, String> {
        if kind.inherits(text) {
            return Ok(None);
        }
        let value = T::parse(text, kind)?;
        Ok(if value.means_unset() { None } else { Some(value) })
    }

    fn show(&self, kind: Kind) -> Option<String> {
        self.as_ref().and_then(|value| value.show(kind))
    }

    fn unset() -> Self {
        None
    }
}
