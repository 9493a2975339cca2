//! Reply accounting: what one server connection owes, to which client, in order.
//!
//! Every message that is sent to a server and will be answered has an [`Entry`]; bytes from the server are
//! interpreted against the head only. Answers we give ourselves take their place in the same order
//! ([`Kind::Local`]). This file is a pure state machine and the only one that decides which client an answer
//! belongs to; it must never see a connection.
//!
//! The rules are those of PostgreSQL's protocol chapter ("Message Flow") and of `postgres.c`
//! (`ignore_till_sync`) and `copyfromparse.c` (Sync and Flush are ignored inside COPY FROM STDIN). If a COPY
//! fails, the ledger cannot know whether the server still copied when it read a Sync that was sent inside of
//! it: the number of those that it answers is seen only when it answers something else ([`Purpose::Fence`]).

use std::collections::VecDeque;

use pgweir_wire::backend::tag;

use crate::ids::{ClientId, StatementId};

/// What a hidden statement of our own is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A question to a server that has no client, or to a cluster's node that is watched. The server's state says which question it is.
    Question,
    /// Brings the server's parameters to the client's before its statement.
    SyncSession,
    /// The same: prepares a statement of the client's.
    Prepare,
    /// The same as [`Purpose::SyncSession`], ahead of the client's statement and in the same packet.
    Replay,
    /// On the connection that listens for a pool's clients: LISTEN and UNLISTEN, and nothing but a mark in its answers.
    Listen,
    /// On the same connection: it passes on what it was notified of.
    Meet,
    /// Asks what the session of a client holds, for example when its transaction is over.
    Audit,
    /// Asks what a SET statement does, with [`Purpose::Audit`].
    Probe,
    /// Discards what other clients drew from sequences, before a client asks for what it drew.
    Sequences,
    /// Puts back what a client started with, after its RESET.
    Restore,
    /// `auth_query`, for a client that logs in.
    AuthQuery,
    /// Has a server know what its client prepared by the client's own name, or forget that.
    OwnName,
    /// Close of a prepared statement that fell out of the server's list.
    Evict,
    /// After a BEGIN that was answered before it was sent, and that failed: brings the server to a failed transaction.
    Reopen,
    /// Asks once more what a client asked for: a cancel request of another client hit it, it was outdated, or
    /// it was queued behind a statement that takes long.
    Rerun,
    /// Asks for the number of a client's transaction, and for a position in the log.
    Number,
    /// Asks what became of a transaction whose server was lost behind its COMMIT.
    Outcome,
    /// Ends the block in which a client's change runs (`commit_outcome`).
    Commit,
    /// Nothing: when it is answered, no Sync that was sent before it is still doubtful.
    Fence,
}

/// The receiver of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A client; the answer is passed on.
    Client(ClientId),
    /// A client with a statement that needs this one: success is hidden, an error is the client's.
    Prerequisite(ClientId),
    /// No client: the answer is ours.
    Hidden(Purpose),
}

impl Owner {
    /// The client that would be told of an error.
    #[must_use]
    pub fn client(self) -> Option<ClientId> {
        match self {
            Owner::Client(id) | Owner::Prerequisite(id) => Some(id),
            Owner::Hidden(_) => None,
        }
    }
}

/// What was asked, which decides which messages answer it and which one ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Simple Query: anything, up to ReadyForQuery.
    Query,
    /// FunctionCall: FunctionCallResponse or an error, then ReadyForQuery.
    FunctionCall,
    /// Parse: ParseComplete.
    Parse,
    /// Parse that is known to fail (the name is in use); the name in the error is ours to correct.
    ParseAgain,
    /// Bind: BindComplete.
    Bind,
    /// A Bind that is known to fail, in place of a client's Bind of a statement that has other columns or parameters than the client was
    /// told; the text of the error is ours to correct.
    BindRefused,
    /// Describe of a statement: ParameterDescription, then RowDescription or NoData.
    DescribeStatement,
    /// The same for a statement whose Parse went ahead of it: pgweir asks for its shape. `own`: that Parse was a client's own.
    DescribeParsed {
        /// See there.
        own: bool,
    },
    /// Describe of a portal: RowDescription or NoData.
    DescribePortal,
    /// Execute: rows or COPY, then CommandComplete, EmptyQueryResponse or PortalSuspended.
    Execute,
    /// Close: CloseComplete.
    Close,
    /// Sync: ReadyForQuery.
    Sync,
    /// CopyDone or CopyFail: it has no answer; it marks where the server stops parse_context COPY data.
    CopyEnd,
    /// Answered by us, in its turn.
    Local(Local),
}

