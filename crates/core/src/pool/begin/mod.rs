//! BEGIN is answered here and travels with the transaction's first statement: a round trip is saved, and an empty transaction
//! never reaches a server. `defer_begin` says whether its client has a server meanwhile, as PgBouncer's clients have (`packet`:
//! as many transactions are open as there are servers), or holds none while it thinks (`server`).
//!
//! Only a text that PostgreSQL answers with nothing but its tag is answered so. It is sent as messages of the extended protocol
//! without a Sync: if it fails after all (on a standby, or because a cancel request hits it), PostgreSQL ignores what was sent
//! after it up to the next Sync, and nothing of the transaction happens outside of it. Nothing further is sent until it is
//! answered. A failed BEGIN looks to the client as if its first statement had failed: pgweir then brings the server to the
//! state that the client was told, a failed transaction.

mod on_server;

use pgweir_settings::{DeferBegin, PoolMode};
use pgweir_sql::{Block, may_be_block};
use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::frontend::{self, Target, tag};
use pgweir_wire::{HEADER_LEN, Header};

use crate::client_handoff::Replication;
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::{ClientState, DeferredBegin, UnnamedOnServer};
use crate::pool::cluster::reading::BehindBegin;
use crate::pool::policy::BeginsWithoutServer;
use crate::pool::prepared::statements::Statements;
use crate::pool::relay::attempt::KeptFor;
use crate::pool::relay::exchange::block::{BlockGroup, NO_PARAMETERS, block_at_front};
use crate::pool::relay::exchange::is_partial_group;
use crate::pool::relay::ledger::{Entry, Kind, Owner, Purpose};
use crate::pool::relay::preamble::{Ahead, LinkPhase, Part, Preamble, Repair};
use crate::pool::relay::route::uses_earlier_portal;
use crate::pool::relay::send::Cursor;
use crate::pool::{Pool, Step};
use crate::stats::rare_path::RarePath;
use crate::stats::times::Split;

/// Fails inside of a transaction block, whatever the database has in it.
const FAILING_BLOCK: &[u8] = b"BEGIN;ROLLBACK TO SAVEPOINT pgweir";

