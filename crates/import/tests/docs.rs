//! The tables on the pages of `docs/migrate` are the tables that the readers work by. To write them:
//! UPDATE=1 cargo test -p pgweir-import --test docs

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pgweir_import::{markdown, tables};

/// The lines before and after a table on a page.
fn marks(name: &str) -> (String, String) {
    (format!("<!-- table: {name} -->\n"), "<!-- end of the table -->\n".to_owned())
}

#[test]
fn pages_have_the_tables_of_the_readers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/migrate");
    let update = std::env::var_os("UPDATE").is_some();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(&folder).expect("the folder is there") {
        let path = entry.expect("the folder can be read").path();
        let page = fs::read_to_string(&path).expect("a page can be read");
        let mut next = page.clone();
        for table in tables() {
            let (begin, end) = marks(table.name);
            let Some((before, rest)) = next.split_once(&begin) else { continue };
            let (_, after) = rest.split_once(&end).expect("a table on a page has its end");
            next = format!("{before}{begin}{}{end}{after}", markdown(&table));
            found.insert(table.name);
        }
        if update {
            fs::write(&path, &next).expect("a page can be written");
        } else {
            assert!(
                page == next,
                "{} is stale; UPDATE=1 cargo test -p pgweir-import --test docs",
                path.display()
            );
        }
    }
    let all: BTreeSet<&str> = tables().iter().map(|table| table.name).collect();
    assert_eq!(found, all, "each table has its page");
}
