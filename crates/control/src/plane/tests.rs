use std::cell::RefCell;
use std::sync::mpsc::channel;

use nix::libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use pgweir_core::stats::Stats;

use super::*;
use crate::config::config_state::CommandLine;
use crate::scratch::Scratch;

const WORKERS: u16 = 2;

/// A fleet that records its calls. TLS is "built" as the name of the mode, and impossible for a key with the
/// text "bad".
#[derive(Default)]
struct Notes(RefCell<Vec<String>>);

impl Notes {
    fn note(&self, text: impl Into<String>) {
        self.0.borrow_mut().push(text.into());
    }
}

impl Fleet for Notes {
    type Tls = String;

    fn count(&self) -> u16 {
        WORKERS
    }

    fn mail(&self, to: WorkerId, mail: Mail) {
        let text = match mail {
            Mail::Rules(rules) => format!("pool size {}", rules.config.main.default_pool_size),
            Mail::Command { from, ticket, command } => {
                assert_eq!((from, ticket), (to, NO_TICKET));
                format!("{command:?}")
            }
            Mail::Outcome { ticket, outcome } => format!("ticket {ticket} {outcome:?}"),
            Mail::Shutdown(kind) => format!("{kind:?}"),
            Mail::Continue => "continue".to_owned(),
            _ => "nothing of the control plane's".to_owned(),
        };
        self.note(format!("{}: {text}", to.0));
    }

    fn build_tls(&self, main: &Main, files: &TlsFiles) -> Result<String, String> {
        match files.clients.key.as_deref() {
            Some(b"bad") => Err("client_tls_key_file: bad".to_owned()),
            _ => Ok(format!("tls {}", main.client_tls_sslmode)),
        }
    }

    fn use_tls(&self, tls: String) {
        self.note(tls);
    }

    fn use_socket_settings(&self, main: &Main) {
        self.note(format!("keepalive {}", main.tcp_keepalive));
    }
}

/// Creates a plane over a scratch folder's files.
struct Stage {
    scratch: Scratch,
    plane: Plane<Notes>,
}

impl Stage {
    fn new(name: &str) -> Stage {
        let scratch = Scratch::new(&format!("plane-{name}"));
        let stage_log = scratch.path("log");
        scratch.write("pgweir.ini", &format!("[pgbouncer]\nlogfile = {}\n", stage_log.display()));
        let config = scratch.path("pgweir.ini").display().to_string();
        let command_line = CommandLine { config, ..CommandLine::default() };
        let draft = Draft::read(&command_line).expect("good files");
        let log = Log::to_stderr();
        log.open(log_targets(&draft.config().main, true)).expect("opens");
        let config_state = ConfigState::new(command_line, draft);
        Stage { scratch, plane: Plane::new(Notes::default(), config_state, log, true) }
    }

    fn configure(&self, main: &str) {
        let log = self.scratch.path("log");
        self.scratch.write("pgweir.ini", &format!("[pgbouncer]\nlogfile = {}\n{main}\n", log.display()));
    }

    /// Returns the fleet's calls for these events; the plane ends after them.
    fn play(self, events: impl IntoIterator<Item = Event>) -> (Vec<String>, String) {
        let (sender, receiver) = channel();
        for event in events {
            sender.send(event).expect("the receiver is here");
        }
        drop(sender);
        let notes = self.plane.run(&receiver).0.into_inner();
        (notes, std::fs::read_to_string(self.scratch.path("log")).unwrap_or_default())
    }
}

fn asked(question: Question) -> Event {
    Event::Asked(WorkerId(1), question)
}

fn reload() -> Question {
    Question::Reload { from: WorkerId(1), ticket: 7 }
}

#[test]
fn a_good_reload_reaches_every_worker_and_then_the_one_that_asked() {
    let stage = Stage::new("reload");
    stage.configure("default_pool_size = 9\ntcp_keepalive = 0\nlisten_port = 1");
    let (told, log) = stage.play([asked(reload())]);
    assert_eq!(told, ["keepalive false", "0: pool size 9", "1: pool size 9", "1: ticket 7 Done"]);
    assert!(log.contains("WARNING setting listen_port can only be changed by a restart"), "{log}");
}

#[test]
fn a_bad_reload_reaches_only_the_one_that_asked() {
    let stage = Stage::new("reload-bad");
    stage.configure("default_pool_size = 9\nno_such = 1");
    let (told, log) = stage.play([asked(reload()), Event::Signal(SIGHUP)]);
    assert_eq!(told, ["1: ticket 7 Failed(\"RELOAD failed, see logs for additional details\")"]);
    assert_eq!(log.matches("ERROR unknown parameter: pgbouncer/no_such").count(), 2, "{log}");
    assert!(log.contains("LOG got SIGHUP, re-reading config"), "{log}");
}

