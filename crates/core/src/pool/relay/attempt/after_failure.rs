//! What becomes of a client's exchange that has failed at its server. One table decides it ([`after_failure`]); the callers carry its verdict
//! out. No other code decides that bytes of a client are sent again.
//!
//! **Invariant: an exchange runs again only if its client has seen nothing of an answer, nothing of it lasts, and its bytes are there.**
//!
//! An exchange that is still queued behind others needs no decision: it certainly only reads, is not answered, and stands in its client's
//! inbox (`moves/requeue.rs`). A BEGIN or a session setting that fails ahead of an exchange, with an error that the client is shown, does
//! not have it run again, either (`begin/mod.rs`, `session/replay.rs`).

use crate::limits::{ASKED_AGAIN_MAX, REFUSED_SERVERS_MAX};
use crate::pool::client::state::{Account, Client, ClientState, Link, Opening};
use crate::pool::cluster::change::Change;
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::relay::attempt::KeptFor;
use crate::pool::server::state::{Server, ServerState};

/// The way in which an exchange fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The server does not reach the client's session, or does not prepare what the exchange needs. It skips the exchange.
    SessionRefused,
    /// PostgreSQL refuses to run the exchange's statement, because its columns have changed since this server prepared it.
    PlanOutdated,
    /// The server describes the statement in another way than the client was told, and the exchange was sent on trust.
    ShapeDiffers,
    /// A standby does not run a first try.
    StandbyRefused,
    /// A cancel request of another client may have hit the exchange.
    StrangersCancel,
    /// The server is lost.
    ServerLost,
}

/// What the server has done of the exchange, as far as it may last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ran {
    /// Nothing lasts: the exchange was not sent, was skipped, only reads, or ran in a block of pgweir's that was not committed.
    Nothing,
    /// The exchange is part of a transaction of the client, or its effect is not known.
    Something,
}

/// Where the bytes of the exchange are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bytes {
    /// They stand in the client's inbox: they were not sent, or are to be sent again already.
    InInbox,
    /// They were sent, and are kept.
    Kept,
    /// They were sent, and are not kept for a failure of this kind.
    Gone,
}

/// What the client has seen of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    Nothing,
    Part,
}

/// The node that the exchange belongs to, and whether it can run again at this server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Any server of this node. No other client is queued behind the exchange.
    Alone,
    /// Any server of this node. Other clients are queued behind the exchange.
    AheadOfOthers,
    /// The primary: the exchange is a first try at a standby, or the rest of a transaction that leaves its standby.
    FirstTry,
}

/// All that decides what becomes of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Situation {
    pub(crate) ran: Ran,
    pub(crate) seen: Seen,
    pub(crate) bytes: Bytes,
    pub(crate) place: Place,
    /// Whether the client may get yet another server, or the statement another attempt: neither has failed too often.
    pub(crate) has_tries: bool,
}

/// What becomes of the exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The exchange is sent to the same server again, when that has answered the first attempt.
    Here,
    /// The client waits for another server of the node, ahead of all clients that came later.
    Elsewhere,
    /// The client waits for a server of the primary.
    AtPrimary,
    /// The exchange does not run again, and the client is told the error.
    Told,
    /// The client must not see the answer, which is on its way: the server is given up.
    ServerGivenUp,
}

