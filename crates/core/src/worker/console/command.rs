//! The console's commands: their grammar and their outcomes. `WORD [WORD] [;]`, or `SET key = value [;]`.

use std::collections::VecDeque;

use crate::cluster::view::Switch;
use crate::driver::WorkerId;
use crate::ids::UnpooledId;
use crate::limits::{CONSOLE_QUERY_BYTES_MAX, NAME_BYTES_MAX, TOKEN_BYTES_MAX, VERB_BYTES_MAX};
use crate::mail::Shutdown;
use crate::stats::snapshot::StatementSnapshot;
use crate::stats::{Stats, Window};

/// The topic of SHOW.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as the commands are")]
pub enum Topic {
    ActiveSockets,
    Cache,
    Clients,
    ClientsExtended,
    Clusters,
    Config,
    ConfigExtended,
    Databases,
    DnsHosts,
    DnsZones,
    Fds,
    Help,
    Limits,
    Lists,
    Mem,
    Nodes,
    Overlay,
    Peers,
    PeerPools,
    Percentiles,
    Pools,
    PoolsExtended,
    Servers,
    ServersExtended,
    Sockets,
    State,
    Statements,
    Stats,
    StatsAverages,
    StatsExtended,
    StatsTotals,
    Totals,
    Users,
    Version,
    Vip,
}

/// Every topic by its word.
pub(crate) const TOPICS: [(&str, Topic); 35] = [
    ("active_sockets", Topic::ActiveSockets),
    ("cache", Topic::Cache),
    ("clients", Topic::Clients),
    ("clients_extended", Topic::ClientsExtended),
    ("clusters", Topic::Clusters),
    ("config", Topic::Config),
    ("config_extended", Topic::ConfigExtended),
    ("databases", Topic::Databases),
    ("dns_hosts", Topic::DnsHosts),
    ("dns_zones", Topic::DnsZones),
    ("fds", Topic::Fds),
    ("help", Topic::Help),
    ("limits", Topic::Limits),
    ("lists", Topic::Lists),
    ("mem", Topic::Mem),
    ("nodes", Topic::Nodes),
    ("overlay", Topic::Overlay),
    ("peers", Topic::Peers),
    ("peer_pools", Topic::PeerPools),
    ("percentiles", Topic::Percentiles),
    ("pools", Topic::Pools),
    ("pools_extended", Topic::PoolsExtended),
    ("servers", Topic::Servers),
    ("servers_extended", Topic::ServersExtended),
    ("sockets", Topic::Sockets),
    ("state", Topic::State),
    ("statements", Topic::Statements),
    ("stats", Topic::Stats),
    ("stats_averages", Topic::StatsAverages),
    ("stats_extended", Topic::StatsExtended),
    ("stats_totals", Topic::StatsTotals),
    ("totals", Topic::Totals),
    ("users", Topic::Users),
    ("version", Topic::Version),
    ("vip", Topic::Vip),
];

/// Parameters that drivers ask for, with the answers that are always the same.
pub(crate) const FIXED_PARAMETERS: [(&str, &str); 5] = [
    ("client_encoding", "UTF-8"),
    ("default_transaction_isolation", "read committed"),
    ("standard_conforming_strings", "on"),
    ("datestyle", "ISO"),
    ("timezone", "GMT"),
];

/// Parameters that drivers set right after connecting. They have no meaning on the console.
const DRIVERS_PARAMETERS: [&str; 2] = ["application_name", "extra_float_digits"];

