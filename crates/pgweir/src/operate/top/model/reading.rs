//! The answers of the console at one moment, as rows whose columns have names.

use std::sync::Arc;
use std::time::Duration;

/// A row of one of the console's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    names: Arc<[String]>,
    cells: Vec<Option<String>>,
}

impl Row {
    pub(crate) fn new(names: Arc<[String]>, cells: Vec<Option<String>>) -> Row {
        Row { names, cells }
    }

    /// The text of a column; empty if it is NULL, or if this pooler has no such column.
    pub(crate) fn text(&self, column: &str) -> &str {
        let place = self.names.iter().position(|name| name == column);
        place.and_then(|place| self.cells.get(place)?.as_deref()).unwrap_or_default()
    }

    /// The number of a column; `None` if it is NULL or not there.
    pub(crate) fn known(&self, column: &str) -> Option<u64> {
        self.text(column).parse().ok()
    }

    /// The number of a column; 0 if it is NULL or not there.
    pub(crate) fn number(&self, column: &str) -> u64 {
        self.known(column).unwrap_or_default()
    }

    /// The number of microseconds of a time that has a column of whole seconds, and one of the rest.
    pub(crate) fn micros(&self, seconds: &str, rest: &str) -> u64 {
        self.number(seconds).saturating_mul(1_000_000).saturating_add(self.number(rest))
    }

    /// The names of the columns with their texts, in the console's order.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names.iter().zip(&self.cells).map(|(name, cell)| (name.as_str(), cell.as_deref().unwrap_or("")))
    }

    /// A row of a test.
    #[cfg(test)]
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Row {
        Row {
            names: pairs.iter().map(|(name, _)| (*name).to_owned()).collect(),
            cells: pairs.iter().map(|(_, text)| Some((*text).to_owned())).collect(),
        }
    }
}

/// The tables of the console at one moment. A table that this user may not see, or this pooler does not have, is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// The time from the program's start to the reading's beginning.
    pub(crate) taken: Duration,
    /// SHOW STATE
    pub(crate) state: Vec<Row>,
    /// SHOW POOLS_EXTENDED
    pub(crate) pools: Vec<Row>,
    /// SHOW DATABASES
    pub(crate) databases: Vec<Row>,
    /// SHOW USERS
    pub(crate) users: Vec<Row>,
    /// SHOW STATS
    pub(crate) stats: Vec<Row>,
    /// SHOW STATEMENTS
    pub(crate) statements: Vec<Row>,
    /// SHOW CLUSTERS
    pub(crate) clusters: Vec<Row>,
    /// SHOW NODES
    pub(crate) nodes: Vec<Row>,
    /// SHOW CLIENTS_EXTENDED; `None` if there are too many to be read each time, and no view needs them.
    pub(crate) clients: Option<Vec<Row>>,
    /// SHOW SERVERS_EXTENDED; `None` in the same case.
    pub(crate) servers: Option<Vec<Row>>,
}

impl Reading {
    /// Whether SHOW STATE has a `yes` at this key.
    pub(crate) fn is_state(&self, key: &str) -> bool {
        self.state.iter().any(|row| row.text("key") == key && row.text("value") == "yes")
    }

    /// The row of SHOW DATABASES of this name.
    pub(crate) fn database(&self, name: &str) -> Option<&Row> {
        self.databases.iter().find(|row| row.text("name") == name)
    }

    /// The row of SHOW USERS of this name.
    pub(crate) fn user(&self, name: &str) -> Option<&Row> {
        self.users.iter().find(|row| row.text("name") == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name_and_missing_ones_are_nothing() {
        let row = Row::of(&[("database", "app"), ("maxwait", "2"), ("maxwait_us", "500000")]);
        assert_eq!(row.text("database"), "app");
        assert_eq!(row.micros("maxwait", "maxwait_us"), 2_500_000);
        assert_eq!((row.known("lag_ms"), row.number("lag_ms"), row.text("lag_ms")), (None, 0, ""));
        assert_eq!(row.pairs().next(), Some(("database", "app")));
    }
}
