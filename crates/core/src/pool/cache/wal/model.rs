//! The rules against a model of PostgreSQL, in random runs. The model commits in steps, each with a delay of its own: the record is written, the
//! stream sends the changes, the transaction becomes visible, its client is told. The stream may be behind; mail to the worker is in order, and
//! late. Each answer that is given must have seen every change of its tables, or of its row, that was visible, or acknowledged, when the time began
//! up to which the answer was said to be fresh. The changes pass through the stream's own messages and their decoder.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;

use super::*;
use crate::cluster::answer::Lsn;
use crate::limits::TRANSACTION_KEYS_MAX;
use crate::pool::cache::wal::decoder::{ChangedRows, Decoder};
use crate::pool::cache::wal::probes::Probes;
use crate::pool::cache::wal::row_key::row_key;
use crate::pool::cache::wal::stream_messages::{
    UNCHANGED, begin, commit, insert, relation, truncate, update,
};

const TABLES: u32 = 3;
/// The tables whose rows are told apart by a key; the other one's replica identity is the whole row.
const KEYED: u32 = 2;
/// The keys that statements ask for.
const KEYS: u8 = 3;
const MAX_AGE_US: u64 = 400;
/// The first transaction, near the place where 32 bits end.
const FIRST_XID: u64 = (7 << 32) - 20;
const PAGE: u64 = 8192;

/// A change of a table.
#[derive(Clone, Debug)]
enum Write {
    /// All rows are removed.
    Truncate(u32),
    /// A row with this key is written.
    Row(u32, u8),
    /// A row gets another key.
    Move(u32, u8, u8),
    /// More rows are written than a transaction's keys are remembered.
    Many(u32),
    /// A row is written whose key is stored apart, so that the stream does not tell it.
    Apart(u32, u8),
}

impl Write {
    fn table(&self) -> u32 {
        match *self {
            Write::Truncate(table)
            | Write::Row(table, _)
            | Write::Move(table, ..)
            | Write::Many(table)
            | Write::Apart(table, _) => table,
        }
    }

    /// Whether it changes what an answer depends on.
    fn touches(&self, read: &Read) -> bool {
        match *read {
            Read::Tables(ref tables) => tables.contains(&self.table()),
            Read::Row(table, _) if table != self.table() => false,
            Read::Row(_, key) => match *self {
                Write::Truncate(_) | Write::Many(_) => true,
                Write::Row(_, written) | Write::Apart(_, written) => written == key,
                Write::Move(_, from, to) => from == key || to == key,
            },
        }
    }

    /// Returns the messages of the stream.
    fn messages(&self) -> Vec<Vec<u8>> {
        let text = |key: u8| key.to_string();
        match *self {
            Write::Truncate(table) => vec![truncate(table)],
            Write::Row(table, key) => vec![insert(table, &[Some(&text(key)), Some("x")])],
            Write::Move(table, from, to) => {
                vec![update(table, &[Some(&text(from)), None], &[Some(&text(to)), Some("x")])]
            }
            Write::Many(table) => {
                // The keys that statements ask for come last.
                let keys = (0..=TRANSACTION_KEYS_MAX as u8).rev();
                keys.map(|key| insert(table, &[Some(&text(key)), Some("x")])).collect()
            }
            Write::Apart(table, _) => vec![update(table, &[], &[Some(UNCHANGED), Some("x")])],
        }
    }
}

/// The tables or the row that a statement reads.
#[derive(Clone, Debug)]
enum Read {
    Tables(BTreeSet<u32>),
    Row(u32, u8),
}

impl Read {
    fn subject(&self) -> Subject {
        match self {
            Read::Tables(tables) => Subject::Tables(tables.iter().copied().collect()),
            Read::Row(table, key) => {
                let text = key.to_string();
                Subject::Row(*table, row_key([text.as_bytes()].into_iter()).expect("it is short"))
            }
        }
    }
}

/// A transaction of the model.
struct Transaction {
    writes: Vec<Write>,
    /// The end of its commit's record; `None` before that is written.
    end: Option<u64>,
    is_sent: bool,
    is_visible: bool,
}

