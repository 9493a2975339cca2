//! The question whether the definitions or rights of a followed database have changed. Its answer is a hash of all rows of the catalog that decide on
//! an answer: two equal hashes mean that nothing was changed.

use crate::pool::server::asked::Replies;
use crate::worker::subscriptions::questions::{columns, published};

/// Numbers that change with the database's definitions. Two equal values mean that nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Definitions {
    /// The publication, and the properties of its tables that decide on what is published.
    pub(super) publication: Box<str>,
    /// Objects, rights and roles.
    objects: Box<str>,
    /// Settings of roles, databases and the server, with which connections begin.
    pub(super) settings: Box<str>,
}

/// The question for [`Definitions`], after it was prepared: planning it takes longer than answering it.
pub(super) const DEFINITIONS: &str = "EXECUTE pgweir_definitions";

/// Returns the columns that decide on answers: those of published tables and of composite types (`own`), and those of tables whose rows are
/// values of such columns (`inside`). There are few of the latter, so that they are looked up one by one.
fn columns_that_count() -> String {
    let own = "own AS MATERIALIZED (SELECT attrelid, attnum, xmin, atttypid FROM pg_attribute WHERE attrelid IN (SELECT relid FROM t \
        UNION SELECT oid FROM pg_class WHERE relkind = 'c' AND relnamespace IN (SELECT oid FROM n)))";
    let rows_in = |columns: &str| {
        format!(
            "SELECT y.typrelid FROM {columns} JOIN pg_type e ON e.oid = a.atttypid \
             JOIN pg_type y ON y.oid = ANY (ARRAY[e.oid, e.typelem, e.typbasetype]) WHERE a.atttypid >= 16384 AND y.typrelid <> 0"
        )
    };
    let further = "inside i CROSS JOIN LATERAL (SELECT atttypid FROM pg_attribute WHERE attrelid = i.typrelid OFFSET 0) a";
    format!("{own}, inside AS ({} UNION {})", rows_in("own a"), rows_in(further))
}

/// Queries for hashes of the rows of catalogs. The number of the query tells apart equal values of different catalogs.
#[derive(Default)]
struct Hashes(u32);

impl Hashes {
    fn query(&mut self, key: &str, from: &str) -> String {
        self.0 += 1;
        format!("SELECT {key}, {}) AS h FROM {from}", self.0)
    }

    /// Returns a query for hashes of these columns.
    fn of_columns(&mut self, columns: &str, from: &str) -> String {
        self.query(&format!("hashtextextended(concat_ws(' ', {columns})"), from)
    }

    /// Returns a query for hashes of the numbers of rows, and of the transactions that made them.
    fn of_rows(&mut self, number: &str, from: &str) -> String {
        self.query(&format!("hashint8extended(({number}::int8 << 32) | xmin::text::int8"), from)
    }
}

/// Returns the first question for [`Definitions`] to a server of this version, which prepares it for the session. Rows that only VACUUM,
/// ANALYZE or temporary objects change are left out, and rows of PostgreSQL's own that nothing can change.
pub(super) fn first_definitions(publication: &str, version: u32) -> String {
    let mut hashes = Hashes::default();
    let publications = [
        hashes.of_columns("oid, xmin", "pg_publication"),
        hashes.of_columns("oid, xmin", "pg_publication_rel"),
        hashes.of_columns(
            "oid, relkind, relpersistence, relreplident, relispartition, relhassubclass",
            "pg_class WHERE oid IN (SELECT relid FROM t)",
        ),
        match version {
            150_000.. => hashes.of_columns("oid, xmin", "pg_publication_namespace"),
            _ => hashes.of_columns("1", "(SELECT 1) AS one"),
        },
    ];
    let settings = [
        hashes.of_columns("setdatabase, setrole, xmin", "pg_db_role_setting"),
        hashes.of_columns("pg_conf_load_time()", "(SELECT 1) AS one"),
    ];
    let objects = [roles(&mut hashes, version), objects(&mut hashes)].concat();
    let sum =
        |parts: &[String]| format!("(SELECT sum(h)::text FROM ({}) AS all_rows)", parts.join(" UNION ALL "));
    format!(
        "PREPARE pgweir_definitions AS WITH RECURSIVE t AS MATERIALIZED ({}), \
         n AS MATERIALIZED (SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'), \
         {} SELECT {}, {}, {}; {DEFINITIONS}",
        published(publication),
        columns_that_count(),
        sum(&publications),
        sum(&objects),
        sum(&settings)
    )
}

