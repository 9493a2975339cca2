//! The command line: PgBouncer's options, and our own subcommands. Parsing only; nothing here acts.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::prelude::*;
use pgweir_control::Overlay;
use pgweir_import::Kind;
use pgweir_settings::PoolMode;

use crate::operate::adopt::{self, AdoptCommand};
use crate::operate::cache::{self, CacheCommand};
use crate::operate::ctl::{self, CtlCommand};
use crate::operate::node::{self, NodeCommand};
use crate::operate::pair::{self, PairCommand};
use crate::operate::top::{self, TopCommand};

/// What the user asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Pool connections as the configuration says.
    Run(RunOptions),
    /// Report everything that is wrong with a configuration.
    Check(CheckOptions),
    /// Report what is wrong with a running pooler, or near a limit.
    Doctor(DoctorOptions),
    /// Convert the configuration of another pooler.
    Import(ImportOptions),
    /// Send a command to a running pooler.
    Ctl(CtlCommand),
    /// Compare the kept answers of a running pooler.
    Cache(CacheCommand),
    /// A live view of a running pooler.
    Top(TopCommand),
    /// One address for two poolers.
    Pair(PairCommand),
    /// Add, rebuild or remove a node of a cluster.
    Node(NodeCommand),
    /// Find the PgBouncer that pgweir replaces.
    Adopt(AdoptCommand),
    /// Pool connections as a mounted file or the environment says.
    Entrypoint(EntrypointOptions),
    /// A throw-away cluster, a load, a table.
    Demo(Vec<OsString>),
    /// Load and comparison tools.
    Bench(Vec<OsString>),
    /// `-V`
    Version(VersionOptions),
    /// `-h`
    Help,
    /// `import -h`
    ImportHelp,
    /// `check -h`
    CheckHelp,
    /// `doctor -h`
    DoctorHelp,
    /// `entrypoint -h`
    EntrypointHelp,
}

/// What to check, and how.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckOptions {
    /// The configuration file.
    pub(crate) config: PathBuf,
    /// `--connect`: log in to PostgreSQL as the pools would.
    pub(crate) connect: bool,
    /// `--strict`: warnings count.
    pub(crate) strict: bool,
    /// `--json`: a report for machines.
    pub(crate) json: bool,
    /// `--user`: the user for databases that force none.
    pub(crate) user: Option<String>,
    /// Sources that are read after the file.
    pub(crate) overlay: OverlayOptions,
}

/// What the doctor looks at.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DoctorOptions {
    /// The URL of a console.
    pub(crate) console: Option<String>,
    /// The configuration file.
    pub(crate) config: Option<PathBuf>,
    /// `--json`: a report for machines.
    pub(crate) json: bool,
    /// `--user`: the user for databases that force none.
    pub(crate) user: Option<String>,
    /// Sources that are read after the file.
    pub(crate) overlay: OverlayOptions,
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
    /// The number of `-v`.
    pub(crate) verbosity: u8,
    /// Sources that are read after the file.
    pub(crate) overlay: OverlayOptions,
}

/// The sources that `-V` reads to say which version it is compatible with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionOptions {
    /// The configuration file, if one is named.
    pub(crate) config: Option<PathBuf>,
    /// Sources that are read after the file.
    pub(crate) overlay: OverlayOptions,
}

/// Sources that are read after the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverlayOptions {
    /// `--overlay`: directories beside `/etc/pgweir/conf.d`.
    pub(crate) folders: Vec<PathBuf>,
    /// `--no-overlay`: the file alone.
    pub(crate) is_off: bool,
    /// The file was written from this process's environment, so the variables of images have an effect.
    pub(crate) is_file_from_environment: bool,
}

impl OverlayOptions {
    /// Whether anything is read after the file.
    pub(crate) fn is_on(&self) -> bool {
        !self.is_off
    }