/// An answer of our own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local {
    /// The server has the statement already.
    ParseComplete,
    /// A named statement was forgotten; only we knew that name.
    CloseComplete,
}

/// In place of a name's ticket: the message is about the unnamed statement.
const UNNAMED: u32 = u32::MAX;

/// One thing the server owes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The receiver of the answer.
    pub owner: Owner,
    /// What was asked.
    pub kind: Kind,
    /// For Parse (and its local answer): the statement, to be forgotten if it fails. For Describe: the statement, if pgweir looks at the
    /// answer.
    pub statement: Option<StatementId>,
    /// For Parse of a client: takes the client's name back if it fails. For a DEALLOCATE: ends the name if it succeeds. For Bind and
    /// Describe: the name that they were about, for an error's text, and for what the answer tells the client.
    pub ticket: u32,
}

impl Entry {
    /// If it succeeds, a name of a prepared statement means something else than before.
    fn changes_names(&self) -> bool {
        self.statement.is_some() || self.kind == Kind::ParseAgain
    }

    /// See [`Ledger::plain_head`].
    #[inline]
    fn plain(&self) -> Option<(ClientId, Kind)> {
        match self {
            Entry { owner: Owner::Client(client), kind, statement: None, .. } => Some((*client, *kind)),
            _ => None,
        }
    }

    /// An entry that prepares nothing.
    #[must_use]
    pub fn new(owner: Owner, kind: Kind) -> Entry {
        Entry { owner, kind, statement: None, ticket: 0 }
    }

    /// Parse or Close of the unnamed statement: if it is skipped, that statement stays what it was.
    #[must_use]
    pub fn unnamed(owner: Owner, kind: Kind) -> Entry {
        Entry { ticket: UNNAMED, ..Entry::new(owner, kind) }
    }

    /// See [`Entry::unnamed`].
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        self.ticket == UNNAMED
    }
}

/// What became of a message that was just sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// The server will answer, or [`Ledger::settle`] will give the local answer in its turn.
    Queued,
    /// The server will ignore it and never answer.
    Ignored,
}

/// An entry that ends without a message of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Concluded {
    /// Its turn has come: give this answer.
    Answer(Entry, Local),
    /// Skipped by the server, after an error, up to the next Sync.
    Skipped(Entry),
}

/// What a message of the server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The receiver of the answer that it is part of.
    pub owner: Owner,
    /// The entry, if this message ended it.
    pub ended: Option<Entry>,
}

/// The server sent a message that no client asked for. The connection cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("server sent message '{}' where {expected} was due", tag.escape_ascii())]
pub struct Unexpected {
    /// The message's type byte.
    pub tag: u8,
    /// What the head of the ledger asked for.
    pub expected: &'static str,
}

/// The ordered list of what a server owes.
#[derive(Default, Debug)]
pub struct Ledger {
    entries: VecDeque<Entry>,
    phase: Phase,
    /// Messages of an extended group were sent and its Sync was not.
    group_open: bool,
    /// ReadyForQuery messages that are owed.
    readies: usize,
    /// Groups that were sent as a whole.
    groups: u64,
    /// Entries that change which statement is prepared under which name: in the group that is open, and in
    /// those before it.
    changes_open: usize,
    changes_before: usize,
    /// Since the last message the server was asked to send what it owes.
    asked: bool,
    head: Head,
    /// Syncs that were sent inside of a COPY: ignored if it still ran when the server read them.
    doubtful: usize,
    /// The owner of these Syncs.
    doubtful_owner: Option<Owner>,
}

/// How far the answer of the head has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Head {
    /// Nothing of it has come, or pgweir did not look.
    #[default]
    Awaited,
    /// Something has come; known only while there are doubtful Syncs.
    Begun,
    /// It is a COPY FROM STDIN, and has begun.
    Copies,
}

/// What the server does with the messages it reads, if it does not simply execute them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    /// Executes them.
    #[default]
    Normal,
    /// An error in an extended group: ignores everything up to the next Sync.
    SkippingToSync,
    /// COPY FROM STDIN runs and its end was not sent yet: Sync and Flush are ignored.
    CopyIn,
}

