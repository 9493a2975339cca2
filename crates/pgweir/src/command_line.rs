//! The command line: PgBouncer's options, and our own subcommands. Parsing only; nothing here acts.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::prelude::*;
use pgweir_import::Kind;

/// What the user asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Pool connections as the configuration says.
    Run(RunOptions),
    /// Report everything that is wrong with a configuration.
    Check {
        /// The configuration file.
        config: PathBuf,
    },
    /// Convert the configuration of another pooler.
    Import(ImportOptions),
    /// A throw-away cluster, a load, a table.
    Demo(Vec<OsString>),
    /// Load and comparison tools.
    Bench(Vec<OsString>),
    /// `-V`
    Version,
    /// `-h`
    Help,
    /// `import -h`
    ImportHelp,
}

/// How to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RunOptions {
    /// The configuration file.
    pub(crate) config: PathBuf,
    /// `-d`: go to the background.
    pub(crate) daemon: bool,
    /// `-q`: no log on standard error.
    pub(crate) quiet: bool,
    /// `-u`: become this user, whatever the configuration says.
    pub(crate) user: Option<String>,
    /// `-R`: take the place of the process that runs with this configuration.
    pub(crate) takeover: bool,
    /// How many `-v` there were.
    pub(crate) verbosity: u8,
}

/// What to import, and where to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ImportOptions {
    /// The other pooler's configuration file.
    pub(crate) file: PathBuf,
    /// `--from`: what it is; otherwise its contents say so.
    pub(crate) kind: Option<Kind>,
    /// `--output`: the directory that the files are written to; standard output if there is none.
    pub(crate) output: Option<PathBuf>,
    /// `--force`: files that exist are replaced, and a result that `check` refuses is written.
    pub(crate) force: bool,
    /// `--users`: the file of users, if it is not where the configuration says.
    pub(crate) users: Option<String>,
    /// `--hba`: the file of access rules, if it is not where the configuration says.
    pub(crate) rules: Option<String>,
}

/// The command line can not be understood, or asks for what is not there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    /// An option that does not exist, lacks its value or has one too many; the text says which.
    #[error("{0}")]
    Option(String),
    /// No configuration file.
    #[error("need a config file")]
    NoConfig,
    /// `import` without a file.
    #[error("need the configuration file of another pooler")]
    NoImport,
    /// `--from` with something else.
    #[error("unknown kind {0:?}: it must be one of {kinds}", kinds = kinds())]
    UnknownKind(String),
    /// More than one argument that is no option.
    #[error("only one config file can be given, not also {0:?}")]
    SecondConfig(OsString),
}

impl From<lexopt::Error> for UsageError {
    fn from(error: lexopt::Error) -> Self {
        UsageError::Option(error.to_string())
    }
}

/// What `-h` prints.
pub(crate) const HELP: &str = "\
pgweir: PostgreSQL connection pooler.

Usage:
  pgweir [OPTION]... CONFIG.INI     pool connections as the file says
  pgweir check CONFIG.INI           report all faults and warnings of the file
  pgweir import [OPTION]... FILE    convert the configuration of another pooler
  pgweir demo [OPTION]...           show what pooling does, on a throw-away cluster
  pgweir bench [OPTION]...          load and comparison

Options:
  -d, --daemon           run in background (as a daemon)
  -q, --quiet            run quietly: no log on standard error
  -R, --reboot           do an online restart: take over from the running process
  -u, --user=USERNAME    assume identity of USERNAME
  -v, --verbose          increase verbosity
  -V, --version          show version, then exit
  -h, --help             show this help, then exit

The options and the configuration file are PgBouncer's. A configuration file that
is called like a subcommand can be given as ./check.
";

/// What `import -h` prints.
pub(crate) const IMPORT_HELP: &str = "\
pgweir import: convert the configuration of another pooler.

Usage:
  pgweir import [OPTION]... FILE

FILE is pgpool.conf, odyssey.conf, pgcat.toml, pgdog.toml, a configuration of
pg_doorman (TOML or YAML), or the environment file of a PgBouncer image.

