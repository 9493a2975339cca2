//! The command line of the experiments.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use lexopt::prelude::*;

use super::catalog::{ALL, Experiment};
use crate::error::BenchError;
use crate::processes::tools::find_program;
use crate::servers::pooler::PoolerProgram;
use pgweir_client::Login;
use pgweir_client::parse_url;

/// What a load goes through.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Name in tables.
    pub(super) name: String,
    /// What it is.
    pub(super) kind: TargetKind,
}

#[derive(Clone, Debug)]
pub(super) enum TargetKind {
    /// PostgreSQL itself.
    Direct,
    /// A pooler that we start.
    Program(PoolerProgram),
    /// A pooler that runs already, for the same database.
    Running(Box<Login>),
}

/// What the user asked for.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) experiments: Vec<&'static Experiment>,
    /// A minute for each experiment.
    pub(super) quick: bool,
    pub(super) rounds: u32,
    /// In place of the articles' durations: all rounds of a step together, seconds.
    pub(super) seconds: Option<u32>,
    /// The user's own server.
    pub(super) postgres: Option<Login>,
    /// Initialise although there are pgbench tables.
    pub(super) force: bool,
    pub(super) targets: Vec<Target>,
    /// Settings of `[pgbouncer]` for pgweir, over those of the experiment.
    pub(super) config: Vec<(String, String)>,
    pub(super) output: Option<PathBuf>,
}

/// The text of `--help`.
pub(super) fn help() -> String {
    let mut text = String::from(
        "\
usage: pgweir bench EXPERIMENT [options]

experiments, as published in articles on why one needs a pooler:
",
    );
    for experiment in &ALL {
        let _ = writeln!(text, "  {:<11} {}", experiment.key, experiment.title);
    }
    text.push_str(
        "  all         all of them

Runs pgbench with the article's command line directly, through pgweir and through PgBouncer where that is
installed, in interleaved rounds, on a throw-away PostgreSQL with the article's settings. Watches the server
meanwhile. Ends in a table, an HTML page with charts and a JSON file. Ctrl-C reports what was measured.

options:
  --quick           a minute for each experiment, in place of the article's durations
  --rounds N        interleaved rounds that share the duration (default 3; 2 with --quick)
  --seconds N       duration of each command, all rounds together
  --peer NAME       compare with: pgbouncer, pgpool (where a server connection for each client is enough),
                    NAME=/path/to/program (takes a pgbouncer.ini), NAME=postgres://... (runs already, and pools
                    the database of --postgres); may be given several times
  --no-peer         do not look for PgBouncer
  --postgres URL    use this server (postgres://user:password@host:port/database), in the new schema
                    pgweir_bench, which is dropped at the end
  --force           initialise although that schema has pgbench's tables
  --config FILE     settings of [pgbouncer] in this file are used for pgweir, over those of the experiment
  --output DIR      where report.html and report.json go (default: a new folder, named by experiment and time)
  -h, --help        this text

exit codes: 0 done, 1 something failed, 2 wrong option, 3 a program is missing, 5 the disk is full,
            130 interrupted (the report holds what was measured until then)
",
    );
    text
}

impl Options {
    /// Reads what stands behind the experiment's name; `None` if only help was asked for.
    pub(super) fn parse(experiment: &str, args: Vec<OsString>) -> Result<Option<Self>, BenchError> {
        let experiments =
            ALL.iter().filter(|known| experiment == "all" || known.key == experiment).collect::<Vec<_>>();
        let (mut quick, mut rounds, mut seconds, mut force) = (false, None, None, false);
        let (mut postgres, mut peers, mut no_peer) = (None, Vec::new(), false);
        let (mut config, mut output) = (Vec::new(), None);
        let mut parser = lexopt::Parser::from_args(args);
        while let Some(arg) = parser.next()? {
            match arg {
                Short('h') | Long("help") => return Ok(None),
                Long("quick") => quick = true,
                Long("rounds") => rounds = Some(number(parser.value()?.parse()?, "--rounds", 100)?),
                Long("seconds") => seconds = Some(number(parser.value()?.parse()?, "--seconds", 86_400)?),
                Long("force") => force = true,
                Long("no-peer") => no_peer = true,
                Long("postgres") => postgres = Some(parse_url(&parser.value()?.string()?, "direct")?),
                Long("peer") => peers.push(peer(&parser.value()?.string()?)?),
                Long("config") => config = settings_of(Path::new(&parser.value()?))?,
                Long("output") => output = Some(parser.value()?.into()),
                _ => return Err(arg.unexpected().into()),
            }
        }
        if peers.is_empty() && !no_peer {
            peers.extend(find_program("pgbouncer").map(|path| program("pgbouncer", path)));
        }
        if postgres.is_none() && peers.iter().any(|peer| matches!(peer.kind, TargetKind::Running(_))) {
            return Err(BenchError::Usage(
                "--peer with a URL needs --postgres: the peer must serve the same database".to_owned(),
            ));
        }
        let mut targets = vec![Target { name: "direct".to_owned(), kind: TargetKind::Direct }];
        targets.push(Target { name: "pgweir".to_owned(), kind: TargetKind::Program(PoolerProgram::own()?) });
        targets.extend(peers);
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        if (1..names.len()).any(|index| names[..index].contains(&names[index])) {
            return Err(BenchError::Usage("two targets have the same name".to_owned()));
        }
        let rounds = rounds.unwrap_or(if quick { 2 } else { 3 });
        Ok(Some(Self { experiments, quick, rounds, seconds, postgres, force, targets, config, output }))
    }

