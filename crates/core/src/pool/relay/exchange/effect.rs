//! The effect of messages on the transaction block that they run in or begin: whether the loss of their server may have lost a change.

use pgweir_sql::{Block, Statements, Traits, Verb};
use pgweir_wire::Messages;
use pgweir_wire::frontend::{BindHead, Parse, Query, tag};

use crate::pool::catalog::reach::Reach;
use crate::pool::prepared::statements::Statement;
use crate::pool::prepared::texts::Texts;

/// The greatest effect that a text may have on the transaction block that it runs in, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Effect {
    /// The text has no effect: PostgreSQL answers it even in a failed transaction.
    None,
    /// The text makes no change that a commit would make permanent.
    Reads,
    /// The text makes a change that a commit would make permanent.
    Writes,
    /// The block may end and continue as another block (AND CHAIN).
    Chains,
    /// The block may be committed; or the answer may be one that an error cannot be put into at any point (COPY).
    Commits,
}

impl Effect {
    /// CALL and DO cannot end a transaction block. A ROLLBACK, whatever it rolls back to, makes nothing of it last.
    fn of(text: &[u8], traits: &Traits, certainly_reads: bool) -> Effect {
        let is_one = matches!(traits.statements, Statements::One | Statements::None);
        match traits.verb {
            Verb::Empty => Effect::None,
            Verb::Commit | Verb::Prepare | Verb::Copy | Verb::Unknown => Effect::Commits,
            _ if !is_one => Effect::Commits,
            Verb::Rollback if names_chain(text) => Effect::Chains,
            Verb::Begin
            | Verb::Rollback
            | Verb::Savepoint
            | Verb::Set
            | Verb::Reset
            | Verb::Show
            | Verb::Deallocate => Effect::Reads,
            _ if certainly_reads => Effect::Reads,
            _ => Effect::Writes,
        }
    }

    /// Returns the effect of a statement that was prepared before.
    fn of_prepared(statement: &Statement, reach: &Reach) -> Effect {
        match &statement.traits {
            Some(traits) => Effect::of(&statement.query, traits, statement.reads(reach).certainly()),
            None => Effect::Commits,
        }
    }
}

/// Whether the text is ROLLBACK AND CHAIN; a savepoint may be called so, too.
fn names_chain(text: &[u8]) -> bool {
    text.windows(5).any(|word| word.eq_ignore_ascii_case(b"chain"))
}

/// The progress of a ROLLBACK that is sent after other statements of its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Rollback {
    /// No ROLLBACK was sent.
    #[default]
    None,
    /// The unnamed statement is a ROLLBACK.
    Parsed,
    /// The unnamed portal is a ROLLBACK.
    Bound,
    /// The ROLLBACK was executed: later messages run outside the block.
    Executed,
    /// The group with the ROLLBACK was sent as a whole.
    Sent,
}

impl Rollback {
    /// Returns the progress after a message. `block` is the block statement that the message prepares, binds or, as a Query,
    /// executes. `None`: the message may run outside the block.
    fn behind(self, message: u8, is_unnamed: bool, block: Option<Block>) -> Option<Rollback> {
        let ends = block == Some(Block::Rollback);
        Some(match (self, message) {
            (_, tag::FLUSH) | (Rollback::Sent, tag::SYNC) => self,
            (Rollback::Executed, tag::SYNC) => Rollback::Sent,
            (Rollback::Executed | Rollback::Sent, _) => return None,
            (_, tag::QUERY) if ends => Rollback::Sent,
            (_, tag::PARSE) if ends && is_unnamed => Rollback::Parsed,
            (_, tag::BIND) if ends && !is_unnamed => return None,
            (_, tag::BIND) if ends => Rollback::Bound,
            (Rollback::Bound, tag::EXECUTE) if is_unnamed => Rollback::Executed,
            (Rollback::Parsed | Rollback::Bound, tag::DESCRIBE) => self,
            _ => Rollback::None,
        })
    }
}

/// The effects of messages.
pub(crate) struct Effects {
    /// The greatest of them.
    pub(crate) most: Effect,
    /// Whether the first of the statements begins a transaction block.
    pub(crate) opens: bool,
    /// The number of statements that are executed.
    pub(crate) executes: u32,
}

