//! Statements about what a session holds: few names, the same for all clients, so that they meet.

use super::message::query;
use super::phrases::Phrases;
use crate::sim::model::statement::Tag;
use crate::sim::network::proto::Message;

/// Channels, tables, cursors and statements: so many names each.
const NAMES: u64 = 3;
/// Advisory locks that clients fight for.
const SHARED_LOCKS: u64 = 4;

impl Phrases {
    /// A statement that makes, uses, or ends something.
    pub fn holding(&mut self) -> Vec<Message> {
        let tag = self.tag();
        let number = self.rng.below(NAMES);
        let tagged = |text: String| format!("{text} /*{}*/", tag.render());
        let text = match self.rng.below(100) {
            0..12 => format!("LISTEN ch{number}"),
            12..17 => format!("UNLISTEN ch{number}"),
            17..19 => "UNLISTEN *".to_owned(),
            19..33 => {
                let payload = Tag { duration_us: 0, ..tag }.render();
                format!("NOTIFY ch{number}, '{payload}'")
            }
            33..39 => format!("CREATE TEMP TABLE k{number} (a int)"),
            39..46 => format!("DROP TABLE k{number}"),
            46..53 => {
                // What can be prepared elsewhere by its text alone carries the text's own tag.
                let what = if self.rng.percent(80) { "SELECT who" } else { "INSERT INTO t" };
                return vec![query(&tagged(format!("PREPARE q{number} AS {what}")))];
            }
            53..65 => return self.executing(number),
            65..69 => format!("DEALLOCATE q{number}"),
            69..75 => self.lock("pg_advisory_lock"),
            75..78 => self.lock("pg_try_advisory_lock"),
            78..84 => self.lock("pg_advisory_unlock"),
            84..88 => "SELECT pg_advisory_unlock_all()".to_owned(),
            88..91 => {
                let text = format!("DECLARE h{number} CURSOR WITH HOLD FOR SELECT who");
                let rows = self.rng.count(1, 6);
                return self.wrap(&format!("{text} /*{}*/", Tag { rows, ..tag }.render()));
            }
            91..95 => {
                let count = self.rng.count(1, 3);
                return vec![query(&tagged(format!("FETCH {count} FROM h{number}")))];
            }
            95..98 => format!("CLOSE h{number}"),
            98 if self.may_reset => "DISCARD ALL".to_owned(),
            _ => "SELECT who".to_owned(),
        };
        self.wrap(&tagged(text))
    }

    /// EXECUTE, by the simple protocol: what it answers is known only when it runs.
    fn executing(&mut self, number: u64) -> Vec<Message> {
        let tag = Tag { rows: self.rng.count(0, 3), ..self.tag() };
        vec![query(&format!("EXECUTE q{number} /*{}*/", tag.render()))]
    }

    fn lock(&mut self, function: &str) -> String {
        format!("SELECT {function}({})", self.rng.below(SHARED_LOCKS))
    }
}
