//! The position that a client's reads must see: one in the cluster's history that is not before anything that the client has committed.
//!
//! A position is only compared with one of the same timeline. After a promotion nothing is calculated: for a position of an older
//! timeline the new primary is asked for its position, which is behind everything that has survived.

use std::fmt;

use crate::cluster::answer::Lsn;
use crate::limits::AHEAD_BYTES_MAX;

/// A position in a cluster's history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub(crate) timeline: u32,
    pub(crate) lsn: Lsn,
}

/// The requirement for the next read of a client.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Token {
    /// The client's reads may run on any standby.
    #[default]
    Nothing,
    /// The read must see the primary's position of the time when the question with this number is answered. The questions of a pool are
    /// numbered in the order in which they are sent.
    Asked(u64),
    /// The read must see this position.
    At(Position),
    /// The read must see a newer history, because the client has already read from a standby that was promoted.
    Beyond(Beyond),
    /// The value of `pgweir.read_after` is not a position of this cluster.
    Refused,
}

/// The value of `pgweir.read_after`: a position of the primary, which the client got through any connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadAfter {
    /// A position. Without a timeline it is of the primary's present one.
    At { timeline: Option<u32>, lsn: Lsn },
    /// A text that is not a position.
    Malformed,
}

impl ReadAfter {
    /// Reads `0/404C6B0`, or `00000002-0/404C6B0` with the timeline. Returns `None` for an empty text.
    pub(crate) fn parse(text: &[u8]) -> Option<ReadAfter> {
        let text = text.trim_ascii();
        let position = || {
            let text = std::str::from_utf8(text).ok()?;
            let Some((timeline, lsn)) = text.split_once('-') else {
                return Some(ReadAfter::At { timeline: None, lsn: Lsn::parse(text)? });
            };
            let is_hex = !timeline.is_empty() && timeline.bytes().all(|byte| byte.is_ascii_hexdigit());
            let timeline =
                u32::from_str_radix(timeline, 16).ok().filter(|timeline| is_hex && *timeline > 0)?;
            Some(ReadAfter::At { timeline: Some(timeline), lsn: Lsn::parse(lsn)? })
        };
        (!text.is_empty()).then(|| position().unwrap_or(ReadAfter::Malformed))
    }

    /// Returns the token for a cluster whose primary has this timeline; `None` if no primary is known.
    pub(crate) fn token(self, timeline: Option<u32>) -> Token {
        let ReadAfter::At { timeline: said, lsn } = self else { return Token::Refused };
        // While no primary is known: of a timeline before all others, so that the next primary says what is to be seen.
        let timeline = said.or(timeline).unwrap_or(0);
        Token::At(Position { timeline, lsn })
    }
}

/// The mark of a client that has read from a promoted standby, whose history may be newer than that of the present primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Beyond {
    /// The timeline from which the promotion departed.
    pub(crate) timeline: u32,
    /// The time at which the requirement expires, because the promoted standby's history is not the cluster's if no newer timeline has come
    /// by then (monotonic, µs).
    pub(crate) until_us: u64,
}

impl Token {
    /// Whether the client waits for a newer history than that of a primary with this timeline.
    pub(crate) fn is_beyond(self, primary: Option<u32>, now_us: u64) -> bool {
        match self {
            Token::Beyond(Beyond { timeline, until_us }) => {
                now_us < until_us && primary.is_none_or(|known| known <= timeline)
            }
            _ => false,
        }
    }
}

/// The state of a pool's questions for the primary's position.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Asks {
    /// The number of questions that were sent.
    sent: u64,
    /// The last question is not answered yet. There is at most one unanswered question.
    is_under_way: bool,
    /// A client waits for the answer to the next question.
    pub(crate) is_wanted: bool,
    /// The number of the question that was answered last, and its answer; `None` before the first answer of the present primary's term.
    answered: Option<(u64, Position)>,
    /// The number of the first question that is sent in this term.
    first: u64,
}

impl Asks {
    /// Returns the token for a client whose change was answered just now: the next question is sent after that commit.
    pub(crate) fn next(&self) -> Token {
        Token::Asked(self.sent + 1)
    }

    /// Whether the next question is to be sent now.
    pub(crate) fn is_due(&self) -> bool {
        self.is_wanted && !self.is_under_way
    }

