//! The startup parameter `options`: settings, written as on PostgreSQL's command line.

use crate::error::WireError;

/// A setting: its name and its value.
pub type Setting = (Vec<u8>, Vec<u8>);

/// Reads `-c name=value`, `-cname=value` and `--name=value`, in any number. Words are split as in
/// PostgreSQL's `pg_split_opts`: at blanks, and a backslash makes the next character literal. A `-` in a name
/// becomes `_`, as there. PostgreSQL's other switches (`-d`, `-s`, ...) are refused.
///
/// The result needs at most a few times the memory of `raw`.
///
/// # Errors
///
/// [`WireError::Options`] (SQLSTATE 42601, as PostgreSQL's "invalid command-line argument").
pub fn parse_options(raw: &[u8]) -> Result<Vec<Setting>, WireError> {
    let mut settings = Vec::new();
    let mut words = Words { rest: raw };
    while let Some(word) = words.next() {
        let setting = if let Some(long) = word.strip_prefix(b"--") {
            split_setting(long)?
        } else if word == b"-c" {
            let next =
                words.next().ok_or(WireError::Options { problem: "-c without a setting behind it" })?;
            split_setting(&next)?
        } else if let Some(short) = word.strip_prefix(b"-c") {
            split_setting(short)?
        } else {
            return Err(WireError::Options { problem: "something that is not a setting" });
        };
        settings.push(setting);
    }
    Ok(settings)
}

fn split_setting(text: &[u8]) -> Result<Setting, WireError> {
    let at = text.iter().position(|byte| *byte == b'=');
    let at = at.ok_or(WireError::Options { problem: "a setting without a value" })?;
    let (name, value) = text.split_at(at);
    if name.is_empty() {
        return Err(WireError::Options { problem: "a setting without a name" });
    }
    let name = name.iter().map(|byte| if *byte == b'-' { b'_' } else { *byte }).collect();
    Ok((name, value.iter().skip(1).copied().collect()))
}

struct Words<'a> {
    rest: &'a [u8],
}

impl Iterator for Words<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        while let [first, rest @ ..] = self.rest
            && is_blank(*first)
        {
            self.rest = rest;
        }
        if self.rest.is_empty() {
            return None;
        }
        let mut word = Vec::new();
        while let [byte, rest @ ..] = self.rest {
            if is_blank(*byte) {
                break;
            }
            self.rest = rest;
            if *byte != b'\\' {
                word.push(*byte);
            } else if let [escaped, rest @ ..] = rest {
                word.push(*escaped);
                self.rest = rest;
            }
        }
        Some(word)
    }
}

/// Returns whether C's `isspace` would accept a byte.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings(raw: &str) -> Vec<(String, String)> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let settings = parse_options(raw.as_bytes()).unwrap();
        settings.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn problem(raw: &str) -> &'static str {
        match parse_options(raw.as_bytes()) {
            Err(WireError::Options { problem }) => problem,
            other => panic!("{raw:?} gave {other:?}"),
        }
    }

    #[test]
    fn reads_what_postgresql_reads() {
        let table: &[(&str, &[(&str, &str)])] = &[
            ("", &[]),
            (" \t\r\n ", &[]),
            ("-c work_mem=1MB", &[("work_mem", "1MB")]),
            ("-cwork_mem=1MB", &[("work_mem", "1MB")]),
            ("--work-mem=1MB", &[("work_mem", "1MB")]),
            ("-c  a-b=c-d", &[("a_b", "c-d")]),
            ("-c a=1 --b=2 -cc=3", &[("a", "1"), ("b", "2"), ("c", "3")]),
            ("--a=1 --a=2", &[("a", "1"), ("a", "2")]),
            (r"-c search_path=a,\ b", &[("search_path", "a, b")]),
            (r"--a=\\", &[("a", r"\")]),
            (r"--a=x\", &[("a", "x")]),
            (r"\-\-a=1", &[("a", "1")]),
            ("--a=", &[("a", "")]),
            ("--a=b=c", &[("a", "b=c")]),
            ("-c --a=1", &[("__a", "1")]),
            ("--a=-c", &[("a", "-c")]),
        ];
        for (raw, expected) in table {
            let expected: Vec<_> = expected.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            assert_eq!(settings(raw), expected, "{raw:?}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        assert_eq!(problem("-c"), "-c without a setting behind it");
        assert_eq!(problem("-c "), "-c without a setting behind it");
        assert_eq!(problem("-c a"), "a setting without a value");
        assert_eq!(problem("--a"), "a setting without a value");
        assert_eq!(problem("--"), "a setting without a value");
        assert_eq!(problem("--=1"), "a setting without a name");
        for raw in ["-d 5", "a=1", "--a=1 b", "-", r"\ ", "=", "-C a=1"] {
            assert_eq!(problem(raw), "something that is not a setting", "{raw:?}");
        }
    }

    proptest! {
        #[test]
        fn any_value_survives_escaping(name in "[a-z_.]{1,10}", value: Vec<u8>) {
            let mut raw = format!("--{name}=").into_bytes();
            for byte in &value {
                raw.extend_from_slice(&[b'\\', *byte]);
            }
            prop_assert_eq!(parse_options(&raw), Ok(vec![(name.into_bytes(), value)]));
        }

        #[test]
        fn never_more_than_was_said(raw in "[-c=a \\\\]{0,40}") {
            if let Ok(settings) = parse_options(raw.as_bytes()) {
                let len: usize = settings.iter().map(|(name, value)| name.len() + value.len()).sum();
                prop_assert!(len <= raw.len());
                prop_assert!(settings.iter().all(|(name, _)| !name.is_empty() && !name.contains(&b'-')));
            }
        }
    }
}
