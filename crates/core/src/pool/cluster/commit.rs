//! The outcome of a COMMIT whose server was lost (`commit_outcome`).
//!
//! While the transaction is open, its server is asked for the transaction's number and for a position in the log, in the same packet as
//! its first statement that may write. If the server is lost behind COMMIT, the client waits for a server of the next primary, which is
//! asked what became of that number before anything else. What that proves is said by [`crate::cluster::outcome`] alone.

use pgweir_wire::backend::TxStatus;
use pgweir_wire::error::{Report, SqlState};

use crate::cluster::answer::Lsn;
use crate::cluster::outcome::{Outcome, Said, Stake, Status, Why, outcome};
use crate::cluster::{Run, Term};
use crate::context::Cx;
use crate::driver::{Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::limits::{NUMBER_QUESTIONS_MAX, OUTCOME_QUESTIONS_MAX};
use crate::pool::client::state::{ClientState, First, Link, Request};
use crate::pool::cluster::in_flight::InFlight;
use crate::pool::relay::exchange::block::BlockGroup;
use crate::pool::relay::ledger::{Entry, Owner, Purpose};
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::relay::preamble::LinkPhase;
use crate::pool::server::state::{Server, ServerState};
use crate::pool::{Branch, Pool};
use crate::stats::rare_path::RarePath;

/// The number of the transaction, where the log is, where a record with that number is for certain, and where recovery had ended.
///
/// The record is one of our own, which no replay looks at: a transaction that has only written to temporary or unlogged tables has none,
/// and then its number could be given out again. With `wal_level=logical` none is written, as consumers of the log would see it.
const NUMBER: &[u8] = b"SELECT pg_catalog.txid_current_if_assigned(), pg_catalog.pg_current_wal_insert_lsn(), \
CASE WHEN pg_catalog.txid_current_if_assigned() IS NOT NULL \
AND pg_catalog.current_setting('wal_level') OPERATOR(pg_catalog.<>) 'logical' \
THEN pg_catalog.pg_logical_emit_message(true, 'pgweir', ''::pg_catalog.text) END, pg_catalog.pg_last_wal_replay_lsn()";

/// The state of pgweir's knowledge of the number of a client's transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Number {
    /// The transaction has sent nothing that may write, so the number is not needed.
    NotNeeded,
    /// Something that may write was sent, and the server was not asked for the number after it.
    Unknown,
    /// The server was asked for the number after everything that was sent.
    Asked,
    /// The server has answered that the transaction has no number.
    None,
    Told(Stake),
    /// The bytes sent may have ended the transaction and begun another one, so no number is reliable.
    Lost,
}

impl Number {
    /// Notes that more was sent. `is_unclear`: the transaction may be another one from here on.
    pub(super) fn note(&mut self, is_unclear: bool, writes: bool) {
        match self {
            _ if is_unclear => *self = Number::Lost,
            Number::NotNeeded | Number::Asked | Number::None if writes => *self = Number::Unknown,
            _ => {}
        }
    }

    /// Notes an answer to the question. `is_last`: no other question is under way.
    fn answer(&mut self, told: Option<Stake>, is_last: bool) {
        *self = match (std::mem::replace(self, Number::Lost), told) {
            (Number::Asked | Number::Unknown | Number::None, Some(stake)) => Number::Told(stake),
            (Number::Asked, None) if is_last => Number::None,
            (known, _) => known,
        };
    }
}

/// A client that waits for the answer to its COMMIT.
pub(crate) struct AtCommit {
    /// The client's group with the COMMIT. `None` if pgweir sent the COMMIT for a change of the client's (`change.rs`).
    group: Option<BlockGroup>,
    stake: Stake,
    /// The primary that the transaction ran on.
    term: Term,
    attempts: u32,
}

/// The question to a new server whether the transaction of a client at COMMIT took effect, and the answer so far.
pub(crate) struct Asking {
    at: Box<AtCommit>,
    /// The row, if it has come.
    row: Option<Vec<Option<Box<[u8]>>>>,
    /// The error that came instead of a row.
    failed: Option<(SqlState, String)>,
}

/// The outcome for a client at COMMIT that is known without asking a server.
pub(crate) enum AtOnce {
    /// The transaction had nothing to commit, so it counts as committed.
    Committed,
    Unknown(Why),
}

