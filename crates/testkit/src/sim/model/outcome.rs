//! The faults of a server process: how it ends, and how it lies.

use crate::sim::context::SimContext;
use crate::sim::network::net::End;
use crate::sim::network::proto::Message;
use crate::sim::plan::Theme;

/// The way in which a server process is going to end or to lie, if it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerOutcome {
    /// The process has no fault.
    None,
    /// Refuses the login, with this SQLSTATE.
    Refuses(&'static str),
    /// Dies during the login, after so many bytes.
    DiesInLogin(u64),
    /// Never says a word after the startup packet (or the cancel request).
    Hangs,
    /// Dies after so many bytes of answers, perhaps in the middle of a message.
    DiesAfterBytes(u64, End),
    /// Dies instead of sending its n-th ReadyForQuery.
    DiesBeforeReady(u32),
    /// Is terminated by an administrator at a time that is in the calendar.
    Terminated,
    /// Dies in the n-th of these moments in which another client's statement is behind the one it works for.
    DiesPipelined(u32, Moment, End),
    /// Sends nonsense instead of its n-th ReadyForQuery; 0 is the answer to the startup packet.
    Lies(u32, Lie),
}

/// The moment at which the process may end while a client is queued behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The first client's statement is running.
    AtWork,
    /// The answer to that statement has been sent in part.
    InAnswer,
    /// The answer has been sent except for ReadyForQuery.
    BeforeReady,
    /// The answer has been sent; the next client's statement has not begun.
    AfterReady,
}

/// Every such moment.
pub const MOMENTS: [Moment; 4] = [Moment::AtWork, Moment::InAnswer, Moment::BeforeReady, Moment::AfterReady];

impl Moment {
    /// Returns the name of the counter.
    pub(super) fn name(self) -> &'static str {
        match self {
            Moment::AtWork => "pipelined servers lost at work",
            Moment::InAnswer => "pipelined servers lost in an answer",
            Moment::BeforeReady => "pipelined servers lost before ReadyForQuery",
            Moment::AfterReady => "pipelined servers lost after ReadyForQuery",
        }
    }
}

/// A message that PostgreSQL would never send, and that is recognizable wherever the stream is cut. (A
/// superfluous well-formed message is not: it may arrive when the next client's answer is due.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// A message type that does not exist.
    UnknownType,
    /// A length field of 3.
    ShortLength,
    /// A length field of 2^31-1.
    EndlessLength,
    /// A ReadyForQuery with a status that does not exist.
    UnknownStatus,
    /// A transaction is open, where another client's statement follows already: only then it is plain to see.
    OpenTransaction,
    /// COPY FROM STDIN begins, likewise.
    Copies,
}

/// Every lie there is.
pub const LIES: [Lie; 6] = [
    Lie::UnknownType,
    Lie::ShortLength,
    Lie::EndlessLength,
    Lie::UnknownStatus,
    Lie::OpenTransaction,
    Lie::Copies,
];

impl Lie {
    /// Returns whether it is a lie only if another client's statement follows the one that is answered.
    pub(super) fn needs_queued_behind(self) -> bool {
        matches!(self, Lie::OpenTransaction | Lie::Copies)
    }

    /// The lie itself.
    pub(super) fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Lie::UnknownType => Message { tag: b'%', body: vec![0; 9] }.encode(&mut bytes),
            Lie::ShortLength => bytes.extend([b'Z', 0, 0, 0, 3]),
            Lie::EndlessLength => bytes.extend([b'Z', 0x7f, 0xff, 0xff, 0xff, b'I']),
            Lie::OpenTransaction => Message { tag: b'Z', body: vec![b'T'] }.encode(&mut bytes),
            Lie::Copies => Message { tag: b'G', body: vec![0, 0, 0] }.encode(&mut bytes),
            Lie::UnknownStatus => Message { tag: b'Z', body: vec![b'Q'] }.encode(&mut bytes),
        }
        bytes
    }
}

impl ServerOutcome {
    /// Draws the outcome of the next process, while `serving` processes are at work.
    pub(super) fn draw(cx: &mut SimContext, serving: usize) -> ServerOutcome {
        if serving >= cx.plan.server.connections_max {
            return ServerOutcome::Refuses("53300");
        }
        if cx.wal.as_ref().is_some_and(|wal| wal.is_over()) {
            return ServerOutcome::None;
        }
        let (faults, rng) = (&cx.plan.faults, &mut cx.rng);
        if rng.percent(faults.login_fails) {
            return match rng.below(5) {
                0 => ServerOutcome::Hangs,
                1 => ServerOutcome::Lies(0, *rng.pick(&LIES[..4])),
                2 => ServerOutcome::DiesInLogin(rng.below(400)),
                3 => ServerOutcome::Refuses("53300"),
                _ => ServerOutcome::Refuses("57P03"),
            };
        }
        if rng.percent(faults.dies) && cx.plan.theme == Theme::Faults {
            return ServerOutcome::DiesPipelined(
                rng.count(1, 12),
                *rng.pick(&MOMENTS),
                *rng.pick(&[End::Fin, End::Reset]),
            );
        }
        if rng.percent(faults.dies) {
            return match rng.below(4) {
                0 => ServerOutcome::DiesBeforeReady(rng.count(2, 8)),
                1 => ServerOutcome::Terminated,
                2 => ServerOutcome::DiesAfterBytes(rng.between(400, 4_000), End::Reset),
                _ => ServerOutcome::DiesAfterBytes(rng.between(400, 20_000), End::Fin),
            };
        }
        if rng.percent(faults.nonsense) {
            let harms_queued = cx.plan.theme == Theme::Faults && rng.percent(70);
            let lies: &[Lie] = if harms_queued { &LIES[4..] } else { &LIES };
            return ServerOutcome::Lies(rng.count(1, 8), *rng.pick(lies));
        }
        ServerOutcome::None
    }
}
