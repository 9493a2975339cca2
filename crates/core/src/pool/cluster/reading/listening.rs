//! UNLISTEN at a standby, outside of transactions that read there (`later.rs` has those).
//!
//! A client's channels are listened to through the primary. A standby would say that UNLISTEN is done, and the client would be told of
//! its channels as before. So the statement is refused there, as PostgreSQL refuses LISTEN.

use pgweir_sql::{Marks, Verb};
use pgweir_wire::frontend::{BindHead, Parse, Query, tag};
use pgweir_wire::{Message, Messages};

use super::Later;
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::PARSE_BYTES_MAX;
use crate::pool::{Pool, Step};

impl Pool {
    /// Looks at what a client sends to its server outside of a transaction that reads at a standby.
    #[inline]
    pub(crate) fn look_at_unlisten<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Later {
        let is_at_standby = self.servers.get(server_id).is_some_and(|server| server.branch.is_standby());
        match is_at_standby && self.listens(id) {
            true => self.look_for_unlisten(cx, id, server_id, bytes),
            false => Later::Pass(bytes.len()),
        }
    }

    #[cold]
    fn look_for_unlisten<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Later {
        if let Some(len) = self.unread_len(id, server_id, bytes) {
            return Later::Pass(len);
        }
        for message in Messages::of(bytes) {
            let Message { header, start, .. } = message;
            let has_text = matches!(message.tag(), tag::QUERY | tag::PARSE);
            if has_text && !message.is_whole() {
                return match start {
                    // No text of this length is held: it could have an UNLISTEN at its end.
                    0 if header.total() > PARSE_BYTES_MAX => {
                        let fault =
                            Fault::TooLarge("a statement is too long for a server of a standby".into());
                        Later::Done(self.refuse_client(cx, id, &fault))
                    }
                    0 => Later::Done(Step::Wait),
                    _ => Later::Pass(start),
                };
            }
            if self.unlistens(cx.env, id, message) {
                let refused = (header, &bytes[start..]);
                return match start {
                    0 => Later::Done(self.refuse_at_standby(cx, id, server_id, refused, b"UNLISTEN")),
                    _ => Later::Pass(start),
                };
            }
        }
        Later::Pass(bytes.len())
    }

    /// Whether the message executes UNLISTEN, or is the Parse of an unnamed statement that will.
    fn unlistens(&self, env: &Env, id: ClientId, message: Message<'_>) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        let body = message.body();
        let text = match message.tag() {
            tag::QUERY => Query::parse(body).ok().map(|query| query.text),
            tag::PARSE => {
                Parse::parse(body).ok().filter(|parse| parse.name.is_empty()).map(|parse| parse.query)
            }
            tag::BIND => match BindHead::parse_prefix(body).map(|head| head.statement) {
                Some(b"") => client.account.unnamed.as_ref().map(|unnamed| &*unnamed.query),
                Some(name) => self.text_behind(env, id, name),
                None => None,
            },
            _ => None,
        };
        text.is_some_and(is_unlisten)
    }
}

/// Whether the text has an UNLISTEN that a standby would execute. LISTEN fails there, and DISCARD is seen by its own tag.
fn is_unlisten(text: &[u8]) -> bool {
    let traits = pgweir_sql::traits(text);
    traits.marks.intersects(Marks::LISTENS) && !matches!(traits.verb, Verb::Listen | Verb::Discard)
}