impl Ledger {
    /// Nothing is owed, and no extended group is open: the server rests, if its transaction status is idle too.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.entries.is_empty() && !self.group_open && self.phase == Phase::Normal && self.doubtful == 0
    }

    /// Nothing is owed except answers to doubtful Syncs: a [`Purpose::Fence`] tells.
    #[must_use]
    pub fn needs_fence(&self) -> bool {
        self.doubtful > 0 && self.entries.is_empty() && !self.group_open && self.phase == Phase::Normal
    }

    /// Nothing is owed but answers to questions of ours for this purpose, and no group is open.
    #[must_use]
    pub fn only_owes(&self, purpose: Purpose) -> bool {
        self.entries.iter().all(|entry| entry.owner == Owner::Hidden(purpose))
            && self.is_between_groups()
            && self.doubtful == 0
    }

    /// Nothing is owed to a client but answers to doubtful Syncs, and no group is open.
    #[must_use]
    pub fn owes_no_client(&self) -> bool {
        self.owes_only_ours() && self.is_between_groups()
    }

    /// Nothing that a client has sent is under way: nothing is, or statements of ours, which may be the beginning of a group of the
    /// client's ([`Purpose::Replay`]).
    #[must_use]
    pub fn is_clear_of_clients(&self) -> bool {
        let replays = self.head().is_some_and(|head| head.owner == Owner::Hidden(Purpose::Replay));
        self.owes_only_ours() && self.doubtful == 0 && (self.is_between_groups() || replays)
    }

    fn owes_only_ours(&self) -> bool {
        self.entries.iter().all(|entry| entry.owner.client().is_none())
    }

    /// Everything that was sent is whole: one more group may follow, from any client.
    #[must_use]
    pub fn is_between_groups(&self) -> bool {
        !self.group_open && self.phase == Phase::Normal
    }

    /// From here on, no client gets what is owed up to the next ReadyForQuery.
    pub fn disown_head(&mut self, purpose: Purpose) {
        for entry in &mut self.entries {
            if !matches!(entry.owner, Owner::Hidden(_)) {
                entry.owner = Owner::Hidden(purpose);
            }
            if entry.kind.ends_group() {
                return;
            }
        }
    }

    /// The group that is being sent says itself which unnamed statement it uses.
    #[must_use]
    pub fn is_unnamed_in_group(&self) -> bool {
        self.entries.iter().rev().take_while(|entry| !entry.kind.ends_group()).any(Entry::is_unnamed)
    }

    /// The server certainly executes the message that was sent last: nothing that could fail was sent ahead of it.
    #[must_use]
    pub fn is_last_certain(&self) -> bool {
        self.entries.len() == 1 && self.phase == Phase::Normal && self.doubtful == 0
    }

    /// From here on, everything that is owed to this client is dropped when it is due.
    pub fn disown(&mut self, client: ClientId, purpose: Purpose) {
        for entry in self.entries.iter_mut().filter(|entry| entry.owner.client() == Some(client)) {
            entry.owner = Owner::Hidden(purpose);
        }
    }

    /// Nothing is owed right now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries not yet ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry whose answer comes next.
    #[must_use]
    pub fn head(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// The client that the next answer is for, and what it asked for; `None` if more follows from the answer
    /// than that the client gets it.
    #[inline]
    #[must_use]
    pub fn plain_head(&self) -> Option<(ClientId, Kind)> {
        if self.doubtful > 0 { None } else { self.entries.front()?.plain() }
    }

    /// The last message of what [`Ledger::plain_head`] told of came: what it would tell next. `None`, and nothing is noted, if
    /// more follows from that: then the caller must ask [`Ledger::accept`].
    #[inline]
    pub fn end_plain(&mut self) -> Option<Option<(ClientId, Kind)>> {
        let next = self.entries.get(1);
        // An answer of ours may be due next.
        let settles = |next: &Entry| matches!(next.kind, Kind::Local(_) | Kind::CopyEnd);
        if self.phase != Phase::Normal || next.is_some_and(settles) {
            return None;
        }
        let next = next.and_then(Entry::plain);
        // It ends no group and changes no name: nothing counts it.
        self.head = Head::Awaited;
        let ended = self.entries.pop_front();
        debug_assert!(ended.is_some_and(|entry| !entry.kind.ends_group() && !entry.changes_names()));
        Some(next)
    }

    /// The server ignores what it is sent, up to the next Sync.
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        self.phase == Phase::SkippingToSync
    }

    /// The transaction status that the server reported last is the one in which the next message will be read.
    #[must_use]
    pub fn is_status_known(&self) -> bool {
        self.readies == 0
    }

    /// A group that was sent earlier will, if it does not fail, change what is prepared: what is said of prepared statements
    /// in a later group may mean one thing or another.
    #[must_use]
    pub fn awaits_earlier_changes(&self) -> bool {
        self.changes_before > 0
    }

    /// The number of the group that is being sent.
    #[must_use]
    pub fn group(&self) -> u64 {
        self.groups
    }

    /// How far the answers are: so many groups are answered as a whole.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.groups - self.readies as u64
    }

    fn enter(&mut self, entry: Entry) {
        if entry.kind.ends_group() {
            self.groups += 1;
            self.readies += 1;
        } else {
            self.changes_open += usize::from(entry.changes_names());
        }
        if entry.kind == Kind::Sync {
            self.changes_before += std::mem::take(&mut self.changes_open);
        }
        self.entries.push_back(entry);
    }

    #[inline]
    fn leave(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.head = Head::Awaited;
        match entry.kind {
            Kind::Query | Kind::FunctionCall | Kind::Sync => self.readies -= 1,
            _ if !entry.changes_names() => {}
            _ if self.changes_before > 0 => self.changes_before -= 1,
            _ => self.changes_open -= 1,
        }
        Some(entry)
    }

    /// The server waits for COPY data from its client.
    #[must_use]
    pub fn is_copying_in(&self) -> bool {
        self.phase == Phase::CopyIn
    }

    /// The server must be asked (Flush) to send what it owes and may keep back until then: `true` if it was
    /// not asked since the last message.
    pub fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// Notes that a message was sent (or, for [`Kind::Local`], would have been). [`Ledger::settle`] must be called next.
    #[inline]
    pub fn push(&mut self, entry: Entry) -> Pushed {
        self.asked = false;
        match (self.phase, entry.kind) {
            (Phase::SkippingToSync, Kind::Sync) => self.phase = Phase::Normal,
            (Phase::SkippingToSync, _) => return Pushed::Ignored,
            (Phase::CopyIn, Kind::CopyEnd) => {
                self.phase = Phase::Normal;
                return Pushed::Ignored;
            }
            (Phase::CopyIn, Kind::Sync) => {
                self.doubt(1, entry.owner);
                return Pushed::Ignored;
            }
            // The server never sees it.
            (Phase::CopyIn, Kind::Local(_)) => {}
            // The server reads it when it copies no longer, if at all.
            (Phase::CopyIn, _) => self.phase = Phase::Normal,
            (Phase::Normal, _) => {}
        }
        match entry.kind {
            // A simple query or a function call ends the transaction of the extended messages before it.
            Kind::Sync | Kind::Query | Kind::FunctionCall => self.group_open = false,
            Kind::CopyEnd if self.entries.is_empty() => return Pushed::Ignored,
            // PostgreSQL begins a transaction for Parse, and none for Close.
            Kind::CopyEnd | Kind::Local(Local::CloseComplete) => {}
            _ => self.group_open = true,
        }
        self.enter(entry);
        Pushed::Queued
    }

    /// The next entry that ends without the server's help. To be called until `None` after each [`Ledger::push`] and
    /// each [`Ledger::accept`].
    #[inline]
    pub fn conclude(&mut self) -> Option<Concluded> {
        loop {
            let head = *self.entries.front()?;
            if self.phase == Phase::SkippingToSync {
                if head.kind == Kind::Sync {
                    self.phase = Phase::Normal;
                    return None;
                }
                self.leave();
                return Some(Concluded::Skipped(head));
            }
            match head.kind {
                Kind::CopyEnd => {
                    self.leave();
                }
                Kind::Local(local) => {
                    self.leave();
                    return Some(Concluded::Answer(head, local));
                }
                _ => return None,
            }
        }
    }

    /// An entry may end without the server's help: [`Ledger::conclude`] is to be called.
    #[inline]
    #[must_use]
    pub fn may_conclude(&self) -> bool {
        self.phase == Phase::SkippingToSync
            || self.entries.front().is_some_and(|head| matches!(head.kind, Kind::Local(_) | Kind::CopyEnd))
    }

    /// As [`Ledger::accept`], of ReadyForQuery: the receiver of the answer.
    ///
    /// # Errors
    /// As [`Ledger::accept`].
    #[inline]
    pub fn accept_ready(&mut self) -> Result<Owner, Unexpected> {
        if self.doubtful == 0
            && self.phase == Phase::Normal
            && let Some(&Entry { owner, kind, .. }) = self.entries.front()
            && kind.ends_group()
        {
            self.leave();
            return Ok(owner);
        }
        Ok(self.accept(tag::READY)?.owner)
    }

    /// Takes a message of the server that is part of an answer (not NoticeResponse, ParameterStatus or
    /// NotificationResponse, which may come at any time).
    ///
    /// # Errors
    /// [`Unexpected`] when the head of the ledger did not ask for such a message.
    #[inline]
    pub fn accept(&mut self, message: u8) -> Result<Accepted, Unexpected> {
        if self.doubtful > 0
            && let Some(accepted) = self.accept_doubtful(message)
        {
            return Ok(accepted);
        }
        let Some(head) = self.entries.front().copied() else {
            return Err(Unexpected { tag: message, expected: "nothing" });
        };
        if message == tag::ERROR {
            return Ok(self.accept_error(head));
        }
        let ends = match (head.kind, message) {
            (Kind::Query, tag::READY) => true,
            (
                Kind::Query,
                tag::ROW_DESCRIPTION
                | tag::DATA_ROW
                | tag::COMMAND_COMPLETE
                | tag::EMPTY_QUERY
                | tag::COPY_OUT
                | tag::COPY_BOTH
                | tag::COPY_DATA
                | tag::COPY_DONE,
            )
            | (
                Kind::Execute,
                tag::DATA_ROW | tag::COPY_OUT | tag::COPY_BOTH | tag::COPY_DATA | tag::COPY_DONE,
            )
            | (Kind::DescribeStatement | Kind::DescribeParsed { .. }, tag::PARAMETER_DESCRIPTION)
            | (Kind::FunctionCall, tag::FUNCTION_RESPONSE) => false,
            (Kind::Query | Kind::Execute, tag::COPY_IN) => {
                self.enter_copy_in(head.owner);
                false
            }
            (Kind::Execute, tag::COMMAND_COMPLETE | tag::EMPTY_QUERY | tag::PORTAL_SUSPENDED)
            | (Kind::Parse | Kind::ParseAgain, tag::PARSE_COMPLETE)
            | (Kind::Bind, tag::BIND_COMPLETE)
            | (
                Kind::DescribeStatement | Kind::DescribeParsed { .. } | Kind::DescribePortal,
                tag::ROW_DESCRIPTION | tag::NO_DATA,
            )
            | (Kind::Close, tag::CLOSE_COMPLETE)
            | (Kind::Sync | Kind::FunctionCall, tag::READY) => true,
            (kind, _) => return Err(Unexpected { tag: message, expected: kind.awaited() }),
        };
        if ends {
            self.leave();
            if self.phase == Phase::CopyIn {
                // The statement ended although its COPY data did not: the server stopped parse_context it.
                self.phase = Phase::Normal;
            }
        }
        Ok(Accepted { owner: head.owner, ended: ends.then_some(head) })
    }

    /// A message that comes while Syncs are doubtful: `Some` if it answers one of them, which the client gets
    /// as PostgreSQL's.
    ///
    /// If nothing is owed, or if something else must answer the head first, ReadyForQuery answers a doubtful
    /// Sync; before that of a Sync that is certain, it is as good as that one. Whatever else comes is about
    /// what was sent after the COPY, or is the COPY's success: none of them will be answered any more. Only
    /// an error of the COPY itself says nothing.
    fn accept_doubtful(&mut self, message: u8) -> Option<Accepted> {
        let head = self.entries.front();
        let of_its_own = match head {
            None => true,
            Some(Entry { kind: Kind::Sync, .. }) => false,
            Some(_) => self.head == Head::Awaited,
        };
        if message == tag::READY {
            let owner = self.doubtful_owner.filter(|_| of_its_own)?;
            self.doubtful -= 1;
            if head.is_none() {
                self.phase = Phase::Normal;
                self.group_open = false;
            }
            return Some(Accepted { owner, ended: None });
        }
        if head.is_some() {
            let fails = message == tag::ERROR && self.head == Head::Copies;
            self.doubtful = if fails { self.doubtful } else { 0 };
            if self.head == Head::Awaited {
                self.head = Head::Begun;
            }
        }
        None
    }

    fn doubt(&mut self, syncs: usize, owner: Owner) {
        self.doubtful += syncs;
        self.doubtful_owner = Some(owner);
    }

    fn accept_error(&mut self, head: Entry) -> Accepted {
        if self.phase == Phase::CopyIn {
            self.phase = Phase::Normal;
        }
        match head.kind {
            // ReadyForQuery follows by itself.
            Kind::Query | Kind::FunctionCall | Kind::Sync => Accepted { owner: head.owner, ended: None },
            _ => {
                self.leave();
                self.phase = Phase::SkippingToSync;
                Accepted { owner: head.owner, ended: Some(head) }
            }
        }
    }

    /// COPY FROM STDIN began. While it copies, the server ignores the Syncs right after it; anything else
    /// that it gets, except for the end of the data, ends the COPY in one way or another. Answers of our own
    /// stay where they are: the server never saw the messages that they answer.
    fn enter_copy_in(&mut self, owner: Owner) {
        let Some(head) = self.entries.pop_front() else { return };
        let (mut copies, mut syncs) = (true, 0);
        self.entries.retain(|entry| match entry.kind {
            Kind::Sync if copies => {
                syncs += 1;
                false
            }
            Kind::CopyEnd if copies => {
                copies = false;
                false
            }
            Kind::Local(_) => true,
            _ => {
                copies = false;
                true
            }
        });
        self.entries.push_front(head);
        self.readies -= syncs;
        self.head = Head::Copies;
        if syncs > 0 {
            self.doubt(syncs, owner);
        }
        if copies {
            self.phase = Phase::CopyIn;
        }
        if self.entries.front().is_some_and(|head| head.kind == Kind::Execute) {
            self.group_open = !self.entries.iter().any(|entry| entry.kind == Kind::Sync);
        }
    }

    /// What is owed, for a connection that ends.
    pub fn drain(&mut self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.drain(..)
    }

    /// What is owed, in order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// What is owed for clients' messages, or as prerequisites of these, in order.
    pub fn of_clients(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !matches!(entry.owner, Owner::Hidden(_)))
    }
}

