//! The events of a run, as lines. The last of them are kept, and they are only made if a caller wants them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// A ring of lines that survives a panic of the machine under test.
#[derive(Clone)]
pub struct Trace {
    lines: Option<Rc<RefCell<VecDeque<String>>>>,
    lines_max: usize,
    echo: bool,
}

impl Trace {
    /// Keeps nothing: for runs that are expected to pass.
    #[must_use]
    pub fn off() -> Self {
        Trace { lines: None, lines_max: 0, echo: false }
    }

    /// Keeps the last `lines_max` lines; with `echo` each is printed at once, too.
    #[must_use]
    pub fn keep(lines_max: usize, echo: bool) -> Self {
        Trace { lines: Some(Rc::new(RefCell::new(VecDeque::new()))), lines_max, echo }
    }

    /// Notes a line, at a virtual time.
    pub fn note(&self, now_us: u64, line: impl FnOnce() -> String) {
        let Some(lines) = &self.lines else { return };
        let line = format!("{:>10}.{:03} {}", now_us / 1000, now_us % 1000, line());
        if self.echo {
            eprintln!("{line}");
        }
        let mut lines = lines.borrow_mut();
        if lines.len() == self.lines_max {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The kept lines.
    #[must_use]
    pub fn tail(&self) -> Vec<String> {
        self.lines.as_ref().map_or_else(Vec::new, |lines| lines.borrow().iter().cloned().collect())
    }
}
