//! From a configuration to a process that can serve: everything that can fail at a start, in the order that leaves the
//! least behind when it does.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;

use nix::unistd::{User, getegid, geteuid};
use pgweir_control::log::{Log, Targets};
use pgweir_control::process::{
    BackgroundError, FilesLimit, PidFile, PidFileError, Standing, UserError, expected_files,
    go_to_background, is_root, switch_user,
};
use pgweir_control::web::{self, WebListenError};
use pgweir_control::{CommandLine, Draft, Overlay, log_targets};
use pgweir_core::driver::Level;
use pgweir_net::{
    ListenError, ListenSettings, Listeners, Passed, Socket, Takeover, TakeoverError, TlsConfigs,
    open_listeners,
};
use pgweir_settings::{Config, Main};

use crate::command_line::{OverlayOptions, RunOptions};
use crate::{fleet, succession};

/// On machines with up to this many cores one worker serves all: a pooler's work is mostly the kernel's, and one busy
/// worker batches better than several idle ones.
const CORES_PER_WORKER: usize = 4;

/// More workers than this are used only when asked for.
const WORKERS_CHOSEN_MAX: usize = 8;

/// Why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The faults were logged.
    #[error("cannot load config file")]
    Config,
    /// Certificates and keys.
    #[error("TLS setup failed: {0}")]
    Tls(String),
    /// Root without a user to become.
    #[error("pgweir should not run as root; name another user in the setting 'user' or with -u")]
    Root,
    /// The user does not exist, or the rights cannot be given up.
    #[error(transparent)]
    User(#[from] UserError),
    /// The log file.
    #[error("could not open log file {path}: {error}")]
    Log {
        /// The file.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// `-d` without a pid file.
    #[error("daemon needs pidfile configured")]
    NoPidFile,
    /// The pid file.
    #[error(transparent)]
    PidFile(#[from] PidFileError),
    /// A port or a unix socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The HTTP server's addresses.
    #[error(transparent)]
    WebListen(#[from] WebListenError),
    /// `-d`.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// `-R`.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// `-R` although the service manager passed sockets.
    #[error(
        "-R cannot be used with socket activation: the sockets stay with the service manager across a restart"
    )]
    TakeoverOfPassed,
    /// Threads, event queues, random numbers.
    #[error("could not start: {0}")]
    System(#[from] io::Error),
}

/// A process that is ready for its workers.
pub(crate) struct Ready {
    pub(crate) command_line: CommandLine,
    pub(crate) draft: Draft,
    pub(crate) tls: TlsConfigs,
    pub(crate) listeners: Listeners,
    pub(crate) web_sockets: Vec<TcpListener>,
    pub(crate) pid_file: Option<PidFile>,
    pub(crate) quiet: bool,
    /// The process whose place this one takes.
    pub(crate) takeover: Option<Takeover>,
}

/// Does everything up to the first thread.
pub(crate) fn start(options: RunOptions, log: &Log) -> Result<Ready, StartError> {
    let mut command_line = CommandLine {
        config: options.config.display().to_string(),
        user: options.user.clone(),
        verbosity: options.verbosity,
        overlay: overlay(&options.overlay, log)?,
    };
    let passed = Passed::take()?;
    if options.takeover && passed.is_for_clients() {
        return Err(StartError::TakeoverOfPassed);
    }
    let mut draft = read(&command_line, &options, log)?;
    let main = &draft.config().main;
    open_log_unless_root(main, &options, log)?;
    // Before anything is made or opened: root's files could be neither removed nor opened again later.
    if let Some(user) = &main.user {
        switch_user(user)?;
    }
    if is_root() {
        return Err(StartError::Root);
    }
    if options.takeover && options.overlay.is_on() {
        // A shell in which -R is typed need not have the variables with which the old process was started.
        let handed_over = succession::overlay(main, log);
        if command_line.overlay.inherit(handed_over) {
            draft = read(&command_line, &options, log)?;
        }
    }
    open_log(&draft.config().main, &options, log)?;
    tell(&draft, log);
    let config = draft.config();
    let tls = fleet::build_tls(&config.main, draft.tls()).map_err(StartError::Tls)?;
    let mut takeover = if options.takeover { succession::ask(&config.main)? } else { None };
    if options.takeover && takeover.is_none() {
        log.write(Level::Log, "old process not found, try to continue normally");
    }
    if takeover.is_none() || config.main.pidfile.is_empty() {
        look_for_pid_file(&config.main.pidfile, options.daemon, log)?;
    }
    note_files_limit(&draft, log);
    let inherited = takeover.as_mut().map(Takeover::take_listeners).unwrap_or_default();
    let quiet = options.quiet || options.daemon;
    // A client that can connect finds the pid file written; a daemon listens first, to say on the terminal why it cannot. If there is an
    // old process, that has its own pid file until this one is ready.
    let first = !options.daemon && takeover.is_none();
    let early = if first { create_pid_file(&config.main.pidfile)? } else { None };
    let (listeners, web_sockets) = open_all_listeners(config, passed, inherited, takeover.is_some(), log)?;
    if options.daemon {
        go_to_background()?;
        open_targets(&config.main, log_targets(&config.main, quiet), log)?;
    }
    let late =
        if options.daemon && takeover.is_none() { create_pid_file(&config.main.pidfile)? } else { None };
    Ok(Ready { command_line, draft, tls, listeners, web_sockets, pid_file: early.or(late), quiet, takeover })
}

/// Opens the sockets for HTTP and for clients, as far as they are neither passed to us nor an old process's. HTTP comes first: where a
/// client gets in, `/metrics` and `/readyz` answer.
fn open_all_listeners(
    config: &Config,
    mut passed: Passed,
    mut inherited: Vec<Socket>,
    replaces: bool,
    log: &Log,
) -> Result<(Listeners, Vec<TcpListener>), StartError> {
    let write = |level: Level, line: &str| log.write(level, line);
    let settings = ListenSettings::from(&config.main);
    let http = std::mem::take(&mut passed.http);
    let web_sockets = if http.is_empty() { open_web(config, &mut inherited, replaces, log)? } else { http };
    let listeners = if passed.is_for_clients() {
        passed.into_listeners(&settings, &write)?
    } else {
        open_listeners(&settings, &mut inherited, &write)?
    };
    Ok((listeners, web_sockets))
}

/// Opens the sockets for HTTP. One of an old process's may be its HTTP server's.
fn open_web(
    config: &Config,
    inherited: &mut Vec<Socket>,
    replaces: bool,
    log: &Log,
) -> Result<Vec<TcpListener>, StartError> {
    let mut take = |wanted: SocketAddr| {
        let listens_there =
            |socket: &Socket| socket.local_addr().is_ok_and(|bound| bound.as_socket() == Some(wanted));
        let place = inherited.iter().position(listens_there)?;
        Some(TcpListener::from(OwnedFd::from(inherited.remove(place))))
    };
    match web::open(&config.main.http_listen, &mut take) {
        Err(error) if replaces => {
            let line = format!("no HTTP until the next restart, the old process is there still: {error}");
            log.write(Level::Warning, &line);
            Ok(Vec::new())
        }
        opened => Ok(opened?),
    }
}

pub(crate) fn create_pid_file(path: &str) -> Result<Option<PidFile>, PidFileError> {
    match path {
        "" => Ok(None),
        path => PidFile::create(Path::new(path)).map(Some),
    }
}

/// Sources that are read after the configuration file.
pub(crate) fn overlay(options: &OverlayOptions, log: &Log) -> Result<Overlay, StartError> {
    options.overlay().map_err(|faults| {
        faults.iter().for_each(|fault| log.write(Level::Error, fault));
        StartError::Config
    })
}

fn read(command_line: &CommandLine, options: &RunOptions, log: &Log) -> Result<Draft, StartError> {
    Draft::read(command_line).map_err(|faults| {
        let main = Draft::glimpse(command_line);
        if let Some(user) = main.user.as_deref().filter(|_| is_root()) {
            // If the process cannot become another user, it still has standard error.
            let _ = switch_user(user);
        }
        // The same holds if it cannot write that file.
        let _ = open_log_unless_root(&main, options, log);
        for fault in &faults {
            log.write(Level::Error, fault);
        }
        note_user(&faults.join("\n"), log);
        StartError::Config
    })
}

/// A refused path says little without the user that was refused.
pub(crate) fn note_user(fault: &str, log: &Log) {
    if fault.contains("ermission denied") {
        let (uid, gid) = (geteuid(), getegid());
        let name = User::from_uid(uid).ok().flatten().map(|user| format!(" \"{}\"", user.name));
        let name = name.unwrap_or_default();
        log.write(
            Level::Warning,
            &format!("pgweir runs as user{name} (uid {uid}, gid {gid}), who lacks that permission"),
        );
    }
}

/// Opens the log early, where there is one beside standard error: what goes wrong next is said in it.
fn open_log_unless_root(main: &Main, options: &RunOptions, log: &Log) -> Result<(), StartError> {
    if is_root() || (main.logfile.is_empty() && !main.syslog) {
        return Ok(());
    }
    open_log(main, options, log)
}

fn open_log(main: &Main, options: &RunOptions, log: &Log) -> Result<(), StartError> {
    let targets = Targets { calm: options.daemon, ..log_targets(main, options.quiet) };
    open_targets(main, targets, log)
}

fn open_targets(main: &Main, targets: Targets, log: &Log) -> Result<(), StartError> {
    log.set_verbosity(u8::try_from(main.verbose).unwrap_or(u8::MAX));
    log.open(targets).map_err(|error| StartError::Log { path: main.logfile.clone(), error })
}

fn tell(draft: &Draft, log: &Log) {
    let config = draft.config();
    let given = format!(
        "configuration: {} databases, {} users with options, {} peers",
        config.databases.len(),
        config.users.len(),
        config.peers.len()
    );
    log.write(Level::Debug, &given);
    draft.sources().iter().for_each(|line| log.write(Level::Log, line));
    for warning in &draft.warnings {
        log.write(Level::Warning, warning);
    }
    for fault in &draft.user_faults {
        log.write(Level::Error, fault);
    }
    note_user(&draft.user_faults.join("\n"), log);
}

/// Another instance is noticed before its ports are touched.
fn look_for_pid_file(path: &str, daemon: bool, log: &Log) -> Result<(), StartError> {
    if path.is_empty() {
        return if daemon { Err(StartError::NoPidFile) } else { Ok(()) };
    }
    if PidFile::look(Path::new(path))? == Standing::Stale {
        log.write(Level::Log, "stale pidfile, removing");
    }
    Ok(())
}

fn note_files_limit(draft: &Draft, log: &Log) {
    let config = draft.config();
    let expected = files_of(config, draft.users_known());
    match FilesLimit::raise_to(expected) {
        Ok(FilesLimit { soft, hard }) => {
            let clients = config.main.max_client_conn;
            let line = format!(
                "kernel file descriptor limit: {soft} (hard: {hard}); max_client_conn: {clients}, max expected fd use: {expected}"
            );
            log.write(Level::Log, &line);
            if soft < expected {
                log.write(
                    Level::Warning,
                    "fewer files may be open than could be needed: raise the limit (ulimit -n, LimitNOFILE) or lower \
                     max_client_conn and pool sizes",
                );
            }
        }
        Err(errno) => log.write(Level::Warning, &format!("could not get RLIMIT_NOFILE: {errno}")),
    }
}

fn files_of(config: &Config, users_known: usize) -> u64 {
    let users = u64::try_from(users_known).unwrap_or(u64::MAX);
    let pools = config.databases.values().map(|database| {
        let user = database.user.as_deref();
        let size = u64::from(config.pool_size(database, user.unwrap_or_default()));
        if user.is_some() { size } else { size.saturating_mul(users) }
    });
    expected_files(u64::from(config.main.max_client_conn), pools)
}

/// The number of workers to start. `configured` is the setting `workers`, whose 0 lets us choose by the number of cores.
pub(crate) fn workers(configured: u32, cores: usize) -> u16 {
    let chosen = match configured {
        0 if cores <= CORES_PER_WORKER => 1,
        0 => (cores / CORES_PER_WORKER).min(WORKERS_CHOSEN_MAX),
        _ => usize::try_from(configured).unwrap_or(usize::MAX),
    };
    u16::try_from(chosen).unwrap_or(u16::MAX)
}

/// The cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// A secret of this process's life.
pub(crate) fn random_seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_use_one_worker() {
        for (configured, cores, expected) in [
            (0, 1, 1),
            (0, 4, 1),
            (0, 5, 1),
            (0, 8, 2),
            (0, 16, 4),
            (0, 32, 8),
            (0, 128, 8),
            (1, 128, 1),
            (3, 1, 3),
            (1024, 1, 1024),
        ] {
            assert_eq!(workers(configured, cores), expected, "workers = {configured} on {cores} cores");
        }
    }

    #[test]
    fn every_pool_full_is_expected() {
        let text = "[databases]\na = pool_size=3\nb = user=x pool_size=7\nc =\n[pgbouncer]\nmax_client_conn = 50\ndefault_pool_size = 4\n";
        let config = Config::load("x.ini", &mut |_| Ok(text.to_owned())).expect("good");
        let none = expected_files(50, []);
        assert_eq!(files_of(&config, 2) - none, 2 * 3 + 7 + 2 * 4);
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed().expect("the system has one"), random_seed().expect("the system has one"));
    }
}
