//! The HTTP server: metrics for Prometheus, the API (`docs/openapi.yaml`), the dashboard. It has one thread
//! with its own loop, apart from the control loop, so that a page is answered while files are read.
//!
//! The HTTP server sees the workers only through snapshots ([`pgweir_core::snapshot`]): a snapshot copies numbers in
//! bounded pieces, everything else happens here. It must never hold up a worker, and it must never show an
//! anonymous reader more than `http_anonymous` says.

mod access;
mod actions;
mod api;
mod failures;
mod history;
mod limits;
mod metrics;
mod model;
mod page;
mod process;
mod reply;
mod route;
mod sampler;
mod server;
mod worker_rpc;

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use pgweir_core::driver::{Level, WorkerId};
use pgweir_core::mail::{Mail, Operated, Question, Rules};
use pgweir_core::snapshot::Snapshot;
use pgweir_settings::Main;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use crate::log::Log;
pub use server::tls::Present;

use model::Model;
use worker_rpc::WorkerRpc;

/// The workers, as the HTTP server sees them. All calls return at once.
pub trait Workforce: Send {
    /// Returns the number of workers; their ids are below it.
    fn count(&self) -> u16;

    /// Sends a message to a worker's machine.
    fn mail(&self, to: WorkerId, mail: Mail);

    /// Returns the counters of each worker.
    fn loads(&self) -> Vec<Load>;
}

/// A worker's counters since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Microseconds in which the worker did not wait.
    pub busy_us: u64,
    /// Microseconds in which the worker polled for more instead of sleeping; not counted in `busy_us`.
    pub busy_poll_us: u64,
    /// Messages that were sent together with others, by one system call.
    pub batched_sends: u64,
    /// Turns of the worker's loop.
    pub turns: u64,
    /// The current number of connections of either kind.
    pub connections: u64,
}

/// A message to the HTTP server from the rest of the process.
enum WebMessage {
    Seen { worker: WorkerId, ticket: u64, snapshot: Snapshot },
    Operated { ticket: u64, result: Operated },
    Rules(Rules),
    Drain,
    Close,
}

/// The handle to the HTTP server. Clones lead to the same server.
#[derive(Clone)]
pub struct Web {
    messages: UnboundedSender<WebMessage>,
}

/// The receiving end of [`Web`].
pub struct WebInbox {
    messages: UnboundedReceiver<WebMessage>,
}

/// Creates the handle to an HTTP server, before the server exists.
#[must_use]
pub fn channel() -> (Web, WebInbox) {
    let (sender, receiver) = unbounded_channel();
    (Web { messages: sender }, WebInbox { messages: receiver })
}

impl Web {
    /// Takes a worker's answer to the HTTP server; returns all other questions.
    pub fn deliver(&self, question: Question) -> Option<Question> {
        let message = match question {
            Question::Seen { worker, ticket, snapshot } => WebMessage::Seen { worker, ticket, snapshot },
            Question::Operated { ticket, result } => WebMessage::Operated { ticket, result },
            other => return Some(other),
        };
        self.send(message);
        None
    }

    /// Passes new rules to the server.
    pub fn follow(&self, rules: Rules) {
        self.send(WebMessage::Rules(rules));
    }

    /// Makes `/readyz` report that the process is about to end.
    pub(crate) fn drain(&self) {
        self.send(WebMessage::Drain);
    }

    /// Closes the listeners, because another process accepts now. Open connections are still served.
    pub(crate) fn close(&self) {
        self.send(WebMessage::Close);
    }

    fn send(&self, message: WebMessage) {
        // This fails only if the server's thread is gone, and then the process is about to end.
        let _ = self.messages.send(message);
    }
}

/// The reason why the HTTP server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum WebListenError {
    /// The setting does not contain an address.
    #[error("http_listen: \"{0}\" is no address; write host:port, or a port alone for 127.0.0.1")]
    Address(String),
    /// The system refuses to listen.
    #[error("http_listen: could not listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// The system's reason.
        error: io::Error,
    },
}

/// Opens the sockets of `http_listen`. `inherited` is asked first for a socket that listens there already.
///
/// # Errors
///
/// A text is not an address, or the system refuses to listen.
pub fn open(
    addresses: &[String],
    inherited: &mut dyn FnMut(SocketAddr) -> Option<TcpListener>,
) -> Result<Vec<TcpListener>, WebListenError> {
    let mut sockets = Vec::new();
    for text in addresses {
        for address in addresses_of(text).ok_or_else(|| WebListenError::Address(text.clone()))? {
            let refused = |error| WebListenError::Listen { address: address.to_string(), error };
            let socket = match inherited(address) {
                Some(socket) => socket,
                None => TcpListener::bind(address).map_err(refused)?,
            };
            socket.set_nonblocking(true).map_err(refused)?;
            sockets.push(socket);
        }
    }
    Ok(sockets)
}

fn addresses_of(text: &str) -> Option<Vec<SocketAddr>> {
    let text = text.trim();
    if let Ok(port) = text.parse::<u16>() {
        return Some(vec![([127, 0, 0, 1], port).into()]);
    }
    let found: Vec<SocketAddr> = match text.strip_prefix("*:") {
        Some(port) => vec![([0, 0, 0, 0], port.parse().ok()?).into()],
        None => text.to_socket_addrs().ok()?.collect(),
    };
    (!found.is_empty()).then_some(found)
}

