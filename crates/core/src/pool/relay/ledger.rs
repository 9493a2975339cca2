//! Reply accounting: the answers that one server connection owes, with the client that gets each, in order.
//!
//! Every message that is sent to a server and will be answered has an [`Entry`]; bytes from the server are
//! interpreted against the head only. pgweir's own answers take their place in the same order
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

/// The purpose of a hidden statement of pgweir's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A question to a server that has no client, or to a cluster's node that is watched. The server's state says which question it is.
    Question,
    /// Brings the server's parameters to the client's before its statement.
    SyncSession,
    /// Prepares a client's statement on the server before the client uses it.
    Prepare,
    /// Brings the server's parameters to the client's, ahead of the client's statement and in the same packet.
    Replay,
    /// LISTEN or UNLISTEN on the connection that listens for a pool's clients.
    Listen,
    /// NOTIFY on the connection that listens for a pool's clients: it passes on the notifications that it was sent.
    Meet,
    /// Asks for the contents of a client's session, for example when the client's transaction is over.
    Audit,
    /// Asks for the effect of a SET statement, together with [`Purpose::Audit`].
    Probe,
    /// Discards what other clients drew from sequences, before a client asks for what it drew.
    Sequences,
    /// Puts back the parameters that a client started with, after its RESET.
    Restore,
    /// Runs `auth_query` for a client that logs in.
    AuthQuery,
    /// Prepares a client's statement on the server under the client's own name, or removes that name.
    OwnName,
    /// Closes a prepared statement that fell out of the server's list.
    Evict,
    /// Brings the server to a failed transaction, after a BEGIN failed that pgweir had answered before it was sent.
    Reopen,
    /// Repeats a client's exchange: a cancel request of another client hit it, its plan was outdated, or it was queued after a statement
    /// that takes long.
    Rerun,
    /// Asks for the number of a client's transaction, and for a position in the log.
    Number,
    /// Asks whether a transaction was committed whose server was lost after its COMMIT.
    Outcome,
    /// Ends the block in which a client's change runs (`commit_outcome`).
    Commit,
    /// An empty query. Its answer shows that no Sync that was sent before it is still doubtful.
    Fence,
}

/// The receiver of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A client, which gets the answer.
    Client(ClientId),
    /// A client whose next statement depends on this one. Success is hidden; the client gets an error.
    Prerequisite(ClientId),
    /// The answer belongs to pgweir itself: no client gets it.
    Hidden(Purpose),
}

impl Owner {
    /// Returns the client that would be told of an error.
    #[must_use]
    pub fn client(self) -> Option<ClientId> {
        match self {
            Owner::Client(id) | Owner::Prerequisite(id) => Some(id),
            Owner::Hidden(_) => None,
        }
    }
}

/// The kind of a message, which decides which messages answer it and which one ends the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Simple Query: anything, up to ReadyForQuery.
    Query,
    /// FunctionCall: FunctionCallResponse or an error, then ReadyForQuery.
    FunctionCall,
    /// Parse: ParseComplete.
    Parse,
    /// A Parse that is known to fail (the name is in use). pgweir corrects the name in the error.
    ParseAgain,
    /// Bind: BindComplete.
    Bind,
    /// A Bind that is known to fail, in place of a client's Bind of a statement that has other columns or parameters than the client was
    /// told. pgweir corrects the text of the error.
    BindRefused,
    /// Describe of a statement: ParameterDescription, then RowDescription or NoData.
    DescribeStatement,
    /// Describe of a statement whose Parse was sent ahead of it, because pgweir asks for the statement's shape.
    DescribeParsed {
        /// Whether the client itself sent that Parse.
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
    /// CopyDone or CopyFail: it has no answer, and marks where the server stops reading messages as COPY data.
    CopyEnd,
    /// A message that pgweir answers itself when its turn comes.
    Local(Local),
}

/// An answer of pgweir's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local {
    /// ParseComplete, for a statement that the server has already.
    ParseComplete,
    /// CloseComplete, for a named statement that was forgotten. Only pgweir knew that name.
    CloseComplete,
}

/// The ticket of a message about the unnamed statement.
const UNNAMED: u32 = u32::MAX;

