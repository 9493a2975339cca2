//! Runs programs that the configuration names, without a shell and with a time limit: `lag_command` and
//! `promote_command` on one thread that starts with the first of them, others on the threads of their callers.
//!
//! The output of a program is bounded, and only a number from it reaches the workers, or its last words if it
//! fails to promote. Its arguments may hold secrets and are never logged.

mod promote;

use std::collections::{HashMap, HashSet};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use pgweir_core::driver::Level;
use pgweir_core::mail::{LagRequest, PromoteRequest};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::log::Log;
use crate::order_thread::OrderThread;
use crate::plane::Event;

/// The number of bytes after which the output of a program is not read any further.
const PRINTED_BYTES_MAX: u64 = 4096;
/// The number of characters of a program's error output that are logged.
const SAID_CHARS_MAX: usize = 400;
/// The time for which the output of a program that has ended is still read.
const PIPES_OPEN: Duration = Duration::from_secs(1);
/// Variables of pgweir's own service manager, which programs do not get.
const NOT_PASSED_ON: [&str; 4] = ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// The handle to the thread that runs programs.
pub struct Commands {
    thread: OrderThread<Order>,
    events: Sender<Event>,
    log: Log,
}

/// A program that the thread must run.
enum Order {
    MeasureLag(LagRequest),
    Promote(PromoteRequest),
}

/// The result of a program that has ended, or was ended.
enum Done {
    MeasuredLag(LagRequest, Result<Printed, String>),
    Promoted(PromoteRequest, Result<Printed, String>),
}

/// A program that the configuration names.
pub(crate) struct Program<'a> {
    /// The setting that names the program, for messages.
    pub(crate) setting: &'static str,
    /// The value of the setting: the program and its first arguments, separated by blanks.
    pub(crate) words: &'a str,
    /// The arguments after those of the setting.
    pub(crate) arguments: Vec<String>,
    /// Variables that are added to the environment.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// The time after which the program is killed.
    pub(crate) limit: Duration,
    /// The setting that has this time.
    pub(crate) limit_setting: &'static str,
}

/// The output of a program, and its exit status.
pub(crate) struct Printed {
    out: Vec<u8>,
    said: Vec<u8>,
    status: ExitStatus,
}

impl Printed {
    /// Returns an error with the program's own words if its exit status is not 0.
    pub(crate) fn succeeded(&self, setting: &str) -> Result<(), String> {
        if self.status.success() {
            return Ok(());
        }
        Err(format!("{setting} failed: {}: {}", self.status, one_line(&self.said)))
    }
}

impl Commands {
    /// Creates a handle without a thread. Results come as events.
    #[must_use]
    pub fn new(events: Sender<Event>, log: &Log) -> Commands {
        Commands { thread: OrderThread::new("commands"), events, log: log.clone() }
    }

    /// Runs `lag_command` for a standby. The result comes as an event, also if the program cannot be run.
    pub(crate) fn measure_lag(&mut self, request: LagRequest) {
        let LagRequest { cluster, node, .. } = &request;
        let (cluster, node) = (Arc::clone(cluster), Arc::clone(node));
        if !self.order(Order::MeasureLag(request)) {
            let told = Err("lag_command cannot be run: there is no thread for it".to_owned());
            // This fails if the process is ending and the receiver is gone.
            let _ = self.events.send(Event::Lag { cluster, node, told });
        }
    }

    /// Runs `promote_command` for a switchover. The result comes as an event, also if the program cannot be run.
    /// A cluster has one run at a time: a second one is refused.
    pub(crate) fn promote(&mut self, request: PromoteRequest) {
        let (cluster, number) = (Arc::clone(&request.cluster), request.number);
        if !self.order(Order::Promote(request)) {
            let result = Err("promote_command cannot be run: there is no thread for it".to_owned());
            // This fails if the process is ending and the receiver is gone.
            let _ = self.events.send(Event::Switched { cluster, number, result });
        }
    }

    /// Gives an order to the thread, which is started first if necessary. Returns `false` if there is no thread.
    fn order(&mut self, order: Order) -> bool {
        if !self.thread.takes_orders() {
            let (events, log) = (self.events.clone(), self.log.clone());
            self.thread.start(&self.log, "that runs programs", move |orders| obey(orders, events, log));
        }
        self.thread.send(order).is_ok()
    }
}

