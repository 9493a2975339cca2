//! What the operating system knows: limits of open files, and the kernel's own.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};
use pgweir_doctor::FilesLimit;

/// More files than there can be, and room to calculate with it.
const UNLIMITED: u64 = 1 << 48;

/// The kernel's bound of the listen backlog.
pub(super) fn somaxconn() -> Option<u64> {
    fs::read_to_string("/proc/sys/net/core/somaxconn").ok()?.trim().parse().ok()
}

/// What a pgweir that is started from here may open: it raises its soft limit itself.
pub(super) fn own_files_limit() -> Option<FilesLimit> {
    let (_, max) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    Some(FilesLimit { max, open: None })
}

/// What another process may open. The number of its open files is known to its own user and to root only.
pub(super) fn files_limit(pid: u32) -> Option<FilesLimit> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|files| files.count() as u64);
    Some(FilesLimit { max: max_of(&limits)?, open })
}

/// The soft limit counts: pgweir has raised it as far as it needed when it started.
fn max_of(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(UNLIMITED),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_has_limits() {
        let found = files_limit(std::process::id()).expect("/proc is there");
        assert!(found.open.is_some_and(|open| open > 0 && open <= found.max), "{found:?}");
        assert!(own_files_limit().is_some() && somaxconn().is_some());
        assert_eq!(files_limit(0), None);
    }

    #[test]
    fn the_soft_limit_is_read() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files     \n";
        assert_eq!(max_of(text), Some(1024));
        assert!(max_of(&text.replace("1024", "unlimited")).is_some_and(|max| max > 1 << 40));
        assert_eq!(max_of(""), None);
    }
}
