//! The pages in docs and the packages' configuration file are made from the tables; this fails when they are stale. `UPDATE=1`
//! writes them again.

use std::fs;
use std::path::Path;

use pgweir_settings::{
    CACHE_ROWS, CLUSTER_ROWS, Config, DATABASE_ROWS, MAIN_ROWS, NODE_ROWS, PEER_ROWS, ROUTE_ROWS, USER_ROWS,
    ini_man_page, packaged_ini, reference_markdown,
};

#[test]
fn the_reference_page_is_fresh() {
    is_fresh("docs/reference.md", &reference_markdown());
}

#[test]
fn the_manual_page_is_fresh() {
    is_fresh("docs/man/pgweir.ini.5", &ini_man_page());
}

#[test]
fn the_packaged_file_is_fresh() {
    is_fresh("deploy/packages/pgweir.ini", &packaged_ini());
}

/// The file as it is, and with every line of `[pgbouncer]` that it has in a comment.
#[test]
fn the_packaged_file_loads_and_has_every_setting_at_its_default() {
    let load = |text: &str| Config::load("pgweir.ini", &mut |_| Ok(text.to_owned()));
    let text = packaged_ini();
    let packaged = load(&text).expect("it has no fault");
    assert!(packaged.warnings.is_empty(), "{:?}", packaged.warnings);
    assert!(
        text.lines().filter(|line| line.starts_with("; ")).all(|line| line.len() <= 120),
        "a line is too long"
    );
    let (_, main) = text.split_once("[pgbouncer]").expect("the main section");
    let lines = main.lines().filter(|line| !line.starts_with("; ") && !line.starts_with(";;"));
    for row in MAIN_ROWS {
        let found =
            lines.clone().filter(|line| line.trim_start_matches(';').split(' ').next() == Some(row.name));
        assert_eq!(found.count(), 1, "{}", row.name);
    }
    let with_value = lines.filter(|line| !line.ends_with(" =")).map(|line| line.trim_start_matches(';'));
    let uncommented = format!("[pgbouncer]\n{}\n", with_value.collect::<Vec<_>>().join("\n"));
    let explicit = load(&uncommented).expect("every default can be written");
    for row in MAIN_ROWS.iter().filter(|row| row.name != "conffile") {
        assert_eq!(row.render(&explicit.main), row.render(&packaged.main), "{}", row.name);
    }
}

fn is_fresh(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().expect("it has a folder")).expect("the folder can be made");
        fs::write(&path, page).expect("the page can be written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(there == page, "{name} is stale: run UPDATE=1 cargo test -p pgweir-settings --test reference");
}

#[test]
fn each_setting_has_its_line() {
    let page = reference_markdown();
    let names = MAIN_ROWS.iter().map(|row| row.name).chain(DATABASE_ROWS.iter().map(|row| row.name));
    let names = names.chain(USER_ROWS.iter().map(|row| row.name));
    let names =
        names.chain(CLUSTER_ROWS.iter().map(|row| row.name)).chain(NODE_ROWS.iter().map(|row| row.name));
    let names = names.chain(ROUTE_ROWS.iter().map(|row| row.name));
    let names = names.chain(CACHE_ROWS.iter().map(|row| row.name));
    let names = names.chain(PEER_ROWS.iter().map(|row| row.name));
    let mut lines = page.lines().filter(|line| line.starts_with("| `"));
    for name in names {
        let line = lines.next().expect("a line for each row");
        assert!(line.starts_with(&format!("| `{name}` |")), "{line}");
        assert_eq!(line.replace("\\|", "").matches('|').count(), 6, "{line}");
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn the_manual_page_has_an_entry_for_each_setting_and_no_request_by_accident() {
    let page = ini_man_page();
    for row in MAIN_ROWS {
        assert!(page.contains(&format!(".TP\n.B {}\n", row.name)), "{}", row.name);
    }
    let known =
        [".\\\"", ".TH", ".SH", ".SS", ".TP", ".B ", ".BR", ".br", ".PP", ".IP", ".RS", ".RE", ".EX", ".EE"];
    for line in page.lines() {
        assert!(
            !line.starts_with(['.', '\'']) || known.iter().any(|known| line.starts_with(known)),
            "{line}"
        );
        assert!(!line.contains('`') && !line.contains("**"), "Markdown is left in: {line}");
    }
}
