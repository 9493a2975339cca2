//! The cost of statements, by their texts without literals: the top list of SHOW STATEMENTS.
//!
//! The table keeps, in a bounded number of bytes, the numbers of the statements that matter most. It never sees a literal: texts come here
//! without them. In the steady state it allocates nothing, and recording a statement takes one look-up and some additions.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use crate::ids::PoolId;
use crate::limits::{GROUP_BYTES_MAX, NAMES_FOLLOWED_MAX, RECENT_STATEMENTS, STATEMENT_TEXT_BYTES_MAX};
use crate::stats::histogram::{Histogram, Slim};
use crate::stats::obstacle::{KeptUntil, Obstacle};
use crate::stats::snapshot::FollowedNumbers;
use crate::stats::times::Split;

/// The statistics of a statement in a pool.
pub(crate) struct Known {
    pub(crate) pool: PoolId,
    pub(crate) fingerprint: u64,
    /// The statement's text, without literals.
    pub(crate) text: Box<str>,
    pub(crate) calls: u64,
    pub(crate) total_us: u64,
    pub(crate) wait_us: u64,
    pub(crate) client_us: u64,
    pub(crate) max_us: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    /// The number of times that the query cache answered the statement. These are not part of `calls`.
    pub(crate) cache_hits: u64,
    /// The time at the server that hits have saved: for each hit, the statement's mean time at the server at that moment.
    pub(crate) cache_saved_us: u64,
    /// Whether the query cache kept the answer to the last execution, or why not. `None` if the statement has not been executed since the
    /// settings of the cache were last changed, and always without a cache.
    pub(crate) kept: Option<Result<KeptUntil, Obstacle>>,
    /// The first execution ran in a transaction block.
    pub(crate) began_in_transaction: bool,
    /// The whole text without literals, if `text` has not all of it as the client wrote it. `None` also if it is too long.
    whole_text: Option<Box<[u8]>>,
    totals: Slim,
    /// The priority of keeping the statement: its total time, halved by each search for a place that passes it.
    worth: u64,
}

impl Known {
    /// Returns the distribution of the statement's total times.
    pub(crate) fn totals(&self) -> Histogram {
        self.totals.widen(self.total_us)
    }

    /// Returns the whole text without literals, or why it is not known.
    pub(crate) fn whole_text(&self) -> Result<&[u8], Obstacle> {
        let whole = self.whole_text.as_deref().unwrap_or(self.text.as_bytes());
        match whole.ends_with(b"...") {
            false => Ok(whole),
            true if whole.len() > STATEMENT_TEXT_BYTES_MAX => Err(Obstacle::LongText),
            true => Err(Obstacle::Unreadable),
        }
    }

    /// Returns the time at the server, in microseconds.
    fn server_us(&self) -> u64 {
        self.total_us.saturating_sub(self.wait_us).saturating_sub(self.client_us)
    }

    fn size_bytes(&self) -> usize {
        Self::OVERHEAD_BYTES + self.text.len() + self.whole_text.as_ref().map_or(0, |text| text.len())
    }

    /// The size of a place and of its entry in the index.
    const OVERHEAD_BYTES: usize = size_of::<Known>() + 2 * size_of::<(u64, u32)>();
}

/// The priority of a statement that has not been answered yet: as if it took a second, so that a long statement is still in the table when
/// it ends.
const UNTRIED: u64 = 1_000_000;

/// The statement that a server runs.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Running {
    /// The key of the statement in its pool; 0 while it is not known.
    key: u64,
    place: u32,
    /// The statement only begins a transaction, so a later statement of the same group replaces it.
    light: bool,
    pub(crate) failed: bool,
    pub(crate) rows: u64,
    /// The number of bytes that the server had sent before the statement.
    pub(crate) from_bytes: u64,
}

impl Running {
    /// Begins a statement that is not known yet. The place is kept, because most often it is the same statement again.
    #[inline]
    pub(crate) fn begin(&mut self, from_bytes: u64) {
        *self = Running { place: self.place, from_bytes, ..Running::default() };
    }

    /// Whether the statement is known, and only begins a transaction.
    pub(crate) fn is_begin(&self) -> bool {
        self.key != 0 && self.light
    }

    /// Whether the statement is known, and does more than begin a transaction.
    #[inline]
    pub(crate) fn is_named(&self) -> bool {
        self.key != 0 && !self.light
    }
}

/// The statements that a server answered last, to find the one that may have changed its session.
#[derive(Clone, Copy, Default)]
pub(crate) struct Recent {
    /// The key and the place of each statement.
    last: [(u64, u32); RECENT_STATEMENTS],
    next: usize,
}

