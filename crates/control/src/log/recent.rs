//! The last lines of the log, for the dashboard, whose readers may have no access to the log file.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use pgweir_core::driver::Level;

use super::beginning;

/// The maximum number of warnings and errors that are kept.
const NOTABLE_MAX: usize = 200;

/// The maximum number of lines of level LOG that are kept. They have a place of their own: many logins must not push warnings out.
const USUAL_MAX: usize = 500;

/// The maximum size of a message that is kept. The log has longer ones in full.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// A kept line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentLine {
    /// The number of the line among all that were ever kept, from 1 on. A reader that has seen the line asks for those with a higher one.
    pub id: u64,
    /// The time of the line.
    pub at: SystemTime,
    /// The level: LOG, WARNING, ERROR or FATAL.
    pub level: Level,
    /// The text of the log line.
    pub message: String,
}

/// The last lines; see the module's head.
#[derive(Default)]
pub(crate) struct Recent {
    kept: Mutex<Kept>,
    /// `true` if lines of level LOG are kept, too. Nothing shows them without an HTTP server.
    keeps_usual: AtomicBool,
}

#[derive(Default)]
struct Kept {
    last_id: u64,
    notable: VecDeque<RecentLine>,
    usual: VecDeque<RecentLine>,
}

impl Recent {
    /// Keeps lines of level LOG from now on.
    pub(crate) fn keep_usual(&self) {
        self.keeps_usual.store(true, Ordering::Relaxed);
    }

    /// Returns whether a line of this level is kept.
    pub(crate) fn keeps(&self, level: Level) -> bool {
        level <= Level::Warning || (level == Level::Log && self.keeps_usual.load(Ordering::Relaxed))
    }

    pub(crate) fn note(&self, level: Level, message: &str) {
        if !self.keeps(level) {
            return;
        }
        let message = beginning(message, MESSAGE_BYTES_MAX).to_owned();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.last_id += 1;
        let line = RecentLine { id: kept.last_id, at: SystemTime::now(), level, message };
        let (lines, most) = match level {
            Level::Log => (&mut kept.usual, USUAL_MAX),
            _ => (&mut kept.notable, NOTABLE_MAX),
        };
        if lines.len() >= most {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Returns the kept lines down to `level` whose number is above `after`, the newest first. A number that no line has had yet is of an
    /// earlier process, whose reader needs all lines.
    pub(crate) fn lines(&self, level: Level, after: u64) -> Vec<RecentLine> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let after = if after > kept.last_id { 0 } else { after };
        let usual = kept.usual.iter().filter(|_| level >= Level::Log);
        let mut lines: Vec<RecentLine> =
            kept.notable.iter().chain(usual).filter(|line| line.id > after).cloned().collect();
        drop(kept);
        lines.sort_by_key(|line| std::cmp::Reverse(line.id));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_warnings_and_errors_are_kept_and_not_forever() {
        let recent = Recent::default();
        recent.note(Level::Log, "usual");
        for number in 0..NOTABLE_MAX + 5 {
            recent.note(Level::Warning, &format!("{number} {}", "ü".repeat(2_000)));
        }
        let lines = recent.lines(Level::Log, 0);
        assert_eq!(lines.len(), NOTABLE_MAX);
        assert!(lines[0].message.starts_with(&format!("{} ü", NOTABLE_MAX + 4)), "the newest first");
        assert!(lines.iter().all(|line| line.message.len() <= MESSAGE_BYTES_MAX));
    }

    #[test]
    fn usual_lines_are_kept_for_a_reader_and_push_no_warning_out() {
        let recent = Recent::default();
        assert!(!recent.keeps(Level::Log));
        recent.keep_usual();
        assert!(recent.keeps(Level::Log) && !recent.keeps(Level::Debug));
        recent.note(Level::Warning, "careful");
        for number in 0..USUAL_MAX + 5 {
            recent.note(Level::Log, &number.to_string());
        }
        recent.note(Level::Debug, "detail");
        let all = recent.lines(Level::Log, 0);
        assert_eq!((all.len(), all[0].message.as_str()), (USUAL_MAX + 1, "504"));
        assert_eq!(all.last().map(|line| (line.id, line.message.as_str())), Some((1, "careful")));
        assert_eq!(recent.lines(Level::Warning, 0).len(), 1);
        let news = recent.lines(Level::Log, all[2].id);
        assert_eq!(news.iter().map(|line| line.message.as_str()).collect::<Vec<_>>(), ["504", "503"]);
        assert_eq!(recent.lines(Level::Log, all[0].id), []);
        assert_eq!(
            recent.lines(Level::Log, all[0].id + 1).len(),
            all.len(),
            "a number of an earlier process"
        );
    }
}