    /// Notes that the next question is sent.
    pub(crate) fn send(&mut self) {
        (self.sent, self.is_under_way, self.is_wanted) = (self.sent + 1, true, false);
    }

    /// Notes the answer to the question; `None` if there was no answer.
    pub(crate) fn end(&mut self, position: Option<Position>) {
        self.is_under_way = false;
        if let Some(position) = position.filter(|_| self.sent >= self.first) {
            self.answered = Some((self.sent, position));
        }
    }

    /// Notes that a term of a primary begins. Positions that an earlier primary has told no longer count.
    pub(crate) fn begin_term(&mut self) {
        (self.answered, self.first) = (None, self.sent + 1);
    }

    /// Whether a position that this pool was told is of an earlier term, so that the cluster may never reach it again. A primary tells the
    /// position up to which it has inserted records. If it crashes before these are written, it starts again at an earlier position.
    pub(crate) fn may_be_lost(&self, position: Position) -> bool {
        self.answered.is_none_or(|(_, known)| position.lsn > known.lsn)
    }

    /// Whether a position is so far ahead of the last answer that it cannot be of this cluster; `None` before the first answer.
    pub(crate) fn is_far_ahead(&self, position: Position) -> Option<bool> {
        let (_, known) = self.answered?;
        Some(position.lsn.0 > known.lsn.0.saturating_add(AHEAD_BYTES_MAX))
    }

    /// Returns the position for a token whose question, or a later one, was answered, and any other token unchanged. A later answer will
    /// do, because a position that was asked for later is not before it.
    pub(crate) fn resolve(&self, token: Token) -> Token {
        match (token, self.answered) {
            (Token::Asked(asked), Some((number, position))) if asked <= number => Token::At(position),
            _ => token,
        }
    }
}

/// The size of the header of a page of the write-ahead log; `SEGMENT_HEADER_BYTES` is that of the first page of a segment.
const PAGE_HEADER_BYTES: u64 = 24;
const SEGMENT_HEADER_BYTES: u64 = 40;

impl Lsn {
    /// Returns the end of the last record before an insert position. After the header of a page in which no record ends yet, replay stays
    /// at the page's start for as long as the primary is idle (PostgreSQL's `xlog.c`, `xlog_internal.h`).
    ///
    /// A standby that has reached the start of a page has also replayed a record that ends right after its header: that record begins on an
    /// earlier page.
    pub(crate) fn at_end_of_record(self, page_bytes: u64) -> Lsn {
        let in_page = self.0 % page_bytes.max(1);
        let is_header = in_page == PAGE_HEADER_BYTES || in_page == SEGMENT_HEADER_BYTES;
        if is_header { Lsn(self.0 - in_page) } else { self }
    }
}

/// The question for a primary's position. The answer is the *insert* position, because a commit with `synchronous_commit=off` is ahead of
/// the written position.
pub(crate) const PRIMARY_QUESTION: &str = "SELECT at::pg_catalog.text, pg_catalog.current_setting('wal_block_size'), \
    pg_catalog.substr(pg_catalog.pg_walfile_name(at), 1, 8) FROM pg_catalog.pg_current_wal_insert_lsn() AS at";

/// The question for a standby's replay position. A statement that begins after the answer sees everything up to that position.
pub(crate) const STANDBY_QUESTION: &str = "SELECT pg_catalog.pg_last_wal_replay_lsn()::pg_catalog.text";

/// The columns of a row as a server sent them; `None` is NULL.
pub(crate) type Columns = [Option<Box<[u8]>>];

fn text(column: Option<&Option<Box<[u8]>>>) -> Option<&str> {
    std::str::from_utf8(column?.as_deref()?).ok()
}

impl Position {
    /// Reads the answer to [`PRIMARY_QUESTION`].
    pub(crate) fn of_primary(columns: &Columns) -> Option<Position> {
        let page_bytes = text(columns.get(1))?.parse().ok()?;
        let timeline = u32::from_str_radix(text(columns.get(2))?, 16).ok()?;
        Some(Position { timeline, lsn: Lsn::parse(text(columns.first())?)?.at_end_of_record(page_bytes) })
    }
}

