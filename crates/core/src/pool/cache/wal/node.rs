//! The identity of a PostgreSQL server and database: the proof that two connections have reached the same data.
//!
//! A server that was started is one process, which no other server can be: its start (µs) together with the system identifier of its data. A
//! server changes its timeline only when it is promoted, and a standby has no identity here, so that the timeline need not be compared.

/// The columns that tell the identity, for a session with any `search_path`: the start (µs), the system identifier, the number of the database,
/// whether the server is a standby, and the isolation level with which its transactions begin.
pub(crate) const QUESTION: &str = "SELECT (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)\
    ::pg_catalog.int8::pg_catalog.text, \
    (SELECT c.system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system() AS c), \
    (SELECT d.oid::pg_catalog.text FROM pg_catalog.pg_database AS d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()), \
    pg_catalog.pg_is_in_recovery()::pg_catalog.text, pg_catalog.current_setting('default_transaction_isolation'::pg_catalog.text)";

/// The identity of a primary and one of its databases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    /// The start of the server (µs since 1970, by the server's clock).
    pub(crate) started_us: i64,
    /// The system identifier of the server's data.
    pub(crate) system: i64,
    /// The number of the database.
    pub(crate) database: u32,
}

/// The answer of a server to the question which one it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) node: Node,
    /// The server's transactions begin as SERIALIZABLE. PostgreSQL must know of each read in such a transaction, so that the answers are not kept.
    pub(crate) is_serializable: bool,
}

impl Told {
    /// Reads the row that answers [`QUESTION`]. Returns `None` if the row cannot be read, or if the server is a standby.
    pub(crate) fn read(row: &[Option<Box<[u8]>>]) -> Option<Told> {
        let [started, system, database, recovery, isolation] = row else { return None };
        let text = |column: &Option<Box<[u8]>>| String::from_utf8(column.as_deref()?.to_vec()).ok();
        if text(recovery)? != "false" {
            return None;
        }
        let node = Node {
            started_us: text(started)?.parse().ok()?,
            system: text(system)?.parse().ok()?,
            database: text(database)?.parse().ok()?,
        };
        Some(Told { node, is_serializable: text(isolation)?.eq_ignore_ascii_case("serializable") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(columns: &[&str]) -> Option<Told> {
        let row: Vec<_> = columns.iter().map(|column| Some(Box::from(column.as_bytes()))).collect();
        Told::read(&row)
    }

    #[test]
    fn only_a_primary_has_an_identity() {
        let node = Node { started_us: 17, system: -5, database: 6 };
        let told = |is_serializable| Some(Told { node, is_serializable });
        assert_eq!(read(&["17", "-5", "6", "false", "read committed"]), told(false));
        assert_eq!(read(&["17", "-5", "6", "false", "Serializable"]), told(true));
        assert_eq!(read(&["17", "-5", "6", "true", "read committed"]), None);
        assert_eq!(read(&["17", "x", "6", "false", "read committed"]), None);
        assert_eq!(read(&["17", "-5", "6", "false"]), None);
        assert_eq!(Told::read(&[None, None, None, None, None]), None);
    }
}