impl Recent {
    #[inline]
    pub(crate) fn note(&mut self, running: &Running) {
        self.last[self.next % RECENT_STATEMENTS] = (running.key, running.place);
        self.next = self.next.wrapping_add(1);
    }
}

/// A statement as it stands in a client's message.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) pool: PoolId,
    pub(crate) fingerprint: u64,
    /// The text as the client wrote it.
    pub(crate) text: &'a [u8],
    /// The statement runs in a transaction block.
    pub(crate) is_in_transaction: bool,
}

/// The fingerprints of the statements that a session prepared on its server without pgweir's help, by name.
#[derive(Default)]
pub(crate) struct Followed {
    unnamed: Prepared,
    named: HashMap<Box<[u8]>, Prepared>,
}

/// A statement that was prepared.
#[derive(Clone, Copy, Default)]
pub(crate) struct Prepared {
    /// The statement's fingerprint; 0 if it is not known.
    pub(crate) fingerprint: u64,
    /// The statement only begins a transaction.
    pub(crate) light: bool,
}

impl Followed {
    /// Forgets the statements, because another client has the server.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.unnamed = Prepared::default();
        if !self.named.is_empty() {
            self.named.clear();
        }
    }

    pub(crate) fn note(&mut self, name: &[u8], statement: Prepared) {
        if name.is_empty() {
            self.unnamed = statement;
        } else if self.named.len() < NAMES_FOLLOWED_MAX || self.named.contains_key(name) {
            self.named.insert(name.into(), statement);
        }
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Prepared> {
        let statement = if name.is_empty() { self.unnamed } else { *self.named.get(name)? };
        (statement.fingerprint != 0).then_some(statement)
    }
}

/// The table of a worker's statements.
pub(crate) struct StatementStats {
    bytes_max: usize,
    bytes: usize,
    places: Vec<Option<Box<Known>>>,
    /// The keys of the places; 0 is free.
    keys: Vec<u64>,
    free: Vec<u32>,
    index: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    /// A random number that is mixed into the keys. Clients choose texts, and so fingerprints, but cannot choose which of them collide.
    seed: u64,
    /// The place at which the next search goes on.
    hand: usize,
    forgotten: u64,
}

impl StatementStats {
    /// Returns an empty table; with 0 bytes it stays empty.
    pub(crate) fn new(bytes_max: usize) -> StatementStats {
        StatementStats {
            bytes_max,
            bytes: 0,
            places: Vec::new(),
            keys: Vec::new(),
            free: Vec::new(),
            index: HashMap::default(),
            seed: RandomState::new().hash_one(0u8) | 1,
            hand: 0,
            forgotten: 0,
        }
    }

