//! The pages in docs are made from the tables; this fails when they are stale. `UPDATE=1` writes them anew.

use std::fs;
use std::path::Path;

use pgweir_settings::{DATABASE_ROWS, MAIN_ROWS, PEER_ROWS, USER_ROWS, ini_man_page, reference_markdown};

#[test]
fn the_reference_page_is_fresh() {
    is_fresh("reference.md", &reference_markdown());
}

#[test]
fn the_manual_page_is_fresh() {
    is_fresh("man/pgweir.ini.5", &ini_man_page());
}

fn is_fresh(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().expect("it has a folder")).expect("the folder can be made");
        fs::write(&path, page).expect("the page can be written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "docs/{name} is stale: run UPDATE=1 cargo test -p pgweir-settings --test reference"
    );
}

#[test]
fn each_setting_has_its_line() {
    let page = reference_markdown();
    let names = MAIN_ROWS.iter().map(|row| row.name).chain(DATABASE_ROWS.iter().map(|row| row.name));
    let names = names.chain(USER_ROWS.iter().map(|row| row.name)).chain(PEER_ROWS.iter().map(|row| row.name));
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
