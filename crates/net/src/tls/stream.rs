//! One TLS session: turns records into plain text, and the other way round. It owns no socket, and between
//! records no buffer either: rustls' unbuffered interface works on ours.

use std::sync::Arc;

use pgweir_core::driver::{Closed, TlsInfo, TlsRole};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{CommonState, ProtocolVersion};

use crate::connection::out::{BufferPool, Out};
use crate::tls::{ALPN_POSTGRESQL, TlsConfigs, names, suites};

/// The amount of plain text that is encrypted at a time: four full records.
pub(crate) const TLS_PIECE_BYTES: usize = 4 * 16 * 1024;
/// The room for a piece with its record headers and tags, and for a key update or an alert before it.
pub(crate) const SCRATCH_BYTES: usize = TLS_PIECE_BYTES + 4 * 1024;
/// The maximum size of incomplete records. A record has at most 18 KiB, so this bounds a handshake message
/// that is spread over many. The rest of the read buffer stays free for reading.
const UNREAD_MAX_BYTES: usize = 48 * 1024;

enum Session {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

/// The conditions of a handshake, beyond those that rustls checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// A handshake with a server. `verified`: its certificate was checked.
    Server { verified: bool },
    /// A handshake with a client. If it sends a certificate, that is checked.
    Client,
    /// A handshake with a client that began with TLS directly: it has to name the protocol (ALPN).
    ClientWithAlpn,
}

/// The stage of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// The handshake is under way.
    Handshake(Wanted),
    /// Application data flows.
    Established,
    /// The peer has ended the session in order.
    PeerClosed,
    /// The session failed; the text is the reason.
    Broken(String),
}

/// A TLS session on a connection.
pub(crate) struct TlsStream {
    session: Session,
    stage: Stage,
    /// Bytes of incomplete records.
    unread: Vec<u8>,
    /// Plain text that the machine has not got yet.
    undelivered: Vec<u8>,
    /// Encrypted bytes to be written to the socket.
    pub(crate) wire: Out,
    /// `true` if there is work before the next bytes arrive: to begin, or to read the bytes that came with
    /// the request.
    pub(crate) kicked: bool,
    close_notify_sent: bool,
    /// The hash of our own certificate, until the handshake is complete.
    own_end_point: Option<Arc<[u8]>>,
}

impl TlsStream {
    /// Begins a session. The text of an error is for the log.
    pub(crate) fn new(configs: &TlsConfigs, role: &TlsRole) -> Result<Self, String> {
        let mut own_end_point = None;
        let (session, wanted) = match role {
            TlsRole::Accept { direct } => {
                let clients = configs.clients.as_ref().ok_or("TLS towards clients is not configured")?;
                own_end_point = clients.end_point.clone();
                let session = UnbufferedServerConnection::new(Arc::clone(&clients.config))
                    .map_err(|e| e.to_string())?;
                let wanted = if *direct { Wanted::ClientWithAlpn } else { Wanted::Client };
                (Session::Server(Box::new(session)), wanted)
            }
            TlsRole::Connect { host } => {
                let servers = configs.servers.as_ref().ok_or("TLS towards servers is not configured")?;
                let session = servers.connect(host)?;
                (Session::Client(Box::new(session)), Wanted::Server { verified: servers.verifies() })
            }
        };
        Ok(Self {
            session,
            stage: Stage::Handshake(wanted),
            unread: Vec::new(),
            undelivered: Vec::new(),
            wire: Out::default(),
            kicked: false,
            close_notify_sent: false,
            own_end_point,
        })
    }

