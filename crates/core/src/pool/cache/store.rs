//! The answers that a worker keeps, within a number of bytes. S3-FIFO (Yang and others, SOSP 2023) decides which answer is evicted first: a
//! new answer enters a small queue, and leaves it first if no client asks for it there. An answer that was asked for, or that comes again
//! soon after it left, enters the main queue. A hit moves no answer.
//!
//! The store compares whole keys and counts bytes. It does not decide whether an answer may still be given: `relay/known_answers.rs` does.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ids::PoolId;
use crate::pool::cache::capture::SentAt;
use crate::pool::cache::wal::Dependence;

/// The number of bytes that an answer counts for besides its key and its messages: places in the index and in a queue, allocations.
const OVERHEAD_BYTES: usize = 256;
/// The part of all bytes that the answers of the small queue may take: one in this number.
const SMALL_SHARE: usize = 10;
/// The number of places in the queues that may be out of date however few answers there are.
const STALE_PLACES: usize = 64;
/// The number up to which the hits of an answer are counted.
const HITS_MAX: u8 = 3;

/// An answer that is kept.
pub(crate) struct Kept {
    /// The messages of the answer, up to and with ReadyForQuery.
    pub(crate) answer: Box<[u8]>,
    /// The time at which the statement was sent, with the state of the database at that time.
    pub(crate) sent: SentAt,
    /// The tables that the answer depends on; `None` if they are not followed.
    pub(crate) dependence: Option<Box<Dependence>>,
    pool: PoolId,
    hits: u8,
    queue: Queue,
    /// The number of the answer's place in a queue. A place of the same key with another number is out of date.
    serial: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
}

/// The answers of one pool in the store, in numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) answers: u64,
    pub(crate) bytes: u64,
    /// The number of answers that were evicted, since the pool exists.
    pub(crate) evicted: u64,
}

/// The number of bytes in captures. They count in the store's bound, so that answers on their way and answers that are kept have one limit.
#[derive(Clone, Default)]
pub(crate) struct CaptureBytes(Arc<AtomicUsize>);

impl CaptureBytes {
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn take(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }
}

type Place = (Arc<[u8]>, u64);

/// The answers of a worker, by key.
pub(crate) struct Store {
    bytes_max: usize,
    bytes: usize,
    small_bytes: usize,
    kept: HashMap<Arc<[u8]>, Kept>,
    small: VecDeque<Place>,
    main: VecDeque<Place>,
    /// The hashes of the keys that left the small queue last, the oldest first.
    ghosts: VecDeque<u64>,
    is_ghost: HashSet<u64>,
    hasher: RandomState,
    held: HashMap<PoolId, Held>,
    underway: CaptureBytes,
    /// The number of bytes that count in the bound and belong to no answer.
    other_bytes: usize,
    serial: u64,
}

impl Store {
    pub(crate) fn new(bytes_max: usize) -> Store {
        Store {
            bytes_max,
            bytes: 0,
            small_bytes: 0,
            kept: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            is_ghost: HashSet::new(),
            hasher: RandomState::new(),
            held: HashMap::new(),
            underway: CaptureBytes::default(),
            other_bytes: 0,
            serial: 0,
        }
    }

    /// Returns the number of bytes that answers may take together, with those in captures.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Returns the counter of the bytes in captures. Each capture shares it.
    pub(crate) fn underway(&self) -> &CaptureBytes {
        &self.underway
    }

    /// Returns the number and size of the pool's answers.
    pub(crate) fn held(&self, pool: PoolId) -> Held {
        self.held.get(&pool).copied().unwrap_or_default()
    }

    /// Returns the answer with this key. The caller calls [`Kept::note_hit`] if it gives the answer to a client.
    pub(crate) fn get(&mut self, key: &[u8]) -> Option<&mut Kept> {
        self.kept.get_mut(key)
    }

