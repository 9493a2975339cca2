//! The tables of the views: their columns, and a line for each row of the console.

use super::rates::{StatementRates, reads, statement_key, statements};
use super::reading::{Reading, Row};
use super::value::{Value, per_second};
use super::verdict::{self, Tone};

/// A view of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    Overview,
    Pools,
    Clients,
    Servers,
    Statements,
    Nodes,
}

impl Tab {
    pub(crate) const ALL: [Tab; 6] =
        [Tab::Overview, Tab::Pools, Tab::Clients, Tab::Servers, Tab::Statements, Tab::Nodes];

    /// The word of the tab.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Tab::Overview => "Overview",
            Tab::Pools => "Pools",
            Tab::Clients => "Clients",
            Tab::Servers => "Servers",
            Tab::Statements => "Statements",
            Tab::Nodes => "Nodes",
        }
    }

    /// The view whose table this one sorts, filters and moves in: the overview is the pools' with others below.
    pub(crate) fn table(self) -> Tab {
        if self == Tab::Overview { Tab::Pools } else { self }
    }

    /// The place of the tab's table among the tables.
    pub(crate) fn place(self) -> usize {
        match self.table() {
            Tab::Overview | Tab::Pools => 0,
            Tab::Clients => 1,
            Tab::Servers => 2,
            Tab::Statements => 3,
            Tab::Nodes => 4,
        }
    }

    /// The column that the table is sorted by at first, and whether the largest value comes first.
    pub(crate) fn first_sort(self) -> (usize, bool) {
        match self.table() {
            Tab::Overview | Tab::Pools => (2, true),
            Tab::Clients | Tab::Servers => (2, true),
            Tab::Statements => (0, true),
            Tab::Nodes => (0, false),
        }
    }

    pub(crate) fn columns(self) -> &'static [Column] {
        match self.table() {
            Tab::Overview | Tab::Pools => POOLS,
            Tab::Clients => CLIENTS,
            Tab::Servers => SERVERS,
            Tab::Statements => STATEMENTS,
            Tab::Nodes => NODES,
        }
    }
}

/// The side of its column at which a cell's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A column of a view.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Characters that it takes; a column that grows takes at least this number.
    pub(crate) width: u16,
    pub(crate) side: Side,
    /// 0 if the column is always shown. On a narrow screen the columns with the highest number are left out first.
    pub(crate) rank: u8,
    /// Whether the column takes its part of the room that is left.
    pub(crate) grows: bool,
}

const fn left(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, side: Side::Left, rank, grows: false }
}

const fn right(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, side: Side::Right, rank, grows: false }
}

const fn wide(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, side: Side::Left, rank, grows: true }
}

const POOLS: &[Column] = &[
    left("DATABASE", 14, 0),
    left("USER", 10, 0),
    right("WAIT", 7, 0),
    right("WAITING", 7, 0),
    right("CLIENTS", 7, 0),
    right("BUSY", 7, 0),
    right("IDLE", 5, 0),
    right("LOGIN", 5, 2),
    right("KEPT", 5, 3),
    left("MODE", 11, 4),
    wide("WHY", 16, 0),
];

const CLIENTS: &[Column] = &[
    right("ID", 6, 0),
    left("STATE", 8, 0),
    right("WAIT", 7, 0),
    right("IN TX", 7, 0),
    left("DATABASE", 12, 0),
    left("USER", 10, 0),
    wide("APPLICATION", 12, 0),
    wide("ADDRESS", 15, 1),
    wide("KEEPS SERVER FOR", 16, 3),
    left("ROUTE", 10, 4),
    left("STATEMENT", 16, 5),
];

const SERVERS: &[Column] = &[
    right("PID", 7, 0),
    left("STATE", 9, 0),
    right("BUSY", 7, 0),
    right("IN TX", 7, 0),
    left("DATABASE", 12, 0),
    left("USER", 10, 0),
    wide("SERVER", 14, 0),
    right("QUEUED", 6, 3),
    wide("CLIENT'S APPLICATION", 12, 4),
    wide("KEPT FOR", 12, 5),
    left("STATEMENT", 16, 6),
];

