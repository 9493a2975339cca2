//! What a waiting user sees: on a terminal one line that is rewritten, elsewhere one line for each phase.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// A line is cut here, so that rewriting works on an 80-column terminal.
const WIDTH: usize = 78;

/// The progress of one command, on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    live: bool,
    phase: String,
    since: Instant,
}

impl Progress {
    /// Looks whether standard error is a terminal.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { live: io::stderr().is_terminal(), phase: String::new(), since: Instant::now() }
    }

    /// Begins a phase.
    pub(crate) fn phase(&mut self, name: &str) {
        name.clone_into(&mut self.phase);
        self.since = Instant::now();
        if self.live {
            self.rewrite(&format!("{name} ..."));
        }
    }

    /// Shows where the phase is. Not shown where lines can not be rewritten.
    pub(crate) fn detail(&mut self, detail: &str) {
        if self.live {
            self.rewrite(&format!("{}: {detail}", self.phase));
        }
    }

    /// Ends the phase with its result.
    pub(crate) fn done(&mut self, result: &str) {
        let separator = if result.is_empty() { "" } else { ": " };
        let line = format!("{}{separator}{result} ({:.1} s)", self.phase, self.since.elapsed().as_secs_f64());
        self.clear();
        eprintln!("{line}");
    }

    /// Removes a line that is being rewritten.
    pub(crate) fn clear(&mut self) {
        if self.live {
            eprint!("\r\x1b[2K");
            let _ = io::stderr().flush();
        }
    }

    fn rewrite(&self, line: &str) {
        eprint!("\r\x1b[2K{}", cut(line));
        let _ = io::stderr().flush();
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn cut(line: &str) -> &str {
    line.char_indices().nth(WIDTH).map_or(line, |(end, _)| &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_between_characters() {
        let long = "ä".repeat(100);
        assert_eq!(cut(&long).chars().count(), WIDTH);
        assert_eq!(cut("short"), "short");
    }
}
