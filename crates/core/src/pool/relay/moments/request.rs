//! The moment *request*: a client that has no server sent a message. Can pgweir answer it here?
//!
//! The features are asked in this order; the first that has an answer ends the moment:
//!
//! 1. `begin`: a plain BEGIN, and the end of a transaction in which nothing happened. It looks at a whole group of messages, so
//!    it comes before the parts that look at one message.
//! 2. Sync and Flush: no server owes anything to a client that has none.
//! 3. `prepared`: Parse of a statement that a server has prepared before, and Close.
//! 4. `known_answers`: a whole group that only reads, whose answer is known. It comes last: the group must be one that a server would run, and
//!    looking at it takes longest.
//!
//! A message that no feature answers needs a server, once enough of it is here: `choose` finds one.

use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::tag;
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::Cx;
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::ClientId;
use crate::limits::{HOLD_MESSAGE_BYTES, PARSE_BYTES_MAX};
use crate::pool::client::state::ClientState;
use crate::pool::{Pool, Step};
use crate::stats::rare_path::RarePath;

impl Pool {
    /// Handles a message of a client that has no server. Returns `Step::Wait` if the message needs a server, or is not whole.
    pub(crate) fn client_without_server_sent<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        bytes: &[u8],
    ) -> Step {
        let header = match self.first_header(cx, id, bytes) {
            Ok(header) => header,
            Err(step) => return step,
        };
        let status = match self.clients.get(id).map(|client| &client.state) {
            Some(ClientState::Idle) => TxStatus::Idle,
            Some(ClientState::DeferredBegin(_)) => TxStatus::InTransaction,
            _ => return Step::Wait,
        };
        if bytes.len() >= header.total() {
            let answered = self.answer_block_here(cx, id, header, bytes, status);
            let answered = answered.or_else(|| self.answer_message(cx, id, header, bytes, status));
            if let Some(step) = answered {
                return step;
            }
        }
        if let Some(step) = self.keeps_from_server(cx, id, header, bytes) {
            return step;
        }
        let group = match status {
            TxStatus::Idle => self.group_of(cx.env, id, bytes),
            // It goes to a server after its BEGIN, and has that server for itself.
            TxStatus::InTransaction | TxStatus::Failed => None,
        };
        if self.state.cluster.is_some()
            && group.is_none()
            && self.awaits_rest_of_first_group(cx.env, id, bytes)
        {
            cx.driver.reached(RarePath::AwaitsFirstGroup);
            return Step::Wait;
        }
        if let Some(step) = self.answer_known(cx, id, group.as_ref(), bytes, status) {
            return step;
        }
        self.request_server(cx, id, bytes, group)
    }

    /// Returns the reason not to ask a server for a message that was not answered here: the message is dropped, ends its client, or is not
    /// whole enough.
    fn keeps_from_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        header: Header,
        bytes: &[u8],
    ) -> Option<Step> {
        match header.tag {
            // COPY data for a COPY that failed meanwhile: PostgreSQL ignores it as well.
            tag::COPY_DATA | tag::COPY_DONE | tag::COPY_FAIL => {
                return Some(self.discard(id, bytes.len(), header));
            }
            tag::TERMINATE => return Some(self.client_left(cx, id, "client close request")),
            tag::QUERY if cx.env.rules.config.main.disable_pqexec => {
                return Some(self.refuse_client(cx, id, &Fault::SimpleQueryDisabled));
            }
            tag::QUERY
            | tag::PARSE
            | tag::BIND
            | tag::EXECUTE
            | tag::DESCRIBE
            | tag::CLOSE
            | tag::FUNCTION_CALL
            | tag::SYNC
            | tag::FLUSH => {}
            other => return Some(self.unknown_message(cx, id, other)),
        }
        // A client that is still sending does not hold a server meanwhile, unless it sends much that a server can take.
        let needed_whole = header.tag == tag::PARSE
            && header.total() <= PARSE_BYTES_MAX
            && bytes.get(HEADER_LEN) != Some(&0)
            && self.client_tracks_statements(id);
        let waits = bytes.len() < header.total() && (needed_whole || bytes.len() < HOLD_MESSAGE_BYTES);
        waits.then_some(Step::Wait)
    }

    pub(crate) fn unknown_message<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, tag: u8) -> Step {
        let text = format!("unknown pkt: '{}'", tag.escape_ascii());
        self.refuse_client(cx, id, &Fault::Protocol(text.into()))
    }
}
