//! A prepared statement returns the columns, and takes the values, that its client was told of, on whichever server it runs.
//!
//! PostgreSQL compares the columns of a statement with those that it had when it was prepared, and refuses to run it if they are others
//! ("cached plan must not change result type"). A server that prepares a statement later than the client did has nothing to compare:
//! if the table has changed in the meantime, the client would take the new columns for the old ones. So pgweir compares:
//!
//! 1. After each Parse of a named statement goes a Describe, in the same packet. What the first server says is the statement's shape
//!    (`shape.rs`), and further servers prepare the statement with the parameter types of that shape.
//! 2. If the shape is known and a server lacks the statement, the client's Bind waits for that server's answer (`Bind::Waits`). It does
//!    not wait if the statement has no columns, or if the client asks for the columns before it executes.
//! 3. If the server describes another shape, the client's name stands for a new statement from then on. A Bind of a client that knows
//!    the former shape is refused: in its place goes a Bind that fails, so PostgreSQL itself fails the transaction and skips what
//!    follows. The client is told the error that it would get on a direct connection.
//!
//! The bytes of a group that only reads may be kept until its answer is shown (it is queued behind other clients, or is a first try at a
//! standby). Such a group does not wait: if the shape is another one, it runs again, or on the primary.
//!
//! This file must never let a Bind pass whose client may take columns or values for others.

use std::sync::Arc;

use pgweir_wire::backend::{TxStatus, tag};
use pgweir_wire::error::SqlState;
use pgweir_wire::frontend::{self, BindHead, BindTail};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::Env;
use crate::ids::{ClientId, ServerId, StatementId};
use crate::pool::client::state::{ClientState, Link};
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::prepared::explain::as_changed_result;
use crate::pool::prepared::messages::Provided;
use crate::pool::prepared::shape::{
    Columns, Shape, Told, describes_before_execute, keeps_values, wants_any_columns,
};
use crate::pool::prepared::statements::ServerCopy;
use crate::pool::relay::attempt::after_failure::{AfterFailure, ExchangeFailure, decide};
use crate::pool::relay::exchange::block::NO_PARAMETERS;
use crate::pool::relay::ledger::{Entry, Kind, Ledger, Owner};
use crate::pool::server::state::Description;
use crate::pool::{Pool, Step};

/// The name of a statement that no server has: a Bind of it fails. Servers log the name.
const OUTDATED: &[u8] = b"PGWEIR_OUTDATED";

/// Whether a Bind may be sent to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bind {
    /// The Bind may be sent: its client takes no column or value for another one.
    Passes,
    /// The Bind waits for the server's description of the statement.
    Waits,
    /// The Bind may not be sent: its client would take columns or values for others.
    IsRefused,
}

/// Questions and portals of a linked client that concern statements that may have another shape on its server than the client was told.
#[derive(Default)]
pub(crate) struct Doubts {
    /// The group ([`Ledger::group`]) in which the client has asked for the columns of a statement last, and the ticket of the name.
    described: Option<(u64, u32)>,
    /// The portal that the client has bound last, with the statement and the ticket of its name. `None` after any other Bind: the portal
    /// of that one may have the same name.
    portal: Option<(Box<[u8]>, StatementId, u32)>,
    /// Whether the client's next message is a Bind that waits for a description. The features that look at the text have done so.
    bind_waits: bool,
    /// Whether a Bind did not wait because its group runs again if the shape is another one.
    is_trusted: bool,
}

impl Pool {
    /// Returns whether the client's next message is a Bind that has waited: features need not be asked about its text again. The wait ends
    /// with this call.
    #[inline]
    pub(crate) fn ends_bind_wait(&mut self, id: ClientId) -> bool {
        let state = self.clients.get_mut(id).map(|client| &mut client.state);
        let Some(ClientState::Linked(Link { doubts: Some(doubts), .. })) = state else { return false };
        std::mem::take(&mut doubts.bind_waits)
    }

    /// Notes that a Bind waits for a description that the server owes.
    pub(crate) fn begin_bind_wait(&mut self, id: ClientId) {
        if let Some(doubts) = self.doubts_of(id) {
            doubts.bind_waits = true;
        }
    }

