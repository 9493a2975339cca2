//! The features of a pool do not call one another: each has its room, and the rooms that act ask them in a stated order. See
//! ARCHITECTURE.md, "The moments of a transaction".
//!
//! Types of another room may be used: a client's session is a fact that several features read.
//!
//! Features answer, and `relay`, `moves`, `client` and `server` act on the answers: what a room still does by itself is named here, and only that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::tidy::Problem;
use crate::tidy::source::Source;

const POOL: &str = "crates/core/src/pool";
/// The rooms of features: a folder, or a file.
const ROOMS: [&str; 11] = [
    "begin",
    "cancel",
    "catalog",
    "checks",
    "cluster",
    "listen",
    "multiplex",
    "prepared",
    "sequences",
    "session",
    "startup",
];
/// The functions of other rooms that a room may call, with the reason.
const ALLOWED: [(&str, &[&str], &str); 10] = [
    (
        "cluster",
        &["hides_settings", "is_notable", "waits_for_restore"],
        "functions of a text, of a client and of a link alone",
    ),
    (
        "cluster",
        &["end_at_front", "begin_alone_at_front"],
        "what begins or ends a transaction is read in one place",
    ),
    // From here on a room learns of another what would better be passed to it, or tells it what the room that acts should tell.
    ("begin", &["behind_begin"], "where a transaction runs is known by its first group"),
    ("cancel", &["restores", "trust_head"], "a server that is hit by no cancel any more goes on"),
    (
        "catalog",
        &["is_notify_listener", "learn_routines"],
        "which server is asked, and how sessions learn the answer",
    ),
    (
        "checks",
        &["reads_catalog", "everything_of", "learn_routines", "read_everything"],
        "a look is an audit",
    ),
    (
        "cluster",
        &[
            "answer_block",
            "defers_begin",
            "end_affinity",
            "end_pipeline",
            "forget_unnamed",
            "holds_exposed",
            "prepared_by_sql",
            "run_again",
        ],
        "an exchange that leaves its node takes back what features noted of it",
    ),
    (
        "multiplex",
        &[
            "begin_first_try",
            "end_cancels_for",
            "first_try_at",
            "goes_to_primary",
            "next_cancel",
            "note_promoted",
        ],
        "a queued client's turn begins as any other link does",
    ),
    ("session", &["is_watched"], "a statement that was found out is asked about from then on"),
    (
        "startup",
        &["new_session", "recall_currval_client", "send_session_sync", "values_of"],
        "startup values are tried as a session",
    ),
];

/// Where it is acted on what features answer.
const ACTING: [&str; 4] = ["relay", "moves", "client", "server"];
/// The functions that a room calls there.
const ACTS: [(&str, &[&str]); 9] = [
    // It answers a client in place of a server, and the server may leave. Whether the group behind a BEGIN may be answered by the query
    // cache decides whether the BEGIN takes a server.
    (
        "begin",
        &[
            "answer_message",
            "client_left",
            "may_be_known_after",
            "send_sync",
            "server_rests",
            "set_client_state",
        ],
    ),
    // The connection of a cancel request is a server of its own; behind it the server that was hit goes on.
    ("cancel", &["cleaned", "free_server", "resume_held", "turn_down"]),
    // A free server is asked, and is free again.
    ("catalog", &["ask_server", "free_server", "server_unpause"]),
    ("checks", &["begin_question", "free_server", "send_question", "server_unpause"]),
    // What the loss of a node, or a change of the primary, does to clients and servers.
    (
        "cluster",
        &[
            "ask_for_answers",
            "ask_server",
            "close_server",
            "fail_in_flight",
            "free_server",
            "leave_lost",
            "linked_to",
            "login_failed",
            "lose_server",
            "move_waiting",
            "pass",
            "purge_known",
            "refuse_client",
            "release_server",
            "requeue",
            "runs_again",
            "send_aside",
            "send_hidden",
            "send_hidden_aside",
            "send_linked",
            "send_sync",
            "set_client_state",
            "set_server_state",
            "tell",
            "tell_rolled_back",
            "turn_down",
        ],
    ),
    // The notify listener is a server of its own: nothing else opens, asks or closes it.
    ("listen", &["audit_over", "close_server", "refuse_client", "send_hidden", "set_server_state"]),
    // A queued client's turn is a move.
    (
        "multiplex",
        &["begin_capture", "leave_short", "requeue", "server_unpause", "set_server_state", "take_off"],
    ),
    // What is asked at the end of a transaction, and a replay's end.
    ("session", &["send_hidden", "send_hidden_aside", "send_sync"]),
    // A server that is asked for a login is free again, or its client is refused.
    ("startup", &["begin_question", "clear_session", "free_server", "refuse_client", "send_question"]),
];

