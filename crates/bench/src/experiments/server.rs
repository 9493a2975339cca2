//! The PostgreSQL that an experiment runs on: a throw-away one, or the user's, in a separate schema.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::catalog::Experiment;
use super::options::Options;
use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::process;
use crate::processes::scratch::Scratch;
use crate::processes::tools::PostgresTools;
use crate::report::progress::{Progress, note};
use crate::servers::cluster::{Cluster, ClusterOptions, tuples_done};
use pgweir_client::Client;
use pgweir_client::Login;

/// Where the tables are on a user's server.
pub(super) const SCHEMA: &str = "pgweir_bench";
const FILL_LIMIT: Duration = Duration::from_secs(3600);

/// A server that is ready for loads.
pub(super) struct Server {
    own: Option<Cluster>,
    schema: Option<OwnSchema>,
    /// How the load logs in.
    pub(super) login: Login,
    /// How the monitor logs in.
    pub(super) watcher: Login,
    /// `server_version_num`.
    pub(super) version: u32,
    pub(super) max_connections: u32,
    pub(super) scale: u32,
}

/// Our schema on a user's server; dropping this drops it.
struct OwnSchema(Login);

impl Server {
    /// Makes a throw-away server with the experiment's settings, or prepares the user's; fills pgbench's tables.
    ///
    /// # Errors
    /// See [`BenchError`]; a user's server that cannot be reached, has too few connections, or has such tables already is
    /// told of before anything is changed.
    pub(super) fn prepare(
        experiment: &Experiment,
        options: &Options,
        tools: Option<&PostgresTools>,
        pgbench: &Path,
        scratch: &Scratch,
        interrupt: &Interrupt,
        progress: &mut Progress,
    ) -> Result<Self, BenchError> {
        let scale = if options.quick { experiment.quick_scale } else { experiment.scale };
        let mut server = match (&options.postgres, tools) {
            (Some(login), _) => Self::of_user(login, experiment, options, scale, progress)?,
            (None, Some(tools)) => Self::throw_away(experiment, tools, scale, scratch, interrupt, progress)?,
            (None, None) => return Err(BenchError::Missing("PostgreSQL not found".to_owned())),
        };
        progress.phase("filling pgbench's tables");
        match (&mut server.own, tools) {
            (Some(cluster), Some(tools)) => {
                cluster.fill(tools, scale, interrupt, &mut |done| progress.detail(done))?;
            }
            _ => fill(pgbench, &server.login, scale, interrupt, progress)?,
        }
        progress.done(&format!("scale {scale}"));
        Ok(server)
    }

    fn throw_away(
        experiment: &Experiment,
        tools: &PostgresTools,
        scale: u32,
        scratch: &Scratch,
        interrupt: &Interrupt,
        progress: &mut Progress,
    ) -> Result<Self, BenchError> {
        progress.phase("starting a throw-away PostgreSQL");
        let options = ClusterOptions {
            max_connections: experiment.max_connections,
            shared_buffers_mb: experiment.shared_buffers_mb,
            entry: experiment.entry,
        };
        let cluster = Cluster::start(tools, scratch, options, interrupt)?;
        let (login, watcher) = (cluster.login(), cluster.watcher());
        let version = ask(&watcher, "SHOW server_version_num")?;
        progress.done(&format!("port {}, max_connections {}", cluster.port(), experiment.max_connections));
        let max_connections = experiment.max_connections;
        Ok(Self { own: Some(cluster), schema: None, login, watcher, version, max_connections, scale })
    }

