//! `pgweir check FILE`: everything that is wrong with a configuration, in one run, without starting anything. With `--connect`, whether
//! PostgreSQL lets its pools in.

mod connect;
mod files;

use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use pgweir_control::{CommandLine, Draft, Examination, Overlay};
use pgweir_doctor::advice;
use pgweir_net::TlsConfigs;
use pgweir_settings::{LayerEffect, LoadError, Warning};
use serde_json::{Value, json};

use crate::command_line::{CheckOptions, OverlayOptions};
use crate::fleet;
use crate::probe;

/// Prints the report. Exit code 0 means that the configuration can be used, and that every login succeeded if they were asked for;
/// warnings count with `--strict` only.
pub(crate) fn check(options: &CheckOptions) -> ExitCode {
    let (mut report, seen) = examine(&options.config, &options.overlay);
    let is_usable = report.faults.is_empty();
    let (logins, impossible) = match options.connect {
        true if is_usable => connect::log_in(&seen, options.user.as_deref()),
        _ => (Vec::new(), Vec::new()),
    };
    report.faults.extend(impossible.into_iter().map(Message::new));
    let text = if options.json {
        format!("{:#}\n", report.json(&logins))
    } else {
        let hint =
            if options.connect && !is_usable { "no login was tried, because of the errors\n" } else { "" };
        format!("{}{}{hint}{}", connect::table(&logins), report.text(), connect::summary(&logins))
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    let is_good = report.faults.is_empty() && !logins.iter().any(|login| login.outcome.is_failure());
    let is_clean = report.warnings.is_empty() || !options.strict;
    if is_good && is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A fault or a warning, with its place if it is about a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    place: Option<(String, u32)>,
    text: String,
}

impl Message {
    fn new(text: String) -> Message {
        Message { place: None, text }
    }

    fn json(&self) -> Value {
        let (file, line) = self.place.as_ref().map(|(file, line)| (file, line)).unzip();
        json!({ "file": file, "line": line, "text": self.text })
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((file, line)) = &self.place {
            write!(f, "{file}:{line}: ")?;
        }
        f.write_str(&self.text)
    }
}

impl From<&LoadError> for Message {
    fn from(fault: &LoadError) -> Message {
        match fault.line {
            // The whole text names the variable, or the file that could not be read.
            0 => Message::new(fault.text.clone()),
            line => Message { place: Some((fault.file.clone(), line)), text: fault.problem.clone() },
        }
    }
}

impl From<&Warning> for Message {
    fn from(warning: &Warning) -> Message {
        match warning.line {
            0 => Message::new(warning.to_string()),
            line => Message { place: Some((warning.file.clone(), line)), text: warning.text.clone() },
        }
    }
}

/// What is wrong with a configuration, and what its administrator should know.
pub(crate) struct Report {
    file: String,
    /// The sources that were read after the file, and what they changed.
    overlay: Vec<LayerEffect>,
    pub(crate) faults: Vec<Message>,
    pub(crate) warnings: Vec<Message>,
}

/// Faults of a file alone.
pub(crate) fn report(config: &Path) -> Report {
    examine(config, &OverlayOptions { is_off: true, ..OverlayOptions::default() }).0
}

/// Reads a configuration as a start would: the report, and what it is about.
pub(crate) fn examine(config: &Path, overlay: &OverlayOptions) -> (Report, Examination) {
    let file = config.display().to_string();
    let (overlay, no_texts) = match overlay.overlay() {
        Ok(overlay) => (overlay, Vec::new()),
        Err(faults) => (Overlay::default(), faults),
    };
    let seen = Draft::examine(&CommandLine { config: file.clone(), overlay, ..CommandLine::default() });
    let mut faults: Vec<Message> = no_texts.into_iter().map(Message::new).collect();
    faults.extend(seen.load_faults.iter().map(Message::from));
    faults.extend(seen.faults.iter().cloned().map(Message::new));
    faults.extend(fleet::tls_faults(&seen.config.main, &seen.tls).into_iter().map(Message::new));
    let mut warnings: Vec<Message> = seen.config.warnings.iter().map(Message::from).collect();
    warnings.extend(seen.warnings.iter().cloned().map(Message::new));
    warnings.extend(counsel(&seen));
    (Report { file, overlay: seen.config.overlay.clone(), faults, warnings }, seen)
}

/// Warnings that a start itself does not give.
pub(crate) fn advice_of(config: &Path, overlay: &OverlayOptions) -> Vec<Message> {
    counsel(&examine(config, overlay).1)
}

fn counsel(seen: &Examination) -> Vec<Message> {
    let advice = advice(&seen.config, seen.users.as_deref(), &seen.access);
    advice.iter().map(Message::from).chain(files::warnings(&seen.config, seen.users.as_deref())).collect()
}

/// TLS with servers as the configuration says; switched off if it cannot be built.
pub(crate) fn server_tls(seen: &Examination) -> TlsConfigs {
    fleet::build_tls(&seen.config.main, &seen.tls).unwrap_or_default()
}

impl Report {
    fn text(&self) -> String {
        let line = |kind: &str, message: &Message| format!("{kind}: {message}\n");
        let mut lines: Vec<String> = self.faults.iter().map(|message| line("error", message)).collect();
        lines.extend(self.warnings.iter().map(|message| line("warning", message)));
        for effect in &self.overlay {
            for changed in &effect.changed {
                let before = match &changed.replaced {
                    Some(place) => format!("in place of {place}"),
                    None => "in place of the default".to_owned(),
                };
                lines.push(format!("overlay: {}: {}, {before}\n", effect.name, changed.what));
            }
            if effect.changed.is_empty() {
                lines.push(format!("overlay: {}\n", effect.summary()));
            }
        }
        lines.push(format!(
            "{}: {} and {}\n",
            self.file,
            count(self.faults.len(), "error"),
            count(self.warnings.len(), "warning")
        ));
        lines.concat()
    }

    fn json(&self, logins: &[probe::Login]) -> Value {
        let all = |messages: &[Message]| messages.iter().map(Message::json).collect::<Vec<_>>();
        json!({
            "file": self.file,
            "errors": all(&self.faults),
            "warnings": all(&self.warnings),
            "overlay": self.overlay.iter().map(overlay_json).collect::<Vec<_>>(),
            "logins": logins.iter().map(connect::json).collect::<Vec<_>>(),
        })
    }
}

fn overlay_json(effect: &LayerEffect) -> Value {
    let changed = effect.changed.iter().map(|changed| {
        let replaced = changed.replaced.as_ref().map(ToString::to_string);
        json!({ "what": changed.what, "replaced": replaced })
    });
    json!({ "source": effect.name, "changed": changed.collect::<Vec<_>>() })
}

pub(crate) fn count(number: usize, what: &str) -> String {
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
        let rest = "listen_addr = *\nauth_user = asker\n[databases]\n* = host=h";
        std::fs::write(&path, format!("[pgbouncer]\n{main}\n{rest}\n")).expect("writable");
        let report = report(&path);
        std::fs::remove_file(&path).expect("it is there");
        report
    }

    #[test]
    fn all_faults_are_told_with_their_lines() {
        let report = checked("faults", "listen_port = many\nno_such = 1");
        assert_eq!(report.faults.len(), 2);
        let text = report.text();
        assert!(text.contains(".ini:2: ") && text.contains(".ini:3: "), "{text}");
        assert!(text.ends_with("2 errors and no warnings\n"), "{text}");
    }

    #[test]
    fn no_fault_hides_another() {
        let main = "auth_type = md6\npool_mod = x\nauth_file = /no/such/users\nclient_tls_sslmode = require\n\
                    client_tls_cert_file = /no/such/cert\nclient_tls_key_file = /no/such/key\nclient_tls_ciphers = nonsense\n\
                    client_tls_protocols = tlsv1.9\nhttp_tls_cert_file = /no/such/a\nhttp_tls_key_file = /no/such/b";
        let text = checked("hidden", main).text();
        for words in [
            ".ini:2: invalid value \"md6\" for \"auth_type\"",
            ".ini:3: unknown setting \"pool_mod\"; did you mean \"pool_mode\"?\n",
            "auth_file /no/such/users",
            "client_tls_cert_file: /no/such/cert",
            "client_tls_key_file: /no/such/key",
            "error: client_tls_ciphers",
            "error: client_tls_protocols",
            "http_tls_cert_file /no/such/a",
            "http_tls_key_file /no/such/b",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert!(text.ends_with("9 errors and no warnings\n"), "each once: {text}");
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
        assert!(report.text().contains("a comment needs its own line"), "{}", report.text());
    }

    #[test]
    fn warnings_are_no_faults() {
        let report = checked("warnings", "sbuf_loopcnt = 7");
        assert!(report.faults.is_empty());
        assert!(report.text().contains("warning: ") && report.text().ends_with("no errors and 1 warning\n"));
    }

    #[test]
    fn a_report_for_machines_has_places() {
        let report = checked("json", "no_such = 1\nmin_pool_size = 30");
        let json = report.json(&[]);
        assert_eq!(json["errors"][0]["line"], 2);
        assert_eq!(json["errors"][0]["text"], "unknown setting \"no_such\"");
        assert!(json["warnings"][0]["file"].as_str().expect("a file").ends_with("-json.ini"), "{json}");
    }
}