/// Whether SET of this parameter succeeds and changes nothing.
pub(crate) fn is_ignored(parameter: &str) -> bool {
    let fixed = FIXED_PARAMETERS.iter().map(|(name, _)| *name);
    fixed.chain(DRIVERS_PARAMETERS).any(|name| name.eq_ignore_ascii_case(parameter))
}

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// SHOW of a topic.
    Show(Topic),
    /// SHOW ROUTE: where a statement of a database's clients would run, and why.
    ShowRoute {
        /// The database.
        database: String,
        /// The statement.
        text: String,
    },
    /// SHOW of a parameter that PostgreSQL would know: index into the fixed answers.
    ShowParameter(usize),
    /// SET of a setting.
    Set {
        /// The setting's name.
        key: String,
        /// The value as typed.
        value: String,
    },
    /// PAUSE, of one database or all.
    Pause(Option<String>),
    /// RESUME, of one database or all.
    Resume(Option<String>),
    /// DISABLE a database.
    Disable(String),
    /// ENABLE a database.
    Enable(String),
    /// RECONNECT, of one database or all.
    Reconnect(Option<String>),
    /// CACHE PURGE, of one database or all.
    PurgeCache(Option<String>),
    /// KILL, of one database or all.
    Kill(Option<String>),
    /// KILL_CLIENT, by SHOW CLIENTS' `id`.
    KillClient(u64),
    /// WAIT_CLOSE, of one database or all.
    WaitClose(Option<String>),
    /// ATTACH, DRAIN or DETACH of a node of a cluster.
    SwitchNode {
        /// The new state of the node.
        to: Switch,
        /// The cluster.
        cluster: String,
        /// The node.
        node: String,
    },
    /// RECHECK a cluster.
    Recheck(String),
    /// SWITCHOVER of a cluster.
    Switchover {
        /// The cluster.
        cluster: String,
        /// The node that is to become the primary; `None` cancels the switchover that is under way.
        to: Option<String>,
        /// FORCE was given: transactions that do not end in time are interrupted.
        force: bool,
    },
    /// VIP TAKE FORCE: this pooler takes the virtual address although etcd cannot be asked.
    TakeVip,
    /// SUSPEND.
    Suspend,
    /// RELOAD.
    Reload,
    /// Another pgweir takes over from this process (`-R`); not for people.
    TakeOver,
    /// SHUTDOWN, of any kind.
    Shutdown(Shutdown),
}

/// The reason why a text is not a command that can be carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoCommand {
    /// The text is not a command; the error that every user gets.
    Unknown(String),
    /// The command is for administrators, and an argument is missing. A user who is no administrator gets the error about missing rights
    /// first.
    Lacking(&'static str),
}

impl Command {
    /// Reads a command.
    pub(crate) fn parse(text: &str) -> Result<Command, NoCommand> {
        let max = if is_show_route(text) { CONSOLE_QUERY_BYTES_MAX } else { TOKEN_BYTES_MAX };
        let tokens = tokens(text, max).map_err(NoCommand::Unknown)?;
        let invalid = || NoCommand::Unknown(format!("invalid command '{text}', use SHOW HELP;"));
        let too_long = || NoCommand::Unknown("bad arguments".to_owned());
        let mut words = tokens.iter().map(Token::text);
        let Some(verb) = words.next().map(str::to_lowercase) else { return Err(invalid()) };
        if verb.len() > VERB_BYTES_MAX {
            return Err(too_long());
        }
        if verb == "set" {
            return parse_set(&tokens).ok_or_else(invalid);
        }
        if is_show_route(text) {
            return show_route(&tokens).ok_or_else(invalid);
        }
        if tokens.iter().any(|token| !matches!(token, Token::Word(_) | Token::Quoted(_))) {
            return Err(invalid());
        }
        if let Some(to) = switch_of(&verb) {
            return switch_node(to, words.collect::<Vec<_>>().as_slice()).ok_or_else(invalid);
        }
        if verb == "switchover" {
            return switchover(words.collect::<Vec<_>>().as_slice()).ok_or_else(invalid);
        }
        if verb == "vip" {
            return take_vip(words.collect::<Vec<_>>().as_slice()).ok_or_else(invalid);
        }
        if verb == "cache" {
            return purge_cache(words.collect::<Vec<_>>().as_slice()).ok_or_else(invalid);
        }
        let argument = words.next();
        if argument.is_some_and(|argument| argument.len() > NAME_BYTES_MAX) {
            return Err(too_long());
        }
        if words.next().is_some() {
            return Err(invalid());
        }
        let database = argument.map(str::to_owned);
        let named = |make: fn(String) -> Command| {
            database.clone().map(make).ok_or(NoCommand::Lacking("a database is required"))
        };
        let bare = |command: Command| match argument {
            None => Ok(command),
            Some(_) => Err(invalid()),
        };
        match verb.as_str() {
            "show" | "select" => show(argument.unwrap_or_default()).ok_or_else(invalid),
            "pause" => Ok(Command::Pause(database)),
            "resume" => Ok(Command::Resume(database)),
            "disable" => named(Command::Disable),
            "enable" => named(Command::Enable),
            "reconnect" => Ok(Command::Reconnect(database)),
            "kill" => Ok(Command::Kill(database)),
            "kill_client" => argument
                .and_then(|id| id.parse().ok())
                .map(Command::KillClient)
                .ok_or(NoCommand::Lacking("invalid client pointer supplied")),
            "wait_close" => Ok(Command::WaitClose(database)),
            "recheck" => argument
                .map(|cluster| Command::Recheck(cluster.to_owned()))
                .ok_or(NoCommand::Lacking("a cluster is required")),
            "suspend" => bare(Command::Suspend),
            "take_over" => bare(Command::TakeOver),
            "reload" => bare(Command::Reload),
            "shutdown" => match argument.map(str::to_lowercase).as_deref() {
                None => Ok(Command::Shutdown(Shutdown::Now)),
                Some("wait_for_servers") => Ok(Command::Shutdown(Shutdown::WaitForServers)),
                Some("wait_for_clients") => Ok(Command::Shutdown(Shutdown::WaitForClients)),
                Some(_) => Err(invalid()),
            },
            _ => Err(invalid()),
        }
    }

