//! The first message of a client without a server, and messages that nothing is done with.

use pgweir_wire::WireError;
use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::frontend::tag;
use pgweir_wire::header::Header;

use crate::context::Cx;
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::ClientId;
use crate::pool::client::state::ClientState;
use crate::pool::relay::route::{Route, oversized, route};
use crate::pool::{Pool, Step};

impl Pool {
    /// The header of a client's next message, once it is there; a bad one ends the client. A Sync, Flush or Close is short then.
    #[inline]
    pub(crate) fn first_header<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        bytes: &[u8],
    ) -> Result<Header, Step> {
        let header = Header::peek(bytes);
        let max_bytes = cx.env.rules.config.main.max_packet_size as usize;
        match header {
            Ok(Some(header)) if header.total() <= max_bytes => {
                // These are answered here, once they are whole.
                let fault = match header.tag {
                    tag::SYNC | tag::FLUSH | tag::CLOSE => match route(header, bytes, false) {
                        Route::Refused(flaw) => flaw.fault(header.tag),
                        _ => None,
                    },
                    _ => None,
                };
                fault.map_or(Ok(header), |fault| Err(self.refuse_client(cx, id, &fault)))
            }
            Ok(None) => Err(Step::Wait),
            header => Err(self.refuse_header(cx, id, header)),
        }
    }

    /// Drops a message, also one of which only the beginning is here.
    pub(crate) fn discard(&mut self, id: ClientId, available: usize, header: Header) -> Step {
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        client.skip = header.total().saturating_sub(available);
        Step::Used(header.total().min(available))
    }

    #[cold]
    pub(crate) fn refuse_header<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        header: Result<Option<Header>, WireError>,
    ) -> Step {
        let fault = match header {
            Ok(header) => header.and_then(|header| oversized(&cx.env.rules.config.main, header)),
            Err(error) => Some(Fault::Protocol(error.to_string().into())),
        };
        fault.map_or(Step::Wait, |fault| self.refuse_client(cx, id, &fault))
    }

    /// Ignores the rest of a group, as PostgreSQL does, after the client was sent an error within it.
    pub(crate) fn ignoring_client_sent<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        bytes: &[u8],
    ) -> Step {
        let header = match self.first_header(cx, id, bytes) {
            Ok(header) => header,
            Err(step) => return step,
        };
        match header.tag {
            tag::TERMINATE => self.client_left(cx, id, "client close request"),
            tag::SYNC if bytes.len() < header.total() => Step::Wait,
            tag::SYNC => {
                cx.env.scratch.clear();
                backend::encode_ready(&mut cx.env.scratch, TxStatus::Idle);
                self.set_client_state(id, ClientState::Idle);
                cx.driver.send(self.clients[id].conn, &cx.env.scratch);
                Step::Used(header.total())
            }
            _ => self.discard(id, bytes.len(), header),
        }
    }
}