    pub(crate) fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established | Stage::PeerClosed)
    }

    /// Returns whether there is work without further bytes.
    pub(crate) fn has_work(&self) -> bool {
        self.kicked || self.has_undelivered() || self.ended().is_some()
    }

    /// Returns the reason why no more bytes will come; `None` while the session goes on.
    pub(crate) fn ended(&self) -> Option<Closed> {
        match &self.stage {
            Stage::Handshake(_) | Stage::Established => None,
            Stage::PeerClosed => Some(Closed::Eof),
            Stage::Broken(text) => Some(Closed::Tls(text.clone())),
        }
    }

    pub(crate) fn has_undelivered(&self) -> bool {
        !self.undelivered.is_empty()
    }

    pub(crate) fn take_undelivered(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.undelivered)
    }

    pub(crate) fn keep_undelivered(&mut self, plain: &[u8], pool: &mut BufferPool) {
        keep(&mut self.undelivered, plain, pool);
    }

    /// Keeps bytes that belong to the session and have been read from the socket already.
    pub(crate) fn keep_unread(&mut self, bytes: &[u8], pool: &mut BufferPool) {
        if self.unread.len() + bytes.len() > UNREAD_MAX_BYTES {
            self.stage = Stage::Broken("too many bytes before the handshake".to_owned());
            return;
        }
        keep(&mut self.unread, bytes, pool);
    }

    /// Copies the kept bytes of incomplete records to the front of the read buffer, and returns their number.
    /// Bytes from the socket are read after them.
    pub(crate) fn unread(&self, buffer: &mut [u8]) -> usize {
        buffer[..self.unread.len()].copy_from_slice(&self.unread);
        self.unread.len()
    }

    /// Processes `incoming`, which begins with the bytes of [`TlsStream::unread`]. Plain text is added to
    /// `plain`, and the session's own messages to the wire. Returns the facts of the session when the
    /// handshake becomes complete.
    pub(crate) fn feed(
        &mut self,
        incoming: &mut [u8],
        plain: &mut Vec<u8>,
        pool: &mut BufferPool,
    ) -> Option<TlsInfo> {
        if matches!(self.stage, Stage::Broken(_)) {
            return None;
        }
        let mut used = 0;
        let result = loop {
            let rest = &mut incoming[used..];
            let mut sink = Sink { plain, wire: &mut self.wire, pool };
            let (discard, progress) = match &mut self.session {
                Session::Server(session) => sink.step(session.process_tls_records(rest)),
                Session::Client(session) => sink.step(session.process_tls_records(rest)),
            };
            used = incoming.len().min(used + discard);
            match progress {
                Progress::Again => {}
                Progress::PeerClosed => break Ok(true),
                Progress::NeedsBytes => break Ok(false),
                Progress::Failed(error) => break Err(error),
            }
        };
        pool.give(std::mem::take(&mut self.unread));
        match result {
            Ok(peer_closed) => {
                self.keep_unread(&incoming[used..], pool);
                self.advance(peer_closed)
            }
            Err(error) => {
                self.take_alert(pool);
                self.stage = Stage::Broken(explained(&error));
                None
            }
        }
    }

    fn advance(&mut self, peer_closed: bool) -> Option<TlsInfo> {
        let Stage::Handshake(wanted) = self.stage else {
            if peer_closed && self.stage == Stage::Established {
                self.stage = Stage::PeerClosed;
            }
            return None;
        };
        if peer_closed {
            self.stage = Stage::Broken("the peer closed during the handshake".to_owned());
            return None;
        }
        let state = self.state();
        if state.is_handshaking() {
            return None;
        }
        if wanted == Wanted::ClientWithAlpn && state.alpn_protocol() != Some(ALPN_POSTGRESQL) {
            // The text is PostgreSQL's (backend_startup.c).
            let text = "received direct SSL connection request without ALPN protocol negotiation extension";
            self.stage = Stage::Broken(text.to_owned());
            return None;
        }
        let mut info = describe(state, wanted != Wanted::Server { verified: false });
        if let Some(own) = self.own_end_point.take() {
            info.end_point = Some((&*own).into());
        } else if matches!(wanted, Wanted::Server { .. }) {
            let shown = self.state().peer_certificates().and_then(|chain| chain.first());
            info.end_point = shown.and_then(|certificate| names::end_point(certificate));
        }
        self.stage = Stage::Established;
        Some(info)
    }

    /// Encrypts `plain` into `sealed` and returns the number of bytes written to it. `plain` has at most
    /// [`TLS_PIECE_BYTES`], and `sealed` has [`SCRATCH_BYTES`].
    pub(crate) fn encrypt(&mut self, plain: &[u8], sealed: &mut [u8]) -> Result<usize, String> {
        debug_assert!(plain.len() <= TLS_PIECE_BYTES);
        self.write(sealed, Write::Data(plain))
    }

    /// Writes the message that ends the session in order, at most once. Returns the number of bytes written
    /// to `sealed`.
    pub(crate) fn close_notify(&mut self, sealed: &mut [u8]) -> usize {
        if !self.is_established() || std::mem::replace(&mut self.close_notify_sent, true) {
            return 0;
        }
        self.write(sealed, Write::CloseNotify).unwrap_or(0)
    }

    fn write(&mut self, sealed: &mut [u8], what: Write<'_>) -> Result<usize, String> {
        let mut filled = 0;
        loop {
            // An incomplete record stays incomplete, so no plain text can appear here.
            let rest = &mut self.unread[..];
            let done = match &mut self.session {
                Session::Server(session) => {
                    write_step(session.process_tls_records(rest), sealed, &mut filled, what)
                }
                Session::Client(session) => {
                    write_step(session.process_tls_records(rest), sealed, &mut filled, what)
                }
            };
            if done? {
                return Ok(filled);
            }
        }
    }

    /// Takes the alert by which a failed session tells the peer.
    fn take_alert(&mut self, pool: &mut BufferPool) {
        let mut nothing = Vec::new();
        // A session sends before it reads, so it never looks at bytes here.
        while self.state().wants_write() {
            let mut sink = Sink { plain: &mut nothing, wire: &mut self.wire, pool };
            let (_, progress) = match &mut self.session {
                Session::Server(session) => sink.step(session.process_tls_records(&mut [])),
                Session::Client(session) => sink.step(session.process_tls_records(&mut [])),
            };
            if !matches!(progress, Progress::Again) {
                return;
            }
        }
    }

    fn state(&self) -> &CommonState {
        match &self.session {
            Session::Server(session) => session,
            Session::Client(session) => session,
        }
    }

    /// Returns the memory that the session's own buffers take.
    #[cfg(test)]
    pub(crate) fn buffers_bytes(&self) -> usize {
        self.unread.capacity() + self.undelivered.capacity() + self.wire.capacity()
    }

    /// Returns the buffers to the pool.
    pub(crate) fn recycle(mut self, pool: &mut BufferPool) {
        self.wire.clear(pool);
        pool.give(self.unread);
        pool.give(self.undelivered);
    }
}