impl Pool {
    /// The moment *request*: a client without a server begins a transaction and says no more, or goes on with a group that a standby may
    /// run or the query cache may answer; or it ends a transaction in which nothing happened. `None`: it does something else.
    pub(crate) fn answer_block_here<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        header: Header,
        bytes: &[u8],
        status: TxStatus,
    ) -> Option<Step> {
        if !matches!(header.tag, tag::QUERY | tag::PARSE | tag::BIND) {
            return None;
        }
        if status != TxStatus::Idle {
            return self.end_without_server(cx, id, bytes).map(Step::Used);
        }
        if self.state.policy.without_server == BeginsWithoutServer::None && cx.env.cache.is_none()
            || header.tag == tag::QUERY && !may_be_block(&bytes[HEADER_LEN..])
        {
            return None;
        }
        let defers = self.defers_begin(cx.env, id);
        if defers == DeferBegin::Off {
            return None;
        }
        let (group, text) = self.beginning_at_front(cx.env, id, bytes)?;
        let behind = &bytes[group.len..];
        if !(defers == DeferBegin::Server && group.is_all_of(bytes)) {
            let found = match self.may_be_known_after(cx.env, id, &text) {
                true if is_partial_group(behind) => BehindBegin::Partial,
                true => BehindBegin::FirstGroup,
                false => self.behind_begin(cx.env, id, &text, behind),
            };
            match found {
                BehindBegin::FirstGroup => cx.driver.reached(RarePath::BegunWithGroup),
                BehindBegin::Partial if group.is_whole => {}
                found => {
                    cx.env.buffers.give_back(text);
                    // The rest of the group says where BEGIN runs.
                    return (found == BehindBegin::Partial).then_some(Step::Wait);
                }
            }
        }
        self.answer_block(cx, id, group, TxStatus::InTransaction);
        let since_us = cx.env.now.mono_us;
        self.set_client_state(id, ClientState::DeferredBegin(DeferredBegin { text, since_us }));
        Some(Step::Used(group.len))
    }

    /// Returns the group at the front of the client's bytes and its text, if it is one statement about a transaction block.
    fn block_group<'a>(
        &self,
        statements: &'a Statements,
        id: ClientId,
        bytes: &'a [u8],
    ) -> Option<(BlockGroup, &'a [u8])> {
        let account = &self.clients.get(id)?.account;
        block_at_front(bytes, |name| {
            let statement = statements.get(account.statement(name)?)?;
            Some((statement.block?, &*statement.query))
        })
    }

    /// A BEGIN at the front of what the client says.
    pub(crate) fn beginning_at_front(
        &mut self,
        env: &mut Env,
        id: ClientId,
        bytes: &[u8],
    ) -> Option<(BlockGroup, Vec<u8>)> {
        if !self.is_known_as_block(bytes) {
            return None;
        }
        let (group, text) = self.block_group(&env.statements, id, bytes)?;
        if !matches!(group.block, Block::Begin | Block::Start) {
            return None;
        }
        let mut kept = env.buffers.take();
        kept.extend_from_slice(text);
        Some((group, kept))
    }

    /// The length of a group that is nothing but a BEGIN, with nothing behind it.
    pub(crate) fn begin_alone_at_front(&self, env: &Env, id: ClientId, bytes: &[u8]) -> Option<usize> {
        let (group, _) = self.block_group(&env.statements, id, bytes)?;
        let is_begin = matches!(group.block, Block::Begin | Block::Start) && bytes.len() == group.len;
        is_begin.then_some(group.len)
    }

    /// Whether the bytes are one group that is nothing but the beginning or the end of a transaction block.
    pub(crate) fn is_block_alone(&self, env: &Env, id: ClientId, bytes: &[u8]) -> bool {
        self.block_group(&env.statements, id, bytes).is_some_and(|(group, _)| group.is_all_of(bytes))
    }

    pub(crate) fn defers_begin(&self, env: &Env, id: ClientId) -> DeferBegin {
        let main = &env.rules.config.main;
        let account = self.clients.get(id).map(|client| &client.account);
        let answers = |replication| replication == Replication::None && !main.disable_pqexec;
        let account = account.filter(|account| answers(account.replication));
        match account.map(|_| self.state.policy.mode) {
            Some(PoolMode::Transaction) => main.defer_begin,
            // The client keeps its server, with or without this BEGIN.
            Some(PoolMode::Session) if main.defer_begin != DeferBegin::Off => DeferBegin::Packet,
            _ => DeferBegin::Off,
        }
    }

    /// Whether pgweir may answer the group itself. In session pooling only a Query may be answered here: a Parse would have replaced
    /// the client's unnamed statement at the server, which pgweir does not track then.
    fn is_known_as_block(&self, bytes: &[u8]) -> bool {
        self.state.policy.mode != PoolMode::Session || bytes.first() == Some(&tag::QUERY)
    }

    /// The end of a transaction in which nothing happened.
    pub(crate) fn end_at_front(&self, env: &Env, id: ClientId, bytes: &[u8]) -> Option<BlockGroup> {
        if !self.is_known_as_block(bytes) {
            return None;
        }
        let (group, _) = self.block_group(&env.statements, id, bytes)?;
        (group.is_whole && matches!(group.block, Block::Commit | Block::Rollback)).then_some(group)
    }

    fn end_without_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        bytes: &[u8],
    ) -> Option<usize> {
        let group = self.end_at_front(cx.env, id, bytes)?;
        self.answer_block(cx, id, group, TxStatus::Idle);
        if let Some(ClientState::DeferredBegin(deferred)) =
            self.clients.get_mut(id).map(|client| &mut client.state)
        {
            cx.env.buffers.give_back(std::mem::take(&mut deferred.text));
        }
        self.set_client_state(id, ClientState::Idle);
        Some(group.len)
    }

    pub(crate) fn answer_block<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        group: BlockGroup,
        status: TxStatus,
    ) {
        cx.env.scratch.clear();
        let out = &mut cx.env.scratch;
        for asked in group.asked {
            match asked {
                tag::PARSE => backend::encode_parse_complete(out),
                tag::BIND => backend::encode_bind_complete(out),
                tag::DESCRIBE => backend::encode_no_data(out),
                b'S' => {
                    backend::encode_parameter_description(out, &[]);
                    backend::encode_no_data(out);
                }
                _ => {}
            }
        }
        backend::encode_command_complete(out, group.block.tag());
        if group.is_whole {
            backend::encode_ready(out, status);
        }
        let Some(client) = self.clients.get_mut(id) else { return };
        cx.driver.send(client.conn, &cx.env.scratch);
        if group.replaces_unnamed() {
            client.account.unnamed = None;
            if let ClientState::Linked(link) = &mut client.state {
                // PostgreSQL would have forgotten the statement that the server still has.
                link.unnamed = UnnamedOnServer::NotOwn;
            }
        }
        // It counts as the client sees it: a statement that took no time.
        let pool = &mut self.state;
        let times = pool.numbers.times.get_or_insert_default();
        pool.numbers.stats.queries += 1;
        times.statement(Split::default());
        if status == TxStatus::Idle {
            let began_us = match &client.state {
                ClientState::DeferredBegin(deferred) => deferred.since_us,
                ClientState::Linked(link) => {
                    self.servers.get(link.server).map_or(0, |server| server.work.xact_us)
                }
                _ => 0,
            };
            let xact_us = if began_us == 0 { 0 } else { cx.env.now.mono_us.saturating_sub(began_us) };
            pool.numbers.stats.xacts += 1;
            pool.numbers.stats.xact_us += xact_us;
            times.transaction(xact_us);
        }
    }

    /// The BEGIN that was answered goes to the server ahead of the client's next message.
    pub(crate) fn begin_ahead(&mut self, env: &mut Env, id: ClientId, server_id: ServerId, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        if !link.phase.is_unsent() || self.servers[server_id].state.syncing().is_some() {
            return;
        }
        let text = match &mut link.phase {
            LinkPhase::Exchange(Preamble::Block(change)) => {
                change.begin();
                None
            }
            phase => {
                match std::mem::replace(phase, LinkPhase::Exchange(Preamble::Sent(Ahead::Begin, Part::Open)))
                {
                    LinkPhase::Exchange(Preamble::Begin(text)) => Some(text),
                    _ => return,
                }
            }
        };
        let begin = text.as_deref().unwrap_or(b"BEGIN");
        let owner = Owner::Prerequisite(id);
        let ahead = &mut env.ahead;
        ahead.add(Entry::new(owner, Kind::Parse), |out| frontend::encode_parse(out, b"", begin, &[]));
        ahead.add(Entry::new(owner, Kind::Bind), |out| {
            frontend::encode_bind_head(out, b"", b"", NO_PARAMETERS.len());
            out.extend_from_slice(&NO_PARAMETERS);
        });
        ahead.add(Entry::new(owner, Kind::Execute), |out| frontend::encode_execute(out, b"", 0));
        if uses_earlier_portal(bytes) {
            // The unnamed portal would be that of BEGIN.
            let closes = |out: &mut Vec<u8>| frontend::encode_close(out, Target::Portal, b"");
            ahead.add(Entry::new(owner, Kind::Close), closes);
        }
        let server = &mut self.servers[server_id];
        // The transaction's time began when the server became its client's.
        server.note_begin(env.now.mono_us);
        match text {
            Some(text) => server.attempt.note_begin(text),
            // If it is asked again, then without this BEGIN.
            None => server.attempt.keep_for(KeptFor::LOSS),
        }
    }

    /// The first group after BEGIN was sent: later messages wait until BEGIN is answered. `kind` is the kind of message that
    /// ended the group.
    pub(crate) fn guard_begin<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        kind: Kind,
        cursor: &mut Cursor<'_>,
    ) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        let simple = matches!(kind, Kind::Query | Kind::FunctionCall);
        if !simple && kind != Kind::Sync {
            return;
        }
        let whole = Part::Whole { simple };
        // PostgreSQL ignores a group behind a preamble that has failed.
        let is_ignored = match &mut link.phase {
            LinkPhase::Exchange(Preamble::Block(change)) => change.end_group(whole),
            LinkPhase::Exchange(Preamble::Sent(_, group)) if !group.is_whole() => {
                *group = whole;
                false
            }
            LinkPhase::Repair(Repair::Awaited { group, .. }) if !group.is_whole() => {
                *group = whole;
                // The server executes nothing of the group.
                link.touched = None;
                true
            }
            _ => false,
        };
        if is_ignored && whole.lacks_sync() {
            cursor.flush(cx.driver, self.servers[server_id].conn);
            self.send_sync(cx, server_id, Purpose::Reopen);
        }
    }

    /// BEGIN was answered as foreseen.
    pub(crate) fn begin_answered(&mut self, owner: Owner, ended: Entry) {
        if let (Owner::Prerequisite(id), Kind::Execute) = (owner, ended.kind)
            && let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state)
        {
            match &mut link.phase {
                LinkPhase::Exchange(Preamble::Sent(Ahead::Begin, _)) => link.phase = LinkPhase::PLAIN,
                LinkPhase::Exchange(Preamble::Block(change)) => change.begun(),
                _ => {}
            }
        }
    }

    /// BEGIN failed; its error was passed on, and the server ignores what was sent after it.
    pub(crate) fn begin_failed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId, owner: Owner) {
        let Owner::Prerequisite(id) = owner else { return };
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        let group = match &mut link.phase {
            LinkPhase::Exchange(Preamble::Sent(Ahead::Begin, group)) => {
                let group = *group;
                link.phase = LinkPhase::Repair(Repair::Awaited { group, text: FAILING_BLOCK });
                group
            }
            LinkPhase::Exchange(Preamble::Block(change)) => {
                link.touched = None;
                change.begin_failed()
            }
            _ => return,
        };
        if group.lacks_sync() {
            self.send_sync(cx, server_id, Purpose::Reopen);
        }
    }
}
