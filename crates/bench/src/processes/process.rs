//! Child processes with an owner: when the owner goes, they go. Signals are sent to single processes that are
//! known to be ours and not yet reaped, never to names.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::keeper::{self, Kept};
use crate::processes::{scratch, tools};

/// How often a wait looks at its process.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How to ask a process to end: a signal and how long it gets. After the last one comes SIGKILL.
pub(crate) type StopPlan = &'static [(Signal, Duration)];

/// For clients and tools.
pub(crate) const STOP_PLAIN: StopPlan = &[(Signal::SIGTERM, Duration::from_secs(2))];
/// For a PostgreSQL postmaster: fast shutdown, then immediate.
pub(crate) const STOP_POSTGRES: StopPlan =
    &[(Signal::SIGINT, Duration::from_secs(10)), (Signal::SIGQUIT, Duration::from_secs(5))];
/// For a pooler. SIGTERM is an immediate shutdown in old versions of PgBouncer and waits for clients in new ones, which know
/// SIGQUIT for the immediate one (it would make the old ones dump core).
pub(crate) const STOP_POOLER: StopPlan =
    &[(Signal::SIGTERM, Duration::from_millis(700)), (Signal::SIGQUIT, Duration::from_secs(3))];
/// For Pgpool-II: fast shutdown, then immediate; SIGTERM would wait for its clients.
pub(crate) const STOP_PGPOOL: StopPlan =
    &[(Signal::SIGINT, Duration::from_secs(5)), (Signal::SIGQUIT, Duration::from_secs(3))];

/// Runs a program in a new session (Debian: util-linux, which is always there), in the same process.
const SETSID: &str = "setsid";

