//! The questions to a database that is followed, and the reading of their answers. The bytes come from a server: anything may be in them.

use pgweir_sql::quote_identifier;

use crate::cluster::answer::Lsn;
use crate::pool::cache::wal::catalog::Catalog;
use crate::pool::cache::wal::stamp::Stamp;
use crate::pool::server::asked::Replies;

/// The oldest version of PostgreSQL whose changes are followed: the first that sends large transactions before their commit.
const VERSION_MIN: u32 = 140_000;

/// The settings of the connection that is asked: no user's setting decides on an answer, and no question waits for a standby.
const SETTINGS: &str = "SET search_path = pg_catalog; SET statement_timeout = 0; SET lock_timeout = 0; SET jit = off; \
    SET default_transaction_isolation = 'read committed'; SET synchronous_commit = local; \
    SET standard_conforming_strings = on;";

/// The probe: the visible transactions, and then the end of the log.
pub(super) const PROBE: &str = "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text";

/// The start of the server (µs), by which two connections to the same server know each other.
pub(super) const NODE: &str =
    "SELECT (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint::text";

/// A probe that makes PostgreSQL write its log up to the told position, for servers where others commit asynchronously.
pub(super) const FLUSHING_PROBE: &str = "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, \
    pg_logical_emit_message(true, 'pgweir', '')::text";

