//! The right-hand side of an entry in `[databases]`, `[users]` and `[peers]`: `key=value key='va''lue'`.
//!
//! Pairs are separated by spaces (only spaces), spaces around `=` are allowed, and a value may stand in
//! single quotes, where two of them mean one. An empty value is an error.

/// The fault in PgBouncer's words. It does not tell the place, as the text may hold a password.
pub(crate) const SYNTAX: &str = "syntax error in connection string";

/// Splits a connection string into its pairs. If one of them has a fault, no pairs are returned.
pub(crate) fn pairs(text: &str) -> Result<Vec<(&str, String)>, &'static str> {
    let mut found = Vec::new();
    let mut rest = text.trim_matches(' ');
    while !rest.is_empty() {
        let (key, value, after) = pair(rest).ok_or(SYNTAX)?;
        found.push((key, value));
        rest = after.trim_start_matches(' ');
    }
    Ok(found)
}

/// Keys that exclude each other. Adding the first one removes the others.
const EITHER: [(&str, &[&str]); 4] = [
    ("cluster", &["host", "port", "load_balance_hosts"]),
    ("host", &["cluster"]),
    ("route", &["node"]),
    ("node", &["route"]),
];

/// Adds the pairs of `added` to a connection string. A key that both have gets the value of `added`.
pub(crate) fn merged(text: &str, added: &str) -> Result<String, &'static str> {
    let mut all = pairs(text)?;
    for (key, value) in pairs(added)? {
        let excluded = EITHER.iter().find(|(own, _)| *own == key).map_or(&[][..], |(_, others)| others);
        all.retain(|(known, _)| *known != key && !excluded.contains(known));
        all.push((key, value));
    }
    let written = |(key, value): &(&str, String)| format!("{key}='{}'", value.replace('\'', "''"));
    Ok(all.iter().map(written).collect::<Vec<_>>().join(" "))
}

/// Returns the first pair of `text`, and the text after it.
fn pair(text: &str) -> Option<(&str, String, &str)> {
    let key_len = text.find([' ', '='])?;
    let (key, rest) = text.split_at(key_len);
    let rest = rest.trim_start_matches(' ').strip_prefix('=')?.trim_start_matches(' ');
    let (value, after) = match rest.strip_prefix('\'') {
        Some(quoted) => quoted_value(quoted)?,
        None => {
            let (value, after) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
            (value.to_owned(), after)
        }
    };
    // As in PgBouncer, `host=` without a value is an error, not an empty host.
    if key.is_empty() || value.is_empty() {
        return None;
    }
    Some((key, value, after))
}

/// Returns the value up to its closing quote, after which a space or the end has to follow.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('\'')?;
        value.push_str(part);
        match after.strip_prefix('\'') {
            Some(more) => {
                value.push('\'');
                rest = more;
            }
            None if after.is_empty() || after.starts_with(' ') => return Some((value, after)),
            None => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Option<Vec<(String, String)>> {
        pairs(text).ok().map(|found| found.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
    }

    fn list(pairs: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
        Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn pairs_are_separated_by_spaces() {
        assert_eq!(read(""), list(&[]));
        assert_eq!(read("  "), list(&[]));
        assert_eq!(read("host=a port=1"), list(&[("host", "a"), ("port", "1")]));
        assert_eq!(read(" pool_size = 4  host =b "), list(&[("pool_size", "4"), ("host", "b")]));
        assert_eq!(read("host=a,b:c;d"), list(&[("host", "a,b:c;d")]));
        assert_eq!(read("host=a'b' x=a=b"), list(&[("host", "a'b'"), ("x", "a=b")]));
    }

    #[test]
    fn pairs_are_added() {
        for (text, added, all) in [
            ("host=a pool_size=1", "pool_size=2", "host='a' pool_size='2'"),
            ("host=a port=1 dbname=d", "cluster=main", "dbname='d' cluster='main'"),
            ("cluster=main", "host=b", "host='b'"),
            ("", "connect_query='select ''x'''", "connect_query='select ''x'''"),
            ("a=1", "", "a='1'"),
        ] {
            assert_eq!(merged(text, added).as_deref(), Ok(all), "{text} += {added}");
            assert_eq!(pairs(all).and_then(|_| merged(all, "")).as_deref(), Ok(all));
        }
        assert!(merged("a", "b=1").is_err() && merged("a=1", "b").is_err());
    }

    /// PgBouncer reads these texts the same way: the value may follow after spaces, so an empty one swallows the next pair; and a tab is
    /// no space.
    #[test]
    fn surprises_are_kept() {
        assert_eq!(read("host= port=1"), list(&[("host", "port=1")]));
        assert_eq!(read("host=a\tport=1"), list(&[("host", "a\tport=1")]));
    }

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(read("password='it''s a' x=1"), list(&[("password", "it's a"), ("x", "1")]));
        assert_eq!(read("q='select ''a=b'''"), list(&[("q", "select 'a=b'")]));
        assert_eq!(read("q=''''"), list(&[("q", "'")]));
    }

    #[test]
    fn broken_strings_are_refused() {
        for text in [
            "host",
            "=a",
            "host=",
            "host=''",
            "host='a",
            "host='a'b",
            "host='a'port=1",
            "a ; b",
            "'",
            "a='''",
        ] {
            assert_eq!(pairs(text), Err(SYNTAX), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[ a=',\u{e9}\t]*") {
            let _ = pairs(&text);
        }

        #[test]
        fn a_quoted_value_comes_back(value in "\\PC+") {
            let text = format!("k='{}' next=1", value.replace('\'', "''"));
            prop_assert_eq!(pairs(&text), Ok(vec![("k", value), ("next", "1".to_owned())]));
        }
    }
}
