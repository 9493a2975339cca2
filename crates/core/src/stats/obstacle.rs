//! The reasons why the query cache does not keep the answer to a statement, as SHOW STATEMENTS names them.

/// The event that ends an answer which is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeptUntil {
    /// Its age, or a change of one of its tables.
    AgeOrTables,
    /// A change of the one row that it depends on (`follow=wal`).
    RowChanges,
}

impl KeptUntil {
    /// Returns the words for SHOW STATEMENTS.
    pub(crate) fn words(self) -> &'static str {
        match self {
            KeptUntil::AgeOrTables => "yes",
            KeptUntil::RowChanges => "yes, by key",
        }
    }
}

/// A reason why an answer is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Obstacle {
    /// The statement is no query.
    NotASelect,
    /// The text has several statements.
    Several,
    /// The statement may change its session, or its answer may depend on what the session did before.
    Session,
    /// The statement does not certainly only read.
    MayWrite,
    /// The statement names a function whose result is another one each time.
    Varying,
    /// The names of functions in the database are not known yet, so no statement certainly only reads.
    Catalog,
    /// The text is longer than the texts that pgweir looks at.
    LongText,
    /// The text without its literals ends where pgweir cannot read it with certainty, so the text alone tells nothing.
    Unreadable,
    /// The statement runs in a transaction block.
    InTransaction,
    /// The client sent the statement in one packet with other statements, or with the Parse of a statement that has a name.
    Together,
    /// The client has its server for longer than the statement, for example because it is pinned.
    KeepsServer,
    /// A standby gave the answer.
    Standby,
    /// The client must see what it has seen of a cluster's primary.
    CausalReads,
    /// The client prepared the unnamed statement in an earlier group.
    PreparedUnnamed,
    /// The settings of the client's session are too long to be compared.
    LongSettings,
    /// The answer has more bytes than are kept.
    LongAnswer,
    /// The answer has an error, a notice or another message that the statement did not ask for.
    Unfit,
    /// No rule of `[cache]` matches the statement.
    NoRule,
    /// A comment in the text says that its answer is not kept.
    Hint,
    /// With `query_cache=hinted`, no comment in the text asks for the cache.
    NoHint,
    /// `query_cache` is off.
    Off,
    /// The pool's clients keep their servers.
    SessionPooling,
    /// The pool has `session_state=pgbouncer`.
    SessionState,
    /// The changes of the database's tables are not followed now.
    NotFollowed,
    /// The server has logged in before a change of settings, or is not known to be the PostgreSQL server whose changes are followed.
    OtherServer,
    /// The client's transactions begin as SERIALIZABLE.
    Serializable,
    /// The answer may depend on more than tables, values and settings.
    Outside,
    /// The statement reads a table, or another object, that is not followed.
    Unpublished,
    /// The server has not told yet which tables the statement depends on.
    Unanalysed,
    /// A table of the statement was changed while the statement ran, or shortly before.
    JustChanged,
    /// The statement has not been executed since the settings of the cache were last changed.
    NotExecuted,
}

impl Obstacle {
    /// Returns the words for SHOW STATEMENTS.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Obstacle::NotASelect => "not a SELECT",
            Obstacle::Several => "several statements",
            Obstacle::Session => "may read or change the session",
            Obstacle::MayWrite => "may change data",
            Obstacle::Varying => "another result each time",
            Obstacle::Catalog => "the catalog is still to be read",
            Obstacle::LongText => "text too long",
            Obstacle::Unreadable => "text not certain",
            Obstacle::InTransaction => "in a transaction",
            Obstacle::Together => "sent together with other statements",
            Obstacle::KeepsServer => "the client keeps its server",
            Obstacle::Standby => "answer of a standby",
            Obstacle::CausalReads => "causal_reads",
            Obstacle::PreparedUnnamed => "prepared earlier without a name",
            Obstacle::LongSettings => "settings of the session too long",
            Obstacle::LongAnswer => "answer too long",
            Obstacle::Unfit => "answer with an error or a notice",
            Obstacle::NoRule => "no rule",
            Obstacle::Hint => "a comment says no",
            Obstacle::NoHint => "no comment asks for it",
            Obstacle::Off => "off",
            Obstacle::SessionPooling => "session pooling",
            Obstacle::SessionState => "session_state=pgbouncer",
            Obstacle::NotFollowed => "changes are not followed, see SHOW CACHE",
            Obstacle::OtherServer => {
                "its server may have other settings or data than the one that is followed"
            }
            Obstacle::Serializable => "serializable transactions",
            Obstacle::Outside => "depends on more than tables",
            Obstacle::Unpublished => "reads a table that is not followed",
            Obstacle::Unanalysed => "its tables are still to be asked for",
            Obstacle::JustChanged => "a table was just changed",
            Obstacle::NotExecuted => "not executed since the cache changed",
        }
    }
}
