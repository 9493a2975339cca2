//! What a waiting user sees: on a terminal one line that is rewritten, elsewhere one line for each phase.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// Prints on standard output, as `print!` does. Where that cannot be written (a terminal that was closed, a pipe that no process reads any
/// more), it is not: a panic would be in the way of cleaning up.
macro_rules! say {
    ($($words:tt)*) => { $crate::report::progress::write(&mut std::io::stdout(), format_args!($($words)*)) };
}

/// The same with a line on standard error.
macro_rules! note {
    ($($words:tt)*) => {
        $crate::report::progress::write(&mut std::io::stderr(), format_args!("{}\n", format_args!($($words)*)))
    };
}

pub(crate) use {note, say};

/// See [`say`].
pub(crate) fn write(to: &mut dyn Write, words: fmt::Arguments<'_>) {
    let _ = to.write_fmt(words);
    let _ = to.flush();
}

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

    /// Shows where the phase is. Not shown where lines cannot be rewritten.
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
        note!("{line}");
    }

    /// Removes a line that is being rewritten.
    pub(crate) fn clear(&mut self) {
        if self.live {
            write(&mut io::stderr(), format_args!("\r\x1b[2K"));
        }
    }

    fn rewrite(&self, line: &str) {
        write(&mut io::stderr(), format_args!("\r\x1b[2K{}", cut(line)));
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
    fn what_cannot_be_written_is_dropped() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        drop(reader);
        write(&mut writer, format_args!("to no reader"));
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let long = "ä".repeat(100);
        assert_eq!(cut(&long).chars().count(), WIDTH);
        assert_eq!(cut("short"), "short");
    }
}
