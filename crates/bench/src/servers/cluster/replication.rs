//! A primary with standbys that follow it by streaming replication, to lose one of them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Cluster, ClusterOptions, SUPERUSER, append, initdb, pg_hba_conf, postgresql_conf};
use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::process;
use crate::processes::scratch::Scratch;
use crate::processes::tools::PostgresTools;
use crate::servers::cluster::free_port;

const COPY_LIMIT: Duration = Duration::from_secs(60);
const STREAM_LIMIT: Duration = Duration::from_secs(30);
const REMOVE_LIMIT: Duration = Duration::from_secs(5);
/// The line of postmaster.pid with the key and the number of the segment of shared memory.
const SEGMENT_LINE: usize = 6;

impl Cluster {
    /// Makes a primary and `standbys` standbys, and waits until all of these stream. The first standby is synchronous: it has all
    /// that was acknowledged. All begin as copies of one folder, so nothing but the server's own programs is needed.
    ///
    /// # Errors
    /// As [`Cluster::start`]; or a standby does not stream in time.
    pub(crate) fn start_set(
        standbys: usize,
        tools: &PostgresTools,
        scratch: &Scratch,
        options: ClusterOptions,
        interrupt: &Interrupt,
    ) -> Result<Vec<Self>, BenchError> {
        let names: Vec<String> = (1..=standbys + 1).map(|number| format!("m{number}")).collect();
        let folders: Vec<_> =
            names.iter().map(|name| scratch.folder(&format!("{name}-data"))).collect::<Result<_, _>>()?;
        let (first, others) = folders.split_first().expect("one more than the standbys");
        initdb(tools, scratch, first, interrupt)?;
        let hba = format!("{}local replication {SUPERUSER} trust\n", pg_hba_conf(options.entry));
        scratch.write(&first.join("pg_hba.conf"), &hba)?;
        for other in others {
            copy(first, other, scratch, interrupt)?;
        }
        let mut set: Vec<Self> = Vec::new();
        for (name, data) in names.iter().zip(&folders) {
            let (socket_dir, port) = (scratch.folder(&format!("{name}-pg"))?, free_port()?);
            // Memory that is shared while a statement runs is a file of the folder: it goes with the folder after a SIGKILL, too.
            let mut conf = postgresql_conf(port, &socket_dir, options)
                + "dynamic_shared_memory_type = mmap\nwal_keep_size = 1GB\nwal_retrieve_retry_interval = 200ms\n";
            match set.first() {
                Some(primary) => {
                    conf += &format!("primary_conninfo = '{}'\n", primary.conninfo(name));
                    scratch.write(&data.join("standby.signal"), "")?;
                }
                None => conf += "synchronous_standby_names = 'FIRST 1 (m2)'\nsynchronous_commit = local\n",
            }
            append(&data.join("postgresql.conf"), &conf)?;
            let mut node = Self::spawn(tools, scratch, name, data.clone(), socket_dir, port, options.entry)?;
            if set.is_empty() {
                node.make_database(interrupt)?;
            } else {
                node.wait_until_ready(interrupt)?;
            }
            set.push(node);
        }
        set[0].wait_until_streamed(standbys, interrupt)?;
        // Until the standby was there no commit would have ended.
        set[0].alter("synchronous_commit", "on")?;
        Ok(set)
    }

    /// Ends the server with SIGKILL. What it leaves in the system's shared memory is removed.
    pub(crate) fn kill(&mut self, interrupt: &Interrupt) {
        let pid_file = std::fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
        self.process.kill();
        let segment = pid_file.lines().nth(SEGMENT_LINE).and_then(|line| line.split_whitespace().nth(1));
        if let Some(segment) = segment {
            // It is freed when the last backend, which is about to notice, has ended.
            let mut command = Command::new("ipcrm");
            let _ = process::run(
                command.args(["--shmem-id", segment]),
                "ipcrm",
                REMOVE_LIMIT,
                interrupt,
                &mut |_| {},
            );
        }
    }

    /// Makes the standby a primary.
    ///
    /// # Errors
    /// It is not there, or refuses.
    pub(crate) fn promote(&self) -> Result<(), BenchError> {
        self.superuser()?
            .query("SELECT pg_promote()")
            .map_err(BenchError::io("promoting a standby"))
            .map(drop)
    }

    /// Makes the standby called `name` follow this primary from now on.
    ///
    /// # Errors
    /// The standby is not there, or refuses.
    pub(crate) fn lead(&self, standby: &Self, name: &str) -> Result<(), BenchError> {
        standby.alter("primary_conninfo", &self.conninfo(name))
    }

    /// How a standby called `name` connects to this server.
    fn conninfo(&self, name: &str) -> String {
        let (host, port) = (self.socket_dir.display(), self.port);
        format!("host={host} port={port} user={SUPERUSER} application_name={name}")
    }

    fn alter(&self, setting: &str, value: &str) -> Result<(), BenchError> {
        let mut superuser = self.superuser()?;
        for statement in
            [format!("ALTER SYSTEM SET {setting} = '{value}'"), "SELECT pg_reload_conf()".to_owned()]
        {
            superuser.query(&statement).map_err(BenchError::io(format!("setting {setting}")))?;
        }
        Ok(())
    }

    fn wait_until_streamed(&mut self, standbys: usize, interrupt: &Interrupt) -> Result<(), BenchError> {
        let until = Instant::now() + STREAM_LIMIT;
        let question = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        let mut superuser = self.superuser()?;
        loop {
            let rows = superuser.query(question).map_err(BenchError::io("looking at pg_stat_replication"))?;
            let streaming = rows.first().and_then(|row| row.first()).and_then(|count| count.parse().ok());
            if streaming >= Some(standbys) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(BenchError::failed("a standby does not follow the primary", &self.log_text()));
            }
            self.check()?;
            interrupt.sleep(Duration::from_millis(50))?;
        }
    }
}

/// Copies a folder of the servers' user, with owners and rights.
fn copy(from: &Path, to: &Path, scratch: &Scratch, interrupt: &Interrupt) -> Result<(), BenchError> {
    let mut command = Command::new("cp");
    scratch.run_as().apply(&mut command);
    command.arg("-Rp").arg(from.join(".")).arg(to).current_dir("/");
    process::expect_success(&mut command, "cp", COPY_LIMIT, interrupt).map(drop)
}
