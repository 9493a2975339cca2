//! Samples what processes use, from `/proc`: CPU time to the nanosecond (`schedstat`), memory (`smaps_rollup`); and the
//! number of server connections, from `pg_stat_activity`.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::BenchError;
use crate::servers::cluster::{Cluster, connections};
use pgweir_client::Client;

/// `/proc/*/stat` counts in ticks of USER_HZ, which is 100 on every Linux that user space can see.
const NS_PER_TICK: u64 = 10_000_000;
/// How often a reading is repeated that a child's end has spoilt.
const READ_AGAIN_MAX: u32 = 50;
/// How often connections are counted.
const COUNT_EVERY: Duration = Duration::from_millis(200);

/// CPU time of all threads of a process, nanoseconds.
///
/// # Errors
/// There is no such process, or `/proc` is not Linux's.
pub(crate) fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let mut sum_ns = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between listing and reading.
        let Ok(text) = fs::read_to_string(entry?.path().join("schedstat")) else { continue };
        sum_ns += schedstat_ns(&text).ok_or_else(|| io::Error::other("schedstat has no first number"))?;
    }
    Ok(sum_ns)
}

/// CPU time of a process and its children, nanoseconds: some poolers have a process for each client.
///
/// # Errors
/// There is no such process.
pub(crate) fn family_cpu_ns(pid: u32) -> io::Result<u64> {
    Ok(process_cpu_ns(pid)? + children_cpu_ns(pid)?)
}

/// CPU time of a process's children, living and reaped, nanoseconds. The share of those that ended is exact to 10 ms only.
///
/// # Errors
/// There is no such process.
pub(crate) fn children_cpu_ns(parent: u32) -> io::Result<u64> {
    let mut reaped_ns = reaped_cpu_ns(parent)?;
    for _ in 0..READ_AGAIN_MAX {
        let living_ns: u64 =
            children_of(parent)?.into_iter().filter_map(|pid| process_cpu_ns(pid).ok()).sum();
        let reaped_after_ns = reaped_cpu_ns(parent)?;
        if reaped_after_ns == reaped_ns {
            return Ok(reaped_ns + living_ns);
        }
        // A child was reaped meanwhile: it may be missing in both numbers, or be in both.
        reaped_ns = reaped_after_ns;
    }
    Err(io::Error::other("children end faster than they can be counted"))
}

fn reaped_cpu_ns(parent: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{parent}/stat"))?;
    let line = stat_line(&stat).ok_or_else(|| io::Error::other("/proc/*/stat is not as documented"))?;
    Ok(line.reaped_children_ticks * NS_PER_TICK)
}

fn children_of(parent: u32) -> io::Result<Vec<u32>> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if stat_line(&stat).is_some_and(|line| line.parent == parent) {
            children.push(pid);
        }
    }
    Ok(children)
}

/// The first number of `schedstat`: time on a CPU, nanoseconds.
fn schedstat_ns(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// What is used of `/proc/*/stat`.
#[derive(Debug, PartialEq, Eq)]
struct StatLine {
    parent: u32,
    reaped_children_ticks: u64,
}

/// Columns 4 (parent), 16 and 17 (user and system time of reaped children); see proc(5). The name in column 2 may contain
/// anything, so the columns are counted behind its closing parenthesis.
fn stat_line(text: &str) -> Option<StatLine> {
    let (_, behind_name) = text.rsplit_once(')')?;
    let columns: Vec<&str> = behind_name.split_ascii_whitespace().collect();
    let column = |number: usize| columns.get(number - 3);
    let ticks = |number: usize| column(number)?.parse::<u64>().ok();
    Some(StatLine { parent: column(4)?.parse().ok()?, reaped_children_ticks: ticks(16)? + ticks(17)? })
}

/// Memory of a process, KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Memory {
    /// Pages in memory, shared ones included.
    pub(crate) rss_kib: u64,
    /// Pages in memory, shared ones in proportion.
    pub(crate) pss_kib: u64,
    /// Pages that only this process has and has written to: what it costs.
    pub(crate) private_dirty_kib: u64,
}

/// What a process holds in user space. Buffers of the kernel for its sockets are not in it.
///
/// # Errors
/// There is no such process, or it is another user's.
pub(crate) fn memory(pid: u32) -> io::Result<Memory> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    smaps_rollup(&text).ok_or_else(|| io::Error::other("smaps_rollup is not as documented"))
}

fn smaps_rollup(text: &str) -> Option<Memory> {
    let value = |label: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(label))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(Memory {
        rss_kib: value("Rss:")?,
        pss_kib: value("Pss:")?,
        private_dirty_kib: value("Private_Dirty:")?,
    })
}

/// CPU time of the whole machine since it started, in ticks: all of it, and what the hypervisor took away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineCpu {
    total: u64,
    steal: u64,
}