    /// Keeps an answer, instead of an older one with the same key. Returns the number of answers that were evicted; `None` if the answer is
    /// not kept: it is longer than all answers may be, or there is a newer one.
    pub(crate) fn keep(
        &mut self,
        key: Arc<[u8]>,
        pool: PoolId,
        answer: &[u8],
        (sent, dependence): (SentAt, Option<Box<Dependence>>),
    ) -> Option<usize> {
        let bytes = cost(&key, answer, dependence.as_deref());
        if bytes > self.bytes_max {
            return None;
        }
        if let Some(kept) = self.kept.get_mut(&key) {
            // The slower of two statements may have been sent first.
            if kept.sent.at_us > sent.at_us {
                return None;
            }
            let (before, queue) = (kept.cost(&key), kept.queue);
            (kept.answer, kept.sent, kept.dependence) = (answer.into(), sent, dependence);
            self.count(pool, queue, before, bytes);
            return Some(self.shrink());
        }
        self.serial += 1;
        let serial = self.serial;
        let hash = self.hasher.hash_one(&*key);
        let queue = if self.is_ghost.remove(&hash) { Queue::Main } else { Queue::Small };
        match queue {
            Queue::Small => self.small.push_back((Arc::clone(&key), serial)),
            Queue::Main => self.main.push_back((Arc::clone(&key), serial)),
        }
        let kept = Kept { answer: answer.into(), sent, dependence, pool, hits: 0, queue, serial };
        self.kept.insert(key, kept);
        self.count(pool, queue, 0, bytes);
        self.held.entry(pool).or_default().answers += 1;
        // An answer that a change ends leaves its place behind, and its key with it.
        if self.small.len() + self.main.len() > 2 * self.kept.len() + STALE_PLACES {
            self.forget_stale_places();
        }
        Some(self.shrink())
    }

    /// Removes the answer with this key, and returns it.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<Kept> {
        let kept = self.kept.remove(key)?;
        self.count(kept.pool, kept.queue, kept.cost(key), 0);
        self.held.entry(kept.pool).or_default().answers -= 1;
        Some(kept)
    }

    /// Sets the number of bytes that answers may take together. Returns the number of answers that were evicted.
    pub(crate) fn resize(&mut self, bytes_max: usize) -> usize {
        self.bytes_max = bytes_max;
        self.shrink()
    }

    /// Sets the number of bytes that count in the bound and belong to no answer. They take room from the next answer that is kept on.
    pub(crate) fn set_other_bytes(&mut self, bytes: usize) {
        self.other_bytes = bytes;
    }

    /// Drops all answers of a pool. Returns their number.
    pub(crate) fn drop_pool(&mut self, pool: PoolId) -> usize {
        let of_pool = |kept: &Kept| kept.pool == pool;
        let keys: Vec<Arc<[u8]>> =
            self.kept.iter().filter(|(_, kept)| of_pool(kept)).map(|(key, _)| Arc::clone(key)).collect();
        for key in &keys {
            self.take(key);
        }
        self.forget_stale_places();
        self.forget_ghosts();
        keys.len()
    }

    /// Drops all answers of a pool that is gone, and its numbers.
    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        self.drop_pool(pool);
        self.held.remove(&pool);
    }

    /// Forgets the places in the queues whose answers are gone.
    fn forget_stale_places(&mut self) {
        let Store { kept, small, main, .. } = self;
        let is_there =
            |(key, serial): &Place| kept.get(key).is_some_and(|known: &Kept| known.serial == *serial);
        small.retain(is_there);
        main.retain(is_there);
    }

    fn count(&mut self, pool: PoolId, queue: Queue, before: usize, now: usize) {
        self.bytes = self.bytes - before + now;
        if queue == Queue::Small {
            self.small_bytes = self.small_bytes - before + now;
        }
        let held = self.held.entry(pool).or_default();
        held.bytes = held.bytes - before as u64 + now as u64;
    }

    fn shrink(&mut self) -> usize {
        let before = self.kept.len();
        let outside = self.underway.bytes() + self.other_bytes;
        while self.bytes + outside > self.bytes_max && !self.kept.is_empty() {
            if self.small_bytes > self.bytes_max / SMALL_SHARE || self.main.is_empty() {
                self.evict_from_small();
            } else {
                self.evict_from_main();
            }
        }
        self.forget_ghosts();
        before - self.kept.len()
    }

    /// Evicts the oldest answer of the small queue, or moves it to the main queue if a client has asked for it.
    fn evict_from_small(&mut self) {
        let Some((key, serial)) = self.small.pop_front() else { return self.evict_from_main() };
        let Some(kept) = self.kept.get_mut(&key).filter(|kept| kept.serial == serial) else { return };
        if kept.hits > 0 {
            (kept.hits, kept.queue) = (0, Queue::Main);
            self.small_bytes -= kept.cost(&key);
            self.main.push_back((key, serial));
            return;
        }
        let hash = self.hasher.hash_one(&*key);
        self.evict(&key);
        if self.is_ghost.insert(hash) {
            self.ghosts.push_back(hash);
        }
    }

    /// Forgets the oldest hashes, so that there are no more of them than answers.
    fn forget_ghosts(&mut self) {
        while self.ghosts.len() > self.kept.len().max(1) {
            let oldest = self.ghosts.pop_front();
            self.is_ghost.remove(&oldest.unwrap_or_default());
        }
    }

    /// Evicts the oldest answer of the main queue, or moves it to the end if a client has asked for it.
    fn evict_from_main(&mut self) {
        let Some((key, serial)) = self.main.pop_front() else { return };
        let Some(kept) = self.kept.get_mut(&key).filter(|kept| kept.serial == serial) else { return };
        if kept.hits > 0 {
            kept.hits -= 1;
            self.main.push_back((key, serial));
        } else {
            self.evict(&key);
        }
    }

    fn evict(&mut self, key: &Arc<[u8]>) {
        if let Some(kept) = self.take(key) {
            self.held.entry(kept.pool).or_default().evicted += 1;
        }
    }
}

