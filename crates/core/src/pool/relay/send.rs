//! The way of a linked client's messages to its server, if they are not among those that `plain` passes. Unchanged messages pass in runs, without
//! being copied apart.

use pgweir_wire::frontend::tag;
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::Cx;
use crate::driver::{ConnId, Driver};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::HOLD_MESSAGE_BYTES;
use crate::pool::client::state::{ClientState, Link, Waits};
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::multiplex::held::{HeldBack, Unshown};
use crate::pool::policy::OnLoss;
use crate::pool::prepared::exposed_names::{Named, Sent, add_sync};
use crate::pool::relay::attempt::{KeptFor, holds_later};
use crate::pool::relay::exchange::group::Group;
use crate::pool::relay::ledger::{Entry, Kind, Ledger, Owner, Pushed};
use crate::pool::relay::route::{Flaw, Route, oversized, route, text_of};
use crate::pool::session::restore::waits_for_restore;
use crate::pool::{Pool, Step};
use crate::stats::rare_path::RarePath;

/// A read of a client, while it is passed on: the bytes between `span` and `at` go to the server as they are.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    span: usize,
    /// The end of the bytes that were looked at as a group already, and that touch no session.
    judged: usize,
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Whether the next message was looked at as part of a group, and touches no session.
    #[inline]
    pub(crate) fn is_judged(&self) -> bool {
        self.at < self.judged
    }

    /// Moves past this number of bytes, which go to the server unchanged.
    #[inline]
    pub(crate) fn pass(&mut self, len: usize) {
        self.at += len;
    }

    /// Sends the gathered bytes to the server.
    pub(crate) fn flush<D: Driver>(&mut self, d: &mut D, to: ConnId) {
        if self.at > self.span {
            d.send(to, &self.bytes[self.span..self.at]);
            self.span = self.at;
        }
    }

    /// Leaves out bytes that were sent in another form.
    fn skip(&mut self, used: usize) {
        self.at += used;
        self.span = self.at;
    }
}

/// The result of passing a message on.
enum Passed {
    /// The message was passed on, at least as far as it is here. The next message can be looked at.
    Message,
    /// The next message must wait, or is not here.
    NoMore,
    /// The end of the message has released the server.
    Released,
    /// The client is gone.
    Gone,
}

impl Pool {
    /// Passes on the bytes that a linked client sent.
    #[inline]
    pub(crate) fn linked_client_sent<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Step {
        match self.state.policy.on_loss {
            OnLoss::Ends => self.send_linked(cx, id, server_id, bytes),
            _ => self.send_in_cluster(cx, id, server_id, bytes),
        }
    }

    /// Passes on the bytes of a linked client without any notes for the case that the server is lost.
    #[inline]
    pub(crate) fn send_linked<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Step {
        match self.group_to_send(id, server_id, bytes) {
            Some(group) => self.send_messages(cx, id, server_id, bytes, group),
            None => self.send_first_try(cx, id, server_id, bytes),
        }
    }

