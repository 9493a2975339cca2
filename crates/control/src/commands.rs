//! Runs programs that the configuration names (`lag_command`), without a shell and with a time limit, on one
//! thread that starts with the first of them.
//!
//! The output of a program is bounded, and only a number from it reaches the workers. Its arguments may hold
//! secrets and are never logged.

use std::collections::HashMap;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use pgweir_core::driver::Level;
use pgweir_core::mail::LagRequest;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use crate::log::Log;
use crate::plane::Event;

/// The name of the thread.
const THREAD: &str = "commands";
/// The number of bytes after which the output of a program is not read any further.
const PRINTED_BYTES_MAX: u64 = 4096;
/// The number of characters of a program's error output that are logged.
const SAID_CHARS_MAX: usize = 400;
/// Variables of pgweir's own service manager, which programs do not get.
const NOT_PASSED_ON: [&str; 4] = ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// The handle to the thread that runs programs.
pub struct Commands {
    orders: Option<UnboundedSender<LagRequest>>,
    events: Sender<Event>,
    log: Log,
}

/// The output of a program, and its exit status.
struct Printed {
    out: Vec<u8>,
    said: Vec<u8>,
    status: ExitStatus,
}

impl Commands {
    /// Creates a handle without a thread. Results come as events.
    #[must_use]
    pub fn new(events: Sender<Event>, log: &Log) -> Commands {
        Commands { orders: None, events, log: log.clone() }
    }

    /// Runs `lag_command` for a standby. The result comes as an event, also if the program cannot be run.
    pub(crate) fn measure_lag(&mut self, request: LagRequest) {
        if self.orders.is_none() {
            self.start();
        }
        let LagRequest { cluster, node, .. } = &request;
        let (cluster, node) = (Arc::clone(cluster), Arc::clone(node));
        if self.orders.as_ref().is_none_or(|orders| orders.send(request).is_err()) {
            let told = Err("lag_command cannot be run: there is no thread for it".to_owned());
            // This fails if the process is ending and the receiver is gone.
            let _ = self.events.send(Event::Lag { cluster, node, told });
        }
    }

    fn start(&mut self) {
        let (orders, inbox) = unbounded_channel();
        let (events, log) = (self.events.clone(), self.log.clone());
        let started = thread::Builder::new().name(THREAD.into()).spawn(move || serve(inbox, events, log));
        match started {
            Ok(_) => self.orders = Some(orders),
            Err(error) => {
                let line = format!("could not start the thread that runs lag_command: {error}");
                self.log.write(Level::Error, &line);
            }
        }
    }
}

fn serve(orders: UnboundedReceiver<LagRequest>, events: Sender<Event>, log: Log) {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => LocalSet::new().block_on(&runtime, obey(orders, events, log)),
        Err(error) => log.write(Level::Error, &format!("lag_command cannot be run: {error}")),
    }
}

async fn obey(mut orders: UnboundedReceiver<LagRequest>, events: Sender<Event>, log: Log) {
    let (results, mut done) = unbounded_channel();
    // The last error output of each standby's program, so that the log has it only once.
    let mut said_last: HashMap<(Arc<str>, Arc<str>), String> = HashMap::new();
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some(request) = order else { return };
                let results = results.clone();
                spawn_local(async move {
                    let printed = run(&request).await;
                    // The receiver lives as long as this thread.
                    let _ = results.send((request, printed));
                });
            }
            Some((request, printed)) = done.recv() => {
                let LagRequest { cluster, node, .. } = request;
                let said = printed.as_ref().map(|printed| one_line(&printed.said)).unwrap_or_default();
                let key = (Arc::clone(&cluster), Arc::clone(&node));
                if !said.is_empty() && said_last.get(&key) != Some(&said) {
                    let line = format!("cluster {cluster}: lag_command says of node {node}: {said}");
                    log.write(Level::Warning, &line);
                }
                said_last.insert(key, said);
                let told = printed.and_then(|printed| lag_of(&printed));
                // This fails if the process is ending and the receiver is gone.
                let _ = events.send(Event::Lag { cluster, node, told });
            }
        }
    }
}

/// Runs the program of a request until it ends or its time is over.
async fn run(request: &LagRequest) -> Result<Printed, String> {
    let LagRequest { cluster, node, host, port, command, limit } = request;
    let mut words = command.split_ascii_whitespace();
    let mut command = Command::new(words.next().ok_or("lag_command names no program")?);
    command.args(words).arg(format!("{host}:{port}"));
    NOT_PASSED_ON.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.env("PGWEIR_CLUSTER", &**cluster).env("PGWEIR_NODE", &**node);
    command.env("PGWEIR_HOST", &**host).env("PGWEIR_PORT", port.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The program has its own process group, so that its children can be killed with it.
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("lag_command cannot be run: {error}"))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    match timeout(*limit, printed(&mut child)).await {
        Ok(printed) => printed.map_err(|error| format!("lag_command cannot be run: {error}")),
        Err(_) => {
            if let Some(group) = group {
                // This fails if the program has just ended.
                let _ = killpg(group, Signal::SIGKILL);
            }
            let _ = child.wait().await;
            Err("lag_command did not end in time (lag_command_timeout)".to_owned())
        }
    }
}