impl Kept {
    /// Returns the number of bytes that the answer counts for.
    fn cost(&self, key: &[u8]) -> usize {
        cost(key, &self.answer, self.dependence.as_deref())
    }

    /// Counts a hit: the answer is given to a client.
    pub(crate) fn note_hit(&mut self) {
        self.hits = (self.hits + 1).min(HITS_MAX);
    }
}

fn cost(key: &[u8], answer: &[u8], dependence: Option<&Dependence>) -> usize {
    key.len() + answer.len() + OVERHEAD_BYTES + dependence.map_or(0, Dependence::bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slotmap::SlotMap;

    use super::*;

    const ANSWER: &[u8] = &[0; 44];

    fn key(number: u32) -> Arc<[u8]> {
        number.to_be_bytes().into()
    }

    fn sent(at_us: u64) -> SentAt {
        SentAt { at_us, age: 0, changes: 0 }
    }

    /// A store with room for this number of answers.
    fn store(answers: usize) -> Store {
        Store::new(answers * cost(&key(0), ANSWER, None))
    }

    fn keep(store: &mut Store, number: u32) -> usize {
        store.keep(key(number), PoolId::default(), ANSWER, (sent(1), None)).expect("it has room")
    }

    fn has(store: &mut Store, number: u32) -> bool {
        store.get(&key(number)).is_some()
    }

    #[test]
    fn what_is_asked_for_outlives_what_comes_once() {
        let mut store = store(20);
        keep(&mut store, 0);
        for number in 1..1000 {
            store.get(&key(0)).expect("it is asked for").note_hit();
            keep(&mut store, number);
        }
        assert!(has(&mut store, 0) && has(&mut store, 999) && !has(&mut store, 1));
        assert_eq!(store.held(PoolId::default()).answers, 20);
        assert_eq!(store.held(PoolId::default()).evicted, 980);
    }

    #[test]
    fn what_comes_again_soon_stays() {
        let mut store = store(20);
        for number in 0..21 {
            keep(&mut store, number);
        }
        assert!(!has(&mut store, 0), "it was the oldest");
        keep(&mut store, 0);
        for number in 100..118 {
            keep(&mut store, number);
        }
        assert!(has(&mut store, 0), "it came again, so it is not in the small queue");
    }

    #[test]
    fn a_newer_answer_replaces_an_older_one_and_no_other() {
        let mut store = store(5);
        let pool = PoolId::default();
        store.keep(key(1), pool, b"new", (sent(5), None));
        store.keep(key(1), pool, b"old", (sent(4), None));
        assert_eq!(&*store.get(&key(1)).expect("it is kept").answer, b"new");
        store.keep(key(1), pool, b"newer", (sent(6), None));
        assert_eq!(&*store.get(&key(1)).expect("it is kept").answer, b"newer");
        assert_eq!(
            store.held(pool),
            Held { answers: 1, bytes: cost(&key(1), b"newer", None) as u64, evicted: 0 }
        );
    }

    #[test]
    fn answers_under_way_take_room() {
        let mut store = store(4);
        (0..4).for_each(|number| assert_eq!(keep(&mut store, number), 0));
        store.underway().add(2 * cost(&key(0), ANSWER, None));
        assert_eq!(keep(&mut store, 5), 3);
        store.underway().take(2 * cost(&key(0), ANSWER, None));
        assert_eq!(keep(&mut store, 6), 0);
        store.set_other_bytes(2 * cost(&key(0), ANSWER, None));
        assert_eq!(keep(&mut store, 7), 2);
        assert_eq!(
            store.keep(key(9), PoolId::default(), &[0; 4000], (sent(1), None)),
            None,
            "it would never fit"
        );
        assert!(!has(&mut store, 9));
    }

    #[test]
    fn answers_that_changes_end_leave_nothing_behind() {
        let mut store = store(20);
        keep(&mut store, 0);
        for _ in 0..10_000 {
            keep(&mut store, 1);
            store.take(&key(1));
        }
        assert!(store.small.len() + store.main.len() <= 2 + STALE_PLACES);
        assert!(has(&mut store, 0));
    }

    #[test]
    fn a_pool_is_dropped_alone() {
        let mut pools = SlotMap::<PoolId, ()>::with_key();
        let [one, two] = [pools.insert(()), pools.insert(())];
        let mut store = store(10);
        store.keep(key(1), one, ANSWER, (sent(1), None));
        store.keep(key(2), two, ANSWER, (sent(1), None));
        assert_eq!(store.drop_pool(one), 1);
        assert!(!has(&mut store, 1) && has(&mut store, 2));
        assert_eq!((store.held(one), store.held(two).answers), (Held::default(), 1));
        assert_eq!(store.resize(0), 1);
        assert_eq!(store.bytes, 0);
    }

    proptest! {
        #[test]
        fn the_bound_is_kept_and_bytes_are_those_of_the_answers(
            steps in prop::collection::vec((0u32..60, 0usize..600, 0u8..8), 1..400)
        ) {
            let mut store = Store::new(8_000);
            for (number, len, what) in steps {
                match what {
                    0 => {
                        store.drop_pool(PoolId::default());
                    }
                    1 | 2 => store.get(&key(number)).into_iter().for_each(Kept::note_hit),
                    3 | 4 => _ = store.take(&key(number)),
                    _ => {
                        store.keep(key(number), PoolId::default(), &vec![0; len], (sent(1), None));
                    }
                }
                let sum: usize = store.kept.iter().map(|(key, kept)| kept.cost(key)).sum();
                let small = store.kept.iter().filter(|(_, kept)| kept.queue == Queue::Small);
                let small: usize = small.map(|(key, kept)| kept.cost(key)).sum();
                prop_assert_eq!((store.bytes, store.small_bytes), (sum, small));
                prop_assert!(store.bytes <= 8_000);
                prop_assert!(store.ghosts.len() <= 60);
                prop_assert!(store.small.len() + store.main.len() >= store.kept.len());
                prop_assert!(store.small.len() + store.main.len() <= 2 * 60 + STALE_PLACES);
                let held = store.held(PoolId::default());
                prop_assert_eq!((held.answers, held.bytes), (store.kept.len() as u64, sum as u64));
            }
        }
    }
}
