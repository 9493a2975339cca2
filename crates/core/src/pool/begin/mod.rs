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
use pgweir_wire::frontend::{self, BindHead, Describe, Execute, Parse, Query, Target, tag};
use pgweir_wire::{HEADER_LEN, Header, Message, Messages};

use crate::client_handoff::Replication;
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::limits::BEGIN_BYTES_MAX;
use crate::pool::client::state::{ClientState, DeferredBegin};
use crate::pool::cluster::reading::BehindBegin;
use crate::pool::policy::BeginsWithoutServer;
use crate::pool::relay::attempt::KeptFor;
use crate::pool::relay::ledger::{Entry, Kind, Owner};
use crate::pool::relay::preamble::{Ahead, LinkPhase, Part, Preamble, Repair};
use crate::pool::relay::route::uses_earlier_portal;
use crate::pool::relay::send::Cursor;
use crate::pool::{Pool, Step};
use crate::stats::rare_path::RarePath;
use crate::stats::times::Split;

/// Fails inside of a transaction block, whatever the database has in it.
const FAILING_BLOCK: &[u8] = b"BEGIN;ROLLBACK TO SAVEPOINT pgweir";

/// A group that is nothing but one of these statements, or a BEGIN at the front of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockGroup {
    block: Block,
    pub(crate) len: usize,
    /// Whether the group ends with it. `false`: further messages follow before Sync, or are still to come.
    is_whole: bool,
    /// The answers before CommandComplete, by the type bytes of the messages that asked for them.
    asked: [u8; 4],
}

impl BlockGroup {
    pub(crate) fn is(&self, block: Block) -> bool {
        self.block == block
    }

    /// Whether these bytes contain the group and nothing else.
    fn is_all_of(&self, bytes: &[u8]) -> bool {
        self.is_whole && self.len == bytes.len()
    }

    /// Returns the group as a rollback. PostgreSQL answers COMMIT with ROLLBACK if the transaction has failed.
    pub(crate) fn rolling_back(self) -> BlockGroup {
        BlockGroup { block: Block::Rollback, ..self }
    }
}

impl Pool {
    /// The moment *request*: a client without a server begins a transaction and says no more, or goes on with a group that a standby may
    /// run; or it ends a transaction in which nothing happened. `None`: it does something else.
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
        if self.state.policy.without_server == BeginsWithoutServer::None
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
            match self.behind_begin(cx.env, id, &text, behind) {
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

    /// A BEGIN at the front of what the client says.
    pub(crate) fn beginning_at_front(
        &mut self,
        env: &mut Env,
        id: ClientId,
        bytes: &[u8],
    ) -> Option<(BlockGroup, Vec<u8>)> {
        let account = &self.clients.get(id)?.account;
        if !self.is_known_as_block(bytes) {
            return None;
        }
        let (group, text) = block_at_front(bytes, |name| {
            let statement = env.statements.get(account.statement(name)?)?;
            Some((statement.block?, &*statement.query))
        })?;
        if !matches!(group.block, Block::Begin | Block::Start) {
            return None;
        }
        let mut kept = env.buffers.take();
        kept.extend_from_slice(text);
        Some((group, kept))
    }

    /// The length of a group that is nothing but a BEGIN, with nothing behind it.
    pub(crate) fn begin_alone_at_front(&self, env: &Env, id: ClientId, bytes: &[u8]) -> Option<usize> {
        let account = &self.clients.get(id)?.account;
        let (group, _) = block_at_front(bytes, |name| {
            let statement = env.statements.get(account.statement(name)?)?;
            Some((statement.block?, &*statement.query))
        })?;
        let is_begin = matches!(group.block, Block::Begin | Block::Start) && bytes.len() == group.len;
        is_begin.then_some(group.len)
    }

    pub(crate) fn defers_begin(&self, env: &Env, id: ClientId) -> DeferBegin {
        let main = &env.rules.config.main;
        let account = self.clients.get(id).map(|client| &client.account);
        let answers = |replication| replication == Replication::None && !main.disable_pqexec;
        let account = account.filter(|account| answers(account.replication));
        match account.map(|_| self.state.policy.mode) {
            Some(PoolMode::Transaction) => main.defer_begin,
            // Its server is the client's anyway.
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
        let account = &self.clients.get(id)?.account;
        if !self.is_known_as_block(bytes) {
            return None;
        }
        let (group, _) = block_at_front(bytes, |name| {
            let statement = env.statements.get(account.statement(name)?)?;
            Some((statement.block?, &*statement.query))
        })?;
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
        let Some(client) = self.clients.get(id) else { return };
        cx.driver.send(client.conn, &cx.env.scratch);
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
            // It would be that of BEGIN.
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
                // Nothing of it happens.
                link.touched = None;
                true
            }
            _ => false,
        };
        if is_ignored && whole.lacks_sync() {
            cursor.flush(cx.driver, self.servers[server_id].conn);
            self.send_sync(cx, server_id);
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
            self.send_sync(cx, server_id);
        }
    }
}

