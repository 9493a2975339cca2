//! A client's first packets: SSLRequest, GSSENCRequest, CancelRequest, direct TLS, the startup packet. And the loop that
//! takes a client's bytes through its states.

use pgweir_settings::SslMode;
use pgweir_wire::startup::{Initial, peek_initial};

use super::{Step, Worker};
use crate::client::{ClientState, TlsAsked};
use crate::client_handoff::Replication;
use crate::context::{Cx, Env};
use crate::driver::{Driver, Peer, TlsInfo, TlsRole};
use crate::errors::Fault;
use crate::ids::ClientId;
use crate::limits::{BACKLOG_HIGH_BYTES, INBOX_BYTES_MAX};

impl Worker {
    /// Bytes of a client, in any state.
    pub(super) fn client_received<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if let Some(account) = &mut client.account {
            account.active_us = cx.env.now.mono_us;
            if let Some(pool) = self.pools.get_mut(account.pool) {
                pool.stats.received_bytes += bytes.len() as u64;
            }
        }
        if client.inbox.is_empty() {
            let used = self.client_consume(cx, id, bytes);
            self.client_keep(cx, id, None, bytes, used);
        } else {
            let mut inbox = std::mem::take(&mut client.inbox);
            inbox.extend_from_slice(bytes);
            let used = self.client_consume(cx, id, &inbox);
            self.client_keep(cx, id, Some(inbox), &[], used);
        }
    }

    /// Looks again at bytes that a client sent earlier: its state has changed.
    pub(super) fn client_resume<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if !client.inbox.is_empty() {
            let inbox = std::mem::take(&mut client.inbox);
            let used = self.client_consume(cx, id, &inbox);
            self.client_keep(cx, id, Some(inbox), &[], used);
        }
        self.client_unpause(cx, id);
    }

    /// Keeps the bytes that were not used, and stops reading from a client that has too much waiting here.
    fn client_keep<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        held: Option<Vec<u8>>,
        bytes: &[u8],
        used: usize,
    ) {
        let Some(client) = self.clients.get_mut(id) else {
            if let Some(buffer) = held {
                cx.env.buffers.give_back(buffer);
            }
            return;
        };
        debug_assert!(client.inbox.is_empty(), "bytes were kept while others were being looked at");
        client.inbox = cx.env.buffers.remainder(held, bytes, used);
        let conn = client.conn;
        let too_much_waits = client.inbox.len() > INBOX_BYTES_MAX && self.client_is_stalled(id);
        // A client that sends requests without reading the answers is not read further.
        if too_much_waits || cx.driver.backlog(conn) > BACKLOG_HIGH_BYTES {
            self.pause_client(cx, id);
        }
        self.hand_over_if_due(cx, id);
    }

    /// Takes bytes through the client's states until they are used up or must wait; returns the number of bytes used.
    fn client_consume<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let Some(client) = self.clients.get_mut(id) else { return bytes.len() };
            if client.skip > 0 {
                let skipped = client.skip.min(bytes.len() - at);
                client.skip -= skipped;
                at += skipped;
                continue;
            }
            let rest = &bytes[at..];
            let step = match &client.state {
                ClientState::Greeting(_) => self.greet(cx, id, rest),
                ClientState::Authenticating(_) => self.authenticate(cx, id, rest),
                ClientState::AwaitingAnswer(_)
                | ClientState::AwaitingServer(_)
                | ClientState::HandingOver(_)
                | ClientState::Waiting(_)
                | ClientState::QueuedBehind(_) => Step::Wait,
                // Nothing more is expected; nothing more is kept.
                ClientState::Cancelling => Step::Used(rest.len()),
                ClientState::Idle => self.idle_client_sent(cx, id, rest),
                ClientState::DeferredBegin(_) => self.client_with_deferred_begin_sent(cx, id, rest),
                ClientState::Ignoring => self.ignoring_client_sent(cx, id, rest),
                ClientState::Linked(link) if client.replication() != Replication::None => {
                    let server = link.server;
                    self.replication_client_sent(cx, id, server, rest)
                }
                ClientState::Linked(link) => {
                    let server = link.server;
                    self.linked_client_sent(cx, id, server, rest)
                }
                ClientState::Console(_) => self.console_sent(cx, id, rest),
            };
            match step {
                Step::Used(used) => at += used,
                Step::Wait => break,
                Step::Gone => return bytes.len(),
            }
        }
        at
    }

    /// One of the packets that have no type byte.
    fn greet<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, bytes: &[u8]) -> Step {
        let (packet, used) = match peek_initial(bytes) {
            Ok(Some(found)) => found,
            Ok(None) => return Step::Wait,
            Err(error) => {
                return self.refuse_client(cx, id, &Fault::Protocol(error.to_string().into()));
            }
        };
        match packet {
            Initial::Ssl => self.ssl_request(cx, id, bytes.len() - used).map_used(used),
            Initial::DirectTls => self.direct_tls(cx, id, bytes),
            Initial::Gss => self.gss_request(cx, id, bytes.len() - used).map_used(used),
            Initial::Cancel { pid, key } => self.cancel_request(cx, id, pid, key).map_used(used),
            Initial::OldProtocol => {
                self.refuse_client(cx, id, &Fault::Protocol("old V2 protocol not supported".into()))
            }
            Initial::Startup(packet) => {
                if self.tls_is_missing(cx.env, id) {
                    return self.refuse_client(cx, id, &Fault::TlsRequired);
                }
                self.startup(cx, id, &packet).map_used(used)
            }
        }
    }

    fn ssl_request<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, behind: usize) -> Step {
        let may_tls = self.client_may_tls(cx.env, id);
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        let ClientState::Greeting(greeting) = &mut client.state else { return Step::Gone };
        if greeting.tls != TlsAsked::No {
            return self.refuse_client(cx, id, &Fault::Protocol("SSL was requested twice".into()));
        }
        if behind > 0 {
            return self.refuse_client(cx, id, &Fault::Protocol(BYTES_BEHIND_SSL.into()));
        }
        let conn = client.conn;
        if may_tls {
            greeting.tls = TlsAsked::Handshake;
            cx.driver.send(conn, b"S");
            cx.driver.start_tls(conn, TlsRole::Accept { direct: false }, &[]);
        } else {
            greeting.tls = TlsAsked::Refused;
            cx.driver.send(conn, b"N");
        }
        Step::Used(0)
    }

    fn gss_request<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, behind: usize) -> Step {
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        let ClientState::Greeting(greeting) = &mut client.state else { return Step::Gone };
        if greeting.gss_asked {
            return self.refuse_client(cx, id, &Fault::Protocol("GSS encryption was requested twice".into()));
        }
        if behind > 0 {
            return self.refuse_client(cx, id, &Fault::Protocol(BYTES_BEHIND_GSS.into()));
        }
        greeting.gss_asked = true;
        cx.driver.send(client.conn, b"N");
        Step::Used(0)
    }

    /// The first byte is that of a TLS record (PostgreSQL 17's sslnegotiation=direct).
    fn direct_tls<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, bytes: &[u8]) -> Step {
        let may_tls = self.client_may_tls(cx.env, id);
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        let ClientState::Greeting(greeting) = &mut client.state else { return Step::Gone };
        if !may_tls || greeting.tls != TlsAsked::No {
            return self.refuse_client(cx, id, &Fault::Protocol("TLS is not available here".into()));
        }
        greeting.tls = TlsAsked::Handshake;
        cx.driver.start_tls(client.conn, TlsRole::Accept { direct: true }, bytes);
        Step::Used(bytes.len())
    }

    /// The handshake with a client is complete.
    pub(super) fn client_secured(&mut self, id: ClientId, info: TlsInfo) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if let ClientState::Greeting(greeting) = &mut client.state {
            greeting.tls = TlsAsked::Established;
            client.origin.tls = Some(Box::new(info));
        }
    }

    fn client_may_tls(&self, env: &Env, id: ClientId) -> bool {
        let over_tcp =
            self.clients.get(id).is_some_and(|client| matches!(client.origin.peer, Peer::Tcp { .. }));
        over_tcp && env.rules.config.main.client_tls_sslmode != SslMode::Disable
    }

    /// sslmode demands TLS and this client does not use it. Unix sockets never need it.
    fn tls_is_missing(&self, env: &Env, id: ClientId) -> bool {
        let demanded = matches!(
            env.rules.config.main.client_tls_sslmode,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull
        );
        demanded
            && self.clients.get(id).is_some_and(|client| {
                matches!(client.origin.peer, Peer::Tcp { .. }) && client.origin.tls.is_none()
            })
    }
}

/// Another party could have put plain text after a request for encryption (CVE-2021-3935).
const BYTES_BEHIND_SSL: &str = "received unencrypted data after SSL request";
const BYTES_BEHIND_GSS: &str = "received unencrypted data after GSSAPI encryption request";

impl Step {
    /// A step that went well used this packet.
    fn map_used(self, used: usize) -> Step {
        match self {
            Step::Used(_) => Step::Used(used),
            other => other,
        }
    }
}