/// An answer that the server owes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The receiver of the answer.
    pub owner: Owner,
    /// The kind of the message that will be answered.
    pub kind: Kind,
    /// The prepared statement that the message is about. For Parse (and its local answer) it is forgotten if the Parse fails. For Describe
    /// it is set only if pgweir looks at the answer.
    pub statement: Option<StatementId>,
    /// The ticket of the client's name for a prepared statement. If a Parse fails, the ticket takes the client's name back; if a DEALLOCATE
    /// succeeds, it ends the name. For Bind and Describe the ticket is needed for an error's text, and for what the answer tells the
    /// client.
    pub ticket: u32,
}

impl Entry {
    /// Whether a name of a prepared statement has another meaning if this message succeeds.
    fn changes_names(&self) -> bool {
        self.statement.is_some() || self.kind == Kind::ParseAgain
    }

    /// Returns the client and the kind of the message if the client gets the answer and nothing else follows from it.
    #[inline]
    fn plain(&self) -> Option<(ClientId, Kind)> {
        match self {
            Entry { owner: Owner::Client(client), kind, statement: None, .. } => Some((*client, *kind)),
            _ => None,
        }
    }

    /// Returns an entry that prepares nothing.
    #[must_use]
    pub fn new(owner: Owner, kind: Kind) -> Entry {
        Entry { owner, kind, statement: None, ticket: 0 }
    }

    /// Returns the entry for a Parse or Close of the unnamed statement. If the server skips the message, the unnamed statement does not
    /// change.
    #[must_use]
    pub fn unnamed(owner: Owner, kind: Kind) -> Entry {
        Entry { ticket: UNNAMED, ..Entry::new(owner, kind) }
    }

    /// Whether the message prepares or closes the unnamed statement.
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        self.ticket == UNNAMED
    }

    /// Whether the message prepares a client's statement under the client's own name, in the client's group.
    #[must_use]
    pub fn exposes_name(&self) -> bool {
        matches!((self.kind, self.statement), (Kind::Parse | Kind::Close, None))
            && matches!(self.owner, Owner::Prerequisite(_))
            && self.ticket != 0
            && !self.is_unnamed()
    }
}

/// The fate of a message that was just sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// The server will answer, or [`Ledger::conclude`] will return the local answer when its turn comes.
    Queued,
    /// The server will ignore the message and never answer it.
    Ignored,
}

/// An entry that ends without a message of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Concluded {
    /// The entry's turn has come, and the client must be given this answer.
    Answer(Entry, Local),
    /// Skipped by the server, after an error, up to the next Sync.
    Skipped(Entry),
}

/// The place of a server's message among the answers that the server owes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The receiver of the answer that the message is part of.
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
    /// The answer that the server owed next.
    pub expected: &'static str,
}

/// The ordered list of what a server owes.
#[derive(Default, Debug)]
pub struct Ledger {
    entries: VecDeque<Entry>,
    phase: Phase,
    /// Whether messages of an extended group were sent, but not its Sync.
    group_open: bool,
    /// The number of ReadyForQuery messages that the server owes.
    readies: usize,
    /// The number of groups that were sent as a whole.
    groups: u64,
    /// The number of entries that change which statement is prepared under which name: in the group that is open, and in those before it.
    changes_open: usize,
    changes_before: usize,
    /// Whether the server was asked, since the last message, to send the answers that it owes.
    asked: bool,
    head: Head,
    /// The number of Syncs that were sent inside of a COPY. The server ignores them if the COPY still ran when it read them.
    doubtful: usize,
    /// The owner of these Syncs.
    doubtful_owner: Option<Owner>,
}

/// The progress of the answer to the entry at the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Head {
    /// The answer has not begun, or pgweir did not look.
    #[default]
    Awaited,
    /// A message of the answer has come. This is known only while there are doubtful Syncs.
    Begun,
    /// The answer has begun, and is a COPY FROM STDIN.
    Copies,
}

/// The way in which the server treats the messages that it reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    /// The server executes the messages.
    #[default]
    Normal,
    /// An error occurred in an extended group: the server ignores everything up to the next Sync.
    SkippingToSync,
    /// A COPY FROM STDIN runs, and its end was not sent yet: the server ignores Sync and Flush.
    CopyIn,
}