    fn doubts_of(&mut self, id: ClientId) -> Option<&mut Doubts> {
        match &mut self.clients.get_mut(id)?.state {
            ClientState::Linked(link) => Some(link.doubts.get_or_insert_default()),
            _ => None,
        }
    }

    /// Notes that the client asks for the columns of a statement of which the server may know another shape.
    pub(crate) fn note_described(&mut self, id: ClientId, server_id: ServerId, ticket: u32) {
        let group = self.servers.get(server_id).map(|server| server.ledger.group());
        if let Some(doubts) = self.doubts_of(id) {
            doubts.described = group.map(|group| (group, ticket));
        }
    }

    /// Forgets the last portal of a doubtful statement: the client binds a portal of another statement, which may have the same name.
    #[inline]
    pub(crate) fn forget_doubtful_portal(&mut self, id: ClientId) {
        let state = self.clients.get_mut(id).map(|client| &mut client.state);
        if let Some(ClientState::Linked(Link { doubts: Some(doubts), .. })) = state {
            doubts.portal = None;
        }
    }

    /// Returns the entry of a Describe of this portal, if the client may be told something new by its answer.
    pub(crate) fn doubtful_portal(&self, id: ClientId, portal: &[u8]) -> Option<Entry> {
        let ClientState::Linked(link) = &self.clients.get(id)?.state else { return None };
        let (bound, statement, ticket) = link.doubts.as_deref()?.portal.as_ref()?;
        let entry = Entry::new(Owner::Client(id), Kind::DescribePortal);
        (**bound == *portal).then_some(Entry { statement: Some(*statement), ticket: *ticket, ..entry })
    }