Options:
      --from=KIND        what FILE is, if its contents do not tell:
                         pgpool, odyssey, pgcat, pgdog, pg_doorman, env
      --output=DIR       write pgweir.ini, userlist.txt and hba.conf to DIR;
                         without it, the ini goes to standard output
      --force            replace files that exist, and write a result that
                         pgweir check refuses
      --users=FILE       the file of users (pool_passwd, users.toml)
      --hba=FILE         the file of access rules (pool_hba.conf)
  -h, --help             show this help, then exit

Standard error lists what has no counterpart, with the reason. Passwords are
written to userlist.txt (mode 0600) and never shown.

Exit code: 0 everything was carried over; 1 something has no counterpart or
differs; 2 nothing was written.
";

/// Understands `args`, which is without the program's name.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    match args.first().and_then(|first| first.to_str()) {
        Some("demo") => Ok(Command::Demo(args.split_off(1))),
        Some("bench") => Ok(Command::Bench(args.split_off(1))),
        Some("check") => parse_check(args.split_off(1)),
        Some("import") => parse_import(args.split_off(1)),
        _ => parse_run(args),
    }
}

fn parse_check(args: Vec<OsString>) -> Result<Command, UsageError> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut config = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help),
            Value(value) => take_config(&mut config, value)?,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Check { config: config.ok_or(UsageError::NoConfig)? })
}

fn parse_import(args: Vec<OsString>) -> Result<Command, UsageError> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut options = ImportOptions::default();
    let mut file = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Long("from") => {
                let name = parser.value()?.string()?;
                options.kind = Some(Kind::named(&name).ok_or(UsageError::UnknownKind(name))?);
            }
            Long("output") => options.output = Some(parser.value()?.into()),
            Long("force") => options.force = true,
            Long("users") => options.users = Some(parser.value()?.string()?),
            Long("hba") => options.rules = Some(parser.value()?.string()?),
            Short('h') | Long("help") => return Ok(Command::ImportHelp),
            Value(value) => take_config(&mut file, value)?,
            other => return Err(other.unexpected().into()),
        }
    }
    options.file = file.ok_or(UsageError::NoImport)?;
    Ok(Command::Import(options))
}

fn kinds() -> String {
    Kind::ALL.map(Kind::name).join(", ")
}

fn parse_run(args: Vec<OsString>) -> Result<Command, UsageError> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut options = RunOptions::default();
    let mut config = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Short('d') | Long("daemon") => options.daemon = true,
            Short('q') | Long("quiet") => options.quiet = true,
            Short('R') | Long("reboot") => options.takeover = true,
            Short('u') | Long("user") => options.user = Some(parser.value()?.string()?),
            Short('v') | Long("verbose") => options.verbosity = options.verbosity.saturating_add(1),
            Short('V') | Long("version") => return Ok(Command::Version),
            Short('h') | Long("help") => return Ok(Command::Help),
            Value(value) => take_config(&mut config, value)?,
            other => return Err(other.unexpected().into()),
        }
    }
    options.config = config.ok_or(UsageError::NoConfig)?;
    Ok(Command::Run(options))
}

