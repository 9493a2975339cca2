//! The answers of the model's standbys to `lag_query`: mostly that they are current; for a while, or always,
//! that they are behind, or a value that is no number of seconds, or none.

use crate::sim::network::proto::{Body, Message};
use crate::sim::rng::Rng;

/// The text of the pooler's `lag_query`.
pub const LAG_QUERY: &str = "select seconds from heartbeat";

/// The time after which a statement that was sent to a standby has begun there.
const BEGUN_US: u64 = 4_000_000;
/// A mood lasts no longer.
const MOOD_US_MAX: u64 = 7_000_000;

/// The kind of a standby's answers for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    Current,
    Behind,
    Hostile,
}

/// The result of the question.
pub enum LagAnswer {
    /// An answer with these messages.
    Says(Vec<Message>),
    /// No answer.
    Silent,
    /// The process ends.
    Dies,
}

/// One standby's answers.
#[derive(Clone, Copy, Debug)]
struct Teller {
    mood: Mood,
    mood_ends_us: u64,
    /// `true` if the standby is never current.
    is_stuck: bool,
    /// `true` if the standby has been current once.
    was_current: bool,
    /// The time since which each answer was above the limit, or missing.
    over_since_us: Option<u64>,
}

/// See the module's head.
pub struct Lags {
    rng: Rng,
    tellers: Vec<Teller>,
}

impl Lags {
    /// Creates standbys that have not been asked yet.
    #[must_use]
    pub fn new(seed: u64, nodes: usize) -> Lags {
        let mut rng = Rng::new(seed ^ 0x1a_9c_0d_e5);
        let teller = |_| Teller {
            mood: Mood::Current,
            mood_ends_us: 0,
            is_stuck: rng.percent(25),
            was_current: false,
            over_since_us: None,
        };
        let tellers = (0..nodes).map(teller).collect();
        Lags { rng, tellers }
    }

    /// A node is asked for its lag.
    pub fn answer(&mut self, node: usize, now_us: u64) -> LagAnswer {
        let Lags { rng, tellers } = self;
        let teller = &mut tellers[node];
        if now_us >= teller.mood_ends_us {
            let moods = [Mood::Behind, Mood::Hostile, Mood::Current, Mood::Current];
            teller.mood = *rng.pick(if teller.is_stuck { &moods[..2] } else { &moods });
            let longest_us = if rng.percent(20) { MOOD_US_MAX } else { MOOD_US_MAX / 10 };
            teller.mood_ends_us = now_us + rng.between(1, longest_us);
        }
        teller.was_current |= teller.mood == Mood::Current;
        teller.over_since_us = match teller.mood {
            Mood::Current => None,
            Mood::Behind | Mood::Hostile => teller.over_since_us.or(Some(now_us)),
        };
        match teller.mood {
            Mood::Current => rows(&[Some(*rng.pick(&["0", "0.25", "1e-06", "4.9"]))], b'I'),
            Mood::Behind => rows(&[Some(*rng.pick(&["10.1", "60", "1e9"]))], b'I'),
            Mood::Hostile => hostile(rng),
        }
    }

    /// Returns whether no new statement may begin at a standby: it has never reported that it is current, or
    /// not for too long.
    #[must_use]
    pub fn is_known_behind(&self, node: usize, check_timeout_ms: u64, now_us: u64) -> bool {
        let known_us = check_timeout_ms * 1000 + BEGUN_US;
        let Teller { was_current, over_since_us, .. } = self.tellers[node];
        !was_current || over_since_us.is_some_and(|since_us| now_us > since_us + known_us)
    }
}

fn hostile(rng: &mut Rng) -> LagAnswer {
    match rng.below(9) {
        0 => rows(&[None], b'I'),
        1 => rows(&[Some("-1")], b'I'),
        2 => rows(&[Some("NaN")], b'I'),
        3 => rows(&[Some("00:00:00")], b'I'),
        4 => rows(&[Some("0"), Some("0")], b'I'),
        5 => rows(&[], b'I'),
        // It has left a transaction open.
        6 => rows(&[Some("0")], b'T'),
        7 => LagAnswer::Silent,
        _ if rng.percent(50) => LagAnswer::Dies,
        _ => LagAnswer::Says(vec![
            Body::new()
                .byte(b'S')
                .text("ERROR")
                .byte(b'C')
                .text("42P01")
                .byte(b'M')
                .text("relation \"heartbeat\" does not exist")
                .byte(0)
                .message(b'E'),
            Body::new().byte(b'I').message(b'Z'),
        ]),
    }
}

/// Rows of one column.
fn rows(values: &[Option<&str>], status: u8) -> LagAnswer {
    let head = Body::new().int16(1).text("c").int32(0).int16(0).int32(25).int16(-1).int32(-1).int16(0);
    let mut messages = vec![head.message(b'T')];
    for value in values {
        let row = Body::new().int16(1);
        let row = match value {
            Some(value) => row.counted(value.as_bytes()),
            None => row.int32(-1),
        };
        messages.push(row.message(b'D'));
    }
    messages.push(Body::new().text("SELECT 1").message(b'C'));
    messages.push(Body::new().byte(status).message(b'Z'));
    LagAnswer::Says(messages)
}
