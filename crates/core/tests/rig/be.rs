//! What servers send, and what clients get: encoders with short names, and messages as text.

use pgweir_wire::backend::{
    self, Column, CopyFormat, ErrorFields, NotificationResponse, ParameterStatus, TxStatus, tag,
};
use pgweir_wire::error::{Report, SqlState, encode_error, encode_notice};
use pgweir_wire::header::HEADER_LEN;

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

pub(crate) fn auth_ok() -> Vec<u8> {
    encoded(backend::encode_auth_ok)
}

pub(crate) fn auth_cleartext() -> Vec<u8> {
    encoded(backend::encode_auth_cleartext)
}

pub(crate) fn key(pid: u32) -> Vec<u8> {
    encoded(|out| backend::encode_backend_key_data(out, pid, &[7, 7, 7, 7]))
}

pub(crate) fn parameter(name: &str, value: &str) -> Vec<u8> {
    encoded(|out| backend::encode_parameter_status(out, name.as_bytes(), value.as_bytes()))
}

/// ReadyForQuery; `I`, `T` or `E`.
pub(crate) fn ready(status: char) -> Vec<u8> {
    let status = TxStatus::from_byte(status as u8).expect("I, T or E");
    encoded(|out| backend::encode_ready(out, status))
}

pub(crate) fn complete(tag: &str) -> Vec<u8> {
    encoded(|out| backend::encode_command_complete(out, tag))
}

/// What PostgreSQL says to Bind or Describe of a statement with columns that have changed since it was
/// prepared.
pub(crate) fn outdated() -> Vec<u8> {
    let fields =
        b"SERROR\0VERROR\0C0A000\0Mcached plan must not change result type\0RRevalidateCachedQuery\0\0";
    crate::rig::fe::message(tag::ERROR, fields)
}

pub(crate) fn columns() -> Vec<u8> {
    let column = Column { name: "x", type_oid: 25, type_len: -1, binary: false };
    encoded(|out| backend::encode_row_description(out, &[column]))
}

/// ParameterDescription, and RowDescription or NoData: types of parameters, names and types of columns.
pub(crate) fn described(params: &[u32], columns: &[(&str, u32)]) -> Vec<u8> {
    [encoded(|out| backend::encode_parameter_description(out, params)), columns_of(columns)].concat()
}

/// RowDescription, or NoData.
pub(crate) fn columns_of(columns: &[(&str, u32)]) -> Vec<u8> {
    let of = |(name, type_oid)| Column { name, type_oid, type_len: 4, binary: false };
    let columns: Vec<Column<'_>> = columns.iter().copied().map(of).collect();
    match columns.is_empty() {
        true => no_data(),
        false => encoded(|out| backend::encode_row_description(out, &columns)),
    }
}

pub(crate) fn row(value: &str) -> Vec<u8> {
    encoded(|out| backend::encode_data_row(out, &[Some(value.as_bytes())]))
}

pub(crate) fn row_values(values: &[Option<&[u8]>]) -> Vec<u8> {
    encoded(|out| backend::encode_data_row(out, values))
}

/// The whole answer to a query: rows of text.
pub(crate) fn answer(rows: &[&[&str]]) -> Vec<u8> {
    let row =
        |values: &&[&str]| row_values(&values.iter().map(|value| Some(value.as_bytes())).collect::<Vec<_>>());
    [columns(), rows.iter().flat_map(row).collect(), complete("SELECT"), ready('I')].concat()
}

/// What a server says that new connections begin with: rows of a kind, a name and a value.
pub(crate) fn look(facts: &[[&str; 3]]) -> Vec<u8> {
    let origin = row_values(&[Some(b"o"), None, Some(b"10.0.0.3 5432 1750000000")]);
    let row = |fact: &[&str; 3]| row_values(&fact.map(|value| Some(value.as_bytes())));
    [columns(), origin, facts.iter().flat_map(row).collect(), complete("SELECT"), ready('I')].concat()
}

pub(crate) fn row_of(bytes: usize) -> Vec<u8> {
    encoded(|out| backend::encode_data_row(out, &[Some(&vec![b'r'; bytes])]))
}

pub(crate) fn parse_complete() -> Vec<u8> {
    encoded(backend::encode_parse_complete)
}

pub(crate) fn bind_complete() -> Vec<u8> {
    encoded(backend::encode_bind_complete)
}

pub(crate) fn close_complete() -> Vec<u8> {
    encoded(backend::encode_close_complete)
}

pub(crate) fn no_data() -> Vec<u8> {
    encoded(backend::encode_no_data)
}

pub(crate) fn parameters() -> Vec<u8> {
    encoded(|out| backend::encode_parameter_description(out, &[]))
}

pub(crate) fn empty_query() -> Vec<u8> {
    encoded(backend::encode_empty_query)
}

pub(crate) fn copy_in() -> Vec<u8> {
    encoded(|out| backend::encode_copy_in(out, CopyFormat::Text, 1))
}

pub(crate) fn copy_out() -> Vec<u8> {
    encoded(|out| backend::encode_copy_out(out, CopyFormat::Text, 1))
}

pub(crate) fn copy_both() -> Vec<u8> {
    encoded(|out| backend::encode_copy_both(out, CopyFormat::Text, 0))
}