    /// The directories and this process's variables.
    ///
    /// # Errors
    /// Variables that are not text.
    pub(crate) fn overlay(&self) -> Result<Overlay, Vec<String>> {
        if self.is_off {
            return Ok(Overlay::default());
        }
        let mut overlay = Overlay::of_process(&self.folders, std::env::vars_os())?;
        if self.is_file_from_environment {
            overlay.forget_remarks(pgweir_import::is_variable);
        }
        Ok(overlay)
    }
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
    /// `--pool-mode`: the mode of all pools, in place of what the configuration says.
    pub(crate) pool_mode: Option<String>,
}

/// How a container starts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct EntrypointOptions {
    /// The file that is used if it exists.
    pub(crate) config: Option<PathBuf>,
    /// `--output`: the directory that files are written to.
    pub(crate) output: Option<PathBuf>,
    /// The options that running has as well; its configuration file is found later.
    pub(crate) run: RunOptions,
}

/// The command line cannot be understood, or asks for what is not there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    /// An option that does not exist, lacks its value or has one too many; the text says which.
    #[error("{0}")]
    Option(String),
    /// No configuration file.
    #[error("need a config file")]
    NoConfig,
    /// `doctor` without anything.
    #[error("need a config file, or the URL of a console")]
    NoPatient,
    /// `import` without a file.
    #[error("need the configuration file of another pooler")]
    NoImport,
    /// `--from` with something else.
    #[error("unknown kind {0:?}: it must be one of {kinds}", kinds = kinds())]
    UnknownKind(String),
    /// `--pool-mode` with something else.
    #[error("unknown pool mode {0:?}: it must be one of {modes}", modes = PoolMode::WORDS.join(", "))]
    UnknownMode(String),
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
  pgweir check [OPTION]... FILE     report all faults and warnings of a config file
  pgweir doctor [OPTION]... TARGET  report what is wrong or near a limit, and the remedy
  pgweir import [OPTION]... FILE    convert the configuration of another pooler
  pgweir adopt [OPTION]...          find PgBouncer here, and the one line to change
  pgweir ctl [OPTION]... COMMAND    send a command to a running pooler, for scripts
  pgweir cache verify [OPTION]...   compare what the query cache gives with PostgreSQL
  pgweir top [OPTION]...            a live view of a running pooler in the terminal
  pgweir node VERB NODE OPTION...   add, rebuild or remove a node of a cluster
  pgweir pair keepalived OPTION...  one address for two poolers, by keepalived
  pgweir entrypoint [OPTION]...     start in a container, by a file or the environment
  pgweir demo [OPTION]...           show what pooling does, on a throw-away cluster
  pgweir bench [OPTION]...          load and comparison