    /// Returns the tag of the command's CommandComplete.
    pub(crate) fn tag(&self) -> String {
        match self {
            Command::Show(_) | Command::ShowRoute { .. } | Command::ShowParameter(_) => "SHOW".to_owned(),
            Command::Set { key, value } => format!("SET {key}={value}"),
            Command::Pause(_) => "PAUSE".to_owned(),
            Command::Resume(_) => "RESUME".to_owned(),
            Command::Disable(_) => "DISABLE".to_owned(),
            Command::Enable(_) => "ENABLE".to_owned(),
            Command::Reconnect(_) => "RECONNECT".to_owned(),
            Command::PurgeCache(_) => "CACHE PURGE".to_owned(),
            Command::Kill(_) => "KILL".to_owned(),
            Command::KillClient(_) => "KILL_CLIENT".to_owned(),
            Command::WaitClose(_) => "WAIT_CLOSE".to_owned(),
            Command::SwitchNode { to, .. } => format!("{} NODE", verb_of(*to)),
            Command::Recheck(_) => "RECHECK".to_owned(),
            Command::Switchover { .. } => "SWITCHOVER".to_owned(),
            Command::TakeVip => "VIP TAKE FORCE".to_owned(),
            Command::Suspend => "SUSPEND".to_owned(),
            Command::Reload => "RELOAD".to_owned(),
            Command::TakeOver => "TAKE_OVER".to_owned(),
            Command::Shutdown(_) => "SHUTDOWN".to_owned(),
        }
    }

    /// Returns the command as it would be typed.
    #[must_use]
    pub fn text(&self) -> String {
        match (self, self.database()) {
            (Command::KillClient(id), _) => format!("KILL_CLIENT {id}"),
            (Command::SwitchNode { cluster, node, .. }, _) => format!("{} {cluster}.{node}", self.tag()),
            (Command::Recheck(cluster), _) => format!("RECHECK {cluster}"),
            (Command::Switchover { cluster, to: None, .. }, _) => format!("SWITCHOVER {cluster} CANCEL"),
            (Command::Switchover { cluster, to: Some(to), force }, _) => {
                format!("SWITCHOVER {cluster} TO {to}{}", if *force { " FORCE" } else { "" })
            }
            (_, Some(database)) => format!("{} {database}", self.tag()),
            (_, None) => self.tag(),
        }
    }