    /// Passes on the messages that no earlier request keeps waiting. `group` is the group that they begin with, if other groups may follow
    /// it.
    #[inline]
    pub(crate) fn send_messages<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
        group: Option<Group>,
    ) -> Step {
        debug_assert!(cx.env.ahead.is_empty(), "a feature's messages were not sent");
        let sending = match cx.env.cache {
            Some(_) => self.note_sending(cx.env, id, server_id, group, bytes),
            None => None,
        };
        // A group that others may follow has no BEGIN ahead of it.
        if group.is_none() {
            if let Some(step) = self.begin_with_server(cx, id, server_id, bytes) {
                return step;
            }
            self.begin_ahead(cx.env, id, server_id, bytes);
            self.send_ahead(cx, server_id);
        }
        let mut tracking = self.client_tracks_statements(id) && !self.has_exposed_names(id);
        let judged = group.filter(|group| !group.may_touch()).map_or(0, |group| group.len as usize);
        let mut cursor = Cursor { bytes, at: 0, span: 0, judged };
        loop {
            self.pass_plain(cx.env, id, server_id, tracking, &mut cursor);
            if cursor.rest().is_empty() {
                break;
            }
            match self.pass_message(cx, id, server_id, tracking, &mut cursor) {
                Passed::Message => tracking = tracking && !self.has_exposed_names(id),
                Passed::NoMore => break,
                Passed::Released => return Step::Used(cursor.at),
                Passed::Gone => return Step::Gone,
            }
        }
        if cursor.at < judged {
            self.group_was_cut(id, server_id, &bytes[..cursor.at]);
        }
        if let Some(server) = self.servers.get_mut(server_id) {
            if cursor.at > 0 && (tracking || server.attempt.keeps_all()) {
                server.attempt.note(&bytes[..cursor.at], &mut cx.env.buffers);
            }
            cursor.flush(cx.driver, server.conn);
            if cx.driver.backlog(server.conn) > cx.env.limits.backlog_bytes {
                cx.driver.reached(RarePath::ServerBacklog);
                self.pause_client(cx, id);
            }
        }
        if let Some(group) = &group {
            self.measure_group(cx.env, id, server_id, group, Some(bytes));
        }
        if let Some(group) =
            group.filter(|group| group.len as usize == bytes.len() && cursor.at == bytes.len())
        {
            self.begin_pipeline(cx.env, server_id, &group);
        }
        if let Some(sending) = sending {
            self.capture_sent(cx.env, (id, server_id), sending, bytes, cursor.at);
        }
        if cursor.at == 0 { Step::Wait } else { Step::Used(cursor.at) }
    }

    /// Sends a linked client's first try, if the messages that wait begin with one and its server is ready.
    #[cold]
    #[inline(never)]
    fn send_first_try<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Step {
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        let ClientState::Linked(link) = &mut client.state else { return Step::Wait };
        let FirstTry::Unsent(len) = link.first_try else { return Step::Wait };
        let Some(server) = self.servers.get_mut(server_id) else { return Step::Gone };
        let is_ready = server.state.is_serving();
        let Some(group) = bytes.get(..len as usize).filter(|_| is_ready) else { return Step::Wait };
        if !self.state.routines.are_current(cx.env.shared.routines()) && server.ledger.is_at_rest() {
            // Code was made since the standby was chosen. It is no longer certain that the group only reads.
            self.runs_on_primary(cx, server_id, id);
            return Step::Wait;
        }
        link.first_try = FirstTry::Sending;
        let known = link.group.take();
        server.attempt.keep_for(KeptFor::STANDBY);
        // What was noted of messages before it says nothing of this one.
        server.in_flight = None;
        let step = self.send_messages(cx, id, server_id, group, known);
        let (Some(client), Some(server)) = (self.clients.get_mut(id), self.servers.get_mut(server_id)) else {
            return step;
        };
        let ClientState::Linked(link) = &mut client.state else { return step };
        link.first_try = FirstTry::None;
        if step != Step::Used(group.len()) || !server.attempt.is_for(KeptFor::STANDBY) {
            // A part of it waits for answers to the other one: its answer is the standby's.
            server.attempt.end_first_try(&mut cx.env.buffers);
            return step;
        }
        link.first_try = FirstTry::Unshown;
        server.pipelined.hold(Some(HeldBack::Unshown(Unshown::default())));
        step
    }

    /// Returns the group at the front of a linked client's bytes. The inner `None`: the bytes do not begin with a group that others may
    /// follow. The outer `None`: the group must wait, because other clients are queued after it, an earlier request is still in its inbox,
    /// or a value that it has reset is to be put back.
    fn group_to_send(&mut self, id: ClientId, server_id: ServerId, bytes: &[u8]) -> Option<Option<Group>> {
        let client = self.clients.get_mut(id)?;
        let ClientState::Linked(link) = &mut client.state else { return Some(None) };
        // Whether a message must still wait is to be seen.
        link.waits.look_again();
        let Some(server) = self.servers.get(server_id) else { return Some(None) };
        if holds_later(link, server) || !server.pipelined.is_alone() {
            return None;
        }
        if waits_for_restore(link, server, bytes) {
            link.waits.set(Waits::HELD, true);
            return None;
        }
        if server.state.lets_client_wait() {
            return Some(None);
        }
        let group = link.group.take();
        if server.pipelined.head().is_some() {
            self.end_pipeline(server_id);
        }
        Some(group)
    }

    /// Passes on one message, or the rest of one.
    fn pass_message<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        tracking: bool,
        cursor: &mut Cursor<'_>,
    ) -> Passed {
        let Some(client) = self.clients.get_mut(id) else { return Passed::Gone };
        let ClientState::Linked(link) = &mut client.state else { return Passed::NoMore };
        let Some(server) = self.servers.get_mut(server_id) else { return Passed::Gone };
        if server.state.lets_client_wait() {
            return Passed::NoMore;
        }
        // Even a message without an answer shows that the client is not idle.
        server.active_us = cx.env.now.mono_us;
        if link.streaming > 0 {
            let used = link.streaming.min(cursor.rest().len());
            link.streaming -= used;
            if let Some(touched) = link.touched.as_deref_mut().filter(|touched| touched.part.is_open()) {
                let routines = &self.state.routines;
                touched.read_piece(&cursor.rest()[..used], link.streaming == 0, routines);
            }
            cursor.at += used;
            if link.streaming == 0 && server.is_at_rest() {
                // The answer was there before the message was whole: the server could not be released then.
                cursor.flush(cx.driver, server.conn);
                self.server_rests(cx, server_id);
                return Passed::Released;
            }
        }
        let rest = cursor.rest();
        if link.phase.holds() || link.ready_due || waits_for_restore(link, server, rest) {
            link.waits.set(Waits::HELD, true);
            return Passed::NoMore;
        }
        let header = match Header::peek(rest) {
            Ok(Some(header)) => header,
            Ok(None) => return Passed::NoMore,
            Err(error) => return self.refused(cx, id, &Fault::Protocol(error.to_string().into())),
        };
        if let Some(fault) = oversized(&cx.env.rules.config.main, header) {
            return self.refused(cx, id, &fault);
        }
        if rest.len() < header.total() && header.total() <= HOLD_MESSAGE_BYTES {
            return Passed::NoMore;
        }
        let route = route(header, rest, tracking);
        let is_named = matches!(route, Route::Bind(_) | Route::Prepared);
        let uncertain = is_named && names_are_uncertain(link, &server.ledger);
        // A first try may run on another node, and the question for a change's number goes after all of it: neither is cut.
        let full = !link.sends_whole_group() && owes_enough(&server.ledger, cx.env.limits.ledger_entries);
        if uncertain || full {
            link.waits.set(Waits::HELD, uncertain);
            link.waits.set(Waits::FULL, full);
            if full {
                cx.driver.reached(RarePath::LedgerFull);
            }
            cursor.flush(cx.driver, server.conn);
            self.ask_for_answers(cx, server_id);
            return Passed::NoMore;
        }
        let kind = match route {
            Route::Pass(kind) => kind,
            Route::Unnamed(kind) => {
                let is_ready = server.is_replication() || self.sends_unnamed(cx, id, server_id, kind, cursor);
                if !is_ready {
                    return Passed::NoMore;
                }
                Some(kind)
            }
            Route::Bind(_) | Route::Prepared => {
                server.note_begin(cx.env.now.mono_us);
                cursor.flush(cx.driver, server.conn);
                let step = match route {
                    Route::Bind(head) => self.send_bind(cx, id, server_id, (header, rest), head),
                    _ => self.send_prepared(cx, id, server_id, header, rest),
                };
                match step {
                    Step::Used(used) => cursor.skip(used),
                    Step::Wait => return Passed::NoMore,
                    Step::Gone => return Passed::Gone,
                }
                return Passed::Message;
            }
            Route::More => return Passed::NoMore,
            Route::Leave => {
                cursor.flush(cx.driver, server.conn);
                self.client_left(cx, id, "client close request");
                return Passed::Gone;
            }
            Route::Refused(flaw) => {
                self.reject(cx, id, flaw, header.tag);
                return Passed::Gone;
            }
        };
        self.pass_unchanged(cx, id, server_id, header, kind, cursor)
    }

    /// Whether a message about the unnamed statement may be sent: the server has the client's own. A group that was looked at as a whole
    /// prepares it itself.
    fn sends_unnamed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        kind: Kind,
        cursor: &mut Cursor<'_>,
    ) -> bool {
        if cursor.is_judged() {
            return true;
        }
        self.flush_cursor(cx, server_id, cursor);
        self.prepare_unnamed(cx, id, server_id, kind)
    }

    /// Ends a client because of a message that cannot be passed on.
    pub(crate) fn reject<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        flaw: Flaw,
        tag: u8,
    ) -> Step {
        match flaw.fault(tag) {
            Some(fault) => self.refuse_client(cx, id, &fault),
            None => self.unknown_message(cx, id, tag),
        }
    }

    /// Passes on a message that servers get as it is, and notes the answer that they will owe for it.
    fn pass_unchanged<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        header: Header,
        kind: Option<Kind>,
        cursor: &mut Cursor<'_>,
    ) -> Passed {
        if header.tag == tag::QUERY && cx.env.rules.config.main.disable_pqexec {
            return self.refused(cx, id, &Fault::SimpleQueryDisabled);
        }
        let notable = matches!(header.tag, tag::QUERY | tag::PARSE | tag::BIND | tag::FUNCTION_CALL);
        let notable = notable && !cursor.is_judged();
        let noted = if notable { text_of(cx.env, header, cursor.rest()) } else { None };
        if let Some((_, traits)) = &noted {
            self.note_ending(id, traits.marks);
        }
        if let Some((text, traits)) = &noted
            && self.concerns_features(id, text, traits)
        {
            self.flush_cursor(cx, server_id, cursor);
            let to_send = (Sent::Unnamed, header.tag == tag::QUERY);
            let named = self.prepare_text(cx, id, server_id, (text, traits), to_send);
            if matches!(named, Named::Waits(_)) {
                return Passed::NoMore;
            }
        }
        let ticket = kind.map_or(0, |kind| self.ending_ticket(id, kind));
        let portal = cursor.rest().get(HEADER_LEN + 1..header.total().saturating_sub(1));
        let doubtful = portal.and_then(|portal| self.doubtful_portal(id, portal));
        if kind == Some(Kind::Bind) {
            self.forget_doubtful_portal(id);
        }
        let Some(server) = self.servers.get_mut(server_id) else { return Passed::Gone };
        let behind_names = header.tag == tag::QUERY && server.ledger.is_behind_names();
        if let Some(kind) = kind {
            let unnamed = kind == Kind::Parse && cursor.rest().get(HEADER_LEN) == Some(&0);
            let told = if kind == Kind::DescribePortal { doubtful } else { None };
            let pushed = server.ledger.push(match (unnamed, told) {
                (true, _) => Entry::unnamed(Owner::Client(id), kind),
                (false, Some(entry)) => entry,
                (false, None) => Entry { ticket, ..Entry::new(Owner::Client(id), kind) },
            });
            if pushed == Pushed::Queued && kind != Kind::CopyEnd {
                server.note_begin(cx.env.now.mono_us);
            }
        }
        if notable {
            match header.tag {
                tag::QUERY => self.forget_unnamed(id),
                tag::PARSE if cursor.rest().get(HEADER_LEN) == Some(&0) => {
                    let traits = noted.as_ref().map(|(_, traits)| traits);
                    self.note_unnamed(id, header, cursor.rest(), traits);
                }
                _ => {}
            }
            self.note_message(cx.env, id, header, cursor.rest(), noted);
        }
        if matches!(header.tag, tag::BIND | tag::CLOSE) && self.has_exposed_names(id) {
            self.note_exposed(cx.env, id, header.tag, cursor.rest().get(HEADER_LEN..).unwrap_or_default());
        }
        let here = cursor.rest().len();
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            link.streaming = header.total().saturating_sub(here);
        }
        cursor.at += header.total().min(here);
        if let Some(kind) = kind.filter(|kind| kind.ends_group()) {
            self.guard_begin(cx, id, server_id, kind, cursor);
        }
        if kind == Some(Kind::CopyEnd) {
            self.conclude_statements(cx, server_id);
        }
        if self.is_ending_name(id, header.tag) {
            self.flush_cursor(cx, server_id, cursor);
            self.take_name_back(cx.env, id);
            self.send_ahead(cx, server_id);
        }
        if behind_names && header.total() <= here {
            self.flush_cursor(cx, server_id, cursor);
            // If a name cannot be exposed, PostgreSQL ignores the Query and answers this Sync: the client gets its ReadyForQuery.
            add_sync(&mut cx.env.ahead);
            self.send_ahead(cx, server_id);
        }
        Passed::Message
    }

    /// Sends the gathered bytes to the server, before a message of pgweir's own.
    fn flush_cursor<D: Driver>(&self, cx: &mut Cx<'_, D>, server_id: ServerId, cursor: &mut Cursor<'_>) {
        if let Some(server) = self.servers.get(server_id) {
            cursor.flush(cx.driver, server.conn);
        }
    }

    fn refused<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, fault: &Fault) -> Passed {
        self.refuse_client(cx, id, fault);
        Passed::Gone
    }
}

/// Whether the server owes so many answers that the client's next message must wait. A COPY is answered only after its data, which is
/// therefore not held back: data owes no answer.
fn owes_enough(ledger: &Ledger, entries_max: usize) -> bool {
    ledger.len() >= entries_max && !ledger.is_copying_in()
}

/// Whether the meaning of a prepared statement's name depends on answers that are still owed.
pub(crate) fn names_are_uncertain(link: &mut Link, ledger: &Ledger) -> bool {
    if link.waits.has(Waits::DISCARDS) && ledger.is_empty() {
        link.waits.set(Waits::DISCARDS, false);
    }
    link.waits.has(Waits::DISCARDS) || ledger.awaits_earlier_changes()
}