pub(crate) fn copy_data(bytes: &[u8]) -> Vec<u8> {
    encoded(|out| backend::encode_copy_data(out, bytes))
}

pub(crate) fn copy_done() -> Vec<u8> {
    encoded(backend::encode_copy_done)
}

pub(crate) fn function_result(bytes: usize) -> Vec<u8> {
    encoded(|out| backend::encode_function_response(out, Some(&vec![b'f'; bytes])))
}

pub(crate) fn notification() -> Vec<u8> {
    encoded(|out| backend::encode_notification(out, 1, b"channel", b"payload"))
}

pub(crate) fn notified(pid: u32, channel: &str, payload: &str) -> Vec<u8> {
    encoded(|out| backend::encode_notification(out, pid, channel.as_bytes(), payload.as_bytes()))
}

pub(crate) fn error(code: &str, text: &str) -> Vec<u8> {
    encoded(|out| encode_error(out, &Report::error(state(code), text)))
}

pub(crate) fn fatal(code: &str, text: &str) -> Vec<u8> {
    encoded(|out| encode_error(out, &Report::fatal(state(code), text)))
}

pub(crate) fn notice(text: &str) -> Vec<u8> {
    encoded(|out| encode_notice(out, &Report::notice(state("00000"), text)))
}

fn state(code: &str) -> SqlState {
    SqlState::from_bytes(code.as_bytes()).expect("five letters or digits")
}

/// The usual answer to a query of one row.
pub(crate) fn one_row(value: &str) -> Vec<u8> {
    [columns(), row(value), complete("SELECT 1")].concat()
}

/// What a server answers to such a replay, of so many statements.
pub(crate) fn replayed(statements: usize) -> Vec<u8> {
    let tags = ["BEGIN"].into_iter().chain(vec!["SET"; statements]).chain(["COMMIT"]);
    tags.flat_map(|tag| [parse_complete(), bind_complete(), complete(tag)].concat()).collect()
}

fn text(bytes: &[u8]) -> String {
    if bytes.len() > 200 {
        return format!("({} bytes)", bytes.len());
    }
    String::from_utf8_lossy(bytes).into_owned()
}

fn until_nul(body: &[u8]) -> String {
    text(body.split(|&byte| byte == 0).next().unwrap_or_default())
}

/// A whole message as text.
pub(crate) fn show(message: &[u8]) -> String {
    let body = &message[HEADER_LEN..];
    match message[0] {
        tag::AUTHENTICATION if *body == [0, 0, 0, 0] => "Auth ok".to_owned(),
        tag::AUTHENTICATION => format!("Auth {}", body[3]),
        tag::BACKEND_KEY_DATA => "Key".to_owned(),
        tag::PARAMETER_STATUS => {
            let status = ParameterStatus::parse(body).expect("a ParameterStatus");
            format!("Parameter {}={}", text(status.name), text(status.value))
        }
        tag::READY => format!("Ready {}", char::from(body[0])),
        tag::COMMAND_COMPLETE => format!("Complete {}", until_nul(body)),
        tag::ROW_DESCRIPTION => "Columns".to_owned(),
        tag::DATA_ROW => format!("Row {}", row_text(body)),
        tag::PARSE_COMPLETE => "ParseComplete".to_owned(),
        tag::BIND_COMPLETE => "BindComplete".to_owned(),
        tag::CLOSE_COMPLETE => "CloseComplete".to_owned(),
        tag::NO_DATA => "NoData".to_owned(),
        tag::PARAMETER_DESCRIPTION => "Parameters".to_owned(),
        tag::EMPTY_QUERY => "Empty".to_owned(),
        tag::PORTAL_SUSPENDED => "Suspended".to_owned(),
        tag::COPY_IN => "CopyIn".to_owned(),
        tag::COPY_OUT => "CopyOut".to_owned(),
        tag::COPY_BOTH => "CopyBoth".to_owned(),
        tag::COPY_DATA => format!("CopyData {}", text(body)),
        tag::COPY_DONE => "CopyDone".to_owned(),
        tag::FUNCTION_RESPONSE => "FunctionResult".to_owned(),
        tag::NOTIFICATION => match NotificationResponse::parse(body).expect("a notification") {
            NotificationResponse { pid: 1, channel: b"channel", payload: b"payload" } => {
                "Notification".to_owned()
            }
            told => format!("Notification {} {} {}", told.pid, text(told.channel), text(told.payload)),
        },
        tag::NEGOTIATE => format!("Negotiate {}", body[3]),
        tag::ERROR | tag::NOTICE => {
            let fields = ErrorFields::parse(body).expect("fields");
            let of = |field: Option<&[u8]>| text(field.unwrap_or_default());
            format!("{} {} {}", of(fields.severity()), of(fields.code()), of(fields.message()))
        }
        other => format!("?{}", char::from(other)),
    }
}

/// The values of a DataRow, with `,` between; NULL as `-`.
fn row_text(body: &[u8]) -> String {
    let mut rest = &body[2..];
    let mut values = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let len = u32::from_be_bytes(*len);
        if len == u32::MAX {
            values.push("-".to_owned());
            rest = after;
        } else {
            let (value, after) = after.split_at(len as usize);
            values.push(text(value));
            rest = after;
        }
    }
    values.join(",")
}