impl Kind {
    /// It is answered by ReadyForQuery in the end.
    #[inline]
    #[must_use]
    pub fn ends_group(self) -> bool {
        matches!(self, Kind::Query | Kind::FunctionCall | Kind::Sync)
    }

    /// Whether this message ends an ordinary answer to it; `None`: it is no part of one.
    #[inline]
    #[must_use]
    pub fn is_ended_by(self, message: u8) -> Option<bool> {
        match (self, message) {
            (Kind::Query, tag::ROW_DESCRIPTION | tag::DATA_ROW | tag::COMMAND_COMPLETE | tag::COPY_DATA)
            | (Kind::Execute, tag::DATA_ROW | tag::COPY_DATA) => Some(false),
            (Kind::Execute, tag::COMMAND_COMPLETE | tag::PORTAL_SUSPENDED)
            | (Kind::Parse, tag::PARSE_COMPLETE)
            | (Kind::Bind, tag::BIND_COMPLETE)
            | (Kind::DescribePortal, tag::ROW_DESCRIPTION | tag::NO_DATA) => Some(true),
            _ => None,
        }
    }

    /// What ends it, for an error text.
    fn awaited(self) -> &'static str {
        match self {
            Kind::Query => "the answer to a query",
            Kind::FunctionCall => "FunctionCallResponse",
            Kind::Parse | Kind::ParseAgain => "ParseComplete",
            Kind::Bind => "BindComplete",
            Kind::BindRefused => "an error",
            Kind::DescribeStatement | Kind::DescribeParsed { .. } => "ParameterDescription",
            Kind::DescribePortal => "RowDescription",
            Kind::Execute => "the answer to Execute",
            Kind::Close => "CloseComplete",
            Kind::Sync => "ReadyForQuery",
            Kind::CopyEnd | Kind::Local(_) => "nothing",
        }
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