    /// Changes the number of bytes that the table may take; 0 empties it.
    pub(crate) fn resize(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        if bytes_max == 0 {
            *self = StatementStats { seed: self.seed, forgotten: self.forgotten, ..StatementStats::new(0) };
            return;
        }
        self.make_room(0);
    }

    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.bytes_max == 0
    }

    /// The number of statements, and the memory that they take.
    pub(crate) fn numbers(&self) -> FollowedNumbers {
        FollowedNumbers {
            count: self.index.len() as u64,
            bytes: self.bytes as u64,
            forgotten: self.forgotten,
        }
    }

    #[inline]
    fn key(&self, pool: PoolId, fingerprint: u64) -> u64 {
        use slotmap::Key;
        (fingerprint ^ pool.data().as_ffi().wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
    }

    /// Notes that a server runs this statement. Returns `false` if the statement is not in the table.
    #[inline]
    pub(crate) fn name_known(
        &self,
        running: &mut Running,
        pool: PoolId,
        fingerprint: u64,
        light: bool,
    ) -> bool {
        let key = self.key(pool, fingerprint);
        if self.keys.get(running.place as usize) != Some(&key) {
            let Some(place) = self.index.get(&(key ^ self.seed)) else { return false };
            running.place = *place;
        }
        (running.key, running.light) = (key, light);
        true
    }

    /// Returns the statement that a server runs, or has run, if it is still kept here.
    pub(crate) fn known(&self, running: &Running) -> Option<&Known> {
        let place = running.place as usize;
        let is_there = running.key != 0 && self.keys.get(place) == Some(&running.key);
        self.places.get(place)?.as_deref().filter(|_| is_there)
    }

    /// Enters a statement in the table. Returns `None` if it is in the table already, or too large.
    #[cold]
    pub(crate) fn make(&mut self, seen: Seen<'_>) -> Option<()> {
        let key = self.key(seen.pool, seen.fingerprint);
        if self.bytes_max == 0 || self.index.contains_key(&(key ^ self.seed)) {
            return None;
        }
        let (text, whole_text) = texts_to_keep(seen.text);
        let known = Box::new(Known {
            pool: seen.pool,
            fingerprint: seen.fingerprint,
            text,
            calls: 0,
            total_us: 0,
            wait_us: 0,
            client_us: 0,
            max_us: 0,
            rows: 0,
            bytes: 0,
            errors: 0,
            cache_hits: 0,
            cache_saved_us: 0,
            kept: None,
            began_in_transaction: seen.is_in_transaction,
            whole_text,
            totals: Slim::EMPTY,
            worth: UNTRIED,
        });
        let size = known.size_bytes();
        if size > self.bytes_max {
            return None;
        }
        self.make_room(size);
        self.bytes += size;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.keys.push(0);
            (self.places.len() - 1) as u32
        });
        self.places[place as usize] = Some(known);
        self.keys[place as usize] = key;
        self.index.insert(key ^ self.seed, place);
        Some(())
    }

    /// Drops statements until this number of further bytes fits.
    fn make_room(&mut self, size: usize) {
        while self.bytes + size > self.bytes_max && !self.index.is_empty() {
            let Some(least) = self.least_of_some() else { return };
            self.forgotten += 1;
            self.forget(least);
        }
    }

    /// Returns the place with the lowest priority among a few. The priority of each of these is halved, so that a statement that was common
    /// once does not stay forever.
    fn least_of_some(&mut self) -> Option<usize> {
        const LOOKED_AT: usize = 8;
        let (mut least, mut looked_at) = (None, 0);
        for _ in 0..self.places.len() {
            self.hand = (self.hand + 1) % self.places.len();
            let Some(known) = &mut self.places[self.hand] else { continue };
            if least.is_none_or(|(_, worth)| known.worth < worth) {
                least = Some((self.hand, known.worth));
            }
            known.worth /= 2;
            looked_at += 1;
            if looked_at == LOOKED_AT {
                break;
            }
        }
        least.map(|(place, _)| place)
    }

    fn forget(&mut self, place: usize) {
        let Some(known) = self.places[place].take() else { return };
        self.bytes -= known.size_bytes();
        self.index.remove(&(std::mem::take(&mut self.keys[place]) ^ self.seed));
        self.free.push(place as u32);
    }

    /// Drops the statements of a pool that is gone.
    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        for place in 0..self.places.len() {
            if self.places[place].as_ref().is_some_and(|known| known.pool == pool) {
                self.forget(place);
            }
        }
    }

    /// Records that the statement was answered with this number of bytes. Returns its statistics.
    #[inline]
    pub(crate) fn note(&mut self, running: &Running, split: Split, bytes: u64) -> Option<&Known> {
        if running.key == 0 || self.keys.get(running.place as usize) != Some(&running.key) {
            return None;
        }
        let known = self.places[running.place as usize].as_deref_mut()?;
        let total_us = split.total_us();
        known.calls += 1;
        known.total_us += total_us;
        known.wait_us += split.wait_us;
        known.client_us += split.client_us;
        known.max_us = known.max_us.max(total_us);
        known.rows = known.rows.saturating_add(running.rows);
        known.bytes += bytes;
        known.errors += u64::from(running.failed);
        known.worth = if known.calls == 1 { 0 } else { known.worth } + total_us + 1;
        known.totals.record(total_us);
        Some(known)
    }

    /// Whether the statement is in the table.
    pub(crate) fn has(&self, pool: PoolId, fingerprint: u64) -> bool {
        self.index.contains_key(&(self.key(pool, fingerprint) ^ self.seed))
    }

    /// Notes whether the query cache kept the answer to the statement, or why not.
    pub(crate) fn note_kept(&mut self, running: &Running, kept: Result<KeptUntil, Obstacle>) {
        if running.key != 0
            && self.keys.get(running.place as usize) == Some(&running.key)
            && let Some(known) = self.places[running.place as usize].as_deref_mut()
        {
            known.kept = Some(kept);
        }
    }

    /// Notes that the query cache answered the statement. `kept` is the event that ends the answer. Returns the time at PostgreSQL that this
    /// saved (µs); 0 if the statement is not in the table.
    pub(crate) fn note_hit(&mut self, pool: PoolId, fingerprint: u64, kept: KeptUntil) -> u64 {
        let Some(place) = self.index.get(&(self.key(pool, fingerprint) ^ self.seed)) else { return 0 };
        let Some(known) = self.places[*place as usize].as_deref_mut() else { return 0 };
        let saved_us = known.server_us().checked_div(known.calls).unwrap_or(0);
        known.cache_hits += 1;
        known.cache_saved_us += saved_us;
        known.kept = Some(Ok(kept));
        // Otherwise a statement would be dropped because the cache answers it.
        known.worth += saved_us + 1;
        saved_us
    }

    /// Forgets of which statements the query cache kept the answers: its settings have changed.
    pub(crate) fn forget_kept(&mut self) {
        self.places.iter_mut().flatten().for_each(|known| known.kept = None);
    }

    /// Returns the fingerprints and texts of the recent statements that are in the table, the last one first.
    pub(crate) fn recent(&self, recent: &Recent) -> Vec<(u64, Box<str>)> {
        let mut found: Vec<(u64, Box<str>)> = Vec::new();
        for back in 1..=RECENT_STATEMENTS {
            let (key, place) = recent.last[recent.next.wrapping_sub(back) % RECENT_STATEMENTS];
            let known = self.keys.get(place as usize).filter(|known| key != 0 && **known == key);
            let known = known.and_then(|_| self.places[place as usize].as_deref());
            if let Some(known) = known
                && !found.iter().any(|(fingerprint, _)| *fingerprint == known.fingerprint)
            {
                found.push((known.fingerprint, known.text.clone()));
            }
        }
        found
    }

    /// Returns the statements that took most time, in descending order.
    pub(crate) fn top(&self, limit: usize) -> Vec<&Known> {
        let mut all: Vec<&Known> =
            self.places.iter().flatten().map(|known| &**known).filter(|known| known.calls > 0).collect();
        all.sort_unstable_by_key(|known| std::cmp::Reverse(known.total_us));
        all.truncate(limit);
        all
    }
}

