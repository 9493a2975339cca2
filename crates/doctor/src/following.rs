//! What a PostgreSQL server says of a database whose changes the query cache follows (`follow=wal`). It comes from the caller.

/// A login as `query_cache_user` to a database that is to be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Following {
    /// The database as clients name it.
    pub database: String,
    /// `query_cache_user`
    pub user: String,
    /// The host; empty for the unix socket.
    pub host: String,
    /// The port.
    pub port: u16,
    /// `query_cache_publication`
    pub publication: String,
    /// `true` if the server is a node of the database's cluster: a standby is followed when it has become the primary.
    pub is_node: bool,
    /// The answers to the questions, or the error of the login, in PostgreSQL's words.
    pub result: Result<Followed, String>,
}

/// The answers of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// The version, as `server_version_num` has it.
    pub version: u32,
    /// The service that runs the server.
    pub cloud: Cloud,
    /// `true` if the server is a standby.
    pub is_standby: bool,
    /// `wal_level`
    pub wal_level: String,
    /// `max_replication_slots`
    pub slots_max: u64,
    /// The number of slots that exist.
    pub slots: u64,
    /// `max_wal_senders`
    pub senders_max: u64,
    /// The number of replication connections.
    pub senders: u64,
    /// `true` if pgweir has a slot for this database.
    pub has_slot: bool,
    /// `true` if the role may make a slot.
    pub may_replicate: bool,
    /// `true` if `max_slot_wal_keep_size` sets no limit.
    pub keeps_all_wal: bool,
    /// `wal_sender_timeout`; 0 means none.
    pub sender_timeout_ms: u64,
    /// The publication; `None` if there is none of this name.
    pub publication: Option<Publication>,
    /// The published tables.
    pub tables: Vec<Table>,
}

/// The service that runs a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cloud {
    /// None that is known.
    #[default]
    Unknown,
    /// Amazon RDS.
    Rds,
    /// Amazon Aurora, which is not followed.
    Aurora,
    /// Google Cloud SQL.
    CloudSql,
    /// Azure Database for PostgreSQL.
    Azure,
}

/// The properties of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    /// `true` if tables that are made later are published, too: FOR ALL TABLES, or FOR TABLES IN SCHEMA.
    pub takes_new_tables: bool,
    /// `true` if INSERT, UPDATE, DELETE and TRUNCATE are published.
    pub has_all_changes: bool,
    /// `true` if UPDATE or DELETE is published, which then need a replica identity.
    pub needs_identity: bool,
}

/// A published table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The name with its schema, quoted for SQL.
    pub name: String,
    /// The replica identity.
    pub identity: Identity,
    /// The columns that are published.
    pub columns: Columns,
    /// `true` if the publication has a row filter for the table.
    pub has_filter: bool,
    /// The reason why pgweir keeps no answers that depend on the table; empty if there is none.
    pub obstacle: String,
}

/// The columns of a table by which PostgreSQL publishes which row was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// The primary key.
    #[default]
    PrimaryKey,
    /// Another index.
    Index,
    /// The whole row.
    Full,
    /// The primary key, which the table does not have; or the index was dropped.
    Missing,
    /// NOTHING was chosen.
    Nothing,
}

/// The columns of a table that are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Columns {
    /// All columns.
    #[default]
    All,
    /// Some columns, those of the replica identity among them.
    WithIdentity,
    /// Some columns, and not all of the replica identity.
    WithoutIdentity,
}