/// Returns the state of a client that waits for its COMMIT's answer when its server is lost. `Err` if the outcome needs no question.
pub(crate) fn at_commit(
    in_flight: &InFlight,
    server: &Server,
    group: Option<BlockGroup>,
) -> Result<AtCommit, AtOnce> {
    let Some(term) = server.at.term.clone().filter(|_| server.branch.is_primary()) else {
        // A standby has nothing to commit. A server that was promoted has said so, before it said that the transaction is open.
        let reads = !server.at.is_promoted || in_flight.number == Number::NotNeeded;
        return Err(if reads { AtOnce::Committed } else { AtOnce::Unknown(Why::Promoted) });
    };
    match &in_flight.number {
        Number::NotNeeded => Err(AtOnce::Committed),
        Number::Told(stake) => Ok(AtCommit { group, stake: stake.clone(), term, attempts: 0 }),
        Number::None => Err(AtOnce::Unknown(Why::NothingWritten)),
        Number::Unknown | Number::Asked | Number::Lost => Err(AtOnce::Unknown(Why::NoNumber)),
    }
}

impl Pool {
    /// Whether the server can be asked for the number of its client's transaction.
    pub(super) fn may_ask_number(&self, server: &Server) -> bool {
        let known = server
            .in_flight
            .as_ref()
            .is_some_and(|in_flight| matches!(in_flight.number, Number::Told(_) | Number::Lost));
        !known && self.answers_number(server) && questions(server) < NUMBER_QUESTIONS_MAX
    }

    /// Whether questions for numbers have failed at this primary, or there is no cluster.
    pub(super) fn are_numbers_refused(&self) -> bool {
        self.state.cluster.as_ref().is_none_or(|cluster| cluster.is_refused)
    }

    /// Whether the server is the primary's and questions for numbers have not failed there.
    pub(super) fn answers_number(&self, server: &Server) -> bool {
        !self.are_numbers_refused() && server.branch.is_primary() && self.state.policy.on_loss.asks()
    }