/// Returns the queries for roles and the rights that they have by others.
fn roles(hashes: &mut Hashes, version: u32) -> Vec<String> {
    let mut queries = vec![
        hashes.of_columns("roleid, member, xmin", "pg_auth_members"),
        hashes.of_columns("oid, rolname, rolsuper, rolinherit, rolbypassrls", "pg_roles"),
    ];
    if version >= 150_000 {
        // A membership or an attribute that comes and goes between two questions leaves no row behind. PostgreSQL counts its changes, though
        // it tells the number some seconds later. Before version 15 statistics are read from a file, which takes long.
        queries.push(hashes.of_columns(
            "oid, pg_stat_get_tuples_inserted(oid), pg_stat_get_tuples_updated(oid), pg_stat_get_tuples_deleted(oid)",
            "pg_class WHERE oid IN ('pg_authid'::regclass, 'pg_auth_members'::regclass, 'pg_db_role_setting'::regclass)",
        ));
    }
    queries
}

/// Returns the queries for the objects of the database, and the rights on them.
fn objects(hashes: &mut Hashes) -> Vec<String> {
    let mut queries = vec![
        hashes.of_columns(
            "oid, relname, relnamespace, relkind, relpersistence, relowner, relacl, relrowsecurity, relforcerowsecurity, \
             relispartition, relhassubclass, relreplident, relhasrules",
            "pg_class WHERE relnamespace IN (SELECT oid FROM n)",
        ),
        hashes.of_columns("inhrelid, inhparent, xmin", "pg_inherits"),
        hashes.of_columns("mapcfg, maptokentype, mapseqno, xmin", "pg_ts_config_map"),
        hashes.of_columns("oid, xmin", "pg_database WHERE datname = current_database()"),
    ];
    let column = "(attrelid::int8 * 2048 + attnum)";
    queries.push(hashes.of_rows(column, "own"));
    let inside = "inside CROSS JOIN LATERAL (SELECT attrelid, attnum, xmin FROM pg_attribute WHERE attrelid = typrelid OFFSET 0) AS a";
    queries.push(hashes.of_rows(column, inside));
    // The checks of domains: an index has them together.
    let checks = "pg_constraint WHERE conrelid = 0 AND contypid <> 0 \
        AND EXISTS (SELECT FROM pg_type y WHERE y.oid = contypid AND y.typnamespace IN (SELECT oid FROM n))";
    queries.push(hashes.of_rows("oid", checks));
    // A right that is granted and revoked, or a name that is changed back, between two questions leaves the same columns behind.
    queries.push(hashes.of_rows("oid", "pg_class WHERE oid IN (SELECT relid FROM t)"));
    queries.push(hashes.of_rows("oid", "pg_attrdef WHERE adrelid IN (SELECT relid FROM t)"));
    queries.push(hashes.of_rows("oid", "pg_namespace WHERE oid IN (SELECT oid FROM n)"));
    for (catalog, namespace) in [("pg_proc", "pronamespace"), ("pg_type", "typnamespace")] {
        queries.push(hashes.of_rows("oid", &format!("{catalog} WHERE {namespace} IN (SELECT oid FROM n)")));
    }
    for catalog in ["pg_collation", "pg_ts_config", "pg_ts_dict", "pg_enum", "pg_policy"] {
        queries.push(hashes.of_rows("oid", catalog));
    }
    for catalog in ["pg_operator", "pg_cast", "pg_rewrite", "pg_opclass", "pg_amop", "pg_amproc"] {
        queries.push(hashes.of_rows("oid", &format!("{catalog} WHERE oid >= 16384")));
    }
    queries
}

impl Definitions {
    /// Reads the answer.
    ///
    /// # Errors
    /// The answer is not one to the question.
    pub(super) fn read(answer: &Replies) -> Result<Definitions, String> {
        let [publication, objects, settings] = columns(answer)?;
        let of = |text: Option<&str>| text.map(Box::from).unwrap_or_default();
        Ok(Definitions { publication: of(publication), objects: of(objects), settings: of(settings) })
    }
}