const STATEMENTS: &[Column] = &[
    right("LOAD", 6, 0),
    right("CALLS/S", 7, 0),
    right("MEAN", 7, 0),
    right("WAIT", 5, 0),
    right("ROWS/S", 7, 3),
    right("ERR/S", 5, 2),
    left("DATABASE", 10, 1),
    left("USER", 8, 4),
    wide("STATEMENT", 30, 0),
];

const NODES: &[Column] = &[
    left("NODE", 14, 0),
    left("ROLE", 8, 0),
    left("STATE", 11, 0),
    right("LAG", 7, 0),
    right("SHARE", 6, 0),
    right("BUSY", 5, 0),
    right("IDLE", 5, 2),
    right("WAITING", 7, 1),
    right("READS/S", 7, 0),
    left("SWITCH", 9, 3),
    left("HOST", 20, 4),
    wide("LAST ERROR", 8, 5),
];

/// A line of a view.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// Identifies the line in the next readings.
    pub(crate) key: String,
    /// A value for each column.
    pub(crate) cells: Vec<Value>,
    /// How bad the line's state is; `None` for an ordinary line.
    pub(crate) tone: Option<Tone>,
    /// The console's row.
    pub(crate) row: Row,
    /// Values beside the console's row, for the details.
    pub(crate) more: Vec<(&'static str, String)>,
}

impl Line {
    /// All values of the line by their names: those of the console's row, then the others.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, &str)> {
        self.row.pairs().chain(self.more.iter().map(|(name, text)| (*name, text.as_str())))
    }
}

/// The lines of a view, in the order that holds where a sort leaves two lines equal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) lines: Vec<Line>,
    /// Whether the console's table was not read.
    pub(crate) is_unread: bool,
}

/// The tables of all views, in the order of [`Tab::place`].
pub(crate) fn tables(earlier: Option<&Reading>, now: &Reading) -> [Table; 5] {
    [pools(now), clients(now), servers(now), statement_table(earlier, now), nodes(earlier, now)]
}

fn table(lines: Vec<Line>) -> Table {
    Table { lines, is_unread: false }
}

fn pools(now: &Reading) -> Table {
    let line = |(row, cause): (&Row, Option<verdict::Cause>)| {
        let waiting = row.number("cl_waiting");
        let why = cause.as_ref().map(verdict::Cause::word).unwrap_or_default();
        Line {
            key: format!("{}\0{}", row.text("database"), row.text("user")),
            cells: vec![
                Value::text(row.text("database")),
                Value::text(row.text("user")),
                Value::Micros(row.micros("maxwait", "maxwait_us")),
                Value::Count(waiting),
                Value::Count(row.number("cl_active") + waiting),
                Value::Of(verdict::servers(row) - row.number("sv_idle"), verdict::limit(now, row)),
                Value::Count(row.number("sv_idle")),
                Value::Count(row.number("sv_login")),
                Value::Count(row.number("sv_pinned")),
                Value::text(row.text("pool_mode")),
                Value::Text(why),
            ],
            tone: cause.map(|cause| match cause {
                verdict::Cause::CannotConnect(_) | verdict::Cause::NoPrimary(_) => Tone::Bad,
                _ => Tone::Attention,
            }),
            row: row.clone(),
            more: vec![("limit of servers", verdict::limit(now, row).to_string())],
        }
    };
    let mut lines: Vec<Line> = now.pools.iter().zip(verdict::causes(now)).map(line).collect();
    lines.sort_by(|one, two| two.cells[4].order(&one.cells[4]).then_with(|| one.key.cmp(&two.key)));
    table(lines)
}

/// The address of a row's peer, with its port.
fn address(row: &Row) -> String {
    match row.text("addr") {
        address if address.starts_with("unix") => address.to_owned(),
        address => format!("{address}:{}", row.text("port")),
    }
}

