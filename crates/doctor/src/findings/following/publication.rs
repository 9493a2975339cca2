//! Findings about the publication of a followed database: what it does to writes, and of which of its tables no answers are kept.

use std::collections::BTreeMap;

use super::quoted;
use crate::finding::{Finding, count};
use crate::following::{Columns, Following, Identity, Publication, Table};

/// The number of tables that are named.
const TABLES_SHOWN_MAX: usize = 5;

/// Returns all findings about a publication and its tables.
pub(super) fn findings(at: &Following, publication: Publication, tables: &[Table]) -> Vec<Finding> {
    let mut found = of_publication(at, publication, tables);
    if publication.needs_identity {
        found.extend(writes_that_fail(at, tables));
        found.extend(whole_rows(at, tables));
    }
    found.extend(not_kept(at, tables));
    found
}

fn of_publication(at: &Following, publication: Publication, tables: &[Table]) -> Vec<Finding> {
    let (database, name) = (&at.database, quoted(&at.publication));
    let mut found = Vec::new();
    if !publication.has_all_changes {
        found.push(Finding::error(
            "cache_publication_partial",
            format!(
                "database {database}: the publication {} leaves changes out, so that no changes are followed",
                at.publication
            ),
            format!("run ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')"),
        ));
    }
    if publication.takes_new_tables {
        found.push(Finding::warning(
            "cache_publication_all_tables",
            format!(
                "database {database}: the publication {} has all tables of the database or of a schema, new ones included: \
                 PostgreSQL refuses UPDATE and DELETE on each that is made without a primary key",
                at.publication
            ),
            format!("run DROP PUBLICATION {name}; CREATE PUBLICATION {name} FOR TABLE ... with the tables that are to be followed"),
        ));
    }
    if tables.is_empty() {
        found.push(Finding::warning(
            "cache_publication_empty",
            format!(
                "database {database}: the publication {} has no tables, so that no answers are kept",
                at.publication
            ),
            format!("run ALTER PUBLICATION {name} ADD TABLE ... with tables that have a primary key"),
        ));
    } else if publication.needs_identity {
        found.push(Finding::note(
            "cache_publication_identity",
            format!(
                "database {database}: {} published as {}. PostgreSQL lets you drop the primary key of such a table, and refuses its UPDATE and \
                 DELETE from then on; the same holds for REPLICA IDENTITY NOTHING, and for FULL if only some columns are published. \
                 With FULL each UPDATE and DELETE also writes the whole old row to the log",
                if tables.len() == 1 { "1 table is".to_owned() } else { format!("{} tables are", tables.len()) },
                at.publication
            ),
            format!("before you change the key of a table, run ALTER PUBLICATION {name} DROP TABLE ..."),
        ));
    }
    found
}

/// Returns the tables whose UPDATE and DELETE PostgreSQL refuses now, by the reason.
fn writes_that_fail(at: &Following, tables: &[Table]) -> Vec<Finding> {
    let publication = quoted(&at.publication);
    let mut by_reason: BTreeMap<&str, Vec<&Table>> = BTreeMap::new();
    for table in tables {
        let reason = match (table.identity, table.columns) {
            (Identity::Missing, _) => NO_KEY,
            (Identity::Nothing, _) => IS_NOTHING,
            (Identity::Full, Columns::WithIdentity | Columns::WithoutIdentity) => FULL_IN_PART,
            (_, Columns::WithoutIdentity) => NOT_PUBLISHED,
            (_, Columns::All | Columns::WithIdentity) => continue,
        };
        by_reason.entry(reason).or_default().push(table);
    }
    let find = |(reason, tables): (&str, Vec<&Table>)| {
        let names = names(&tables);
        let leave = format!("ALTER PUBLICATION {publication} DROP TABLE {names}");
        let remedy = match reason {
            NO_KEY => format!("give each table a primary key, with REPLICA IDENTITY DEFAULT, or run {leave}"),
            IS_NOTHING => format!(
                "run {}, or {leave}",
                each(&tables, |name| format!("ALTER TABLE {name} REPLICA IDENTITY DEFAULT"))
            ),
            _ => format!("run {leave}; ALTER PUBLICATION {publication} ADD TABLE {names}"),
        };
        let text = format!(
            "database {}: PostgreSQL refuses UPDATE and DELETE on {}: {reason}",
            at.database,
            shown(&tables)
        );
        Finding::error("cache_writes_fail", text, remedy)
    };
    by_reason.into_iter().map(find).collect()
}

const NO_KEY: &str =
    "they are published without a primary key, or the index of their replica identity was dropped";
const IS_NOTHING: &str = "they are published with REPLICA IDENTITY NOTHING";
const FULL_IN_PART: &str = "they have REPLICA IDENTITY FULL, and only some of their columns are published";
const NOT_PUBLISHED: &str = "the published columns do not include all of their replica identity";

/// Returns the tables whose old rows are written to the log as a whole.
fn whole_rows(at: &Following, tables: &[Table]) -> Option<Finding> {
    let is_whole = |table: &&Table| table.identity == Identity::Full && table.columns == Columns::All;
    let whole: Vec<&Table> = tables.iter().filter(is_whole).collect();
    (!whole.is_empty()).then(|| {
        Finding::note(
            "cache_identity_full",
            format!(
                "database {}: each UPDATE and DELETE of {} writes the whole old row to the log (REPLICA IDENTITY FULL)",
                at.database,
                shown(&whole)
            ),
            format!(
                "if a table has a primary key, run {}",
                each(&whole, |name| format!("ALTER TABLE {name} REPLICA IDENTITY DEFAULT"))
            ),
        )
    })
}

