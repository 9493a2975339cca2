//! The machine that something is measured on: what a report must say about it, and its limits.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::BenchError;

/// Files besides sockets that a load generator or a pooler has open.
const SPARE_FILES: u64 = 200;

/// Share of the processors from which on other work counts.
const BUSY_SHARE: f64 = 0.25;

/// What a reader needs to judge figures by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// CPU model as the kernel names it.
    pub(crate) cpu: String,
    /// CPUs that this process may use.
    pub(crate) cpus: usize,
    /// Memory, MiB.
    pub(crate) memory_mib: u64,
    /// Kernel release.
    pub(crate) kernel: String,
}

impl Machine {
    /// Looks at this machine.
    #[must_use]
    pub(crate) fn look() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: labelled(&text("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_mib: labelled(&text("/proc/meminfo"), "MemTotal")
                .and_then(|value| value.split(' ').next()?.parse::<u64>().ok())
                .unwrap_or(0)
                / 1024,
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// How busy the machine is with other work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Business {
    /// Average number of processes that ran or wanted to run in the last minute.
    load: f64,
    cpus: usize,
}

impl Business {
    /// Looks at this machine now; `None` if the kernel does not say.
    #[must_use]
    pub(crate) fn look() -> Option<Self> {
        let text = fs::read_to_string("/proc/loadavg").ok()?;
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Some(Self { load: text.split(' ').next()?.parse().ok()?, cpus })
    }

    /// Returns such a machine.
    #[cfg(test)]
    pub(crate) fn new(load: f64, cpus: usize) -> Self {
        Self { load, cpus }
    }

    /// Whether other work takes a noticeable part of the processors.
    #[must_use]
    fn is_busy(self) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "few processors")]
        let cpus = self.cpus as f64;
        self.load > cpus * BUSY_SHARE
    }

    /// Returns a part of a sentence that says how busy the machine was.
    #[must_use]
    pub(crate) fn clause(self) -> String {
        format!("the {}", self.figures())
    }

    /// Returns a sentence that says how busy the machine was, with a warning if it had other work.
    #[must_use]
    pub(crate) fn sentence(self) -> String {
        format!("The {}.{}", self.figures(), self.warning())
    }

    fn figures(self) -> String {
        let noun = if self.cpus == 1 { "CPU" } else { "CPUs" };
        format!("machine's load was {:.1} on {} {noun} before the runs", self.load, self.cpus)
    }

    /// Returns what follows a sentence with that clause on a machine that has other work.
    #[must_use]
    pub(crate) fn warning(self) -> &'static str {
        if self.is_busy() { " It was busy: run this again when it is idle." } else { "" }
    }
}

/// The value behind the first `label ... : value`.
fn labelled(text: &str, label: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(label))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Lets this process, and what it starts, have a socket for each of `clients`.
///
/// # Errors
/// [`BenchError::Missing`] if the system's limit is lower and may not be raised.
pub(crate) fn raise_file_limit(clients: u32) -> Result<(), BenchError> {
    let needed = u64::from(clients) + SPARE_FILES;
    let possible = file_limit(needed);
    if possible < needed {
        return Err(BenchError::Missing(format!(
            "{clients} clients need {needed} open files, but the limit is {possible}: raise it with ulimit -n"
        )));
    }
    Ok(())
}

/// Raises the limit of open files to at least `needed` if that is possible; the limit as it then is.
#[must_use]
pub(crate) fn file_limit(needed: u64) -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    if soft >= needed {
        return soft;
    }
    let wanted = needed.max(hard);
    // Only root may raise the hard limit; others take all there is.
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_ok() {
        return wanted;
    }
    if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_label() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nmodel name\t: other\n";
        assert_eq!(labelled(text, "model name").as_deref(), Some("Some CPU @ 3 GHz"));
        assert_eq!(labelled(text, "MemTotal"), None);
    }

    #[test]
    fn a_busy_machine_is_told() {
        let idle = Business::new(0.1, 1);
        assert_eq!(
            (idle.clause().as_str(), idle.warning()),
            ("the machine's load was 0.1 on 1 CPU before the runs", "")
        );
        let busy = Business::new(0.6, 2);
        assert_eq!(
            busy.sentence(),
            "The machine's load was 0.6 on 2 CPUs before the runs. It was busy: run this again when it is idle."
        );
        assert!(Business::look().is_some());
    }

    #[test]
    fn a_small_limit_is_always_there() {
        assert!(file_limit(1) >= 1);
        assert!(Machine::look().cpus >= 1);
    }
}