    /// Returns the database that the command names; `None` if it names none.
    pub(crate) fn database(&self) -> Option<&str> {
        match self {
            Command::Pause(name)
            | Command::Resume(name)
            | Command::Reconnect(name)
            | Command::Kill(name)
            | Command::PurgeCache(name)
            | Command::WaitClose(name) => name.as_deref(),
            Command::Disable(name) | Command::Enable(name) => Some(name),
            Command::ShowRoute { database, .. } => Some(database),
            _ => None,
        }
    }
}

/// Whether the text begins with the words SHOW ROUTE.
fn is_show_route(text: &str) -> bool {
    let mut words = text.split_ascii_whitespace();
    let mut is = |word: &str| words.next().is_some_and(|known| known.eq_ignore_ascii_case(word));
    is("show") && is("route")
}

/// Reads `SHOW ROUTE database 'statement'`.
fn show_route(tokens: &[Token]) -> Option<Command> {
    let [_, _, Token::Word(database) | Token::Quoted(database), Token::Text(text)] = tokens else {
        return None;
    };
    (database.len() <= NAME_BYTES_MAX)
        .then(|| Command::ShowRoute { database: database.clone(), text: text.clone() })
}

/// `PURGE [database]`.
fn purge_cache(words: &[&str]) -> Option<Command> {
    let (keyword, database) = match words {
        [keyword] => (keyword, None),
        [keyword, database] => (keyword, Some((*database).to_owned())),
        _ => return None,
    };
    let is_named = database.as_ref().is_none_or(|name: &String| name.len() <= NAME_BYTES_MAX);
    (keyword.eq_ignore_ascii_case("purge") && is_named).then_some(Command::PurgeCache(database))
}

/// Reads `TAKE FORCE`.
fn take_vip(words: &[&str]) -> Option<Command> {
    let [verb, force] = words else { return None };
    let fits = verb.eq_ignore_ascii_case("take") && force.eq_ignore_ascii_case("force");
    fits.then_some(Command::TakeVip)
}

/// Reads `NODE cluster.node`.
fn switch_node(to: Switch, words: &[&str]) -> Option<Command> {
    let [keyword, name] = words else { return None };
    let (cluster, node) = name.split_once('.')?;
    let is_node = keyword.eq_ignore_ascii_case("node") && name.len() <= 2 * NAME_BYTES_MAX + 1;
    is_node.then(|| Command::SwitchNode { to, cluster: cluster.to_owned(), node: node.to_owned() })
}

/// Reads `cluster TO node [FORCE]`, or `cluster CANCEL`.
fn switchover(words: &[&str]) -> Option<Command> {
    let is = |word: &str, known: &str| word.eq_ignore_ascii_case(known);
    let (cluster, to, force) = match words {
        [cluster, cancel] if is(cancel, "cancel") => (cluster, None, false),
        [cluster, keyword, to] if is(keyword, "to") => (cluster, Some(to), false),
        [cluster, keyword, to, force] if is(keyword, "to") && is(force, "force") => (cluster, Some(to), true),
        _ => return None,
    };
    let fits = [Some(cluster), to].into_iter().flatten().all(|name| name.len() <= NAME_BYTES_MAX);
    let to = to.map(|to| (*to).to_owned());
    fits.then(|| Command::Switchover { cluster: (*cluster).to_owned(), to, force })
}

const SWITCH_VERBS: [(&str, Switch); 3] =
    [("ATTACH", Switch::Attached), ("DRAIN", Switch::Draining), ("DETACH", Switch::Detached)];

fn switch_of(verb: &str) -> Option<Switch> {
    SWITCH_VERBS.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(verb)).map(|(_, switch)| switch)
}

fn verb_of(switch: Switch) -> &'static str {
    SWITCH_VERBS.into_iter().find(|(_, known)| *known == switch).map_or("", |(verb, _)| verb)
}

fn show(word: &str) -> Option<Command> {
    let is = |known: &str| known.eq_ignore_ascii_case(word);
    if let Some((_, topic)) = TOPICS.iter().find(|(known, _)| is(known)) {
        return Some(Command::Show(*topic));
    }
    FIXED_PARAMETERS.iter().position(|(known, _)| is(known)).map(Command::ShowParameter)
}

