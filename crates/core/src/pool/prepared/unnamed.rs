//! The unnamed statement is its client's own: it survives between that client's groups, whichever servers they run on, and no
//! other client uses it.
//!
//! A statement that a client prepared and did not use at once is prepared again ahead of the message that uses it. A client
//! that has no unnamed statement gets PostgreSQL's own error: the statement that another client, or a hidden statement, left on
//! its server is closed first. Both cost only clients that use the unnamed statement of an earlier group: a Parse with its Bind
//! right after it is never kept, and never closed.

use pgweir_settings::PoolMode;
use pgweir_sql::Traits;
use pgweir_wire::frontend::{self, Parse, Target, tag};
use pgweir_wire::{HEADER_LEN, Header, Messages};

use crate::context::Env;
use crate::ids::{ClientId, ServerId};
use crate::limits::UNNAMED_BYTES_MAX;
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, Link, Unnamed, UnnamedOnServer};
use crate::pool::prepared::exposed_names::MEETS_NAMES;
use crate::pool::relay::ledger::{Entry, Kind, Ledger, Owner};

/// The requirement of a message that uses the client's unnamed statement.
pub(crate) enum UnnamedUse {
    /// The message can be sent.
    Ready,
    /// The message waits: answers that are owed tell which client's statement the server has.
    Waits,
    /// The text of the bound statement is about to be executed. If `lacks` is true, the server must get the client's unnamed statement
    /// first.
    Needs { text: Option<Box<[u8]>>, lacks: bool },
}

