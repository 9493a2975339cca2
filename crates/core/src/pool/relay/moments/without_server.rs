//! Messages of a client without a server that pgweir answers itself: Sync, Flush, Parse and Close.

use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::frontend::tag;
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::ClientId;
use crate::pool::{Pool, Step};

impl Pool {
    /// Answers a message instead of a server that was sent nothing yet. `status` is the transaction status that the client was told last.
    /// Returns `None` if a server must answer it.
    // A comparison or two for nearly all messages.
    #[inline(always)]
    pub(crate) fn answer_message<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        header: Header,
        bytes: &[u8],
        status: TxStatus,
    ) -> Option<Step> {
        match header.tag {
            tag::SYNC | tag::FLUSH | tag::PARSE | tag::CLOSE => {
                self.answer_in_place(cx, id, header, bytes, status)
            }
            _ => None,
        }
    }

    fn answer_in_place<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        header: Header,
        bytes: &[u8],
        status: TxStatus,
    ) -> Option<Step> {
        let body = bytes.get(HEADER_LEN..header.total())?;
        match header.tag {
            tag::SYNC => {
                cx.env.scratch.clear();
                backend::encode_ready(&mut cx.env.scratch, status);
                cx.driver.send(self.clients.get(id)?.conn, &cx.env.scratch);
                Some(Step::Used(header.total()))
            }
            tag::FLUSH => Some(Step::Used(header.total())),
            tag::PARSE if self.client_tracks_statements(id) => {
                self.parse_without_server(cx, id, body).then_some(Step::Used(header.total()))
            }
            tag::CLOSE if status == TxStatus::Idle && self.client_tracks_statements(id) => {
                match self.close_without_server(cx, id, body) {
                    Ok(answered) => answered.then_some(Step::Used(header.total())),
                    Err(fault) => Some(self.refuse_client(cx, id, &fault)),
                }
            }
            _ => None,
        }
    }
}
