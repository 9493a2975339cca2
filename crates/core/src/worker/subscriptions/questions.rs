//! The questions to a database that is followed, and the reading of their answers. The bytes come from a server: anything may be in them.

use pgweir_sql::quote_identifier;

use crate::cluster::answer::Lsn;
use crate::pool::cache::wal::catalog::Catalog;
use crate::pool::cache::wal::node::{Node, Told};
use crate::pool::cache::wal::stamp::Stamp;
use crate::pool::server::asked::Replies;

/// The oldest version of PostgreSQL whose changes are followed: the first that sends large transactions before their commit.
const VERSION_MIN: u32 = 140_000;

/// The settings of the connection that is asked: no user's setting decides on an answer, and no question waits for a standby.
const SETTINGS: &str = "SET search_path = pg_catalog; SET statement_timeout = 0; SET lock_timeout = 0; SET jit = off; \
    SET default_transaction_isolation = 'read committed'; SET synchronous_commit = local; \
    SET standard_conforming_strings = on;";

/// The probe: the visible transactions, then the end of the log; and the start of the server (µs), as a pooler or proxy on the way may have
/// passed the question to another server.
pub(super) const PROBE: &str = "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, \
    (EXTRACT(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text";

/// A probe that makes PostgreSQL write its log up to the told position, for servers where others commit asynchronously. It is a transaction that
/// has a number, the highest one.
pub(super) const FLUSHING_PROBE: &str = "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, \
    (EXTRACT(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text, pg_logical_emit_message(true, 'pgweir', '')::text";

/// The tables of the publication, by number.
pub(super) fn published(publication: &str) -> String {
    format!("SELECT relid FROM pg_get_publication_tables({})", literal(publication))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The state of the server and of the publication.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Checked {
    /// The version, as `server_version_num` has it.
    pub(super) version: u32,
    pub(super) node: Node,
    pub(super) page_bytes: u64,
    pub(super) stamp: Stamp,
}

/// Returns the question for [`Checked`].
pub(super) fn check(publication: &str) -> String {
    let publication = literal(publication);
    format!(
        "{SETTINGS} SELECT current_setting('server_version_num'), \
         (EXTRACT(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text, \
         (SELECT system_identifier::text FROM pg_control_system()), \
         (SELECT oid::text FROM pg_database WHERE datname = current_database()), current_setting('wal_block_size'), \
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
        let [version, started, system, database, page_bytes, stamp, wal_level, recovery, aurora, publishes] =
            columns(answer)?;
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
                node: Node {
                    started_us: number(started)?,
                    system: number(system)?,
                    database: number(database)?,
                },
                page_bytes: number(page_bytes)?,
                stamp: stamp_of(stamp)?,
            }),
        }
    }
}

/// The columns of the primary key of table `c`, in the order of the table, with the numbers of their types: if the key is the table's replica identity,
/// and if two values of each are equal only if their texts are. An operator `=`, or an implicit cast, that was made for PostgreSQL's own types
/// may compare in another way.
const KEY: &str = "(SELECT string_agg(a.attname || '=' || a.atttypid::text, '+' ORDER BY a.attnum) \
    FROM pg_index x JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = ANY (x.indkey) \
    LEFT JOIN pg_collation l ON l.oid = a.attcollation \
    WHERE x.indrelid = c.oid AND x.indisprimary AND x.indimmediate AND x.indisvalid AND x.indnatts = x.indnkeyatts \
    AND c.relreplident = 'd' \
    AND NOT EXISTS (SELECT FROM pg_operator o WHERE o.oid >= 16384 AND o.oprname = '=' AND (o.oprleft < 16384 OR o.oprright < 16384)) \
    AND NOT EXISTS (SELECT FROM pg_cast k WHERE k.oid >= 16384 AND k.castcontext = 'i' AND k.castsource < 16384) \
    HAVING bool_and(a.atttypid IN (20, 21, 23, 25, 1043, 2950) AND a.attname ~ '^[A-Za-z_][A-Za-z0-9_$]*$' \
    AND coalesce(l.collisdeterministic, a.attcollation = 0)))";

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
        "SELECT (SELECT string_agg(c.oid::text || coalesce(':' || {KEY}, ''), ',') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
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
         UNION ALL SELECT 'a check of domain ' || t.typname FROM pg_constraint k JOIN pg_type t ON t.oid = k.contypid \
         JOIN pg_depend d ON d.classid = 'pg_constraint'::regclass AND d.objid = k.oid AND d.refclassid = 'pg_proc'::regclass \
         JOIN pg_proc p ON p.oid = d.refobjid JOIN pg_language l ON l.oid = p.prolang WHERE NOT {is_built} \
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

/// Reads the answer to [`QUESTION`](crate::pool::cache::wal::node::QUESTION).
///
/// # Errors
/// The server has refused to answer.
pub(super) fn read_node(answer: &Replies) -> Result<Option<Node>, String> {
    Ok(Told::read(row(answer)?).map(|told| told.node))
}

/// Reads the answer to a probe of this server.
///
/// # Errors
/// The answer is not one to the question, or is another server's.
pub(super) fn read_probe(answer: &Replies, node: &Node) -> Result<(Stamp, Lsn), String> {
    let [stamp, position, started] = row(answer)?.get(..3).ok_or_else(unreadable)? else {
        return Err(unreadable());
    };
    if number::<i64>(text(started))? != node.started_us {
        return Err("a probe was answered by another server".to_owned());
    }
    let position = text(position).and_then(Lsn::parse).ok_or_else(unreadable)?;
    Ok((stamp_of(text(stamp))?, position))
}

/// Returns the question for the number of bytes that PostgreSQL has written to its disk for the slot, and for the visible transactions.
pub(super) fn spilled(slot: &str) -> String {
    format!(
        "SELECT (SELECT spill_bytes::text FROM pg_stat_replication_slots WHERE slot_name = {}), pg_current_snapshot()::text",
        literal(slot)
    )
}

/// Reads the answer.
///
/// # Errors
/// The answer is not one to the question.
pub(super) fn read_spilled(answer: &Replies) -> Result<(u64, Stamp), String> {
    let [bytes, stamp] = columns(answer)?;
    // Without statistics nothing was written yet.
    let bytes = if bytes.is_some() { number(bytes)? } else { 0 };
    Ok((bytes, stamp_of(stamp)?))
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
        b"53400" => one_more("max_replication_slots"),
        // The code also means that no ordinary connection is free. The name of the setting is in the text, in whatever language.
        b"53300" if text.contains("max_wal_senders") => one_more("max_wal_senders"),
        _ => String::new(),
    };
    format!("{text}{advice}")
}

/// Returns what makes room for another slot or connection.
fn one_more(setting: &str) -> String {
    format!(
        ": ALTER SYSTEM SET {setting} = ... (one for each followed database and pooler more than now), then restart PostgreSQL"
    )
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

/// Returns the columns of the only row of an answer.
///
/// # Errors
/// The answer has another number of columns, or no row.
pub(super) fn columns<const N: usize>(answer: &Replies) -> Result<[Option<&str>; N], String> {
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
