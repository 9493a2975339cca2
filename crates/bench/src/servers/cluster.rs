//! A PostgreSQL cluster to throw away: made in a temporary directory, reachable from this machine only, gone with its owner.
//!
//! The superuser can be reached only through a unix socket in a directory that is closed to other users. On 127.0.0.1
//! there is one role without any privileges, [`USER`], for the one database it owns: a neighbour on the machine gains nothing.

mod replication;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pgweir_auth::{Credential, PlainPassword};

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::process::{self, Process, STOP_POSTGRES};
use crate::processes::scratch::{self, Scratch};
use crate::processes::tools::PostgresTools;
use pgweir_client::Client;
use pgweir_client::{Address, Login};

/// The role that makes the load; it owns [`DATABASE`].
pub(crate) const USER: &str = "bench";
/// The database that the load runs in.
pub(crate) const DATABASE: &str = "bench";
/// The superuser, over the unix socket only.
const SUPERUSER: &str = "postgres";

/// PostgreSQL keeps so many connections back for superusers (`superuser_reserved_connections`).
pub(crate) const RESERVED: u32 = 3;

const INITDB_LIMIT: Duration = Duration::from_secs(120);
const START_LIMIT: Duration = Duration::from_secs(60);
const FILL_LIMIT: Duration = Duration::from_secs(1800);

/// Connections that close do so within this time; two equal counts at this distance mean that all have.
const SETTLE_STEP: Duration = Duration::from_millis(200);
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// First port that is tried; below the ports that the kernel gives to outgoing connections.
const PORT_FIRST: u16 = 21_000;
const PORT_LAST: u16 = 31_999;

/// The password of [`USER`] where a cluster asks for one. It is no secret: the cluster holds nothing, and listens on this machine only.
pub(crate) const PASSWORD: &str = "bench";

/// How a cluster lets [`USER`] in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Entry {
    /// Without a proof.
    #[default]
    Trust,
    /// By an md5 password.
    Md5,
    /// By SCRAM-SHA-256.
    Scram,
}

impl Entry {
    /// The method's name in pg_hba.conf, and as PgBouncer's `auth_type`.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Trust => "trust",
            Self::Md5 => "md5",
            Self::Scram => "scram-sha-256",
        }
    }

    /// What [`USER`] has to know.
    #[must_use]
    pub(crate) fn password(self) -> Option<&'static str> {
        (self != Self::Trust).then_some(PASSWORD)
    }
}

/// What a cluster is to be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterOptions {
    /// `max_connections`.
    pub(crate) max_connections: u32,
    /// `shared_buffers`, megabytes.
    pub(crate) shared_buffers_mb: u32,
    /// How the load's role is let in.
    pub(crate) entry: Entry,
}

/// A running cluster. Dropping it shuts PostgreSQL down; its files go with the [`Scratch`] directory.
#[derive(Debug)]
pub(crate) struct Cluster {
    process: Process,
    data: PathBuf,
    socket_dir: PathBuf,
    port: u16,
    log: PathBuf,
    entry: Entry,
}

impl Cluster {
    /// Makes a cluster in `scratch` and starts it.
    ///
    /// # Errors
    /// A PostgreSQL program failed (its last words are in the error), or a signal came.
    pub(crate) fn start(
        tools: &PostgresTools,
        scratch: &Scratch,
        options: ClusterOptions,
        interrupt: &Interrupt,
    ) -> Result<Self, BenchError> {
        let data = scratch.folder("data")?;
        let socket_dir = scratch.folder("pg")?;
        initdb(tools, scratch, &data, interrupt)?;
        let port = free_port()?;
        append(&data.join("postgresql.conf"), &postgresql_conf(port, &socket_dir, options))?;
        scratch.write(&data.join("pg_hba.conf"), &pg_hba_conf(options.entry))?;
        let mut cluster = Self::spawn(tools, scratch, "postgres", data, socket_dir, port, options.entry)?;
        cluster.make_database(interrupt)?;
        Ok(cluster)
    }

    /// Starts the server of a folder that is ready; `name` is that of its log.
    fn spawn(
        tools: &PostgresTools,
        scratch: &Scratch,
        name: &str,
        data: PathBuf,
        socket_dir: PathBuf,
        port: u16,
        entry: Entry,
    ) -> Result<Self, BenchError> {
        let log = scratch.path().join(format!("{name}.log"));
        let log_file = process::log_file(&log)?;
        let mut command = Command::new(&tools.postgres);
        scratch.run_as().apply(&mut command);
        command.arg("-D").arg(&data).current_dir(&data);
        command.stdout(log_file.try_clone().map_err(BenchError::io("the server's log"))?).stderr(log_file);
        let process = Process::spawn(&mut command, "PostgreSQL", STOP_POSTGRES)?;
        Ok(Self { process, data, socket_dir, port, log, entry })
    }