/// The rest of a Bind without parameters: no formats, no values, no formats of results.
pub(crate) const NO_PARAMETERS: [u8; 6] = [0; 6];

/// Whether the rest of a Bind has no parameters and no formats that matter to a statement without columns. (libpq names a format for
/// all columns.)
fn is_without_parameters(tail: &[u8]) -> bool {
    tail == NO_PARAMETERS || matches!(tail, [0, 0, 0, 0, 0, 1, 0, 0 | 1])
}

/// The group at the front of `bytes`, if it is one statement about a transaction block, in either protocol; or the messages up to the
/// Execute of such a statement, if no Sync follows them. `prepared` knows the client's prepared statements.
fn block_at_front<'a>(
    bytes: &'a [u8],
    prepared: impl Fn(&[u8]) -> Option<(Block, &'a [u8])>,
) -> Option<(BlockGroup, &'a [u8])> {
    /// The stage behind Execute.
    const EXECUTED: u8 = 5;
    let mut group: Option<(Block, &[u8])> = None;
    let mut asked = [0; 4];
    // Parse, Describe of the statement, Bind, Describe of the portal, Execute, Sync: in this order, some left out.
    let mut stage = 0;
    let mut messages = Messages::of(bytes);
    while stage < EXECUTED {
        let message = messages.next().filter(Message::is_whole)?;
        if message.end() > BEGIN_BYTES_MAX {
            return None;
        }
        let body = message.body();
        let reached = match message.tag() {
            tag::QUERY if stage == 0 => {
                let text = Query::parse(body).ok()?.text;
                let block = pgweir_sql::block(text)?;
                return Some((BlockGroup { block, len: message.end(), is_whole: true, asked }, text));
            }
            tag::PARSE => {
                let parse = Parse::parse(body).ok().filter(|parse| parse.name.is_empty())?;
                group = Some((pgweir_sql::block(parse.query)?, parse.query));
                asked[0] = tag::PARSE;
                1
            }
            tag::DESCRIBE => match Describe::parse(body).ok()? {
                Describe { target: Target::Statement, name: b"" } if stage == 1 => {
                    asked[1] = b'S';
                    2
                }
                Describe { target: Target::Portal, name: b"" } if stage == 3 => {
                    asked[3] = tag::DESCRIBE;
                    4
                }
                _ => return None,
            },
            tag::BIND => {
                let head = BindHead::parse_prefix(body)?;
                if !head.portal.is_empty() || !is_without_parameters(body.get(head.tail..)?) {
                    return None;
                }
                if !head.statement.is_empty() {
                    if stage > 0 {
                        return None;
                    }
                    group = Some(prepared(head.statement)?);
                }
                asked[2] = tag::BIND;
                3
            }
            tag::EXECUTE => {
                let execute = Execute::parse(body).ok()?;
                if !execute.portal.is_empty() || execute.max_rows != 0 || stage < 3 {
                    return None;
                }
                EXECUTED
            }
            _ => return None,
        };
        if reached <= stage {
            return None;
        }
        stage = reached;
    }
    let (block, text) = group?;
    let executed = messages.position();
    let sync = messages.next().filter(|message| message.tag() == tag::SYNC);
    if messages.is_malformed() {
        return None;
    }
    let len = sync.map_or(executed, |sync| sync.end());
    Some((BlockGroup { block, len, is_whole: sync.is_some(), asked }, text))
}
