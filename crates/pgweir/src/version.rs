//! `-V` and the "process up" line: what this is made of.

use std::fmt::Write as _;

use pgweir_version::VERSION;

/// The PgBouncer release whose behaviour is the measure.
const COMPATIBLE_WITH: &str = "PgBouncer 1.25.2";

/// The versions that this binary was built with.
const LOCK_FILE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"));

/// What `-V` prints. The first line is what SHOW VERSION answers, as in PgBouncer: tools compare the two.
pub(crate) fn page() -> String {
    let mut page = format!("{COMPATIBLE_WITH}\npgweir {VERSION}\n");
    for part in PARTS {
        let _ = writeln!(page, "{}: {}", part.does, part.name_and_version());
    }
    page.push_str("systemd: yes\n");
    page
}

/// The log line that says the process is ready, in PgBouncer's form.
pub(crate) fn process_up() -> String {
    let parts: Vec<String> =
        PARTS.iter().map(|part| format!("{}: {}", part.does, part.name_and_version())).collect();
    format!("process up: pgweir {VERSION} (compatible with {COMPATIBLE_WITH}), {}", parts.join(", "))
}

struct Part {
    does: &'static str,
    package: &'static str,
    remark: &'static str,
}

const PARTS: [Part; 2] = [
    Part { does: "events", package: "mio", remark: " (epoll)" },
    Part { does: "tls", package: "rustls", remark: "" },
];

impl Part {
    fn name_and_version(&self) -> String {
        let version = locked_version(LOCK_FILE, self.package).unwrap_or("of unknown version");
        format!("{} {version}{}", self.package, self.remark)
    }
}

/// The version of `package` in the text of a Cargo.lock.
fn locked_version<'a>(lock_file: &'a str, package: &str) -> Option<&'a str> {
    let mut lines = lock_file.lines();
    lines.find(|line| line.strip_prefix("name = ").is_some_and(|name| name.trim_matches('"') == package))?;
    lines.next()?.strip_prefix("version = ").map(|version| version.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_version() {
        for part in &PARTS {
            let version = locked_version(LOCK_FILE, part.package).expect("in the lock file");
            assert!(version.starts_with(|first: char| first.is_ascii_digit()), "{version}");
        }
        assert_eq!(locked_version(LOCK_FILE, "no-such-package"), None);
    }

    #[test]
    fn the_first_line_is_what_the_console_shows() {
        let page = page();
        let mut lines = page.lines();
        assert_eq!(lines.next(), Some("PgBouncer 1.25.2"));
        assert!(lines.next().is_some_and(|line| line.starts_with("pgweir ")), "{page}");
        assert_eq!(lines.count(), 3);
    }
}
