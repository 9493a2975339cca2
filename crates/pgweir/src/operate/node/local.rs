//! PostgreSQL on this machine: its data directory, its process, how it is started and stopped.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::options::Wanted;
use super::programs::{Call, LOOK_EVERY, Programs, output, run_apart};
use crate::operate::interrupt::Interrupt;

/// Debian's directory of configurations: `/etc/postgresql/15/main/postgresql.conf`.
const DEBIAN: &str = "/etc/postgresql";

/// The server of a data directory.
pub(super) struct Local<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) data: &'a Path,
    pub(super) programs: Programs,
    /// postgresql.conf, if it is not in the data directory.
    pub(super) config_file: Option<PathBuf>,
}

/// The facts about a data directory that pg_controldata tells.
pub(super) struct Control {
    pub(super) system_identifier: String,
    /// `shut down`, `in production`, ...
    pub(super) state: String,
    pub(super) has_checksums: bool,
    pub(super) has_hints: bool,
    pub(super) has_full_pages: bool,
}

impl<'a> Local<'a> {
    pub(super) fn new(wanted: &'a Wanted, programs: Programs, config_file: Option<PathBuf>) -> Local<'a> {
        Local { wanted, data: &wanted.data, programs, config_file }
    }

    /// Returns the facts that pg_controldata tells of the directory.
    ///
    /// # Errors
    /// An error if the directory is no data directory of this version.
    pub(super) fn control(&self) -> Result<Control, String> {
        let text = output(&self.programs.call("pg_controldata", &[&self.data.display().to_string()]))?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(|value| value.trim().to_owned()).unwrap_or_default()
        };
        let checksums = value("Data page checksum version");
        Ok(Control {
            system_identifier: value("Database system identifier"),
            state: value("Database cluster state"),
            has_checksums: !["", "0"].contains(&checksums.as_str()),
            has_hints: value("wal_log_hints setting") == "on",
            has_full_pages: value("Latest checkpoint's full_page_writes") == "on",
        })
    }