async fn obey(mut orders: UnboundedReceiver<Order>, events: Sender<Event>, log: Log) {
    let (results, mut done) = unbounded_channel();
    // The last error output of each standby's program, so that the log has it only once.
    let mut said_last: HashMap<(Arc<str>, Arc<str>), String> = HashMap::new();
    // The clusters whose promote_command runs. It may run for longer than its switchover, which an operator can cancel.
    let mut promoting: HashSet<Arc<str>> = HashSet::new();
    loop {
        let event = tokio::select! {
            order = orders.recv() => {
                let results = results.clone();
                match order {
                    None => return,
                    Some(Order::MeasureLag(request)) => {
                        spawn_local(async move {
                            let printed = measuring(&request).run().await;
                            // The receiver lives as long as this thread.
                            let _ = results.send(Done::MeasuredLag(request, printed));
                        });
                        continue;
                    }
                    Some(Order::Promote(request)) if promoting.insert(Arc::clone(&request.cluster)) => {
                        promote::announce(&request, &log);
                        spawn_local(async move {
                            let printed = promote::program(&request).run().await;
                            // The receiver lives as long as this thread.
                            let _ = results.send(Done::Promoted(request, printed));
                        });
                        continue;
                    }
                    Some(Order::Promote(PromoteRequest { cluster, number, .. })) => {
                        Event::Switched { cluster, number, result: Err(promote::STILL_RUNS.to_owned()) }
                    }
                }
            }
            Some(done) = done.recv() => match done {
                Done::MeasuredLag(request, printed) => measured(request, printed, &mut said_last, &log),
                Done::Promoted(request, printed) => {
                    promoting.remove(&request.cluster);
                    promote::promoted(request, printed, &log)
                }
            }
        };
        // This fails if the process is ending and the receiver is gone.
        let _ = events.send(event);
    }
}

/// Returns the program that measures a standby's lag.
fn measuring(request: &LagRequest) -> Program<'_> {
    let LagRequest { cluster, node, host, port, command, limit } = request;
    Program {
        setting: "lag_command",
        words: command,
        arguments: vec![format!("{host}:{port}")],
        variables: vec![
            ("PGWEIR_CLUSTER", cluster.to_string()),
            ("PGWEIR_NODE", node.to_string()),
            ("PGWEIR_HOST", host.to_string()),
            ("PGWEIR_PORT", port.to_string()),
        ],
        limit: *limit,
        limit_setting: "lag_command_timeout",
    }
}

/// Takes the result of `lag_command`. `said_last` has the error outputs that the log has already.
fn measured(
    request: LagRequest,
    printed: Result<Printed, String>,
    said_last: &mut HashMap<(Arc<str>, Arc<str>), String>,
    log: &Log,
) -> Event {
    let LagRequest { cluster, node, .. } = request;
    let said = printed.as_ref().map(|printed| one_line(&printed.said)).unwrap_or_default();
    let key = (Arc::clone(&cluster), Arc::clone(&node));
    if !said.is_empty() && said_last.get(&key) != Some(&said) {
        let line = format!("cluster {cluster}: lag_command says of node {node}: {said}");
        log.write(Level::Warning, &line);
    }
    said_last.insert(key, said);
    let told = printed.and_then(|printed| lag_of(&printed));
    Event::Lag { cluster, node, told }
}

impl Program<'_> {
    /// Runs the program until it ends or its time is over. The error names the setting.
    pub(crate) async fn run(self) -> Result<Printed, String> {
        let Program { setting, words, arguments, variables, limit, limit_setting } = self;
        let mut words = words.split_ascii_whitespace();
        let mut command = Command::new(words.next().ok_or_else(|| format!("{setting} names no program"))?);
        command.args(words).args(arguments);
        NOT_PASSED_ON.iter().for_each(|name| {
            command.env_remove(name);
        });
        command.envs(variables);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The program has its own process group, so that its children can be killed with it.
        command.process_group(0).kill_on_drop(true);
        let failed = |error: std::io::Error| format!("{setting} cannot be run: {error}");
        let mut child = command.spawn().map_err(failed)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        match timeout(limit, printed(&mut child)).await {
            Ok(printed) => printed.map_err(failed),
            Err(_) => {
                if let Some(group) = group {
                    // This fails if the program has just ended.
                    let _ = killpg(group, Signal::SIGKILL);
                }
                let _ = child.wait().await;
                Err(format!("{setting} did not end in time ({limit_setting})"))
            }
        }
    }
}

/// Waits for the end of a program, and returns what it has written until then.
async fn printed(child: &mut Child) -> std::io::Result<Printed> {
    let (mut out, mut said) = (Vec::new(), Vec::new());
    let (out_pipe, said_pipe) = (child.stdout.take(), child.stderr.take());
    let status = {
        let reading = async { tokio::join!(read(out_pipe, &mut out), read(said_pipe, &mut said)) };
        tokio::pin!(reading);
        tokio::select! {
            (out, said) = &mut reading => {
                out?;
                said?;
                child.wait().await
            }
            // A server that the program has started may keep the pipes open.
            status = child.wait() => {
                let _ = timeout(PIPES_OPEN, &mut reading).await;
                status
            }
        }
    };
    Ok(Printed { out, said, status: status? })
}

/// Reads to the end, or to the bound; then the pipe is closed.
async fn read(pipe: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) -> std::io::Result<()> {
    if let Some(pipe) = pipe {
        pipe.take(PRINTED_BYTES_MAX).read_to_end(into).await?;
    }
    Ok(())
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
                std::thread::yield_now();
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
