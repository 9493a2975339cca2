//! The outcome of a transaction whose server was lost after its COMMIT was sent: the proof, as a function of what is known.
//!
//! The status that PostgreSQL reports for a transaction's number proves nothing by itself. A number whose records were lost, with a primary
//! or in a crash, is assigned again, and then the status is that of another transaction. *Committed* must only be reported if the number
//! certainly was not assigned again in the history that counts, and *rolled back* only if that history certainly has no commit of the
//! transaction.

use crate::cluster::answer::Lsn;
use crate::cluster::{Run, Term};

/// The facts about a transaction that the server reported before COMMIT was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stake {
    /// The transaction's number, with the epoch (`xid8`).
    pub(crate) xid: u64,
    /// A position before the transaction's commit record.
    pub(crate) position: Lsn,
    /// A record with the transaction's number lies before that position.
    pub(crate) counts: bool,
    /// The position at which recovery had ended on the server that the transaction ran on. A crash changes it, even if the postmaster
    /// survives.
    pub(crate) recovered: Option<Lsn>,
}

/// The answer of the server that was asked for the transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Said {
    pub(crate) run: Run,
    /// The position at which the server's recovery ended; `None` after a clean start.
    pub(crate) recovered: Option<Lsn>,
    pub(crate) status: Status,
}

/// The result of `txid_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Committed,
    Aborted,
    InProgress,
    /// The transaction is too old for PostgreSQL to know its status.
    Forgotten,
}

/// A node that was seen as a standby, in one start of its server, and the primary that it followed.
///
/// The node's replayed position counts as that primary's if the primary was heard of shortly before. No other run of the primary, which may
/// have written something else at the same positions, can have been received in between: a standby waits (`wal_retrieve_retry_interval`)
/// before it connects to a primary again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Followed {
    /// The primary.
    pub(crate) from: Term,
    /// The position at which the primary's recovery had ended (see [`Stake::recovered`]).
    pub(crate) recovered: Option<Lsn>,
    /// The time at which the node's server was started (µs since 1970, by its clock).
    pub(crate) started_us: i64,
    /// The position up to which the node had replayed. Nothing before it is lost, whatever happens to the node later.
    pub(crate) replayed: Lsn,
}

impl Followed {
    /// Whether `run`, in which the node is the primary, began with the promotion of this standby.
    pub(crate) fn leads_to(&self, run: &Run) -> bool {
        let from = self.from.run;
        self.started_us == run.started_us
            && from.system_identifier == run.system_identifier
            && from.timeline < run.timeline
    }
}

/// The part of the transaction's history that the server that answers has kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    /// The server has the whole history: nothing was lost.
    All,
    /// The server has the history at least up to `at_least` and at most up to `at_most`; `None` if a limit is not known.
    Part { at_least: Option<Lsn>, at_most: Option<Lsn> },
}

/// The outcome that is reported to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Committed,
    RolledBack,
    Unknown(Why),
    /// The transaction is still in progress: the server must be asked again.
    AskAgain,
}

/// The reason why an outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// COMMIT was sent before it was known which transaction it ends.
    NoNumber,
    /// The transaction ran on a standby that was promoted.
    Promoted,
    /// The transaction had no number, and may have done something else that COMMIT makes last.
    NothingWritten,
    /// The transaction's number may have been assigned to another transaction.
    Reused,
    /// PostgreSQL does not know the transaction any more.
    Forgotten,
    /// The transaction was still in progress when pgweir ceased to ask.
    NotOver,
    /// No primary could be asked.
    NotAsked,
}

impl Why {
    /// Returns the text for the DETAIL of the error.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Why::NoNumber => "COMMIT was sent before the number of the transaction was known.",
            Why::Promoted => "The transaction ran on a standby, which was promoted.",
            Why::NothingWritten => "The transaction had no number by which PostgreSQL could be asked for it.",
            Why::Reused => {
                "PostgreSQL may have lost the transaction in a recovery, and given its number to another one."
            }
            Why::Forgotten => "PostgreSQL does not know the transaction any more.",
            Why::NotOver => "PostgreSQL says that the transaction is still in progress.",
            Why::NotAsked => "No primary could be asked for the transaction.",
        }
    }
}

impl Outcome {
    /// Returns the text for the log.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Outcome::Committed => "it was committed",
            Outcome::RolledBack => "it was rolled back",
            Outcome::Unknown(_) | Outcome::AskAgain => "the outcome is unknown",
        }
    }

    /// Returns the reason why the outcome is unknown, or that the transaction is still in progress.
    pub(crate) fn detail(self) -> &'static str {
        match self {
            Outcome::Unknown(why) => why.text(),
            _ => Why::NotOver.text(),
        }
    }
}

/// The numbers of outcomes that clients were told by a worker since its start.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Outcomes {
    pub(crate) committed: u64,
    pub(crate) rolled_back: u64,
    pub(crate) unknown: u64,
}

impl Outcomes {
    pub(crate) fn count(&mut self, told: Outcome) {
        *match told {
            Outcome::Committed => &mut self.committed,
            Outcome::RolledBack => &mut self.rolled_back,
            Outcome::Unknown(_) | Outcome::AskAgain => &mut self.unknown,
        } += 1;
    }
}

/// Returns the outcome of a transaction that ran in `term`, from the present primary's answer and from what was seen of the present primary
/// while it was a standby.
pub(crate) fn outcome(stake: &Stake, term: &Term, said: &Said, followed: Option<&Followed>) -> Outcome {
    let kept = kept(stake, term, said, followed);
    // Its commit lies behind its position. And no transaction that is committed in this history is ever called aborted in it.
    let is_lost = matches!(kept, Kept::Part { at_most: Some(end), .. } if stake.position > end);
    if is_lost || said.status == Status::Aborted {
        return Outcome::RolledBack;
    }
    match (said.status, kept) {
        (Status::Committed, Kept::All) => Outcome::Committed,
        // A record with its number is in this history, so the number was not given out again.
        (Status::Committed, Kept::Part { at_least: Some(end), .. })
            if stake.counts && stake.position <= end =>
        {
            Outcome::Committed
        }
        (Status::InProgress, Kept::All) => Outcome::AskAgain,
        (Status::Forgotten, _) => Outcome::Unknown(Why::Forgotten),
        _ => Outcome::Unknown(Why::Reused),
    }
}

fn kept(stake: &Stake, term: &Term, said: &Said, followed: Option<&Followed>) -> Kept {
    if term.run == said.run && stake.recovered == said.recovered {
        return Kept::All;
    }
    let followed = followed.filter(|followed| {
        followed.from == *term && followed.recovered == stake.recovered && followed.leads_to(&said.run)
    });
    Kept::Part { at_least: followed.map(|followed| followed.replayed), at_most: said.recovered }
}

#[cfg(test)]
mod tests;
