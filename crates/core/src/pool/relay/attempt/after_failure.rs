//! The decision about a client's exchange that has failed at its server. One table makes it ([`after_failure`]), and the callers carry it
//! out. No other code decides that bytes of a client are sent again.
//!
//! **Invariant: an exchange runs again only if its client has seen nothing of an answer, nothing of it lasts, and its bytes are there.**
//!
//! An exchange that is still queued behind others needs no decision: it certainly only reads, is not answered, and stands in its client's
//! inbox (`moves/requeue.rs`). A BEGIN or a session setting that fails ahead of an exchange, with an error that the client is shown, does
//! not have it run again, either (`begin/mod.rs`, `session/replay.rs`).

use crate::limits::{ASKED_AGAIN_MAX, REFUSED_SERVERS_MAX};
use crate::pool::client::state::{Account, Client, ClientState, Link};
use crate::pool::cluster::change::Change;
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::relay::attempt::KeptFor;
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::server::state::Server;

/// The way in which an exchange fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExchangeFailure {
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

/// The lasting effect that the exchange may have had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ran {
    /// The exchange has no lasting effect: it was not sent, was skipped, only reads, or ran in a block of pgweir's that was not committed.
    Nothing,
    /// The exchange is part of a transaction of the client, or its effect is not known.
    Something,
}

/// The place where the bytes of the exchange are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExchangeBytes {
    /// The client's inbox has the bytes: the server was not sent them, or they are to be sent again already.
    InInbox,
    /// The server was sent the bytes, and they are kept.
    Kept,
    /// The server was sent the bytes, and they are not kept for a failure of this kind.
    Gone,
}

/// The part of the answer that the client has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AnswerSeen {
    Nothing,
    Part,
}

/// The node that the exchange belongs to, and whether it can run again at this server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AttemptPlace {
    /// Any server of this node. No other client is queued after the exchange.
    Alone,
    /// Any server of this node. Other clients are queued after the exchange.
    AheadOfOthers,
    /// The primary: the exchange is a first try at a standby, or the rest of a transaction that leaves its standby.
    FirstTry,
}

/// The facts about an exchange on which the decision depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Situation {
    pub(crate) ran: Ran,
    pub(crate) seen: AnswerSeen,
    pub(crate) bytes: ExchangeBytes,
    pub(crate) place: AttemptPlace,
    /// Whether the client may get yet another server, or the statement another attempt: neither has failed too often.
    pub(crate) has_tries: bool,
}

/// The decision about the exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AfterFailure {
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

/// Decides what happens to an exchange that has failed in this way. This table is the only place that decides it.
pub(crate) fn after_failure(failure: ExchangeFailure, situation: Situation) -> AfterFailure {
    use AfterFailure as A;
    use AttemptPlace as P;
    use ExchangeFailure as F;
    let Situation { ran, seen, bytes, place, has_tries } = situation;
    if (ran, seen) != (Ran::Nothing, AnswerSeen::Nothing) || bytes == ExchangeBytes::Gone {
        return match failure {
            // The client would take the columns for those that it was told of.
            F::ShapeDiffers => A::ServerGivenUp,
            _ => A::Told,
        };
    }
    match (failure, place) {
        // The session may be refused everywhere. After some servers the client is told why.
        (F::SessionRefused, _) if !has_tries => A::Told,
        // A second attempt prepares the statement again. If that does not help, PostgreSQL's error is right.
        (F::PlanOutdated, _) if !has_tries => A::Told,
        // A read that no server survives is not tried on all of them.
        (F::ServerLost, P::Alone | P::AheadOfOthers) if !has_tries => A::Told,
        // The primary is another node, so no number of attempts counts against it.
        (_, P::FirstTry) => A::AtPrimary,
        // Nothing is wrong with the server, and no queued client would be held up.
        (F::PlanOutdated, P::Alone) => A::Here,
        (_, P::Alone | P::AheadOfOthers) => A::Elsewhere,
    }
}

impl ExchangeFailure {
    fn bytes_at(self, link: &Link, server: &Server) -> ExchangeBytes {
        let is_in_inbox = matches!(link.first_try, FirstTry::Unsent(_) | FirstTry::Left)
            || matches!(
                link.phase,
                LinkPhase::Again(_) | LinkPhase::Exchange(Preamble::Block(Change::Unsent))
            )
            || !server.state.is_serving();
        let attempt = &server.attempt;
        let is_kept = match self {
            // Bytes that are kept for another reason may have been sent before the session was.
            ExchangeFailure::SessionRefused => attempt.is_for(KeptFor::SESSION) || attempt.holds_later(),
            // The server may have answered a part of other exchanges already.
            ExchangeFailure::ShapeDiffers
            | ExchangeFailure::StandbyRefused
            | ExchangeFailure::StrangersCancel => attempt.holds_later(),
            ExchangeFailure::PlanOutdated | ExchangeFailure::ServerLost => attempt.kept().is_some(),
        };
        match is_in_inbox {
            true => ExchangeBytes::InInbox,
            false if is_kept => ExchangeBytes::Kept,
            false => ExchangeBytes::Gone,
        }
    }
}

impl Situation {
    /// Returns the situation of a linked client's exchange of which nothing was seen and nothing lasts. A caller that knows better must
    /// change it.
    pub(crate) fn of(failure: ExchangeFailure, link: &Link, account: &Account, server: &Server) -> Situation {
        let place = match (link.first_try, server.pipelined.is_alone()) {
            (FirstTry::None, true) => AttemptPlace::Alone,
            (FirstTry::None, false) => AttemptPlace::AheadOfOthers,
            _ => AttemptPlace::FirstTry,
        };
        let has_tries = match failure {
            ExchangeFailure::PlanOutdated => link.asked_again < ASKED_AGAIN_MAX,
            _ => account.refused_servers + 1 < REFUSED_SERVERS_MAX,
        };
        let bytes = failure.bytes_at(link, server);
        Situation { ran: Ran::Nothing, seen: AnswerSeen::Nothing, bytes, place, has_tries }
    }
}

