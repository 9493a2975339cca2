//! The command line of `pgweir bench peers`.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::prelude::*;

use crate::error::BenchError;
use crate::peers::workload;
use crate::processes::tools::find_program;
use crate::servers::pooler::PoolerProgram;

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// How often each target runs each load.
    pub(super) rounds: u32,
    /// How long one run takes, seconds.
    pub(super) seconds: u32,
    /// pgbench's scale.
    pub(super) scale: u32,
    /// Round trip that is added between the server and whatever connects to it, microseconds; 0 is none.
    pub(super) round_trip_us: u32,
    /// Clients whose memory is weighed.
    pub(super) idle_clients: u32,
    /// Workloads to run, by the beginning of their key; empty is all.
    pub(super) only: Vec<String>,
    /// Further poolers, or replacements for `pgweir` and `pgbouncer`.
    pub(super) poolers: Vec<PoolerProgram>,
    /// Whether PgBouncer may be installed if it is missing.
    pub(super) install: bool,
    /// Where files are written.
    pub(super) output: Option<PathBuf>,
}

/// The text of `--help`.
pub(super) fn help() -> String {
    let mut text = String::from(
        "\
usage: pgweir bench peers [options]

The same loads through pgweir, PgBouncer (where installed) and directly, on a throw-away PostgreSQL, in
interleaved rounds; medians, and ratios to PgBouncer and to direct. CPU time is the kernel's own count of
all threads. Everything is removed at the end; Ctrl-C reports what was measured until then.

options:
  --rounds N          rounds (default 3)
  --seconds N         length of one run (default 8)
  --only A,B          only these loads (the beginning of a name is enough)
  --scale N           pgbench's scale (default 10)
  --idle-clients N    clients of the load `idle` (default 5000)
  --round-trip-us N   puts a network of this round trip before PostgreSQL (a relay; default none)
  --pooler NAME=PATH  another pooler that takes a pgbouncer.ini; NAME pgweir or pgbouncer replaces that one
  --pooler pgpool     Pgpool-II: session pooling, with a process and a server connection for each client
  --install           install PgBouncer with apt-get if it is missing (root only)
  --output DIR        write report.txt, report.json and report.svg there
  -h, --help          this text

loads:
",
    );
    for (key, title) in workload::names() {
        text.push_str(&format!("  {key:<12} {title}\n"));
    }
    text
}

impl Options {
    /// Reads the command line; `None` if only help was asked for.
    pub(super) fn parse(args: Vec<OsString>) -> Result<Option<Self>, BenchError> {
        let mut options = Self::default();
        let mut parser = lexopt::Parser::from_args(args);
        while let Some(arg) = parser.next()? {
            match arg {
                Short('h') | Long("help") => return Ok(None),
                Long("rounds") => options.rounds = number(parser.value()?.parse()?, 1, 1000, "--rounds")?,
                Long("seconds") => options.seconds = number(parser.value()?.parse()?, 1, 3600, "--seconds")?,
                Long("scale") => options.scale = number(parser.value()?.parse()?, 1, 1000, "--scale")?,
                Long("idle-clients") => {
                    options.idle_clients = number(parser.value()?.parse()?, 1, 60_000, "--idle-clients")?;
                }
                Long("round-trip-us") => {
                    options.round_trip_us =
                        number(parser.value()?.parse()?, 0, 1_000_000, "--round-trip-us")?;
                }
                Long("only") => options.only.extend(only(&parser.value()?.string()?)?),
                Long("pooler") => options.poolers.push(pooler(&parser.value()?.string()?)?),
                Long("install") => options.install = true,
                Long("output") => options.output = Some(parser.value()?.into()),
                _ => return Err(arg.unexpected().into()),
            }
        }
        Ok(Some(options))
    }

    /// Whether the load of this name is to run.
    pub(super) fn wants(&self, key: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|prefix| key.starts_with(prefix.as_str()))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 3,
            seconds: 8,
            scale: 10,
            round_trip_us: 0,
            idle_clients: 5000,
            only: Vec::new(),
            poolers: Vec::new(),
            install: false,
            output: None,
        }
    }
}

fn number(value: u32, least: u32, most: u32, option: &str) -> Result<u32, BenchError> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(BenchError::Usage(format!("{option} takes {least} to {most}")))
}

fn only(list: &str) -> Result<Vec<String>, BenchError> {
    let known = |prefix: &str| workload::names().any(|(key, _)| key.starts_with(prefix));
    let prefixes: Vec<String> = list.split(',').map(|word| word.trim().to_owned()).collect();
    match prefixes.iter().find(|prefix| prefix.is_empty() || !known(prefix)) {
        Some(unknown) => Err(BenchError::Usage(format!("--only: no load is called \"{unknown}\""))),
        None => Ok(prefixes),
    }
}

fn pooler(text: &str) -> Result<PoolerProgram, BenchError> {
    if text == "pgpool" {
        let path = find_program(text).ok_or_else(|| {
            BenchError::Missing("pgpool is not installed (Debian: apt install pgpool2)".to_owned())
        })?;
        return Ok(PoolerProgram { name: text.to_owned(), path });
    }
    let wrong =
        || BenchError::Usage("--pooler takes NAME=PATH, with a name of letters, digits, - _ .".to_owned());
    let (name, path) = text.split_once('=').ok_or_else(wrong)?;
    let plain = name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
    if name.is_empty() || path.is_empty() || name == "direct" || !plain {
        return Err(wrong());
    }
    Ok(PoolerProgram { name: name.to_owned(), path: path.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Options>, BenchError> {
        Options::parse(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn options_are_read() {
        let words =
            ["--rounds", "5", "--only", "select,idle", "--pooler", "old=/opt/old/pgweir", "--output=out"];
        let options = parse(&words).expect("valid").expect("not help");
        assert_eq!((options.rounds, options.seconds), (5, 8));
        assert_eq!(
            options.poolers,
            [PoolerProgram { name: "old".to_owned(), path: "/opt/old/pgweir".into() }]
        );
        assert!(options.wants("select-20") && options.wants("idle") && !options.wants("copy"));
        assert!(Options::default().wants("copy"));
    }

    #[test]
    fn wrong_options_are_refused_with_code_2() {
        let wrong = [
            &["--rounds", "0"][..],
            &["--only", "nothing-like-that"],
            &["--only", "select,"],
            &["--pooler", "name"],
            &["--pooler", "direct=/x"],
            &["--pooler", "it's=/x"],
            &["--what"],
        ];
        for words in wrong {
            assert_eq!(parse(words).expect_err("not valid").exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn help_names_every_load() {
        let help = help();
        assert!(workload::names().all(|(key, title)| help.contains(key) && help.contains(title)));
    }
}