    /// Decides whether a Bind may be sent, for a statement that may have another shape on its server than the client was told. `after` are
    /// the bytes that the client has sent after it.
    #[cold]
    pub(crate) fn look_at_bind(
        &mut self,
        env: &Env,
        id: ClientId,
        server_id: ServerId,
        (head, known): (&BindHead<'_>, &Provided),
        (header, message): (Header, &[u8]),
    ) -> Bind {
        let tail = message.get(HEADER_LEN + head.tail..header.total());
        let tail = tail.and_then(|tail| BindTail::parse(tail).ok());
        let after = message.get(header.total()..).unwrap_or_default();
        let (found, settles) = self.judge_bind(env, id, server_id, (head, known), (tail, after));
        if found != Bind::Passes {
            return found;
        }
        self.forget_doubtful_portal(id);
        if settles {
            self.tell_name(id, known.ticket, Told::AsStatement);
        } else if let Some(doubts) = self.doubts_of(id) {
            doubts.portal = Some((head.portal.into(), known.statement, known.ticket));
        }
        Bind::Passes
    }

    /// Decides whether a Bind may be sent, and whether the client was told just the shape that the statement has.
    fn judge_bind(
        &mut self,
        env: &Env,
        id: ClientId,
        server_id: ServerId,
        (head, known): (&BindHead<'_>, &Provided),
        (tail, after): (Option<BindTail<'_>>, &[u8]),
    ) -> (Bind, bool) {
        let passes = (Bind::Passes, false);
        let Some(server) = self.servers.get_mut(server_id) else { return passes };
        let copy = server.statements.touch(known.statement);
        let ledger = &server.ledger;
        if ledger.is_skipping() {
            return passes;
        }
        let Some(client) = self.clients.get_mut(id) else { return passes };
        // A client that is queued behind others has no link yet.
        let mut link = match &mut client.state {
            ClientState::Linked(link) => Some(link),
            _ => None,
        };
        let Some(statement) = env.statements.get(known.statement) else { return passes };
        let names = client.account.statements.as_deref();
        let told = names.and_then(|names| names.told(known.ticket)).map(|(told, _)| told);
        let (told, is_same) = match (told, statement.shape()) {
            (Some(Told::Shape(told)), _) => (&**told, false),
            (_, Some(shape)) => (&**shape, true),
            // No client was told anything of it.
            (_, None) => return passes,
        };
        let doubts = link.as_deref().and_then(|link| link.doubts.as_deref());
        let is_described =
            doubts.is_some_and(|doubts| doubts.described == Some((ledger.group(), known.ticket)));
        let describes = is_described || describes_before_execute(after, head);
        let any_columns = told.columns.is_none() || describes && tail.as_ref().is_some_and(wants_any_columns);
        // The server has prepared it with the parameter types that the client was told, or finds those that the client's values have.
        let any_values = is_same || tail.as_ref().is_some_and(|tail| keeps_values(tail, &statement.types));
        if any_columns && any_values {
            return passes;
        }
        match (copy, statement.shape()) {
            (Some(ServerCopy::Confirmed), Some(shape)) => {
                let fits = (any_columns || shape.columns == told.columns)
                    && (any_values || shape.params == told.params);
                (if fits { Bind::Passes } else { Bind::IsRefused }, *told == **shape)
            }
            // Its client has prepared it in this very group, and was told nothing yet.
            _ if is_same && is_being_parsed(ledger, known.ticket) => passes,
            _ if !is_awaited(ledger, known.statement) => (Bind::IsRefused, false),
            _ => match &mut link {
                None => passes,
                Some(link) if link.first_try == FirstTry::Sending && !answers_client(ledger) => {
                    link.doubts.get_or_insert_default().is_trusted = true;
                    passes
                }
                Some(_) => (Bind::Waits, false),
            },
        }
    }

    /// Sends a Bind that fails instead of the client's Bind. The rest of the client's message is dropped.
    pub(crate) fn refuse_bind(
        &mut self,
        env: &mut Env,
        id: ClientId,
        ticket: u32,
        (header, message): (Header, &[u8]),
    ) -> Step {
        let entry = Entry { ticket, ..Entry::new(Owner::Client(id), Kind::BindRefused) };
        env.ahead.add(entry, |out| {
            frontend::encode_bind_head(out, b"", OUTDATED, NO_PARAMETERS.len());
            out.extend_from_slice(&NO_PARAMETERS);
        });
        if let Some(client) = self.clients.get_mut(id) {
            client.skip = header.total().saturating_sub(message.len());
        }
        Step::Used(header.total().min(message.len()))
    }

    /// Whether a ParameterDescription may be shown to its client. PostgreSQL sends it before it finds that a statement is outdated: if an
    /// error follows, the message is kept for [`Pool::renews_statement`], which may have the statement described once more. `behind` are the
    /// bytes after the message; `None` if not even the type of the next message is known.
    pub(crate) fn shows_description(&mut self, id: ServerId, message: &[u8], behind: &[u8]) -> Option<bool> {
        let server = self.servers.get_mut(id)?;
        let describes = server.ledger.head().is_some_and(|head| head.kind == Kind::DescribeStatement);
        if !describes || server.attempt.kept().is_none() {
            return Some(true);
        }
        let fails = *behind.first()? == tag::ERROR;
        server.incoming.description =
            if fails { Description::Held(message.into()) } else { Description::Shown };
        Some(!fails)
    }

    /// Keeps a ParameterDescription if pgweir looks at the description.
    pub(crate) fn parameters_told(&mut self, id: ServerId, body: &[u8]) {
        if let Some(server) = self.servers.get_mut(id)
            && server.ledger.head().is_some_and(|head| head.statement.is_some())
        {
            server.incoming.described_params = body.get(2..).unwrap_or_default().into();
        }
    }

    /// Handles the end of an answer to a message about a statement. If the answer is a description, the shape is compared. Returns `Some`
    /// if it is another shape than the client of a group that was sent already was told.
    #[cold]
    pub(crate) fn described(
        &mut self,
        env: &mut Env,
        id: ServerId,
        entry: Entry,
        (message, body): (u8, &[u8]),
    ) -> Option<(ClientId, AfterFailure)> {
        let describes = matches!(
            entry.kind,
            Kind::DescribeStatement | Kind::DescribePortal | Kind::DescribeParsed { .. }
        );
        let statement = entry.statement.filter(|_| describes)?;
        let params = std::mem::take(&mut self.servers.get_mut(id)?.incoming.described_params);
        let known = env.statements.get(statement)?;
        let has_columns = message == tag::ROW_DESCRIPTION && known.has_fixed_columns();
        let shape = Shape { params, columns: has_columns.then(|| Columns::of(body)) };
        match (entry.kind, entry.owner) {
            (Kind::DescribeParsed { own }, _) => self.shape_told(env, id, (entry, own), statement, shape),
            (_, Owner::Client(client)) => {
                self.client_told(env, client, entry, shape);
                None
            }
            _ => None,
        }
    }

    /// Notes that a client has got a description that may be news to it.
    fn client_told(&mut self, env: &Env, id: ClientId, entry: Entry, mut shape: Shape) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(names) = client.account.statements.as_deref_mut() else { return };
        let Some((told, statement)) = names.told(entry.ticket) else { return };
        let known = env.statements.get(statement).and_then(|statement| statement.shape());
        if entry.kind == Kind::DescribePortal {
            // Nothing is said of parameters.
            shape.params = match (told, known) {
                (Told::Shape(told), _) => told.params.clone(),
                (_, Some(known)) => known.params.clone(),
                (_, None) => return,
            };
        }
        let told = match known {
            Some(known) if **known == shape => Told::AsStatement,
            _ => Told::Shape(Arc::new(shape)),
        };
        names.tell(entry.ticket, told);
    }

    /// Handles the description of a statement by a server that has prepared it. `own` is true if a client has prepared it there itself.
    /// Returns a client whose exchange must run again because it was told another shape, with the decision.
    fn shape_told(
        &mut self,
        env: &mut Env,
        id: ServerId,
        (entry, own): (Entry, bool),
        statement: StatementId,
        shape: Shape,
    ) -> Option<(ClientId, AfterFailure)> {
        let known = env.statements.get(statement)?;
        let fits = known.shape().is_none_or(|known| **known == shape);
        let copy = if fits { ServerCopy::Confirmed } else { ServerCopy::Outdated };
        if let Some(server) = self.servers.get_mut(id) {
            server.statements.mark(statement, copy);
        }
        let client = entry.owner.client();
        let client = client.and_then(|id| Some((id, &self.clients.get(id)?.account)));
        let names = client.and_then(|(_, account)| account.statements.as_deref());
        let told = names.and_then(|names| names.told(entry.ticket)).map(|(told, _)| told);
        let misleads = match told {
            Some(Told::Shape(told)) if !own => **told != shape,
            _ => !fits,
        };
        let settles = matches!(told, Some(Told::AtParse)) && fits;
        let client = client.map(|(id, _)| id);
        if own
            && !fits
            && let Some(client) = client
        {
            self.parsed_otherwise(env, client, entry.ticket, shape);
            return None;
        }
        if fits {
            env.statements.note_shape(statement, shape);
        }
        let Some(client) = client else {
            if !fits {
                env.statements.retire(statement);
            }
            return None;
        };
        if settles {
            self.tell_name(client, entry.ticket, Told::AsStatement);
        }
        if misleads {
            return self.shape_changed(env, id, client, (statement, entry.ticket, fits));
        }
        if !fits {
            // The columns have become those again that the client was told at first. Without a new statement the server would be asked
            // for the description of this one again and again.
            self.renew_changed(env, id, client, (statement, entry.ticket));
        }
        None
    }

    /// Gives the client's name to a statement of a new shape: the text that the client has prepared had another shape before.
    fn parsed_otherwise(&mut self, env: &mut Env, id: ClientId, ticket: u32, shape: Shape) {
        let account = self.clients.get_mut(id).map(|client| &mut client.account);
        let Some(names) = account.and_then(|account| account.statements.as_deref_mut()) else { return };
        let Some((_, old)) = names.told(ticket) else { return };
        env.statements.retire(old);
        env.statements.enter_age(env.shared.age());
        let parse_context = env.statements.get(old).map(|known| known.parse_context);
        let Some(new) = env.statements.take_again(old, parse_context) else { return };
        if names.renew_ticket(ticket, new, None) {
            env.statements.note_shape(new, shape);
            env.statements.give_back_name(old);
        } else {
            env.statements.give_back_name(new);
        }
    }

    /// Handles a description that differs from the one that the client was told. `fits` is true if the statement that the client's name
    /// stands for has the described shape. If the client's exchange was sent already, returns the decision about it.
    fn shape_changed(
        &mut self,
        env: &mut Env,
        id: ServerId,
        client_id: ClientId,
        (statement, ticket, fits): (StatementId, u32, bool),
    ) -> Option<(ClientId, AfterFailure)> {
        let server = self.servers.get(id);
        let is_busy = server.is_some_and(|server| server.state.served_client() == Some(client_id));
        let is_kept = server.is_some_and(|server| server.attempt.holds_later());
        let state = self.clients.get(client_id).map(|client| &client.state);
        let is_sent = match state.filter(|_| is_busy) {
            Some(ClientState::Linked(link)) => {
                is_kept || link.doubts.as_deref().is_some_and(|doubts| doubts.is_trusted)
            }
            _ => false,
        };
        let client = self.clients.get(client_id);
        let decision = is_sent.then(|| decide(ExchangeFailure::ShapeDiffers, client, server));
        if decision == Some(AfterFailure::AtPrimary) {
            // The primary may be ahead of this standby, or not yet.
            return Some((client_id, AfterFailure::AtPrimary));
        }
        if !fits {
            self.renew_changed(env, id, client_id, (statement, ticket));
        }
        decision.map(|decision| (client_id, decision))
    }

    /// Gives the client's name to a new statement. Other clients that prepare the text get the new statement, too.
    fn renew_changed(
        &mut self,
        env: &mut Env,
        server_id: ServerId,
        id: ClientId,
        (old, ticket): (StatementId, u32),
    ) {
        let parse_context = self.parse_context_of(env, id);
        let is_primary = self.servers.get(server_id).is_some_and(|server| server.branch.is_primary());
        // What is said by a standby may be old news.
        if is_primary && env.statements.is_of_this_age(old) {
            env.shared.begin_age();
        }
        env.statements.retire(old);
        env.statements.enter_age(env.shared.age());
        let account = self.clients.get_mut(id).map(|client| &mut client.account);
        let Some(names) = account.and_then(|account| account.statements.as_deref_mut()) else { return };
        let Some(new) = env.statements.take_again(old, parse_context) else { return };
        let before = env.statements.get(old).and_then(|known| known.shape()).map(Arc::clone);
        let stands_for_old = names.told(ticket).is_some_and(|(_, statement)| statement == old);
        if stands_for_old && names.renew_ticket(ticket, new, before.as_ref()) {
            env.statements.give_back_name(old);
        } else {
            env.statements.give_back_name(new);
        }
    }
}

/// Whether the client's own Parse of this name is on its way.
fn is_being_parsed(ledger: &Ledger, ticket: u32) -> bool {
    let parses = |entry: &Entry| entry.kind == Kind::DescribeParsed { own: true } && entry.ticket == ticket;
    ledger.entries().any(parses)
}

/// Whether the server owes a description of this statement.
fn is_awaited(ledger: &Ledger, statement: StatementId) -> bool {
    let describes = |entry: &Entry| matches!(entry.kind, Kind::DescribeParsed { .. });
    ledger.entries().any(|entry| describes(entry) && entry.statement == Some(statement))
}

/// Whether the server owes a client an answer, which may be shown before anything that is sent now is answered.
fn answers_client(ledger: &Ledger) -> bool {
    ledger.entries().any(|entry| matches!(entry.owner, Owner::Client(_)))
}

/// Returns the error of a Bind that was to fail, as PostgreSQL would have written it in this transaction status. `None` if it is another
/// error, or an error of another message.
pub(crate) fn changed_result(ended: Option<Entry>, message: &[u8], tx: TxStatus) -> Option<Vec<u8>> {
    ended.filter(|entry| entry.kind == Kind::BindRefused)?;
    as_changed_result(message, SqlState::INVALID_SQL_STATEMENT_NAME, tx)
}
