//! `pgweir cache verify`: has a running pooler compare what its query cache gives with what PostgreSQL says, for a while, and tells the result. It
//! sets `query_cache_verify` over the console, and puts it back.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use lexopt::prelude::*;
use pgweir_client::{Answer, Client};
use pgweir_doctor::printable;

use super::ctl::{Failure, Way, print, rows};
use super::interrupt::Interrupt;
use crate::command_line::OverlayOptions;

/// Exit code: a kept answer was wrong, or pgweir refused.
const WRONG: u8 = 1;
/// Exit code: the console could not be entered, or the arguments are wrong.
pub(crate) const UNUSABLE: u8 = 2;
/// Exit code: no kept answer was compared.
const NOTHING_COMPARED: u8 = 3;

/// The setting that this command changes.
const SETTING: &str = "query_cache_verify";
/// The time between two looks at a signal.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The time between two questions whether the pooler is still there.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The text of `cache -h`.
pub(crate) const CACHE_HELP: &str = "\
pgweir cache verify: compare what the query cache gives with PostgreSQL.

Usage:
  pgweir cache verify [OPTION]...

For a while, a server answers one of every hundred statements that the cache
could answer (follow=wal), and the running pooler compares the kept answer with
the server's (query_cache_verify). Clients get the server's answer.

