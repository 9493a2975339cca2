//! Encoders for the messages to clients (and those that tests send to us). See [`crate::header`] for values
//! that the protocol cannot carry.

use super::authentication::code;
use super::{Column, CopyFormat, TxStatus, tag};
use crate::limits::COLUMNS_MAX;
use crate::startup::PROTOCOL_MAJOR;
use crate::writer::{self, bare, message};

/// Appends an `AuthenticationOk`.
pub fn encode_auth_ok(out: &mut Vec<u8>) {
    encode_auth(out, code::OK, &[]);
}

/// Appends an `AuthenticationCleartextPassword`.
pub fn encode_auth_cleartext(out: &mut Vec<u8>) {
    encode_auth(out, code::CLEARTEXT, &[]);
}

/// Appends an `AuthenticationMD5Password`.
pub fn encode_auth_md5(out: &mut Vec<u8>, salt: [u8; 4]) {
    encode_auth(out, code::MD5, &salt);
}

/// Appends an `AuthenticationSASL` that offers these mechanisms.
pub fn encode_auth_sasl(out: &mut Vec<u8>, mechanisms: &[&str]) {
    message(out, tag::AUTHENTICATION, |out| {
        writer::u32(out, code::SASL);
        for mechanism in mechanisms {
            writer::text(out, mechanism.as_bytes());
        }
        out.push(0);
    });
}

/// Appends an `AuthenticationSASLContinue`.
pub fn encode_auth_sasl_continue(out: &mut Vec<u8>, data: &[u8]) {
    encode_auth(out, code::SASL_CONTINUE, data);
}

/// Appends an `AuthenticationSASLFinal`.
pub fn encode_auth_sasl_final(out: &mut Vec<u8>, data: &[u8]) {
    encode_auth(out, code::SASL_FINAL, data);
}

fn encode_auth(out: &mut Vec<u8>, code: u32, data: &[u8]) {
    message(out, tag::AUTHENTICATION, |out| {
        writer::u32(out, code);
        out.extend_from_slice(data);
    });
}

/// Appends a `NegotiateProtocolVersion`, which says that the newest version is 3.`minor` and that these
/// options are not supported. The whole version number is sent, as PostgreSQL does.
pub fn encode_negotiate(out: &mut Vec<u8>, minor: u32, unsupported: &[&[u8]]) {
    message(out, tag::NEGOTIATE, |out| {
        writer::u32(out, (u32::from(PROTOCOL_MAJOR) << 16) | (minor & 0xffff));
        writer::u32(out, writer::wire_len(unsupported.len()));
        for option in unsupported {
            writer::text(out, option);
        }
    });
}

/// Appends a `ParameterStatus`.
pub fn encode_parameter_status(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    message(out, tag::PARAMETER_STATUS, |out| {
        writer::text(out, name);
        writer::text(out, value);
    });
}

/// Appends a `BackendKeyData`.
pub fn encode_backend_key_data(out: &mut Vec<u8>, pid: u32, key: &[u8]) {
    message(out, tag::BACKEND_KEY_DATA, |out| {
        writer::u32(out, pid);
        out.extend_from_slice(key);
    });
}

/// Appends a `ReadyForQuery`.
pub fn encode_ready(out: &mut Vec<u8>, status: TxStatus) {
    message(out, tag::READY, |out| out.push(status.as_byte()));
}

/// Appends a `CommandComplete` with a command tag such as `SELECT 1`.
pub fn encode_command_complete(out: &mut Vec<u8>, command_tag: &str) {
    message(out, tag::COMMAND_COMPLETE, |out| writer::text(out, command_tag.as_bytes()));
}

/// Appends an `EmptyQueryResponse`.
pub fn encode_empty_query(out: &mut Vec<u8>) {
    bare(out, tag::EMPTY_QUERY);
}

/// Appends a `ParseComplete`.
pub fn encode_parse_complete(out: &mut Vec<u8>) {
    bare(out, tag::PARSE_COMPLETE);
}

/// Appends a `BindComplete`.
pub fn encode_bind_complete(out: &mut Vec<u8>) {
    bare(out, tag::BIND_COMPLETE);
}

/// Appends a `CloseComplete`.
pub fn encode_close_complete(out: &mut Vec<u8>) {
    bare(out, tag::CLOSE_COMPLETE);
}

