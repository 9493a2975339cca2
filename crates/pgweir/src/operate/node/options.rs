//! The command line of `pgweir node`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::prelude::*;

use crate::command_line::OverlayOptions;

/// The text of `node -h`.
pub(crate) const NODE_HELP: &str = "\
pgweir node: make a standby a node of a cluster, make a node again, or remove it.

Usage:
  pgweir node add CLUSTER.NODE --data=DIR [OPTION]...
  pgweir node rebuild CLUSTER.NODE --data=DIR [OPTION]...
  pgweir node remove CLUSTER.NODE [OPTION]...

add and rebuild run on the node's machine, as the user that PostgreSQL runs as.
add copies another node to DIR with pg_basebackup, starts PostgreSQL, waits until
it streams, and attaches it. rebuild stops an old primary, makes it a standby
with pg_rewind or a new copy, and goes on as add does. remove detaches the node
and drops its replication slot.

Options:
  -c, --config=FILE      the configuration that the pooler runs with
                         (/etc/pgweir/pgweir.ini)
      --url=URL          postgres://USER:PASSWORD@HOST:PORT of the console;
                         PGPASSWORD can have the password
      --data=DIR         the data directory of PostgreSQL on this machine
      --from=NODE        the node that is copied; otherwise a standby that
                         streams, else the primary
      --user=NAME        the role that logs in to PostgreSQL, here and when the
                         standby streams (the user's own name)
      --slot=NAME        the replication slot on the primary (pgweir_NODE)
      --port=PORT        the port of PostgreSQL on this machine, if the pooler
                         does not know the node
      --set=NAME=VALUE   a setting of PostgreSQL on this machine
      --start=CMD        the shell command that starts PostgreSQL (pg_ctl)
      --stop=CMD         the shell command that stops it, for rebuild (pg_ctl)
      --bindir=DIR       the directory of pg_basebackup and the other programs of
                         PostgreSQL
      --config-file=FILE  postgresql.conf, if it is not in DIR
      --tablespace-mapping=OLD=NEW  the directory of a tablespace here
      --waldir=DIR       the directory of the WAL on this machine
      --checkpoint=MODE  how the copy begins: fast, or spread over time (spread)
      --copy             make a new copy, for rebuild; do not try pg_rewind
      --max-lag-bytes=N  the lag at which the standby is ready (16777216)
      --timeout=SECONDS  how long each wait lasts at most (600)
      --dry-run          print the commands, change nothing
      --overlay=DIR      read DIR/*.ini after the file
      --no-overlay       read the file alone
  -h, --help             show this help, then exit

Passwords for PostgreSQL come from the password file: PGPASSFILE, or ~/.pgpass.
PGSSLMODE, PGSSLROOTCERT, PGSSLCERT and PGSSLKEY say how TLS is used.

Exit code: 0 done; 1 a check refused, nothing was changed; 2 the arguments are
wrong, or the cluster cannot be looked at; 3 a step failed.
";

/// The work of one call of `pgweir node`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NodeCommand {
    /// Change a node.
    Work(Box<Wanted>),
    /// `-h`
    Help,
}

/// The command about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Rebuild,
    Remove,
}

/// The node, and how the work is done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(super) verb: Verb,
    pub(super) cluster: String,
    pub(super) node: String,
    /// The configuration file; `None`: that of the packages.
    pub(super) config: Option<PathBuf>,
    pub(super) url: Option<String>,
    pub(super) overlay: OverlayOptions,
    /// Absolute; empty for `remove`.
    pub(super) data: PathBuf,
    pub(super) from: Option<String>,
    /// `None`: the name of the operating system's user.
    pub(super) user: Option<String>,
    pub(super) slot: String,
    pub(super) port: Option<u16>,
    /// Settings of PostgreSQL, each with its value.
    pub(super) settings: Vec<(String, String)>,
    pub(super) start: Option<String>,
    pub(super) stop: Option<String>,
    pub(super) bindir: Option<PathBuf>,
    pub(super) config_file: Option<PathBuf>,
    /// Directories of tablespaces: at the source, and here.
    pub(super) tablespaces: Vec<(String, PathBuf)>,
    pub(super) waldir: Option<PathBuf>,
    pub(super) is_fast: bool,
    /// pg_rewind is not tried.
    pub(super) is_copy: bool,
    pub(super) lag_max_bytes: u64,
    pub(super) timeout: Duration,
    pub(super) is_dry_run: bool,
}

impl Wanted {
    /// The name by which the console knows the node.
    pub(super) fn full_name(&self) -> String {
        format!("{}.{}", self.cluster, self.node)
    }
}

/// The longest name that PostgreSQL gives to a slot.
const SLOT_BYTES_MAX: usize = 63;

/// Understands what comes after `node`.
///
/// # Errors
/// An argument that is not known, is missing or makes no sense.
pub(crate) fn parse(args: Vec<OsString>) -> Result<NodeCommand, String> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut words: Vec<String> = Vec::new();
    let mut wanted = nothing_yet();
    let mut slot = None;
    let mut options_of_copies = Vec::new();
    while let Some(arg) = parser.next().map_err(text)? {
        match arg {
            Short('h') | Long("help") => return Ok(NodeCommand::Help),
            Short('c') => wanted.config = Some(parser.value().map_err(text)?.into()),
            Long("dry-run") => wanted.is_dry_run = true,
            Long("no-overlay") => wanted.overlay.is_off = true,
            Long("copy") => wanted.is_copy = true,
            Long("slot") => slot = Some(parser.value().map_err(text)?.string().map_err(text)?),
            Long(name) => {
                let name = name.to_owned();
                let value = parser.value().map_err(text)?;
                if !["config", "url", "user", "timeout", "overlay"].contains(&name.as_str()) {
                    options_of_copies.push(name.clone());
                }
                take(&mut wanted, &name, value)?;
            }
            Value(word) => words.push(word.string().map_err(text)?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let (verb, name) = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["add", name] => (Verb::Add, name),
        ["rebuild", name] => (Verb::Rebuild, name),
        ["remove", name] => (Verb::Remove, name),
        ["add" | "rebuild" | "remove"] => return Err(format!("{} needs CLUSTER.NODE", words[0])),
        [] => return Err("need add, rebuild or remove; see pgweir node -h".to_owned()),
        _ => return Err(format!("{:?} is not understood; see pgweir node -h", words.join(" "))),
    };
    let whole = name.split_once('.').filter(|(cluster, node)| !cluster.is_empty() && !node.is_empty());
    let (cluster, node) = whole.ok_or_else(|| format!("{name:?} is not CLUSTER.NODE, as in main.m4"))?;
    (wanted.verb, wanted.cluster, wanted.node) = (verb, cluster.to_owned(), node.to_owned());
    wanted.slot = slot.unwrap_or_else(|| slot_of(node));
    if !is_slot(&wanted.slot) {
        return Err(format!("--slot: {:?} must have lower case letters, digits and _ only", wanted.slot));
    }
    is_whole(&wanted, &options_of_copies)?;
    Ok(NodeCommand::Work(Box::new(wanted)))
}

fn text(error: lexopt::Error) -> String {
    error.to_string()
}

fn nothing_yet() -> Wanted {
    Wanted {
        verb: Verb::Add,
        cluster: String::new(),
        node: String::new(),
        config: None,
        url: None,
        overlay: OverlayOptions::default(),
        data: PathBuf::new(),
        from: None,
        user: None,
        slot: String::new(),
        port: None,
        settings: Vec::new(),
        start: None,
        stop: None,
        bindir: None,
        config_file: None,
        tablespaces: Vec::new(),
        waldir: None,
        is_fast: false,
        is_copy: false,
        lag_max_bytes: 16 * 1024 * 1024,
        timeout: Duration::from_secs(600),
        is_dry_run: false,
    }
}

fn take(wanted: &mut Wanted, name: &str, value: OsString) -> Result<(), String> {
    let folder = |value: &OsString| {
        std::path::absolute(Path::new(value)).map_err(|error| format!("--{name}: {error}"))
    };
    match name {
        "config" => wanted.config = Some(value.into()),
        "overlay" => wanted.overlay.folders.push(value.into()),
        "data" => wanted.data = folder(&value)?,
        "bindir" => wanted.bindir = Some(folder(&value)?),
        "config-file" => wanted.config_file = Some(folder(&value)?),
        "waldir" => wanted.waldir = Some(folder(&value)?),
        _ => return take_text(wanted, name, value.string().map_err(text)?),
    }
    Ok(())
}

fn take_text(wanted: &mut Wanted, name: &str, value: String) -> Result<(), String> {
    let number = || value.parse::<u64>().map_err(|_| format!("--{name}: {value:?} is no number"));
    match name {
        "url" => wanted.url = Some(value),
        "from" => wanted.from = Some(value),
        "user" => wanted.user = Some(value),
        "port" => {
            let port = value.parse().ok().filter(|port| *port > 0);
            wanted.port = Some(port.ok_or_else(|| format!("--port: {value:?} is no port"))?);
        }
        "set" => wanted.settings.push(setting(&value)?),
        "start" => wanted.start = Some(value),
        "stop" => wanted.stop = Some(value),
        "tablespace-mapping" => {
            let is_whole = |(old, new): &(&str, &str)| old.starts_with('/') && new.starts_with('/');
            let pair = value.split_once('=').filter(is_whole);
            let (old, new) = pair.ok_or_else(|| {
                format!("--tablespace-mapping: {value:?} is not OLD=NEW with two absolute paths")
            })?;
            wanted.tablespaces.push((old.to_owned(), new.into()));
        }
        "checkpoint" => {
            wanted.is_fast = match value.as_str() {
                "fast" => true,
                "spread" => false,
                _ => return Err("--checkpoint must be one of fast, spread".to_owned()),
            }
        }
        "max-lag-bytes" => wanted.lag_max_bytes = number()?,
        "timeout" => wanted.timeout = Duration::from_secs(number()?),
        _ => return Err(format!("invalid option '--{name}'")),
    }
    Ok(())
}

/// `NAME=VALUE`, as a line of postgresql.auto.conf can have it.
fn setting(text: &str) -> Result<(String, String), String> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c))
    };
    let (name, value) = text.split_once('=').unwrap_or_default();
    if !is_name(name) || value.contains(['\n', '\r', '\0']) {
        return Err(format!("--set: {text:?} is not NAME=VALUE"));
    }
    if ["primary_conninfo", "primary_slot_name"].contains(&name) {
        return Err(format!("--set: {name} is written by pgweir node"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// The slot of a node. Characters that a slot's name cannot have become `_`.
fn slot_of(node: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let name: String = node.to_lowercase().chars().map(|c| if fits(c) { c } else { '_' }).collect();
    let mut slot = format!("pgweir_{name}");
    slot.truncate(SLOT_BYTES_MAX);
    slot
}

fn is_slot(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (1..=SLOT_BYTES_MAX).contains(&name.len()) && name.chars().all(fits)
}

fn is_whole(wanted: &Wanted, of_copies: &[String]) -> Result<(), String> {
    let has_data = !wanted.data.as_os_str().is_empty();
    if wanted.config.is_some() && wanted.url.is_some() {
        return Err("--config and --url both say where the console is: give one".to_owned());
    }
    match wanted.verb {
        Verb::Remove => match of_copies.first() {
            Some(name) => return Err(format!("--{name} is not for remove")),
            None if wanted.is_copy => return Err("--copy is for rebuild".to_owned()),
            None => {}
        },
        _ if !has_data => return Err("--data is missing; see pgweir node -h".to_owned()),
        Verb::Add if wanted.is_copy || wanted.stop.is_some() => {
            return Err("--copy and --stop are for rebuild".to_owned());
        }
        Verb::Add | Verb::Rebuild => {}
    }
    if wanted.data.file_name().is_none() && has_data {
        return Err(format!("--data: {} cannot be a data directory", wanted.data.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Wanted, String> {
        match parse(line.split_whitespace().map(OsString::from).collect())? {
            NodeCommand::Work(wanted) => Ok(*wanted),
            NodeCommand::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn a_node_is_described() {
        let wanted = parsed(
            "add main.M-4 --data /d --from m2 --set port=5433 --tablespace-mapping=/a=/b --checkpoint fast --timeout 5",
        )
        .expect("good");
        assert_eq!((wanted.verb, wanted.full_name().as_str()), (Verb::Add, "main.M-4"));
        assert_eq!((wanted.slot.as_str(), wanted.from.as_deref()), ("pgweir_m_4", Some("m2")));
        assert_eq!(wanted.settings, [("port".to_owned(), "5433".to_owned())]);
        assert_eq!(wanted.tablespaces, [("/a".to_owned(), "/b".into())]);
        assert!(wanted.is_fast && !wanted.is_dry_run && wanted.timeout == Duration::from_secs(5));
        let wanted = parsed("remove main.m4 --slot s1 --url postgres://a@h").expect("good");
        assert_eq!((wanted.verb, wanted.slot.as_str()), (Verb::Remove, "s1"));
        assert!(parsed("rebuild main.m4 --data=/d --copy").expect("good").is_copy);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, expected) in [
            ("", "need add, rebuild or remove"),
            ("add", "needs CLUSTER.NODE"),
            ("grow main.m4", "not understood"),
            ("add m4 --data /d", "is not CLUSTER.NODE"),
            ("add main.m4", "--data is missing"),
            ("add main.m4 --data /", "cannot be a data directory"),
            ("add main.m4 --data /d --copy", "for rebuild"),
            ("add main.m4 --data /d --slot M4", "lower case"),
            ("add main.m4 --data /d --port 0", "no port"),
            ("add main.m4 --data /d --set x", "is not NAME=VALUE"),
            ("add main.m4 --data /d --set primary_slot_name=x", "is written by"),
            ("add main.m4 --data /d --tablespace-mapping a=b", "absolute"),
            ("add main.m4 --data /d --checkpoint soon", "fast, spread"),
            ("add main.m4 --data /d -c a --url b", "give one"),
            ("add main.m4 --data /d --fast=1", "invalid option '--fast'"),
            ("remove main.m4 --data /d", "not for remove"),
            ("-h", "help"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
