//! A session with a PostgreSQL server of the cluster: what it says of itself, of its replication slots, and of the standby that streams
//! from it.

use pgweir_client::Client;

use super::access::Access;
use super::members::Member;
use crate::probe;

/// Facts that need the rights of pg_monitor.
const FACTS: &str = "\
select current_setting('server_version_num'), current_setting('server_version'), \
current_setting('wal_level'), current_setting('full_page_writes'), \
current_setting('max_wal_senders')::bigint - (select count(*) from pg_stat_replication), \
current_setting('max_replication_slots')::bigint - (select count(*) from pg_replication_slots), \
coalesce((select sum(pg_database_size(oid)) from pg_database), 0)::bigint, \
(select system_identifier from pg_control_system())::text, \
coalesce((select setting from pg_settings where name = 'config_file'), ''), \
coalesce((select setting from pg_settings where name = 'data_directory'), ''), \
(select count(*) from pg_stat_activity where application_name like 'Patroni%')";

/// Settings that a standby must not have lower than its primary: it would not start, or would stop its replay.
pub(super) const NOT_LOWER: [&str; 5] = [
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
];

/// A logged-in session.
pub(super) struct Server {
    pub(super) member: Member,
    client: Client,
    pub(super) is_standby: bool,
    /// A standby that receives WAL now.
    pub(super) is_streaming: bool,
}

/// The facts that a server tells about itself.
pub(super) struct Facts {
    pub(super) major: u32,
    pub(super) version: String,
    pub(super) wal_level: String,
    pub(super) has_full_pages: bool,
    pub(super) free_senders: i64,
    pub(super) free_slots: i64,
    pub(super) size_bytes: u64,
    pub(super) system_identifier: String,
    pub(super) config_file: String,
    pub(super) data_directory: String,
    /// An agent of Patroni is connected.
    pub(super) has_patroni: bool,
}

/// A physical replication slot.
pub(super) struct Slot {
    /// A standby streams with it.
    pub(super) is_active: bool,
}

/// A standby that streams with its slot.
pub(super) struct Streaming {
    /// `streaming`, or what comes before it.
    pub(super) state: String,
    pub(super) lag_bytes: u64,
}

impl Server {
    /// Logs in, and asks for the role of the server.
    ///
    /// # Errors
    /// Why not, with the node.
    pub(super) fn enter(access: &Access, member: &Member) -> Result<Server, String> {
        let named = |why: String| format!("{}: {why}", member.place());
        let login = access.session(&member.host, member.port).map_err(named)?;
        let client = Client::log_in(&login).map_err(|error| named(probe::why(&error)))?;
        let mut server = Server { member: member.clone(), client, is_standby: false, is_streaming: false };
        let row = server.row("select pg_is_in_recovery(), (select status from pg_stat_wal_receiver)")?;
        (server.is_standby, server.is_streaming) = (row[0] == "t", row[1] == "streaming");
        Ok(server)
    }

    /// Runs a statement; gives its rows.
    pub(super) fn rows(&mut self, sql: &str) -> Result<Vec<Vec<String>>, String> {
        let place = self.member.place();
        self.client.query(sql).map_err(|error| format!("{place}: {}", probe::why(&error)))
    }

    fn row(&mut self, sql: &str) -> Result<Vec<String>, String> {
        let rows = self.rows(sql)?;
        rows.into_iter().next().ok_or_else(|| format!("{}: no answer", self.member.place()))
    }

    /// The rights that the role lacks here, each with the SQL that grants it.
    pub(super) fn missing_rights(&mut self, user: &str) -> Result<Vec<String>, String> {
        let row = self.row(
            "select rolsuper or rolreplication, pg_has_role(rolname, 'pg_monitor', 'usage') from pg_roles where rolname = current_user",
        )?;
        let user = format!("\"{}\"", user.replace('"', "\"\""));
        let mut missing = Vec::new();
        if row[0] != "t" {
            missing.push(format!("ALTER ROLE {user} REPLICATION;"));
        }
        if row[1] != "t" {
            missing.push(format!("GRANT pg_monitor TO {user};"));
        }
        Ok(missing)
    }

