//! Configurations of other poolers. An administrator's file may be damaged or of another project, and a message about it ends up in
//! logs and tickets: none may hold a password.

use std::collections::BTreeMap;

use pgweir_auth::{Hba, UserList};
use pgweir_import::{Fault, Import, Kind, Places, Source, import, import_environment};
use pgweir_settings::Config;

use crate::files::split;

/// The file that is imported.
const MAIN_FILE: &str = "main";
/// The password in the corpus.
const PASSWORD: &str = "hunter2";

/// The input is the text of the configuration; lines `%file name` begin further files, which it may name. Every importer reads it,
/// and so does the entry point, which takes each line `NAME=value` as a variable.
pub fn import_configs(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let files = split(&text, MAIN_FILE);
    let main = files[MAIN_FILE].as_str();
    let its_own = Kind::of(main);
    for kind in Kind::ALL {
        let source = Source { name: "a.conf", text: main, ..Source::default() };
        let outcome = import(kind, &source, &mut |name| read(&files, name));
        // In a file of another kind a password may stand where this kind has names.
        let is_public = its_own != Some(kind) || tells_password(kind, &files);
        judge(kind.name(), outcome.as_ref(), is_public);
        let again = import(kind, &source, &mut |name| read(&files, name));
        assert_eq!(
            written(outcome.as_ref()),
            written(again.as_ref()),
            "{}: the same files, the same result",
            kind.name()
        );
    }
    let variables: Vec<_> = main.lines().filter_map(|line| line.split_once('=')).map(own).collect();
    let outcome = import_environment(&variables, &[], &mut |name| read(&files, name));
    judge(
        "entrypoint",
        outcome.as_ref(),
        its_own != Some(Kind::Environment) || tells_password(Kind::Environment, &files),
    );
}

fn read(files: &BTreeMap<&str, String>, name: &str) -> Result<String, String> {
    files.get(name).cloned().ok_or_else(|| "no such file".to_owned())
}

fn own((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// What a result must be.
fn judge(kind: &str, outcome: Result<&Import, &Vec<Fault>>, is_public: bool) {
    let said: Vec<String> = match outcome {
        Ok(import) => {
            files_are_good(kind, import);
            let shown = import.ini(&Places { hide_secrets: true, ..Places::default() });
            assert!(is_public || !shown.contains(PASSWORD), "{kind}: the password is shown:\n{shown}");
            import.findings().iter().map(ToString::to_string).collect()
        }
        Err(faults) => {
            assert!(!faults.is_empty(), "{kind}: refused without a reason");
            faults.iter().map(ToString::to_string).collect()
        }
    };
    for line in &said {
        assert!(!line.is_empty() && !line.contains(char::is_control), "{kind}: no line: {line:?}");
        assert!(is_public || !line.contains(PASSWORD), "{kind}: a message has the password: {line}");
    }
}

/// pgweir takes what the importer writes, in whatever folder it is.
fn files_are_good(kind: &str, import: &Import) {
    let places = Places {
        users: "/etc/a b/users".to_owned(),
        rules: "/etc/it's/hba".to_owned(),
        hide_secrets: false,
        ..Places::default()
    };
    for places in [places, Places::default()] {
        let ini = import.ini(&places);
        let loaded = Config::load("pgweir.ini", &mut |_| Ok(ini.clone()));
        assert!(loaded.is_ok(), "{kind}: {:?} in\n{ini}", loaded.err());
    }
    if let Some(users) = import.users() {
        let faults = UserList::parse(&users).1;
        assert!(faults.is_empty(), "{kind}: {faults:?} in\n{users}");
    }
    if let Some(rules) = import.rules() {
        let faults = Hba::parse(&rules, &mut |_| Err("there is no other file".to_owned())).1;
        assert!(faults.is_empty(), "{kind}: {faults:?} in\n{rules}");
    }
}

/// Everything that an import gives.
fn written(outcome: Result<&Import, &Vec<Fault>>) -> Vec<String> {
    match outcome {
        Ok(import) => {
            let said = import.findings().iter().map(ToString::to_string);
            let files = [Some(import.ini(&Places::default())), import.users(), import.rules()];
            said.chain(files.into_iter().flatten()).collect()
        }
        Err(faults) => faults.iter().map(ToString::to_string).collect(),
    }
}

/// Whether a mutation has moved the password out of the value of a key for passwords. In such an input it is no secret any more.
fn tells_password(kind: Kind, files: &BTreeMap<&str, String>) -> bool {
    let tells = |name: &str, line: &str| match name {
        "secret" => line != PASSWORD,
        "pool_passwd" => line != "alice:TEXThunter2" && line != "dave:hunter2",
        _ => !secret_lines(kind).contains(&line),
    };
    files
        .iter()
        .any(|(name, text)| text.lines().any(|line| line.contains(PASSWORD) && tells(name, line.trim())))
}

/// The lines with the password in the corpus's configurations of a kind.
fn secret_lines(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Pgpool => &["recovery_password = 'hunter2'", "health_check_password0 = 'hunter2'"],
        Kind::Odyssey => {
            &[r#"password "hunter2""#, r#"storage_password "hunter2""#, r#"auth_query_password "hunter2""#]
        }
        Kind::PgCat => &[
            r#"admin_password = "hunter2""#,
            r#"auth_query_password = "hunter2""#,
            r#"{ username = "alice", password = "hunter2", pool_size = 9, min_pool_size = 1 },"#,
            r#"{ username = "bob", pool_size = 2, server_username = "owner", server_password = "hunter2" },"#,
            r#"password = "hunter2""#,
        ],
        Kind::PgDog => &[r#"password = "hunter2""#, r#"passwords = ["hunter2", "hunter3"]"#],
        Kind::PgDoorman => &[
            r#"admin_password: "hunter2""#,
            r#"password: "hunter2""#,
            r#"server_password: "hunter2""#,
            r#"admin_password = "hunter2""#,
            r#"password = "hunter2""#,
        ],
        Kind::Environment => &[
            "DATABASE_URLS=postgres://alice:hunter2@db1:5432/shop?sslmode=require,postgres://alice:hunter2@[::1]:5433/stock",
            r#"export DB_PASSWORD="hunter2""#,
            "POSTGRESQL_PASSWORD=hunter2",
            r#"PGBOUNCER_USERLIST="bob" "hunter2""#,
            "PGBOUNCER_DSN_0=stock=host=db2 port=5433 dbname=live password=hunter2",
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Mutations of a configuration that is refused would not come far.
    #[test]
    fn the_corpus_is_imported() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/import_configs");
        let mut kinds = BTreeSet::new();
        for entry in fs::read_dir(folder).expect("there is a corpus") {
            let path = entry.expect("it can be read").path();
            let text = fs::read_to_string(&path).expect("it is text");
            let files = split(&text, MAIN_FILE);
            let main = files[MAIN_FILE].as_str();
            let kind = Kind::of(main).unwrap_or_else(|| panic!("{}: of no kind", path.display()));
            assert!(
                !tells_password(kind, &files),
                "{}: a line with the password is not listed",
                path.display()
            );
            let source = Source { name: "a.conf", text: main, ..Source::default() };
            let outcome = import(kind, &source, &mut |name| read(&files, name));
            assert!(outcome.is_ok(), "{}: {:?}", path.display(), outcome.err());
            kinds.insert(kind.name());
        }
        assert_eq!(kinds.len(), Kind::ALL.len(), "{kinds:?}");
    }
}