/// Reads `SET key = value`, or `SET key TO 'value'`.
fn parse_set(tokens: &[Token]) -> Option<Command> {
    let [_, Token::Word(key) | Token::Quoted(key), between, rest @ ..] = tokens else { return None };
    let assigns = match between {
        Token::Equals => true,
        Token::Word(word) => word.eq_ignore_ascii_case("to"),
        _ => false,
    };
    match rest {
        [Token::Word(value) | Token::Quoted(value) | Token::Text(value)] if assigns => {
            Some(Command::Set { key: key.clone(), value: value.clone() })
        }
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// A name in double quotes.
    Quoted(String),
    /// A text in single quotes.
    Text(String),
    Equals,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Word(text) | Token::Quoted(text) | Token::Text(text) => text,
            Token::Equals => "=",
        }
    }
}

fn tokens(text: &str, bytes_max: usize) -> Result<Vec<Token>, String> {
    let text = text.trim();
    let mut rest = text.strip_suffix(';').unwrap_or(text).trim_end();
    let mut tokens = Vec::new();
    while let Some(first) = rest.chars().next() {
        let (token, used) = match first {
            '=' => (Token::Equals, 1),
            '"' | '\'' => {
                let (content, used) = quoted(rest, first).ok_or("unterminated quoted string")?;
                let token = if first == '"' { Token::Quoted(content) } else { Token::Text(content) };
                (token, used)
            }
            _ => {
                let used = rest.find(|c: char| c.is_whitespace() || "='\"".contains(c)).unwrap_or(rest.len());
                (Token::Word(rest[..used].to_owned()), used)
            }
        };
        if token.text().len() > bytes_max {
            return Err("bad arguments".to_owned());
        }
        tokens.push(token);
        rest = rest[used..].trim_start();
    }
    Ok(tokens)
}

/// Reads a quoted string at the start of the text, and returns its content, without doubled quotes, and the number of bytes read; `None` if
/// the closing quote is missing.
fn quoted(text: &str, quote: char) -> Option<(String, usize)> {
    let mut content = String::new();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c != quote {
            content.push(c);
        } else if chars.peek().is_some_and(|&(_, next)| next == quote) {
            content.push(quote);
            chars.next();
        } else {
            return Some((content, at + quote.len_utf8()));
        }
    }
    None
}

