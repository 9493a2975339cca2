//! The messages of a model server that never fails.

use pgweir_wire::Header;
use pgweir_wire::backend::{
    Column, TxStatus, encode_auth_ok, encode_backend_key_data, encode_bind_complete, encode_command_complete,
    encode_data_row, encode_parameter_description, encode_parameter_status, encode_parse_complete,
    encode_ready, encode_row_description,
};
use pgweir_wire::frontend::tag;
use pgweir_wire::header::HEADER_LEN;

/// A query whose answer has 64 rows of 128 bytes.
pub const MANY_ROWS: &str = "SELECT filler FROM pgbench_branches";

/// The messages of the model server, made once.
pub struct Answers {
    row: Vec<u8>,
    rows: Vec<u8>,
    begun: Vec<u8>,
    done: Vec<u8>,
    catalog: Vec<u8>,
    parsed: Vec<u8>,
    bound: Vec<u8>,
    columns: Vec<u8>,
    no_parameters: Vec<u8>,
    /// A row without its description, as Execute has it.
    executed: Vec<u8>,
}

impl Default for Answers {
    fn default() -> Self {
        Self::new()
    }
}

impl Answers {
    /// Encodes them.
    pub fn new() -> Self {
        let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            encode(&mut out);
            out
        };
        let columns = encoded(&|out| {
            encode_row_description(
                out,
                &[Column { name: "abalance", type_oid: 23, type_len: 4, binary: false }],
            );
        });
        let executed = encoded(&|out| {
            encode_data_row(out, &[Some(b"-4711")]);
            encode_command_complete(out, "SELECT 1");
        });
        let many = encoded(&|out| {
            for _ in 0..64 {
                encode_data_row(out, &[Some(&[b'x'; 128])]);
            }
            encode_command_complete(out, "SELECT 64");
        });
        Self {
            row: [columns.clone(), executed.clone()].concat(),
            rows: [columns.clone(), many].concat(),
            begun: encoded(&|out| encode_command_complete(out, "BEGIN")),
            done: encoded(&|out| encode_command_complete(out, "COMMIT")),
            catalog: encoded(&|out| {
                // No routine changes its session, and no name stands for more than a read.
                encode_data_row(out, &[Some(b"v"), Some(b""), None]);
                encode_data_row(out, &[Some(b"r"), Some(b""), None]);
                encode_command_complete(out, "SELECT 2");
            }),
            parsed: encoded(&encode_parse_complete),
            bound: encoded(&encode_bind_complete),
            no_parameters: encoded(&|out| encode_parameter_description(out, &[])),
            columns,
            executed,
        }
    }

    /// Answers all messages in `asked`, which must be whole.
    ///
    /// # Panics
    /// At messages that no client of the stage sends.
    pub fn to(&self, asked: &[u8], status: &mut TxStatus, out: &mut Vec<u8>) {
        let (mut at, mut begins) = (0, false);
        while let Ok(Some(header)) = Header::peek(&asked[at..]) {
            let body = &asked[at + HEADER_LEN..at + header.total()];
            at += header.total();
            match header.tag {
                tag::QUERY => {
                    self.to_query(body, status, out);
                    encode_ready(out, *status);
                }
                tag::PARSE => {
                    begins = body.starts_with(b"\0BEGIN");
                    out.extend_from_slice(&self.parsed);
                }
                tag::BIND => out.extend_from_slice(&self.bound),
                tag::DESCRIBE => {
                    if body[0] == b'S' {
                        out.extend_from_slice(&self.no_parameters);
                    }
                    out.extend_from_slice(&self.columns);
                }
                // As pgweir sends a BEGIN that it has answered: in the same packet.
                tag::EXECUTE if std::mem::take(&mut begins) => {
                    *status = TxStatus::InTransaction;
                    out.extend_from_slice(&self.begun);
                }
                tag::EXECUTE => out.extend_from_slice(&self.executed),
                tag::SYNC => encode_ready(out, *status),
                other => panic!("the model server does not know {}", char::from(other)),
            }
        }
        assert_eq!(at, asked.len(), "part of a message");
    }

    fn to_query(&self, body: &[u8], status: &mut TxStatus, out: &mut Vec<u8>) {
        let text = &body[..body.len() - 1];
        if text.starts_with(b"BEGIN") {
            *status = TxStatus::InTransaction;
            out.extend_from_slice(&self.begun);
        } else if text.starts_with(b"COMMIT") {
            *status = TxStatus::Idle;
            out.extend_from_slice(&self.done);
        } else if is_about_catalog(text) {
            out.extend_from_slice(&self.catalog);
        } else if text == MANY_ROWS.as_bytes() {
            out.extend_from_slice(&self.rows);
        } else {
            out.extend_from_slice(&self.row);
        }
    }
}

/// pgweir asks which routines and names there are.
fn is_about_catalog(text: &[u8]) -> bool {
    // The statements of clients are told apart at once: what the stage costs counts in what pgweir is measured by.
    let text = text.starts_with(b"SET").then(|| std::str::from_utf8(text).unwrap_or_default());
    let text = text.unwrap_or_default();
    pgweir_core::own_settings::question_in(text).starts_with("SELECT 'g'")
}

/// Returns a cluster node's answer to the question for its state: a primary or a standby that has replayed all there is.
pub fn state_of_node(is_standby: bool) -> Vec<u8> {
    let (recovers, started) = if is_standby { (&b"true"[..], &b"2"[..]) } else { (&b"false"[..], &b"1"[..]) };
    let mut out = Vec::new();
    encode_row_description(
        &mut out,
        &[Column { name: "pg_is_in_recovery", type_oid: 16, type_len: 1, binary: false }],
    );
    encode_data_row(
        &mut out,
        &[
            Some(recovers),
            Some(b"0/3000060"),
            None,
            None,
            Some(b"00000001"),
            Some(b"7000000000000000001"),
            Some(started),
            Some(b"180000"),
            Some(b"none"),
        ],
    );
    encode_command_complete(&mut out, "SELECT 1");
    encode_ready(&mut out, TxStatus::Idle);
    out
}

/// A client was answered to the end.
pub fn ends_with_ready(told: &[u8]) -> bool {
    told.len() > HEADER_LEN && told[told.len() - HEADER_LEN - 1] == b'Z'
}

/// Returns the greeting of a primary, or of a standby, for a client that it trusts.
pub fn greeting(is_standby: bool) -> Vec<u8> {
    let mut out = Vec::new();
    encode_auth_ok(&mut out);
    for (name, value) in [
        ("server_version", "18.0"),
        ("DateStyle", "ISO, MDY"),
        ("client_encoding", "UTF8"),
        ("TimeZone", "UTC"),
        ("standard_conforming_strings", "on"),
        ("application_name", ""),
        ("IntervalStyle", "postgres"),
        ("in_hot_standby", if is_standby { "on" } else { "off" }),
    ] {
        encode_parameter_status(&mut out, name.as_bytes(), value.as_bytes());
    }
    encode_backend_key_data(&mut out, 4242, &[7, 7, 7, 7]);
    encode_ready(&mut out, TxStatus::Idle);
    out
}