/// Returns the decision about an exchange of which nothing was seen and nothing lasts. A client without a server has no exchange: its error
/// is told.
pub(crate) fn decide(
    failure: ExchangeFailure,
    client: Option<&Client>,
    server: Option<&Server>,
) -> AfterFailure {
    let (Some(Client { state: ClientState::Linked(link), account, .. }), Some(server)) = (client, server)
    else {
        return AfterFailure::Told;
    };
    after_failure(failure, Situation::of(failure, link, account, server))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILURES: [ExchangeFailure; 6] = [
        ExchangeFailure::SessionRefused,
        ExchangeFailure::PlanOutdated,
        ExchangeFailure::ShapeDiffers,
        ExchangeFailure::StandbyRefused,
        ExchangeFailure::StrangersCancel,
        ExchangeFailure::ServerLost,
    ];

    fn situations() -> Vec<Situation> {
        let mut all = Vec::new();
        for ran in [Ran::Nothing, Ran::Something] {
            for seen in [AnswerSeen::Nothing, AnswerSeen::Part] {
                for bytes in [ExchangeBytes::InInbox, ExchangeBytes::Kept, ExchangeBytes::Gone] {
                    for place in [AttemptPlace::Alone, AttemptPlace::AheadOfOthers, AttemptPlace::FirstTry] {
                        let of = |has_tries| Situation { ran, seen, bytes, place, has_tries };
                        all.extend([of(true), of(false)]);
                    }
                }
            }
        }
        all
    }

    /// Returns the decision for a situation, and the reason for it. The first reason that fits counts.
    fn by_reason(failure: ExchangeFailure, of: Situation) -> (&'static str, AfterFailure) {
        use AfterFailure as A;
        use AttemptPlace as P;
        use ExchangeFailure as F;
        let (ran, seen, gone) =
            (of.ran == Ran::Something, of.seen == AnswerSeen::Part, of.bytes == ExchangeBytes::Gone);
        let is_tried_enough = !of.has_tries;
        match (failure, of.place) {
            (F::ShapeDiffers, _) if ran || seen || gone => ("the answer would be misread", A::ServerGivenUp),
            (_, _) if ran => ("it would take effect twice", A::Told),
            (_, _) if seen => ("the client would see two answers", A::Told),
            (_, _) if gone => ("there is nothing to send", A::Told),
            (F::SessionRefused, _) if is_tried_enough => ("no server takes the session", A::Told),
            (F::PlanOutdated, _) if is_tried_enough => ("it stays outdated", A::Told),
            (F::SessionRefused, P::FirstTry) => ("a session of the primary's", A::AtPrimary),
            (F::PlanOutdated, P::FirstTry) => ("the primary's columns count", A::AtPrimary),
            (F::ShapeDiffers, P::FirstTry) => ("the standby may be late", A::AtPrimary),
            (F::StandbyRefused, P::FirstTry) => ("it is the primary's", A::AtPrimary),
            (F::StrangersCancel, P::FirstTry) => ("a second try is the primary's", A::AtPrimary),
            (F::ServerLost, P::FirstTry) => ("the standby ended", A::AtPrimary),
            (F::ServerLost, _) if is_tried_enough => ("it may be the reason", A::Told),
            (F::PlanOutdated, P::Alone) => ("the server is sound and free", A::Here),
            (F::PlanOutdated, P::AheadOfOthers) => ("others are next here", A::Elsewhere),
            (F::SessionRefused, _) => ("another server may take it", A::Elsewhere),
            (F::ShapeDiffers, _) => ("it is prepared again", A::Elsewhere),
            // No exchange of the primary's is a first try: the cell is as safe as its neighbours.
            (F::StandbyRefused, _) => ("never", A::Elsewhere),
            (F::StrangersCancel, _) => ("the cancel was not the client's", A::Elsewhere),
            (F::ServerLost, _) => ("a read is worth another server", A::Elsewhere),
        }
    }

    #[test]
    fn each_cell_of_the_table_has_a_reason() {
        let mut reasons = std::collections::BTreeSet::new();
        for failure in FAILURES {
            for situation in situations() {
                let (reason, decision) = by_reason(failure, situation);
                reasons.insert(reason);
                assert_eq!(
                    after_failure(failure, situation),
                    decision,
                    "{failure:?} {situation:?}: {reason}"
                );
            }
        }
        assert_eq!(reasons.len(), 20, "each reason is one of a cell's");
    }

    #[test]
    fn nothing_runs_twice_and_no_client_sees_two_answers() {
        for failure in FAILURES {
            for situation in situations() {
                let decision = after_failure(failure, situation);
                let runs_again = !matches!(decision, AfterFailure::Told | AfterFailure::ServerGivenUp);
                let may_run = situation.ran == Ran::Nothing
                    && situation.seen == AnswerSeen::Nothing
                    && situation.bytes != ExchangeBytes::Gone;
                assert!(!runs_again || may_run, "{failure:?} {situation:?}");
                let is_first_try = situation.place == AttemptPlace::FirstTry;
                assert!(decision != AfterFailure::AtPrimary || is_first_try, "{failure:?} {situation:?}");
                assert!(
                    !runs_again || !is_first_try || decision == AfterFailure::AtPrimary,
                    "{failure:?} {situation:?}"
                );
            }
        }
    }
}
