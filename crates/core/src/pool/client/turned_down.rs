//! A client that waits for a server is told an error instead, and its session goes on: its statement was cancelled while it
//! waited, or too many wait already. Its request never reaches a server.
//!
//! A client whose BEGIN was answered here (`begin/`) is not turned down: it would then be in a failed transaction that no
//! server knows of.

use pgweir_wire::Messages;
use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::frontend::tag;

use crate::context::Cx;
use crate::driver::Driver;
use crate::errors::Refusal;
use crate::ids::ClientId;
use crate::pool::Pool;
use crate::pool::client::state::ClientState;

/// How much of a client's messages the error answers.
#[derive(Debug, PartialEq, Eq)]
struct Extent {
    /// Number of the group's bytes that have come.
    used: usize,
    /// Number of bytes of the group's last message that are still to come.
    to_come: usize,
    /// Whether the group's end was found: ReadyForQuery follows the error. Otherwise ReadyForQuery follows the client's Sync.
    ends: bool,
}

impl Pool {
    /// Sends an error to a client that waits for a server. Returns `false` if the client does not wait, or cannot be sent an error.
    pub(crate) fn turn_down<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        refusal: Refusal,
    ) -> bool {
        let Some(client) = self.clients.get_mut(id) else { return false };
        let ClientState::Waiting(waiting) = &client.state else { return false };
        let account = &mut client.account;
        if !waiting.first.is_nothing() {
            return false;
        }
        account.active_us = cx.env.now.mono_us;
        // If it asks again before the pool looks at its place, it must wait at the end.
        let branch = account.branch;
        self.state.node_at_mut(branch).clients.retain(|&other| other != id);
        let inbox = std::mem::take(&mut client.inbox);
        let extent = group_extent(&inbox);
        client.skip = extent.to_come;
        let conn = client.conn;
        client.inbox = cx.env.buffers.remainder(Some(inbox), &[], extent.used);
        self.set_client_state(id, if extent.ends { ClientState::Idle } else { ClientState::Ignoring });
        cx.env.scratch.clear();
        refusal.encode(&mut cx.env.scratch);
        if extent.ends {
            backend::encode_ready(&mut cx.env.scratch, TxStatus::Idle);
        }
        cx.driver.send(conn, &cx.env.scratch);
        self.note_error(cx.env, id, refusal.code().as_bytes());
        self.state.due.to_resume.push_back(id);
        true
    }

    /// `max_waiting_clients`: the clients that came last are told so, and may try again.
    pub(crate) fn shorten_queue<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let pool = &self.state;
        let limit = cx.env.rules.config.max_waiting_clients(&pool.config);
        let waiting = pool.waiting().saturating_sub(pool.node.passed_over);
        if limit == 0 || waiting <= limit {
            return;
        }
        let surplus = (waiting - limit) as usize;
        let clients = &self.clients;
        let waits = |id: &ClientId| {
            clients.get(*id).is_some_and(
                |client| matches!(&client.state, ClientState::Waiting(waiting) if waiting.first.is_nothing()),
            )
        };
        let mut last: Vec<ClientId> =
            pool.nodes().flat_map(|node| node.in_need().rev()).filter(waits).collect();
        if !pool.standbys.is_empty() {
            let since_us =
                |id: &ClientId| clients.get(*id).map_or(0, |client| client.account.request.since_us);
            last.sort_by_key(|id| std::cmp::Reverse(since_us(id)));
        }
        last.truncate(surplus);
        for id in last {
            self.turn_down(cx, id, Refusal::QueueFull);
        }
    }
}

/// Whether the group at the front of a client's bytes has come as a whole, or asks for answers with Flush.
pub(super) fn is_whole_group(bytes: &[u8]) -> bool {
    let ends = |tag| matches!(tag, tag::SYNC | tag::FLUSH | tag::QUERY | tag::FUNCTION_CALL | tag::TERMINATE);
    let mut messages = Messages::of(bytes);
    // A header that is none is looked at by itself.
    messages.any(|message| ends(message.tag())) || messages.is_malformed()
}

/// The group at the front of a client's bytes: a Query or FunctionCall, or everything up to the next Sync. Bytes that are no
/// header of a message are left for the code that looks at them next.
fn group_extent(bytes: &[u8]) -> Extent {
    let mut used = 0;
    for message in Messages::of(bytes) {
        let to_come = message.end() - message.end_here();
        let alone = message.start == 0 && matches!(message.tag(), tag::QUERY | tag::FUNCTION_CALL);
        if alone || message.tag() == tag::SYNC && to_come == 0 {
            return Extent { used: message.end_here(), to_come, ends: true };
        }
        if matches!(message.tag(), tag::SYNC | tag::TERMINATE) {
            break;
        }
        used = message.end_here();
        if to_come > 0 {
            return Extent { used, to_come, ends: false };
        }
    }
    Extent { used, to_come: 0, ends: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: usize) -> Vec<u8> {
        let length = u32::try_from(body + 4).expect("a short message");
        [&[tag][..], &length.to_be_bytes(), &vec![b'x'; body]].concat()
    }

    fn extent(pieces: &[&[u8]]) -> (usize, usize, bool) {
        let Extent { used, to_come, ends } = group_extent(&pieces.concat());
        (used, to_come, ends)
    }

    #[test]
    fn a_query_is_a_group_of_its_own() {
        let query = message(b'Q', 20);
        assert_eq!(extent(&[&query]), (25, 0, true));
        assert_eq!(extent(&[&query, &query]), (25, 0, true));
        assert_eq!(extent(&[&query[..9]]), (9, 16, true), "the rest is still to come");
        assert_eq!(extent(&[&message(b'F', 3), b"garbage"]), (8, 0, true));
    }

    #[test]
    fn extended_messages_are_one_up_to_sync() {
        let (parse, bind, sync) = (message(b'P', 10), message(b'B', 5), message(b'S', 0));
        assert_eq!(extent(&[&parse, &bind, &sync, &parse]), (30, 0, true));
        assert_eq!(extent(&[&parse, &bind]), (25, 0, false));
        assert_eq!(extent(&[&parse, &bind[..7]]), (22, 3, false));
        assert_eq!(extent(&[&parse, &bind[..3]]), (15, 0, false), "not even a header");
        assert_eq!(extent(&[&parse, &message(b'Q', 1), &sync]), (26, 0, true), "PostgreSQL ignores it, too");
        assert_eq!(extent(&[&parse, &message(b'X', 0)]), (15, 0, false), "who leaves is seen leaving");
        assert_eq!(extent(&[&parse, &[b'B', 0, 0, 0, 1]]), (15, 0, false), "a bad length is looked at later");
    }
}