fn keep(place: &mut Vec<u8>, bytes: &[u8], pool: &mut BufferPool) {
    if bytes.is_empty() {
        return;
    }
    if place.capacity() == 0 {
        *place = pool.take();
    }
    place.extend_from_slice(bytes);
}

/// The result of a step of reading.
enum Progress {
    Again,
    NeedsBytes,
    PeerClosed,
    Failed(String),
}

/// The destination of the bytes that a step of reading finds.
struct Sink<'a> {
    plain: &'a mut Vec<u8>,
    wire: &'a mut Out,
    pool: &'a mut BufferPool,
}

impl Sink<'_> {
    /// Takes one step. Returns the number of bytes that are processed.
    fn step<Data>(&mut self, status: UnbufferedStatus<'_, '_, Data>) -> (usize, Progress) {
        let mut discard = status.discard;
        let progress = match status.state {
            Err(error) => Progress::Failed(error.to_string()),
            Ok(ConnectionState::ReadTraffic(mut records)) => loop {
                match records.next_record() {
                    Some(Ok(record)) => {
                        discard += record.discard;
                        self.plain.extend_from_slice(record.payload);
                    }
                    Some(Err(error)) => break Progress::Failed(error.to_string()),
                    None => break Progress::Again,
                }
            },
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                let mut room = self.pool.take();
                let filled = loop {
                    room.resize(room.capacity(), 0);
                    match data.encode(&mut room) {
                        Ok(filled) => break filled,
                        Err(EncodeError::InsufficientSize(wanted)) => room.reserve(wanted.required_size),
                        Err(EncodeError::AlreadyEncoded) => break 0,
                    }
                };
                self.wire.push(&room[..filled], self.pool);
                self.pool.give(room);
                Progress::Again
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Progress::Again
            }
            Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => Progress::NeedsBytes,
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Progress::PeerClosed,
            // Early data is not enabled, and no other state is known.
            Ok(_) => Progress::Failed("an unexpected state of the TLS session".to_owned()),
        };
        (discard, progress)
    }
}

