//! `promote_command`: the program that stops the old primary and promotes a standby.
//!
//! This module must not decide whether a node is to be promoted: the cluster's worker has checked that.

use std::os::unix::process::ExitStatusExt as _;

use pgweir_core::driver::Level;
use pgweir_core::mail::{NodePlace, PromoteRequest};

use super::{Printed, Program, SAID_CHARS_MAX, one_line};
use crate::log::Log;
use crate::plane::Event;

/// The refusal of a run while the program of an earlier switchover of this cluster runs.
pub(super) const STILL_RUNS: &str = "promote_command of an earlier switchover still runs";

/// Returns the program: its last arguments are the addresses of the standby and of the old primary.
pub(super) fn program(request: &PromoteRequest) -> Program<'_> {
    let PromoteRequest { cluster, to, from, command, limit, .. } = request;
    Program {
        setting: "promote_command",
        words: command,
        arguments: vec![address(to), address(from)],
        variables: vec![
            ("PGWEIR_CLUSTER", cluster.to_string()),
            ("PGWEIR_NODE", to.name.to_string()),
            ("PGWEIR_HOST", to.host.to_string()),
            ("PGWEIR_PORT", to.port.to_string()),
            ("PGWEIR_OLD_NODE", from.name.to_string()),
            ("PGWEIR_OLD_HOST", from.host.to_string()),
            ("PGWEIR_OLD_PORT", from.port.to_string()),
        ],
        limit: *limit,
        limit_setting: "promote_command_timeout",
    }
}

fn address(node: &NodePlace) -> String {
    format!("{}:{}", node.host, node.port)
}

/// Logs that the program starts.
pub(super) fn announce(request: &PromoteRequest, log: &Log) {
    let PromoteRequest { cluster, to, from, .. } = request;
    let line =
        format!("cluster {cluster}: promote_command starts for node {}, instead of {}", to.name, from.name);
    log.write(Level::Log, &line);
}

/// Takes the result of the program. The event has the exit status and the end of the error output if the
/// program has failed; the log has the error output in any case.
pub(super) fn promoted(request: PromoteRequest, printed: Result<Printed, String>, log: &Log) -> Event {
    let PromoteRequest { cluster, number, to, .. } = request;
    let result = printed.and_then(|printed| {
        let said = one_line(&printed.said);
        if !said.is_empty() {
            let line = format!("cluster {cluster}: promote_command says of node {}: {said}", to.name);
            log.write(Level::Warning, &line);
        }
        if printed.status.success() { Ok(()) } else { Err(failure(&printed)) }
    });
    if result.is_ok() {
        let line = format!("cluster {cluster}: promote_command has succeeded for node {}", to.name);
        log.write(Level::Log, &line);
    }
    Event::Switched { cluster, number, result }
}

/// Returns the exit status and the last line of the error output, which usually has the reason.
fn failure(printed: &Printed) -> String {
    let status = match (printed.status.code(), printed.status.signal()) {
        (Some(code), _) => format!("it ended with exit status {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it has failed".to_owned(),
    };
    let said = String::from_utf8_lossy(&printed.said);
    let last = said.trim_end().lines().next_back().unwrap_or_default();
    let last: String = one_line(last.as_bytes()).chars().take(SAID_CHARS_MAX).collect();
    if last.is_empty() { status } else { format!("{status}: {last}") }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use crate::commands::Commands;
    use crate::scratch::Scratch;

    /// A cluster whose promote_command is a script.
    struct Rig {
        scratch: Scratch,
        commands: Commands,
        events: Receiver<Event>,
    }

    const LONG_MS: u64 = 600_000;

    impl Rig {
        fn new(name: &str) -> Rig {
            let (events, inbox) = channel();
            let commands = Commands::new(events, &Log::to_stderr());
            Rig { scratch: Scratch::new(name), commands, events: inbox }
        }

        fn start(&mut self, number: u64, script: &str, limit_ms: u64) {
            let path = self.scratch.write(&format!("promote-{number}"), script);
            let node =
                |name: &str, host: &str| NodePlace { name: name.into(), host: host.into(), port: 5433 };
            self.commands.promote(PromoteRequest {
                cluster: "main".into(),
                number,
                to: node("m2", "10.0.0.2"),
                from: node("m1", "10.0.0.1"),
                command: format!("/bin/sh {} one", path.display()),
                limit: Duration::from_millis(limit_ms),
            });
        }

        fn ended(&mut self) -> (u64, Result<(), String>) {
            let Ok(Event::Switched { cluster, number, result }) = self.events.recv() else {
                panic!("no event")
            };
            assert_eq!(&*cluster, "main");
            (number, result)
        }
    }

    #[test]
    fn it_knows_both_nodes() {
        let mut rig = Rig::new("promote-knows");
        let script = "test \"$*\" = 'one 10.0.0.2:5433 10.0.0.1:5433' && \
            test \"$PGWEIR_CLUSTER $PGWEIR_NODE $PGWEIR_HOST $PGWEIR_PORT\" = 'main m2 10.0.0.2 5433' && \
            test \"$PGWEIR_OLD_NODE $PGWEIR_OLD_HOST $PGWEIR_OLD_PORT\" = 'm1 10.0.0.1 5433'";
        rig.start(1, script, LONG_MS);
        assert_eq!(rig.ended(), (1, Ok(())));
    }

    #[test]
    fn one_that_fails_says_how_and_why() {
        let mut rig = Rig::new("promote-fails");
        rig.start(1, "echo first >&2; echo 'no route to m1' >&2; exit 3", LONG_MS);
        assert_eq!(rig.ended(), (1, Err("it ended with exit status 3: no route to m1".to_owned())));
        rig.start(2, "kill -9 $$", LONG_MS);
        assert_eq!(rig.ended(), (2, Err("it was ended by signal 9".to_owned())));
        rig.start(3, "sleep 1000", 200);
        let late = "promote_command did not end in time (promote_command_timeout)";
        assert_eq!(rig.ended(), (3, Err(late.to_owned())));
    }

    #[test]
    fn a_cluster_has_one_run_at_a_time() {
        let mut rig = Rig::new("promote-once");
        let (runs, go) = (rig.scratch.path("runs"), rig.scratch.path("go"));
        let script =
            format!("echo run >> {}; while ! test -e {}; do sleep 0.01; done", runs.display(), go.display());
        rig.start(1, &script, LONG_MS);
        rig.start(2, &script, LONG_MS);
        assert_eq!(rig.ended(), (2, Err(STILL_RUNS.to_owned())));
        fs::write(&go, "").expect("a file");
        assert_eq!(rig.ended(), (1, Ok(())));
        rig.start(3, &script, LONG_MS);
        assert_eq!(rig.ended(), (3, Ok(())));
        assert_eq!(fs::read_to_string(&runs).expect("it ran"), "run\nrun\n");
    }
}