impl Pool {
    /// Notes that a Parse without a name was sent to the client's server. The messages after it in the same read may be there.
    ///
    /// A statement that is bound at once is hardly ever bound again, so its text is not kept; but what a text shows or runs by name may be
    /// another thing at the next Bind.
    pub(crate) fn note_unnamed(
        &mut self,
        id: ClientId,
        header: Header,
        message: &[u8],
        traits: Option<&Traits>,
    ) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Linked(link), account) = (&mut client.state, &mut client.account) else {
            return;
        };
        let Some(server) = self.servers.get(link.server) else { return };
        if server.ledger.is_skipping() {
            return;
        }
        own_from_here(link, &server.ledger);
        let meets_names = traits.is_none_or(|traits| traits.marks.intersects(MEETS_NAMES));
        let used = message.get(header.total()) == Some(&tag::BIND) && !meets_names;
        if used && account.unnamed.is_none() {
            return;
        }
        let body = message.get(HEADER_LEN..header.total());
        let body = body.filter(|body| !used && body.len() <= UNNAMED_BYTES_MAX);
        let parse = body.and_then(|body| Parse::parse(body).ok());
        let parse = parse.filter(|_| self.state.policy.mode != PoolMode::Session);
        account.unnamed = parse
            .map(|parse| Box::new(Unnamed { query: parse.query.into(), types: parse.param_types.into() }));
    }

    /// Notes the unnamed statement of a group of which only this part was sent. A group that was looked at as a whole is not noted message
    /// by message, so the rest of it, which waits, needs this note.
    #[cold]
    pub(crate) fn group_was_cut(&mut self, id: ClientId, server_id: ServerId, sent: &[u8]) {
        if !prepares_unnamed(sent) {
            return;
        }
        let Some(server) = self.servers.get(server_id).filter(|server| !server.ledger.is_skipping()) else {
            return;
        };
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            own_from_here(link, &server.ledger);
        }
    }

    /// Notes that a simple query was sent to the client's server: PostgreSQL forgets the unnamed statement.
    #[inline]
    pub(crate) fn forget_unnamed(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Linked(link), account) = (&mut client.state, &mut client.account) else {
            return;
        };
        let Some(server) = self.servers.get(link.server) else { return };
        if server.ledger.is_skipping() {
            return;
        }
        account.unnamed = None;
        if server.ledger.is_last_certain() {
            link.unnamed = UnnamedOnServer::Own;
        }
    }

    /// Returns what the client's next message needs, which uses the unnamed statement or closes it.
    pub(crate) fn owns_unnamed(&mut self, id: ClientId, server_id: ServerId, kind: Kind) -> UnnamedUse {
        let Some(client) = self.clients.get_mut(id) else { return UnnamedUse::Waits };
        let (ClientState::Linked(link), account) = (&mut client.state, &mut client.account) else {
            return UnnamedUse::Waits;
        };
        let Some(server) = self.servers.get(server_id) else { return UnnamedUse::Waits };
        if kind == Kind::Close && !server.ledger.is_skipping() {
            account.unnamed = None;
            return UnnamedUse::Ready;
        }
        if link.unnamed == UnnamedOnServer::OwnUnlessSkipped && server.ledger.is_at_rest() {
            link.unnamed = UnnamedOnServer::Own;
        }
        if waits_for_unnamed(link, &server.ledger) {
            return UnnamedUse::Waits;
        }
        if server.ledger.is_skipping() {
            return UnnamedUse::Ready;
        }
        let text =
            account.unnamed.as_ref().filter(|_| kind == Kind::Bind).map(|unnamed| unnamed.query.clone());
        let lacks = link.unnamed == UnnamedOnServer::NotOwn;
        UnnamedUse::Needs { text, lacks }
    }

    /// Writes the client's unnamed statement ahead of the next message, or its Close if the client has none.
    pub(crate) fn unnamed_ahead(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        let owner = Owner::Prerequisite(id);
        match client.account.unnamed.as_deref() {
            Some(Unnamed { query, types }) => env.ahead.add(Entry::unnamed(owner, Kind::Parse), |out| {
                frontend::encode_parse(out, b"", query, types);
            }),
            None => env.ahead.add(Entry::unnamed(owner, Kind::Close), |out| {
                frontend::encode_close(out, Target::Statement, b"");
            }),
        }
    }

    /// Notes that the messages of [`Pool::unnamed_ahead`] were sent.
    pub(crate) fn unnamed_sent(&mut self, env: &Env, id: ClientId, server_id: ServerId) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        server.note_begin(env.now.mono_us);
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            own_from_here(link, &server.ledger);
        }
    }

    /// Handles an error that ended or skipped a Parse or a Close of the unnamed statement.
    #[cold]
    pub(crate) fn unnamed_undone(&mut self, server_id: ServerId, entry: Entry) {
        let Some(id) = entry.owner.client() else { return };
        let Some(server) = self.servers.get(server_id) else { return };
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Linked(link), account) = (&mut client.state, &mut client.account) else {
            return;
        };
        if server.ledger.entries().any(|later| later.is_unnamed() && later.kind == Kind::Parse) {
            // That one counts.
            return;
        }
        let own = matches!(entry.owner, Owner::Client(_));
        if own {
            account.unnamed = None;
        }
        if !own || link.unnamed == UnnamedOnServer::OwnUnlessSkipped {
            link.unnamed = UnnamedOnServer::NotOwn;
        }
    }
}

/// Notes that the messages sent last make the server's unnamed statement the client's.
fn own_from_here(link: &mut Link, ledger: &Ledger) {
    if ledger.is_last_certain() {
        link.unnamed = UnnamedOnServer::Own;
    } else if link.unnamed == UnnamedOnServer::NotOwn {
        link.unnamed = UnnamedOnServer::OwnUnlessSkipped;
    }
}

/// Whether the owner of the server's unnamed statement depends on answers to earlier groups. Answers in the same group do not matter: an
/// error that skips the one message skips the other.
fn waits_for_unnamed(link: &Link, ledger: &Ledger) -> bool {
    link.unnamed == UnnamedOnServer::OwnUnlessSkipped
        && !ledger.is_status_known()
        && !ledger.is_unnamed_in_group()
}

/// Whether a Parse without a name is among these messages.
fn prepares_unnamed(messages: &[u8]) -> bool {
    Messages::of(messages).any(|message| message.tag() == tag::PARSE && message.body().first() == Some(&0))
}