    /// Returns the facts that the server tells about itself.
    pub(super) fn facts(&mut self) -> Result<Facts, String> {
        let mut row = self.row(FACTS)?.into_iter();
        let mut next = || row.next().unwrap_or_default();
        let major = next().parse::<u32>().unwrap_or(0) / 10_000;
        let version = next();
        Ok(Facts {
            major,
            version: version.split(' ').next().unwrap_or_default().to_owned(),
            wal_level: next(),
            has_full_pages: next() == "on",
            free_senders: next().parse().unwrap_or(0),
            free_slots: next().parse().unwrap_or(0),
            size_bytes: next().parse().unwrap_or(0),
            system_identifier: next(),
            config_file: next(),
            data_directory: next(),
            has_patroni: next() != "0",
        })
    }

    /// Name, directory and bytes of each tablespace that has a directory.
    pub(super) fn tablespaces(&mut self) -> Result<Vec<(String, String, u64)>, String> {
        let rows = self.rows(
            "select spcname, pg_tablespace_location(oid), pg_tablespace_size(oid) from pg_tablespace where pg_tablespace_location(oid) <> ''",
        )?;
        let read = |row: Vec<String>| match row.as_slice() {
            [name, location, bytes] => Some((name.clone(), location.clone(), bytes.parse().unwrap_or(0))),
            _ => None,
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    /// The values of `NOT_LOWER`.
    pub(super) fn not_lower(&mut self) -> Result<Vec<i64>, String> {
        let values: Vec<String> =
            NOT_LOWER.iter().map(|name| format!("current_setting('{name}')::bigint")).collect();
        let row = self.row(&format!("select {}", values.join(", ")))?;
        Ok(row.iter().map(|value| value.parse().unwrap_or(0)).collect())
    }

    /// The slot of this name; `None` if there is none.
    pub(super) fn slot(&mut self, name: &str) -> Result<Option<Slot>, String> {
        let rows = self.rows(&format!(
            "select slot_type, active from pg_replication_slots where slot_name = '{name}'"
        ))?;
        match rows.first().map(Vec::as_slice) {
            None => Ok(None),
            Some([kind, active]) if kind == "physical" => Ok(Some(Slot { is_active: active == "t" })),
            Some(_) => Err(format!("{}: the slot {name} is not a physical one", self.member.place())),
        }
    }

    /// The standby that streams with this slot; `None` if none does.
    pub(super) fn streaming(&mut self, slot: &str) -> Result<Option<Streaming>, String> {
        let rows = self.rows(&format!(
            "select r.state, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), r.replay_lsn), 9e18)::bigint \
             from pg_replication_slots s join pg_stat_replication r on r.pid = s.active_pid where s.slot_name = '{slot}'"
        ))?;
        let read = |row: &Vec<String>| {
            let lag = row.get(1)?.parse::<i64>().ok()?;
            Some(Streaming { state: row.first()?.clone(), lag_bytes: u64::try_from(lag).unwrap_or(0) })
        };
        Ok(rows.first().and_then(read))
    }

    /// Lets later statements take as long as they need.
    pub(super) fn wait_without_limit(&self) {
        // A socket that refuses keeps its limit, and a statement that takes longer then says so.
        let _ = self.client.wait_without_limit();
    }
}

/// The SQL that makes a slot, which keeps WAL from now on.
pub(super) fn create_slot(name: &str) -> String {
    format!("select pg_create_physical_replication_slot('{name}', true)")
}

/// The SQL that drops a slot.
pub(super) fn drop_slot(name: &str) -> String {
    format!("select pg_drop_replication_slot('{name}')")
}

/// The system identifier that the server tells a replication connection, made as pg_basebackup makes it: this is what `pg_hba.conf` must
/// allow.
///
/// # Errors
/// The server lets no replication connection in.
pub(super) fn identify(access: &Access, member: &Member) -> Result<String, String> {
    let login = access.replication(&member.host, member.port)?;
    let said = Client::log_in(&login).and_then(|mut client| client.query("IDENTIFY_SYSTEM"));
    let rows = said.map_err(|error| {
        format!(
            "{} does not let {} in for replication: {}. Add a line to its pg_hba.conf: host replication {} THIS_MACHINE/32 scram-sha-256, and its password to the password file",
            member.place(),
            access.user,
            probe::why(&error),
            access.user
        )
    })?;
    rows.into_iter().next().and_then(|row| row.into_iter().next()).ok_or_else(|| "no answer".to_owned())
}
