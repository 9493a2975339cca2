//! One hot path, so many times, for a tool that counts instructions: `instructions PATH TIMES`.
//!
//! `cargo xtask instructions` runs it under valgrind twice with different numbers; the difference divided by the
//! difference of the numbers is what one time costs, without start and end. Nothing here may look at a clock.

mod parts;
mod world;

use std::hint::black_box;
use std::process::ExitCode;

/// A path: its name, what one time is, and how to go it.
struct Path {
    name: &'static str,
    what: &'static str,
    run: fn(u32),
}

const PATHS: [Path; 28] = [
    Path {
        name: "framing",
        what: "cutting one small message off a stream by its header",
        run: |times| _ = black_box(parts::framing(times)),
    },
    Path {
        name: "lex-short",
        what: "traits of pgbench's SELECT, 57 bytes",
        run: |times| _ = black_box(parts::lex_short(times)),
    },
    Path {
        name: "lex-long",
        what: "traits of a report's query, about 2 kB",
        run: |times| _ = black_box(parts::lex_long(times)),
    },
    Path {
        name: "simple",
        what: "one relayed statement, simple protocol, alone in its turn",
        run: |times| world::statements(times, 1, world::Kind::Simple),
    },
    Path {
        name: "simple-new",
        what: "one relayed statement, simple protocol, with another literal each time",
        run: |times| world::statements(times, 1, world::Kind::Fresh),
    },
    Path {
        name: "simple-50",
        what: "one relayed statement, simple protocol, 50 clients in a turn on 4 servers",
        run: |times| world::statements(times, 50, world::Kind::Simple),
    },
    Path {
        name: "extended",
        what: "one relayed statement, unnamed Parse to Sync, alone in its turn",
        run: |times| world::statements(times, 1, world::Kind::Extended),
    },
    Path {
        name: "prepared",
        what: "one relayed statement, Bind to Sync of a named one, alone in its turn",
        run: |times| world::statements(times, 1, world::Kind::Prepared),
    },
    Path {
        name: "prepared-50",
        what: "one relayed statement, Bind to Sync of a named one, 50 clients in a turn on 4 servers",
        run: |times| world::statements(times, 50, world::Kind::Prepared),
    },
    Path {
        name: "transaction",
        what: "BEGIN, one statement, COMMIT, each in its turn",
        run: |times| world::statements(times, 1, world::Kind::Transaction),
    },
    Path {
        name: "simple-blind",
        what: "as `simple`, without statistics of statements",
        run: |times| world::watched(times, 1, world::Kind::Simple, world::Eyes::Shut),
    },
    Path {
        name: "simple-observed",
        what: "as `simple`, with a slow log as well",
        run: |times| world::watched(times, 1, world::Kind::Simple, world::Eyes::Wide),
    },
    Path {
        name: "prepared-50-blind",
        what: "as `prepared-50`, without statistics of statements",
        run: |times| world::watched(times, 50, world::Kind::Prepared, world::Eyes::Shut),
    },
    Path {
        name: "prepared-50-observed",
        what: "as `prepared-50`, with a slow log as well",
        run: |times| world::watched(times, 50, world::Kind::Prepared, world::Eyes::Wide),
    },
    Path {
        name: "simple-forgetful",
        what: "as `simple`, with session_state = pgbouncer: what sessions cost those that have none",
        run: |times| world::watched(times, 1, world::Kind::Simple, world::Eyes::Forgetful),
    },
    Path {
        name: "extended-forgetful",
        what: "as `extended`, with session_state = pgbouncer",
        run: |times| world::watched(times, 1, world::Kind::Extended, world::Eyes::Forgetful),
    },
    Path {
        name: "prepared-50-forgetful",
        what: "as `prepared-50`, with session_state = pgbouncer",
        run: |times| world::watched(times, 50, world::Kind::Prepared, world::Eyes::Forgetful),
    },
    Path {
        name: "transaction-forgetful",
        what: "as `transaction`, with session_state = pgbouncer",
        run: |times| world::watched(times, 1, world::Kind::Transaction, world::Eyes::Forgetful),
    },
    Path {
        name: "simple-clustered",
        what: "as `simple`, in a cluster with a standby: what reads that are routed cost",
        run: |times| world::watched(times, 1, world::Kind::Simple, world::Eyes::Clustered),
    },
    Path {
        name: "prepared-clustered",
        what: "as `prepared`, in a cluster with a standby",
        run: |times| world::watched(times, 1, world::Kind::Prepared, world::Eyes::Clustered),
    },
    Path {
        name: "prepared-50-clustered",
        what: "as `prepared-50`, in a cluster with a standby",
        run: |times| world::watched(times, 50, world::Kind::Prepared, world::Eyes::Clustered),
    },
    Path {
        name: "transaction-clustered",
        what: "as `transaction`, in a cluster with a standby",
        run: |times| world::watched(times, 1, world::Kind::Transaction, world::Eyes::Clustered),
    },
    Path {
        name: "hit",
        what: "as `simple`, answered from the query cache",
        run: |times| world::watched(times, 1, world::Kind::Simple, world::Eyes::Cached),
    },
    Path {
        name: "hit-prepared",
        what: "as `prepared`, answered from the query cache",
        run: |times| world::watched(times, 1, world::Kind::Prepared, world::Eyes::Cached),
    },
    Path {
        name: "login-trust",
        what: "a client that connects, is let in, and leaves",
        run: |times| world::logins(times, world::Door::Trust),
    },
    Path {
        name: "login-md5",
        what: "the same with an md5 password",
        run: |times| world::logins(times, world::Door::Md5),
    },
    Path {
        name: "login-scram",
        what: "the same with SCRAM-SHA-256 and a stored secret",
        run: |times| world::logins(times, world::Door::Scram),
    },
    Path {
        name: "rows-8k",
        what: "a result of 64 rows of 128 bytes, arrived in one piece",
        run: |times| world::statements(times, 1, world::Kind::Rows),
    },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let found = match words.as_slice() {
        [list] if list == "list" => {
            for path in &PATHS {
                println!("{} {}", path.name, path.what);
            }
            return ExitCode::SUCCESS;
        }
        [name, times] => PATHS.iter().find(|path| path.name == name).zip(times.parse().ok()),
        _ => None,
    };
    let Some((path, times)) = found else {
        eprintln!("usage: instructions list | instructions PATH TIMES");
        return ExitCode::from(2);
    };
    (path.run)(times);
    ExitCode::SUCCESS
}