/// A model of PostgreSQL, of its stream, and of a probe's way.
struct Model {
    now_us: u64,
    next_xid: u64,
    end: u64,
    transactions: BTreeMap<u64, Transaction>,
    /// The records that the stream has not sent, in order.
    unsent: VecDeque<(u64, u64)>,
    /// The moments: the time of each, and the transactions that were visible.
    history: Vec<(u64, BTreeSet<u64>)>,
    probes: Probes,
    decoder: Decoder,
    catalog: Arc<Catalog>,
    /// The probe that PostgreSQL has not run; its number.
    probe: Option<u64>,
    /// The answer to a probe that is on its way.
    answer: Option<(Stamp, Lsn)>,
    mail: VecDeque<News>,
    sent: Arc<AtomicU64>,
}

/// A statement on its way.
struct Statement {
    fill: Option<Fill>,
    read: Read,
    /// The transactions that it has seen; `None` before it has run.
    saw: Option<BTreeSet<u64>>,
}

struct Answer {
    dependence: Dependence,
    read: Read,
    saw: BTreeSet<u64>,
    /// The time at which the answer was kept.
    kept_us: u64,
}

/// A step of a run. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Begin(Vec<Write>),
    Record(usize),
    Send,
    Show(usize),
    Abort(usize),
    Probe,
    RunProbe,
    TakeAnswer,
    Mail(usize),
    Ask(Read),
    Run(usize),
    Finish(usize),
    Hit(usize),
    Wait(u64),
    /// A statement runs and is answered, without anything between.
    Read(Read),
    /// A probe, and all that is on its way, arrives.
    Settle,
}

impl Step {
    /// Returns the single steps.
    fn parts(self) -> Vec<Step> {
        match self {
            Step::Read(read) => vec![Step::Ask(read), Step::Run(usize::MAX), Step::Finish(usize::MAX)],
            Step::Settle => {
                let mut parts = vec![Step::Probe, Step::RunProbe, Step::TakeAnswer];
                parts.extend(vec![Step::Send; 4]);
                parts.push(Step::Mail(20));
                parts
            }
            one => vec![one],
        }
    }
}

impl Model {
    fn new() -> Model {
        Model {
            now_us: 1000,
            next_xid: FIRST_XID,
            end: 5 * PAGE,
            transactions: BTreeMap::new(),
            unsent: VecDeque::new(),
            history: Vec::new(),
            probes: Probes::default(),
            decoder: Decoder::default(),
            catalog: Arc::new(Catalog::of(b"0:id=23,1:id=23,2", b"", b"").expect("it is a catalog")),
            probe: None,
            answer: None,
            mail: VecDeque::new(),
            sent: Arc::default(),
        }
    }

    fn visible(&self) -> BTreeSet<u64> {
        self.transactions.iter().filter(|(_, known)| known.is_visible).map(|(xid, _)| *xid).collect()
    }

    fn snapshot(&self) -> Stamp {
        let running: Vec<u64> =
            self.transactions.iter().filter(|(_, known)| !known.is_visible).map(|(xid, _)| *xid).collect();
        let xmin = running.first().copied().unwrap_or(self.next_xid);
        let list: Vec<String> = running.iter().map(u64::to_string).collect();
        Stamp::parse(format!("{xmin}:{}:{}", self.next_xid, list.join(",")).as_bytes()).expect("a snapshot")
    }

