//! Arrows point down only: the crates below `net` know no socket, no clock, no thread, no file and no environment.

use std::path::Path;

use crate::tidy::Problem;
use crate::tidy::source::{Source, has_word};

/// The crates that must stay pure, from the bottom up, each with what it may use of the house.
const PURE: [(&str, &[&str]); 7] = [
    ("wire", &[]),
    ("sql", &[]),
    ("settings", &[]),
    ("auth", &["wire"]),
    ("core", &["wire", "sql", "auth", "settings"]),
    ("import", &["auth", "settings"]),
    ("doctor", &["auth", "settings"]),
];

/// Crates that bring I/O, time, threads or a runtime.
const IMPURE_CRATES: [&str; 7] = ["mio", "tokio", "nix", "libc", "socket2", "signal-hook", "rand"];

/// Names in code that reach for the world, and why each is refused.
const IMPURE_NAMES: [(&str, &str); 15] = [
    ("Instant", "time is passed in"),
    ("SystemTime", "time is passed in"),
    ("SystemRandom", "randomness is passed in"),
    ("TcpStream", "sockets belong to net"),
    ("TcpListener", "sockets belong to net"),
    ("UdpSocket", "sockets belong to net"),
    ("UnixStream", "sockets belong to net"),
    ("UnixListener", "sockets belong to net"),
    ("ToSocketAddrs", "names are resolved by the driver"),
    ("std::thread", "the machine has no threads"),
    ("std::fs", "the driver of the machine reads files"),
    ("std::env", "the environment is read by the binary"),
    ("std::process", "processes belong to the binary"),
    ("thread_local!", "state is passed in"),
    ("static mut", "state is passed in"),
];

/// Dependencies of the pure crates.
pub(super) fn manifest(path: &Path, text: &str) -> Vec<Problem> {
    let Some((_, house)) = pure_crate(path) else { return Vec::new() };
    let mut problems = Vec::new();
    let mut section = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        }
        let Some((name, _)) = line.split_once('=').filter(|_| section == "dependencies") else { continue };
        let name = name.trim().split('.').next().unwrap_or_default();
        let below = name.strip_prefix("pgweir-").is_none_or(|below| house.contains(&below));
        if IMPURE_CRATES.contains(&name) || !below {
            problems.push(Problem::new(
                path,
                index + 1,
                format!("this crate must not depend on {name}: arrows point down only"),
            ));
        }
    }
    problems
}

/// Code of the pure crates, tests aside.
pub(super) fn rust(path: &Path, source: &Source) -> Vec<Problem> {
    let Some((name, _)) = pure_crate(path) else { return Vec::new() };
    let is_test = !path.starts_with(format!("crates/{name}/src"))
        || path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|stem| stem == "tests" || stem.to_string_lossy().ends_with("_tests"));
    if is_test {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (number, line) in source.lines_without_tests() {
        for (word, reason) in IMPURE_NAMES {
            if has_word(line, word) {
                problems.push(Problem::new(path, number, format!("{word} in crate {name}: {reason}")));
            }
        }
    }
    problems
}

fn pure_crate(path: &Path) -> Option<(&'static str, &'static [&'static str])> {
    PURE.into_iter().find(|(name, _)| path.starts_with(format!("crates/{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_problems(path: &str, text: &str) -> usize {
        rust(Path::new(path), &Source::new(text)).len()
    }

    #[test]
    fn a_clock_in_core_is_found_and_in_net_allowed() {
        let text = "use std::time::{Duration, Instant};\n";
        assert_eq!(code_problems("crates/core/src/worker.rs", text), 1);
        assert_eq!(code_problems("crates/net/src/clock.rs", text), 0);
    }

    #[test]
    fn tests_and_comments_may_do_what_they_like() {
        let text = "// std::fs\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert_eq!(code_problems("crates/settings/src/lib.rs", text), 0);
        assert_eq!(code_problems("crates/settings/tests/files.rs", "use std::fs;\n"), 0);
        assert_eq!(code_problems("crates/settings/src/ini/tests.rs", "use std::fs;\n"), 0);
    }

    #[test]
    fn dependencies_point_down() {
        let text = "[dependencies]\npgweir-wire = { workspace = true }\npgweir-net.workspace = true\nmio = \"1\"\n\
                    [dev-dependencies]\ntokio = \"1\"\n";
        let lines: Vec<usize> =
            manifest(Path::new("crates/auth/Cargo.toml"), text).iter().map(|p| p.line).collect();
        assert_eq!(lines, [3, 4]);
        assert!(manifest(Path::new("crates/net/Cargo.toml"), text).is_empty());
    }
}