async fn printed(child: &mut Child) -> std::io::Result<Printed> {
    let (out, said) = (child.stdout.take(), child.stderr.take());
    let (out, said, status) = tokio::join!(read(out), read(said), child.wait());
    Ok(Printed { out: out?, said: said?, status: status? })
}

/// Reads to the end, or to the bound; then the pipe is closed.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(PRINTED_BYTES_MAX).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Returns the lag: the output has to be one number of milliseconds.
fn lag_of(printed: &Printed) -> Result<Duration, String> {
    if !printed.status.success() {
        return Err(format!("lag_command failed: {}", printed.status));
    }
    let number = std::str::from_utf8(&printed.out).ok().and_then(|text| text.trim().parse::<f64>().ok());
    let lag = number.and_then(|lag_ms| Duration::try_from_secs_f64(lag_ms / 1000.0).ok());
    lag.ok_or_else(|| "lag_command prints no number of milliseconds that is 0 or more".to_owned())
}

/// Returns a program's error output as one line for the log.
fn one_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let text = text.trim().chars().take(SAID_CHARS_MAX);
    text.map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::scratch::Scratch;

    /// Runs a script, and returns its result.
    struct Rig {
        scratch: Scratch,
        commands: Commands,
        events: Receiver<Event>,
    }

    impl Rig {
        fn new(name: &str) -> Rig {
            let (events, inbox) = channel();
            let commands = Commands::new(events, &Log::to_stderr());
            Rig { scratch: Scratch::new(name), commands, events: inbox }
        }

        fn run(&mut self, script: &str, limit_ms: u64) -> Result<Duration, String> {
            let path = self.scratch.write("lag", script);
            self.run_as(&format!("/bin/sh {} one 'two", path.display()), limit_ms)
        }

        fn run_as(&mut self, command: &str, limit_ms: u64) -> Result<Duration, String> {
            self.commands.measure_lag(LagRequest {
                cluster: "main".into(),
                node: "m2".into(),
                host: "10.0.0.2".into(),
                port: 5433,
                command: command.to_owned(),
                limit: Duration::from_millis(limit_ms),
            });
            let Ok(Event::Lag { cluster, node, told }) = self.events.recv() else { panic!("no event") };
            assert_eq!((&*cluster, &*node), ("main", "m2"));
            told
        }
    }

    const LONG_MS: u64 = 600_000;

    #[test]
    fn a_program_prints_milliseconds() {
        let mut rig = Rig::new("command-prints");
        assert_eq!(rig.run("echo 1500", LONG_MS), Ok(Duration::from_millis(1500)));
        assert_eq!(rig.run("printf 0.5", LONG_MS), Ok(Duration::from_micros(500)));
        for script in ["echo -1", "echo NaN", "echo 1 2", "true", "echo 12 ms", "yes"] {
            let told = rig.run(script, LONG_MS).expect_err(script);
            assert!(told.starts_with("lag_command"), "{script}: {told}");
        }
    }

    #[test]
    fn it_knows_the_standby_and_no_shell_reads_its_words() {
        let mut rig = Rig::new("command-knows");
        let script = "test \"$*\" = \"one 'two 10.0.0.2:5433\" && \
            test \"$PGWEIR_CLUSTER $PGWEIR_NODE $PGWEIR_HOST $PGWEIR_PORT\" = 'main m2 10.0.0.2 5433' && echo 7";
        assert_eq!(rig.run(script, LONG_MS), Ok(Duration::from_millis(7)));
    }

    #[test]
    fn one_that_fails_or_is_not_there_says_so() {
        let mut rig = Rig::new("command-fails");
        assert_eq!(rig.run("echo 1; exit 3", LONG_MS), Err("lag_command failed: exit status: 3".to_owned()));
        let told = rig.run_as("/nowhere/lag --password=secret", LONG_MS).expect_err("there is none");
        assert!(told.starts_with("lag_command cannot be run") && !told.contains("secret"), "{told}");
        assert_eq!(rig.run_as("", LONG_MS), Err("lag_command names no program".to_owned()));
    }

    #[test]
    fn one_that_does_not_end_is_killed_with_what_it_started() {
        let mut rig = Rig::new("command-killed");
        let pids = rig.scratch.path("pids");
        let script = format!("sleep 1000 & echo $$ $! > {}; wait", pids.display());
        let told = rig.run(&script, 300);
        assert_eq!(told, Err("lag_command did not end in time (lag_command_timeout)".to_owned()));
        // On a busy machine it may not have come so far.
        for pid in fs::read_to_string(&pids).unwrap_or_default().split_whitespace() {
            let is_gone = || {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                stat.is_empty() || stat.contains(") Z ")
            };
            while !is_gone() {
                thread::yield_now();
            }
        }
        assert_eq!(rig.run("echo 1", LONG_MS), Ok(Duration::from_millis(1)), "the next one runs");
    }

    #[test]
    fn what_it_says_is_one_line() {
        assert_eq!(one_line(b" no\nsuch\x1b[1m host\n"), "no such [1m host");
        assert_eq!(one_line(&[b'x'; 5000]).len(), SAID_CHARS_MAX);
    }
}