/// The table.
pub(crate) fn after_failure(failure: Failure, situation: Situation) -> Verdict {
    let Situation { ran, seen, bytes, place, has_tries } = situation;
    if (ran, seen) != (Ran::Nothing, Seen::Nothing) || bytes == Bytes::Gone {
        return match failure {
            // The client would take the columns for those that it was told of.
            Failure::ShapeDiffers => Verdict::ServerGivenUp,
            _ => Verdict::Told,
        };
    }
    match (failure, place) {
        // The session may be refused everywhere. After some servers the client is told why.
        (Failure::SessionRefused, _) if !has_tries => Verdict::Told,
        // A second attempt prepares the statement anew. If that does not help, PostgreSQL's error is right.
        (Failure::PlanOutdated, _) if !has_tries => Verdict::Told,
        // A read that no server survives is not tried on all of them.
        (Failure::ServerLost, Place::Alone | Place::AheadOfOthers) if !has_tries => Verdict::Told,
        // The primary is another node, so no number of attempts counts against it.
        (_, Place::FirstTry) => Verdict::AtPrimary,
        // Nothing is wrong with the server, and no queued client would be held up.
        (Failure::PlanOutdated, Place::Alone) => Verdict::Here,
        (_, Place::Alone | Place::AheadOfOthers) => Verdict::Elsewhere,
    }
}

impl Failure {
    fn bytes_at(self, link: &Link, server: &Server) -> Bytes {
        let is_in_inbox = matches!(link.first_try, FirstTry::Unsent(_) | FirstTry::Left)
            || matches!(link.opening, Opening::Again(_) | Opening::Change(Change::Unsent))
            || !matches!(server.state, ServerState::Busy(_));
        let attempt = &server.attempt;
        let is_kept = match self {
            // Bytes that are kept for another reason may have been sent before the session was.
            Failure::SessionRefused => attempt.is_for(KeptFor::SESSION) || attempt.holds_later(),
            // The server may have answered a part of other exchanges already.
            Failure::ShapeDiffers | Failure::StandbyRefused | Failure::StrangersCancel => {
                attempt.holds_later()
            }
            Failure::PlanOutdated | Failure::ServerLost => attempt.kept().is_some(),
        };
        match is_in_inbox {
            true => Bytes::InInbox,
            false if is_kept => Bytes::Kept,
            false => Bytes::Gone,
        }
    }
}

impl Situation {
    /// The situation of a linked client's exchange of which nothing was seen and nothing lasts: a caller that knows better says so.
    pub(crate) fn of(failure: Failure, link: &Link, account: &Account, server: &Server) -> Situation {
        let place = match (link.first_try, server.pipelined.is_alone()) {
            (FirstTry::None, true) => Place::Alone,
            (FirstTry::None, false) => Place::AheadOfOthers,
            _ => Place::FirstTry,
        };
        let has_tries = match failure {
            Failure::PlanOutdated => link.asked_again < ASKED_AGAIN_MAX,
            _ => account.refused_servers + 1 < REFUSED_SERVERS_MAX,
        };
        let bytes = failure.bytes_at(link, server);
        Situation { ran: Ran::Nothing, seen: Seen::Nothing, bytes, place, has_tries }
    }
}

