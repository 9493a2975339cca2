//! The keys of `[pgbouncer]`: settings of the whole process.
//!
//! Names, defaults and units are PgBouncer's, from its documentation (pgbouncer.org/config.html).

use std::time::Duration;

use super::{COUNT_MAX, Kind, settings};
use crate::{
    Anonymous, AuthType, AutoCount, CacheFollow, CompatibleWith, DeferBegin, LogFormat, Password, PoolMode,
    QueryCache, SequenceAffinity, ServerProtocol, SessionState, SharedLimits, SslMode, VersionText,
    WorkerScheduling,
};

settings! {
    /// The settings of the whole process. Each field has the name of its setting.
    struct Main, MAIN_ROWS;

    group "Process, files, logging" {
        /// The configuration file that the next `RELOAD` reads: the one from the command line, unless it
        /// names another one itself.
        conffile: Option<String> = NULL, Kind::Path, Reload, PgBouncer, InEffect;
        /// The file that log lines are appended to. A reload reopens it.
        logfile: String = "", Kind::Path, Reload, PgBouncer, InEffect;
        /// The file that the process id is written to. A daemon (`-d`) needs it.
        pidfile: String = "", Kind::Path, Restart, PgBouncer, InEffect;
        /// The user of the operating system that the process becomes at its start.
        user: Option<String> = NULL, Kind::Text, Restart, PgBouncer, InEffect;
        /// The name of the service.
        job_name: String = "pgbouncer", Kind::Text, Restart, PgBouncer, InEffect;
        /// The version of PgBouncer that tools and clients find. It decides the version in `SHOW VERSION` and
        /// `--version`, the columns of `SHOW STATS` and its relatives, the statistics line of the log and,
        /// with a global `session_state=pgbouncer`, the parameters that are tracked for each client. Tools
        /// choose by the version or by the number of columns.
        compatible_with: CompatibleWith = "1.25", Kind::Choice(CompatibleWith::WORDS), Restart, Ours, InEffect;
        /// The program whose name `SHOW VERSION` and `--version` begin with: `pgbouncer` as tools that parse it expect, or `pgweir`, for scanners that
        /// look for vulnerabilities of PgBouncer by its version.
        version_text: VersionText = "pgbouncer", Kind::Choice(VersionText::WORDS), Restart, Ours, InEffect;
        /// Sends log lines to syslog.
        syslog: bool = "0", Kind::Bool, Reload, PgBouncer, InEffect;
        /// The tag of the lines in syslog.
        syslog_ident: String = "pgbouncer", Kind::Text, Reload, PgBouncer, InEffect;
        /// The facility of the lines in syslog: auth, authpriv, daemon, user, or local0 to local7; anything
        /// else means daemon.
        syslog_facility: String = "daemon", Kind::Text, Reload, PgBouncer, InEffect;
        /// The format of the log's lines: `text` as PgBouncer writes them, `json` with one JSON object in
        /// each line, which has `time` (RFC 3339), `pid`, `level` and `message`. Syslog gets the message
        /// alone, or the object.
        log_format: LogFormat = "text", Kind::Choice(LogFormat::WORDS), Reload, Ours, InEffect;
        /// Logs the logins of clients and the logins to servers.
        log_connections: bool = "1", Kind::Bool, Reload, PgBouncer, InEffect;
        /// Logs the end of each connection, with the reason.
        log_disconnections: bool = "1", Kind::Bool, Reload, PgBouncer, InEffect;
        /// Logs the errors that pgweir itself sends to clients.
        log_pooler_errors: bool = "1", Kind::Bool, Reload, PgBouncer, InEffect;
        /// Logs a line of totals in each `stats_period`.
        log_stats: bool = "1", Kind::Bool, Reload, PgBouncer, InEffect;
        /// The duration above which a statement is logged, without its literals. The line has the time that
        /// the statement waited for a server, the time at the server, and the time for which the client did
        /// not read. 0 logs no statements.
        log_min_duration_ms: Duration = "0", Kind::Milliseconds, Reload, Ours, InEffect;
        /// The memory that SHOW STATEMENTS may use, in bytes, over all workers: a statement takes about
        /// 1,500. New statements replace those that took least time. 0 turns SHOW STATEMENTS off; the lines
        /// of `log_min_duration_ms` then have no text.
        statement_stats_bytes: u32 = "4194304", Kind::Bytes(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The address to which spans of traced statements are sent: the receiver of an OpenTelemetry
        /// collector (OTLP over HTTP, JSON), e.g. `http://127.0.0.1:4318/v1/traces`. A statement is traced if
        /// a comment at its end has a sampled `traceparent`, as sqlcommenter writes it, or as `trace_one_in`
        /// says. This needs a pgweir that was built with the feature `traces`; any other warns. If the
        /// setting is empty, nothing is traced.
        otlp_endpoint: String = "", Kind::Text, Reload, Ours, InEffect;
        /// The number of statements without a `traceparent` of which one is traced; 0 traces none of them.
        trace_one_in: u32 = "0", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The time over which averages are made, and between two lines of totals in the log.
        stats_period: Duration = "60", Kind::WholeSeconds(1), Reload, PgBouncer, InEffect;
        /// The number of additional log levels. From 1 on, the log has lines of level DEBUG: the server that
        /// a client gets and gives back, and the settings that are set there for it. The same as the number
        /// of `-v` on the command line.
        verbose: u32 = NULL, Kind::Count(0, COUNT_MAX), Reload, PgBouncer, InEffect;
    }

    group "Listening" {
        /// The addresses to listen on; names are resolved, and `*` means all. If the setting is empty, pgweir
        /// listens only on the unix socket.
        listen_addr: Vec<String> = "", Kind::List, Restart, PgBouncer, InEffect;
        /// The port to listen on, for TCP and in the name of the unix socket. 0 lets the system choose one
        /// for TCP.
        listen_port: u16 = "6432", Kind::Count(0, 65535), Restart, PgBouncer, InEffect;
        /// A second port to listen on, on the same addresses and in the name of a second unix socket. A
        /// client that connects to it has `route=standby`, in databases with a cluster: see
        /// [configure/reading.md](configure/reading.md#a-second-port). 0 means that there is none.
        standby_listen_port: u16 = "0", Kind::Count(0, 65535), Restart, Ours, InEffect;
        /// The location of this pooler, in a word of your choice: reads go first to standbys with the same
        /// `zone` in `[nodes]`.
        zone: String = "", Kind::Text, Reload, Ours, InEffect;
        /// The maximum number of connections that wait to be accepted (`listen(2)`).
        listen_backlog: u32 = "128", Kind::Count(0, COUNT_MAX), Restart, PgBouncer, InEffect;
        /// The directory of the unix socket; `@` at the start means the abstract name space, and an empty
        /// value means no unix socket. Servers of databases without `host` are expected in the same
        /// directory.
        unix_socket_dir: String = "/tmp", Kind::Path, Restart, PgBouncer, InEffect;
        /// The file mode of the unix socket.
        unix_socket_mode: u32 = "0777", Kind::Mode, Restart, PgBouncer, InEffect;
        /// The group of the unix socket, by name or number.
        unix_socket_group: String = "", Kind::Text, Restart, PgBouncer, InEffect;
        /// Lets several processes listen on the same TCP port (`SO_REUSEPORT`).
        so_reuseport: bool = "0", Kind::Bool, Restart, PgBouncer, InEffect;
        /// This process's id in a group of peers that share a port, so that a cancel request finds the right
        /// one; 0 means no peers.
        peer_id: u32 = "0", Kind::Count(0, 65535), Reload, PgBouncer, InEffect;
    }

    group "Pools and limits" {
        /// The event after which a server goes back to its pool: the client disconnects (`session`), the
        /// transaction ends (`transaction`), or each statement (`statement`).
        pool_mode: PoolMode = "session", Kind::Choice(PoolMode::WORDS), Reload, PgBouncer, InEffect;
        /// The maximum number of client connections, including clients that are logging in; with 0 no client may
        /// connect. The console is exempt.
        max_client_conn: u32 = "100", Kind::Count(0, COUNT_MAX), Reload, PgBouncer, InEffect;
        /// The maximum number of server connections in a pool. Each combination of a user and a database has its
        /// own pool. 0 means as many as are needed.
        default_pool_size: u32 = "20", Kind::Limit, Reload, PgBouncer, InEffect;
        /// The number of server connections that a pool keeps open, also when no client needs them.
        min_pool_size: u32 = "0", Kind::Count(0, COUNT_MAX), Reload, PgBouncer, InEffect;
        /// The number of additional server connections that a pool may open after a client has waited for
        /// `reserve_pool_timeout`.
        reserve_pool_size: u32 = "0", Kind::Count(0, COUNT_MAX), Reload, PgBouncer, InEffect;
        /// The time that a client waits before its pool may use the reserve; 0 turns the reserve off.
        reserve_pool_timeout: Duration = "5", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The maximum number of server connections to a database, over all its users.
        max_db_connections: u32 = "0", Kind::Limit, Reload, PgBouncer, InEffect;
        /// The maximum number of clients of a database. The console counts as a database; it never refuses admins.
        max_db_client_connections: u32 = "0", Kind::Limit, Reload, PgBouncer, InEffect;
        /// The maximum number of server connections of a user, over all databases.
        max_user_connections: u32 = "0", Kind::Limit, Reload, PgBouncer, InEffect;
        /// The maximum number of clients of a user, including those of the console, which never refuses admins.
        max_user_client_connections: u32 = "0", Kind::Limit, Reload, PgBouncer, InEffect;
        /// The maximum number of clients of one pool that wait for a server connection. A client above the limit gets an error
        /// (SQLSTATE 53300), and its session goes on. 0 means that there is no limit.
        max_waiting_clients: u32 = "0", Kind::Limit, Reload, Ours, InEffect;
        /// Uses idle servers in turn. Otherwise pgweir takes the server that was used last, and the others
        /// can grow old.
        server_round_robin: bool = "0", Kind::Bool, Reload, PgBouncer, InEffect;
        /// The maximum number of named prepared statements that a server connection keeps in transaction and
        /// statement pooling; 0 turns off their support.
        max_prepared_statements: u32 = "200", Kind::Count(0, COUNT_MAX), Reload, PgBouncer, InEffect;
        /// The handling of a client's session in transaction and statement pooling: `preserve` keeps
        /// settings, prepared statements, temporary tables and other state as on a direct connection; `error`
        /// disconnects, with an error, a client that would keep its server between transactions; `pgbouncer`
        /// does the same as PgBouncer.
        session_state: SessionState = "preserve", Kind::Choice(SessionState::WORDS), Reload, Ours, InEffect;
        /// The maximum number of servers of one pool that clients keep between their transactions, for temporary
        /// tables and other state that cannot move. pgweir disconnects a client that exceeds the limit, with
        /// an error. 0 means that there is no limit.
        max_pinned: u32 = "0", Kind::Limit, Reload, Ours, InEffect;
        /// The handling of `currval` and `lastval` in a later transaction than the one that drew the value.
        /// `wait`: the server waits a moment for the client that may have drawn a value on it; `pin`: such a
        /// client keeps its server until it disconnects (`wait`, if `session_state` is `error`); `off`:
        /// nothing, as in PgBouncer. With `wait` and `pin` no client gets a value that another client drew,
        /// but SQLSTATE 55000.
        sequence_affinity: SequenceAffinity = "wait", Kind::Choice(SequenceAffinity::WORDS), Reload, Ours, InEffect;
        /// The time that a server waits, with `sequence_affinity=wait`, for the next statement of a client
        /// whose user and `application_name` are known to ask for values they drew. For all other clients it
        /// waits as long, but only while no other client needs it.
        sequence_affinity_ms: Duration = "50", Kind::Milliseconds, Reload, Ours, InEffect;
        /// The time after which a client that keeps its server between transactions is logged, once, with the
        /// reason; 0 turns this off.
        pin_warn_after: Duration = "300", Kind::Seconds, Reload, Ours, InEffect;
        /// The number of releases of servers in transaction and statement pooling of which about one is
        /// followed by a check of the server's session. If the session is not as it should be, because a
        /// function changed it unseen, the server is closed, and the log names the statement. 1 checks each
        /// time (and then no two clients' statements share a packet). 0 never checks, and then the catalog is
        /// not read for functions that change their session either.
        session_audit_sample: u32 = "5000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The maximum number of server connections that one pool opens at the same time.
        max_parallel_connects: u32 = "16", Kind::Count(1, 65535), Reload, Ours, InEffect;
        /// The number of workers, which are the threads that serve connections. 0: one for each four processors that pgweir may use,
        /// at most 8, because PostgreSQL on the same machine needs the others; at least one.
        workers: u32 = "0", Kind::Count(0, 1024), Restart, Ours, InEffect;
    }

    group "Statement multiplexing and deferred BEGIN" {
        /// The maximum number of statements of different clients that are under way on one server connection in transaction
        /// and statement pooling, including the one that runs; 0 turns multiplexing off. Only statements that certainly
        /// leave nothing behind, and that have proven short, share a connection.
        multiplex_depth: u32 = "32", Kind::Count(0, 1000), Reload, Ours, InEffect;
        /// The maximum time that the statements under way on a connection may be expected to take together,
        /// if another one is to be sent after them.
        multiplex_max_ms: Duration = "5", Kind::Milliseconds, Reload, Ours, InEffect;
        /// The number of servers that a pool keeps busy with short statements before it wakes another one:
        /// `auto` lets pgweir find the best number by measurement.
        multiplex_servers: AutoCount = "auto", Kind::Count(1, COUNT_MAX), Reload, Ours, InEffect;
        /// The scheduling of workers. `auto`: a busy worker with many clients (16 and more that send
        /// something within 30 ms) lets clients and servers on the same machine finish first (Linux:
        /// SCHED_BATCH). `prompt`: never. A policy that the process was started with is left alone.
        worker_scheduling: WorkerScheduling = "auto", Kind::Choice(WorkerScheduling::WORDS), Reload, Ours, InEffect;
        /// The time in microseconds that a worker polls for more work before it sleeps (busy polling). A worker does so only with up
        /// to 8 clients that send one short statement after the other, and only while polling finds work in time. It uses
        /// processor time that no other process wants. At most one worker for each four processors does so, and none on a machine
        /// with one processor. 0 turns this off. pgweir never does so if the process was started with its own scheduling policy.
        worker_busy_poll_us: u32 = "150", Kind::Count(0, 10_000), Reload, Ours, InEffect;
        /// Sends the messages of one turn of a worker's loop with one system call (io_uring), so that the
        /// receivers of the first messages do not interrupt the worker while other receivers wait. If the
        /// kernel has no io_uring or does not allow it, as in many containers, the log says so and each
        /// message is sent by itself.
        worker_io_uring: bool = "1", Kind::Bool, Reload, Ours, InEffect;
        /// The time at which a BEGIN is sent to a server in transaction and session pooling. `packet`: BEGIN
        /// takes a server, is answered at once, and is sent together with the transaction's first statement,
        /// which saves a round trip (in session pooling only if it comes as a simple query). `server`: in
        /// transaction pooling, no server is taken before the first statement either, so a client that pauses
        /// between the two holds none. `off`: BEGIN is sent when it comes.
        defer_begin: DeferBegin = "packet", Kind::Choice(DeferBegin::WORDS), Reload, Ours, InEffect;
    }

    group "Query cache" {
        /// Whether answers of reads that a line of `[cache]` names are kept and given again without a server
        /// (docs/configure/query-cache.md). `hinted`: only of those whose text begins or ends with `/* pgweir: cache */`. `coalesce`: none is kept, but of the same reads that wait for a server one runs, and its answer
        /// is for all. `off`: neither.
        query_cache: QueryCache = "off", Kind::Choice(QueryCache::WORDS), Reload, Ours, InEffect;
        /// The memory that kept answers may use, in bytes, over all workers, their keys and answers under way included. Each worker has an
        /// equal share of it.
        query_cache_bytes: u32 = "67108864", Kind::Bytes(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The longest answer that is kept, in bytes.
        query_cache_max_answer: u32 = "65536", Kind::Bytes(0, COUNT_MAX), Reload, Ours, InEffect;
        /// Whether comments count that say what the cache may do: `/* pgweir: cache 30s */` (no older than that),
        /// `/* pgweir: no cache */`, and pgpool-II's `/*NO QUERY CACHE*/`. A comment can raise no limit. With `query_cache=hinted`
        /// they count in any case.
        query_cache_hints: bool = "0", Kind::Bool, Reload, Ours, InEffect;
        /// `ttl_ms` of the lines of `[cache]` that have none, in milliseconds. 0: each line needs its own.
        query_cache_ttl_ms: Duration = "0", Kind::Milliseconds, Reload, Ours, InEffect;
        /// `follow` of the lines of `[cache]` that have none: `time` keeps an answer for `ttl_ms`, `wal` until PostgreSQL tells that a table
        /// was changed.
        query_cache_follow: CacheFollow = "time", Kind::Choice(CacheFollow::WORDS), Reload, Ours, InEffect;
        /// The role as which pgweir reads the changes of tables, for `follow=wal`: it needs the rights LOGIN and REPLICATION, and no right to
        /// tables. Its password is in `auth_file`. It takes two connections to each database that is followed, outside of `pool_size`.
        query_cache_user: String = "", Kind::Text, Reload, Ours, InEffect;
        /// The publication with the tables whose changes are followed, for `follow=wal`. pgweir does not create it.
        query_cache_publication: String = "pgweir_cache", Kind::Text, Reload, Ours, InEffect;
        /// With `follow=wal`: the time, in milliseconds, by which an answer may be behind the tables.
        query_cache_max_age_ms: u32 = "1000", Kind::Count(1, COUNT_MAX), Reload, Ours, InEffect;
        /// With `follow=wal`: the time, in milliseconds, between two questions to PostgreSQL that date the answers, while clients ask for some.
        query_cache_probe_ms: u32 = "20", Kind::Count(1, 60_000), Reload, Ours, InEffect;
        /// With `follow=wal`: the time, in milliseconds, between two questions whether definitions, rights or roles were changed without pgweir.
        query_cache_ddl_ms: u32 = "1000", Kind::Count(10, 600_000), Reload, Ours, InEffect;
        /// With `follow=wal`: the number of bytes by which reading may be behind PostgreSQL's log, and that PostgreSQL may write to its disk
        /// for transactions under way that it cannot send yet. If either is more, pgweir stops, and begins again later.
        query_cache_lag_bytes: u32 = "67108864", Kind::Bytes(1_048_576, COUNT_MAX), Reload, Ours, InEffect;
        /// With `follow=wal`: one of this number of hits is answered by a server instead, and pgweir compares the kept answer with the server's
        /// (`verified` and `wrong` in `SHOW CACHE`). 0: none.
        query_cache_verify: u32 = "0", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
    }

    group "Startup parameters and behaviour" {
        /// Parameters that are kept for each client in addition to the usual ones. Only parameters that
        /// PostgreSQL reports can be kept.
        track_extra_parameters: Vec<String> = "IntervalStyle", Kind::Names, Restart, PgBouncer, InEffect;
        /// Startup parameters that are dropped if they would be an error. With `options` among them, unknown
        /// parameters inside `options` are dropped, too.
        ignore_startup_parameters: Vec<String> = "", Kind::Names, Reload, PgBouncer, InEffect;
        /// Appends the client's address to its `application_name` at login.
        application_name_add_host: bool = "0", Kind::Bool, Reload, PgBouncer, InEffect;
        /// Refuses the simple query protocol, which is the one that can carry several statements.
        disable_pqexec: bool = "0", Kind::Bool, Restart, PgBouncer, InEffect;
        /// A notice that clients get right after login; empty means none.
        login_notify_message: String = "", Kind::Text, Reload, PgBouncer, InEffect;
        /// The number of iterations of SCRAM secrets that pgweir makes from plain passwords.
        scram_iterations: u32 = "4096", Kind::Count(1, COUNT_MAX), Reload, PgBouncer, InEffect;
        /// The highest protocol version that servers are asked for. Older servers negotiate a lower one.
        server_protocol: ServerProtocol = "3.2", Kind::Choice(ServerProtocol::WORDS), Reload, Ours, InEffect;
    }

    group "Server connections" {
        /// SQL that cleans a server before its next client in session pooling; empty means none.
        server_reset_query: String = "DISCARD ALL", Kind::Text, Reload, PgBouncer, InEffect;
        /// Runs `server_reset_query` in transaction and statement pooling, too.
        server_reset_query_always: bool = "0", Kind::Bool, Reload, PgBouncer, InEffect;
        /// SQL that proves a server alive if it was idle for `server_check_delay`. An empty value means none,
        /// and `<empty>` means the empty query.
        server_check_query: String = "<empty>", Kind::Text, Reload, PgBouncer, InEffect;
        /// The time that a server may be idle before pgweir checks it; 0 means that pgweir always checks it.
        server_check_delay: Duration = "30", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// Closes servers that are to be replaced at the end of the transaction also in session pooling, with
        /// their client.
        server_fast_close: bool = "0", Kind::Bool, Reload, PgBouncer, InEffect;
        /// The age after which an unused server connection is closed; 0 means that each is used once.
        server_lifetime: Duration = "3600", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time that a server connection may be unused before it is closed; 0 means without limit.
        server_idle_timeout: Duration = "600", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time that connecting to a server and logging in may take.
        server_connect_timeout: Duration = "15", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The pause after a failed connect. During the pause, clients get the reason at once.
        server_login_retry: Duration = "15", Kind::Seconds, Reload, PgBouncer, InEffect;
    }

    group "Timeouts" {
        /// The time that a client's login may take; 0 means without limit.
        client_login_timeout: Duration = "60", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time that a client may be idle outside a transaction; 0 means without limit.
        client_idle_timeout: Duration = "0", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time that a statement may wait and run before its server and its client are closed; 0 means
        /// without limit. A client that waits for its pool's first server waits no longer either.
        query_timeout: Duration = "0", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time that a client waits for a server; 0 means without limit.
        query_wait_timeout: Duration = "120", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time in the queue after which a client gets a notice; 0 means never.
        query_wait_notify: Duration = "5", Kind::WholeSeconds(0), Reload, PgBouncer, InEffect;
        /// The time that a cancel request waits for a connection; 0 means without limit.
        cancel_wait_timeout: Duration = "10", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time that a statement goes on if its client's connection has ended without a Terminate message
        /// (the client crashed, was killed or gave up). Then pgweir sends PostgreSQL a cancel request for it.
        /// The server connection counts towards all limits until the statement is over. 0: the statement runs
        /// to its end, as in PostgreSQL without `client_connection_check_interval`.
        cancel_vanished_after: Duration = "1", Kind::Seconds, Reload, Ours, InEffect;
        /// The time that a client may be idle inside a transaction; 0 means without limit.
        idle_transaction_timeout: Duration = "0", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time that a transaction may last; 0 means without limit.
        transaction_timeout: Duration = "0", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time that `SUSPEND` waits for buffers to empty before it closes connections.
        suspend_timeout: Duration = "10", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time for which SIGTERM leaves the listeners open while `/readyz` says `draining`, so that a
        /// load balancer stops sending clients. After that, clients are disconnected at the end of their
        /// transaction, as with SIGINT. 0 means that SIGTERM waits until all clients have disconnected.
        shutdown_drain_seconds: Duration = "0", Kind::Seconds, Reload, Ours, InEffect;
        /// The time without use after which a database that was made from the `*` entry is forgotten, with
        /// its totals.
        autodb_idle_timeout: Duration = "3600", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time without clients and servers after which a pool is forgotten, with its totals; 0 means
        /// never.
        pool_idle_timeout: Duration = "0", Kind::Seconds, Reload, PgBouncer, InEffect;
    }

    group "Authentication and console" {
        /// The way in which clients prove who they are.
        auth_type: AuthType = "md5", Kind::Choice(AuthType::WORDS), Reload, PgBouncer, InEffect;
        /// The list of users and their passwords.
        auth_file: Option<String> = NULL, Kind::Path, Reload, PgBouncer, InEffect;
        /// The rules of `auth_type = hba`, in the format of PostgreSQL's `pg_hba.conf`.
        auth_hba_file: String = "", Kind::Path, Reload, PgBouncer, InEffect;
        /// The map from names of the operating system and of certificates to users, in the format of
        /// PostgreSQL's `pg_ident.conf`.
        auth_ident_file: Option<String> = NULL, Kind::Path, Reload, PgBouncer, InEffect;
        /// The options of `auth_type = ldap`, as in a line of `pg_hba.conf`.
        auth_ldap_options: Option<Password> = NULL, Kind::TextWithSecret, Reload, PgBouncer, InEffect;
        /// The user that `auth_query` runs as. It is used for users that are not in `auth_file`.
        auth_user: Option<String> = NULL, Kind::Text, Reload, PgBouncer, InEffect;
        /// SQL that gives the name and the secret of the user `$1`.
        auth_query: String = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 AND rolcanlogin",
            Kind::Text, Reload, PgBouncer, InEffect;
        /// The database that `auth_query` runs in; the client's own database if the setting is not set.
        auth_dbname: Option<String> = NULL, Kind::AuthDatabase, Reload, PgBouncer, InEffect;
        /// The users that may do everything on the console.
        admin_users: Vec<String> = "", Kind::Names, Reload, PgBouncer, InEffect;
        /// The users that may read on the console.
        stats_users: Vec<String> = "", Kind::Names, Reload, PgBouncer, InEffect;
    }

    group "HTTP" {
        /// The addresses (`host:port`) of the HTTP server, which has the metrics, the dashboard and the API;
        /// a port alone means this machine only (127.0.0.1). If the setting is empty, there is no HTTP
        /// server.
        http_listen: Vec<String> = "", Kind::List, Restart, Ours, InEffect;
        /// The information that readers get without having signed in: `numbers` by database, without names of
        /// users and applications, addresses and SQL; `all` that a user of `stats_users` gets; or `none`.
        /// Users of `stats_users` and `admin_users` sign in on the page, or by HTTP basic authentication,
        /// with their password of `auth_file`.
        http_anonymous: Anonymous = "numbers", Kind::Choice(Anonymous::WORDS), Reload, Ours, InEffect;
        /// The certificate of the HTTP server. With a certificate, the server speaks only HTTPS.
        http_tls_cert_file: String = "", Kind::Path, Reload, Ours, InEffect;
        /// The key of that certificate.
        http_tls_key_file: String = "", Kind::Path, Reload, Ours, InEffect;
    }

    group "DNS" {
        /// The time for which an address is remembered.
        dns_max_ttl: Duration = "15", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The time for which pgweir remembers that a name does not exist.
        dns_nxdomain_ttl: Duration = "15", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// The interval at which zones are asked whether they have changed; 0 means never.
        dns_zone_check_period: Duration = "0", Kind::Seconds, Reload, PgBouncer, InEffect;
        /// A `resolv.conf` whose name servers are asked, instead of the operating system. `/etc/hosts` comes first.
        resolv_conf: String = "", Kind::Path, Restart, PgBouncer, InEffect;
    }

    group "Sources of clusters" {
        /// The addresses of etcd, as `http://host:port` or `https://host:port`: for clusters with `discovery=etcd`, for
        /// `vip`, and for `shared_limits`.
        etcd_endpoints: Vec<String> = "", Kind::List, Reload, Ours, InEffect;
        /// The user that reads etcd's keys, if etcd has users.
        etcd_user: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The password of `etcd_user`.
        etcd_password: Option<Password> = NULL, Kind::Secret, Reload, Ours, InEffect;
        /// The authorities that the certificates of etcd and Patroni have to come from. Addresses with `https` need it.
        source_tls_ca_file: String = "", Kind::Path, Reload, Ours, InEffect;
        /// The certificate that etcd and Patroni are shown.
        source_tls_cert_file: String = "", Kind::Path, Reload, Ours, InEffect;
        /// The private key of `source_tls_cert_file`.
        source_tls_key_file: String = "", Kind::Path, Reload, Ours, InEffect;
        /// The hosts that etcd and Patroni may name as nodes: addresses, networks (`10.1.0.0/16`), host names, host names that
        /// begin with `*`, or `*` for any. pgweir logs in to no other host. Clusters with `discovery=etcd` or `patroni` need it.
        allow_discovered_hosts: Vec<String> = "", Kind::List, Reload, Ours, InEffect;
    }

    group "Virtual address" {
        /// The address that one of several poolers has, as `10.0.0.9/24` or `fd00::9/64`: the pooler that holds a lease in etcd
        /// (`etcd_endpoints`) adds it to its network interface and announces it. It also needs `http_listen`, where the other poolers ask
        /// whether this one still serves. pgweir needs the capabilities CAP_NET_ADMIN and CAP_NET_RAW, or `vip_up_command`.
        vip: String = "", Kind::Text, Reload, Ours, InEffect;
        /// The network interface that gets `vip`. If it is empty, pgweir takes the interface that has an address in the same network.
        vip_interface: String = "", Kind::Text, Reload, Ours, InEffect;
        /// The time in seconds after which the lease of a pooler that does not renew it ends, and another pooler takes the address. The kernel
        /// removes the address of a process that was killed or stopped one second later.
        vip_ttl: Duration = "10", Kind::WholeSeconds(3), Reload, Ours, InEffect;
        /// A program that sets the address, with its arguments separated by spaces, without a shell, for example to call the API of a cloud. pgweir
        /// then does not touch the network interface. The program gets `vip` and `vip_interface` in the environment as `PGWEIR_VIP` and
        /// `PGWEIR_VIP_INTERFACE`, has `vip_ttl` seconds, and must succeed if the address is already set. Needs `vip_down_command`.
        vip_up_command: String = "", Kind::Text, Reload, Ours, InEffect;
        /// A program that removes the address, in the same way. It must succeed if the address is not set.
        vip_down_command: String = "", Kind::Text, Reload, Ours, InEffect;
    }

    group "Shared limits" {
        /// Whether `max_db_connections` and `max_user_connections` hold for each pooler (`off`), or for all poolers together (`etcd`).
        /// With `etcd` the poolers agree through etcd (`etcd_endpoints`) which part of a limit each of them may use. Pool sizes hold
        /// for each pooler in both cases.
        shared_limits: SharedLimits = "off", Kind::Choice(SharedLimits::WORDS), Reload, Ours, InEffect;
        /// The prefix of the keys in etcd. Poolers with the same prefix share their limits; give poolers of other PostgreSQL servers
        /// another one.
        shared_limits_prefix: String = "/pgweir/limits/", Kind::Text, Reload, Ours, InEffect;
        /// The time in seconds after which the lease of a pooler that does not renew it ends. A pooler that cannot reach etcd opens no
        /// new connections that count towards a shared limit after half of this time, and keeps those that it has. After this time
        /// the other poolers use the part of a pooler that was killed, as soon as PostgreSQL shows that its connections are gone.
        shared_limits_ttl: Duration = "15", Kind::WholeSeconds(3), Reload, Ours, InEffect;
    }

    group "TLS" {
        /// The mode of TLS with clients: whether they may or have to use it.
        client_tls_sslmode: SslMode = "disable", Kind::Choice(SslMode::WORDS), Reload, PgBouncer, InEffect;
        /// The key of the certificate that clients are shown.
        client_tls_key_file: String = "", Kind::Path, Reload, PgBouncer, InEffect;
        /// The certificate that clients are shown.
        client_tls_cert_file: String = "", Kind::Path, Reload, PgBouncer, InEffect;
        /// The authorities that clients' certificates have to come from.
        client_tls_ca_file: String = "", Kind::Path, Reload, PgBouncer, InEffect;
        /// The TLS versions that clients may use.
        client_tls_protocols: String = "secure", Kind::Text, Reload, PgBouncer, InEffect;
        /// The ciphers of TLS 1.2 that clients may use, as OpenSSL names them.
        client_tls_ciphers: String = "default", Kind::Text, Reload, PgBouncer, InEffect;
        /// The cipher suites of TLS 1.3 that clients may use.
        client_tls13_ciphers: Option<String> = NULL, Kind::Text, Reload, PgBouncer, InEffect;
        /// Parameters of the DHE key exchange: none, auto or legacy.
        client_tls_dheparams: String = "auto", Kind::Text, Reload, PgBouncer, NotYet;
        /// The curve of the ECDHE key exchange: none, auto or a name.
        client_tls_ecdhcurve: String = "auto", Kind::Text, Reload, PgBouncer, InEffect;
        /// The mode of TLS with servers: whether they are asked for it, and how much of their certificate is
        /// checked.
        server_tls_sslmode: SslMode = "prefer", Kind::Choice(SslMode::WORDS), Reload, PgBouncer, InEffect;
        /// The authorities that servers' certificates have to come from.
        server_tls_ca_file: String = "", Kind::Path, Reload, PgBouncer, InEffect;
        /// The key of the certificate that servers are shown.
        server_tls_key_file: String = "", Kind::Path, Reload, PgBouncer, InEffect;
        /// The certificate that servers are shown.
        server_tls_cert_file: String = "", Kind::Path, Reload, PgBouncer, InEffect;
        /// The TLS versions that are offered to servers.
        server_tls_protocols: String = "secure", Kind::Text, Reload, PgBouncer, InEffect;
        /// The ciphers of TLS 1.2 that are offered to servers, as OpenSSL names them.
        server_tls_ciphers: String = "default", Kind::Text, Reload, PgBouncer, InEffect;
        /// The cipher suites of TLS 1.3 that are offered to servers.
        server_tls13_ciphers: Option<String> = NULL, Kind::Text, Reload, PgBouncer, InEffect;
    }

    group "Network" {
        /// The size of a connection's buffer in PgBouncer.
        pkt_buf: u32 = "4096", Kind::Bytes(64, COUNT_MAX), Restart, PgBouncer, NotYet;
        /// The largest packet that a client may send; a larger one ends its connection.
        max_packet_size: u32 = "2147483647", Kind::Bytes(64, COUNT_MAX), Reload, PgBouncer, InEffect;
        /// The number of buffers that are handled for one connection before the next one has its turn; 0
        /// means no limit.
        sbuf_loopcnt: u32 = "5", Kind::Limit, Reload, PgBouncer, NotYet;
        /// Accepts a connection only when its first bytes have arrived (`TCP_DEFER_ACCEPT`). It has no effect
        /// with `so_reuseport`: if one of the processes were replaced, clients that have connected to it and
        /// sent nothing yet would be reset.
        tcp_defer_accept: bool = "1", Kind::Bool, Reload, PgBouncer, InEffect;
        /// The size of the socket's buffers (`SO_SNDBUF`, `SO_RCVBUF`); 0 leaves it to the system.
        tcp_socket_buffer: u32 = "0", Kind::Bytes(0, COUNT_MAX), Reload, PgBouncer, InEffect;
        /// Lets TCP probe silent peers (`SO_KEEPALIVE`).
        tcp_keepalive: bool = "1", Kind::Bool, Reload, PgBouncer, InEffect;
        /// The number of lost probes after which a connection is dead; 0 leaves it to the system.
        tcp_keepcnt: u32 = "0", Kind::Count(0, COUNT_MAX), Reload, PgBouncer, InEffect;
        /// The time of silence after which the first probe is sent; 0 leaves it to the system.
        tcp_keepidle: Duration = "0", Kind::WholeSeconds(0), Reload, PgBouncer, InEffect;
        /// The time between two probes; 0 leaves it to the system.
        tcp_keepintvl: Duration = "0", Kind::WholeSeconds(0), Reload, PgBouncer, InEffect;
        /// The time without acknowledgement after which a connection is dead (`TCP_USER_TIMEOUT`); 0 leaves
        /// it to the system.
        tcp_user_timeout: Duration = "0", Kind::Milliseconds, Reload, PgBouncer, InEffect;
    }
}