#[test]
fn tls_is_in_effect_before_the_rules_or_nothing_is() {
    let stage = Stage::new("reload-tls");
    let key = stage.scratch.write("key", "good").display().to_string();
    stage.configure(&format!(
        "client_tls_sslmode = require\nclient_tls_key_file = {key}\nclient_tls_cert_file = {key}"
    ));
    let (told, _) = stage.play([Event::Signal(SIGHUP)]);
    assert_eq!(told, ["tls require", "keepalive true", "0: pool size 20", "1: pool size 20"]);

    let stage = Stage::new("reload-tls-bad");
    let key = stage.scratch.write("key", "bad").display().to_string();
    stage.configure(&format!(
        "default_pool_size = 1\nclient_tls_sslmode = require\nclient_tls_key_file = {key}\nclient_tls_cert_file = {key}"
    ));
    let (told, log) = stage.play([Event::Signal(SIGHUP)]);
    assert_eq!(told, Vec::<String>::new());
    assert!(log.contains("TLS configuration could not be reloaded, keeping old configuration"), "{log}");
}

#[test]
fn reload_follows_a_rotated_log_even_when_the_configuration_is_bad() {
    let stage = Stage::new("rotate");
    stage.configure("no_such = 1");
    std::fs::rename(stage.scratch.path("log"), stage.scratch.path("log.1")).expect("renames");
    let (_, log) = stage.play([Event::Signal(SIGHUP), Event::Signal(SIGUSR1)]);
    assert!(log.contains("got SIGUSR1") && !log.contains("got SIGHUP"), "{log}");
}

#[test]
fn set_is_answered_and_told() {
    let set = |key: &str, value: &str| {
        let (key, value) = (key.to_owned(), value.to_owned());
        asked(Question::Set { from: WorkerId(0), ticket: 3, key, value })
    };
    let (told, log) = Stage::new("set").play([
        set("default_pool_size", "7"),
        set("listen_port", "7"),
        set("default_pool_size", "many"),
    ]);
    assert_eq!(
        told,
        [
            "keepalive true",
            "0: pool size 7",
            "1: pool size 7",
            "0: ticket 3 Done",
            "0: ticket 3 Done",
            "0: ticket 3 Failed(\"SET failed\")"
        ]
    );
    assert!(log.contains("ERROR invalid value \"many\" for parameter default_pool_size"), "{log}");
}

#[test]
fn signals_pause_and_resume_everything() {
    let (told, _) = Stage::new("pause").play([Event::Signal(SIGUSR1), Event::Signal(SIGUSR2)]);
    assert_eq!(told, ["0: Pause(None)", "1: Pause(None)", "0: continue", "1: continue"]);
}

#[test]
fn a_period_is_one_line_for_all_workers() {
    let over = |worker, xacts| {
        let change = Stats { xacts, ..Stats::default() };
        Event::Asked(WorkerId(worker), Question::PeriodOver(Window { change, elapsed_us: 1_000_000 }))
    };
    let (_, log) = Stage::new("period").play([over(0, 3), over(1, 4), over(1, 9)]);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("stats: ")).collect();
    assert!(matches!(lines[..], [line] if line.contains("LOG stats: 7 xacts/s, ")), "{lines:?}");
}

#[test]
fn sigterm_closes_tcp_and_waits_for_all_workers() {
    let drained = |worker| Event::Asked(WorkerId(worker), Question::Drained(WorkerId(worker)));
    let (told, log) = Stage::new("term").play([
        Event::Signal(SIGTERM),
        drained(0),
        Event::Signal(SIGUSR2),
        drained(1),
        Event::Signal(SIGUSR1),
    ]);
    assert_eq!(told, ["0: WaitForClients", "1: WaitForClients"]);
    let words: Vec<&str> = log.lines().filter_map(|line| line.split(" LOG ").nth(1)).collect();
    assert_eq!(
        words,
        [
            "got SIGTERM, shutting down, waiting for all clients disconnect",
            "got SIGUSR2 while shutting down, ignoring",
            "client connections dropped, exiting"
        ],
        "and nothing is handled after the end"
    );
}

#[test]
fn other_ends() {
    let (told, log) =
        Stage::new("int").play([Event::Signal(SIGINT), Event::Signal(SIGTERM), Event::Signal(SIGUSR1)]);
    assert_eq!(told, ["0: WaitForServers", "1: WaitForServers", "0: Now", "1: Now"]);
    assert!(log.contains("got SIGTERM while shutting down, fast exit") && !log.contains("SIGUSR1"), "{log}");

    let (told, log) = Stage::new("quit").play([Event::Signal(SIGQUIT), Event::Signal(SIGUSR1)]);
    assert_eq!(told, ["0: Now", "1: Now"]);
    assert!(!log.contains("SIGUSR1"), "{log}");

    let (told, _) = Stage::new("console-shutdown")
        .play([asked(Question::Shutdown(Shutdown::Now)), Event::Signal(SIGUSR1)]);
    assert_eq!(told, ["0: Now", "1: Now"]);
}
