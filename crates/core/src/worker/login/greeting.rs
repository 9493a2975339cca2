//! A client's first packets: SSLRequest, GSSENCRequest, CancelRequest, direct TLS, the startup packet.

use pgweir_settings::SslMode;
use pgweir_wire::WireError;
use pgweir_wire::frontend::tag;
use pgweir_wire::startup::{Initial, peek_initial};

use crate::context::{Cx, Env};
use crate::driver::{Driver, Peer, TlsInfo, TlsRole};
use crate::errors::Fault;
use crate::ids::UnpooledId;
use crate::pool::Step;
use crate::worker::Worker;
use crate::worker::unpooled::{TlsAsked, UnpooledState};

impl Worker {
    /// Handles a packet without a type byte.
    pub(crate) fn greet<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, bytes: &[u8]) -> Step {
        let (packet, used) = match peek_initial(bytes) {
            Ok(Some(found)) => found,
            Ok(None) => return Step::Wait,
            // PostgreSQL closes such a connection without a word, too (`ProcessStartupPacket`): a Terminate that comes first, for example.
            Err(error @ WireError::StartupLength { .. }) => {
                let leaves = bytes.starts_with(&[tag::TERMINATE, 0, 0, 0]);
                let reason = if leaves { "client close request".to_owned() } else { error.to_string() };
                return self.unpooled_left(cx, id, &reason);
            }
            Err(error) => {
                return self.refuse_unpooled(cx, id, &Fault::Protocol(error.to_string().into()));
            }
        };
        match packet {
            Initial::Ssl => self.ssl_request(cx, id, bytes.len() - used).map_used(used),
            Initial::DirectTls => self.direct_tls(cx, id, bytes),
            Initial::Gss => self.gss_request(cx, id, bytes.len() - used).map_used(used),
            Initial::Cancel { pid, key } => self.cancel_request(cx, id, pid, key).map_used(used),
            Initial::OldProtocol => {
                self.refuse_unpooled(cx, id, &Fault::Protocol("old V2 protocol not supported".into()))
            }
            Initial::Startup(packet) => {
                if self.tls_is_missing(cx.env, id) {
                    return self.refuse_unpooled(cx, id, &Fault::TlsRequired);
                }
                self.startup(cx, id, &packet).map_used(used)
            }
        }
    }

    fn ssl_request<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, behind: usize) -> Step {
        let may_tls = self.client_may_tls(cx.env, id);
        let Some(client) = self.unpooled.get_mut(id) else { return Step::Gone };
        let UnpooledState::Greeting(greeting) = &mut client.state else { return Step::Gone };
        if greeting.tls != TlsAsked::No {
            return self.refuse_unpooled(cx, id, &Fault::Protocol("SSL was requested twice".into()));
        }
        if behind > 0 {
            return self.refuse_unpooled(cx, id, &Fault::Protocol(BYTES_BEHIND_SSL.into()));
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

    fn gss_request<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, behind: usize) -> Step {
        let Some(client) = self.unpooled.get_mut(id) else { return Step::Gone };
        let UnpooledState::Greeting(greeting) = &mut client.state else { return Step::Gone };
        if greeting.gss_asked {
            return self.refuse_unpooled(
                cx,
                id,
                &Fault::Protocol("GSS encryption was requested twice".into()),
            );
        }
        if behind > 0 {
            return self.refuse_unpooled(cx, id, &Fault::Protocol(BYTES_BEHIND_GSS.into()));
        }
        greeting.gss_asked = true;
        cx.driver.send(client.conn, b"N");
        Step::Used(0)
    }

    /// Begins TLS with a client whose first byte is that of a TLS record (PostgreSQL 17's sslnegotiation=direct).
    fn direct_tls<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, bytes: &[u8]) -> Step {
        let may_tls = self.client_may_tls(cx.env, id);
        let Some(client) = self.unpooled.get_mut(id) else { return Step::Gone };
        let UnpooledState::Greeting(greeting) = &mut client.state else { return Step::Gone };
        if !may_tls || greeting.tls != TlsAsked::No {
            return self.refuse_unpooled(cx, id, &Fault::Protocol("TLS is not available here".into()));
        }
        greeting.tls = TlsAsked::Handshake;
        cx.driver.start_tls(client.conn, TlsRole::Accept { direct: true }, bytes);
        Step::Used(bytes.len())
    }

    /// Notes that the TLS handshake with a client is complete.
    pub(crate) fn client_secured(&mut self, id: UnpooledId, info: TlsInfo) {
        let Some(client) = self.unpooled.get_mut(id) else { return };
        if let UnpooledState::Greeting(greeting) = &mut client.state {
            greeting.tls = TlsAsked::Established;
            client.origin.tls = Some(Box::new(info));
        }
    }

    fn client_may_tls(&self, env: &Env, id: UnpooledId) -> bool {
        let over_tcp =
            self.unpooled.get(id).is_some_and(|client| matches!(client.origin.peer, Peer::Tcp { .. }));
        over_tcp && env.rules.config.main.client_tls_sslmode != SslMode::Disable
    }

    /// Whether the sslmode requires TLS and this client does not use it. Unix sockets never need it.
    fn tls_is_missing(&self, env: &Env, id: UnpooledId) -> bool {
        let demanded = matches!(
            env.rules.config.main.client_tls_sslmode,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull
        );
        demanded
            && self.unpooled.get(id).is_some_and(|client| {
                matches!(client.origin.peer, Peer::Tcp { .. }) && client.origin.tls.is_none()
            })
    }
}

/// The error for plain text after a request for encryption: a third party could have inserted it (CVE-2021-3935).
const BYTES_BEHIND_SSL: &str = "received unencrypted data after SSL request";
const BYTES_BEHIND_GSS: &str = "received unencrypted data after GSSAPI encryption request";

impl Step {
    /// Replaces the number of used bytes of a successful step.
    fn map_used(self, used: usize) -> Step {
        match self {
            Step::Used(_) => Step::Used(used),
            other => other,
        }
    }
}
