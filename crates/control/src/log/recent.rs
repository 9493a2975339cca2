//! The last warnings and errors, for the dashboard, whose readers may have no access to the log file.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use pgweir_core::driver::Level;

use super::beginning;

/// The maximum number of lines that are kept.
const LINES_MAX: usize = 200;

/// The maximum size of a message that is kept. The log has longer ones in full.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// A line of level WARNING, ERROR or FATAL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notable {
    /// The time of the line.
    pub at: SystemTime,
    /// The level: WARNING, ERROR or FATAL.
    pub level: Level,
    /// The text of the log line.
    pub message: String,
}

/// The last such lines; see the module's head.
#[derive(Default)]
pub(crate) struct Recent(Mutex<VecDeque<Notable>>);

impl Recent {
    pub(crate) fn note(&self, level: Level, message: &str) {
        if level > Level::Warning {
            return;
        }
        let message = beginning(message, MESSAGE_BYTES_MAX).to_owned();
        let line = Notable { at: SystemTime::now(), level, message };
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Returns the kept lines, the newest first.
    pub(crate) fn lines(&self) -> Vec<Notable> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_warnings_and_errors_are_kept_and_not_forever() {
        let recent = Recent::default();
        recent.note(Level::Log, "usual");
        for number in 0..LINES_MAX + 5 {
            recent.note(Level::Warning, &format!("{number} {}", "ü".repeat(2_000)));
        }
        let lines = recent.lines();
        assert_eq!(lines.len(), LINES_MAX);
        assert!(lines[0].message.starts_with(&format!("{} ü", LINES_MAX + 4)), "the newest first");
        assert!(lines.iter().all(|line| line.message.len() <= MESSAGE_BYTES_MAX));
    }
}