/// Returns a text without its literals, as it may be shown: bounded, on one line, without control characters. The second value is the whole
/// text without literals if that is another one; `None` also if it is longer than the texts that the query cache looks at.
fn texts_to_keep(sql: &[u8]) -> (Box<str>, Option<Box<[u8]>>) {
    let mut bytes = Vec::new();
    pgweir_sql::without_literals(sql, |piece| {
        bytes.extend_from_slice(piece);
        bytes.len() <= GROUP_BYTES_MAX
    });
    let is_cut = bytes.len() > STATEMENT_TEXT_BYTES_MAX;
    let front = &bytes[..bytes.len().min(STATEMENT_TEXT_BYTES_MAX)];
    let text = String::from_utf8_lossy(front);
    let mut shown: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if is_cut {
        shown.push_str("...");
    }
    let is_needed = bytes.len() <= GROUP_BYTES_MAX && shown.as_bytes() != bytes;
    (shown.into_boxed_str(), is_needed.then(|| bytes.into_boxed_slice()))
}

/// A hasher that returns the key itself: the keys are hashes already, and seeded.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.is_empty(), "keys are numbers");
    }

    fn write_u64(&mut self, key: u64) {
        // The high bits of a product depend on all of its factors' bits; hash tables look at both ends.
        let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 200_000;

    fn split(us: u64) -> Split {
        Split { wait_us: us / 4, server_us: us - us / 4, client_us: 0 }
    }

    fn run(table: &mut StatementStats, text: &str, us: u64) {
        let mut running = Running::default();
        let fingerprint = pgweir_sql::traits(text.as_bytes()).fingerprint;
        let pool = PoolId::default();
        if !table.name_known(&mut running, pool, fingerprint, false) {
            table.make(Seen { pool, fingerprint, text: text.as_bytes(), is_in_transaction: false });
            table.name_known(&mut running, pool, fingerprint, false);
        }
        table.note(&running, split(us), 10);
    }

    #[test]
    fn what_differs_in_literals_is_one_statement() {
        let mut table = StatementStats::new(BYTES);
        for number in 0..100 {
            run(&mut table, &format!("select * from t where a = {number} and b = 'secret{number}'"), number);
        }
        let top = table.top(10);
        assert_eq!(top.len(), 1);
        assert_eq!(&*top[0].text, "select * from t where a = ? and b = ?");
        assert_eq!((top[0].calls, top[0].bytes, top[0].max_us), (100, 1_000, 99));
        let median_us = top[0].totals().quantile_us(0.5).expect("there are some");
        assert!((45.0..=55.0).contains(&median_us), "{median_us}");
    }

    #[test]
    fn a_hundred_thousand_statements_take_no_more_memory_and_what_matters_stays() {
        let mut table = StatementStats::new(BYTES);
        for number in 0..100_000 {
            run(&mut table, &format!("select column{number} from t"), 50);
            if number % 10 == 0 {
                run(&mut table, "select heavy from t", 2_000);
            }
            assert!(table.bytes <= BYTES, "{} bytes", table.bytes);
        }
        let top = table.top(1);
        assert_eq!((&*top[0].text, top[0].calls), ("select heavy from t", 10_000));
        assert!(table.index.len() * size_of::<Known>() <= BYTES);
        assert!(table.places.len() <= BYTES / size_of::<Known>() + 1, "{} places", table.places.len());
        assert_eq!(table.numbers().count + table.numbers().forgotten, 100_001);
    }

    #[test]
    fn it_follows_its_limit_and_zero_is_off() {
        let mut table = StatementStats::new(BYTES);
        (0..50).for_each(|number| run(&mut table, &format!("select c{number}"), 5));
        table.resize(BYTES / 10);
        assert!((1..=20_000).contains(&table.bytes), "{}", table.bytes);
        table.resize(0);
        run(&mut table, "select c", 5);
        assert_eq!((table.bytes, table.index.len(), table.top(9).len()), (0, 0, 0));
        table.resize(BYTES);
        run(&mut table, "select c", 5);
        assert_eq!(table.top(9).len(), 1);
    }

    #[test]
    fn a_statement_that_was_given_up_while_it_ran_counts_nowhere() {
        let mut table = StatementStats::new(BYTES);
        let mut running = Running::default();
        let pool = PoolId::default();
        let seen = Seen { pool, fingerprint: 7, text: b"a", is_in_transaction: false };
        table.make(seen);
        assert!(table.name_known(&mut running, pool, 7, false));
        table.forget_pool(pool);
        assert!(table.note(&running, split(5), 0).is_none());
        table.make(seen);
        assert!(table.name_known(&mut running, pool, 7, false));
        assert_eq!(table.note(&running, split(5), 0).map(|known| known.calls), Some(1));
    }

    #[test]
    fn a_shown_text_is_bounded_and_on_one_line() {
        let long = format!("select \"a\x01\nb\", {}", "column, ".repeat(2_000));
        let (shown, whole) = texts_to_keep(long.as_bytes());
        assert!(shown.starts_with("select \"a??b\", column, ") && shown.ends_with("..."), "{shown}");
        assert!(shown.len() <= crate::limits::STATEMENT_TEXT_BYTES_MAX + 3);
        assert_eq!(whole, None, "it is longer than any that is kept");
    }

    #[test]
    fn a_text_is_known_whole_up_to_the_length_of_a_group() {
        let whole = |text: &str| {
            let mut table = StatementStats::new(BYTES);
            run(&mut table, text, 1);
            let top = table.top(1);
            top[0].whole_text().map(|text| String::from_utf8_lossy(text).into_owned())
        };
        let long = |columns: usize| format!("select {}a from t", "column, ".repeat(columns));
        assert_eq!(whole("select a, 1 from t").as_deref(), Ok("select a, ? from t"));
        assert_eq!(whole("select \"a\nb\" from t").as_deref(), Ok("select \"a\nb\" from t"));
        assert_eq!(whole(&long(500)), Ok(long(500)));
        assert_eq!(whole(&long(5_000)), Err(Obstacle::LongText));
        assert_eq!(whole("select 'a'b"), Err(Obstacle::Unreadable), "a quote may be missing");
    }

    #[test]
    fn hits_save_the_mean_time_at_the_server() {
        let mut table = StatementStats::new(BYTES);
        let pool = PoolId::default();
        run(&mut table, "select a from t", 100);
        run(&mut table, "select a from t", 300);
        let fingerprint = pgweir_sql::traits(b"select a from t").fingerprint;
        table.note_hit(pool, fingerprint, KeptUntil::RowChanges);
        table.note_hit(pool, fingerprint, KeptUntil::RowChanges);
        table.note_hit(pool, 1, KeptUntil::RowChanges);
        let known = table.top(1)[0];
        assert_eq!((known.calls, known.cache_hits, known.kept), (2, 2, Some(Ok(KeptUntil::RowChanges))));
        assert_eq!(known.cache_saved_us, 2 * (75 + 225) / 2);
        table.forget_kept();
        assert_eq!(table.top(1)[0].kept, None);
    }
}
