//! Encoders for the messages to servers (and those that tests send to us). See [`crate::header`] for values
//! that the protocol cannot carry.

use super::{Target, tag};
use crate::startup::{CANCEL_REQUEST, GSS_REQUEST, SSL_REQUEST};
use crate::writer::{self, bare, message, with_length};

/// Appends a `Query`.
pub fn encode_query(out: &mut Vec<u8>, text: &[u8]) {
    message(out, tag::QUERY, |out| writer::text(out, text));
}

/// Appends a `Parse`. `param_types` has oids of four bytes each. At most 65,535 of them are sent, and no
/// incomplete one.
pub fn encode_parse(out: &mut Vec<u8>, name: &[u8], query: &[u8], param_types: &[u8]) {
    let (oids, _) = param_types.as_chunks::<4>();
    let count = u16::try_from(oids.len()).unwrap_or(u16::MAX);
    let oids = oids.get(..usize::from(count)).unwrap_or(oids);
    message(out, tag::PARSE, |out| {
        writer::text(out, name);
        writer::text(out, query);
        writer::u16(out, count);
        out.extend_from_slice(oids.as_flattened());
    });
}

/// Appends the start of a `Bind`: header and names. The caller appends the rest of the body, whose length
/// must be known: `tail_len` bytes.
pub fn encode_bind_head(out: &mut Vec<u8>, portal: &[u8], statement: &[u8], tail_len: usize) {
    let (portal, statement) = (writer::until_nul(portal), writer::until_nul(statement));
    let len = tail_len.saturating_add(portal.len() + statement.len() + 6);
    let [a, b, c, d] = writer::wire_len(len).to_be_bytes();
    out.extend_from_slice(&[tag::BIND, a, b, c, d]);
    for name in [portal, statement] {
        out.extend_from_slice(name);
        out.push(0);
    }
}

/// Appends a `Describe`.
pub fn encode_describe(out: &mut Vec<u8>, target: Target, name: &[u8]) {
    encode_target(out, tag::DESCRIBE, target, name);
}

/// Appends a `Close`.
pub fn encode_close(out: &mut Vec<u8>, target: Target, name: &[u8]) {
    encode_target(out, tag::CLOSE, target, name);
}

fn encode_target(out: &mut Vec<u8>, tag: u8, target: Target, name: &[u8]) {
    message(out, tag, |out| {
        out.push(target.as_byte());
        writer::text(out, name);
    });
}

/// Appends an `Execute`. A `max_rows` of 0 means all rows.
pub fn encode_execute(out: &mut Vec<u8>, portal: &[u8], max_rows: u32) {
    message(out, tag::EXECUTE, |out| {
        writer::text(out, portal);
        writer::u32(out, max_rows);
    });
}

/// Appends a `Sync`.
pub fn encode_sync(out: &mut Vec<u8>) {
    bare(out, tag::SYNC);
}

/// Appends a `Flush`.
pub fn encode_flush(out: &mut Vec<u8>) {
    bare(out, tag::FLUSH);
}

/// Appends a `Terminate`.
pub fn encode_terminate(out: &mut Vec<u8>) {
    bare(out, tag::TERMINATE);
}

/// Appends a `CopyFail` with the reason.
pub fn encode_copy_fail(out: &mut Vec<u8>, reason: &[u8]) {
    message(out, tag::COPY_FAIL, |out| writer::text(out, reason));
}

/// Appends a `PasswordMessage`.
pub fn encode_password(out: &mut Vec<u8>, password: &[u8]) {
    message(out, tag::PASSWORD, |out| writer::text(out, password));
}

/// Appends a `SASLInitialResponse`.
pub fn encode_sasl_initial(out: &mut Vec<u8>, mechanism: &[u8], data: &[u8]) {
    message(out, tag::PASSWORD, |out| {
        writer::text(out, mechanism);
        writer::nullable(out, Some(data));
    });
}

/// Appends a `SASLResponse`.
pub fn encode_sasl_response(out: &mut Vec<u8>, data: &[u8]) {
    message(out, tag::PASSWORD, |out| out.extend_from_slice(data));
}

/// Appends a `StartupMessage`. Parameters without a name are left out, since an empty name ends the list.
pub fn encode_startup(out: &mut Vec<u8>, (major, minor): (u16, u16), params: &[(&[u8], &[u8])]) {
    with_length(out, |out| {
        writer::u16(out, major);
        writer::u16(out, minor);
        for (name, value) in params {
            if !writer::until_nul(name).is_empty() {
                writer::text(out, name);
                writer::text(out, value);
            }
        }
        out.push(0);
    });
}

/// Appends an `SSLRequest`.
pub fn encode_ssl_request(out: &mut Vec<u8>) {
    with_length(out, |out| writer::u32(out, SSL_REQUEST));
}

/// Appends a `GSSENCRequest`.
pub fn encode_gss_request(out: &mut Vec<u8>) {
    with_length(out, |out| writer::u32(out, GSS_REQUEST));
}

/// Appends a `CancelRequest` with the process id and key that the backend gave out.
pub fn encode_cancel(out: &mut Vec<u8>, pid: u32, key: &[u8]) {
    with_length(out, |out| {
        writer::u32(out, CANCEL_REQUEST);
        writer::u32(out, pid);
        out.extend_from_slice(key);
    });
}