    fn of_user(
        login: &Login,
        experiment: &Experiment,
        options: &Options,
        scale: u32,
        progress: &mut Progress,
    ) -> Result<Self, BenchError> {
        progress.phase("looking at PostgreSQL");
        let (host, port) = login.address.host_and_port();
        let mut client = Client::log_in(&login.named("pgweir-tools")).map_err(|error| {
            let what =
                format!("PostgreSQL at {host}, port {port} (database {}) lets us not in", login.database);
            BenchError::failed(what, &error.to_string())
        })?;
        let version = number(&mut client, "SHOW server_version_num")?;
        let max_connections = number(&mut client, "SHOW max_connections")?;
        let reserved = number(&mut client, "SHOW superuser_reserved_connections")?;
        // Not every user may see what pg_stat_activity tells of other users' connections; every user may see this number.
        let used = number(&mut client, "SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database")?;
        let free = max_connections.saturating_sub(reserved + used);
        let widest =
            experiment.steps.iter().filter(|step| !step.refused_directly).map(|step| step.direct_clients());
        // The storm is meant to meet the limit.
        let wanted = widest.filter(|clients| *clients <= experiment.max_connections).max().unwrap_or(0) + 1;
        if free < wanted.max(experiment.pool_size + 1) {
            return Err(BenchError::Failed {
                what: "too few connections".to_owned(),
                detail: format!(
                    "{} needs {wanted}, and PostgreSQL has {free} free of max_connections = {max_connections}: \
                     raise it, or run on a throw-away server without --postgres",
                    experiment.key
                ),
            });
        }
        let there = format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{SCHEMA}'");
        if number(&mut client, &there)? > 0 && !options.force {
            return Err(BenchError::Failed {
                what: format!("schema {SCHEMA} of database {} has tables already", login.database),
                detail: "an earlier run was killed, or the tables belong to another program: drop it, or use --force"
                    .to_owned(),
            });
        }
        let make = format!("CREATE SCHEMA IF NOT EXISTS {SCHEMA}");
        client.query(&make).map_err(BenchError::io(make))?;
        progress.done(&format!("{host}, port {port}, {free} connections free"));
        let login = Login { search_path: Some(SCHEMA.to_owned()), ..login.named("direct") };
        let schema = Some(OwnSchema(login.named("pgweir-tools")));
        let watcher = login.named("pgweir-tools");
        Ok(Self { own: None, schema, login, watcher, version, max_connections, scale })
    }

    /// The postmaster's process, if it is ours.
    pub(super) fn postmaster(&self) -> Option<u32> {
        self.own.as_ref().map(Cluster::postmaster)
    }

    /// Waits until connections of earlier runs are gone.
    pub(super) fn settle(&self, interrupt: &Interrupt) -> Result<(), BenchError> {
        match &self.own {
            Some(cluster) => cluster.settle(interrupt),
            None => interrupt.sleep(Duration::from_secs(1)),
        }
    }

    /// An error if our server has ended.
    pub(super) fn check(&mut self) -> Result<(), BenchError> {
        if let Some(cluster) = &mut self.own {
            return cluster.check();
        }
        let still = Client::log_in(&self.watcher);
        still.map(drop).map_err(BenchError::io("PostgreSQL is not reachable any more"))
    }

    /// An error if a run failed because our server has ended; see [`Cluster::check_after_failure`].
    pub(super) fn check_after_failure(&mut self, interrupt: &Interrupt) -> Result<(), BenchError> {
        match &mut self.own {
            Some(cluster) => cluster.check_after_failure(interrupt),
            None => self.check(),
        }
    }

    /// Whether it is the user's.
    pub(super) fn is_users(&self) -> bool {
        self.schema.is_some()
    }
}

impl Drop for OwnSchema {
    fn drop(&mut self) {
        let dropped = Client::log_in(&self.0)
            .and_then(|mut client| client.query(&format!("DROP SCHEMA {SCHEMA} CASCADE")).map(drop));
        if let Err(error) = dropped {
            note!("could not drop schema {SCHEMA}: {error}");
        }
    }
}

/// pgbench's environment for a login: what does not go on its command line.
pub(super) fn environment(command: &mut Command, login: &Login) {
    if let Some(password) = login.password() {
        command.env("PGPASSWORD", String::from_utf8_lossy(password.as_bytes()).into_owned());
    }
    if let Some(schema) = &login.search_path {
        command.env("PGOPTIONS", format!("-c search_path={schema}"));
    }
}

fn fill(
    pgbench: &Path,
    login: &Login,
    scale: u32,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<(), BenchError> {
    let (host, port) = login.address.host_and_port();
    let mut command = Command::new(pgbench);
    environment(&mut command, login);
    command.args(["--initialize", "--quiet", "--host", &host, "--port", &port, "--username", &login.user]);
    command.args(["--scale", &scale.to_string(), &login.database]).current_dir("/");
    let finished = process::run(&mut command, "pgbench --initialize", FILL_LIMIT, interrupt, &mut |line| {
        if let Some(done) = line.and_then(tuples_done) {
            progress.detail(&done);
        }
    })?;
    if finished.status.success() { Ok(()) } else { Err(process::failure("pgbench --initialize", &finished)) }
}

fn ask(login: &Login, sql: &str) -> Result<u32, BenchError> {
    let mut client = Client::log_in(login).map_err(BenchError::io("connecting to PostgreSQL"))?;
    number(&mut client, sql)
}

fn number(client: &mut Client, sql: &str) -> Result<u32, BenchError> {
    let rows = client.query(sql).map_err(BenchError::io(sql))?;
    let value = rows.first().and_then(|row| row.first()).and_then(|text| text.parse().ok());
    value.ok_or_else(|| BenchError::failed(sql, "it gave no number"))
}
