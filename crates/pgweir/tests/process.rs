//! The binary as a process: command line, exit codes, pid file, signals, log. No PostgreSQL is needed for these.

#![allow(clippy::disallowed_methods, reason = "a test waits for processes")]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// Far more than anything here takes; only a defect reaches it.
const TIMEOUT: Duration = Duration::from_secs(20);

fn pgweir(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgweir"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs to the end: exit code, standard output, standard error.
fn finished(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < until, "waited too long until {what}");
        sleep(Duration::from_millis(5));
    }
}

/// A folder that any user may write to, with a configuration in it.
struct Stage(PathBuf);

impl Stage {
    fn new(name: &str, main: &str) -> Stage {
        let folder = std::env::temp_dir().join(format!("pgweir-process-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder can be made");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("ours");
        let stage = Stage(folder);
        stage.configure(main);
        stage
    }

    fn configure(&self, main: &str) {
        let text = format!("[pgbouncer]\nlogfile = {}\nunix_socket_dir =\n{main}\n", self.path("log"));
        fs::write(self.path("pgweir.ini"), text).expect("writable");
    }

    fn path(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }

    /// The command that runs this configuration; as another user when the tests run as root.
    fn command(&self, options: &[&str]) -> Command {
        let config = self.path("pgweir.ini");
        let mut args = options.to_vec();
        if geteuid().is_root() {
            args.extend(["-u", "nobody"]);
        }
        args.push(&config);
        pgweir(&args)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn wait_for_log(&self, text: &str) {
        wait_until(&format!("the log says {text:?}"), || self.log().contains(text));
    }

    /// Starts a pooler in the foreground and waits until it serves.
    fn serve(&self) -> Pooler {
        let child = self.command(&["-q"]).stderr(Stdio::null()).spawn().expect("the binary runs");
        let pooler = Pooler(child);
        self.wait_for_log("process up: ");
        pooler
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running pooler; killed if a test fails while it runs.
struct Pooler(Child);

impl Pooler {
    fn signal(&self, signal: Signal) {
        kill(pid_of(self.0.id()), signal).expect("it runs");
    }

    fn ended(mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the pooler ends", || {
            status = self.0.try_wait().expect("our child");
            status.is_some()
        });
        status.expect("it has ended")
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pid_of(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).expect("a process id"))
}

const TCP: &str = "listen_addr = 127.0.0.1\nlisten_port = 0";

#[test]
fn pages_go_to_standard_output() {
    for args in [["-V"], ["--version"]] {
        let (code, out, err) = finished(&mut pgweir(&args));
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.starts_with("PgBouncer ") && out.contains("\npgweir "), "{out}");
    }
    for args in [["-h"], ["--help"]] {
        let (code, out, err) = finished(&mut pgweir(&args));
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.contains("Usage:"), "{out}");
    }
}

#[test]
fn usage_errors_go_to_standard_error() {
    for (args, word) in
        [(&[][..], "need a config file"), (&["-x"], "-x"), (&["a.ini", "b.ini"], "only one config file")]
    {
        let (code, out, err) = finished(&mut pgweir(args));
        assert_eq!((code, out.as_str()), (Some(1), ""), "{args:?}");
        assert!(err.starts_with("pgweir: ") && err.contains(word), "{err}");
    }
}

#[test]
fn a_bad_configuration_is_told_completely() {
    let stage = Stage::new("bad", "no_such = 1\nlisten_port = many");
    let (code, _, err) = finished(&mut stage.command(&[]));
    assert_eq!(code, Some(1));
    assert!(err.contains("unknown parameter: pgbouncer/no_such"), "{err}");
    assert!(err.contains("listen_port") && err.contains("pgweir.ini:5"), "{err}");
    assert!(err.trim_end().ends_with("FATAL cannot load config file"), "{err}");

    let (code, out, _) = finished(&mut pgweir(&["check", &stage.path("pgweir.ini")]));
    assert_eq!(code, Some(1));
    assert!(out.contains(": 2 errors and "), "{out}");
    stage.configure(TCP);
    let (code, out, _) = finished(&mut pgweir(&["check", &stage.path("pgweir.ini")]));
    assert_eq!(code, Some(0), "{out}");
}

#[test]
fn a_port_or_socket_in_use_is_told() {
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = holder.local_addr().expect("bound").port();
    let stage = Stage::new("port", &format!("listen_addr = 127.0.0.1\nlisten_port = {port}"));
    let (code, _, err) = finished(&mut stage.command(&[]));
    assert_eq!(code, Some(1));
    assert!(err.contains(&format!("could not listen on 127.0.0.1:{port}: ")), "{err}");
    assert!(err.contains("FATAL could not listen on any address of listen_addr"), "{err}");
    assert!(stage.log().contains("FATAL"), "the log file has it too");

    stage.configure(&format!("unix_socket_dir = {}\nlisten_port = 7", stage.0.display()));
    let _holder = UnixListener::bind(stage.path(".s.PGSQL.7")).expect("a socket");
    let socket = fs::Permissions::from_mode(0o777);
    fs::set_permissions(stage.path(".s.PGSQL.7"), socket).expect("ours");
    let (code, _, err) = finished(&mut stage.command(&[]));
    assert_eq!(code, Some(1));
    assert!(err.contains("FATAL unix socket is in use, cannot continue"), "{err}");
}

