//! `pgweir doctor`: what is wrong or near a limit, of a running pooler, its file, its machine and its PostgreSQL servers. What the numbers
//! mean is `pgweir-doctor`'s matter; here they are collected.

pub(crate) mod console;
mod file;
mod following;
mod system;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pgweir_control::Examination;
use pgweir_doctor::{Finding, Probe, Severity, Snapshot, findings};
use serde_json::json;

use self::console::Console;
use crate::check::{self, Report, count};
use crate::command_line::DoctorOptions;
use crate::probe::{self, Logins, Outcome};

/// Exit code: there are errors or warnings.
const FOUND: u8 = 1;
/// Exit code: there is nothing to look at.
pub(crate) const NOTHING_SEEN: u8 = 2;

/// Looks, and prints what was found.
pub(crate) fn doctor(options: &DoctorOptions) -> ExitCode {
    match look(options) {
        Ok(seen) => {
            let text = if options.json { seen.json() } else { seen.text() };
            let _ = std::io::stdout().write_all(text.as_bytes());
            let is_found = seen.findings.iter().any(|finding| finding.severity < Severity::Note);
            if is_found { ExitCode::from(FOUND) } else { ExitCode::SUCCESS }
        }
        Err(why) => {
            eprintln!("pgweir doctor: {why}");
            ExitCode::from(NOTHING_SEEN)
        }
    }
}

/// What was looked at, and what was found.
struct Seen {
    console: Option<String>,
    file: Option<PathBuf>,
    findings: Vec<Finding>,
}

fn look(options: &DoctorOptions) -> Result<Seen, String> {
    match (&options.console, &options.config) {
        (Some(url), config) => {
            let login = console::login_of_url(url).map_err(|error| error.to_string())?;
            let mut console = Console::enter(&login)
                .map_err(|why| format!("could not enter the console at {}: {why}", console::place(&login)))?;
            let config = config.clone().or_else(|| console.config_file());
            Ok(of_running(&mut console, config, options))
        }
        (None, Some(config)) => {
            std::fs::metadata(config).map_err(|error| format!("{}: {error}", config.display()))?;
            let (report, examination) = check::examine(config, &options.overlay);
            match console::find(&examination) {
                Ok(mut console) => Ok(of_running(&mut console, Some(config.clone()), options)),
                Err(why) => Ok(of_file(config, &report, &examination, why, options.user.as_deref())),
            }
        }
        (None, None) => Err("need a config file, or the URL of a console".to_owned()),
    }
}

/// A pooler that runs, with its file if that can be read here.
fn of_running(console: &mut Console, config: Option<PathBuf>, options: &DoctorOptions) -> Seen {
    let mut snapshot = console.snapshot();
    let mut found = Vec::new();
    match &config {
        Some(config) => {
            let (report, examination) = check::examine(config, &options.overlay);
            found.extend(of_report(&report));
            found.extend(ask_servers(&mut snapshot, &report, &examination, options.user.as_deref()));
            if report.faults.is_empty() {
                snapshot.changed = file::changed(&examination.config, console.settings());
            }
        }
        None => found.push(note(
            "postgres_not_asked",
            "PostgreSQL's limits were not looked at: the configuration file is not known or not readable here".to_owned(),
            "name the file after the URL",
        )),
    }
    Seen { console: Some(console.name().to_owned()), findings: sorted(found, &snapshot), file: config }
}

/// A file. Its pooler does not run, or refuses the login.
fn of_file(
    config: &Path,
    report: &Report,
    examination: &Examination,
    why: String,
    user: Option<&str>,
) -> Seen {
    let mut snapshot = file::snapshot(examination);
    let mut found = of_report(report);
    found.extend(ask_servers(&mut snapshot, report, examination, user));
    found.push(note(
        "no_console",
        format!("no running pooler was looked at: {why}"),
        "start pgweir, run doctor as the user that pgweir runs as, or name the console by a URL",
    ));
    Seen { console: None, file: Some(config.to_owned()), findings: sorted(found, &snapshot) }
}

