//! The key of an answer: all that the answer to a group depends on, except the data. Keys are compared whole, never by a hash alone.
//!
//! The key has the pool (database and user), the value of each setting of the client's session, and the group's messages as the client sent
//! them. The name of a prepared statement is replaced by the number of the statement. Formats, values and a Describe are part of the messages,
//! and so of the key. In a transaction whose BEGIN names modes, the key has the BEGIN, too: a statement can ask for the modes
//! (`current_setting('transaction_read_only')`).

use pgweir_wire::frontend::{BindHead, Describe, Parse, Query, Target, tag};
use slotmap::Key as _;

use crate::ids::{PoolId, StatementId};
use crate::limits::ANALYSED_BYTES_MAX;
use crate::pool::prepared::parse_contexts::ParseContext;
use crate::pool::relay::exchange::whole_messages;

/// The types that a Bind and a Describe of a named statement have in a key.
const BIND_OF: u8 = b'b';
const DESCRIBE_OF: u8 = b'd';

/// The number of bytes at the front of each key that are its pool and the number of its settings.
const READING_BYTES: usize = 16;

/// Writes the key of the group `messages` to `out`. `modes` is the BEGIN of the transaction if it names modes, and otherwise empty. `statement` finds a prepared statement by the client's name. Returns `None` if it finds
/// none: the group has no key then.
pub(crate) fn write_key(
    out: &mut Vec<u8>,
    (pool, settings, modes): (PoolId, ParseContext, &[u8]),
    messages: &[u8],
    statement: impl Fn(&[u8]) -> Option<StatementId>,
) -> Option<()> {
    out.clear();
    out.extend_from_slice(&pool.data().as_ffi().to_be_bytes());
    out.extend_from_slice(&settings.number().to_be_bytes());
    out.extend_from_slice(&modes.len().to_be_bytes());
    out.extend_from_slice(modes);
    let mut end = 0;
    for message in whole_messages(messages) {
        end = message.end();
        let body = message.body();
        let rest = match message.tag() {
            tag::BIND => match BindHead::parse_prefix(body)? {
                BindHead { statement: b"", .. } => None,
                BindHead { portal, statement: name, tail } => {
                    out.push(BIND_OF);
                    out.extend_from_slice(&statement(name)?.data().as_ffi().to_be_bytes());
                    out.extend_from_slice(portal);
                    out.push(0);
                    Some(&body[tail..])
                }
            },
            tag::DESCRIBE => match Describe::parse(body).ok()? {
                Describe { target: Target::Statement, name } if !name.is_empty() => {
                    out.push(DESCRIBE_OF);
                    out.extend_from_slice(&statement(name)?.data().as_ffi().to_be_bytes());
                    Some(&body[..0])
                }
                Describe { .. } => None,
            },
            _ => None,
        };
        if let Some(rest) = rest {
            out.extend_from_slice(&rest.len().to_be_bytes());
            out.extend_from_slice(rest);
        } else {
            out.extend_from_slice(message.bytes);
        }
    }
    (end == messages.len()).then_some(())
}

/// Returns the key under which the tables of a statement are known: the pool and the settings, with which the key of each group begins
/// (`cache_key`), and the statement's types and text. `None` if they are too long.
pub(crate) fn analysis_key(cache_key: &[u8], text: &[u8], types: &[u8]) -> Option<Box<[u8]>> {
    let reading = cache_key.get(..READING_BYTES)?;
    let len = types.len().to_be_bytes();
    let is_short = text.len() + types.len() <= ANALYSED_BYTES_MAX;
    is_short.then(|| [reading, &len, types, text].concat().into())
}

/// The text that a group of one statement executes, or the name of the prepared statement that it executes.
pub(crate) enum Asked<'a> {
    Text { text: &'a [u8], types: &'a [u8] },
    Named(&'a [u8]),
}

/// Returns the statement that a group of one statement executes; `None` if the group executes a statement that was prepared without a name
/// before.
pub(crate) fn asked(messages: &[u8]) -> Option<Asked<'_>> {
    let mut unnamed = None;
    for message in whole_messages(messages) {
        let body = message.body();
        match message.tag() {
            tag::QUERY => {
                return Query::parse(body).ok().map(|query| Asked::Text { text: query.text, types: &[] });
            }
            tag::PARSE => {
                let parse = Parse::parse(body).ok()?;
                unnamed = Some(Asked::Text { text: parse.query, types: parse.param_types });
            }
            tag::BIND => {
                return match BindHead::parse_prefix(body)?.statement {
                    b"" => unnamed,
                    name => Some(Asked::Named(name)),
                };
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use pgweir_wire::frontend;

    use super::*;

    fn key(settings: u64, messages: &[u8]) -> Option<Vec<u8>> {
        let statement = |name: &[u8]| match name {
            b"s" | b"same" => Some(StatementId::from(slotmap::KeyData::from_ffi(1))),
            b"other" => Some(StatementId::from(slotmap::KeyData::from_ffi(2))),
            _ => None,
        };
        let mut out = vec![1, 2, 3];
        let settings = ParseContext::of_statement(settings);
        write_key(&mut out, (PoolId::default(), settings, b""), messages, statement)?;
        Some(out)
    }

    fn bind(name: &str, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let tail = [&[0, 0, 0, 1][..], &(value.len() as u32).to_be_bytes(), value, &[0, 0]].concat();
        frontend::encode_bind_head(&mut out, b"", name.as_bytes(), tail.len());
        out.extend(tail);
        out.extend([b'S', 0, 0, 0, 4]);
        out
    }

    #[test]
    fn a_statement_counts_by_its_content_and_all_else_by_its_bytes() {
        let of = |name: &str, value: &[u8]| key(1, &bind(name, value));
        assert!(of("s", b"x").is_some());
        assert_eq!(of("s", b"x"), of("same", b"x"));
        assert_ne!(of("s", b"x"), of("other", b"x"));
        assert_ne!(of("s", b"x"), of("s", b"y"));
        assert_ne!(of("s", b"x"), key(2, &bind("s", b"x")), "another session");
        assert_eq!(of("unknown", b"x"), None);
        assert_eq!(key(1, &bind("s", b"x")[..10]), None, "it is not whole");
    }

    #[test]
    fn the_text_of_a_group_is_found() {
        let mut parse = Vec::new();
        frontend::encode_parse(&mut parse, b"", b"select 1", &[]);
        let both = [&parse[..], &bind("", b"")].concat();
        assert!(matches!(asked(&both), Some(Asked::Text { text: b"select 1", .. })));
        assert!(matches!(asked(&bind("s", b"")), Some(Asked::Named(b"s"))));
        assert!(asked(&bind("", b"")).is_none());
    }
}
