//! The page in docs is made from the tables; this fails when it is stale. `UPDATE=1` writes it anew.

use std::fs;
use std::path::Path;

use pgweir_settings::{DATABASE_ROWS, MAIN_ROWS, PEER_ROWS, USER_ROWS, reference_markdown};

#[test]
fn the_reference_page_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference.md");
    let page = reference_markdown();
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().expect("it has a folder")).expect("the folder can be made");
        fs::write(&path, &page).expect("the page can be written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "docs/reference.md is stale: run UPDATE=1 cargo test -p pgweir-settings --test reference"
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
