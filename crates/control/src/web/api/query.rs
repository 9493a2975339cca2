//! The query of a request: the part after the question mark.

use super::super::reply::Refusal;

/// The names and values of a query, in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Query(Vec<(String, String)>);

impl Query {
    pub(in super::super) fn parse(text: &str) -> Result<Query, Refusal> {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        pairs
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Some((decode(name)?, decode(value)?))
            })
            .collect::<Option<_>>()
            .map(Query)
            .ok_or_else(|| Refusal::Bad("the query is not percent-encoded UTF-8".to_owned()))
    }

    /// Returns a value; `None` if it is missing or empty.
    pub(in super::super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns the given names, in their order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Returns a whole number within bounds.
    pub(in super::super) fn number(
        &self,
        name: &str,
        min: usize,
        max: usize,
        default: usize,
    ) -> Result<usize, Refusal> {
        let Some(text) = self.get(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| Refusal::Bad(format!("\"{name}\" must be a whole number from {min} to {max}")))
    }

    /// Returns one of these words; `None` if the name is missing.
    pub(in super::super) fn word<'a>(
        &self,
        name: &str,
        words: &[&'a str],
    ) -> Result<Option<&'a str>, Refusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let found = words.iter().find(|word| **word == text);
        let fault = || Refusal::Bad(format!("\"{name}\" must be one of {}", words.join(", ")));
        found.map(|word| Some(*word)).ok_or_else(fault)
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_bounded() {
        let query = Query::parse("database=a%26b+c&window=60&user=").expect("good");
        assert_eq!((query.get("database"), query.get("user"), query.get("x")), (Some("a&b c"), None, None));
        assert_eq!((query.number("window", 1, 60, 5), query.number("limit", 1, 9, 5)), (Ok(60), Ok(5)));
        assert!(query.number("window", 1, 59, 5).is_err() && query.number("database", 1, 2, 1).is_err());
        assert_eq!(query.word("window", &["10", "60"]), Ok(Some("60")));
        assert!(query.word("window", &["10"]).is_err());
        for bad in ["a=%", "a=%4", "a=%zz", "a=%ff"] {
            assert!(Query::parse(bad).is_err(), "{bad}");
        }
    }
}