/// Which room a function belongs to, by its name: methods of `Pool`, and functions without an owner.
#[derive(Default)]
pub(super) struct Functions {
    methods: BTreeMap<String, &'static str>,
    free: BTreeMap<String, &'static str>,
    /// Methods of `Pool` by which it is acted.
    acts: BTreeSet<String>,
    /// The acts that a room is seen to call.
    called: BTreeSet<(&'static str, String)>,
}

/// The room of a file, if it is a feature's.
fn room(path: &Path) -> Option<&'static str> {
    one_of(&ROOMS, path)
}

fn one_of(rooms: &[&'static str], path: &Path) -> Option<&'static str> {
    let inside = path.strip_prefix(POOL).ok()?;
    let name = Path::new(inside.iter().next()?).file_stem()?;
    rooms.iter().copied().find(|room| name == *room)
}

impl Functions {
    /// Those that the rooms define.
    pub(super) fn of(files: &[(PathBuf, Source)]) -> Functions {
        let mut functions = Functions::default();
        for (path, source) in files {
            if one_of(&ACTING, path).is_some() {
                functions.acts.extend(methods(source).map(str::to_owned));
            }
            let Some(room) = room(path) else { continue };
            let mut in_pool = false;
            for (_, line) in source.lines_without_tests() {
                in_pool = is_in_pool(line, in_pool);
                if let Some(name) = line.strip_prefix("    ").filter(|_| in_pool).and_then(defined) {
                    functions.methods.insert(name.to_owned(), room);
                } else if let Some(name) = defined(line) {
                    functions.free.insert(name.to_owned(), room);
                }
            }
        }
        for (path, source) in files {
            let Some(room) = room(path) else { continue };
            for (_, name) in calls(source).filter(|(_, name)| functions.acts.contains(*name)) {
                functions.called.insert((room, name.to_owned()));
            }
        }
        functions
    }

    /// The acts that are allowed to a room and that it does not call.
    pub(super) fn leftovers(&self) -> Vec<Problem> {
        let allowed = ACTS.iter().flat_map(|(room, names)| names.iter().map(move |name| (*room, *name)));
        let is_left =
            |(room, name): &(&'static str, &str)| !self.called.contains(&(*room, (*name).to_owned()));
        let path = Path::new("xtask/src/tidy/features.rs");
        let text = |(room, name)| format!("{room} does not call `{name}` any more: take it off the list");
        allowed.filter(is_left).map(|left| Problem::new(path, 0, text(left))).collect()
    }

    /// What this file does by itself and may not.
    fn acting(&self, path: &Path, source: &Source) -> Vec<Problem> {
        let Some(own) = room(path) else { return Vec::new() };
        let is_allowed = |name: &str| ACTS.iter().any(|(room, names)| *room == own && names.contains(&name));
        calls(source)
            .filter(|(_, name)| self.acts.contains(*name) && !is_allowed(name))
            .map(|(number, name)| {
                let text = format!("{own} calls `{name}`: features answer, others act");
                Problem::new(path, number, text)
            })
            .collect()
    }

    /// The calls of this file into another room, and its acts.
    pub(super) fn problems(&self, path: &Path, source: &Source) -> Vec<Problem> {
        let Some(own) = room(path) else { return Vec::new() };
        let mut problems = self.acting(path, source);
        let mut found = |number: usize, name: &str, rooms: &BTreeMap<String, &'static str>| {
            let other = rooms.get(name).filter(|other| **other != own);
            let allowed = ALLOWED.iter().any(|(room, names, _)| *room == own && names.contains(&name));
            if let Some(other) = other.filter(|_| !allowed) {
                let text = format!("{own} calls `{name}` of {other}: features do not call one another");
                problems.push(Problem::new(path, number, text));
            }
        };
        for (number, name) in calls(source) {
            found(number, name, &self.methods);
        }
        for (number, line) in source.lines_without_tests() {
            if let Some(imported) = line.trim_start().strip_prefix("use crate::pool::") {
                let names = imported.split(|sign: char| !sign.is_alphanumeric() && sign != '_');
                names.for_each(|name| found(number, name, &self.free));
            }
        }
        problems
    }
}

/// The methods of `Pool` that a file defines.
fn methods(source: &Source) -> impl Iterator<Item = &str> {
    let mut in_pool = false;
    source.lines_without_tests().filter_map(move |(_, line)| {
        in_pool = is_in_pool(line, in_pool);
        line.strip_prefix("    ").filter(|_| in_pool).and_then(defined)
    })
}

/// The methods of `Pool` that its methods in this file call, with the lines.
fn calls(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let (mut in_pool, mut before) = (false, "");
    source.lines_without_tests().flat_map(move |(number, line)| {
        in_pool = is_in_pool(line, in_pool);
        // A long chain has its receiver on the line before.
        let chained = line.trim_start().strip_prefix('.').filter(|_| before.trim_end().ends_with("self"));
        before = line;
        let calls = line.split("self.").skip(1).chain(chained).filter_map(called);
        calls.filter(move |_| in_pool).map(move |name| (number, name))
    })
}

/// Whether the lines from this one on are methods of `Pool`.
fn is_in_pool(line: &str, before: bool) -> bool {
    line.starts_with("impl Pool {") || before && !line.starts_with('}')
}

/// The function that is defined on this line, which begins with it.
fn defined(line: &str) -> Option<&str> {
    let rest = ["pub(crate) ", "pub(super) ", "pub "].iter().find_map(|word| line.strip_prefix(word));
    name(rest.unwrap_or(line).strip_prefix("fn ")?)
}

/// The method that is called, if the text begins with a call.
fn called(text: &str) -> Option<&str> {
    let name = name(text)?;
    text[name.len()..].starts_with(['(', ':']).then_some(name)
}

fn name(text: &str) -> Option<&str> {
    let end = text.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (Path::new(POOL).join(path), Source::new(text))).collect();
        let functions = Functions::of(&files);
        let problems = files.iter().flat_map(|(path, source)| functions.problems(path, source));
        problems.map(|problem| (problem.text, problem.line)).collect()
    }

    #[test]
    fn what_a_room_does_by_itself_is_found() {
        let act = ("relay/a.rs", "impl Pool {\n    pub(crate) fn refuse(&self) {}\n}\n");
        let own = "impl Pool {\n    fn f(&self) {\n        self.refuse();\n    }\n}\n";
        let problems = found(&[act, ("session/b.rs", own), ("relay/c.rs", own)]);
        assert_eq!(problems.len(), 1, "{problems:?}");
        let allowed = own.replace("refuse", "send_hidden");
        let act = ("relay/a.rs", "impl Pool {\n    pub(crate) fn send_hidden(&self) {}\n}\n");
        assert!(found(&[act, ("session/b.rs", &allowed)]).is_empty());
    }

    const SESSION: (&str, &str) =
        ("session/a.rs", "impl Pool {\n    pub(crate) fn learn(&self) {}\n}\n\npub(crate) fn quote() {}\n");

    #[test]
    fn calls_into_another_room_are_found() {
        let text = "use crate::pool::session::a::{Pins, quote};\nimpl Pool {\n    fn f(&self) {\n        self.learn();\n        \
                    self\n            .learn();\n    }\n}\n";
        let mut lines: Vec<usize> =
            found(&[SESSION, ("begin.rs", text)]).into_iter().map(|(_, line)| line).collect();
        lines.sort_unstable();
        assert_eq!(lines, [1, 4, 6]);
    }

    #[test]
    fn calls_in_the_same_room_and_of_others_are_none() {
        let own = "use crate::pool::session::a::quote;\nimpl Pool {\n    fn f(&self) {\n        self.learn();\n    }\n}\n";
        let other = "impl Touched {\n    fn f(&self) {\n        self.learn();\n    }\n}\n";
        assert!(
            found(&[SESSION, ("session/b.rs", own), ("relay/c.rs", own), ("listen/d.rs", other)]).is_empty()
        );
    }
}