    /// Waits until the server is there, and makes the load's role and database.
    fn make_database(&mut self, interrupt: &Interrupt) -> Result<(), BenchError> {
        let mut superuser = self.wait_until_ready(interrupt)?;
        let password = self.entry.password().map(|password| format!(" PASSWORD '{password}'"));
        for statement in [
            format!(
                "CREATE ROLE {USER} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION{}",
                password.unwrap_or_default()
            ),
            // The pooler's questions to the nodes of a cluster run as this role: without it a standby's timeline stays unknown to
            // them for long after a promotion.
            format!("GRANT pg_read_all_stats TO {USER}"),
            format!("CREATE DATABASE {DATABASE} OWNER {USER}"),
        ] {
            superuser.query(&statement).map_err(BenchError::io(statement))?;
        }
        Ok(())
    }

    /// Fills pgbench's tables at this scale (about 15 MB each step), showing how far it is.
    ///
    /// # Errors
    /// pgbench failed, or a signal came.
    pub(crate) fn fill(
        &mut self,
        tools: &PostgresTools,
        scale: u32,
        interrupt: &Interrupt,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), BenchError> {
        let mut command = Command::new(&tools.pgbench);
        let (host, port) = self.address().host_and_port();
        command.args(["--initialize", "--host", &host, "--port", &port, "--username", USER]);
        command.args(["--scale", &scale.to_string(), DATABASE]).current_dir("/");
        if let Some(password) = self.entry.password() {
            command.env("PGPASSWORD", password);
        }
        let finished =
            process::run(&mut command, "pgbench --initialize", FILL_LIMIT, interrupt, &mut |line| {
                if let Some(done) = line.and_then(tuples_done) {
                    say(&done);
                }
            })?;
        if !finished.status.success() {
            return Err(self.explain(process::failure("pgbench --initialize", &finished)));
        }
        Ok(())
    }

    /// Where the load connects directly.
    #[must_use]
    pub(crate) fn address(&self) -> Address {
        Address::Loopback(self.port)
    }

    /// TCP port on 127.0.0.1.
    #[must_use]
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How the superuser logs in to the load's database.
    #[must_use]
    pub(crate) fn watcher(&self) -> Login {
        let address = Address::Unix(self.socket_dir.clone(), self.port);
        Login::trusted(address, SUPERUSER, DATABASE, "pgweir-tools")
    }

    /// How the load logs in directly.
    #[must_use]
    pub(crate) fn login(&self) -> Login {
        let password = self.entry.password().map(PlainPassword::new);
        let credential = password.map_or(Credential::None, Credential::Password);
        Login { credential, ..Login::trusted(self.address(), USER, DATABASE, "direct") }
    }

    /// The postmaster's process id.
    #[must_use]
    pub(crate) fn postmaster(&self) -> u32 {
        self.process.id()
    }

    /// A connection as superuser, which PostgreSQL has room for even when ordinary ones are refused.
    ///
    /// # Errors
    /// The server is not there.
    pub(crate) fn superuser(&self) -> Result<Client, BenchError> {
        self.try_superuser().map_err(BenchError::io("connecting to the throw-away PostgreSQL"))
    }

    /// Waits until the load of an earlier run has let go of its connections: PostgreSQL frees a slot a moment after its
    /// client has gone. Connections that stay (a pooler's) are waited for in vain, for a bounded time.
    ///
    /// # Errors
    /// The server is not there, or a signal came.
    pub(crate) fn settle(&self, interrupt: &Interrupt) -> Result<(), BenchError> {
        let mut superuser = self.superuser()?;
        let until = Instant::now() + SETTLE_LIMIT;
        let mut before = u64::MAX;
        loop {
            let now = connections(&mut superuser, ALL_OF_THE_LOAD)
                .map_err(BenchError::io("counting connections"))?;
            if now == before || Instant::now() >= until {
                return Ok(());
            }
            before = now;
            interrupt.sleep(SETTLE_STEP)?;
        }
    }

    /// An error if the server has ended, or its disk is full.
    ///
    /// # Errors
    /// [`BenchError::Failed`] with the server's last words, or [`BenchError::DiskFull`].
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        match self.process.ended() {
            // It may survive that, but what is measured then is nothing.
            _ if scratch::is_full(&self.log) => Err(scratch::temporary_full()),
            None => Ok(()),
            Some(status) => {
                Err(self
                    .explain(BenchError::failed(format!("PostgreSQL ended ({status})"), &self.log_text())))
            }
        }
    }

    /// An error if a run failed because the server has ended. A server that was killed refuses connections some time before its end
    /// can be seen, so this waits until the server either accepts a connection or has ended.
    ///
    /// # Errors
    /// As [`Cluster::check`]; or the server did neither in time, or a signal came.
    pub(crate) fn check_after_failure(&mut self, interrupt: &Interrupt) -> Result<(), BenchError> {
        self.check()?;
        self.wait_until_ready(interrupt).map(drop)
    }

    fn try_superuser(&self) -> std::io::Result<Client> {
        Client::connect(&Address::Unix(self.socket_dir.clone(), self.port), SUPERUSER, "postgres")
    }

    fn wait_until_ready(&mut self, interrupt: &Interrupt) -> Result<Client, BenchError> {
        let until = Instant::now() + START_LIMIT;
        loop {
            match self.try_superuser() {
                Ok(client) => return Ok(client),
                Err(error) if Instant::now() >= until => {
                    return Err(BenchError::failed(
                        "PostgreSQL accepts no connection",
                        &format!("{}\n{error}", self.log_text()),
                    ));
                }
                Err(_) => {}
            }
            self.check()?;
            interrupt.sleep(Duration::from_millis(50))?;
        }
    }

    fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A full disk shows in the server's log, not in what a client is told; unless the log has no room either.
    fn explain(&self, error: BenchError) -> BenchError {
        if process::says_disk_full(&self.log_text()) || scratch::is_full(&self.log) {
            return scratch::temporary_full();
        }
        error
    }
}

