//! `pgweir check --connect`: whether PostgreSQL lets the pools in, in one table.

use pgweir_control::Examination;
use pgweir_doctor::printable;
use serde_json::{Value, json};

use crate::probe::{self, Login, Logins, Outcome};

/// Tries all logins. What cannot be tried at all is in the report's own words.
pub(super) fn log_in(seen: &Examination, user: Option<&str>) -> (Vec<Login>, Vec<String>) {
    let users = seen.users.clone().unwrap_or_default();
    let tls = super::server_tls(seen);
    let (mut targets, mut impossible) = (Vec::new(), Vec::new());
    let password = probe::password_of_environment();
    let logins = Logins { config: &seen.config, users: &users, tls: &tls, user, password };
    for target in logins.targets() {
        match target {
            Ok(target) => targets.push(target),
            Err(why) => impossible.push(why),
        }
    }
    (probe::log_in(targets, false), impossible)
}

const HEADER: [&str; 7] = ["database", "host", "user", "result", "server", "time", "reason"];

fn row(login: &Login) -> [String; 7] {
    let target = &login.target;
    let host = if target.host.is_empty() { "unix" } else { &target.host };
    let (result, version, reason) = match &login.outcome {
        Outcome::Accepted { version, remark, .. } => ("ok", version.as_str(), remark.as_str()),
        Outcome::Failed(why) => ("failed", "", why.as_str()),
        Outcome::Untested(why) => ("not tested", "", why.as_str()),
    };
    [
        target.database.clone(),
        format!("{host}:{}", target.port),
        target.user.clone(),
        result.to_owned(),
        version.to_owned(),
        format!("{} ms", login.took.as_millis()),
        reason.to_owned(),
    ]
}

/// The table, with a blank line after it; nothing without logins.
pub(super) fn table(logins: &[Login]) -> String {
    let rows: Vec<[String; 7]> =
        std::iter::once(HEADER.map(str::to_owned)).chain(logins.iter().map(row)).collect();
    if logins.is_empty() {
        return String::new();
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    let line = |row: &[String; 7]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{:<width$}", printable(cell))).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect::<String>() + "\n"
}

/// The last line of a report: the number of logins that failed; nothing without logins.
pub(super) fn summary(logins: &[Login]) -> String {
    let tried = logins.iter().filter(|login| !matches!(login.outcome, Outcome::Untested(_))).count();
    let failed = logins.iter().filter(|login| login.outcome.is_failure()).count();
    match (tried, failed) {
        _ if logins.is_empty() => String::new(),
        (0, _) => "no login was tried\n".to_owned(),
        (_, 0) => format!("all logins succeeded ({tried})\n"),
        _ => format!("{failed} of {tried} logins failed\n"),
    }
}

/// A row for machines.
pub(super) fn json(login: &Login) -> Value {
    let [database, host, user, result, version, _, reason] = row(login);
    json!({
        "database": database,
        "host": host,
        "user": user,
        "result": result,
        "server_version": version,
        "time_ms": u64::try_from(login.took.as_millis()).unwrap_or(u64::MAX),
        "auth_query": login.target.auth_query.is_some(),
        "reason": reason,
    })
}