    /// Returns the transaction that a number chooses among those that `fits` accepts.
    fn choose(&self, number: usize, fits: impl Fn(&Transaction) -> bool) -> Option<u64> {
        let fit: Vec<u64> =
            self.transactions.iter().filter(|(_, known)| fits(known)).map(|(xid, _)| *xid).collect();
        (!fit.is_empty()).then(|| fit[number % fit.len()])
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Begin(writes) => {
                let writes = writes.clone();
                let began = Transaction { writes, end: None, is_sent: false, is_visible: false };
                self.transactions.insert(self.next_xid, began);
                self.next_xid += 1;
            }
            Step::Record(number) => {
                if let Some(xid) = self.choose(*number, |known| known.end.is_none() && !known.is_visible) {
                    self.end += 100;
                    if self.end % PAGE < 100 {
                        // The record ends with its page: the next one begins after a header.
                        self.end -= self.end % PAGE;
                    }
                    let end = self.end;
                    self.transactions.get_mut(&xid).expect("it was chosen").end = Some(end);
                    self.unsent.push_back((xid, end));
                }
            }
            Step::Send => {
                if let Some((xid, end)) = self.unsent.pop_front() {
                    let known = self.transactions.get_mut(&xid).expect("it has a record");
                    known.is_sent = true;
                    let near = self.snapshot();
                    let committed = self.decoded(xid, end);
                    let touched = self.catalog.touched(committed);
                    self.mail.push_back(News::Changed(near.widen(xid as u32), touched));
                    self.probes.advance(Lsn(end));
                    self.confirm();
                }
            }
            Step::Show(number) => {
                if let Some(xid) = self.choose(*number, |known| known.end.is_some() && !known.is_visible) {
                    self.transactions.get_mut(&xid).expect("it was chosen").is_visible = true;
                }
            }
            Step::Abort(number) => {
                if let Some(xid) = self.choose(*number, |known| known.end.is_none() && !known.is_visible) {
                    let known = self.transactions.get_mut(&xid).expect("it was chosen");
                    (known.is_visible, known.writes) = (true, Vec::new());
                }
            }
            Step::Probe if self.probe.is_none() && self.answer.is_none() => {
                let number = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
                self.probes.send(StampNumber(number), self.now_us);
                self.probe = Some(number);
            }
            Step::RunProbe if self.probe.take().is_some() => {
                let header = if self.end.is_multiple_of(PAGE) { 24 } else { 0 };
                self.answer = Some((self.snapshot(), Lsn(self.end + header)));
            }
            Step::TakeAnswer => {
                if let Some((stamp, position)) = self.answer.take() {
                    let probe = self.probes.answer(position, PAGE).expect("it was asked");
                    self.mail.push_back(News::Stamp(probe.number, Arc::new(stamp)));
                    self.confirm();
                }
            }
            Step::Wait(by_us) => self.now_us += by_us,
            _ => {}
        }
    }

    /// Returns what the decoder makes of a transaction.
    fn decoded(&mut self, xid: u64, end: u64) -> BTreeMap<u32, ChangedRows> {
        let mut messages = vec![begin(xid as u32)];
        for table in 0..TABLES {
            let identity = if table < KEYED { b'd' } else { b'f' };
            messages.push(relation(table, identity, &[("ID", 23), ("a", 25)]));
        }
        messages.extend(self.transactions[&xid].writes.iter().flat_map(Write::messages));
        messages.push(commit(end));
        let taken = messages.iter().map(|message| self.decoder.take(message).expect("it is in order"));
        taken.last().flatten().expect("it is committed").tables
    }

    fn confirm(&mut self) {
        if let Some(fresh) = self.probes.confirm() {
            self.mail.push_back(News::Fresh(fresh, 0));
        }
    }
}

/// Returns the place that a number chooses; the highest number chooses the last one.
fn place(number: usize, len: usize) -> usize {
    if number == usize::MAX { len - 1 } else { number % len }
}