    /// Asks a server for the number of the transaction that is open. `simple`: the client's message is a Query, so there is no
    /// unnamed statement of the client's that the question could replace.
    pub(super) fn ask_number<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId, simple: bool) {
        match simple {
            true => self.send_hidden(cx, server_id, Purpose::Number, NUMBER),
            false => self.send_hidden_aside(cx, server_id, Purpose::Number, &[NUMBER.to_vec()]),
        }
        if let Some(in_flight) = self.servers.get_mut(server_id).and_then(|server| server.in_flight.as_mut())
        {
            in_flight.number = Number::Asked;
        }
    }

    /// Takes a row in answer to a question of this file.
    pub(crate) fn outcome_row(&mut self, id: ServerId, purpose: Purpose, columns: Vec<Option<Box<[u8]>>>) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if purpose == Purpose::Number {
            let is_last = questions(server) == 1;
            if let Some(in_flight) = &mut server.in_flight {
                in_flight.number.answer(read_number(&columns), is_last);
            }
            return;
        }
        let client = server.state.client().and_then(|client| self.clients.get_mut(client));
        if let Some(ClientState::Linked(Link { phase: LinkPhase::Outcome(asking), .. })) =
            client.map(|client| &mut client.state)
        {
            asking.row = Some(columns);
        }
    }

    /// Handles the complete answer to a question for a number. `behind_bytes` is the number of the server's bytes that were not
    /// looked at yet.
    pub(crate) fn number_told(&mut self, id: ServerId, behind_bytes: usize) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let received_bytes = server.work.received_bytes.saturating_sub(behind_bytes as u64);
        let only = !server.ledger.entries().any(|entry| entry.owner.client().is_none());
        if let Some(in_flight) = server.in_flight.as_mut().filter(|_| only) {
            in_flight.begin_answer(received_bytes);
        }
    }

    /// The question for a number has failed. `true`: that was not its client's fault, and the transaction is lost with it.
    pub(crate) fn number_refused<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        code: SqlState,
        text: &str,
    ) -> bool {
        let Some(server) = self.servers.get_mut(id) else { return false };
        if let Some(in_flight) = &mut server.in_flight {
            in_flight.number = Number::Lost;
        }
        if code == SqlState::IN_FAILED_SQL_TRANSACTION {
            return false;
        }
        let line = format!(
            "{} the question for the number of a transaction failed: {text}",
            self.server_log_name(&self.servers[id])
        );
        cx.log(Level::Warning, &line);
        if let Some(cluster) = self.state.cluster.as_mut().filter(|_| code != SqlState::QUERY_CANCELED) {
            cluster.is_refused = true;
        }
        true
    }

    /// The server of a client at COMMIT is lost.
    pub(crate) fn lost_at_commit<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        (group, at): (Option<BlockGroup>, Result<AtCommit, AtOnce>),
    ) {
        let told = match at {
            Ok(at) => return self.wait_for_outcome(cx, id, server_id, Box::new(at)),
            Err(AtOnce::Committed) => Outcome::Committed,
            Err(AtOnce::Unknown(why)) => Outcome::Unknown(why),
        };
        self.leave_lost(cx, id, server_id);
        self.tell_outcome(cx, id, group, told);
    }

    /// Linked → Waiting: the client is answered when the next primary has said what became of its transaction.
    fn wait_for_outcome<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        at: Box<AtCommit>,
    ) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.account.branch = Branch::PRIMARY;
        // The COMMIT, not the whole transaction.
        client.account.request = Request::new(cx.env);
        cx.driver.reached(RarePath::OutcomeAsked);
        self.set_server_state(server_id, ServerState::Draining);
        self.requeue(cx, id, First::Outcome(at));
    }

    /// Waiting → Linked, with a server that is asked.
    pub(crate) fn link_to_ask<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        at: Box<AtCommit>,
    ) {
        let question = outcome_question(at.stake.xid, false);
        let phase = LinkPhase::Outcome(Box::new(Asking { at, row: None, failed: None }));
        let link = Link { phase, ..Link::new(server_id, self.state.policy.mode) };
        self.set_client_state(id, ClientState::Linked(link));
        self.set_server_state(server_id, ServerState::serving(id));
        let Some(server) = self.servers.get_mut(server_id) else { return };
        server.active_us = cx.env.now.mono_us;
        server.work.used = true;
        server.in_flight = None;
        self.end_affinity(Some(server_id), id);
        let version = self.servers[server_id].at.version;
        let question = own_settings::question(version, Asks::Little, question.as_bytes());
        self.send_hidden(cx, server_id, Purpose::Outcome, &question);
    }

    pub(crate) fn outcome_refused(&mut self, id: ServerId, code: SqlState, text: String) {
        let client = self.servers.get(id).and_then(|server| server.state.client());
        if let Some(ClientState::Linked(Link { phase: LinkPhase::Outcome(asking), .. })) =
            client.and_then(|client| self.clients.get_mut(client)).map(|client| &mut client.state)
        {
            asking.failed = Some((code, text));
        }
    }

    /// The server of a client that waits for an outcome is lost, or is not the primary's any more.
    pub(crate) fn asks_again<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) else {
            return;
        };
        if let LinkPhase::Outcome(asking) = std::mem::replace(&mut link.phase, LinkPhase::PLAIN) {
            self.wait_for_outcome(cx, id, server_id, asking.at);
        }
    }

    /// The answer to the question for an outcome is complete. `true`: the server is asked nothing more, and rests.
    pub(crate) fn outcome_told<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        id: ClientId,
    ) -> bool {
        let Some(server) = self.servers.get(server_id) else { return false };
        let server_version = server.at.version;
        let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) else {
            return false;
        };
        let LinkPhase::Outcome(asking) = &mut link.phase else { return false };
        let view = self.state.cluster.as_ref().map(|cluster| &cluster.view);
        let primary = view.and_then(|view| view.primary.as_ref());
        // What an older primary says is of another history.
        let is_current = primary.is_some_and(|primary| Some(&primary.term) == server.at.term.as_ref());
        let followed = view.and_then(|view| view.followed.as_ref());
        let at = &mut asking.at;
        at.attempts += 1;
        let told = match (&asking.failed, asking.row.as_deref().and_then(read_outcome)) {
            // "transaction ID is in the future": no record of it is in this history.
            (Some((SqlState::INVALID_PARAMETER_VALUE, _)), _) => Outcome::RolledBack,
            (None, Some(said)) => outcome(&at.stake, &at.term, &said, followed),
            _ => Outcome::Unknown(Why::NotAsked),
        };
        let told = match told {
            Outcome::AskAgain if at.attempts >= OUTCOME_QUESTIONS_MAX => Outcome::Unknown(Why::NotOver),
            told => told,
        };
        if !is_current {
            self.asks_again(cx, id, server_id);
            return true;
        }
        if told == Outcome::AskAgain {
            (asking.row, asking.failed) = (None, None);
            let text = outcome_question(at.stake.xid, true);
            let version = server_version;
            let text = own_settings::question(version, Asks::Little, text.as_bytes());
            self.send_hidden(cx, server_id, Purpose::Outcome, &text);
            return false;
        }
        let group = at.group;
        link.phase = LinkPhase::PLAIN;
        self.tell_outcome(cx, id, group, told);
        true
    }

    /// Sends the client at COMMIT the outcome of its transaction.
    pub(crate) fn tell_outcome<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        group: Option<BlockGroup>,
        told: Outcome,
    ) {
        let Some(client) = self.clients.get(id) else { return };
        let (name, word) = (self.client_log_name(client), told.word());
        let why = match told {
            Outcome::Unknown(why) => format!(" ({})", why.text().trim_end_matches('.')),
            _ => String::new(),
        };
        cx.log(Level::Log, &format!("{name} its primary was lost behind COMMIT: {word}{why}"));
        if let Some(cluster) = &self.state.cluster {
            cx.env.clusters.outcomes.entry(cluster.view.cluster.clone()).or_default().count(told);
        }
        match told {
            Outcome::Committed => match group {
                Some(group) => self.answer_block(cx, id, group, TxStatus::Idle),
                None => self.tell(cx, id, None, Some(TxStatus::Idle)),
            },
            Outcome::RolledBack => self.tell_rolled_back(cx, id, Some(TxStatus::Idle)),
            Outcome::Unknown(_) | Outcome::AskAgain => {
                let detail = told.detail();
                let text = "the connection to the primary was lost; it is not known whether the transaction was committed";
                let report = Report::error(SqlState::TRANSACTION_RESOLUTION_UNKNOWN, text)
                    .with_detail(detail)
                    .with_hint(
                        "Look whether the change is there before it is tried again. The session goes on.",
                    );
                self.tell(cx, id, Some(&report), Some(TxStatus::Idle));
            }
        }
    }
}