/// The verdict on an exchange of which nothing was seen and nothing lasts. `client`: without a server, it has no exchange.
pub(crate) fn verdict_on(failure: Failure, client: Option<&Client>, server: Option<&Server>) -> Verdict {
    let (Some(Client { state: ClientState::Linked(link), account, .. }), Some(server)) = (client, server)
    else {
        return Verdict::Told;
    };
    after_failure(failure, Situation::of(failure, link, account, server))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILURES: [Failure; 6] = [
        Failure::SessionRefused,
        Failure::PlanOutdated,
        Failure::ShapeDiffers,
        Failure::StandbyRefused,
        Failure::StrangersCancel,
        Failure::ServerLost,
    ];

    fn situations() -> Vec<Situation> {
        let mut all = Vec::new();
        for ran in [Ran::Nothing, Ran::Something] {
            for seen in [Seen::Nothing, Seen::Part] {
                for bytes in [Bytes::InInbox, Bytes::Kept, Bytes::Gone] {
                    for place in [Place::Alone, Place::AheadOfOthers, Place::FirstTry] {
                        let of = |has_tries| Situation { ran, seen, bytes, place, has_tries };
                        all.extend([of(true), of(false)]);
                    }
                }
            }
        }
        all
    }

    /// Each cell has one of these reasons. The reasons are tried in order, and the last one decides what runs again.
    fn by_reason(failure: Failure, of: Situation) -> (&'static str, Verdict) {
        let cannot = of.ran == Ran::Something || of.seen == Seen::Part || of.bytes == Bytes::Gone;
        let is_tried_enough = !of.has_tries;
        match (failure, of.place) {
            (Failure::ShapeDiffers, _) if cannot => ("the answer would be misread", Verdict::ServerGivenUp),
            (_, _) if of.ran == Ran::Something => ("it would take effect twice", Verdict::Told),
            (_, _) if of.seen == Seen::Part => ("the client would see two answers", Verdict::Told),
            (_, _) if of.bytes == Bytes::Gone => ("there is nothing to send", Verdict::Told),
            (Failure::SessionRefused, _) if is_tried_enough => ("no server takes the session", Verdict::Told),
            (Failure::PlanOutdated, _) if is_tried_enough => ("it stays outdated", Verdict::Told),
            (Failure::SessionRefused, Place::FirstTry) => ("a session of the primary's", Verdict::AtPrimary),
            (Failure::PlanOutdated, Place::FirstTry) => ("the primary's columns count", Verdict::AtPrimary),
            (Failure::ShapeDiffers, Place::FirstTry) => ("the standby may be behind", Verdict::AtPrimary),
            (Failure::StandbyRefused, Place::FirstTry) => ("it is the primary's", Verdict::AtPrimary),
            (Failure::StrangersCancel, Place::FirstTry) => {
                ("a second try is the primary's", Verdict::AtPrimary)
            }
            (Failure::ServerLost, Place::FirstTry) => ("the standby ended", Verdict::AtPrimary),
            (Failure::ServerLost, _) if is_tried_enough => ("it may be the reason", Verdict::Told),
            (Failure::PlanOutdated, Place::Alone) => ("the server is sound and free", Verdict::Here),
            (Failure::PlanOutdated, Place::AheadOfOthers) => ("others are next here", Verdict::Elsewhere),
            (Failure::SessionRefused, _) => ("another server may take it", Verdict::Elsewhere),
            (Failure::ShapeDiffers, _) => ("it is prepared anew", Verdict::Elsewhere),
            // No exchange of the primary's is a first try: the cell is as safe as its neighbours.
            (Failure::StandbyRefused, _) => ("never", Verdict::Elsewhere),
            (Failure::StrangersCancel, _) => ("the cancel was not the client's", Verdict::Elsewhere),
            (Failure::ServerLost, _) => ("a read is worth another server", Verdict::Elsewhere),
        }
    }

    #[test]
    fn each_cell_of_the_table_has_a_reason() {
        let mut reasons = std::collections::BTreeSet::new();
        for failure in FAILURES {
            for situation in situations() {
                let (reason, verdict) = by_reason(failure, situation);
                reasons.insert(reason);
                assert_eq!(after_failure(failure, situation), verdict, "{failure:?} {situation:?}: {reason}");
            }
        }
        assert_eq!(reasons.len(), 20, "each reason is one of a cell's");
    }

    #[test]
    fn nothing_runs_twice_and_no_client_sees_two_answers() {
        for failure in FAILURES {
            for situation in situations() {
                let verdict = after_failure(failure, situation);
                let runs_again = !matches!(verdict, Verdict::Told | Verdict::ServerGivenUp);
                let may_run = situation.ran == Ran::Nothing
                    && situation.seen == Seen::Nothing
                    && situation.bytes != Bytes::Gone;
                assert!(!runs_again || may_run, "{failure:?} {situation:?}");
                let is_first_try = situation.place == Place::FirstTry;
                assert!(verdict != Verdict::AtPrimary || is_first_try, "{failure:?} {situation:?}");
                assert!(
                    !runs_again || !is_first_try || verdict == Verdict::AtPrimary,
                    "{failure:?} {situation:?}"
                );
            }
        }
    }
}
