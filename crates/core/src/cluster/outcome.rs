//! What became of a transaction whose server was lost behind its COMMIT: the proof, as a function of what is known.
//!
//! The status that PostgreSQL tells of a transaction's number proves nothing by itself: a number whose records were lost with a primary,
//! or in a crash, is given out again, and then tells of another transaction. *Committed* must only be said if the number certainly
//! was not given out again in the history that counts, and *rolled back* if that history certainly has no commit of it.

use crate::cluster::answer::Lsn;
use crate::cluster::{Run, Term};

/// What was asked of a transaction before its COMMIT was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stake {
    /// Its number, with the epoch (`xid8`).
    pub(crate) xid: u64,
    /// A position that all of its commit lies behind.
    pub(crate) position: Lsn,
    /// A record with its number lies before that position.
    pub(crate) counts: bool,
    /// Where recovery had ended on the server that it ran on: a crash changes it, also where the postmaster goes on.
    pub(crate) recovered: Option<Lsn>,
}

/// What the server says that is asked for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Said {
    pub(crate) run: Run,
    /// Where its recovery ended; `None` after a clean start.
    pub(crate) recovered: Option<Lsn>,
    pub(crate) status: Status,
}

/// What `txid_status` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Committed,
    Aborted,
    InProgress,
    /// It is too old to be known.
    Forgotten,
}

/// A node, in one start of its server, was seen as a standby that follows a primary.
///
/// What it has replayed counts as that primary's if the primary was heard of shortly before: no other run of it, which may have written
/// something else at the same positions, has been received in between, as a standby waits (`wal_retrieve_retry_interval`) before it
/// connects to a primary again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Followed {
    /// The primary.
    pub(crate) from: Term,
    /// As [`Stake::recovered`], of the primary.
    pub(crate) recovered: Option<Lsn>,
    /// When the node's server was started (µs since 1970, by its clock).
    pub(crate) started_us: i64,
    /// What it had replayed. Whatever happens to the node later loses nothing of that.
    pub(crate) replayed: Lsn,
}

impl Followed {
    /// The run of the node as a primary comes from this.
    pub(crate) fn leads_to(&self, run: &Run) -> bool {
        let from = self.from.run;
        self.started_us == run.started_us
            && from.system_identifier == run.system_identifier
            && from.timeline < run.timeline
    }
}

/// How much of the history that the transaction was in the server has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    /// All: nothing was lost.
    All,
    /// At least up to here, and nothing behind `at_most`, as far as either is known.
    Part { at_least: Option<Lsn>, at_most: Option<Lsn> },
}

/// What a client can be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Committed,
    RolledBack,
    Unknown(Why),
    /// It is still under way.
    AskAgain,
}

/// Why an outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// COMMIT was sent before it was known which transaction it ends.
    NoNumber,
    /// The transaction ran on a standby that was promoted.
    Promoted,
    /// The transaction had no number, and may have done something else that COMMIT makes last.
    NothingWritten,
    /// Its number may have been given out again.
    Reused,
    /// PostgreSQL does not know it any more.
    Forgotten,
    /// It did not end.
    NotOver,
    /// No primary could be asked.
    NotAsked,
}

impl Why {
    /// For the detail of the error.
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
    /// For the log.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Outcome::Committed => "it was committed",
            Outcome::RolledBack => "it was rolled back",
            Outcome::Unknown(_) | Outcome::AskAgain => "the outcome is unknown",
        }
    }

    /// Why it is unknown.
    pub(crate) fn detail(self) -> &'static str {
        match self {
            Outcome::Unknown(why) => why.text(),
            _ => Why::NotOver.text(),
        }
    }
}

/// What clients were told, by a worker and since its start.
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

/// The outcome of a transaction that ran in `term`, by what the present primary says, and what is known of it
/// as a standby.
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