impl MachineCpu {
    /// As it is now; `None` where `/proc/stat` is not Linux's.
    #[must_use]
    pub(crate) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let columns: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guest time is contained in user.
        Some(Self { total: columns.iter().take(8).sum(), steal: *columns.get(7)? })
    }

    /// The share of time that the hypervisor took between `self` and `later`, 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "tick counts are far below 2^52")]
    pub(crate) fn steal_until(self, later: Self) -> f64 {
        let total = later.total.saturating_sub(self.total);
        later.steal.saturating_sub(self.steal) as f64 / (total.max(1)) as f64
    }
}

/// Counts a load's server connections in the background, until it is asked for the largest number it saw. They are known
/// by the application_name of the clients, which poolers hand on.
#[derive(Debug)]
pub(crate) struct ConnectionCounter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl ConnectionCounter {
    /// Starts counting, over a separate connection as superuser.
    ///
    /// # Errors
    /// The cluster is not there.
    pub(crate) fn start(cluster: &Cluster, application_name: &str) -> Result<Self, BenchError> {
        let client = cluster.superuser()?;
        let condition = format!("application_name = '{}'", application_name.replace('\'', "''"));
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        Ok(Self { stop, thread: thread::spawn(move || count_until(client, &condition, &seen)) })
    }

    /// Ends counting; the largest number of connections that were open at the same time.
    #[must_use]
    pub(crate) fn peak(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0)
    }
}

fn count_until(mut superuser: Client, condition: &str, stop: &AtomicBool) -> u64 {
    let mut peak = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(count) = connections(&mut superuser, condition) else { break };
        peak = peak.max(count);
        thread::sleep(COUNT_EVERY);
    }
    peak
}

/// CPU time of the pooler and of the backends at one moment, to be subtracted from a later moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuMark {
    pooler_ns: Option<u64>,
    backends_ns: Option<u64>,
}

impl CpuMark {
    /// The pooler's (if there is one) and the backends' CPU time now.
    #[must_use]
    pub(crate) fn take(pooler: Option<u32>, postmaster: u32) -> Self {
        Self {
            pooler_ns: pooler.and_then(|pid| family_cpu_ns(pid).ok()),
            backends_ns: children_cpu_ns(postmaster).ok(),
        }
    }

    /// The pooler's CPU time until `later`, microseconds.
    #[must_use]
    pub(crate) fn pooler_us(&self, later: &Self) -> Option<f64> {
        difference_us(self.pooler_ns, later.pooler_ns)
    }

    /// The backends' CPU time until `later`, microseconds.
    #[must_use]
    pub(crate) fn backends_us(&self, later: &Self) -> Option<f64> {
        difference_us(self.backends_ns, later.backends_ns)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a run's CPU time is far below 2^52 nanoseconds")]
fn difference_us(before_ns: Option<u64>, after_ns: Option<u64>) -> Option<f64> {
    Some(after_ns?.checked_sub(before_ns?)? as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_gives_its_first_number() {
        assert_eq!(schedstat_ns("24171558 25349792 69\n"), Some(24_171_558));
        assert_eq!(schedstat_ns(""), None);
        assert_eq!(schedstat_ns("-1 2 3"), None);
    }

    #[test]
    fn stat_is_read_behind_a_name_with_parentheses_and_spaces() {
        let text = "4242 (a) (b c) S 17 4242 4242 0 -1 4194560 100 200 0 0 5 6 70 8 20 0 1 0 12345";
        assert_eq!(stat_line(text), Some(StatLine { parent: 17, reaped_children_ticks: 78 }));
        assert_eq!(stat_line("4242 (name) S 17"), None);
    }

    #[test]
    fn smaps_rollup_is_read_and_pss_is_not_pss_dirty() {
        let text = "55d0-7ffc ---p 00000000 00:00 0 [rollup]\nRss:    8172 kB\nPss:    2100 kB\nPss_Dirty:   900 kB\n\
                    Private_Clean:   12 kB\nPrivate_Dirty:      888 kB\n";
        assert_eq!(smaps_rollup(text), Some(Memory { rss_kib: 8172, pss_kib: 2100, private_dirty_kib: 888 }));
        assert_eq!(smaps_rollup("Rss: 12 kB\n"), None);
    }

    #[test]
    fn our_own_cpu_time_grows_with_work() {
        let pid = std::process::id();
        let before = process_cpu_ns(pid).expect("Linux");
        let mut sum = 0_u64;
        while process_cpu_ns(pid).expect("Linux") < before + 1_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(memory(pid).expect("Linux").private_dirty_kib > 0);
    }

    #[test]
    fn a_reaped_childs_cpu_time_is_not_lost() {
        let me = std::process::id();
        let before = children_cpu_ns(me).expect("Linux");
        let mut child = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"])
            .spawn()
            .expect("sh starts");
        child.wait().expect("it ends");
        assert!(children_cpu_ns(me).expect("Linux") > before);
    }

    #[test]
    fn steal_is_a_share() {
        let before = MachineCpu::parse("cpu  100 0 100 800 0 0 0 0 0 0\n").expect("a line");
        let after = MachineCpu::parse("cpu  150 0 100 840 0 0 0 10 50 0\n").expect("a line");
        assert!((before.steal_until(after) - 0.1).abs() < 1e-9);
        assert_eq!(MachineCpu::parse("cpu 1 2 3"), None);
    }
}