fn take_config(config: &mut Option<PathBuf>, value: OsString) -> Result<(), UsageError> {
    if config.is_some() {
        return Err(UsageError::SecondConfig(value));
    }
    *config = Some(PathBuf::from(value));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = OsString> + '_ {
        line.split_whitespace().map(OsString::from)
    }

    fn run(config: &str) -> RunOptions {
        RunOptions { config: config.into(), ..RunOptions::default() }
    }

    #[test]
    fn commands() {
        let user = Some("postgres".to_owned());
        let table = [
            ("a.ini", Command::Run(run("a.ini"))),
            ("-d a.ini", Command::Run(RunOptions { daemon: true, ..run("a.ini") })),
            ("-R a.ini", Command::Run(RunOptions { takeover: true, ..run("a.ini") })),
            ("--reboot -d a.ini", Command::Run(RunOptions { takeover: true, daemon: true, ..run("a.ini") })),
            ("a.ini --daemon", Command::Run(RunOptions { daemon: true, ..run("a.ini") })),
            ("-q -v -v a.ini", Command::Run(RunOptions { quiet: true, verbosity: 2, ..run("a.ini") })),
            ("-qvvv a.ini", Command::Run(RunOptions { quiet: true, verbosity: 3, ..run("a.ini") })),
            (
                "--quiet --verbose a.ini",
                Command::Run(RunOptions { quiet: true, verbosity: 1, ..run("a.ini") }),
            ),
            ("-u postgres a.ini", Command::Run(RunOptions { user: user.clone(), ..run("a.ini") })),
            ("-upostgres a.ini", Command::Run(RunOptions { user: user.clone(), ..run("a.ini") })),
            ("--user=postgres a.ini", Command::Run(RunOptions { user: user.clone(), ..run("a.ini") })),
            ("--user postgres a.ini", Command::Run(RunOptions { user, ..run("a.ini") })),
            ("-- -d", Command::Run(run("-d"))),
            ("./demo", Command::Run(run("./demo"))),
            ("a.ini -V", Command::Version),
            ("--version", Command::Version),
            ("-h -x", Command::Help),
            ("--help", Command::Help),
            ("check a.ini", Command::Check { config: "a.ini".into() }),
            ("check -- -a.ini", Command::Check { config: "-a.ini".into() }),
            ("check -h", Command::Help),
            ("demo --seconds 5", Command::Demo(words("--seconds 5").collect())),
            (
                "import a.toml",
                Command::Import(ImportOptions { file: "a.toml".into(), ..ImportOptions::default() }),
            ),
            (
                "import --from pgdog --users u.toml --hba=h --output out --force a.toml",
                Command::Import(ImportOptions {
                    file: "a.toml".into(),
                    kind: Some(Kind::PgDog),
                    output: Some("out".into()),
                    force: true,
                    users: Some("u.toml".to_owned()),
                    rules: Some("h".to_owned()),
                }),
            ),
            ("import --help", Command::ImportHelp),
            ("bench -h", Command::Bench(words("-h").collect())),
        ];
        for (line, expected) in table {
            assert_eq!(parse(words(line)).as_ref(), Ok(&expected), "{line}");
        }
    }

    #[test]
    fn usage_errors() {
        let table = [
            ("", "need a config file"),
            ("-d", "need a config file"),
            ("check", "need a config file"),
            ("a.ini b.ini", "only one config file can be given, not also \"b.ini\""),
            ("import", "need the configuration file of another pooler"),
            (
                "import --from x a",
                "unknown kind \"x\": it must be one of pgpool, odyssey, pgcat, pgdog, pg_doorman, env",
            ),
            ("check a.ini b.ini", "only one config file can be given, not also \"b.ini\""),
            ("-x a.ini", "invalid option '-x'"),
            ("--fast a.ini", "invalid option '--fast'"),
            ("check -d a.ini", "invalid option '-d'"),
            ("-u", "missing argument for option '-u'"),
            ("--daemon=yes a.ini", "unexpected argument for option '--daemon': \"yes\""),
        ];
        for (line, expected) in table {
            assert_eq!(
                parse(words(line)).map_err(|error| error.to_string()),
                Err(expected.to_owned()),
                "{line}"
            );
        }
    }

    #[test]
    fn the_manual_page_has_what_help_says() {
        let page = include_str!("../../../docs/man/pgweir.1").replace('\\', "");
        let options = HELP.lines().filter(|line| line.starts_with("  -"));
        for line in options.clone() {
            let mut names = line.split_whitespace();
            let short = names.next().expect("a short option").trim_end_matches(',');
            let long = names.next().expect("a long option").split('=').next().expect("a name");
            assert!(page.contains(&format!(".BR {short} \", \" {long}")), "{short} {long}");
        }
        assert_eq!(options.count(), page.matches(".BR -").count());
        let import = IMPORT_HELP.lines().filter_map(|line| line.strip_prefix("      --"));
        for option in import {
            let name = option.split([' ', '=']).next().expect("a name");
            assert!(page.contains(&format!(".B --{name}")), "{name}");
        }
        for command in ["check", "import", "demo", "bench"] {
            assert!(
                HELP.contains(&format!("pgweir {command} "))
                    && page.contains(&format!(".TP\n.B {command}\n"))
            );
        }
    }

    #[test]
    fn help_names_every_option() {
        for option in ["--daemon", "--quiet", "--reboot", "--user=", "--verbose", "--version", "--help"] {
            assert!(HELP.contains(option), "{option}");
        }
    }
}
