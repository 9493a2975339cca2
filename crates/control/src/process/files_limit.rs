//! The number of files and sockets that the process may have open, and the number that it expects to need.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The number of files that are neither clients nor servers: log, pid file, listeners, event queues.
const FILES_OF_OUR_OWN: u64 = 32;

/// `RLIMIT_NOFILE` of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilesLimit {
    /// The limit that the kernel enforces.
    pub soft: u64,
    /// The highest value to which the process may raise `soft`.
    pub hard: u64,
}

impl FilesLimit {
    /// Reads the limit and raises it if fewer than `expected` files are allowed, as far as needed and
    /// permitted.
    ///
    /// # Errors
    ///
    /// The system's error, which is hardly possible.
    pub fn raise_to(expected: u64) -> Result<FilesLimit, Errno> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let wanted = FilesLimit { soft, hard }.raised(expected);
        if wanted.soft > soft {
            setrlimit(Resource::RLIMIT_NOFILE, wanted.soft, hard)?;
        }
        Ok(wanted)
    }

    fn raised(self, expected: u64) -> FilesLimit {
        FilesLimit { soft: self.soft.max(expected.min(self.hard)), ..self }
    }
}

/// Returns the number of files that may be open at once: every allowed client, and every pool full.
/// `pool_sizes` has one number for each database: its pool's size, times the known users unless its user is
/// forced.
#[must_use]
pub fn expected_files(max_client_conn: u64, pool_sizes: impl IntoIterator<Item = u64>) -> u64 {
    pool_sizes.into_iter().fold(max_client_conn.saturating_add(FILES_OF_OUR_OWN), u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_rises_to_what_is_needed_but_not_above_the_hard_one() {
        let limit = FilesLimit { soft: 1024, hard: 4096 };
        for (expected, soft) in [(100, 1024), (1024, 1024), (1025, 1025), (4096, 4096), (9999, 4096)] {
            assert_eq!(limit.raised(expected), FilesLimit { soft, hard: 4096 });
        }
    }

    #[test]
    fn reading_the_limit_does_not_lower_it() {
        let before = FilesLimit::raise_to(0).expect("readable");
        assert_eq!(FilesLimit::raise_to(1), Ok(before));
    }

    #[test]
    fn expectation_adds_up_and_cannot_overflow() {
        assert_eq!(expected_files(100, [20, 5]), 125 + FILES_OF_OUR_OWN);
        assert_eq!(expected_files(u64::MAX, [20]), u64::MAX);
    }
}