    /// The state of the running server, as its file says (`ready`, `standby`, `starting`); `None` if none runs.
    pub(super) fn status(&self) -> Option<String> {
        let text = fs::read_to_string(self.data.join("postmaster.pid")).ok()?;
        let mut lines = text.lines();
        let pid: u32 = lines.next()?.trim().parse().ok()?;
        // The file of a crashed server stays, and its number may be another process's now.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        if !name.starts_with("postgres") && !name.starts_with("postmaster") {
            return None;
        }
        Some(lines.nth(6).unwrap_or("starting").trim().to_owned())
    }

    /// The value that a setting will have when the server starts.
    pub(super) fn setting(&self, name: &str) -> Result<String, String> {
        let data = self.data.display().to_string();
        let mut call = self.programs.call("postgres", &["-D", &data]);
        if let Some(file) = &self.config_file {
            call.0.extend(["-c".to_owned(), format!("config_file={}", file.display())]);
        }
        call.0.extend(["-C", name].map(str::to_owned));
        Ok(output(&call)?.trim().to_owned())
    }

    /// The file that has what the server and the command that starts it say.
    pub(super) fn log(&self) -> PathBuf {
        self.data.join("pgweir_start.log")
    }

    /// The command that starts the server.
    pub(super) fn start_call(&self) -> Call {
        let log = self.log().display().to_string();
        let mut words = vec!["-l", log.as_str()];
        let config = self.config_option();
        words.extend(config.iter().flat_map(|option| ["-o", option.as_str()]));
        self.control_call("start", self.wanted.start.as_deref(), &words)
    }

    /// The command that stops the server after it has sent all WAL.
    pub(super) fn stop_call(&self) -> Call {
        self.control_call("stop", self.wanted.stop.as_deref(), &["-m", "fast"])
    }

    /// The command that makes the running server read its settings.
    pub(super) fn reload_call(&self) -> Call {
        self.programs.call("pg_ctl", &["reload", "-D", &self.data.display().to_string()])
    }

    fn control_call(&self, verb: &str, own: Option<&str>, words: &[&str]) -> Call {
        if let Some(own) = own {
            return Call(["/bin/sh", "-c", own].map(str::to_owned).to_vec());
        }
        if let Some((version, name)) = self.debian_cluster() {
            return Call(["pg_ctlcluster", &version, &name, verb].map(str::to_owned).to_vec());
        }
        let (data, limit) = (self.data.display().to_string(), self.wanted.timeout.as_secs().to_string());
        let mut call = self.programs.call("pg_ctl", &[verb, "-D", &data, "-w", "-t", &limit]);
        call.0.extend(words.iter().map(|word| (*word).to_owned()));
        call
    }

    fn config_option(&self) -> Option<String> {
        let file = self.config_file.as_ref()?.display().to_string();
        Some(format!("-c config_file={}", super::programs::shell_quoted(&file)))
    }

    /// The version and the name by which Debian's tools know the server.
    fn debian_cluster(&self) -> Option<(String, String)> {
        let rest = self.config_file.as_ref()?.strip_prefix(DEBIAN).ok()?;
        let mut parts = rest.iter().map(|part| part.to_string_lossy().into_owned());
        let cluster = (parts.next()?, parts.next()?);
        (parts.next()? == "postgresql.conf").then_some(cluster)
    }

    /// Starts the server, and waits until it takes connections.
    pub(super) fn start(&self, interrupt: &Interrupt) -> Result<(), String> {
        let is_up = || self.status().is_some_and(|status| ["ready", "standby"].contains(&status.as_str()));
        let began = Instant::now();
        run_apart(&self.start_call(), &self.log(), self.wanted.timeout, interrupt, is_up)?;
        while !is_up() {
            if began.elapsed() >= self.wanted.timeout {
                return Err(format!(
                    "PostgreSQL is not up after {} s{}",
                    self.wanted.timeout.as_secs(),
                    self.last_words()
                ));
            }
            interrupt.check()?;
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Stops the server, and waits until it has ended.
    pub(super) fn stop(&self, interrupt: &Interrupt) -> Result<(), String> {
        let is_down = || self.status().is_none();
        // Its output is no part of the data directory, which may be moved.
        let log = std::env::temp_dir().join(format!("pgweir-node-stop-{}.log", std::process::id()));
        let stopped = run_apart(&self.stop_call(), &log, self.wanted.timeout, interrupt, is_down);
        let _ = fs::remove_file(&log);
        stopped?;
        let began = Instant::now();
        while !is_down() {
            if began.elapsed() >= self.wanted.timeout {
                return Err(format!("PostgreSQL still runs after {} s", self.wanted.timeout.as_secs()));
            }
            interrupt.check()?;
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// The last lines that the server has logged at its start, for an error.
    pub(super) fn last_words(&self) -> String {
        let text = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.get(lines.len().saturating_sub(5)..).unwrap_or_default();
        if last.is_empty() {
            return "; see PostgreSQL's log".to_owned();
        }
        format!("; {} ends with:\n{}", self.log().display(), last.join("\n"))
    }
}

/// Debian's postgresql.conf of this data directory.
pub(super) fn debian_config(major: u32, data: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(format!("{DEBIAN}/{major}")).ok()?;
    let files = folders.filter_map(|folder| Some(folder.ok()?.path().join("postgresql.conf")));
    files.into_iter().find(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        data_directory(&text).is_some_and(|known| Path::new(known) == data)
    })
}

/// The value of `data_directory` in a postgresql.conf.
fn data_directory(text: &str) -> Option<&str> {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("data_directory"));
    let values = lines.filter_map(|rest| rest.trim_start().trim_start_matches('=').trim().strip_prefix('\''));
    values.filter_map(|value| value.split('\'').next()).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_is_read_from_a_configuration() {
        let text = "#data_directory = 'x'\ndata_directory = '/var/lib/postgresql/15/main'\t# use data\nport = 5432\n";
        assert_eq!(data_directory(text), Some("/var/lib/postgresql/15/main"));
        assert_eq!(data_directory("port = 1\n"), None);
    }
}
