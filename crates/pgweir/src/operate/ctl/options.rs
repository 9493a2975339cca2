//! The command line of `pgweir ctl`, and the console's text for each of its commands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

/// The text of `ctl -h`.
pub(crate) const CTL_HELP: &str = "\
pgweir ctl: send a command to a running pooler.

Usage:
  pgweir ctl [OPTION]... COMMAND

Commands:
  nodes [CLUSTER], clusters, pools [DATABASE], clients [DATABASE],
  servers [DATABASE], databases, peers
                         the tables, with their main columns
  attach NODE, drain NODE, detach NODE
                         a node takes part, gets nothing new, takes no part
  switchover NODE, promote NODE
                         make NODE the primary (SWITCHOVER); --force ends
                         transactions that stay open
  pause [DATABASE], resume [DATABASE], reload
  stop [fast|smart|immediate]
                         end when all servers are released, when all clients
                         have left, at once
  log-level [N]          show or set how much is logged (verbose)
  anything else          the console's own text: show config, kill_client 7

NODE is cluster.node, or the node alone if no other cluster has one of that name.

Options:
  -c, --config=FILE      the configuration that the pooler runs with
                         (/etc/pgweir/pgweir.ini)
      --url=URL          postgres://USER:PASSWORD@HOST:PORT of the console;
                         PGPASSWORD can have the password
      --json             write JSON: rows with all columns, or what was done
      --wait             wait until attach, drain, detach and stop have had
                         their effect, up to --timeout
      --timeout=SECONDS  how long --wait waits (60)
      --force            with switchover and promote
      --overlay=DIR      read DIR/*.ini after the file
      --no-overlay       read the file alone
  -h, --help             show this help, then exit

The console is entered over the unix socket by the user that pgweir runs as,
or as a user of admin_users whose password is in auth_file.

Exit code: 0 done; 1 pgweir refused; 2 the console could not be entered, or the
arguments are wrong; 3 --wait ran out.
";

/// The work of one call of `pgweir ctl`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CtlCommand {
    /// Send a command.
    Send(Sending),
    /// `-h`
    Help,
}

/// A command, and how it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sending {
    /// The configuration file; `None`: that of the packages.
    pub(crate) config: Option<PathBuf>,
    pub(crate) url: Option<String>,
    pub(crate) is_json: bool,
    /// The time that the effect may take (`--wait`); `None` if nothing is waited for.
    pub(crate) wait: Option<Duration>,
    pub(crate) overlay: crate::command_line::OverlayOptions,
    pub(crate) order: Order,
}

/// The request to the console.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// A table, with the columns that are shown as text (all if there are none named), and the value that a column must have.
    Table { text: String, columns: &'static [&'static str], only: Option<(&'static str, String)> },
    /// `attach`, `drain` or `detach` of a node.
    Switch { verb: &'static str, node: String },
    /// SWITCHOVER to a node.
    Switchover { node: String, is_forced: bool },
    /// SHUTDOWN.
    Stop(&'static str),
    /// The console's own text.
    Text(String),
}

const NODES: &[&str] = &[
    "cluster",
    "node",
    "host",
    "port",
    "role",
    "state",
    "switch",
    "share",
    "lag_ms",
    "sv_active",
    "cl_waiting",
    "last_error",
];
const CLUSTERS: &[&str] =
    &["cluster", "primary", "state", "epoch", "timeline", "held_clients", "switchover", "reason"];
const POOLS: &[&str] = &[
    "database",
    "user",
    "cl_active",
    "cl_waiting",
    "sv_active",
    "sv_idle",
    "sv_login",
    "maxwait",
    "pool_mode",
];
const CLIENTS: &[&str] = &["id", "database", "user", "state", "addr", "port", "wait", "application_name"];
const SERVERS: &[&str] =
    &["database", "user", "state", "addr", "port", "wait", "remote_pid", "application_name"];
const DATABASES: &[&str] = &[
    "name",
    "host",
    "port",
    "pool_size",
    "max_connections",
    "current_connections",
    "current_client_connections",
    "paused",
    "disabled",
];

/// Understands what comes after `ctl`.
pub(crate) fn parse(args: Vec<OsString>) -> Result<CtlCommand, String> {
    let mut parser = lexopt::Parser::from_args(args);
    let (mut config, mut url, mut overlay) = (None, None, crate::command_line::OverlayOptions::default());
    let (mut is_json, mut waits, mut is_forced) = (false, false, false);
    let mut timeout = Duration::from_secs(60);
    let mut words = Vec::new();
    let text = |error: lexopt::Error| error.to_string();
    while let Some(arg) = parser.next().map_err(text)? {
        match arg {
            Short('h') | Long("help") => return Ok(CtlCommand::Help),
            Short('c') | Long("config") => config = Some(parser.value().map_err(text)?.into()),
            Long("url") => url = Some(parser.value().map_err(text)?.string().map_err(text)?),
            Long("json") => is_json = true,
            Long("wait") => waits = true,
            Long("force") => is_forced = true,
            Long("timeout") => {
                let seconds = parser.value().map_err(text)?.parse().map_err(text)?;
                timeout = Duration::from_secs(seconds);
            }
            Long("overlay") => overlay.folders.push(parser.value().map_err(text)?.into()),
            Long("no-overlay") => overlay.is_off = true,
            Value(word) => words.push(word.string().map_err(text)?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    if config.is_some() && url.is_some() {
        return Err("--config and --url both say where the console is: give one".to_owned());
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let order = order(&words, is_forced)?;
    if is_forced && !matches!(order, Order::Switchover { .. }) {
        return Err("--force is for switchover and promote".to_owned());
    }
    Ok(CtlCommand::Send(Sending { config, url, is_json, wait: waits.then_some(timeout), overlay, order }))
}

/// The order that these words give.
fn order(words: &[&str], is_forced: bool) -> Result<Order, String> {
    let table = |topic: &str, columns, by, rest: &[&str]| {
        let only = rest.first().map(|value| (by, (*value).to_owned()));
        Order::Table { text: format!("SHOW {topic}"), columns, only }
    };
    let node = |node: &str| node.to_owned();
    Ok(match words {
        [] => return Err("need a command; see pgweir ctl -h".to_owned()),
        ["nodes", rest @ ..] if rest.len() < 2 => table("NODES", NODES, "cluster", rest),
        ["clusters"] => table("CLUSTERS", CLUSTERS, "cluster", &[]),
        ["pools", rest @ ..] if rest.len() < 2 => table("POOLS", POOLS, "database", rest),
        ["clients", rest @ ..] if rest.len() < 2 => table("CLIENTS", CLIENTS, "database", rest),
        ["servers", rest @ ..] if rest.len() < 2 => table("SERVERS", SERVERS, "database", rest),
        ["databases"] => table("DATABASES", DATABASES, "name", &[]),
        ["peers"] => table("PEERS", &[], "peer_id", &[]),
        ["attach", name] => Order::Switch { verb: "ATTACH", node: node(name) },
        ["drain", name] => Order::Switch { verb: "DRAIN", node: node(name) },
        ["detach", name] => Order::Switch { verb: "DETACH", node: node(name) },
        ["switchover" | "promote", name] => Order::Switchover { node: node(name), is_forced },
        ["stop"] | ["stop", "fast"] => Order::Stop("SHUTDOWN WAIT_FOR_SERVERS"),
        ["stop", "smart"] => Order::Stop("SHUTDOWN WAIT_FOR_CLIENTS"),
        ["stop", "immediate"] => Order::Stop("SHUTDOWN"),
        ["stop", ..] => return Err("stop takes fast, smart or immediate".to_owned()),
        [verb @ ("attach" | "drain" | "detach" | "promote")] => return Err(format!("{verb} needs a node")),
        ["log-level"] => {
            let only = Some(("key", "verbose".to_owned()));
            Order::Table { text: "SHOW CONFIG".to_owned(), columns: &["key", "value"], only }
        }
        ["log-level", level] => match level.parse::<u32>() {
            Ok(level) => Order::Text(format!("SET verbose = {level}")),
            Err(_) => return Err("log-level takes a number: 0 is normal, 1 and 2 log more".to_owned()),
        },
        // A word with blanks came in quotes from the shell: it is a text, or a name that the console wants in quotes.
        [one] => Order::Text((*one).to_owned()),
        [verb, rest @ ..] => {
            let rest: Vec<String> = rest.iter().map(|word| quoted(word)).collect();
            Order::Text(format!("{verb} {}", rest.join(" ")))
        }
    })
}

/// The word as the console reads it: a name with other characters goes into quotes.
pub(in crate::operate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| !c.is_whitespace() && !"\"';".contains(c);
    let is_quoted =
        word.len() > 1 && ["'", "\""].iter().any(|quote| word.starts_with(quote) && word.ends_with(quote));
    if is_quoted || (!word.is_empty() && word.chars().all(is_plain)) {
        word.to_owned()
    } else {
        format!("\"{}\"", word.replace('"', "\"\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(line: &str) -> Result<Sending, String> {
        match parse(line.split_whitespace().map(OsString::from).collect())? {
            CtlCommand::Send(sending) => Ok(sending),
            CtlCommand::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn commands_become_the_texts_of_the_console() {
        let text = |text: &str| Order::Text(text.to_owned());
        for (line, order) in [
            ("reload", text("reload")),
            ("pause app", text("pause app")),
            ("log-level 2", text("SET verbose = 2")),
            ("kill_client 7", text("kill_client 7")),
            ("set pool_mode = session", text("set pool_mode = session")),
            ("stop", Order::Stop("SHUTDOWN WAIT_FOR_SERVERS")),
            ("stop immediate", Order::Stop("SHUTDOWN")),
            ("promote m2 --force", Order::Switchover { node: "m2".to_owned(), is_forced: true }),
            ("drain main.m2", Order::Switch { verb: "DRAIN", node: "main.m2".to_owned() }),
        ] {
            assert_eq!(sent(line).map(|sending| sending.order), Ok(order), "{line}");
        }
        let pools = sent("pools app --json -c a.ini").expect("good");
        assert!(matches!(pools.order, Order::Table { only: Some(("database", of)), .. } if of == "app"));
        assert!(pools.is_json && pools.config == Some("a.ini".into()) && pools.wait.is_none());
        assert_eq!(sent("stop --wait --timeout 5").expect("good").wait, Some(Duration::from_secs(5)));
        assert_eq!(quoted("my db"), "\"my db\"");
        assert_eq!(quoted("'select 1'"), "'select 1'");
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for (line, expected) in [
            ("", "need a command"),
            ("attach", "needs a node"),
            ("stop now", "fast, smart or immediate"),
            ("log-level loud", "a number"),
            ("reload --force", "--force is for"),
            ("reload -c a --url b", "give one"),
            ("reload -x", "invalid option '-x'"),
            ("-h", "help"),
        ] {
            let error = sent(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
