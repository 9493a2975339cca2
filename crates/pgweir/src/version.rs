//! `-V` and the "process up" line: what this is made of.

use std::fmt::Write as _;

use pgweir_control::{CommandLine, Draft};
use pgweir_core::console::version_text;
use pgweir_settings::{Main, VersionText};
use pgweir_version::VERSION;

use crate::command_line::VersionOptions;

/// The versions that this binary was built with.
const LOCK_FILE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"));

/// The page for `-V`: of the configuration file, if the command line names one, and of the sources that are read after any file.
pub(crate) fn page(options: &VersionOptions) -> String {
    let command_line = CommandLine {
        // A file without a line: the other sources alone.
        config: options.config.as_ref().map_or("/dev/null".to_owned(), |file| file.display().to_string()),
        overlay: options.overlay.overlay().unwrap_or_default(),
        ..CommandLine::default()
    };
    page_of(&Draft::glimpse(&command_line))
}

/// The first line is what SHOW VERSION answers, as in PgBouncer: tools compare the two.
fn page_of(main: &Main) -> String {
    let mut page = format!("{}\n", version_text(main, VERSION));
    if main.version_text == VersionText::Pgbouncer {
        let _ = writeln!(page, "pgweir {VERSION}");
    }
    for part in PARTS {
        let _ = writeln!(page, "{}: {}", part.does, part.name_and_version());
    }
    page.push_str("systemd: yes\n");
    page
}

/// The log line that says the process is ready, in PgBouncer's form.
pub(crate) fn process_up(main: &Main) -> String {
    let parts: Vec<String> =
        PARTS.iter().map(|part| format!("{}: {}", part.does, part.name_and_version())).collect();
    let release = main.compatible_with.release();
    format!("process up: pgweir {VERSION} (compatible with PgBouncer {release}), {}", parts.join(", "))
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
        let page = page_of(&Main::default());
        let mut lines = page.lines();
        assert_eq!(lines.next(), Some("PgBouncer 1.25.2"));
        assert!(lines.next().is_some_and(|line| line.starts_with("pgweir ")), "{page}");
        assert_eq!(lines.count(), 3);
    }
}
