//! The check of answers that are kept until a table changes (`follow=wal`). Each row tells how many transactions that had changed each table its
//! statement has seen. Transactions become visible one after the other, so that such a number stands for a span of time: from the one that
//! was seen last up to the next one, which was not seen. A client must not be given an answer whose span ended before what the client needs.

use std::collections::BTreeMap;

use crate::sim::model::nodes::xids::{Change, Told};

/// The tables: two whose changes are followed, one that is not published, and the meaning of a name that stands for one of the first two.
pub const TABLES: usize = 4;
/// The first table that is published.
pub const BOARD: usize = 0;
/// The second one, which the publication loses at times.
pub const LEDGER: usize = 1;
/// The table that is not published.
pub const JOURNAL: usize = 2;
/// The definitions: the value is the number of times that the name `swap` got another meaning.
pub const DEFINITIONS: usize = 3;

/// The check of what a client must see of its own changes, and of what it has seen before.
pub const BACK_IN_TIME: &str =
    "a client is not given an answer from before its own changes, or before what it has seen";
/// The check of an answer's age.
pub const BEHIND: &str = "an answer is not further behind than query_cache_max_age_ms";
/// The check of an answer about several tables.
pub const ONE_MOMENT: &str = "an answer is what one snapshot shows";

/// The number of transactions that a row has seen of each table.
pub type Values = [u64; TABLES];

/// A row of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Saw {
    /// The values that the row tells.
    pub values: Values,
    /// The text of all clients that was answered; `None` if the statement was the client's own, which only a server answers.
    pub text: Option<u32>,
}

/// A transaction that has become visible, for one of its tables.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// Its number in the order in which transactions became visible.
    serial: u64,
    visible_us: u64,
}

/// The check of the answers that clients were given in a world whose changes are followed.
#[derive(Debug)]
pub struct FollowedCheck {
    max_age_us: u64,
    serial: u64,
    versions: [Vec<Version>; TABLES],
    /// The number of each client's change in that order.
    changes: BTreeMap<Change, u64>,
    /// The number of the last transaction that each client must see.
    needs: BTreeMap<u32, u64>,
    /// The time until which nothing is promised for a table or name, because its definition was changed without going through the pooler.
    excused_until_us: [u64; TABLES],
}

/// Returns the tables that a text of all clients reads, when the name `swap` has had so many other meanings.
#[must_use]
pub fn tables_read(text: u32, definitions: u64) -> &'static [usize] {
    match text {
        40 => &[LEDGER],
        41 => &[BOARD, LEDGER],
        42 => &[JOURNAL],
        43 if definitions.is_multiple_of(2) => &[BOARD],
        43 => &[LEDGER],
        _ => &[BOARD],
    }
}

/// Returns what an answer to a text of all clients may depend on, of what its statement could see.
#[must_use]
pub fn values_read(text: u32, values: Values) -> Values {
    let tables = tables_read(text, values[DEFINITIONS]);
    let is_read = |table: usize| tables.contains(&table) || table == DEFINITIONS && text == 43;
    std::array::from_fn(|table| if is_read(table) { values[table] } else { 0 })
}

impl FollowedCheck {
    /// The check of a world in which answers may be this far behind.
    #[must_use]
    pub fn new(max_age_us: u64) -> Self {
        FollowedCheck {
            max_age_us,
            serial: 0,
            versions: Default::default(),
            changes: BTreeMap::new(),
            needs: BTreeMap::new(),
            excused_until_us: [0; TABLES],
        }
    }

    /// Returns what a statement that begins now sees.
    #[must_use]
    pub fn values(&self) -> Values {
        std::array::from_fn(|table| self.versions[table].len() as u64)
    }

    /// A transaction becomes visible.
    pub fn becomes_visible(&mut self, tables: &[usize], changes: &[Change], now_us: u64) {
        self.serial += 1;
        let version = Version { serial: self.serial, visible_us: now_us };
        tables.iter().for_each(|table| self.versions[*table].push(version));
        self.changes.extend(changes.iter().map(|change| (*change, version.serial)));
    }

    /// Nothing is promised for a table up to this time.
    pub fn excuse(&mut self, table: usize, until_us: u64) {
        self.excused_until_us[table] = until_us;
    }

    /// Notes a report to a client about its own changes.
    pub fn told(&mut self, told: &Told) {
        let Told::Committed(changes) = told else { return };
        for change in changes {
            if let Some(serial) = self.changes.get(change) {
                let need = self.needs.entry(change.0).or_default();
                *need = (*need).max(*serial);
            }
        }
    }

