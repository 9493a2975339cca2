//! A pooler process for a [`crate::servers::cluster::Cluster`]: pgweir, PgBouncer, any other that takes a pgbouncer.ini, or
//! Pgpool-II (see [`crate::servers::pgpool`]).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::process::{self, Process, STOP_PGPOOL, STOP_POOLER};
use crate::processes::scratch::Scratch;
use crate::processes::tools::version_of;
use crate::servers::cluster::{Entry, free_port, port_is_free};
use crate::servers::pgpool;
use pgweir_client::Client;
use pgweir_client::{Address, Login};

const START_LIMIT: Duration = Duration::from_secs(15);

/// A pooler's program and the name it has in tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolerProgram {
    /// Name in tables.
    pub(crate) name: String,
    /// The executable; takes `--quiet file.ini` and, for root, `--user name`, unless it is Pgpool-II.
    pub(crate) path: PathBuf,
}

impl PoolerProgram {
    /// This very executable, as pgweir.
    ///
    /// # Errors
    /// The system does not say where it is.
    pub(crate) fn own() -> Result<Self, BenchError> {
        let path = std::env::current_exe().map_err(BenchError::io("finding pgweir's own executable"))?;
        Ok(Self { name: "pgweir".to_owned(), path })
    }

    /// What `--version` says.
    #[must_use]
    pub(crate) fn version(&self) -> String {
        version_of(&self.path)
    }

    /// Whether it follows prepared statements in transaction pooling: everything but PgBouncer before 1.21.
    #[must_use]
    pub(crate) fn has_prepared_statements(&self) -> bool {
        pgbouncer_version(&self.version()).is_none_or(|version| version >= (1, 21))
    }

    /// Whether it is Pgpool-II: a process for each client, session pooling only, and other files and another console.
    #[must_use]
    pub(crate) fn is_pgpool(&self) -> bool {
        self.version().starts_with("pgpool-II ")
    }
}

/// How a pooler is to be configured; what is not named here has its default.
#[derive(Clone, Debug)]
pub(crate) struct PoolerOptions {
    /// `default_pool_size`.
    pub(crate) pool_size: u32,
    /// `max_client_conn`.
    pub(crate) max_client_conn: u32,
    /// Clients that there are at the same time: a pooler may need a process for each.
    pub(crate) clients: u32,
    /// `listen_port`; a free one if not given.
    pub(crate) port: Option<u16>,
    /// `pool_mode`.
    pub(crate) mode: &'static str,
    /// `auth_type`; clients prove themselves with the server login's password.
    pub(crate) entry: Entry,
    /// The ports of the nodes of a cluster that serves the database, in place of the one server.
    pub(crate) nodes: Vec<u16>,
    /// The lines of `[cache]`; only pgweir has one.
    pub(crate) cache_rules: Vec<String>,
    /// Further settings of `[pgbouncer]`; those of the same name before are left out.
    pub(crate) settings: Vec<(String, String)>,
}

impl Default for PoolerOptions {
    fn default() -> Self {
        Self {
            pool_size: 20,
            max_client_conn: 100,
            clients: 1,
            port: None,
            mode: "transaction",
            entry: Entry::Trust,
            nodes: Vec::new(),
            cache_rules: Vec::new(),
            settings: Vec::new(),
        }
    }
}

/// A running pooler. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Pooler {
    process: Process,
    program: PoolerProgram,
    port: u16,
    /// Its configuration and log.
    folder: PathBuf,
    log: PathBuf,
    login: Login,
    is_pgpool: bool,
}

