//! Tests with a collector of their own.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use pgweir_core::stats::times::Split;
use pgweir_core::trace::TraceContext;
use serde_json::Value;

use super::*;

fn statement(context: Option<TraceContext>, failed: bool) -> TracedStatement {
    TracedStatement {
        context,
        at_us: 1_700_000_000_500_000,
        split: Split { wait_us: 100, server_us: 300, client_us: 50 },
        database: "shop".into(),
        host: "db".to_owned(),
        port: 5432,
        text: Some("select * from orders where id = ?".into()),
        rows: 7,
        failed,
    }
}

/// Takes one request, answers with this status, and returns its head and its body.
fn take_one(listener: &TcpListener, status: &str) -> (String, Value) {
    let (mut stream, _) = listener.accept().expect("the exporter connects");
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let got = stream.read(&mut buffer).expect("readable");
        received.extend_from_slice(&buffer[..got]);
        let text = String::from_utf8_lossy(&received).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
        let length: usize = length.expect("it has a length").trim().parse().expect("a number");
        if body.len() >= length {
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").expect("writable");
            return (head.to_owned(), serde_json::from_str(body).expect("JSON"));
        }
    }
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().expect("attributes");
    &attributes.iter().find(|one| one["key"] == key).expect("the attribute")["value"]
}

#[test]
fn a_statement_is_a_span_with_its_parts_in_the_trace_of_its_client() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let traces = Traces::start(Log::to_stderr(), "1.0").expect("a thread");
    traces.follow(&format!("http://{address}/v1/traces"));
    let context = TraceContext { trace: [0xab; 16], parent: [0xcd; 8] };
    traces.send(statement(Some(context), false));
    traces.send(statement(None, true));
    drop(traces);
    let (head, body) = take_one(&listener, "200 OK");
    assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
    assert!(head.to_lowercase().contains("content-type: application/json"), "{head}");
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans").clone();
    assert_eq!(spans.len(), 6, "the statement, the wait, the server; twice");
    let (whole, wait, server, other) = (&spans[0], &spans[1], &spans[2], &spans[3]);
    assert_eq!(
        (&whole["traceId"], &whole["parentSpanId"]),
        (&"ab".repeat(16).into(), &"cd".repeat(8).into())
    );
    assert_eq!(whole["name"], "SELECT shop");
    assert_eq!(attribute(whole, "db.query.text")["stringValue"], "select * from orders where id = ?");
    assert_eq!(attribute(whole, "db.response.returned_rows")["intValue"], "7");
    for part in [wait, server] {
        assert_eq!((&part["traceId"], &part["parentSpanId"]), (&whole["traceId"], &whole["spanId"]));
    }
    assert_eq!(whole["startTimeUnixNano"], "1700000000499550000");
    assert_eq!(whole["endTimeUnixNano"], "1700000000500000000");
    assert_eq!(
        (&wait["startTimeUnixNano"], &wait["endTimeUnixNano"]),
        (&whole["startTimeUnixNano"], &server["startTimeUnixNano"])
    );
    assert_eq!(server["endTimeUnixNano"], "1700000000499950000");
    assert!(whole.get("status").is_none() && other["status"]["code"] == 2);
    assert_ne!(other["traceId"], whole["traceId"]);
    assert_eq!(
        (other["traceId"].as_str().map(str::len), other["parentSpanId"].as_str()),
        (Some(32), Some(""))
    );
}

#[test]
fn a_collector_that_refuses_is_named_in_the_log_and_no_address_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let log = Log::to_stderr();
    let traces = Traces::start(log.clone(), "1.0").expect("a thread");
    traces.follow("ftp://somewhere");
    traces.follow(&format!("http://{}", listener.local_addr().expect("an address")));
    traces.send(statement(None, false));
    drop(traces);
    let (head, _) = take_one(&listener, "503 Service Unavailable");
    assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "the usual path: {head}");
    let said = || {
        log.recent(Level::Warning, 0).iter().map(|line| line.message.clone()).collect::<Vec<_>>().join("\n")
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !said().contains("status 503") {
        assert!(Instant::now() < deadline, "{}", said());
        thread::sleep(Duration::from_millis(5));
    }
    assert!(said().contains("otlp_endpoint: \"ftp://somewhere\" is no address"), "{}", said());
    assert!(said().contains("the spans of 1 statements are lost"), "{}", said());
}
