//! Counts a process's system calls with `perf stat`, which disturbs it little; strace would slow it down so much that it
//! behaves differently.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::process::{self, Process, StopPlan};
use crate::processes::scratch::Scratch;

const EVENT: &str = "raw_syscalls:sys_enter";
/// perf prints its count on SIGINT.
const STOP: StopPlan = &[(Signal::SIGINT, Duration::from_secs(5))];
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// Counts until it is finished.
#[derive(Debug)]
pub(super) struct SyscallCounter {
    perf: Process,
    output: PathBuf,
}

impl SyscallCounter {
    /// Whether perf is there and may count system calls.
    pub(super) fn works(interrupt: &Interrupt) -> bool {
        let mut command = Command::new("perf");
        command.args(["stat", "--field-separator", ",", "--event", EVENT, "true"]);
        process::run(&mut command, "perf", TRIAL_LIMIT, interrupt, &mut |_| {})
            .is_ok_and(|finished| finished.status.success() && count(&finished.stderr).is_some())
    }

    /// Starts counting the calls of all threads of a process.
    pub(super) fn start(pid: u32, scratch: &Scratch) -> Result<Self, BenchError> {
        let output = scratch.path().join("perf.csv");
        let _ = std::fs::remove_file(&output);
        let mut command = Command::new("perf");
        command.args([
            "stat",
            "--field-separator",
            ",",
            "--event",
            EVENT,
            "--pid",
            &pid.to_string(),
            "--output",
        ]);
        command.arg(&output).stdout(Stdio::null()).stderr(Stdio::null());
        let perf = Process::spawn(&mut command, "perf", STOP)?;
        Ok(Self { perf, output })
    }

    /// Ends counting; the number of calls.
    pub(super) fn finish(mut self) -> Result<u64, BenchError> {
        self.perf.stop();
        let text = std::fs::read_to_string(&self.output).unwrap_or_default();
        count(&text).ok_or_else(|| BenchError::failed("perf gave no count", &text))
    }
}

/// The first column of the line of our event.
fn count(text: &str) -> Option<u64> {
    text.lines().find(|line| line.contains(EVENT))?.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_and_its_absence_noticed() {
        assert_eq!(count("# started on Fri\n\n12345,,raw_syscalls:sys_enter,1000,100.00,,\n"), Some(12_345));
        assert_eq!(count("<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n"), None);
        assert_eq!(count(""), None);
    }
}