#[test]
fn root_is_refused_without_a_user_to_become() {
    if !geteuid().is_root() {
        return;
    }
    let stage = Stage::new("root", TCP);
    let (code, _, err) = finished(&mut pgweir(&[&stage.path("pgweir.ini")]));
    assert_eq!(code, Some(1));
    assert!(err.contains("FATAL pgweir should not run as root"), "{err}");
    let (code, _, err) = finished(&mut pgweir(&["-u", "no-such-user", &stage.path("pgweir.ini")]));
    assert_eq!(code, Some(1));
    assert!(err.contains("FATAL could not find user 'no-such-user'"), "{err}");
}

#[test]
fn the_pid_file_keeps_a_second_instance_away_and_goes_with_the_process() {
    let stage = Stage::new("pid", "");
    let pid_file = stage.path("pid");
    stage.configure(&format!("{TCP}\npidfile = {pid_file}"));
    fs::write(&pid_file, "999999999\n").expect("writable");
    fs::set_permissions(&pid_file, fs::Permissions::from_mode(0o666)).expect("ours");
    let pooler = stage.serve();
    assert!(stage.log().contains("LOG stale pidfile, removing"), "{}", stage.log());
    assert_eq!(fs::read_to_string(&pid_file).expect("there"), format!("{}\n", pooler.0.id()));

    let (code, _, err) = finished(&mut stage.command(&[]));
    assert_eq!(code, Some(1));
    assert!(err.contains(&format!("FATAL pidfile '{pid_file}' exists, another instance running?")), "{err}");

    pooler.signal(Signal::SIGTERM);
    assert_eq!(pooler.ended().code(), Some(0));
    assert!(!fs::exists(&pid_file).expect("readable"), "the pid file is gone");
    assert!(stage.log().contains("LOG got SIGTERM, shutting down, waiting for all clients disconnect"));
}

#[test]
fn every_signal_that_stops_ends_with_code_0_and_without_a_socket_file() {
    for (number, signal) in [(1, Signal::SIGTERM), (2, Signal::SIGINT), (3, Signal::SIGQUIT)] {
        let stage = Stage::new(&format!("stop-{number}"), "");
        stage.configure(&format!("unix_socket_dir = {}\nlisten_port = {number}", stage.0.display()));
        let pooler = stage.serve();
        let socket = stage.path(&format!(".s.PGSQL.{number}"));
        drop(UnixStream::connect(&socket).expect("it listens"));
        pooler.signal(signal);
        assert_eq!(pooler.ended().code(), Some(0), "{signal}");
        assert!(!fs::exists(&socket).expect("readable"), "{signal}: the socket is gone");
        assert!(stage.log().contains(&format!("got {signal}")), "{}", stage.log());
    }
}

#[test]
fn the_second_wish_to_stop_does_not_wait_for_clients() {
    let stage = Stage::new("twice", TCP);
    let pooler = stage.serve();
    let log = stage.log();
    let address = log.lines().find_map(|line| line.split("listening on ").nth(1)).expect("it listens");
    let idle = TcpStream::connect(address).expect("it accepts");
    // A byte, because a connection is reported by the kernel only with its first bytes (tcp_defer_accept).
    std::io::Write::write_all(&mut &idle, &[0]).expect("it reads");
    sleep(Duration::from_millis(50));
    pooler.signal(Signal::SIGTERM);
    stage.wait_for_log("got SIGTERM, shutting down");
    wait_until("the port is closed", || TcpStream::connect(address).is_err());
    pooler.signal(Signal::SIGTERM);
    assert_eq!(pooler.ended().code(), Some(0));
    assert!(stage.log().contains("got SIGTERM while shutting down, fast exit"), "{}", stage.log());
}

#[test]
fn sighup_reads_the_files_again_and_follows_log_rotation() {
    let stage = Stage::new("hup", TCP);
    let pooler = stage.serve();
    fs::rename(stage.path("log"), stage.path("log.1")).expect("rotates");
    stage.configure(&format!("{TCP}\nno_such = 1"));
    pooler.signal(Signal::SIGHUP);
    wait_until("the new log is there", || fs::exists(stage.path("log")).unwrap_or(false));
    let rotated = fs::read_to_string(stage.path("log.1")).expect("there");
    assert!(rotated.contains("got SIGHUP, re-reading config"), "{rotated}");
    assert!(rotated.contains("ERROR unknown parameter: pgbouncer/no_such"), "{rotated}");
    pooler.signal(Signal::SIGUSR1);
    stage.wait_for_log("got SIGUSR1, pausing all activity");
    pooler.signal(Signal::SIGINT);
    assert_eq!(pooler.ended().code(), Some(0), "a bad reload does not end it");
}

#[test]
fn a_daemon_leaves_its_terminal() {
    let stage = Stage::new("daemon", TCP);
    let (code, _, err) = finished(&mut stage.command(&["-d"]));
    assert_eq!(code, Some(1));
    assert!(err.contains("FATAL daemon needs pidfile configured"), "{err}");

    let pid_file = stage.path("pid");
    stage.configure(&format!("{TCP}\npidfile = {pid_file}"));
    // `output` returns when the pipes are closed, so the daemon must have closed its copies.
    let (code, _, _) = finished(&mut stage.command(&["-d"]));
    assert_eq!(code, Some(0));
    stage.wait_for_log("process up: ");
    let pid =
        fs::read_to_string(&pid_file).expect("there").trim().parse().map(Pid::from_raw).expect("a number");
    let leader = nix::unistd::getsid(Some(pid)).expect("it lives");
    assert_ne!(Some(leader), nix::unistd::getsid(None).ok(), "it has a session of its own");
    kill(pid, Signal::SIGQUIT).expect("ours");
    wait_until("the daemon is gone", || !fs::exists(&pid_file).unwrap_or(true));
    assert!(stage.log().contains("got SIGQUIT, fast exit"), "{}", stage.log());
}