#[derive(Clone, Copy)]
enum Write<'a> {
    Data(&'a [u8]),
    CloseNotify,
}

/// Takes one step towards writing. Returns `Ok(true)` when everything is written.
fn write_step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    sealed: &mut [u8],
    filled: &mut usize,
    what: Write<'_>,
) -> Result<bool, String> {
    let room = &mut sealed[*filled..];
    let count = match status.state.map_err(|e| e.to_string())? {
        ConnectionState::EncodeTlsData(mut data) => {
            *filled += data.encode(room).map_err(|e| e.to_string())?;
            return Ok(false);
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            return Ok(false);
        }
        ConnectionState::WriteTraffic(mut traffic) => match what {
            Write::Data(plain) => traffic.encrypt(plain, room),
            Write::CloseNotify => traffic.queue_close_notify(room),
        },
        // Reading has reported the end already; the session reports it only once.
        ConnectionState::PeerClosed => return Ok(false),
        _ => return Err("the TLS session cannot write".to_owned()),
    };
    *filled += count.map_err(|e: EncryptError| e.to_string())?;
    Ok(true)
}

fn describe(state: &CommonState, verified: bool) -> TlsInfo {
    let version = match state.protocol_version() {
        Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
        Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
        _ => "TLS",
    };
    let suite =
        state.negotiated_cipher_suite().map_or("unknown", |found| suites::openssl_name(found.suite()));
    let peer = state.peer_certificates().and_then(|chain| chain.first()).filter(|_| verified);
    TlsInfo {
        description: format!("{version}/{suite}"),
        peer_names: peer.map(|certificate| names::of(certificate)).unwrap_or_default(),
        end_point: None,
    }
}

/// Returns PgBouncer's words for an error, which readers of logs know, with rustls' text, and with advice if
/// there is some.
fn explained(error: &str) -> String {
    let more = match error.contains("UnsupportedCertVersion") {
        true => {
            "; an authority's certificate of X.509 version 1: `openssl x509 -req` makes version 3 with -extfile"
        }
        false => "",
    };
    match in_words_of_openssl(error) {
        Some(words) => format!("{words} ({error}{more})"),
        None => format!("{error}{more}"),
    }
}

fn in_words_of_openssl(error: &str) -> Option<String> {
    let failed = |why: &str| Some(format!("handshake failed: {why}"));
    if let Some((_, rest)) = error.split_once("not valid for name \"") {
        let name = rest.split('"').next().unwrap_or_default();
        return Some(format!("name `{name}' not present in server certificate"));
    }
    if error.starts_with("invalid peer certificate") {
        return failed("certificate verify failed");
    }
    if error.contains("NoCipherSuitesInCommon") {
        return failed("no shared cipher");
    }
    if error.ends_with("alert: HandshakeFailure") {
        return failed("sslv3 alert handshake failure");
    }
    None
}

#[cfg(test)]
mod words {
    use super::explained;

    #[test]
    fn failures_are_told_in_words_that_readers_of_logs_know() {
        for (error, words) in [
            ("invalid peer certificate: UnknownIssuer", "handshake failed: certificate verify failed ("),
            (
                "invalid peer certificate: certificate not valid for name \"db.x\"; certificate is only valid for DnsName(\"y\")",
                "name `db.x' not present in server certificate (",
            ),
            ("received fatal alert: HandshakeFailure", "handshake failed: sslv3 alert handshake failure ("),
            ("peer is incompatible: NoCipherSuitesInCommon", "handshake failed: no shared cipher ("),
        ] {
            let told = explained(error);
            assert!(told.starts_with(words) && told.contains(error), "{told}");
        }
        assert_eq!(explained("received fatal alert: UnknownCA"), "received fatal alert: UnknownCA");
    }
}