fn clients(now: &Reading) -> Table {
    let Some(rows) = &now.clients else { return Table { lines: Vec::new(), is_unread: true } };
    let line = |row: &Row| {
        let is_idle = verdict::is_idle_in_transaction(row);
        let state = if is_idle { "idle tx" } else { row.text("state") };
        Line {
            key: row.text("id").to_owned(),
            cells: vec![
                Value::Count(row.number("id")),
                Value::text(state),
                Value::Micros(row.micros("wait", "wait_us")),
                Value::Micros(row.number("transaction_us")),
                Value::text(row.text("database")),
                Value::text(row.text("user")),
                Value::text(row.text("application_name")),
                Value::text(&address(row)),
                Value::text(row.text("pinned")),
                Value::text(row.text("route")),
                Value::text(row.text("statement")),
            ],
            tone: state.starts_with("waiting").then_some(Tone::Attention),
            row: row.clone(),
            more: Vec::new(),
        }
    };
    let mut lines: Vec<Line> = rows.iter().map(line).collect();
    // Clients with an old transaction come before idle ones.
    lines.sort_by(|one, two| {
        two.cells[3].order(&one.cells[3]).then_with(|| one.cells[0].order(&two.cells[0]))
    });
    table(lines)
}

fn servers(now: &Reading) -> Table {
    let Some(rows) = &now.servers else { return Table { lines: Vec::new(), is_unread: true } };
    let client_of = |row: &Row| {
        let link = Some(row.text("link")).filter(|link| !link.is_empty())?;
        now.clients.iter().flatten().find(|client| client.text("ptr") == link)
    };
    let line = |row: &Row| {
        let client = client_of(row);
        let of_client = |column| client.map(|client| client.text(column)).unwrap_or_default();
        Line {
            key: row.text("ptr").to_owned(),
            cells: vec![
                Value::Count(row.number("remote_pid")),
                Value::text(row.text("state")),
                Value::Micros(row.micros("wait", "wait_us")),
                Value::Micros(row.number("transaction_us")),
                Value::text(row.text("database")),
                Value::text(row.text("user")),
                Value::text(&address(row)),
                Value::Count(row.number("multiplexed")),
                Value::text(of_client("application_name")),
                Value::text(row.text("pinned")),
                Value::text(row.text("statement")),
            ],
            tone: None,
            row: row.clone(),
            more: client.map(|client| ("client's id", client.text("id").to_owned())).into_iter().collect(),
        }
    };
    let mut lines: Vec<Line> = rows.iter().map(line).collect();
    lines.sort_by(|one, two| {
        two.cells[3].order(&one.cells[3]).then_with(|| one.cells[0].order(&two.cells[0]))
    });
    table(lines)
}

fn statement_table(earlier: Option<&Reading>, now: &Reading) -> Table {
    let rate = |rates: Option<StatementRates>, of: fn(StatementRates) -> f64| {
        rates.map_or(Value::Unknown, |rates| Value::PerSecond(of(rates)))
    };
    let line = |(row, rates): (&Row, Option<StatementRates>)| Line {
        key: statement_key(row),
        cells: vec![
            rates.map_or(Value::Unknown, |rates| Value::Average(rates.load)),
            rate(rates, |rates| rates.calls),
            rates.and_then(|rates| rates.mean_us).map_or(Value::Unknown, |mean| Value::Micros(mean as u64)),
            rates.and_then(|rates| rates.wait_share).map_or(Value::Unknown, Value::Share),
            rate(rates, |rates| rates.rows),
            rate(rates, |rates| rates.errors),
            Value::text(row.text("database")),
            Value::text(row.text("user")),
            Value::text(&row.text("query").split_whitespace().collect::<Vec<_>>().join(" ")),
        ],
        tone: rates.filter(|rates| rates.errors > 0.0).map(|_| Tone::Attention),
        row: row.clone(),
        more: rates.map(|rates| ("calls per second", per_second(rates.calls))).into_iter().collect(),
    };
    let lines = now.statements.iter().zip(statements(earlier, now)).map(line).collect();
    table(lines)
}

