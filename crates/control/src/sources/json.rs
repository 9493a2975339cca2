//! JSON from other programs: the caller bounds its size, and this file its depth.

use pgweir_core::limits::MEMBERS_MAX;
use serde_json::Value;

/// The maximum depth of arrays and objects within each other.
const DEPTH_MAX: usize = 64;

/// The longest name of a node, in bytes, and the longest name of a host.
const NAME_BYTES_MAX: usize = 63;
const HOST_BYTES_MAX: usize = 255;

/// Parses a text.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, String> {
    if depth(bytes) > DEPTH_MAX {
        return Err(format!("the answer is nested more than {DEPTH_MAX} levels deep"));
    }
    serde_json::from_slice(bytes).map_err(|error| format!("the answer is no JSON: {error}"))
}

/// Returns the depth of the brackets outside of strings.
fn depth(bytes: &[u8]) -> usize {
    let (mut deepest, mut now, mut in_text, mut escaped) = (0_usize, 0_usize, false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                now += 1;
                deepest = deepest.max(now);
            }
            b']' | b'}' if !in_text => now = now.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Returns a string member of an object.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// Returns whether a node may have this name, which is shown on the console, in metrics and in the log.
pub(crate) fn is_name(name: &str) -> bool {
    is_plain(name, NAME_BYTES_MAX)
}

/// Returns whether a host may have this name.
pub(crate) fn is_host(host: &str) -> bool {
    is_plain(host, HOST_BYTES_MAX)
}

fn is_plain(text: &str, bytes_max: usize) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':');
    !text.is_empty() && text.len() <= bytes_max && text.bytes().all(fits)
}

/// Returns a fault if a list is longer than a cluster may be.
pub(crate) fn too_many(members: usize) -> Option<String> {
    (members > MEMBERS_MAX)
        .then(|| format!("the answer has {members} members, and at most {MEMBERS_MAX} are taken"))
}

/// Returns another program's text as one line for the log.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    line.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn depth_counts_brackets_outside_of_texts() {
        assert_eq!(depth(br#"{"a":[1,{"b":"]]]\"[["}]}"#), 3);
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(parse(deep(64).as_bytes()).is_ok());
        assert!(parse(deep(65).as_bytes()).expect_err("too deep").contains("nested"));
        assert!(parse(&vec![b'['; 1 << 20]).is_err());
    }

    #[test]
    fn names_that_a_node_may_have() {
        assert!(is_name("pg-0.main") && is_name("10.0.0.1") && is_name("fd00::1"));
        assert!(
            !is_name("") && !is_name("a b") && !is_name("a\nb") && !is_name(&"a".repeat(64)) && !is_name("ä")
        );
        assert!(!is_host("a;b") && !is_host("/tmp") && is_host("pg-0.svc"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (parse(&bytes), quoted(&bytes));
        }
    }
}