/// Reads the answer to [`STANDBY_QUESTION`].
pub(crate) fn replayed(columns: &Columns) -> Option<Lsn> {
    Lsn::parse(text(columns.first())?)
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}-{}", self.timeline, self.lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(timeline: u32, lsn: u64) -> Position {
        Position { timeline, lsn: Lsn(lsn) }
    }

    fn columns(texts: &[&str]) -> Vec<Option<Box<[u8]>>> {
        texts.iter().map(|text| Some(text.as_bytes().into())).collect()
    }

    #[test]
    fn a_question_that_was_sent_before_the_answer_to_a_change_says_nothing_of_it() {
        let mut asks = Asks::default();
        let early = asks.next();
        asks.send();
        let late = asks.next();
        assert_eq!((early, late), (Token::Asked(1), Token::Asked(2)));
        asks.end(Some(at(1, 50)));
        assert_eq!((asks.resolve(early), asks.resolve(late)), (Token::At(at(1, 50)), late));
        asks.send();
        asks.end(None);
        assert_eq!(asks.resolve(late), late, "its answer was lost");
        asks.send();
        asks.end(Some(at(1, 70)));
        assert_eq!(asks.resolve(late), Token::At(at(1, 70)));
        assert_eq!(asks.resolve(Token::Nothing), Token::Nothing);
    }

    #[test]
    fn a_client_says_what_it_must_see() {
        let at = |timeline, lsn| Some(ReadAfter::At { timeline, lsn: Lsn(lsn) });
        for (text, read) in [
            ("", None),
            ("  ", None),
            ("0/404C6B0", at(None, 0x404_C6B0)),
            (" 0000000A-0/404C6B0 ", at(Some(10), 0x404_C6B0)),
            ("2-1/0", at(Some(2), 1 << 32)),
        ] {
            assert_eq!(ReadAfter::parse(text.as_bytes()), read, "{text}");
        }
        for text in ["x", "0-0/1", "-0/1", "+1-0/1", "1-", "1-0", "100000000-0/1", "1-2-0/1", "\u{e4}"] {
            assert_eq!(ReadAfter::parse(text.as_bytes()), Some(ReadAfter::Malformed), "{text}");
        }
        assert_eq!(ReadAfter::parse(b"\xff"), Some(ReadAfter::Malformed));
    }

    #[test]
    fn without_a_timeline_it_is_the_present_one() {
        let read = |timeline| ReadAfter::At { timeline, lsn: Lsn(7) };
        assert_eq!(read(None).token(Some(2)), Token::At(at(2, 7)));
        assert_eq!(read(Some(1)).token(Some(2)), Token::At(at(1, 7)));
        assert_eq!(read(None).token(None), Token::At(at(0, 7)));
        assert_eq!(ReadAfter::Malformed.token(Some(2)), Token::Refused);
    }

    #[test]
    fn what_is_far_ahead_of_the_primary_is_none_of_this_cluster() {
        let mut asks = Asks::default();
        assert_eq!(asks.is_far_ahead(at(2, 1 << 50)), None);
        asks.send();
        asks.end(Some(at(2, 5)));
        assert_eq!(asks.is_far_ahead(at(2, 5 + (1 << 40))), Some(false));
        assert_eq!(asks.is_far_ahead(at(2, 6 + (1 << 40))), Some(true));
    }

    #[test]
    fn a_position_behind_a_header_is_lowered_to_the_start_of_its_page() {
        for (inserted, ends) in [
            ("0/4000028", 0x400_0000),
            ("0/4002018", 0x400_2000),
            ("0/4002020", 0x400_2020),
            ("0/4000000", 0x400_0000),
            ("1/4002060", 0x1_0400_2060),
        ] {
            let read = Position::of_primary(&columns(&[inserted, "8192", "0000000A"]));
            assert_eq!(read, Some(at(10, ends)), "{inserted}");
        }
        assert_eq!(Position::of_primary(&columns(&["0/4002018", "32768", "1"])), Some(at(1, 0x400_2018)));
        assert_eq!(at(10, 0x404_C6B0).to_string(), "0000000A-0/404C6B0");
    }

    proptest! {
        #[test]
        fn any_row_is_read_without_panic(row in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), 0..5)) {
            let row: Vec<Option<Box<[u8]>>> = row.into_iter().map(|column| column.map(Into::into)).collect();
            let _ = (Position::of_primary(&row), replayed(&row));
        }

        #[test]
        fn a_page_of_any_size_is_read(position in any::<u64>(), page_bytes in any::<u64>()) {
            prop_assert!(Lsn(position).at_end_of_record(page_bytes) <= Lsn(position));
        }
    }
}