/// Questions for a number that the server has not answered.
fn questions(server: &Server) -> usize {
    let is_end = |entry: &&Entry| entry.owner == Owner::Hidden(Purpose::Number) && entry.kind.ends_group();
    server.ledger.entries().filter(is_end).count()
}

/// Returns the query for the outcome of a transaction. `waits`: the server sleeps 0.1 s before it answers.
fn outcome_question(xid: u64, waits: bool) -> String {
    let sleep = if waits { "(SELECT pg_catalog.pg_sleep(0.1))" } else { "(SELECT 1)" };
    format!(
        "SELECT pg_catalog.txid_status('{xid}'), pg_catalog.pg_last_wal_replay_lsn(), \
         pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8), \
         (SELECT system_identifier FROM pg_catalog.pg_control_system())::pg_catalog.text, \
         (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) '1000000')::pg_catalog.int8::pg_catalog.text \
         FROM {sleep} AS moment"
    )
}

/// Reads the row in answer to [`NUMBER`]; `None`: the transaction has no number, or the row is none.
fn read_number(columns: &[Option<Box<[u8]>>]) -> Option<Stake> {
    let [xid, position, record, recovered] = columns else { return None };
    let xid = text(xid)?.parse().ok()?;
    let counts = record.is_some();
    let position = Lsn::parse(text(if counts { record } else { position })?)?;
    let recovered = match recovered {
        None => None,
        Some(_) => Some(Lsn::parse(text(recovered)?)?),
    };
    Some(Stake { xid, position, counts, recovered })
}

/// Reads the row in answer to [`outcome_question`].
fn read_outcome(columns: &[Option<Box<[u8]>>]) -> Option<Said> {
    let [status, recovered, timeline, identifier, started] = columns else { return None };
    let status = match status.as_deref() {
        None => Status::Forgotten,
        Some(b"committed") => Status::Committed,
        Some(b"aborted") => Status::Aborted,
        Some(b"in progress") => Status::InProgress,
        Some(_) => return None,
    };
    let recovered = match recovered {
        None => None,
        Some(_) => Some(Lsn::parse(text(recovered)?)?),
    };
    let run = Run {
        system_identifier: text(identifier)?.parse().ok()?,
        timeline: u32::from_str_radix(text(timeline)?, 16).ok()?,
        started_us: text(started)?.parse().ok()?,
    };
    Some(Said { run, recovered, status })
}

fn text(column: &Option<Box<[u8]>>) -> Option<&str> {
    std::str::from_utf8(column.as_deref()?).ok()
}