/// The parts from which the HTTP server is started.
pub struct WebSetup {
    /// The listening sockets.
    pub sockets: Vec<TcpListener>,
    /// The receiving end of the handle.
    pub inbox: WebInbox,
    /// The rules at the start.
    pub rules: Rules,
    /// The function that presents a certificate.
    pub present: Present,
    /// The workers.
    pub workforce: Box<dyn Workforce>,
    /// The log.
    pub log: Log,
    /// The version of pgweir.
    pub version: &'static str,
}

/// The state that requests share; one per server, within its thread.
struct WebState {
    worker_rpc: WorkerRpc,
    model: std::cell::RefCell<Model>,
    rules: std::cell::RefCell<Rules>,
    tls: std::cell::RefCell<server::tls::Tls>,
    authenticator: access::Authenticator,
    slots: Rc<server::connection_slots::ConnectionSlots>,
    log: Log,
    version: &'static str,
    /// The name of this machine; `None` if the system does not tell it.
    machine: Option<String>,
    sampling: tokio::sync::Mutex<()>,
    /// The signal that a new sample was taken.
    sampled: tokio::sync::watch::Sender<u64>,
    streams: std::cell::Cell<u32>,
    clusters: std::cell::RefCell<history::ClusterHistory>,
    clusters_turn: tokio::sync::Mutex<()>,
    /// `true` if the process is about to end, and serves clients until then.
    is_draining: std::cell::Cell<bool>,
}

/// Returns the faults of `http_tls_cert_file` and `http_tls_key_file`.
#[must_use]
pub fn tls_faults(main: &Main, present: Present) -> Vec<String> {
    server::tls::Tls::build(main, present).err().unwrap_or_default()
}

/// Starts the HTTP server's thread.
///
/// # Errors
///
/// A certificate or its key cannot be used, or the system refuses a thread.
pub fn start(setup: WebSetup) -> io::Result<()> {
    let tls = server::tls::Tls::read(&setup.rules.config.main, setup.present).map_err(io::Error::other)?;
    setup.log.keep_usual();
    for socket in &setup.sockets {
        if let Ok(address) = socket.local_addr() {
            let scheme = if tls.is_on() { "https" } else { "http" };
            setup.log.write(Level::Log, &format!("metrics and dashboard: {scheme}://{address}/"));
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("http".into()).spawn(move || {
        let local = LocalSet::new();
        local.block_on(&runtime, run(setup, tls));
    })?;
    Ok(())
}

async fn run(setup: WebSetup, tls: server::tls::Tls) {
    let WebSetup { sockets, inbox, rules, present, workforce, log, version } = setup;
    let web = Rc::new(WebState {
        worker_rpc: WorkerRpc::new(workforce),
        model: std::cell::RefCell::new(Model::new()),
        rules: std::cell::RefCell::new(rules),
        tls: std::cell::RefCell::new(tls),
        authenticator: access::Authenticator::new(),
        slots: Rc::default(),
        log,
        version,
        machine: machine_name(),
        sampling: tokio::sync::Mutex::new(()),
        sampled: tokio::sync::watch::Sender::new(0),
        streams: std::cell::Cell::new(0),
        clusters: std::cell::RefCell::default(),
        clusters_turn: tokio::sync::Mutex::new(()),
        is_draining: std::cell::Cell::new(false),
    });
    let mut accept_tasks = Vec::new();
    for socket in sockets {
        match tokio::net::TcpListener::from_std(socket) {
            Ok(listener) => {
                accept_tasks.push(tokio::task::spawn_local(server::serve::serve(Rc::clone(&web), listener)));
            }
            Err(error) => web.log.write(Level::Error, &format!("HTTP server: {error}")),
        }
    }
    tokio::task::spawn_local(sampler::run(Rc::clone(&web)));
    listen(&web, inbox, &accept_tasks, present).await;
}

/// Returns the name of this machine, which readers of several dashboards need.
fn machine_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// Handles messages from the rest of the process, until it has dropped the handle.
async fn listen(
    web: &WebState,
    mut inbox: WebInbox,
    accept_tasks: &[tokio::task::JoinHandle<()>],
    present: Present,
) {
    while let Some(message) = inbox.messages.recv().await {
        match message {
            WebMessage::Seen { worker, ticket, snapshot } => web.worker_rpc.seen(worker, ticket, snapshot),
            WebMessage::Operated { ticket, result } => web.worker_rpc.operated(ticket, result),
            WebMessage::Drain => web.is_draining.set(true),
            WebMessage::Close => accept_tasks.iter().for_each(tokio::task::JoinHandle::abort),
            WebMessage::Rules(rules) => {
                match server::tls::Tls::read(&rules.config.main, present) {
                    Ok(tls) => *web.tls.borrow_mut() = tls,
                    Err(text) => web.log.write(
                        Level::Warning,
                        &format!("{text}; the HTTP server keeps the certificate that it has"),
                    ),
                }
                *web.rules.borrow_mut() = rules;
            }
        }
    }
}

impl WebState {
    fn config(&self) -> Arc<pgweir_settings::Config> {
        Arc::clone(&self.rules.borrow().config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_stays_on_this_machine() {
        assert_eq!(addresses_of("9127"), Some(vec![([127, 0, 0, 1], 9127).into()]));
        assert_eq!(addresses_of(" *:80"), Some(vec![([0, 0, 0, 0], 80).into()]));
        assert_eq!(addresses_of("[::1]:80").map(|found| found.len()), Some(1));
        assert_eq!(addresses_of("*:http"), None);
        assert_eq!(addresses_of(""), None);
    }
}