Options:
  -d, --daemon           run in background (as a daemon)
  -q, --quiet            run quietly: no log on standard error
  -R, --reboot           do an online restart: take over from the running process
  -u, --user=USERNAME    assume identity of USERNAME
  -v, --verbose          increase verbosity
      --overlay=DIR      read DIR/*.ini after the file
      --no-overlay       read the file alone
  -V, --version          show version, then exit
  -h, --help             show this help, then exit

The options and the configuration file are PgBouncer's. After the file,
/etc/pgweir/conf.d/*.ini, the directories of --overlay, and the variables PGWEIR_INI
(ini text) and PGWEIR_NAME (settings by their names) are read. A configuration file that
is called like a subcommand can be given as ./check.
";

/// What `check -h` prints.
pub(crate) const CHECK_HELP: &str = "\
pgweir check: report all faults and warnings of a configuration, without starting.

Usage:
  pgweir check [OPTION]... CONFIG.INI

Options:
      --connect          log in to each database as a pool would;
                         run auth_query, and report in one table
      --user=NAME        the user for databases that force none;
                         otherwise the first user of auth_file whose password
                         is known. PGPASSWORD can have the user's password
      --strict           warnings count for the exit code
      --json             write the report as JSON
      --overlay=DIR      read DIR/*.ini after the file
      --no-overlay       read the file alone
  -h, --help             show this help, then exit

No password is shown. Exit code: 0 the configuration can be used; 1 there are
errors, a login failed, or with --strict there are warnings.
";

/// What `doctor -h` prints.
pub(crate) const DOCTOR_HELP: &str = "\
pgweir doctor: report what is wrong or near a limit, with its remedy.

Usage:
  pgweir doctor [OPTION]... CONFIG.INI
  pgweir doctor [OPTION]... postgres://USER:PASSWORD@HOST:PORT [CONFIG.INI]

It looks at the running pooler's console (pools, waiting clients, pins, clients
that do not read), the configuration file, limits of the operating system, and
PostgreSQL's limits. The console is entered over the unix socket, or as a user of
admin_users or stats_users whose password is in auth_file, or by the URL. If the
pooler does not run, the file is looked at alone.

Options:
      --user=NAME        the user for databases that force none;
                         otherwise the first user of auth_file whose password
                         is known. PGPASSWORD can have the user's password
      --json             write the report as JSON
      --overlay=DIR      read DIR/*.ini after the file
      --no-overlay       read the file alone
  -h, --help             show this help, then exit

Exit code: 0 no errors and no warnings; 1 there are some; 2 nothing could be
looked at.
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
      --force            replace files that exist;
                         write a result that pgweir check refuses
      --users=FILE       the file of users (pool_passwd, users.toml)
      --hba=FILE         the file of access rules (pool_hba.conf)
      --pool-mode=MODE   the pool_mode of all pools, whatever FILE says:
                         session, transaction or statement
  -h, --help             show this help, then exit

Standard error lists what has no counterpart, with the reason. Passwords are
written to userlist.txt (mode 0600) and never shown.

Exit code: 0 everything was carried over; 1 something has no counterpart or
differs; 2 nothing was written.
";

/// What `entrypoint -h` prints.
pub(crate) const ENTRYPOINT_HELP: &str = "\
pgweir entrypoint: pool connections in a container.

Usage:
  pgweir entrypoint [OPTION]... [CONFIG.INI]

If CONFIG.INI exists, it is used as it is; without the argument,
/etc/pgweir/pgweir.ini and /etc/pgbouncer/pgbouncer.ini are looked for.
Otherwise the environment says what to do:
  DATABASE_URL           postgres://USER:PASSWORD@HOST:PORT/DATABASE
  DB_HOST, DB_PORT, DB_USER, DB_PASSWORD, DB_NAME
                         the same as separate values
  POOL_MODE, ...         each setting by its name in upper case; with PGWEIR_
                         before it, a misspelled name is an error
  NAME_FILE              a file with the value of NAME, for secrets
The variables of Bitnami's image (POSTGRESQL_*, PGBOUNCER_*) work as well.

Options:
      --output=DIR       the directory that pgweir.ini and userlist.txt are
                         written to, with mode 0600 (/run/pgweir)
      --overlay=DIR      read DIR/*.ini after the file
      --no-overlay       read the file alone
  -v, --verbose          increase verbosity
  -h, --help             show this help, then exit
";

/// Understands `args`, which is without the program's name.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    match args.first().and_then(|first| first.to_str()) {
        Some("demo") => Ok(Command::Demo(args.split_off(1))),
        Some("bench") => Ok(Command::Bench(args.split_off(1))),
        Some("check") => parse_check(args.split_off(1)),
        Some("doctor") => parse_doctor(args.split_off(1)),
        Some("import") => parse_import(args.split_off(1)),
        Some("ctl") => ctl::parse(args.split_off(1)).map(Command::Ctl).map_err(UsageError::Option),
        Some("cache") => cache::parse(args.split_off(1)).map(Command::Cache).map_err(UsageError::Option),
        Some("top") => top::parse(args.split_off(1)).map(Command::Top).map_err(UsageError::Option),
        Some("pair") => pair::parse(args.split_off(1)).map(Command::Pair).map_err(UsageError::Option),
        Some("node") => node::parse(args.split_off(1)).map(Command::Node).map_err(UsageError::Option),
        Some("adopt") => adopt::parse(args.split_off(1)).map(Command::Adopt).map_err(UsageError::Option),
        Some("entrypoint") => parse_entrypoint(args.split_off(1)),
        _ => parse_run(args),
    }
}

fn parse_check(args: Vec<OsString>) -> Result<Command, UsageError> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut options = CheckOptions::default();
    let mut config = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Long("connect") => options.connect = true,
            Long("strict") => options.strict = true,
            Long("json") => options.json = true,
            Long("user") => options.user = Some(parser.value()?.string()?),
            Short('h') | Long("help") => return Ok(Command::CheckHelp),
            Long("overlay") => options.overlay.folders.push(parser.value()?.into()),
            Long("no-overlay") => options.overlay.is_off = true,
            Value(value) => take_config(&mut config, value)?,
            other => return Err(other.unexpected().into()),
        }
    }
    options.config = config.ok_or(UsageError::NoConfig)?;
    Ok(Command::Check(options))
}

fn parse_doctor(args: Vec<OsString>) -> Result<Command, UsageError> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut options = DoctorOptions::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("json") => options.json = true,
            Long("user") => options.user = Some(parser.value()?.string()?),
            Long("overlay") => options.overlay.folders.push(parser.value()?.into()),
            Long("no-overlay") => options.overlay.is_off = true,
            Short('h') | Long("help") => return Ok(Command::DoctorHelp),
            Value(value) => match value.to_str() {
                Some(url) if is_url(url) && options.console.is_none() => {
                    options.console = Some(url.to_owned());
                }
                // It may hold a password.
                Some(url) if is_url(url) => return Err(UsageError::SecondConfig("postgres://...".into())),
                _ => take_config(&mut options.config, value)?,
            },
            other => return Err(other.unexpected().into()),
        }
    }
    if options.console.is_none() && options.config.is_none() {
        return Err(UsageError::NoPatient);
    }
    Ok(Command::Doctor(options))
}

fn is_url(text: &str) -> bool {
    ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme))
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
            Long("pool-mode") => {
                let mode = parser.value()?.string()?;
                if !PoolMode::WORDS.contains(&mode.as_str()) {
                    return Err(UsageError::UnknownMode(mode));
                }
                options.pool_mode = Some(mode);
            }
            Short('h') | Long("help") => return Ok(Command::ImportHelp),
            Value(value) => take_config(&mut file, value)?,
            other => return Err(other.unexpected().into()),
        }
    }
    options.file = file.ok_or(UsageError::NoImport)?;
    Ok(Command::Import(options))
}

fn parse_entrypoint(args: Vec<OsString>) -> Result<Command, UsageError> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut options = EntrypointOptions::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("output") => options.output = Some(parser.value()?.into()),
            Short('v') | Long("verbose") => {
                options.run.verbosity = options.run.verbosity.saturating_add(1);
            }
            Long("overlay") => options.run.overlay.folders.push(parser.value()?.into()),
            Long("no-overlay") => options.run.overlay.is_off = true,
            Short('h') | Long("help") => return Ok(Command::EntrypointHelp),
            Value(value) => take_config(&mut options.config, value)?,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Entrypoint(options))
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
            Long("overlay") => options.overlay.folders.push(parser.value()?.into()),
            Long("no-overlay") => options.overlay.is_off = true,
            Short('V') | Long("version") => return Ok(version(parser, config, options.overlay)),
            Short('h') | Long("help") => return Ok(Command::Help),
            Value(value) => take_config(&mut config, value)?,
            other => return Err(other.unexpected().into()),
        }
    }
    options.config = config.ok_or(UsageError::NoConfig)?;
    Ok(Command::Run(options))
}

/// `-V`, whatever comes after it: a file and `--overlay` are used, anything else is not looked at.
fn version(mut parser: lexopt::Parser, mut config: Option<PathBuf>, mut overlay: OverlayOptions) -> Command {
    while let Ok(Some(arg)) = parser.next() {
        match arg {
            Long("overlay") => overlay.folders.extend(parser.value().map(PathBuf::from)),
            Long("no-overlay") => overlay.is_off = true,
            Value(file) => config = config.or(Some(file.into())),
            _ => {}
        }
    }
    Command::Version(VersionOptions { config, overlay })
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

    fn check(config: &str) -> CheckOptions {
        CheckOptions { config: config.into(), ..CheckOptions::default() }
    }

    fn version_of(config: Option<&str>) -> Command {
        Command::Version(VersionOptions { config: config.map(PathBuf::from), ..VersionOptions::default() })
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
            ("a.ini -V", version_of(Some("a.ini"))),
            ("-V a.ini -x", version_of(Some("a.ini"))),
            ("--version", version_of(None)),
            ("-h -x", Command::Help),
            ("--help", Command::Help),
            ("check a.ini", Command::Check(check("a.ini"))),
            ("entrypoint", Command::Entrypoint(EntrypointOptions::default())),
            ("entrypoint --help", Command::EntrypointHelp),
            (
                "entrypoint -v --output=/d a.ini",
                Command::Entrypoint(EntrypointOptions {
                    config: Some("a.ini".into()),
                    output: Some("/d".into()),
                    run: RunOptions { verbosity: 1, ..RunOptions::default() },
                }),
            ),
            ("check -- -a.ini", Command::Check(check("-a.ini"))),
            (
                "check --connect --strict --json --user=u a.ini",
                Command::Check(CheckOptions {
                    connect: true,
                    strict: true,
                    json: true,
                    user: Some("u".to_owned()),
                    ..check("a.ini")
                }),
            ),
            ("check -h", Command::CheckHelp),
            (
                "doctor a.ini --json --user u",
                Command::Doctor(DoctorOptions {
                    config: Some("a.ini".into()),
                    json: true,
                    user: Some("u".to_owned()),
                    ..DoctorOptions::default()
                }),
            ),
            (
                "doctor postgres://u@h a.ini",
                Command::Doctor(DoctorOptions {
                    console: Some("postgres://u@h".to_owned()),
                    config: Some("a.ini".into()),
                    ..DoctorOptions::default()
                }),
            ),
            ("doctor --help", Command::DoctorHelp),
            ("demo --seconds 5", Command::Demo(words("--seconds 5").collect())),
            (
                "import a.toml",
                Command::Import(ImportOptions { file: "a.toml".into(), ..ImportOptions::default() }),
            ),
            (
                "import --from pgdog --users u.toml --hba=h --output out --force --pool-mode=session a.toml",
                Command::Import(ImportOptions {
                    file: "a.toml".into(),
                    kind: Some(Kind::PgDog),
                    output: Some("out".into()),
                    force: true,
                    users: Some("u.toml".to_owned()),
                    rules: Some("h".to_owned()),
                    pool_mode: Some("session".to_owned()),
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
            ("doctor --json", "need a config file, or the URL of a console"),
            (
                "doctor postgres://u:s@h postgres://v:s@h",
                "only one config file can be given, not also \"postgres://...\"",
            ),
            ("a.ini b.ini", "only one config file can be given, not also \"b.ini\""),
            ("import", "need the configuration file of another pooler"),
            (
                "import --pool-mode=fast a",
                "unknown pool mode \"fast\": it must be one of session, transaction, statement",
            ),
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
        let of_operators = [pair::PAIR_HELP, ctl::CTL_HELP, cache::CACHE_HELP, node::NODE_HELP];
        let helps =
            [HELP, IMPORT_HELP, CHECK_HELP, DOCTOR_HELP, ENTRYPOINT_HELP].into_iter().chain(of_operators);
        let import = helps.flat_map(|help| help.lines()).filter_map(|line| line.strip_prefix("      --"));
        for option in import {
            let name = option.split([' ', '=', '\n']).next().expect("a name");
            assert!(page.contains(&format!(".B --{name}")), "{name}");
        }
        for command in
            ["check", "doctor", "import", "ctl", "cache", "node", "pair", "entrypoint", "demo", "bench"]
        {
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
