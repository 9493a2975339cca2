//! Counts that pgweir may choose itself.

use crate::Kind;
use crate::syntax::number;
use crate::syntax::value::Value;

/// A count: `auto`, or a number that pgweir keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AutoCount {
    /// A number that pgweir finds by measurement.
    Auto,
    /// The configured number, which is at least 1.
    Fixed(u32),
}

impl Value for AutoCount {
    fn parse(text: &str, kind: Kind) -> Result<Self, String> {
        let wrong = || format!("it must be auto or a {}", kind.describe());
        if text.eq_ignore_ascii_case("auto") {
            return Ok(AutoCount::Auto);
        }
        let count = number::whole(text).map_err(|_| wrong())?;
        if !kind.range().contains(&count) {
            return Err(wrong());
        }
        u32::try_from(count).map(AutoCount::Fixed).map_err(|_| wrong())
    }

    fn show(&self, _: Kind) -> Option<String> {
        Some(match self {
            AutoCount::Auto => "auto".to_owned(),
            AutoCount::Fixed(count) => count.to_string(),
        })
    }

    fn unset() -> Self {
        AutoCount::Auto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_or_a_number_in_range() {
        let read = |text| AutoCount::parse(text, Kind::Count(1, 1000));
        assert_eq!(read("AUTO"), Ok(AutoCount::Auto));
        assert_eq!(read("3"), Ok(AutoCount::Fixed(3)));
        for wrong in ["0", "-1", "1001", "x", ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(AutoCount::Fixed(3).show(Kind::Count(1, 9)), Some("3".to_owned()));
    }
}
