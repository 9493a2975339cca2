//! Encodes spans in OTLP's JSON: ids in hexadecimal, 64-bit numbers as texts.
//!
//! A statement is a span of kind server (the pooler serves the client) with children for its parts: the wait
//! for a server, and PostgreSQL. Attributes have the names of OpenTelemetry's semantic conventions for
//! databases, if there are any.

use std::fmt::Write as _;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use pgweir_core::trace::TracedStatement;
use serde_json::{Value, json};

/// The kinds of spans, with their numbers in opentelemetry/proto/trace/v1/trace.proto.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;

/// The status of a span that failed.
const FAILED: u8 = 2;

/// Returns the body of a request.
pub(super) fn request(statements: &[TracedStatement], version: &str) -> String {
    let spans: Vec<Value> = statements.iter().flat_map(spans).collect();
    json!({
        "resourceSpans": [{
            "resource": { "attributes": [text("service.name", "pgweir"), text("service.version", version)] },
            "scopeSpans": [{ "scope": { "name": "pgweir", "version": version }, "spans": spans }],
        }]
    })
    .to_string()
}

fn spans(statement: &TracedStatement) -> Vec<Value> {
    let (trace, parent) = match statement.context {
        Some(context) => (hex(&context.trace), Some(hex(&context.parent))),
        None => (random_id::<16>(), None),
    };
    let own = random_id::<8>();
    let (split, end_us) = (statement.split, statement.at_us);
    let began_us = end_us.saturating_sub(split.total_us());
    let linked_us = began_us + split.wait_us;
    let span = |id: &str, parent: Option<&str>, name: &str, kind: u8, from_us: u64, to_us: u64| {
        json!({
            "traceId": trace,
            "spanId": id,
            "parentSpanId": parent.unwrap_or_default(),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": nanos(from_us),
            "endTimeUnixNano": nanos(to_us),
        })
    };
    let mut whole = span(&own, parent.as_deref(), &name_of(statement), SERVER, began_us, end_us);
    whole["attributes"] = attributes(statement).into();
    if statement.failed {
        whole["status"] = json!({ "code": FAILED });
    }
    let mut spans = vec![whole];
    if split.wait_us > 0 {
        spans.push(span(&random_id::<8>(), Some(&own), "wait for a server", INTERNAL, began_us, linked_us));
    }
    let answered_us = linked_us + split.server_us;
    spans.push(span(&random_id::<8>(), Some(&own), "PostgreSQL", CLIENT, linked_us, answered_us));
    spans
}

/// Returns the span's name, such as `SELECT shop`: the operation and the database, as the conventions ask
/// for.
fn name_of(statement: &TracedStatement) -> String {
    match operation(statement) {
        Some(operation) => format!("{operation} {}", statement.database),
        None => statement.database.to_string(),
    }
}

fn operation(statement: &TracedStatement) -> Option<String> {
    let word = statement.text.as_deref()?.split(|c: char| !c.is_ascii_alphabetic()).next()?;
    (!word.is_empty()).then(|| word.to_ascii_uppercase())
}

fn attributes(statement: &TracedStatement) -> Vec<Value> {
    let mut attributes = vec![
        text("db.system.name", "postgresql"),
        text("db.namespace", &statement.database),
        number("db.response.returned_rows", statement.rows),
        number("pgweir.wait_us", statement.split.wait_us),
        number("pgweir.server_us", statement.split.server_us),
        number("pgweir.client_us", statement.split.client_us),
        number("server.port", statement.port.into()),
    ];
    if !statement.host.is_empty() {
        attributes.push(text("server.address", &statement.host));
    }
    if let Some(operation) = operation(statement) {
        attributes.push(text("db.operation.name", &operation));
    }
    if let Some(query) = &statement.text {
        attributes.push(text("db.query.text", query));
    }
    attributes
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

fn nanos(us: u64) -> String {
    (u128::from(us) * 1_000).to_string()
}

/// Returns a random id, which is never all zeros, as that is not an id.
fn random_id<const N: usize>() -> String {
    let mut id = [0; N];
    // Without randomness from the system nothing else in this process works either.
    let _ = SystemRandom::new().fill(&mut id);
    id[0] |= 1;
    hex(&id)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
