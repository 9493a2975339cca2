//! The messages a model client sends.

use crate::sim::network::proto::{Body, CANCEL_REQUEST, Message};

/// Returns a Query.
#[must_use]
pub fn query(text: &str) -> Message {
    Body::new().text(text).message(b'Q')
}

/// Parse, without parameter types.
#[must_use]
pub fn parse(name: &str, text: &str) -> Message {
    Body::new().text(name).text(text).int16(0).message(b'P')
}

/// Bind with text parameters and text results.
#[must_use]
pub fn bind(portal: &str, statement: &str, parameters: &[String]) -> Message {
    let count = i16::try_from(parameters.len()).expect("few parameters");
    let body = Body::new().text(portal).text(statement).int16(0).int16(count);
    parameters.iter().fold(body, |body, value| body.counted(value.as_bytes())).int16(0).message(b'B')
}

/// Describe (`target` S or P).
#[must_use]
pub fn describe(target: u8, name: &str) -> Message {
    Body::new().byte(target).text(name).message(b'D')
}

/// Close (`target` S or P).
#[must_use]
pub fn close(target: u8, name: &str) -> Message {
    Body::new().byte(target).text(name).message(b'C')
}

/// Execute; 0 rows is no limit.
#[must_use]
pub fn execute(portal: &str, max_rows: u32) -> Message {
    Body::new().text(portal).int32(max_rows.cast_signed()).message(b'E')
}

/// Returns a Sync.
#[must_use]
pub fn sync() -> Message {
    Message::bare(b'S')
}

/// Returns a Flush.
#[must_use]
pub fn flush() -> Message {
    Message::bare(b'H')
}

/// Returns a Terminate.
#[must_use]
pub fn terminate() -> Message {
    Message::bare(b'X')
}

/// FunctionCall with one text argument.
#[must_use]
pub fn function_call(oid: i32, argument: &str) -> Message {
    Body::new().int32(oid).int16(0).int16(1).counted(argument.as_bytes()).int16(0).message(b'F')
}

/// Returns a CopyData.
#[must_use]
pub fn copy_data(data: &[u8]) -> Message {
    Body::new().raw(data).message(b'd')
}

/// Returns a CopyDone.
#[must_use]
pub fn copy_done() -> Message {
    Message::bare(b'c')
}

/// Returns a CopyFail.
#[must_use]
pub fn copy_fail(reason: &str) -> Message {
    Body::new().text(reason).message(b'f')
}

/// The startup packet.
#[must_use]
pub fn startup(version: i32, parameters: &[(String, String)]) -> Vec<u8> {
    let body = Body::new().int32(version);
    parameters.iter().fold(body, |body, (name, value)| body.text(name).text(value)).byte(0).first_packet()
}

/// A packet that is only a request code: SSLRequest, GSSENCRequest.
#[must_use]
pub fn request(code: i32) -> Vec<u8> {
    Body::new().int32(code).first_packet()
}

/// CancelRequest, with process id and key as BackendKeyData gave them.
#[must_use]
pub fn cancel(pid_and_key: &[u8]) -> Vec<u8> {
    Body::new().int32(CANCEL_REQUEST).raw(pid_and_key).first_packet()
}