    /// A client is given a row, for which it asked at `asked_us` at the earliest. Returns the check that this breaks, and how.
    pub fn saw(&mut self, client: u32, saw: &Saw, asked_us: u64) -> Option<(&'static str, String)> {
        let need = self.needs.entry(client).or_default();
        let last = |table: &usize| {
            let seen = usize::try_from(saw.values[*table]).ok()?.checked_sub(1)?;
            self.versions[*table].get(seen).map(|version| version.serial)
        };
        let shown = [BOARD, LEDGER, JOURNAL].iter().filter_map(last).max().unwrap_or(0);
        let before = *need;
        *need = before.max(shown);
        // A portal shows what was visible when it was opened.
        let text = saw.text?;
        let mut tables = tables_read(text, saw.values[DEFINITIONS]).to_vec();
        if text == 43 {
            tables.push(DEFINITIONS);
        }
        if tables.iter().any(|table| asked_us <= self.excused_until_us[*table]) {
            return None;
        }
        let max_age_us = if text == 42 { 0 } else { self.max_age_us };
        let seen = tables.iter().filter_map(last).max().unwrap_or(0);
        for table in tables {
            let Some(next) = self.versions[table].get(usize::try_from(saw.values[table]).ok()?) else {
                continue;
            };
            let told =
                format!("client {client}, text {text}: {:?} lack a change of table {table}", saw.values);
            if next.serial <= before {
                return Some((
                    BACK_IN_TIME,
                    format!("{told}, which is {}, and it must see {before}", next.serial),
                ));
            }
            if next.serial <= seen {
                return Some((ONE_MOMENT, format!("{told}, which is {}, and show {seen}", next.serial)));
            }
            let behind_us = asked_us.saturating_sub(next.visible_us);
            if behind_us > max_age_us {
                return Some((BEHIND, format!("{told} that was visible {behind_us} us before it asked")));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> FollowedCheck {
        let mut check = FollowedCheck::new(100);
        check.becomes_visible(&[BOARD], &[(1, 7)], 1_000);
        check.becomes_visible(&[LEDGER], &[(2, 3)], 2_000);
        check.becomes_visible(&[BOARD, LEDGER], &[], 3_000);
        check
    }

    fn saw(client: u32, text: u32, values: Values, asked_us: u64) -> Option<&'static str> {
        check().saw(client, &Saw { values, text: Some(text) }, asked_us).map(|(check, _)| check)
    }

    #[test]
    fn an_answer_may_be_behind_up_to_its_age() {
        assert_eq!(check().values(), [2, 2, 0, 0]);
        assert_eq!(saw(1, 20, [1, 0, 0, 0], 3_100), None);
        assert_eq!(saw(1, 20, [1, 0, 0, 0], 3_101), Some(BEHIND));
        assert_eq!(saw(1, 20, [2, 0, 0, 0], 9_000), None, "the other table is not read");
        assert_eq!(saw(1, 40, [2, 0, 0, 0], 9_000), Some(BEHIND));
    }

    #[test]
    fn an_answer_shows_one_moment() {
        assert_eq!(saw(1, 41, [1, 1, 0, 0], 2_000), None);
        assert_eq!(saw(1, 41, [2, 1, 0, 0], 2_000), Some(ONE_MOMENT));
        assert_eq!(saw(1, 41, [0, 1, 0, 0], 1_000), Some(ONE_MOMENT));
    }

    #[test]
    fn a_client_sees_its_changes_and_what_it_saw() {
        let mut check = check();
        let board = |values| Saw { values, text: Some(20) };
        assert_eq!(check.saw(1, &board([0, 0, 0, 0]), 1_000), None, "it was not told yet");
        check.told(&Told::Committed(vec![(1, 7)]));
        let found = check.saw(1, &board([0, 0, 0, 0]), 1_000);
        assert_eq!(found.map(|(check, _)| check), Some(BACK_IN_TIME));
        assert_eq!(check.saw(2, &board([2, 0, 0, 0]), 3_000), None);
        let found = check.saw(2, &Saw { values: [0, 1, 0, 0], text: Some(40) }, 3_000);
        assert_eq!(
            found.map(|(check, _)| check),
            Some(BACK_IN_TIME),
            "another table shows the same transaction"
        );
    }

    #[test]
    fn a_name_with_another_meaning_is_excused_for_a_while() {
        let mut check = check();
        check.becomes_visible(&[DEFINITIONS], &[], 4_000);
        check.excuse(DEFINITIONS, 5_000);
        let swap = Saw { values: [2, 2, 0, 0], text: Some(43) };
        assert_eq!(check.saw(1, &swap, 5_000), None);
        assert_eq!(check.saw(1, &swap, 5_001).map(|(check, _)| check), Some(BEHIND));
    }

    #[test]
    fn what_is_not_published_is_never_behind() {
        let mut check = check();
        check.becomes_visible(&[JOURNAL], &[], 4_000);
        let journal = Saw { values: [2, 2, 0, 0], text: Some(42) };
        assert_eq!(check.saw(1, &journal, 4_000), None);
        assert_eq!(check.saw(1, &journal, 4_001).map(|(check, _)| check), Some(BEHIND));
    }
}