impl Ledger {
    /// Whether the server owes nothing, and no extended group is open. The server is idle then if its transaction status is idle, too.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.entries.is_empty() && !self.group_open && self.phase == Phase::Normal && self.doubtful == 0
    }

    /// Whether the server owes nothing except answers to doubtful Syncs. A [`Purpose::Fence`] must find out how many of them it answers.
    #[must_use]
    pub fn needs_fence(&self) -> bool {
        self.doubtful > 0 && self.entries.is_empty() && !self.group_open && self.phase == Phase::Normal
    }

    /// Whether the server owes only answers to pgweir's own statements for this purpose, and no group is open.
    #[must_use]
    pub fn only_owes(&self, purpose: Purpose) -> bool {
        self.entries.iter().all(|entry| entry.owner == Owner::Hidden(purpose))
            && self.is_between_groups()
            && self.doubtful == 0
    }

    /// Whether the server owes no client anything but answers to doubtful Syncs, and no group is open.
    #[must_use]
    pub fn owes_no_client(&self) -> bool {
        !self.owes_client() && self.is_between_groups()
    }

    /// Whether no message of a client is under way: the server owes nothing, or only answers to pgweir's own statements. Those may be the
    /// beginning of a client's group ([`Purpose::Replay`]).
    #[must_use]
    pub fn is_clear_of_clients(&self) -> bool {
        let replays = self.head().is_some_and(|head| head.owner == Owner::Hidden(Purpose::Replay));
        !self.owes_client() && self.doubtful == 0 && (self.is_between_groups() || replays)
    }

    /// Whether the server owes the answer to a message of a client, or to one that pgweir has sent ahead of it.
    #[must_use]
    pub fn owes_client(&self) -> bool {
        self.entries.iter().any(|entry| entry.owner.client().is_some())
    }

    /// Whether every group that was sent is whole: one more group may follow, from any client.
    #[must_use]
    pub fn is_between_groups(&self) -> bool {
        !self.group_open && self.phase == Phase::Normal
    }

    /// Hides the answers that are owed up to the next ReadyForQuery: no client gets them.
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

    /// Whether the group that is being sent has itself prepared or closed the unnamed statement.
    #[must_use]
    pub fn is_unnamed_in_group(&self) -> bool {
        self.entries.iter().rev().take_while(|entry| !entry.kind.ends_group()).any(Entry::is_unnamed)
    }

    /// Whether the server certainly executes the message that was sent last: no message ahead of it could fail.
    #[must_use]
    pub fn is_last_certain(&self) -> bool {
        self.entries.len() == 1 && self.phase == Phase::Normal && self.doubtful == 0
    }

    /// Hides the answers that are owed to this client: they are dropped when they come.
    pub fn disown(&mut self, client: ClientId, purpose: Purpose) {
        for entry in self.entries.iter_mut().filter(|entry| entry.owner.client() == Some(client)) {
            entry.owner = Owner::Hidden(purpose);
        }
    }

    /// Whether the server owes nothing at present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of entries that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entry whose answer comes next.
    #[must_use]
    pub fn head(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// Returns the client that gets the next answer, and the kind of its message. `None` if the caller must do more than pass on the
    /// answer.
    #[inline]
    #[must_use]
    pub fn plain_head(&self) -> Option<(ClientId, Kind)> {
        if self.doubtful > 0 { None } else { self.entries.front()?.plain() }
    }

    /// Ends the answer that [`Ledger::plain_head`] returned, whose last message came, and returns what `plain_head` would return next. If
    /// the caller must do more than pass on the answer, this returns `None` and changes nothing: then the caller must call
    /// [`Ledger::accept`].
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

    /// Whether the server ignores the messages that it is sent, up to the next Sync.
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        self.phase == Phase::SkippingToSync
    }

    /// Whether the server will read the next message in the transaction status that it reported last.
    #[must_use]
    pub fn is_status_known(&self) -> bool {
        self.readies == 0
    }

    /// Whether a group that was sent earlier will, if it does not fail, change which statements are prepared. A name of a prepared
    /// statement in a later group may then mean one statement or another.
    #[must_use]
    pub fn awaits_earlier_changes(&self) -> bool {
        self.changes_before > 0
    }

    /// Whether a message that exposes a name ([`Entry::exposes_name`]) was sent last and has not been answered. If it fails, the server
    /// ignores the message that it was sent for.
    #[must_use]
    pub fn is_behind_names(&self) -> bool {
        self.group_open && self.entries.back().is_some_and(Entry::exposes_name)
    }

    /// Returns the number of the group that is being sent.
    #[must_use]
    pub fn group(&self) -> u64 {
        self.groups
    }

    /// Returns the number of groups that were answered as a whole.
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

    /// Whether the server waits for COPY data from its client.
    #[must_use]
    pub fn is_copying_in(&self) -> bool {
        self.phase == Phase::CopyIn
    }

    /// Notes that a Flush asks the server for the answers that it may hold back. Returns `true` if the caller must send the Flush: none was
    /// sent since the last message.
    pub fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// Notes that a message was sent (or, for [`Kind::Local`], would have been), and returns its fate. The caller must call
    /// [`Ledger::conclude`] next.
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

    /// Returns the next entry that ends without a message of the server. After each [`Ledger::push`] and each [`Ledger::accept`] the caller
    /// must repeat this until it returns `None`.
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

    /// Whether an entry may end without a message of the server. If so, the caller must call [`Ledger::conclude`].
    #[inline]
    #[must_use]
    pub fn may_conclude(&self) -> bool {
        self.phase == Phase::SkippingToSync
            || self.entries.front().is_some_and(|head| matches!(head.kind, Kind::Local(_) | Kind::CopyEnd))
    }

    /// Takes a ReadyForQuery of the server, and returns its receiver.
    ///
    /// # Errors
    ///
    /// [`Unexpected`] if the head of the ledger did not ask for ReadyForQuery.
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
                // The statement ended although its COPY data did not: the server stopped reading it.
                self.phase = Phase::Normal;
            }
        }
        Ok(Accepted { owner: head.owner, ended: ends.then_some(head) })
    }

    /// Takes a message that comes while Syncs are doubtful. Returns `Some` if it answers one of them; the client gets such an answer as
    /// PostgreSQL's.
    ///
    /// If nothing is owed, or if something else must answer the head first, ReadyForQuery answers a doubtful Sync. Before the ReadyForQuery
    /// of a certain Sync, that of a doubtful one is as good. Any other message is about messages that were sent after the COPY, or is the
    /// COPY's success: then no doubtful Sync will be answered any more. Only an error of the COPY itself leaves the Syncs doubtful.
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
                if head.exposes_name() {
                    self.give_sync(head.owner);
                }
                Accepted { owner: head.owner, ended: Some(head) }
            }
        }
    }

    /// Gives this client the answer to the Sync that pgweir has sent behind the client's Query, because an error has PostgreSQL ignore
    /// that Query.
    #[cold]
    fn give_sync(&mut self, owner: Owner) {
        let Owner::Prerequisite(client) = owner else { return };
        let sync = self.entries.iter_mut().find(|entry| entry.kind == Kind::Sync);
        if let Some(sync) = sync.filter(|sync| sync.owner == Owner::Hidden(Purpose::OwnName)) {
            sync.owner = Owner::Client(client);
        }
    }

    /// Notes that COPY FROM STDIN began. While it copies, the server ignores the Syncs right after it; any other message except for the end
    /// of the data ends the COPY in one way or another. pgweir's own answers keep their place: the server never saw the messages that they
    /// answer.
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
            // Behind the Sync of the COPY another group may have begun.
            let begins =
                |entry: &Entry| !matches!(entry.kind, Kind::CopyEnd | Kind::Local(Local::CloseComplete));
            let behind_last_end = self.entries.iter().rev().take_while(|entry| !entry.kind.ends_group());
            self.group_open = behind_last_end.into_iter().any(begins);
        }
    }

    /// Removes and returns all entries, for a connection that ends.
    pub fn drain(&mut self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.drain(..)
    }

    /// Returns the entries, in the order in which the server owes the answers.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Returns the entries for clients' messages and for their prerequisites, in the order in which the server owes the answers.
    pub fn of_clients(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !matches!(entry.owner, Owner::Hidden(_)))
    }
}

impl Kind {
    /// Whether the answer to this message ends with ReadyForQuery.
    #[inline]
    #[must_use]
    pub fn ends_group(self) -> bool {
        matches!(self, Kind::Query | Kind::FunctionCall | Kind::Sync)
    }

    /// Whether a server's message of this type ends an ordinary answer to it. `None` if the message is no part of such an answer.
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

    /// Returns the name of the message that ends the answer, for an error text.
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