    /// How long one run of a step with a duration takes, seconds.
    pub(super) fn run_seconds(&self, experiment: &Experiment, article_seconds: Option<u32>) -> u32 {
        const QUICK_SECONDS: u32 = 60;
        let whole = match (self.seconds, self.quick) {
            (Some(seconds), _) => seconds,
            (None, true) => {
                let steps =
                    experiment.steps.iter().filter(|step| !step.refused_directly || step.seconds == Some(60));
                let runs = u32::try_from(steps.count() * self.targets.len()).unwrap_or(1);
                QUICK_SECONDS / runs.max(1)
            }
            (None, false) => article_seconds.unwrap_or(60),
        };
        (whole / self.rounds.max(1)).max(3)
    }
}

fn number(value: u32, option: &str, most: u32) -> Result<u32, BenchError> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    Err(BenchError::Usage(format!("{option} takes 1 to {most}")))
}

fn program(name: &str, path: PathBuf) -> Target {
    Target { name: name.to_owned(), kind: TargetKind::Program(PoolerProgram { name: name.to_owned(), path }) }
}

pub(super) fn peer(text: &str) -> Result<Target, BenchError> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        return Ok(Target {
            name: "peer".to_owned(),
            kind: TargetKind::Running(Box::new(parse_url(text, "peer")?)),
        });
    }
    let Some((name, place)) = text.split_once('=') else {
        let path = find_program(text).ok_or_else(|| {
            BenchError::Missing(format!(
                "{text} is not installed; --peer also takes NAME=/path or NAME=postgres://..."
            ))
        })?;
        return Ok(program(text, path));
    };
    let plain = name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
    if name.is_empty() || !plain {
        return Err(BenchError::Usage("--peer: a name has letters, digits, - _ .".to_owned()));
    }
    if place.starts_with("postgres") && place.contains("://") {
        return Ok(Target {
            name: name.to_owned(),
            kind: TargetKind::Running(Box::new(parse_url(place, name)?)),
        });
    }
    Ok(program(name, place.into()))
}

/// The settings of `[pgbouncer]` in a file, but for those that a run must set itself.
fn settings_of(path: &Path) -> Result<Vec<(String, String)>, BenchError> {
    const OURS: [&str; 8] = [
        "listen_addr",
        "listen_port",
        "unix_socket_dir",
        "auth_type",
        "auth_file",
        "admin_users",
        "logfile",
        "pidfile",
    ];
    let text = std::fs::read_to_string(path).map_err(|error| {
        BenchError::Usage(format!("--config: {} cannot be read: {error}", path.display()))
    })?;
    let mut settings = Vec::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[pgbouncer]";
        } else if inside && !line.is_empty() && !line.starts_with([';', '#', '%']) {
            let (name, value) = line.split_once('=').ok_or_else(|| {
                BenchError::Usage(format!("--config: {}: \"{line}\" is no setting", path.display()))
            })?;
            if !OURS.contains(&name.trim()) {
                settings.push((name.trim().to_owned(), value.trim().to_owned()));
            }
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Options>, BenchError> {
        Options::parse("all", words.iter().map(OsString::from).collect())
    }

    #[test]
    fn options_are_read() {
        let options = parse(&["--quick", "--peer", "old=/opt/pgbouncer"]).expect("good").expect("not help");
        assert_eq!((options.experiments.len(), options.rounds), (5, 2));
        let names: Vec<&str> = options.targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["direct", "pgweir", "old"]);
        assert_eq!(options.run_seconds(&ALL[0], Some(300)), 10);
        let options = parse(&["--no-peer"]).expect("good").expect("not help");
        assert_eq!((options.targets.len(), options.run_seconds(&ALL[0], Some(300))), (2, 100));
    }

    #[test]
    fn wrong_options_are_refused() {
        for (words, code) in [
            (&["--rounds", "0"][..], 2),
            (&["--peer", "no-such-pooler"], 3),
            (&["--peer", "x=postgres://u@h/d"], 2),
            (&["--peer", "pgweir=/x"], 2),
            (&["--postgres", "host/db"], 2),
            (&["--config", "/nonexistent"], 2),
            (&["--what"], 2),
        ] {
            assert_eq!(parse(words).expect_err("not good").exit_code(), code, "{words:?}");
        }
    }

    #[test]
    fn a_configuration_gives_its_settings_but_not_the_runs_own() {
        let path = std::env::temp_dir().join(format!("pgweir-bench-{}.ini", std::process::id()));
        std::fs::write(
            &path,
            "[databases]\na = b=c\n[pgbouncer]\n; x\nlisten_port = 1\ndefault_pool_size = 7\n",
        )
        .expect("written");
        let settings = settings_of(&path);
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(settings.expect("good"), [("default_pool_size".to_owned(), "7".to_owned())]);
    }
}