/// Returns the published tables whose answers are not kept.
fn not_kept(at: &Following, tables: &[Table]) -> Vec<Finding> {
    let publication = quoted(&at.publication);
    let mut found = Vec::new();
    let filtered: Vec<&Table> = tables.iter().filter(|table| table.has_filter).collect();
    if !filtered.is_empty() {
        let names = names(&filtered);
        found.push(Finding::warning(
            "cache_row_filter",
            format!("database {}: no answers of {} are kept: not all rows are published", at.database, shown(&filtered)),
            format!("run ALTER PUBLICATION {publication} DROP TABLE {names}; ALTER PUBLICATION {publication} ADD TABLE {names}"),
        ));
    }
    let mut by_obstacle: BTreeMap<&str, Vec<&Table>> = BTreeMap::new();
    for table in tables.iter().filter(|table| !table.has_filter && !table.obstacle.is_empty()) {
        by_obstacle.entry(&table.obstacle).or_default().push(table);
    }
    found.extend(by_obstacle.into_iter().map(|(obstacle, tables)| {
        Finding::note(
            "cache_table_not_kept",
            format!("database {}: no answers of {} are kept: {obstacle}", at.database, shown(&tables)),
            format!(
                "run ALTER PUBLICATION {publication} DROP TABLE {}: its changes are sent in vain",
                names(&tables)
            ),
        )
    }));
    found
}

/// Returns the names of tables for a message.
fn shown(tables: &[&Table]) -> String {
    let more = tables.len().saturating_sub(TABLES_SHOWN_MAX);
    let first = names(tables.get(..TABLES_SHOWN_MAX).unwrap_or(tables));
    if more > 0 { format!("{first} and {}", count(more as u64, "more table")) } else { first }
}

/// Returns the names of tables for a statement.
fn names(tables: &[&Table]) -> String {
    let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
    names.join(", ")
}

/// Returns a statement for each table, with semicolons between.
fn each(tables: &[&Table], statement: impl Fn(&str) -> String) -> String {
    let statements: Vec<String> = tables.iter().map(|table| statement(&table.name)).collect();
    statements.join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{codes, found, table, well};
    use super::*;
    use crate::finding::Severity;
    use crate::following::Followed;

    #[test]
    fn tables_whose_writes_fail_are_named_with_the_statements_that_mend_it() {
        let tables = vec![
            table("public.a", Identity::Missing, Columns::All),
            table("public.b", Identity::Missing, Columns::All),
            table("public.c", Identity::Nothing, Columns::All),
            table("public.d", Identity::Full, Columns::WithIdentity),
            table("public.e", Identity::PrimaryKey, Columns::WithoutIdentity),
            table("public.f", Identity::PrimaryKey, Columns::WithIdentity),
            table("public.g", Identity::Full, Columns::All),
        ];
        let found = found(Followed { tables, ..well() });
        let failing: Vec<&Finding> =
            found.iter().filter(|finding| finding.code == "cache_writes_fail").collect();
        assert_eq!(failing.len(), 4, "{found:?}");
        let of =
            |name: &str| failing.iter().find(|finding| finding.text.contains(name)).expect("it is named");
        assert!(
            of("public.a").text.contains("on public.a, public.b: they are published without a primary key")
        );
        assert!(
            of("public.a").remedy.ends_with("ALTER PUBLICATION pgweir_cache DROP TABLE public.a, public.b")
        );
        assert!(of("public.c").remedy.starts_with("run ALTER TABLE public.c REPLICA IDENTITY DEFAULT, or "));
        assert!(of("public.d").remedy.ends_with("; ALTER PUBLICATION pgweir_cache ADD TABLE public.d"));
        assert!(of("public.e").text.contains("do not include all of their replica identity"));
        let whole = found.iter().find(|finding| finding.code == "cache_identity_full").expect("a note");
        assert!(whole.text.contains("of public.g writes the whole old row"));
    }

    #[test]
    fn only_inserts_need_no_identity() {
        let publication = Publication { has_all_changes: false, ..Publication::default() };
        let tables = vec![table("public.a", Identity::Missing, Columns::All)];
        let server = Followed { publication: Some(publication), tables, ..well() };
        assert_eq!(codes(server), [(Severity::Error, "cache_publication_partial")]);
    }

    #[test]
    fn tables_of_which_nothing_is_kept() {
        let filtered = Table { has_filter: true, ..table("public.a", Identity::PrimaryKey, Columns::All) };
        let part = Table {
            obstacle: "it is a partition".into(),
            ..table("public.b", Identity::PrimaryKey, Columns::All)
        };
        let found = found(Followed { tables: vec![filtered, part], ..well() });
        let text =
            |code| found.iter().find(|finding| finding.code == code).map(|finding| finding.text.clone());
        assert_eq!(
            text("cache_row_filter").as_deref(),
            Some("database app: no answers of public.a are kept: not all rows are published")
        );
        assert_eq!(
            text("cache_table_not_kept").as_deref(),
            Some("database app: no answers of public.b are kept: it is a partition")
        );
    }

    #[test]
    fn many_tables_are_counted() {
        let all: Vec<Table> =
            (0..8).map(|number| table(&format!("t{number}"), Identity::Missing, Columns::All)).collect();
        let all: Vec<&Table> = all.iter().collect();
        assert_eq!(shown(&all), "t0, t1, t2, t3, t4 and 3 more tables");
        assert_eq!((quoted("a_b1"), quoted("A\"b")), ("a_b1".to_owned(), "\"A\"\"b\"".to_owned()));
    }
}