impl Effects {
    /// The effects of no message.
    pub(crate) const NOTHING: Effects = Effects { most: Effect::None, opens: false, executes: 0 };
    /// The effects of messages that cannot be read.
    pub(crate) const ALL: Effects = Effects { most: Effect::Commits, opens: false, executes: 0 };

    /// A statement is executed, which may be the beginning or the end of a block.
    fn bind(&mut self, block: Option<Block>) {
        self.executes += 1;
        if self.executes == 1 {
            self.opens = matches!(block, Some(Block::Begin | Block::Start));
        }
    }
}

/// The progress of a client's messages in a transaction block, as far as it says what later messages do to the block.
pub(crate) struct BlockProgress {
    /// The greatest effect of the client's unnamed statement on its transaction block.
    unnamed: Effect,
    rollback: Rollback,
}

impl Default for BlockProgress {
    /// Nothing is known of the unnamed statement: it may commit.
    fn default() -> BlockProgress {
        BlockProgress { unnamed: Effect::Commits, rollback: Rollback::None }
    }
}

impl BlockProgress {
    /// Returns the progress of a ROLLBACK that was sent after other statements of its block.
    pub(crate) fn rollback(&self) -> Rollback {
        self.rollback
    }

    /// Notes that a group is sent to a server that owes nothing: no earlier ROLLBACK is under way.
    pub(crate) fn begin(&mut self) {
        self.rollback = Rollback::None;
    }

    /// Reads messages that are sent next. Returns their effects. `prepared_before` returns the statement that the client has prepared
    /// under a name.
    pub(crate) fn read<'a>(
        &mut self,
        bytes: &[u8],
        texts: &mut Texts,
        reach: &Reach,
        prepared_before: impl Fn(&[u8]) -> Option<&'a Statement>,
    ) -> Effects {
        let mut found = Effects::NOTHING;
        let BlockProgress { unnamed, rollback } = self;
        let look = |text: &[u8], texts: &mut Texts| {
            texts.look(text, |traits, verdict| {
                Effect::of(text, traits, reach.reads(text, traits, verdict).certainly())
            })
        };
        // The block that the unnamed statement is, if it was prepared in these messages.
        let mut prepared = None;
        let mut messages = Messages::of(bytes);
        for message in messages.by_ref() {
            if !message.is_whole() {
                return Effects::ALL;
            }
            let (header, body) = (message.header, message.body());
            let (mut block, is_unnamed) = (None, body.first() == Some(&0));
            let effect = match header.tag {
                tag::QUERY => match Query::parse(body) {
                    Ok(query) => {
                        block = pgweir_sql::block(query.text);
                        found.bind(block);
                        look(query.text, texts)
                    }
                    Err(_) => Effect::Commits,
                },
                tag::PARSE => match Parse::parse(body) {
                    // It executes nothing, and its text is known when it is bound.
                    Ok(parse) if !parse.name.is_empty() => Effect::Reads,
                    Ok(parse) => {
                        *unnamed = look(parse.query, texts);
                        prepared = pgweir_sql::block(parse.query);
                        block = prepared;
                        *unnamed
                    }
                    Err(_) => Effect::Commits,
                },
                tag::BIND => match BindHead::parse_prefix(body).map(|head| head.statement) {
                    Some(b"") => {
                        block = prepared.or((*rollback == Rollback::Parsed).then_some(Block::Rollback));
                        found.bind(prepared);
                        *unnamed
                    }
                    Some(name) => {
                        let statement = prepared_before(name);
                        block = statement.and_then(|statement| statement.block);
                        found.bind(block);
                        statement.map_or(Effect::Commits, |known| Effect::of_prepared(known, reach))
                    }
                    None => Effect::Commits,
                },
                tag::EXECUTE | tag::DESCRIBE | tag::CLOSE | tag::SYNC | tag::FLUSH => Effect::Reads,
                tag::FUNCTION_CALL => Effect::Writes,
                _ => Effect::Commits,
            };
            let effect = match rollback.behind(header.tag, is_unnamed, block) {
                Some(behind) => {
                    *rollback = behind;
                    effect
                }
                None => Effect::Commits,
            };
            // An empty statement of the extended protocol cannot be bound in a failed transaction.
            let least = if header.tag == tag::QUERY { Effect::None } else { Effect::Reads };
            found.most = found.most.max(effect.max(least));
        }
        if messages.position() < bytes.len() { Effects::ALL } else { found }
    }
}