Options:
      --every=N          compare one of N hits (100)
      --seconds=N        for how long (60)
  -c, --config=FILE      the configuration that the pooler runs with
                         (/etc/pgweir/pgweir.ini)
      --url=URL          postgres://USER:PASSWORD@HOST:PORT of the console;
                         PGPASSWORD can have the password
      --json             write JSON
      --overlay=DIR      read DIR/*.ini after the file
      --no-overlay       read the file alone
  -h, --help             show this help, then exit

Ctrl-C ends the comparison early; a second one, the wait for its result.

Exit code: 0 no kept answer was wrong; 1 one was, or pgweir refused; 2 the console
could not be entered, or the arguments are wrong; 3 nothing could be compared.
";

/// The work of one call of `pgweir cache`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CacheCommand {
    /// Compare for a while.
    Verify(Wanted),
    /// `-h`
    Help,
}

/// The comparison that is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    every: u32,
    time: Duration,
    config: Option<PathBuf>,
    url: Option<String>,
    is_json: bool,
    overlay: OverlayOptions,
}

/// The counters of a pool that the comparison changes.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Counts {
    hits: u64,
    verified: u64,
    wrong: u64,
}

/// The counters of all pools, by database and user.
type Pools = BTreeMap<(String, String), Counts>;

/// Understands the arguments after `cache`.
///
/// # Errors
/// An argument that is not known, or lacks its value.
pub(crate) fn parse(args: Vec<OsString>) -> Result<CacheCommand, String> {
    let text = |error: lexopt::Error| error.to_string();
    let mut parser = lexopt::Parser::from_args(args);
    let mut wanted = Wanted {
        every: 100,
        time: Duration::from_secs(60),
        config: None,
        url: None,
        is_json: false,
        overlay: OverlayOptions::default(),
    };
    let mut verb = None;
    while let Some(arg) = parser.next().map_err(text)? {
        match arg {
            Short('h') | Long("help") => return Ok(CacheCommand::Help),
            Short('c') | Long("config") => wanted.config = Some(parser.value().map_err(text)?.into()),
            Long("url") => wanted.url = Some(parser.value().map_err(text)?.string().map_err(text)?),
            Long("every") => wanted.every = parser.value().map_err(text)?.parse().map_err(text)?,
            Long("seconds") => {
                wanted.time = Duration::from_secs(parser.value().map_err(text)?.parse().map_err(text)?);
            }
            Long("json") => wanted.is_json = true,
            Long("overlay") => wanted.overlay.folders.push(parser.value().map_err(text)?.into()),
            Long("no-overlay") => wanted.overlay.is_off = true,
            Value(word) if verb.is_none() => verb = Some(word.string().map_err(text)?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    match verb.as_deref() {
        Some("verify") if wanted.every == 0 => Err("--every must be at least 1".to_owned()),
        Some("verify") if wanted.config.is_some() && wanted.url.is_some() => {
            Err("--config and --url both say where the console is: give one".to_owned())
        }
        Some("verify") => Ok(CacheCommand::Verify(wanted)),
        _ => Err("cache needs the word verify; see pgweir cache -h".to_owned()),
    }
}

/// Carries out the command.
pub(crate) fn cache(command: &CacheCommand) -> ExitCode {
    let wanted = match command {
        CacheCommand::Help => return crate::show(CACHE_HELP),
        CacheCommand::Verify(wanted) => wanted,
    };
    let (code, message) = match verify(wanted) {
        Ok(pools) => {
            let answer = answer(&pools);
            crate::show(&if wanted.is_json { print::json(&answer) } else { print::text(&answer) });
            match sum(&pools) {
                Counts { wrong: 1.., .. } => {
                    (WRONG, "a kept answer was wrong: see the log of pgweir".to_owned())
                }
                Counts { verified: 0, hits: 0, .. } => {
                    (NOTHING_COMPARED, "the cache could answer nothing meanwhile".to_owned())
                }
                Counts { verified: 0, .. } => (
                    NOTHING_COMPARED,
                    "no hit was compared: try a smaller --every, or a longer time".to_owned(),
                ),
                _ if wanted.is_json => return ExitCode::SUCCESS,
                _ => return crate::show("no kept answer was wrong\n"),
            }
        }
        Err(Failure::Refused(error)) => (WRONG, error.message),
        Err(Failure::Lost(message)) => (UNUSABLE, message),
        Err(Failure::Late(message)) => (NOTHING_COMPARED, message),
    };
    eprintln!("pgweir cache: {}", printable(&message));
    ExitCode::from(code)
}

/// Has the pooler compare for a while, or until a signal comes. Returns the changes of its counters.
fn verify(wanted: &Wanted) -> Result<Pools, Failure> {
    let interrupt = Interrupt::catch();
    let way = Way { url: wanted.url.as_deref(), config: wanted.config.as_deref(), overlay: &wanted.overlay };
    let (mut client, _) = way.enter("pgweir cache").map_err(Failure::Lost)?;
    is_followed(&mut client)?;
    let settings = rows(&mut client, "SHOW CONFIG")?;
    let value = |key: &str| {
        let row = settings.iter().find(|row| row("key") == key);
        row.and_then(|row| row("value").parse::<u64>().ok())
    };
    let Some(before) = value(SETTING) else {
        return Err(Failure::Lost("this pgweir knows no query_cache_verify".to_owned()));
    };
    let began = counts(&mut client)?;
    client.answer(&format!("SET {SETTING} = {}", wanted.every))?;
    wait(wanted.time, &mut client, &interrupt)?;
    client.answer(&format!("SET {SETTING} = {before}"))?;
    let compared = since(&began, &counts(&mut client)?);
    if sum(&compared).verified == 0 {
        return Ok(compared);
    }
    // An answer counts as wrong only after the definitions were read three times more.
    let looks = Duration::from_millis(value("query_cache_ddl_ms").unwrap_or(1000)) * 4;
    wait(looks + Duration::from_secs(1), &mut client, &interrupt)?;
    Ok(since(&began, &counts(&mut client)?))
}

/// Checks that the changes of a database are followed.
fn is_followed(client: &mut Client) -> Result<(), Failure> {
    let pools = rows(client, "SHOW CACHE")?;
    if pools.iter().any(|row| row("follow_state") == "following") {
        return Ok(());
    }
    let why = pools.iter().find(|row| !row("follow_state").is_empty()).map_or_else(
        || "no rule with follow=wal is about a database that a client has connected to".to_owned(),
        |row| format!("{}: {} ({})", row("database"), row("follow_state"), row("follow_reason")),
    );
    Err(Failure::Late(format!("no database is followed: {why}")))
}

/// Waits for this time, or until a signal comes.
///
/// # Errors
/// The pooler has ended, or another process has taken over from it: nothing is compared any more.
fn wait(time: Duration, client: &mut Client, interrupt: &Interrupt) -> Result<(), Failure> {
    let (began, mut asked) = (Instant::now(), Instant::now());
    while began.elapsed() < time && !interrupt.take() {
        thread::sleep(LOOK_EVERY.min(time));
        if asked.elapsed() >= ASK_EVERY {
            client.answer("SHOW VERSION")?;
            asked = Instant::now();
        }
    }
    Ok(())
}

fn counts(client: &mut Client) -> Result<Pools, Failure> {
    let mut pools = Pools::new();
    for row in rows(client, "SHOW CACHE")? {
        let number = |column: &str| row(column).parse::<u64>().unwrap_or(0);
        let counts = Counts { hits: number("hits"), verified: number("verified"), wrong: number("wrong") };
        pools.insert((row("database"), row("user")), counts);
    }
    Ok(pools)
}

/// Returns the changes of the counters, without the pools that had none.
fn since(began: &Pools, now: &Pools) -> Pools {
    let change = |(pool, now): (&(String, String), &Counts)| {
        let before = began.get(pool).copied().unwrap_or_default();
        let counts = Counts {
            hits: now.hits.saturating_sub(before.hits),
            verified: now.verified.saturating_sub(before.verified),
            wrong: now.wrong.saturating_sub(before.wrong),
        };
        (counts != Counts::default()).then(|| (pool.clone(), counts))
    };
    now.iter().filter_map(change).collect()
}

fn sum(pools: &Pools) -> Counts {
    pools.values().fold(Counts::default(), |sum, pool| Counts {
        hits: sum.hits + pool.hits,
        verified: sum.verified + pool.verified,
        wrong: sum.wrong + pool.wrong,
    })
}

/// Returns the counters as the console would tell them.
fn answer(pools: &Pools) -> Answer {
    const TEXT: u32 = 25;
    const NUMERIC: u32 = 1700;
    let columns =
        [("database", TEXT), ("user", TEXT), ("hits", NUMERIC), ("verified", NUMERIC), ("wrong", NUMERIC)];
    let row = |((database, user), counts): (&(String, String), &Counts)| {
        let numbers = [counts.hits, counts.verified, counts.wrong].map(|number| number.to_string());
        [database.clone(), user.clone()].into_iter().chain(numbers).map(Some).collect()
    };
    Answer {
        columns: columns.map(|(name, oid)| (name.to_owned(), oid)).into(),
        rows: pools.iter().map(row).collect(),
        ..Answer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(line: &str) -> Result<Wanted, String> {
        match parse(line.split_whitespace().map(OsString::from).collect())? {
            CacheCommand::Verify(wanted) => Ok(wanted),
            CacheCommand::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn the_words_are_understood() {
        let asked = wanted("verify --every 10 --seconds=5 -c a.ini --json").expect("good");
        assert_eq!((asked.every, asked.time, asked.is_json), (10, Duration::from_secs(5), true));
        assert_eq!(asked.config, Some("a.ini".into()));
        for line in
            ["", "verify --every 0", "check", "verify verify", "verify -c a --url b", "verify --every x"]
        {
            assert!(wanted(line).is_err(), "{line}");
        }
        assert_eq!(wanted("-h"), Err("help".to_owned()));
    }

    #[test]
    fn only_what_has_changed_is_told() {
        let counts = |hits, verified, wrong| Counts { hits, verified, wrong };
        let name = |user: &str| ("shop".to_owned(), user.to_owned());
        let began = Pools::from([(name("a"), counts(5, 1, 1)), (name("b"), counts(5, 0, 0))]);
        let now = Pools::from([
            (name("a"), counts(205, 3, 1)),
            (name("b"), counts(5, 0, 0)),
            (name("c"), counts(7, 0, 0)),
        ]);
        let told = since(&began, &now);
        assert_eq!(told, Pools::from([(name("a"), counts(200, 2, 0)), (name("c"), counts(7, 0, 0))]));
        assert_eq!(
            print::text(&answer(&told)),
            "database  user  hits  verified  wrong\n\
             shop      a     200   2         0\n\
             shop      c     7     0         0\n"
        );
        assert!(print::json(&answer(&told)).contains("\"verified\": 2"));
    }
}
