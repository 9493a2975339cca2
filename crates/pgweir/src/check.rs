//! `pgweir check file.ini`: everything that is wrong with a configuration, in one run, without starting anything.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use pgweir_control::{CommandLine, Draft};

use crate::fleet;

/// Prints the report; exit code 0 means that the configuration can be used (warnings do not count).
pub(crate) fn check(config: &Path) -> ExitCode {
    let report = report(config);
    let _ = std::io::stdout().write_all(report.text().as_bytes());
    if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What is wrong with a configuration, and what its administrator should know.
pub(crate) struct Report {
    file: String,
    pub(crate) faults: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// Reads a configuration as a start would.
pub(crate) fn report(config: &Path) -> Report {
    let file = config.display().to_string();
    let command_line = CommandLine { config: file.clone(), ..CommandLine::default() };
    match Draft::read(&command_line) {
        Err(faults) => Report { file, faults, warnings: Vec::new() },
        Ok(draft) => {
            let mut faults = draft.user_faults.clone();
            faults.extend(fleet::tls_faults(&draft.config().main, draft.tls()));
            Report { file, faults, warnings: draft.warnings }
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let line = |kind: &str, text: &String| format!("{kind}: {text}\n");
        let mut lines: Vec<String> = self.faults.iter().map(|text| line("error", text)).collect();
        lines.extend(self.warnings.iter().map(|text| line("warning", text)));
        lines.push(format!(
            "{}: {} and {}\n",
            self.file,
            count(self.faults.len(), "error"),
            count(self.warnings.len(), "warning")
        ));
        lines.concat()
    }
}

fn count(number: usize, what: &str) -> String {
    match number {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &str, main: &str) -> Report {
        let path = std::env::temp_dir().join(format!("pgweir-check-{}-{name}.ini", std::process::id()));
        std::fs::write(&path, format!("[pgbouncer]\n{main}\n")).expect("writable");
        let report = report(&path);
        std::fs::remove_file(&path).expect("it is there");
        report
    }

    #[test]
    fn all_faults_are_told_with_their_lines() {
        let report = checked("faults", "listen_port = many\nno_such = 1");
        assert_eq!(report.faults.len(), 2);
        let text = report.text();
        assert!(text.contains(".ini:2") && text.contains(".ini:3"), "{text}");
        assert!(text.ends_with("2 errors and no warnings\n"), "{text}");
    }

    #[test]
    fn faults_outside_the_file_count_too() {
        let report = checked("outside", "auth_file = /no/such/users");
        assert!(
            report.text().contains("error: could not open auth_file /no/such/users"),
            "{}",
            report.text()
        );
        let report = checked("tls", "client_tls_sslmode = require");
        assert!(report.text().contains("error: client_tls_"), "{}", report.text());
        let report = checked(
            "both-sides",
            "client_tls_sslmode = require\nserver_tls_protocols = tlsv1.9\nhttp_tls_cert_file = /no/such/file",
        );
        for side in ["client_tls_", "server_tls_protocols", "http_tls_cert_file"] {
            assert!(report.text().contains(&format!("error: {side}")), "{side}: {}", report.text());
        }
        let report = checked("comment", "default_pool_size = 20 ; not more");
        assert!(report.text().contains("a comment is a line of its own"), "{}", report.text());
    }

    #[test]
    fn warnings_are_no_faults() {
        let report = checked("warnings", "sbuf_loopcnt = 7");
        assert!(report.faults.is_empty());
        assert!(report.text().contains("warning: ") && report.text().ends_with("no errors and 1 warning\n"));
    }
}