/// Faults and warnings of `pgweir check`.
fn of_report(report: &Report) -> Vec<Finding> {
    let find = |severity, code, remedy: &'static str| {
        move |text: String| Finding { severity, code, text, remedy: remedy.to_owned() }
    };
    let fault = find(
        Severity::Error,
        "config_error",
        "correct it: a start or a RELOAD refuses or ignores what is wrong",
    );
    let warning = find(
        Severity::Warning,
        "config_warning",
        "correct it, or see docs/reference.md for what the setting does",
    );
    let faults = report.faults.iter().map(ToString::to_string).map(fault);
    faults.chain(report.warnings.iter().map(ToString::to_string).map(warning)).collect()
}

/// Logs in as the pools of the file do, and as the query cache does. A faulty file has no pools. A login that cannot be tried is a note.
fn ask_servers(
    snapshot: &mut Snapshot,
    report: &Report,
    seen: &Examination,
    user: Option<&str>,
) -> Option<Finding> {
    if !report.faults.is_empty() {
        return None;
    }
    let users = seen.users.clone().unwrap_or_default();
    let tls = check::server_tls(seen);
    let password = probe::password_of_environment().filter(|_| user.is_some());
    let logins = Logins { config: &seen.config, users: &users, tls: &tls, user, password };
    snapshot.following = following::following(&logins);
    let (probes, untried) = probes(&logins);
    snapshot.probes = probes;
    not_asked(&untried)
}

/// Logs in as pools do. Returns what came of it, and the reasons why logins could not be tried.
fn probes(logins: &Logins<'_>) -> (Vec<Probe>, Vec<String>) {
    let (mut targets, mut untried) = (Vec::new(), Vec::new());
    for target in logins.targets() {
        match target {
            Ok(target) => targets.push(target),
            Err(why) => untried.push(why),
        }
    }
    let mut probes = Vec::new();
    for login in probe::log_in(targets, true) {
        let probe::Target { database, user, host, port, .. } = login.target;
        let result = match login.outcome {
            Outcome::Accepted { limits: Some(limits), .. } => Ok(limits),
            // The question of auth_query was answered.
            Outcome::Accepted { .. } => continue,
            Outcome::Failed(why) => Err(why),
            Outcome::Untested(why) => {
                untried.push(format!("database {database}: {why}"));
                continue;
            }
        };
        probes.push(Probe { database, user, host, port, result });
    }
    (probes, untried)
}

/// One note for all logins that could not be tried.
fn not_asked(untried: &[String]) -> Option<Finding> {
    let (first, others) = untried.split_first()?;
    let more = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
    Some(note(
        "postgres_not_asked",
        format!("PostgreSQL's limits were not looked at: {first}{more}"),
        "name a user with --user, with its password in PGPASSWORD",
    ))
}

fn note(code: &'static str, text: String, remedy: &str) -> Finding {
    Finding { severity: Severity::Note, code, text, remedy: remedy.to_owned() }
}

fn sorted(mut found: Vec<Finding>, snapshot: &Snapshot) -> Vec<Finding> {
    found.extend(findings(snapshot));
    found.sort_by_key(|finding| finding.severity);
    found
}

impl Seen {
    fn text(&self) -> String {
        let console = self.console.as_deref().unwrap_or("none");
        let file = self.file.as_ref().map_or_else(|| "none".to_owned(), |file| file.display().to_string());
        let mut lines = vec![format!("console: {console}; file: {file}\n\n")];
        lines.extend(self.findings.iter().map(|finding| format!("{finding}\n")));
        let of = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        lines.push(format!(
            "{}{}, {}, {}\n",
            if self.findings.is_empty() { "" } else { "\n" },
            count(of(Severity::Error), "error"),
            count(of(Severity::Warning), "warning"),
            count(of(Severity::Note), "note")
        ));
        lines.concat()
    }

    fn json(&self) -> String {
        let one = |finding: &Finding| {
            json!({
                "severity": finding.severity.word(),
                "code": finding.code,
                "text": finding.text,
                "remedy": finding.remedy,
            })
        };
        let findings: Vec<_> = self.findings.iter().map(one).collect();
        let all = json!({ "console": self.console, "file": self.file, "findings": findings });
        format!("{all:#}\n")
    }
}
