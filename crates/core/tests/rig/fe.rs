//! What clients send, and what servers get: encoders with short names, and messages as text.

use pgweir_core::own_settings;
use pgweir_wire::frontend::{self, Close, Describe, Parse, Query, Target, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

pub(crate) fn startup(params: &[(&str, &str)]) -> Vec<u8> {
    startup_of(0, params)
}

pub(crate) fn startup_of(minor: u16, params: &[(&str, &str)]) -> Vec<u8> {
    let pairs: Vec<(&[u8], &[u8])> =
        params.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
    encoded(|out| frontend::encode_startup(out, (3, minor), &pairs))
}

pub(crate) fn cancel(key: &[u8]) -> Vec<u8> {
    let pid = u32::from_be_bytes(key[..4].try_into().expect("a key begins with a process id"));
    encoded(|out| frontend::encode_cancel(out, pid, &key[4..]))
}

pub(crate) fn ssl_request() -> Vec<u8> {
    encoded(frontend::encode_ssl_request)
}

pub(crate) fn gss_request() -> Vec<u8> {
    encoded(frontend::encode_gss_request)
}

pub(crate) fn password(text: &str) -> Vec<u8> {
    encoded(|out| frontend::encode_password(out, text.as_bytes()))
}

pub(crate) fn query(text: &str) -> Vec<u8> {
    encoded(|out| frontend::encode_query(out, text.as_bytes()))
}

pub(crate) fn parse(name: &str, text: &str) -> Vec<u8> {
    encoded(|out| frontend::encode_parse(out, name.as_bytes(), text.as_bytes(), b""))
}

/// Parse with the types of parameters.
pub(crate) fn parse_typed(name: &str, text: &str, types: &[u32]) -> Vec<u8> {
    let types: Vec<u8> = types.iter().flat_map(|oid| oid.to_be_bytes()).collect();
    encoded(|out| frontend::encode_parse(out, name.as_bytes(), text.as_bytes(), &types))
}

/// Bind of a statement to the unnamed portal, without parameters.
pub(crate) fn bind(statement: &str) -> Vec<u8> {
    bind_with(statement, 0)
}

/// Bind with one parameter of so many bytes.
pub(crate) fn bind_with(statement: &str, bytes: usize) -> Vec<u8> {
    let mut tail = vec![0, 0];
    if bytes == 0 {
        tail.extend_from_slice(&[0, 0]);
    } else {
        tail.extend_from_slice(&[0, 1]);
        tail.extend_from_slice(&u32::try_from(bytes).expect("small").to_be_bytes());
        tail.resize(tail.len() + bytes, b'p');
    }
    tail.extend_from_slice(&[0, 0]);
    encoded(|out| {
        frontend::encode_bind_head(out, b"", statement.as_bytes(), tail.len());
        out.extend_from_slice(&tail);
    })
}

/// Bind with these values, as text.
pub(crate) fn bind_values(statement: &str, values: &[&str]) -> Vec<u8> {
    let count = u16::try_from(values.len()).expect("few values").to_be_bytes();
    let mut body = [b"\0", statement.as_bytes(), b"\0\0\0", &count].concat();
    for value in values {
        body.extend_from_slice(&u32::try_from(value.len()).expect("short values").to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    }
    body.extend_from_slice(&[0, 0]);
    message(b'B', &body)
}

/// Bind without parameters, with all columns in this format.
pub(crate) fn bind_format(statement: &str, format: u8) -> Vec<u8> {
    message(b'B', &[b"\0", statement.as_bytes(), b"\0\0\0\0\0\0\x01\0", &[format]].concat())
}

pub(crate) fn describe(statement: &str) -> Vec<u8> {
    encoded(|out| frontend::encode_describe(out, Target::Statement, statement.as_bytes()))
}

pub(crate) fn describe_portal() -> Vec<u8> {
    encoded(|out| frontend::encode_describe(out, Target::Portal, b""))
}

pub(crate) fn close(statement: &str) -> Vec<u8> {
    encoded(|out| frontend::encode_close(out, Target::Statement, statement.as_bytes()))
}

pub(crate) fn execute() -> Vec<u8> {
    encoded(|out| frontend::encode_execute(out, b"", 0))
}

pub(crate) fn sync() -> Vec<u8> {
    encoded(frontend::encode_sync)
}

pub(crate) fn flush() -> Vec<u8> {
    encoded(frontend::encode_flush)
}

pub(crate) fn terminate() -> Vec<u8> {
    encoded(frontend::encode_terminate)
}

/// What a server gets that is brought to its client's session in the packet of a statement.
pub(crate) fn shown_replay(statements: &[&str], then: &[&str]) -> Vec<String> {
    let texts = ["BEGIN"].iter().chain(statements).chain(&["COMMIT"]);
    let replay = texts.flat_map(|statement| {
        [format!("Parse  {}", text(statement.as_bytes())), "Bind ".to_owned(), "Execute".to_owned()]
    });
    replay.chain(then.iter().map(|&message| message.to_owned())).collect()
}

pub(crate) fn copy_data(bytes: &[u8]) -> Vec<u8> {
    message(tag::COPY_DATA, bytes)
}

pub(crate) fn copy_done() -> Vec<u8> {
    message(tag::COPY_DONE, b"")
}

pub(crate) fn copy_fail(text: &str) -> Vec<u8> {
    encoded(|out| frontend::encode_copy_fail(out, text.as_bytes()))
}

pub(crate) fn function_call() -> Vec<u8> {
    message(tag::FUNCTION_CALL, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
}

/// Any message, well formed or not.
pub(crate) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    encoded(|out| {
        Header { tag, body_len: u32::try_from(body.len()).expect("small") }.encode(out);
        out.extend_from_slice(body);
    })
}

fn text(bytes: &[u8]) -> String {
    if bytes.len() > 80 {
        return format!("({} bytes)", bytes.len());
    }
    String::from_utf8_lossy(bytes).into_owned()
}

/// A question of pgweir's, without the settings under which it runs.
fn question(bytes: &[u8]) -> &[u8] {
    std::str::from_utf8(bytes).map_or(bytes, |text| own_settings::question_in(text).as_bytes())
}

/// The parameter types of a Parse, if it has any.
fn types(types: &[u8]) -> String {
    let (types, _) = types.as_chunks();
    let oids: Vec<u32> = types.iter().map(|oid| u32::from_be_bytes(*oid)).collect();
    if oids.is_empty() { String::new() } else { format!(" {oids:?}") }
}

fn target(target: Target, name: &[u8]) -> String {
    format!("{} {}", char::from(target.as_byte()), text(name))
}

/// A whole message as text; one that is not of its type's form as `?`.
pub(crate) fn show(message: &[u8]) -> String {
    let body = &message[HEADER_LEN..];
    let broken = || "?".to_owned();
    match message[0] {
        tag::QUERY => Query::parse(body)
            .map_or_else(|_| broken(), |query| format!("Query {}", text(question(query.text)))),
        tag::PARSE => Parse::parse(body).map_or_else(
            |_| broken(),
            |parse| format!("Parse {} {}{}", text(parse.name), text(parse.query), types(parse.param_types)),
        ),
        tag::BIND => frontend::BindHead::parse_prefix(body)
            .map_or_else(broken, |head| format!("Bind {}", text(head.statement))),
        tag::DESCRIBE => Describe::parse(body)
            .map_or_else(|_| broken(), |it| format!("Describe {}", target(it.target, it.name))),
        tag::CLOSE => {
            Close::parse(body).map_or_else(|_| broken(), |it| format!("Close {}", target(it.target, it.name)))
        }
        tag::EXECUTE => "Execute".to_owned(),
        tag::SYNC => "Sync".to_owned(),
        tag::FLUSH => "Flush".to_owned(),
        tag::COPY_DATA => format!("CopyData {}", text(body)),
        tag::COPY_DONE => "CopyDone".to_owned(),
        tag::COPY_FAIL => "CopyFail".to_owned(),
        tag::FUNCTION_CALL => "FunctionCall".to_owned(),
        tag::TERMINATE => "Terminate".to_owned(),
        other => format!("?{}", char::from(other)),
    }
}