/// Appends a `NoData`.
pub fn encode_no_data(out: &mut Vec<u8>) {
    bare(out, tag::NO_DATA);
}

/// Appends a `PortalSuspended`.
pub fn encode_portal_suspended(out: &mut Vec<u8>) {
    bare(out, tag::PORTAL_SUSPENDED);
}

/// Appends a `RowDescription`. Columns beyond [`COLUMNS_MAX`] are left out, here as in [`encode_data_row`].
pub fn encode_row_description(out: &mut Vec<u8>, columns: &[Column<'_>]) {
    const NO_TABLE: u32 = 0;
    const NO_ATTRIBUTE: u16 = 0;
    const NO_MODIFIER: u32 = u32::MAX;
    counted(out, tag::ROW_DESCRIPTION, columns, |out, column| {
        writer::text(out, column.name.as_bytes());
        writer::u32(out, NO_TABLE);
        writer::u16(out, NO_ATTRIBUTE);
        writer::u32(out, column.type_oid);
        writer::u16(out, column.type_len.cast_unsigned());
        writer::u32(out, NO_MODIFIER);
        writer::u16(out, u16::from(column.binary));
    });
}

/// Appends a `DataRow`; `None` is NULL.
pub fn encode_data_row(out: &mut Vec<u8>, values: &[Option<&[u8]>]) {
    counted(out, tag::DATA_ROW, values, |out, value| writer::nullable(out, *value));
}

/// Appends a `ParameterDescription` with the parameters' types.
pub fn encode_parameter_description(out: &mut Vec<u8>, type_oids: &[u32]) {
    counted(out, tag::PARAMETER_DESCRIPTION, type_oids, |out, oid| writer::u32(out, *oid));
}

/// Appends a message that has a 16-bit count and this number of items.
fn counted<T>(out: &mut Vec<u8>, tag: u8, items: &[T], mut item: impl FnMut(&mut Vec<u8>, &T)) {
    let items = items.get(..COLUMNS_MAX).unwrap_or(items);
    message(out, tag, |out| {
        writer::u16(out, u16::try_from(items.len()).expect("COLUMNS_MAX fits into 16 bits"));
        for each in items {
            item(out, each);
        }
    });
}

/// Appends a `CopyInResponse`.
pub fn encode_copy_in(out: &mut Vec<u8>, format: CopyFormat, columns: u16) {
    encode_copy_response(out, tag::COPY_IN, format, columns);
}

/// Appends a `CopyOutResponse`.
pub fn encode_copy_out(out: &mut Vec<u8>, format: CopyFormat, columns: u16) {
    encode_copy_response(out, tag::COPY_OUT, format, columns);
}

/// Appends a `CopyBothResponse`.
pub fn encode_copy_both(out: &mut Vec<u8>, format: CopyFormat, columns: u16) {
    encode_copy_response(out, tag::COPY_BOTH, format, columns);
}

fn encode_copy_response(out: &mut Vec<u8>, tag: u8, format: CopyFormat, columns: u16) {
    message(out, tag, |out| {
        out.push(format.as_byte());
        writer::u16(out, columns);
        for _ in 0..columns {
            writer::u16(out, format.as_byte().into());
        }
    });
}

/// Appends a `CopyData`, which is the same in both directions.
pub fn encode_copy_data(out: &mut Vec<u8>, data: &[u8]) {
    message(out, tag::COPY_DATA, |out| out.extend_from_slice(data));
}

/// Appends a `CopyDone`, which is the same in both directions.
pub fn encode_copy_done(out: &mut Vec<u8>) {
    bare(out, tag::COPY_DONE);
}

/// Appends a `FunctionCallResponse`; `None` is NULL.
pub fn encode_function_response(out: &mut Vec<u8>, value: Option<&[u8]>) {
    message(out, tag::FUNCTION_RESPONSE, |out| writer::nullable(out, value));
}

/// Appends a `NotificationResponse`.
pub fn encode_notification(out: &mut Vec<u8>, pid: u32, channel: &[u8], payload: &[u8]) {
    message(out, tag::NOTIFICATION, |out| {
        writer::u32(out, pid);
        writer::text(out, channel);
        writer::text(out, payload);
    });
}