/// Runs the steps. Returns the number of answers that were given.
fn run(steps: Vec<Step>) -> usize {
    let mut model = Model::new();
    let name: Arc<str> = "db".into();
    let mut followed = FollowedDatabases::default();
    let node = Node { started_us: 1, system: 2, database: 3 };
    let began = Began { probes_sent: Arc::clone(&model.sent), node };
    let catalog = News::Catalog(Arc::clone(&model.catalog));
    for news in [News::Began(began), catalog, News::Looked(ChangesMade::default()), News::Opened(1)] {
        followed.take(&name, &news, model.now_us);
    }
    let mut statements: Vec<Statement> = Vec::new();
    let mut answers: Vec<Answer> = Vec::new();
    let mut given = 0;
    let mut clients: [(u64, BTreeSet<u64>); 3] = Default::default();
    for step in steps.into_iter().flat_map(Step::parts) {
        model.now_us += 1;
        model.act(&step);
        model.history.push((model.now_us, model.visible()));
        let now_us = model.now_us;
        let stream = followed.opened("db").expect("it is open");
        match &step {
            Step::Mail(count) => {
                for _ in 0..=*count {
                    if let Some(news) = model.mail.pop_front() {
                        followed.take(&name, &news, now_us);
                    }
                }
            }
            Step::Ask(read) => {
                let fill = stream.fill(SentAt { at_us: now_us, age: 0, changes: 0 }, read.subject());
                statements.push(Statement { fill, read: read.clone(), saw: None });
            }
            Step::Run(number) if !statements.is_empty() => {
                let at = place(*number, statements.len());
                statements[at].saw.get_or_insert_with(|| model.visible());
            }
            Step::Finish(number) if !statements.is_empty() => {
                let Statement { fill, read, saw } = statements.remove(place(*number, statements.len()));
                let Some(saw) = saw else { continue };
                // The client gets the answer, whether or not it is kept.
                let (last_seen, last_given) = &mut clients[place(*number, 3)];
                *last_seen = stream.last_probe();
                last_given.extend(saw.iter().copied());
                if let Some(dependence) = fill.and_then(|fill| stream.admit(&fill)) {
                    answers.push(Answer { dependence, read, saw, kept_us: now_us });
                }
            }
            Step::Hit(number) if !answers.is_empty() => {
                let answer = &answers[place(*number, answers.len())];
                let (last_seen, last_given) = &mut clients[place(number / 7, 3)];
                let Ok(fresh) = stream.check(&answer.dependence, *last_seen, (now_us, MAX_AGE_US)) else {
                    continue;
                };
                given += 1;
                assert!(now_us - fresh.at_us <= MAX_AGE_US);
                let visible = model.history.iter().rfind(|(at_us, _)| *at_us <= fresh.at_us);
                let due = visible.map(|(_, visible)| visible.clone()).unwrap_or_default();
                for xid in due.iter().chain(&*last_given) {
                    let touches =
                        model.transactions[xid].writes.iter().any(|write| write.touches(&answer.read));
                    assert!(
                        !touches || answer.saw.contains(xid),
                        "an answer that was kept at {} has not seen {xid}, which was visible at {}",
                        answer.kept_us,
                        fresh.at_us
                    );
                }
                *last_seen = (*last_seen).max(answer.dependence.seen());
                last_given.extend(answer.saw.iter().copied());
            }
            _ => {}
        }
    }
    given
}

fn step() -> impl Strategy<Value = Step> {
    let keyed = || (0..KEYED, 0..KEYS);
    let write = prop_oneof![
        8 => (0..TABLES, 0..KEYS).prop_map(|(table, key)| Write::Row(table, key)),
        4 => (0..TABLES, 0..KEYS, 0..KEYS).prop_map(|(table, from, to)| Write::Move(table, from, to)),
        1 => (0..TABLES).prop_map(Write::Truncate),
        1 => (0..TABLES).prop_map(Write::Many),
        1 => (0..TABLES, 0..KEYS).prop_map(|(table, key)| Write::Apart(table, key)),
    ];
    let tables = prop::collection::btree_set(0..TABLES, 1..3).prop_map(Read::Tables);
    let row = keyed().prop_map(|(table, key)| Read::Row(table, key));
    let read = prop_oneof![1 => tables, 2 => row].boxed();
    prop_oneof![
        2 => prop::collection::vec(write, 1..3).prop_map(Step::Begin),
        3 => any::<usize>().prop_map(Step::Record),
        4 => Just(Step::Send),
        3 => any::<usize>().prop_map(Step::Show),
        1 => any::<usize>().prop_map(Step::Abort),
        5 => Just(Step::Probe),
        5 => Just(Step::RunProbe),
        5 => Just(Step::TakeAnswer),
        9 => (0usize..4).prop_map(Step::Mail),
        4 => read.clone().prop_map(Step::Ask),
        4 => any::<usize>().prop_map(Step::Run),
        4 => any::<usize>().prop_map(Step::Finish),
        16 => any::<usize>().prop_map(Step::Hit),
        1 => (1u64..200).prop_map(Step::Wait),
        4 => read.prop_map(Step::Read),
        5 => Just(Step::Settle),
        6 => Just(Step::Hit(usize::MAX)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn an_answer_has_seen_all_that_was_visible_when_it_was_fresh(steps in prop::collection::vec(step(), 0..200)) {
        run(steps);
    }
}

/// The random runs above would find nothing if no answer were ever given.
#[test]
fn answers_are_given() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(step(), 200);
    let given: usize = (0..50)
        .map(|_| {
            let steps = proptest::strategy::Strategy::new_tree(&strategy, &mut runner).expect("a run");
            run(proptest::strategy::ValueTree::current(&steps))
        })
        .sum();
    assert!(given > 200, "{given}");
}
