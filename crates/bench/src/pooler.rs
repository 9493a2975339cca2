//! A pooler process in front of a [`crate::cluster::Cluster`]: pgweir, PgBouncer, or any other that takes a pgbouncer.ini.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::{Address, Client};
use crate::cluster::{Cluster, DATABASE, USER, free_port, port_is_free};
use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::process::{self, Process, STOP_POOLER};
use crate::scratch::Scratch;
use crate::tools::version_of;

const START_LIMIT: Duration = Duration::from_secs(15);

/// A pooler's program and the name it has in tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolerProgram {
    /// Name in tables.
    pub(crate) name: String,
    /// The executable; takes `--quiet file.ini` and, for root, `--user name`.
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
}

/// How a pooler is to be configured; what is not named here has its default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolerOptions {
    /// `default_pool_size`.
    pub(crate) pool_size: u32,
    /// `max_client_conn`.
    pub(crate) max_client_conn: u32,
    /// `listen_port`; a free one if not given.
    pub(crate) port: Option<u16>,
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
}

impl Pooler {
    /// Starts `program` in transaction pooling in front of `cluster`.
    ///
    /// # Errors
    /// It ended at once or can not be logged in to; its last words are in the error. The port is taken. A signal came.
    pub(crate) fn start(
        program: &PoolerProgram,
        options: PoolerOptions,
        cluster: &Cluster,
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
        let ini = folder.join("pgweir.ini");
        scratch.write(&folder.join("users.txt"), &format!("\"{USER}\" \"\"\n"))?;
        scratch.write(&ini, &ini_text(port, &folder, options, cluster))?;
        let output = folder.join("output");
        let output_file = process::log_file(&output)?;
        let mut command = Command::new(&program.path);
        command.arg("--quiet");
        if let Some(user) = scratch.run_as().other_user() {
            // The pooler changes the user itself: its executable may lie where only root can reach it.
            command.args(["--user", user]);
        }
        command.arg(&ini).current_dir("/");
        command
            .stdout(output_file.try_clone().map_err(BenchError::io("the pooler's output"))?)
            .stderr(output_file);
        let process = Process::spawn(&mut command, &program.name, STOP_POOLER)?;
        let mut pooler = Self { process, program: program.clone(), port, folder, log };
        pooler.wait_until_ready(&output, interrupt)?;
        Ok(pooler)
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
            let refusal = match Client::connect(&self.address(), USER, DATABASE) {
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
                let what = format!("{} lets nobody in", self.process.name());
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

/// The same file for every pooler, in PgBouncer's words.
fn ini_text(port: u16, folder: &Path, options: PoolerOptions, cluster: &Cluster) -> String {
    let folder = folder.display();
    let PoolerOptions { pool_size, max_client_conn, .. } = options;
    let mut ini = String::new();
    let _ = write!(
        ini,
        "[databases]\n{DATABASE} = host=127.0.0.1 port={server} dbname={DATABASE} user={USER}\n\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = trust\nauth_file = {folder}/users.txt\nadmin_users = {USER}\n\
         pool_mode = transaction\ndefault_pool_size = {pool_size}\nmax_client_conn = {max_client_conn}\n\
         logfile = {folder}/log\nlog_connections = 0\nlog_disconnections = 0\n",
        server = cluster.port(),
    );
    ini
}

/// `PgBouncer 1.18.0` is (1, 18); `None` for other programs.
fn pgbouncer_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("PgBouncer ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_pgbouncer_are_told_from_others() {
        assert_eq!(pgbouncer_version("PgBouncer 1.18.0"), Some((1, 18)));
        assert_eq!(pgbouncer_version("pgweir 0.1.0 (PgBouncer 1.25 compatible)"), None);
        assert_eq!(pgbouncer_version(""), None);
    }
}