/// The command of a program that is to run as a service does: in its own session. Linux shares the processors out
/// among sessions first (see sched(7), "The autogroup feature"), and PostgreSQL's backends have one each: a pooler in the
/// session of its clients would get a part of theirs only, as no daemon does.
#[must_use]
pub(crate) fn service_command(program: &Path) -> Command {
    // What cannot be started is left to say so itself.
    match tools::find_program(SETSID).filter(|_| tools::is_program(program)) {
        Some(setsid) => {
            let mut command = Command::new(setsid);
            command.arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// A running child process in a new process group: Ctrl-C on the terminal reaches only us, and we decide in
/// which order things end. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
    plan: StopPlan,
    /// If we are killed.
    kept: Option<Kept>,
}

impl Process {
    /// Starts `command` with stdin closed.
    ///
    /// # Errors
    /// It could not be started; a missing program is [`BenchError::Missing`].
    pub(crate) fn spawn(command: &mut Command, name: &str, plan: StopPlan) -> Result<Self, BenchError> {
        Self::start(command.process_group(0), name, plan)
    }

    /// Starts what [`service_command`] gave.
    ///
    /// # Errors
    /// As [`Process::spawn`].
    pub(crate) fn spawn_service(
        command: &mut Command,
        name: &str,
        plan: StopPlan,
    ) -> Result<Self, BenchError> {
        if Path::new(command.get_program()).ends_with(SETSID) {
            // A process that leads a group already can begin a session only as another process.
            Self::start(command, name, plan)
        } else {
            Self::spawn(command, name, plan)
        }
    }

    fn start(command: &mut Command, name: &str, plan: StopPlan) -> Result<Self, BenchError> {
        clean_environment(command);
        let child = command.stdin(Stdio::null()).spawn().map_err(|source| {
            let program = command.get_program().to_string_lossy().into_owned();
            if source.kind() == std::io::ErrorKind::NotFound {
                BenchError::Missing(format!("{name} cannot be started: there is no {program}"))
            } else {
                BenchError::Io { what: format!("starting {name} ({program})"), source }
            }
        })?;
        let kept = plan.first().and_then(|(signal, _)| keeper::keep_process(child.id(), *signal));
        Ok(Self { child, name: name.to_owned(), plan, kept })
    }

    /// Its process id.
    #[must_use]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its name in messages.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// `Some` once it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten()?;
        // From now on its id may be another's.
        self.kept = None;
        Some(status)
    }

    /// Ends it with SIGKILL, in the middle of what it does, and reaps it.
    pub(crate) fn kill(&mut self) {
        if self.ended().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            self.kept = None;
        }
    }

    /// Stops it as planned and reaps it. Does nothing if it has ended.
    pub(crate) fn stop(&mut self) {
        for (signal, timeout) in self.plan {
            if self.ended().is_some() {
                return;
            }
            // Not reaped yet, so the id is still this process's.
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), *signal);
            if self.wait_for(*timeout).is_some() {
                return;
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn wait_for(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a process that ran to its end left.
#[derive(Debug)]
pub(crate) struct Finished {
    /// How it ended.
    pub(crate) status: ExitStatus,
    /// Everything on its standard output.
    pub(crate) stdout: String,
    /// Everything on its standard error.
    pub(crate) stderr: String,
}

/// Runs `command` to its end, at most for `limit`; each line on its standard error is shown to `on_line` when it comes,
/// and `on_line` is called with `None` a few times a second in between.
///
/// # Errors
/// It could not be started, took longer than `limit`, or a signal came; the process is gone in each case.
pub(crate) fn run(
    command: &mut Command,
    name: &str,
    limit: Duration,
    interrupt: &Interrupt,
    on_line: &mut dyn FnMut(Option<&str>),
) -> Result<Finished, BenchError> {
    interrupt.check()?;
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(command, name, STOP_PLAIN)?;
    let stdout = process.child.stdout.take().expect("stdout was piped");
    let stderr = process.child.stderr.take().expect("stderr was piped");
    let stdout_reader = thread::spawn(move || read_text(stdout));
    let (lines_in, lines_out) = mpsc::channel();
    let stderr_reader = thread::spawn(move || {
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            if lines_in.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
        }
    });
    let until = Instant::now() + limit;
    let too_long = |said: &str| {
        let what = format!("{name} did not end within {} s", limit.as_secs());
        if Instant::now() >= until { Err(BenchError::failed(what, said)) } else { Ok(()) }
    };
    let mut said = String::new();
    loop {
        match lines_out.recv_timeout(LOOK_EVERY * 5) {
            Ok(line) => {
                on_line(Some(&line));
                said.push_str(&line);
                said.push('\n');
            }
            Err(RecvTimeoutError::Timeout) => on_line(None),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        interrupt.check()?;
        too_long(&said)?;
    }
    let status = loop {
        if let Some(status) = process.ended() {
            break status;
        }
        interrupt.check()?;
        too_long(&said)?;
        thread::sleep(LOOK_EVERY);
    };
    let _ = stderr_reader.join();
    let stdout = stdout_reader.join().unwrap_or_default();
    Ok(Finished { status, stdout, stderr: said })
}

/// Runs `command` quietly and expects it to succeed; gives its standard output.
///
/// # Errors
/// As [`run`]; and [`BenchError::Failed`] with its last words when it fails, or [`BenchError::DiskFull`] when these say so.
pub(crate) fn expect_success(
    command: &mut Command,
    name: &str,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<String, BenchError> {
    let finished = run(command, name, limit, interrupt, &mut |_| {})?;
    if finished.status.success() {
        return Ok(finished.stdout);
    }
    Err(failure(name, &finished))
}

/// The error for a process that ended badly.
#[must_use]
pub(crate) fn failure(name: &str, finished: &Finished) -> BenchError {
    if says_disk_full(&finished.stderr) {
        return scratch::temporary_full();
    }
    let said = if finished.stderr.trim().is_empty() { &finished.stdout } else { &finished.stderr };
    BenchError::failed(format!("{name} failed ({})", finished.status), said)
}

/// Whether a program complains that the disk is full, in the words of libc or of PostgreSQL.
#[must_use]
pub(crate) fn says_disk_full(text: &str) -> bool {
    ["No space left on device", "Check free disk space", "Disk quota exceeded"]
        .iter()
        .any(|words| text.contains(words))
}

/// A log file for a process that keeps running.
///
/// # Errors
/// The file cannot be made.
pub(crate) fn log_file(path: &std::path::Path) -> Result<File, BenchError> {
    File::create(path).map_err(BenchError::io(format!("creating {}", path.display())))
}

/// The user's PGHOST, PGOPTIONS and so on must not change what is measured, nor where it happens; and messages are
/// read by programs, so they are to be in English.
///
/// What the caller has set on purpose stays.
fn clean_environment(command: &mut Command) {
    let wanted: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") && !wanted.contains(&name) {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C").env("PSQLRC", "/dev/null");
}

fn read_text(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exists(pid: u32) -> bool {
        kill(Pid::from_raw(pid.cast_signed()), None).is_ok()
    }

    #[test]
    fn a_service_has_a_session_of_its_own() {
        let sleep = tools::find_program("sleep").expect("coreutils");
        let mut command = service_command(&sleep);
        let service = Process::spawn_service(command.arg("600"), "sleep", STOP_PLAIN).expect("sleep starts");
        let pid = Pid::from_raw(service.id().cast_signed());
        // It begins its session after it was started.
        let until = Instant::now() + Duration::from_secs(20);
        while nix::unistd::getsid(Some(pid)) != Ok(pid) && Instant::now() < until {
            thread::sleep(LOOK_EVERY);
        }
        assert_eq!(nix::unistd::getsid(Some(pid)), Ok(pid));
    }

    #[test]
    fn dropping_the_owner_ends_the_process() {
        let process =
            Process::spawn(Command::new("sleep").arg("600"), "sleep", STOP_PLAIN).expect("sleep starts");
        let pid = process.id();
        assert!(exists(pid));
        drop(process);
        assert!(!exists(pid));
    }

    #[test]
    fn a_process_that_ignores_the_signal_is_killed() {
        const PLAN: StopPlan = &[(Signal::SIGTERM, Duration::from_millis(50))];
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command, "stubborn", PLAN).expect("sh starts");
        let mut ready = String::new();
        BufReader::new(process.child.stdout.take().expect("piped")).read_line(&mut ready).expect("a line");
        let pid = process.id();
        drop(process);
        assert!(!exists(pid));
    }

    #[test]
    fn an_interrupt_ends_what_runs() {
        let interrupt = Interrupt::default();
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >&2; exec sleep 600"]);
        let mut pid = 0;
        let result = run(&mut command, "sleep", Duration::from_secs(600), &interrupt.clone(), &mut |line| {
            if let Some(line) = line {
                pid = line.parse().expect("a process id");
                interrupt.raise();
            }
        });
        assert!(matches!(result, Err(BenchError::Interrupted)));
        assert!(pid != 0 && !exists(pid));
    }

    #[test]
    fn a_run_keeps_both_outputs_and_the_status() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let finished = run(&mut command, "sh", Duration::from_secs(60), &Interrupt::default(), &mut |_| {})
            .expect("sh runs");
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(finished.status.code(), Some(3));
        assert!(failure("sh", &finished).to_string().ends_with("err"));
    }

    #[test]
    fn a_missing_program_is_named() {
        let missing = "/nonexistent/pgbench";
        let error = Process::spawn(&mut Command::new(missing), "pgbench", STOP_PLAIN);
        let service = Process::spawn_service(&mut service_command(Path::new(missing)), "pgbench", STOP_PLAIN);
        for error in [error, service].map(|outcome| outcome.expect_err("it does not exist")) {
            assert_eq!(error.exit_code(), 3);
            assert!(error.to_string().contains(missing));
        }
    }

    #[test]
    fn a_full_disk_is_recognised() {
        assert!(says_disk_full("initdb: could not write file: No space left on device"));
        assert!(!says_disk_full("permission denied"));
    }
}
