//! The commands of the console that a key can send for a line, and the question before each.

use super::model::{Line, Tab};
use crate::operate::ctl::quoted;

/// A command, and the question whether it is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// The console's text.
    pub(super) text: String,
    /// The question before the command is sent: it names the command and its object.
    pub(super) question: String,
}

/// A key's command in a view.
pub(super) struct Kind {
    pub(super) letter: char,
    /// The command in a word or two, for the line of keys.
    pub(super) word: &'static str,
    /// Makes the command for a line; an error says why there is none for this line.
    pub(super) make: fn(&Line) -> Result<Order, String>,
}

/// The commands of a view.
pub(super) fn orders(tab: Tab) -> &'static [Kind] {
    match tab {
        Tab::Overview | Tab::Pools => POOLS,
        Tab::Clients => CLIENTS,
        Tab::Servers => SERVERS,
        Tab::Statements => &[],
        Tab::Nodes => NODES,
    }
}

const POOLS: &[Kind] = &[
    Kind {
        letter: 'p',
        word: "pause",
        make: |line| of_database(line, "PAUSE", "Pause database {}? Its clients wait until RESUME"),
    },
    Kind { letter: 'r', word: "resume", make: |line| of_database(line, "RESUME", "Resume database {}") },
    Kind {
        letter: 'c',
        word: "reconnect",
        make: |line| {
            of_database(line, "RECONNECT", "Open the servers of database {} again, each when it is released")
        },
    },
    Kind {
        letter: 'k',
        word: "kill",
        make: |line| {
            of_database(
                line,
                "KILL",
                "Disconnect ALL clients and servers of database {} now, and leave it paused",
            )
        },
    },
];

const CLIENTS: &[Kind] = &[Kind { letter: 'k', word: "kill", make: kill_client }];

const SERVERS: &[Kind] = &[Kind { letter: 'k', word: "kill its client", make: kill_client_of_server }];

const NODES: &[Kind] = &[
    Kind {
        letter: 'a',
        word: "attach",
        make: |line| of_node(line, "ATTACH", "Attach node {}: it takes part again"),
    },
    Kind {
        letter: 'd',
        word: "drain",
        make: |line| of_node(line, "DRAIN", "Drain node {}: it gets nothing new"),
    },
    Kind {
        letter: 'x',
        word: "detach",
        make: |line| of_node(line, "DETACH", "Detach node {}: it takes no part"),
    },
    Kind { letter: 'w', word: "switchover", make: switchover },
];

/// A sentence with a name in the place of `{}`, as a question.
fn question(sentence: &str, name: &str) -> String {
    let sentence = sentence.replacen("{}", &pgweir_doctor::printable(name), 1);
    if sentence.contains('?') { format!("{sentence}.") } else { format!("{sentence}?") }
}

fn of_database(line: &Line, verb: &str, sentence: &str) -> Result<Order, String> {
    let name = line.row.text("database");
    Ok(Order { text: format!("{verb} {}", quoted(name)), question: question(sentence, name) })
}

fn of_node(line: &Line, verb: &str, sentence: &str) -> Result<Order, String> {
    Ok(Order { text: format!("{verb} NODE {}", quoted(&line.key)), question: question(sentence, &line.key) })
}

fn switchover(line: &Line) -> Result<Order, String> {
    let (cluster, node) = (line.row.text("cluster"), line.row.text("node"));
    if line.row.text("state") == "primary" {
        return Err(format!("{} is the primary", pgweir_doctor::printable(&line.key)));
    }
    let sentence = "Make {} the primary of its cluster";
    Ok(Order {
        text: format!("SWITCHOVER {} TO {}", quoted(cluster), quoted(node)),
        question: question(sentence, &line.key),
    })
}

fn kill_client(line: &Line) -> Result<Order, String> {
    let (id, row) = (line.row.text("id"), &line.row);
    let what =
        format!("{id} ({}@{}, {})", row.text("user"), row.text("database"), row.text("application_name"));
    kill(id, &what)
}

fn kill_client_of_server(line: &Line) -> Result<Order, String> {
    let Some((_, id)) = line.more.iter().find(|(name, _)| *name == "client's id") else {
        return Err("this server serves no client".to_owned());
    };
    kill(id, &format!("{id}, which server {} serves", line.row.text("remote_pid")))
}

fn kill(id: &str, what: &str) -> Result<Order, String> {
    if id.parse::<u64>().is_err() {
        return Err("the console tells no id of this client".to_owned());
    }
    Ok(Order { text: format!("KILL_CLIENT {id}"), question: question("Disconnect client {}", what) })
}

#[cfg(test)]
mod tests {
    use super::super::model::Row;
    use super::*;

    fn made(tab: Tab, letter: char, line: &Line) -> Result<(String, String), String> {
        let kind = orders(tab).iter().find(|kind| kind.letter == letter).expect("there is one");
        (kind.make)(line).map(|order| (order.text, order.question))
    }

    #[test]
    fn each_command_names_its_object() {
        let pool = Line { row: Row::of(&[("database", "my db")]), ..Line::default() };
        let (text, question) = made(Tab::Pools, 'k', &pool).expect("a command");
        assert_eq!(text, "KILL \"my db\"");
        assert!(question.contains("database my db now") && question.ends_with('?'), "{question}");
        let (text, question) = made(Tab::Overview, 'p', &pool).expect("a command");
        assert_eq!(
            (&*text, &*question),
            ("PAUSE \"my db\"", "Pause database my db? Its clients wait until RESUME.")
        );
        let node = Line {
            key: "main.m2".to_owned(),
            row: Row::of(&[("cluster", "main"), ("node", "m2"), ("state", "standby")]),
            ..Line::default()
        };
        assert_eq!(made(Tab::Nodes, 'd', &node).expect("a command").0, "DRAIN NODE main.m2");
        assert_eq!(made(Tab::Nodes, 'w', &node).expect("a command").0, "SWITCHOVER main TO m2");
        let primary = Line { row: Row::of(&[("state", "primary")]), ..node };
        assert_eq!(made(Tab::Nodes, 'w', &primary), Err("main.m2 is the primary".to_owned()));
    }

    #[test]
    fn a_client_is_killed_by_its_number_alone() {
        let client = Line {
            row: Row::of(&[
                ("id", "7"),
                ("user", "u"),
                ("database", "app"),
                ("application_name", "a\u{1b}b"),
            ]),
            ..Line::default()
        };
        let (text, question) = made(Tab::Clients, 'k', &client).expect("a command");
        assert_eq!(text, "KILL_CLIENT 7");
        assert!(question.contains("client 7 (u@app, a b)"), "{question}");
        assert!(made(Tab::Clients, 'k', &Line::default()).is_err());
        let server = Line { row: Row::of(&[("remote_pid", "42")]), ..Line::default() };
        assert!(made(Tab::Servers, 'k', &server).is_err());
        let busy = Line { more: vec![("client's id", "7".to_owned())], ..server };
        assert_eq!(made(Tab::Servers, 'k', &busy).expect("a command").0, "KILL_CLIENT 7");
    }
}
