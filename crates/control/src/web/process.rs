//! The system's numbers about this process, from /proc. Without /proc there are none.

use std::fs;

/// The system's numbers about this process; `None` if the system does not tell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Process {
    pub(super) cpu_s: Option<f64>,
    pub(super) open_files: Option<u64>,
    pub(super) open_files_max: Option<u64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) virtual_bytes_max: Option<u64>,
    pub(super) started_s: Option<f64>,
}

impl Process {
    pub(super) fn read() -> Process {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        Process { open_files: open_files(), ..parse(&stat, &limits, &boot, ticks_per_s(), page_bytes()) }
    }
}

/// Returns the number of open files. Since Linux 6.2 it is the directory's size. On older kernels the entries
/// are counted, which takes milliseconds if there are thousands.
fn open_files() -> Option<u64> {
    let told = fs::metadata("/proc/self/fd").ok().map(|folder| folder.len());
    told.filter(|count| *count > 0).or_else(count_files)
}

fn count_files() -> Option<u64> {
    fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64)
}

fn ticks_per_s() -> f64 {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    ticks.map_or(100.0, |ticks| ticks as f64)
}

fn page_bytes() -> u64 {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096)
}

/// Parses files of proc(5). The name in parentheses may contain blanks, so fields are counted after it.
fn parse(stat: &str, limits: &str, boot: &str, ticks_per_s: f64, page_bytes: u64) -> Process {
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let number = |place: usize| fields.get(place - 3).and_then(|text| text.parse::<u64>().ok());
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let boot_s: Option<f64> =
        boot.lines().find_map(|line| line.strip_prefix("btime ")).and_then(|text| text.trim().parse().ok());
    Process {
        cpu_s: number(14).zip(number(15)).map(|(user, system)| (user + system) as f64 / ticks_per_s),
        open_files: None,
        open_files_max: limit("Max open files"),
        resident_bytes: number(24).map(|pages| pages * page_bytes),
        virtual_bytes: number(23),
        virtual_bytes_max: limit("Max address space"),
        started_s: boot_s.zip(number(22)).map(|(boot_s, ticks)| boot_s + ticks as f64 / ticks_per_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_counted() {
        let held = [fs::File::open("/dev/null").expect("there"), fs::File::open("/dev/null").expect("there")];
        // Other tests open and close files meanwhile.
        assert!(open_files().is_some_and(|count| count >= held.len() as u64));
        assert!(count_files().is_some_and(|count| count >= held.len() as u64));
    }

    #[test]
    fn a_name_with_parentheses_does_not_move_the_fields() {
        let stat = "17 (a) b (c) S 1 17 17 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 4 0 1000 8192 3 18446744073709551615";
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 4096                 files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        let process = parse(stat, limits, "cpu 1\nbtime 1700000000\n", 100.0, 4096);
        assert_eq!((process.cpu_s, process.open_files_max), (Some(3.0), Some(1024)));
        assert_eq!((process.resident_bytes, process.virtual_bytes), (Some(3 * 4096), Some(8192)));
        assert_eq!((process.started_s, process.virtual_bytes_max), (Some(1_700_000_010.0), None));
        assert!(parse("", "", "", 100.0, 4096).cpu_s.is_none());
    }

    #[test]
    fn this_process_has_files_open() {
        assert!(Process::read().open_files.is_some_and(|files| files > 2));
    }
}
