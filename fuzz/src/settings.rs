//! Configuration files. They are not foreign bytes, but nothing that an administrator types may end the process, and
//! what was read must survive SHOW, SET and RELOAD.

use std::collections::BTreeMap;

use pgweir_settings::{Config, ConfigRow, SetOutcome};

use crate::files::split;

/// The file that is loaded.
const MAIN_FILE: &str = "pgweir.ini";
/// The file that is loaded for the reload.
const NEXT_FILE: &str = "next.ini";
/// The password in the corpus.
const PASSWORD: &str = "hunter2";

/// The input is the text of `pgweir.ini`; lines `%file name` begin further files, which can be included. `next.ini`,
/// if there is one, is what a reload reads.
pub fn settings_ini(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let files = split(&text, MAIN_FILE);
    let config = load(&files, MAIN_FILE);
    let next = load(&files, NEXT_FILE);
    for config in [&config, &next].into_iter().flatten() {
        shown_values_are_read_again(config);
        set_is_all_or_nothing(config, &text);
        lookups_answer(config);
    }
    if let (Some(config), Some(next)) = (&config, &next) {
        reload_settles(config, next);
        reload_settles(next, config);
    }
}

fn load(files: &BTreeMap<&str, String>, name: &str) -> Option<Config> {
    let mut read = |name: &str| files.get(name).cloned().ok_or_else(|| "no such file".to_owned());
    match Config::load(name, &mut read) {
        Ok(config) => {
            assert_eq!(
                Config::load(name, &mut read).as_ref(),
                Ok(&config),
                "the same files, the same settings"
            );
            Some(config)
        }
        Err(errors) => {
            assert!(!errors.is_empty(), "refused without a reason");
            let told = files.values().any(|text| text.lines().any(|line| public(line).contains(PASSWORD)));
            for error in errors {
                assert!(
                    !error.text.is_empty() && !error.text.contains('\n'),
                    "no log line: {:?}",
                    error.text
                );
                assert!(told || !error.text.contains(PASSWORD), "a secret is told: {}", error.text);
            }
            None
        }
    }
}

/// What of a line is no secret: all before the value of the first key in its connection string that looks like a
/// password's. Names of sections and files are none, and neither are quoted names, which may look like anything.
fn public(line: &str) -> &str {
    if line.trim_start().starts_with(['[', '%', '\'', '"']) {
        return line;
    }
    let own = line.find('=').map_or(0, |at| at + 1);
    let lower = line[own..].to_ascii_lowercase();
    let secret = lower.find("pass").and_then(|at| Some(own + at + lower[at..].find('=')? + 1));
    &line[..secret.unwrap_or(line.len())]
}

/// Whatever SHOW CONFIG shows can be SET, and changes nothing that is shown but where the value comes from.
fn shown_values_are_read_again(config: &Config) {
    let rows = config.show();
    let mut copy = config.clone();
    for row in &rows {
        let Some(value) = &row.value else { continue };
        let outcome = copy.set(row.key, value);
        let outcome =
            outcome.unwrap_or_else(|error| panic!("{} does not take what it shows: {error}", row.key));
        assert_eq!(outcome == SetOutcome::Applied, row.changeable, "{}", row.key);
    }
    let mut after = copy.show();
    for (after, ConfigRow { source, .. }) in after.iter_mut().zip(&rows) {
        after.source.clone_from(source);
    }
    assert_eq!(after, rows);
}

/// Every `key = value` of the input as a SET: it is taken, or nothing changes.
fn set_is_all_or_nothing(config: &Config, text: &str) {
    let mut copy = config.clone();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let before = copy.clone();
        match copy.set(key.trim(), value.trim()) {
            Ok(SetOutcome::Applied) => {}
            Ok(SetOutcome::NeedsRestart) | Err(_) => assert_eq!(copy, before, "{key} = {value}"),
        }
    }
    shown_values_are_read_again(&copy);
}

/// What the machine asks about databases and users has an answer for each of them.
fn lookups_answer(config: &Config) {
    let names = config.databases.keys().map(String::as_str).chain(["", "pgbouncer", "other"]);
    for name in names {
        let Some(database) = config.database(name) else { continue };
        assert!(name == database.name, "{name} is found as {}", database.name);
        for user in config.users.keys().map(String::as_str).chain(["other"]) {
            let _ = config.pool_mode(&database, user);
            let _ = config.pool_size(&database, user);
            let _ = config.reserve_pool_size(&database, user);
            let _ = config.query_wait_timeout(&database, user);
        }
        let _ = config.server_lifetime(&database);
    }
}

/// A configuration differs from itself in nothing, and a reload that is done twice does nothing the second time.
fn reload_settles(old: &Config, new: &Config) {
    assert!(old.diff(old).is_empty());
    let first = old.diff(new);
    let mut again = first.merged.diff(new);
    assert_eq!(again.restart, first.restart, "what needs a restart goes on needing it");
    again.restart.clear();
    assert!(again.is_empty(), "a second reload of the same files changes something: {again:?}");
    assert_eq!(again.merged, first.merged);
}