/// The tables of the publication, by number.
fn published(publication: &str) -> String {
    format!(
        "SELECT c.oid FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname \
         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename WHERE p.pubname = {}",
        literal(publication)
    )
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The state of the server and of the publication.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Checked {
    /// The version, as `server_version_num` has it.
    pub(super) version: u32,
    /// The start of the server (µs).
    pub(super) node: i64,
    pub(super) page_bytes: u64,
    pub(super) stamp: Stamp,
}

/// Returns the question for [`Checked`].
pub(super) fn check(publication: &str) -> String {
    let publication = literal(publication);
    format!(
        "{SETTINGS} SELECT current_setting('server_version_num'), \
         (EXTRACT(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text, current_setting('wal_block_size'), \
         pg_current_snapshot()::text, current_setting('wal_level'), pg_is_in_recovery()::text, \
         (to_regproc('aurora_version') IS NOT NULL)::text, \
         (SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = {publication})::text"
    )
}

impl Checked {
    /// Reads the answer.
    ///
    /// # Errors
    /// The reason why the database cannot be followed, with what mends it.
    pub(super) fn read(answer: &Replies, publication: &str) -> Result<Checked, String> {
        let [version, node, page_bytes, stamp, wal_level, recovery, aurora, publishes] = columns(answer)?;
        let version = number(version)?;
        let name = String::from_utf8_lossy(&quoted(publication)).into_owned();
        let refused = match () {
            () if version < VERSION_MIN => Some("changes are followed from PostgreSQL 14 on".to_owned()),
            () if aurora == Some("true") => {
                Some("Aurora is not followed: its commits were not examined".to_owned())
            }
            () if recovery != Some("false") => Some("the server is a standby".to_owned()),
            () if wal_level != Some("logical") => Some(format!(
                "wal_level is {}: it must be logical (ALTER SYSTEM SET wal_level = logical, then restart PostgreSQL)",
                wal_level.unwrap_or_default()
            )),
            () if publishes.is_none() => Some(format!(
                "the publication is missing: CREATE PUBLICATION {name} FOR TABLE ... (the tables to be followed)"
            )),
            () if publishes != Some("true") => Some(format!(
                "the publication leaves changes out: ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')"
            )),
            () => None,
        };
        match refused {
            Some(reason) => Err(reason),
            None => Ok(Checked {
                version,
                node: number(node)?,
                page_bytes: number(page_bytes)?,
                stamp: stamp_of(stamp)?,
            }),
        }
    }
}

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

/// Returns the question for [`Definitions`] to a server of this version. Rows that only VACUUM, ANALYZE or temporary objects change are left
/// out.
pub(super) fn definitions(publication: &str, version: u32) -> String {
    let row = |name: &str, columns: &str, from: &str| {
        format!("SELECT hashtextextended(concat_ws(' ', '{name}', {columns}), 0) AS h FROM {from}")
    };
    let whole = |catalog: &str| row(catalog, "oid, xmin", catalog);
    let lasting = |catalog: &str, namespace: &str| {
        row(catalog, "x.oid, x.xmin", &format!("{catalog} x WHERE x.{namespace} IN (SELECT oid FROM n)"))
    };
    let mut publications = vec![
        whole("pg_publication"),
        whole("pg_publication_rel"),
        row(
            "published",
            "oid, relkind, relpersistence, relreplident, relispartition, relhassubclass",
            "pg_class WHERE oid IN (SELECT oid FROM t)",
        ),
    ];
    if version >= 150_000 {
        publications.push(whole("pg_publication_namespace"));
    }
    let objects = [
        row(
            "pg_class",
            "oid, relname, relnamespace, relkind, relpersistence, relowner, relacl, relrowsecurity, relforcerowsecurity, \
             relispartition, relhassubclass, relreplident, relhasrules",
            "pg_class WHERE relnamespace IN (SELECT oid FROM n)",
        ),
        row("pg_attribute", "attrelid, attnum, xmin", "pg_attribute WHERE attrelid IN (SELECT oid FROM t)"),
        row("pg_attrdef", "oid, xmin", "pg_attrdef WHERE adrelid IN (SELECT oid FROM t)"),
        row("pg_inherits", "inhrelid, inhparent, xmin", "pg_inherits"),
        row("pg_namespace", "oid, xmin", "pg_namespace WHERE oid IN (SELECT oid FROM n)"),
        lasting("pg_proc", "pronamespace"),
        lasting("pg_operator", "oprnamespace"),
        lasting("pg_type", "typnamespace"),
        lasting("pg_collation", "collnamespace"),
        lasting("pg_ts_config", "cfgnamespace"),
        lasting("pg_ts_dict", "dictnamespace"),
        row("pg_aggregate", "aggfnoid, xmin", "pg_aggregate"),
        row("pg_ts_config_map", "mapcfg, maptokentype, mapseqno, xmin", "pg_ts_config_map"),
        whole("pg_cast"),
        whole("pg_enum"),
        whole("pg_rewrite"),
        whole("pg_policy"),
        whole("pg_opclass"),
        whole("pg_amop"),
        whole("pg_amproc"),
        row("pg_auth_members", "roleid, member, xmin", "pg_auth_members"),
        row("pg_roles", "oid, rolname, rolsuper, rolinherit, rolbypassrls", "pg_roles"),
        row("pg_database", "oid, xmin", "pg_database WHERE datname = current_database()"),
    ];
    let settings = [
        row("pg_db_role_setting", "setdatabase, setrole, xmin", "pg_db_role_setting"),
        row("configuration", "pg_conf_load_time()", "(SELECT 1) AS one"),
    ];
    let sum =
        |parts: &[String]| format!("(SELECT sum(h)::text FROM ({}) AS all_rows)", parts.join(" UNION ALL "));
    format!(
        "WITH t AS MATERIALIZED ({}), n AS MATERIALIZED (SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_') \
         SELECT {}, {}, {}",
        published(publication),
        sum(&publications),
        sum(&objects),
        sum(&settings)
    )
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

/// Returns the question for the [`Catalog`]: the tables that can be followed, the functions of users, and operators and casts whose functions may
/// read anything. A table can be followed if each change of it is in the stream under its own number, and no policy decides on its rows.
pub(super) fn catalog(publication: &str, version: u32) -> String {
    let filtered = if version >= 150_000 {
        "AND NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = c.oid AND r.prqual IS NOT NULL)"
    } else {
        ""
    };
    let functions = "pg_proc p JOIN pg_language l ON l.oid = p.prolang \
        WHERE (p.pronamespace <> 'pg_catalog'::regnamespace OR p.oid >= 16384)";
    let is_pure = "(p.provolatile = 'i' AND p.prokind IN ('f', 'w') AND l.lanname IN ('c', 'internal'))";
    let is_built = "(p.provolatile <> 'v' AND l.lanname IN ('c', 'internal'))";
    format!(
        "SELECT (SELECT string_agg(c.oid::text, ',') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.oid IN ({}) AND c.relkind = 'r' AND c.relpersistence = 'p' AND NOT c.relispartition \
         AND NOT c.relhassubclass AND NOT c.relrowsecurity AND NOT c.relhasrules \
         AND NOT EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)) \
         AND n.nspname NOT IN ('pg_catalog', 'information_schema') {filtered}), \
         (SELECT string_agg(DISTINCT p.proname, E'\\n') FROM {functions} AND NOT {is_pure}), \
         (SELECT string_agg(name, E'\\n') FROM (SELECT p.proname AS name FROM {functions} GROUP BY p.proname \
         HAVING bool_and({is_pure})) AS pure), \
         (SELECT min(kind) FROM (SELECT 'operator ' || o.oprname AS kind FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode \
         JOIN pg_language l ON l.oid = p.prolang WHERE o.oid >= 16384 AND NOT {is_built} \
         UNION ALL SELECT 'a cast to ' || format_type(k.casttarget, NULL) FROM pg_cast k JOIN pg_proc p ON p.oid = k.castfunc \
         JOIN pg_language l ON l.oid = p.prolang WHERE k.oid >= 16384 AND NOT {is_built} \
         UNION ALL SELECT 'a support function of ' || f.opfname FROM pg_amproc a JOIN pg_opfamily f ON f.oid = a.amprocfamily \
         JOIN pg_proc p ON p.oid = a.amproc JOIN pg_language l ON l.oid = p.prolang \
         WHERE a.oid >= 16384 AND NOT {is_built}) AS unsafe)",
        published(publication)
    )
}

/// Reads the answer to [`catalog`].
///
/// # Errors
/// The reason why the database cannot be followed.
pub(super) fn read_catalog(answer: &Replies) -> Result<Catalog, String> {
    let [tables, impure, pure, unsafe_kind] = columns(answer)?;
    if let Some(kind) = unsafe_kind {
        return Err(format!("{kind} calls a function of this database that may read tables"));
    }
    let bytes = |text: Option<&str>| text.unwrap_or_default().as_bytes().to_vec();
    Catalog::of(&bytes(tables), &bytes(impure), &bytes(pure)).ok_or_else(unreadable)
}

/// Reads the answer to [`NODE`].
///
/// # Errors
/// The answer is not one to the question.
pub(super) fn read_node(answer: &Replies) -> Result<i64, String> {
    let [node] = columns(answer)?;
    number(node)
}

/// Reads the answer to a probe.
///
/// # Errors
/// The answer is not one to the question.
pub(super) fn read_probe(answer: &Replies) -> Result<(Stamp, Lsn), String> {
    let row = row(answer)?;
    let (Some(stamp), Some(position)) = (row.first(), row.get(1)) else { return Err(unreadable()) };
    let position = text(position).and_then(Lsn::parse).ok_or_else(unreadable)?;
    Ok((stamp_of(text(stamp))?, position))
}

/// Returns the command that makes the slot.
pub(super) fn create_slot(slot: &str) -> String {
    format!("CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT")
}

/// Returns the command that begins the stream.
pub(super) fn start_replication(slot: &str, publication: &str) -> String {
    let name = String::from_utf8_lossy(&quoted(publication)).replace('\'', "''");
    format!(
        "START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '2', publication_names '{name}', streaming 'on')"
    )
}

/// Returns an error of PostgreSQL, with what mends it.
pub(super) fn mended(code: &[u8], text: &str, user: &str) -> String {
    let user = String::from_utf8_lossy(&quoted(user)).into_owned();
    let advice = match code {
        b"42501" => {
            format!(": ALTER ROLE {user} REPLICATION (on Amazon RDS: GRANT rds_replication TO {user})")
        }
        b"53400" | b"53300" => ": raise max_replication_slots and max_wal_senders".to_owned(),
        _ => String::new(),
    };
    format!("{text}{advice}")
}

fn quoted(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    quote_identifier(&mut out, name.as_bytes());
    out
}

fn unreadable() -> String {
    "the answer to a question of pgweir cannot be read".to_owned()
}

fn row(answer: &Replies) -> Result<&[Option<Box<[u8]>>], String> {
    if let Some((_, text)) = &answer.failed {
        return Err(text.clone());
    }
    match answer.rows.as_slice() {
        [row] => Ok(row),
        _ => Err(unreadable()),
    }
}

fn columns<const N: usize>(answer: &Replies) -> Result<[Option<&str>; N], String> {
    let row = row(answer)?;
    let mut texts = [None; N];
    if row.len() != N {
        return Err(unreadable());
    }
    for (own, column) in texts.iter_mut().zip(row) {
        *own = text(column);
    }
    Ok(texts)
}

fn text(column: &Option<Box<[u8]>>) -> Option<&str> {
    std::str::from_utf8(column.as_deref()?).ok()
}

fn number<T: std::str::FromStr>(text: Option<&str>) -> Result<T, String> {
    text.and_then(|text| text.parse().ok()).ok_or_else(unreadable)
}

fn stamp_of(text: Option<&str>) -> Result<Stamp, String> {
    text.and_then(|text| Stamp::parse(text.as_bytes())).ok_or_else(unreadable)
}