fn nodes(earlier: Option<&Reading>, now: &Reading) -> Table {
    // The shares of a cluster's standbys count together.
    let all = |cluster: &str| {
        let its = now.nodes.iter().filter(|row| row.text("cluster") == cluster);
        its.map(|row| row.number("share")).sum::<u64>()
    };
    let line = |(row, reads): (&Row, Option<f64>)| {
        let name = format!("{}.{}", row.text("cluster"), row.text("node"));
        let (share, all) = (row.number("share"), all(row.text("cluster")));
        let is_standby = row.text("role") == "standby";
        Line {
            cells: vec![
                Value::text(&name),
                Value::text(row.text("role")),
                Value::text(row.text("state")),
                match row.known("lag_ms") {
                    Some(lag_ms) if is_standby => Value::Text(lag(lag_ms)),
                    _ => Value::Unknown,
                },
                if all > 0 && is_standby { Value::Share(share as f64 / all as f64) } else { Value::Unknown },
                Value::Count(row.number("sv_active")),
                Value::Count(row.number("sv_idle")),
                Value::Count(row.number("cl_waiting")),
                reads.map_or(Value::Unknown, Value::PerSecond),
                Value::text(row.text("switch")),
                Value::text(&format!("{}:{}", row.text("host"), row.text("port"))),
                Value::text(row.text("last_error")),
            ],
            tone: match row.text("state") {
                "down" | "refused" => Some(Tone::Bad),
                _ if row.text("switch") != "attached" => Some(Tone::Attention),
                _ => None,
            },
            key: name,
            row: row.clone(),
            more: Vec::new(),
        }
    };
    table(now.nodes.iter().zip(reads(earlier, now)).map(line).collect())
}

/// A standby's lag: 0 is worth showing.
fn lag(lag_ms: u64) -> String {
    if lag_ms == 0 { "0 ms".to_owned() } else { super::value::duration(lag_ms.saturating_mul(1000)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_a_value_for_each_column() {
        let row =
            Row::of(&[("database", "app"), ("query", "select  1"), ("role", "standby"), ("lag_ms", "0")]);
        let one = || vec![row.clone()];
        let now = Reading {
            pools: one(),
            statements: one(),
            nodes: one(),
            clients: Some(one()),
            servers: Some(one()),
            ..Reading::default()
        };
        let tables = tables(Some(&now), &now);
        for tab in Tab::ALL {
            let (columns, table) = (tab.columns(), &tables[tab.place()]);
            assert_eq!(table.lines[0].cells.len(), columns.len(), "{tab:?}");
            assert!(tab.first_sort().0 < columns.len());
            let narrow: u16 =
                columns.iter().filter(|column| column.rank == 0).map(|column| column.width + 1).sum();
            assert!(narrow <= 81, "{tab:?} needs {narrow} columns");
        }
        assert_eq!(tables[3].lines[0].cells[8], Value::text("select 1"));
        assert_eq!(tables[4].lines[0].cells[3], Value::text("0 ms"));
        assert!(super::tables(None, &Reading::default())[1].is_unread);
    }

    #[test]
    fn a_server_is_shown_with_the_client_that_it_serves() {
        let now = Reading {
            servers: Some(vec![Row::of(&[("ptr", "S-1"), ("link", "C-7")])]),
            clients: Some(vec![Row::of(&[("ptr", "C-7"), ("id", "7"), ("application_name", "psql")])]),
            ..Reading::default()
        };
        let line = &servers(&now).lines[0];
        assert_eq!((&line.cells[8], &line.more[0].1[..]), (&Value::text("psql"), "7"));
    }

    #[test]
    fn a_client_that_holds_a_transaction_and_runs_nothing_is_told_apart() {
        let now = Reading {
            clients: Some(vec![
                Row::of(&[("id", "1"), ("state", "idle")]),
                Row::of(&[("id", "2"), ("state", "active"), ("transaction_us", "5000000"), ("wait", "0")]),
            ]),
            ..Reading::default()
        };
        let states: Vec<String> = clients(&now).lines.iter().map(|line| line.cells[1].shown()).collect();
        assert_eq!(states, ["idle tx", "idle"]);
    }

    #[test]
    fn shares_are_parts_of_the_cluster() {
        let node = |name, share| {
            Row::of(&[("cluster", "main"), ("node", name), ("role", "standby"), ("share", share)])
        };
        let now = Reading { nodes: vec![node("m2", "1000"), node("m3", "3000")], ..Reading::default() };
        let shares: Vec<String> = nodes(None, &now).lines.iter().map(|line| line.cells[4].shown()).collect();
        assert_eq!(shares, ["25 %", "75 %"]);
    }
}