/// SQL condition for every connection of the load's role.
const ALL_OF_THE_LOAD: &str = "usename = 'bench'";

/// The number of server connections that fulfil a condition on `pg_stat_activity`.
pub(crate) fn connections(superuser: &mut Client, condition: &str) -> std::io::Result<u64> {
    let rows = superuser.query(&format!("SELECT count(*) FROM pg_stat_activity WHERE {condition}"))?;
    let count = rows.first().and_then(|row| row.first()).and_then(|count| count.parse().ok());
    count.ok_or_else(|| std::io::Error::other("count(*) gave no number"))
}

/// A free TCP port on 127.0.0.1 from a range that the kernel does not use for outgoing connections; another one with each
/// call, since what was named before may not be in use yet.
///
/// # Errors
/// All are taken.
pub(crate) fn free_port() -> Result<u16, BenchError> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let span = u32::from(PORT_LAST - PORT_FIRST) + 1;
    let start = std::process::id().wrapping_mul(7) % span;
    (0..span)
        .map(|_| start + TRIED.fetch_add(1, Ordering::Relaxed) % span)
        .map(|place| PORT_FIRST + u16::try_from(place % span).expect("the span is below 65536"))
        .find(|port| port_is_free(*port))
        .ok_or_else(|| BenchError::Missing(format!("no free port on 127.0.0.1 in {PORT_FIRST}-{PORT_LAST}")))
}

/// Whether no process listens on this port of 127.0.0.1.
#[must_use]
pub(crate) fn port_is_free(port: u16) -> bool {
    std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn initdb(
    tools: &PostgresTools,
    scratch: &Scratch,
    data: &Path,
    interrupt: &Interrupt,
) -> Result<(), BenchError> {
    let mut command = Command::new(&tools.initdb);
    scratch.run_as().apply(&mut command);
    command.arg("--pgdata").arg(data).current_dir("/");
    command.args([
        "--username",
        SUPERUSER,
        "--auth",
        "trust",
        "--encoding",
        "UTF8",
        "--locale",
        "C",
        "--no-sync",
    ]);
    process::expect_success(&mut command, "initdb", INITDB_LIMIT, interrupt).map(drop)
}

/// Durable storage is not what is compared here, and a throw-away cluster has nothing to lose.
fn postgresql_conf(port: u16, socket_dir: &Path, options: ClusterOptions) -> String {
    let ClusterOptions { max_connections, shared_buffers_mb, entry } = options;
    // A trusted role has no password.
    let encryption = if entry == Entry::Md5 { "md5" } else { "scram-sha-256" };
    let mut conf = String::new();
    let _ = write!(
        conf,
        "\nlisten_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n\
         max_connections = {max_connections}\nsuperuser_reserved_connections = {RESERVED}\n\
         shared_buffers = {shared_buffers_mb}MB\nfsync = off\nfull_page_writes = off\nmax_wal_size = 4GB\n\
         autovacuum = off\nlogging_collector = off\nssl = off\n\
         password_encryption = '{encryption}'\n",
        socket_dir.display()
    );
    conf
}

fn pg_hba_conf(entry: Entry) -> String {
    format!("local all {SUPERUSER} trust\nhost {DATABASE} {USER} 127.0.0.1/32 {}\n", entry.name())
}

fn append(path: &Path, text: &str) -> Result<(), BenchError> {
    use std::io::Write as _;
    std::fs::OpenOptions::new()
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(BenchError::io(format!("writing {}", path.display())))
}

/// `100000 of 1000000 tuples (10%) done ...` becomes `10%`.
pub(crate) fn tuples_done(line: &str) -> Option<String> {
    let (_, after) = line.rsplit_once("tuples (")?;
    let (percent, _) = after.split_once(')')?;
    percent.ends_with('%').then(|| percent.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_free_ports_are_two() {
        assert_ne!(free_port().expect("one is free"), free_port().expect("another is free"));
    }

    #[test]
    fn progress_of_filling_is_read() {
        let line = "100000 of 1000000 tuples (10%) done (elapsed 0.06 s, remaining 0.55 s)";
        assert_eq!(tuples_done(line).as_deref(), Some("10%"));
        assert_eq!(tuples_done("creating primary keys..."), None);
    }

    #[test]
    fn a_free_port_can_be_bound_and_then_is_not_free() {
        let port = free_port().expect("a port");
        let _listener = std::net::TcpListener::bind(("127.0.0.1", port)).expect("it was free");
        assert!(!port_is_free(port));
    }
}
