//! Each setting has its own behaviour test: `tests/settings-tests.txt` says which. A setting without one is
//! either not in effect yet, or stands among the accepted differences in `docs/pgbouncer-differences.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pgweir_settings::{
    CACHE_ROWS, CLUSTER_ROWS, DATABASE_ROWS, MAIN_ROWS, NODE_ROWS, PEER_ROWS, ROUTE_ROWS, Status, USER_ROWS,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the list says of one setting.
enum Proof {
    /// This test: file and function.
    Test(String, String),
    /// The page of differences names it, with the reason.
    Difference,
}

/// The list by section and setting. Lines are `section setting file::function`, or `section setting difference`.
fn list() -> BTreeMap<(String, String), Proof> {
    let text = fs::read_to_string(root().join("tests/settings-tests.txt")).expect("the list is there");
    let mut list = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [section, setting, proof] = words[..] else { panic!("three words: {line}") };
        let proof = match proof.split_once("::") {
            Some((file, function)) => Proof::Test(file.to_owned(), function.to_owned()),
            None if proof == "difference" => Proof::Difference,
            None => panic!("a test, or the word difference: {line}"),
        };
        let before = list.insert((section.to_owned(), setting.to_owned()), proof);
        assert!(before.is_none(), "twice: {line}");
    }
    list
}

/// Every setting: section, name, whether it is in effect.
fn settings() -> Vec<(&'static str, &'static str, bool)> {
    let mut all = Vec::new();
    let in_effect = |status: Status| status == Status::InEffect;
    all.extend(MAIN_ROWS.iter().map(|row| ("pgbouncer", row.name, in_effect(row.status))));
    all.extend(DATABASE_ROWS.iter().map(|row| ("databases", row.name, in_effect(row.status))));
    all.extend(USER_ROWS.iter().map(|row| ("users", row.name, in_effect(row.status))));
    all.extend(CLUSTER_ROWS.iter().map(|row| ("clusters", row.name, in_effect(row.status))));
    all.extend(NODE_ROWS.iter().map(|row| ("nodes", row.name, in_effect(row.status))));
    all.extend(ROUTE_ROWS.iter().map(|row| ("routes", row.name, in_effect(row.status))));
    all.extend(CACHE_ROWS.iter().map(|row| ("cache", row.name, in_effect(row.status))));
    all.extend(PEER_ROWS.iter().map(|row| ("peers", row.name, in_effect(row.status))));
    all
}

#[test]
fn each_setting_in_effect_has_its_test() {
    let list = list();
    let differences = fs::read_to_string(root().join("docs/pgbouncer-differences.md")).expect("the page");
    let mut faults = Vec::new();
    for (section, name, in_effect) in settings() {
        match list.get(&(section.to_owned(), name.to_owned())) {
            Some(Proof::Test(file, function)) => {
                let text = fs::read_to_string(root().join(file)).unwrap_or_default();
                let there = [format!("def {function}("), format!("fn {function}(")];
                if !there.iter().any(|head| text.contains(head)) {
                    faults.push(format!("[{section}] {name}: there is no {file}::{function}"));
                }
            }
            Some(Proof::Difference) if !differences.contains(&format!("`{name}`")) => {
                faults.push(format!(
                    "[{section}] {name}: not among the differences in docs/pgbouncer-differences.md"
                ));
            }
            Some(Proof::Difference) => {}
            None if in_effect => {
                faults.push(format!(
                    "[{section}] {name}: no line in tests/settings-tests.txt names a test of it"
                ));
            }
            None => {}
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_list_names_settings_that_exist() {
    let known = settings();
    for (section, name) in list().into_keys() {
        assert!(
            known.iter().any(|(their, setting, _)| *their == section && *setting == name),
            "[{section}] {name} is no setting"
        );
    }
}
