//! Sends spans of traced statements to an OpenTelemetry collector: OTLP over HTTP, as JSON
//! (<https://opentelemetry.io/docs/specs/otlp/>). It needs the cargo feature `traces`.
//!
//! A separate thread sends the collected spans once a second. Spans that do not fit its queue, or that a
//! collector does not take, are lost and counted, and the count is logged: nothing waits for a trace.

mod encode;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use pgweir_core::driver::Level;
use pgweir_core::trace::TracedStatement;
use tokio::net::TcpStream;

use crate::log::Log;

/// The maximum number of statements in the queue.
const QUEUE_MAX: usize = 8_192;

/// The maximum number of statements in one request, at about 1 kB each.
const BATCH_MAX: usize = 512;

/// The time over which statements are collected.
const GATHER: Duration = Duration::from_secs(1);

/// The time that a collector may take for one request.
const SEND_MAX: Duration = Duration::from_secs(5);

/// The minimum time between two log lines about lost spans.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// The path of the receiver, if the address has none (OTLP's specification).
const DEFAULT_PATH: &str = "/v1/traces";

/// The handle to the sender. When it is dropped, the queued spans are sent, and the thread ends.
pub(crate) struct Traces {
    queue: SyncSender<Order>,
    lost: Arc<AtomicU64>,
}

enum Order {
    /// The address for spans from now on; an empty one means that none are sent.
    Endpoint(String),
    Statement(Box<TracedStatement>),
}

impl Traces {
    /// Starts the sender. If there is no thread, nothing is sent, and that is logged.
    pub(crate) fn start(log: Log, version: &'static str) -> Option<Traces> {
        let (queue, orders) = sync_channel(QUEUE_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let sender =
            Sender { log: log.clone(), version, lost: Arc::clone(&lost), endpoint: None, said: None };
        match thread::Builder::new().name("traces".into()).spawn(move || sender.run(&orders)) {
            Ok(_) => Some(Traces { queue, lost }),
            Err(error) => {
                log.write(Level::Error, &format!("could not start the thread that sends traces: {error}"));
                None
            }
        }
    }

    /// Passes a new `otlp_endpoint` to the sender.
    pub(crate) fn follow(&self, endpoint: &str) {
        // A full queue of statements empties soon, and this call is rare.
        let _ = self.queue.send(Order::Endpoint(endpoint.to_owned()));
    }

    pub(crate) fn send(&self, statement: TracedStatement) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Order::Statement(Box::new(statement))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Sender {
    log: Log,
    version: &'static str,
    lost: Arc<AtomicU64>,
    endpoint: Option<Uri>,
    said: Option<Instant>,
}

impl Sender {
    fn run(mut self, orders: &Receiver<Order>) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return self.log.write(Level::Error, &format!("traces cannot be sent: {error}")),
        };
        let mut batch = Vec::new();
        loop {
            let more = self.gather(orders, &mut batch);
            if let Some(endpoint) = self.endpoint.clone().filter(|_| !batch.is_empty()) {
                let body = encode::request(&batch, self.version);
                if let Err(reason) = runtime.block_on(post(&endpoint, body)) {
                    self.lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
                    self.say_lost(&endpoint, &reason);
                }
            }
            batch.clear();
            if !more {
                return;
            }
        }
    }

    /// Takes orders until a batch is full, or its time is over. Returns `false` if the handle was dropped.
    fn gather(&mut self, orders: &Receiver<Order>, batch: &mut Vec<TracedStatement>) -> bool {
        let mut deadline = None;
        while batch.len() < BATCH_MAX {
            let order = match deadline {
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(deadline) => {
                    orders.recv_timeout(Instant::saturating_duration_since(&deadline, Instant::now()))
                }
            };
            match order {
                Ok(Order::Statement(statement)) => {
                    batch.push(*statement);
                    deadline.get_or_insert_with(|| Instant::now() + GATHER);
                }
                Ok(Order::Endpoint(text)) => self.follow(&text),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    fn follow(&mut self, text: &str) {
        self.endpoint = None;
        if text.is_empty() {
            return;
        }
        match endpoint(text) {
            Some(endpoint) => self.endpoint = Some(endpoint),
            None => self.log.write(
                Level::Error,
                &format!("otlp_endpoint: \"{text}\" is no address of the form http://host:port/path; no spans are sent"),
            ),
        }
    }

    fn say_lost(&mut self, endpoint: &Uri, reason: &str) {
        if self.said.is_some_and(|said| said.elapsed() < SAY_EVERY) {
            return;
        }
        self.said = Some(Instant::now());
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let line =
            format!("the spans of {lost} statements are lost: {endpoint} does not take them: {reason}");
        self.log.write(Level::Warning, &line);
    }
}

/// Returns the address of the setting. TLS is left to the collector's next hop.
fn endpoint(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let good = uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty());
    good.then_some(uri)
}

async fn post(endpoint: &Uri, body: String) -> Result<(), String> {
    tokio::time::timeout(SEND_MAX, exchange(endpoint, body))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", SEND_MAX.as_secs())))
}

async fn exchange(endpoint: &Uri, body: String) -> Result<(), String> {
    let host = endpoint.host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let port = endpoint.port_u16().unwrap_or(4318);
    let stream = TcpStream::connect((bare, port)).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let path = endpoint.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::post(if path == "/" { DEFAULT_PATH } else { path })
        .header(HOST, format!("{host}:{port}"))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())?;
    let answer = async move {
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if answer.status().is_success() {
            Ok(())
        } else {
            Err(format!("status {}", answer.status().as_u16()))
        }
    };
    // The connection moves the bytes. It ends when the answer was taken, or when the collector closes it,
    // which the request sees as an error.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}

#[cfg(test)]
mod tests;