/// One worker's share of the answer to a command.
#[derive(Debug)]
pub enum Outcome {
    /// The command is done.
    Done,
    /// The command is done; the text is a NOTICE for the user.
    Noted(&'static str),
    /// The rows of the topic's table, in text form.
    Rows(Vec<Vec<Option<String>>>),
    /// The totals and the change in the last period of each database.
    Stats(Vec<(String, Stats, Window)>),
    /// The statements that took most time.
    Statements(Vec<StatementSnapshot>),
    /// The rows of SHOW LISTS, or of SHOW MEM, to be added up: name and number.
    Sums(Vec<(&'static str, u64)>),
    /// The command failed; the error text for the user.
    Failed(String),
    /// The awaited state will not come, because another command undid this one; the error text for the user.
    Undone(&'static str),
}

/// The origin of a command, which is told its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommandSource {
    /// A client at the console.
    Console(UnpooledId),
    /// The control plane, under its own number.
    Control(u64),
}

/// A command that workers carry out, kept by the worker that serves the console client.
pub(crate) struct PendingCommand {
    pub(crate) source: CommandSource,
    pub(crate) command: Command,
    /// Workers (or the control plane) that have not answered yet.
    pub(crate) missing: u16,
    pub(crate) outcomes: Vec<Outcome>,
}

/// A command that a worker answers only when an event has come.
pub(crate) struct Task {
    pub(crate) from: WorkerId,
    pub(crate) ticket: u64,
    pub(crate) until: Until,
}

/// The event for which a [`Task`] waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// PAUSE: the task waits until no server of the database (or of any) is in use.
    Released(Option<String>),
    /// WAIT_CLOSE: the task waits until no server of the database (or of any) is marked to be closed.
    Closed(Option<String>),
    /// SWITCHOVER: the task waits until the switchover of this number has ended.
    Switched {
        /// The cluster.
        cluster: String,
        /// The switchover's number.
        number: u64,
    },
    /// SUSPEND: the task waits until no bytes are buffered, or until the deadline.
    Flushed {
        /// The deadline (monotonic, µs).
        deadline_us: u64,
    },
}

/// The waiting tasks, in the order in which they came.
pub(crate) type Tasks = VecDeque<Task>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_in_any_case_with_or_without_semicolon() {
        assert_eq!(Command::parse("SHOW pools;"), Ok(Command::Show(Topic::Pools)));
        assert_eq!(Command::parse(" select Version "), Ok(Command::Show(Topic::Version)));
        assert_eq!(Command::parse("show timezone"), Ok(Command::ShowParameter(4)));
        assert_eq!(Command::parse("PAUSE \"a\"\"b-c\";"), Ok(Command::Pause(Some("a\"b-c".into()))));
        assert_eq!(
            Command::parse("shutdown WAIT_FOR_CLIENTS"),
            Ok(Command::Shutdown(Shutdown::WaitForClients))
        );
    }

    #[test]
    fn set_takes_words_and_quoted_values() {
        let set = |value: &str| Ok(Command::Set { key: "pool_mode".into(), value: value.into() });
        assert_eq!(Command::parse("SET pool_mode=session"), set("session"));
        assert_eq!(Command::parse("set pool_mode TO 'it''s';"), set("it's"));
        assert_eq!(
            Command::parse("set pool_mode"),
            Err(NoCommand::Unknown("invalid command 'set pool_mode', use SHOW HELP;".into()))
        );
    }

    #[test]
    fn what_is_no_command_is_named_in_the_error() {
        let unknown = NoCommand::Unknown("invalid command 'FOO', use SHOW HELP;".into());
        assert_eq!(Command::parse("FOO"), Err(unknown));
        assert_eq!(Command::parse("disable"), Err(NoCommand::Lacking("a database is required")));
        let lacking = NoCommand::Lacking("invalid client pointer supplied");
        assert_eq!(Command::parse("kill_client x"), Err(lacking));
        assert!(Command::parse("").is_err());
        let switched = Command::parse("drain node main.m1;");
        let wanted = Command::SwitchNode { to: Switch::Draining, cluster: "main".into(), node: "m1".into() };
        assert_eq!(switched.as_ref().map(Command::text), Ok("DRAIN NODE main.m1".to_owned()));
        assert_eq!(switched, Ok(wanted));
        let route = Command::ShowRoute { database: "app".into(), text: "select 'a'".into() };
        assert_eq!(Command::parse("Show  Route \"app\" 'select ''a''';"), Ok(route));
        for text in ["SHOW ROUTE", "SHOW ROUTE app", "SHOW ROUTE app select", "SHOW ROUTE app 'select' 1"] {
            assert!(matches!(Command::parse(text), Err(NoCommand::Unknown(_))), "{text}");
        }
        assert_eq!(Command::parse("RECHECK main"), Ok(Command::Recheck("main".into())));
        assert_eq!(Command::parse("vip take Force;"), Ok(Command::TakeVip));
        assert!(Command::parse("VIP TAKE").is_err());
        let switchover = |to: Option<&str>, force| {
            Ok(Command::Switchover { cluster: "main".into(), to: to.map(Into::into), force })
        };
        assert_eq!(Command::parse("switchover main to m2;"), switchover(Some("m2"), false));
        assert_eq!(Command::parse("SWITCHOVER main TO m2 FORCE"), switchover(Some("m2"), true));
        assert_eq!(Command::parse("SWITCHOVER main CANCEL"), switchover(None, false));
        assert!(Command::parse("SWITCHOVER main m2").is_err() && Command::parse("SWITCHOVER").is_err());
        for wrong in ["attach", "attach node", "attach node main", "attach main.m1", "detach node a.b c"] {
            assert!(Command::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Command::parse("show 'pools").is_err());
    }
}