impl Pooler {
    /// Starts `program` for the server that `server` logs in to.
    ///
    /// # Errors
    /// It ended at once or cannot be logged in to; its last words are in the error. The port is taken. A signal came.
    pub(crate) fn start(
        program: &PoolerProgram,
        options: &PoolerOptions,
        server: &Login,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, BenchError> {
        let port = match options.port {
            Some(port) if !port_is_free(port) => return Err(BenchError::PortInUse { port }),
            Some(port) => port,
            None => free_port()?,
        };
        let folder = scratch.folder(&format!("pooler-{port}"))?;
        let log = folder.join("log");
        let output = folder.join("output");
        let output_file = process::log_file(&output)?;
        let is_pgpool = program.is_pgpool();
        let mut command = if is_pgpool {
            pgpool::prepare(&program.path, port, &folder, options, server, scratch)?
        } else {
            command(program, port, &folder, options, server, scratch)?
        };
        command
            .stdout(output_file.try_clone().map_err(BenchError::io("the pooler's output"))?)
            .stderr(output_file);
        let plan = if is_pgpool { STOP_PGPOOL } else { STOP_POOLER };
        let process = Process::spawn_service(&mut command, &program.name, plan)?;
        // It hands a client's own startup parameters on; the others have the schema in their file.
        let search_path = server.search_path.clone().filter(|_| is_pgpool);
        let login = Login { address: Address::Loopback(port), search_path, ..server.named(&program.name) };
        let mut pooler = Self { process, program: program.clone(), port, folder, log, login, is_pgpool };
        pooler.wait_until_ready(&output, interrupt)?;
        Ok(pooler)
    }

    /// How its clients log in.
    #[must_use]
    pub(crate) fn login(&self) -> &Login {
        &self.login
    }

    /// How an administrator logs in to its console, if it has one.
    #[must_use]
    pub(crate) fn console(&self) -> Option<Login> {
        (!self.is_pgpool).then(|| Login { database: "pgbouncer".to_owned(), ..self.login.clone() })
    }

    /// Where its clients connect.
    #[must_use]
    pub(crate) fn address(&self) -> Address {
        Address::Loopback(self.port)
    }

    /// Its TCP port on 127.0.0.1.
    #[must_use]
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The number of its workers, as pgweir's log says at the start; `None` for another pooler.
    #[must_use]
    pub(crate) fn workers(&self) -> Option<u32> {
        workers_of(&std::fs::read_to_string(&self.log).ok()?)
    }

    /// What it is.
    #[must_use]
    pub(crate) fn program(&self) -> &PoolerProgram {
        &self.program
    }

    /// Its process id.
    #[must_use]
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// An error if it has ended.
    ///
    /// # Errors
    /// [`BenchError::Failed`] with the last lines of its log.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        match self.process.ended() {
            None => Ok(()),
            Some(status) => {
                let said = std::fs::read_to_string(&self.log).unwrap_or_default();
                Err(BenchError::failed(format!("{} ended ({status})", self.process.name()), &said))
            }
        }
    }

    fn wait_until_ready(&mut self, output: &Path, interrupt: &Interrupt) -> Result<(), BenchError> {
        let until = Instant::now() + START_LIMIT;
        loop {
            let refusal = match Client::log_in(&self.login.named("pgweir-tools")) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let said = || {
                let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
                format!("{}\n{}", read(&self.log), read(output))
            };
            if let Some(status) = self.process.ended() {
                if said().contains("Address already in use") {
                    return Err(BenchError::PortInUse { port: self.port });
                }
                return Err(BenchError::failed(
                    format!("{} did not start ({status})", self.process.name()),
                    &said(),
                ));
            }
            if Instant::now() >= until {
                let what = format!("{} lets no client in", self.process.name());
                return Err(BenchError::failed(what, &format!("{}\n{refusal}", said())));
            }
            interrupt.sleep(Duration::from_millis(20))?;
        }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.process.stop();
        // The port, and with it the folder's name, may be used again.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Writes the files of a pooler that takes a pgbouncer.ini, and gives the command that starts it.
fn command(
    program: &PoolerProgram,
    port: u16,
    folder: &Path,
    options: &PoolerOptions,
    server: &Login,
    scratch: &Scratch,
) -> Result<Command, BenchError> {
    let ini = folder.join("pgweir.ini");
    let quoted = |text: &str| text.replace('"', "\"\"");
    let password = server.password().map(|password| String::from_utf8_lossy(password.as_bytes()));
    let users = format!("\"{}\" \"{}\"\n", quoted(&server.user), quoted(&password.unwrap_or_default()));
    scratch.write(&folder.join("users.txt"), &users)?;
    scratch.write(&ini, &ini_text(port, folder, options, server))?;
    let mut command = process::service_command(&program.path);
    command.arg("--quiet");
    if std::env::current_exe().is_ok_and(|own| own == program.path) {
        // What this machine's own pooler is completed with has no place in a throw-away one.
        command.arg("--no-overlay");
    }
    if let Some(user) = scratch.run_as().other_user() {
        // The pooler changes the user itself: its executable may lie where only root can reach it.
        command.args(["--user", user]);
    }
    command.arg(&ini).current_dir("/");
    Ok(command)
}

/// The same file for every pooler, in PgBouncer's words.
fn ini_text(port: u16, folder: &Path, options: &PoolerOptions, server: &Login) -> String {
    let folder = folder.display();
    let (host, server_port) = server.address.host_and_port();
    let mut settings: Vec<(String, String)> = [
        ("listen_addr", "127.0.0.1".to_owned()),
        ("listen_port", port.to_string()),
        ("unix_socket_dir", String::new()),
        ("auth_type", options.entry.name().to_owned()),
        ("auth_file", format!("{folder}/users.txt")),
        ("admin_users", server.user.clone()),
        ("pool_mode", options.mode.to_owned()),
        ("default_pool_size", options.pool_size.to_string()),
        ("max_client_conn", options.max_client_conn.to_string()),
        ("logfile", format!("{folder}/log")),
        ("log_connections", "0".to_owned()),
        ("log_disconnections", "0".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let place = if options.nodes.is_empty() {
        format!("host={host} port={server_port}")
    } else {
        "cluster=main".to_owned()
    };
    let mut database = format!("{place} dbname={} user={}", server.database, server.user);
    if let Some(schema) = &server.search_path {
        // DISCARD ALL would end in the role's own schemas.
        let _ = write!(database, " connect_query='SET search_path = {schema}'");
        settings.push(("server_reset_query".to_owned(), format!("RESET ALL; SET search_path = {schema}")));
        settings.push(("ignore_startup_parameters".to_owned(), "options".to_owned()));
    }
    for (name, value) in &options.settings {
        settings.retain(|(earlier, _)| earlier != name);
        settings.push((name.clone(), value.clone()));
    }
    let mut ini = format!("[databases]\n{} = {database}\n", server.database);
    if !options.nodes.is_empty() {
        let _ = writeln!(ini, "{} = {database} route=prefer-standby", read_only(&server.database));
    }
    ini.push_str("\n[pgbouncer]\n");
    for (name, value) in settings {
        let _ = writeln!(ini, "{name} = {value}");
    }
    if !options.nodes.is_empty() {
        ini.push_str(&cluster_text(&options.nodes, server));
    }
    if !options.cache_rules.is_empty() {
        let _ = writeln!(ini, "\n[cache]\n{}", options.cache_rules.join("\n"));
    }
    ini
}

/// The name under which clients of a cluster's database read from standbys.
#[must_use]
pub(crate) fn read_only(database: &str) -> String {
    format!("{database}_ro")
}

/// The sections of a cluster. A node counts as down after a second, not after five: it is on the same machine.
fn cluster_text(nodes: &[u16], server: &Login) -> String {
    let names: Vec<String> = (1..=nodes.len()).map(|number| format!("m{number}")).collect();
    let mut text = format!(
        "\n[clusters]\nmain = nodes={} check_user={} check_dbname={} check_interval_ms=200 check_timeout_ms=1000 down_after_ms=1000 \
         primary_max_age_ms=3000\n\n[nodes]\n",
        names.join(","),
        server.user,
        server.database
    );
    for (name, port) in names.iter().zip(nodes) {
        let _ = writeln!(text, "{name} = host=127.0.0.1 port={port}");
    }
    text
}

/// `PgBouncer 1.18.0` is (1, 18); `None` for other programs.
fn pgbouncer_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("PgBouncer ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn workers_of(log: &str) -> Option<u32> {
    let (_, rest) = log.split_once(" LOG workers: ")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_workers_is_in_the_log() {
        let log = "2026-01-01 00:00:00.000 UTC [7] LOG listening on 127.0.0.1:6432\n\
                   2026-01-01 00:00:00.000 UTC [7] LOG workers: 12 (cores: 48, setting: 0)\n";
        assert_eq!(workers_of(log), Some(12));
        assert_eq!(workers_of("2026-01-01 00:00:00.000 UTC [7] LOG process up: PgBouncer 1.25.2\n"), None);
    }

    #[test]
    fn versions_of_pgbouncer_are_told_from_others() {
        assert_eq!(pgbouncer_version("PgBouncer 1.18.0"), Some((1, 18)));
        assert_eq!(pgbouncer_version("pgweir 0.1.0 (PgBouncer 1.25 compatible)"), None);
        assert_eq!(pgbouncer_version(""), None);
    }
}
