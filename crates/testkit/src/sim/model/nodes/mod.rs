//! The nodes of the model's cluster: which of them run, what each says it is, and what happens to them. And the check that matters most: no
//! change is carried out at a node after its term.

mod known;
pub mod lag;
pub mod source;
mod standby;
pub mod wal;
pub mod xids;

use std::collections::BTreeMap;
use std::sync::Arc;

use pgweir_core::source::SourceReport;

use self::known::Known;
use self::lag::{LagAnswer, Lags};
use self::source::Source;
use self::wal::{Delay, Place, Wal};
use self::xids::Xids;
use crate::sim::context::{Event, SimContext};
use crate::sim::network::proto::{Body, Message};
use crate::sim::plan::ClusterPlan;
use crate::sim::rng::Rng;

/// The user that the pooler watches nodes as.
pub const WATCHER: &str = "checker";

/// The status of a node's server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The server runs.
    Running,
    /// The server refuses logins with 57P03.
    Starting,
    /// The server does not listen at its port.
    Stopped,
}

/// One PostgreSQL.
#[derive(Clone, Debug)]
pub struct Node {
    /// See [`Status`].
    pub status: Status,
    /// `true` if no bytes pass between the node and the pooler.
    pub isolated: bool,
    /// `true` if the node is a standby.
    pub in_recovery: bool,
    /// A standby's: where it has come. A primary's: its timeline, and where that began.
    place: Place,
    delay: Delay,
    /// The place where the node's recovery ended; `None` after a clean start, and while it recovers.
    recovered: Option<u64>,
    /// The end of the log of a node that has crashed as a primary.
    crashed_at: Option<u64>,
    /// The time at which the node's server was started.
    started: i64,
    /// The time at which another node was promoted instead.
    term_ended_us: Option<u64>,
    /// The time at which the node was promoted last.
    promoted_us: Option<u64>,
    /// The time at which the node was last back after it was cut off: bytes that were sent before arrive
    /// then.
    healed_us: u64,
}

/// The state that a statement sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    place: Place,
    /// `true` if the statement's node is a standby.
    pub is_standby: bool,
    /// The position that its node tells.
    tells: u64,
}

impl Snapshot {
    /// Returns the text for a row, which follows the process's number.
    #[must_use]
    pub fn render(self) -> String {
        let Place { timeline, lsn } = self.place;
        format!("@{timeline}-{lsn}-{}", u8::from(self.is_standby))
    }

    /// Returns the node's report of its position: position, bytes of a page, timeline.
    #[must_use]
    pub fn told(self) -> [String; 3] {
        [position(self.tells), "8192".to_owned(), format!("{:08X}", self.place.timeline)]
    }

    /// Whether the statement's node is a primary that was promoted: the pooler may not have known it yet.
    #[must_use]
    pub fn is_of_promoted(self) -> bool {
        !self.is_standby && self.place.timeline > 1
    }

    /// The place in a row, the other way.
    #[must_use]
    pub fn read(text: &str) -> Option<Snapshot> {
        let mut parts = text.split_once('@')?.1.split('-').map(|part| part.parse::<u64>().ok());
        let (timeline, lsn, standby) = (parts.next()??, parts.next()??, parts.next()??);
        let place = Place { timeline: u32::try_from(timeline).ok()?, lsn };
        Some(Snapshot { place, is_standby: standby == 1, tells: lsn })
    }
}

/// An event of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// The node's processes die without a message.
    Crash(usize),
    /// The node's processes report the shutdown, and end.
    Stop(usize),
    /// The server starts; it serves later.
    Start(usize),
    /// The node serves. It is a standby if another node was promoted in the meantime.
    Serve(usize),
    /// The node becomes a primary.
    Promote(usize),
    /// No bytes pass any more.
    Part(usize),
    /// Bytes pass again.
    Heal(usize),
    /// An administrator ends the node's processes.
    Terminate(usize),
    /// The node's connections are cut in between: the pooler sees their end at once, and the processes go on
    /// with the bytes that they have received.
    Sever(usize),
}

impl Act {
    /// Returns the name of the counter.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Act::Crash(_) => "nodes crashed",
            Act::Stop(_) => "nodes stopped",
            Act::Start(_) | Act::Serve(_) => "nodes started",
            Act::Promote(_) => "nodes promoted",
            Act::Part(_) => "nodes cut off",
            Act::Heal(_) => "nodes back",
            Act::Terminate(_) => "storms of terminated processes",
            Act::Sever(_) => "connections cut in between",
        }
    }
}

/// See the module's head.
pub struct Nodes {
    /// The nodes; the pooler knows them as node0, node1, ...
    pub nodes: Vec<Node>,
    plan: ClusterPlan,
    rng: Rng,
    wal: Wal,
    xids: Xids,
    known: Known,
    /// The place that each client saw last.
    seen: BTreeMap<u32, Place>,
    /// The events still to happen, by time.
    acts: BTreeMap<(u64, usize), Act>,
    /// The number of acts that were put there.
    planned: usize,
    /// The time of the last of these events.
    last_us: u64,
    /// The time at which a client's statement first ran in each timeline.
    served_us: BTreeMap<u32, u64>,
    /// The node that was promoted last: it is the primary, or is to be.
    leader: usize,
    source: Option<Source>,
    lags: Option<Lags>,
}

/// The time after which all workers and all running statements know of a change.
const NEWS_US: u64 = 200_000;

impl Nodes {
    /// One primary and its standbys, and what will happen to them.
    #[must_use]
    pub fn new(plan: &ClusterPlan, seed: u64, now_us: u64) -> Nodes {
        // What is drawn for the log leaves what happens to the nodes as it is.
        let mut of_log = Rng::new(seed ^ 0x109f_11e5);
        let wal = Wal::default();
        let node = |number: usize| Node {
            status: Status::Running,
            isolated: false,
            in_recovery: number > 0,
            place: wal.end(1),
            delay: Delay::draw(&mut of_log),
            recovered: None,
            crashed_at: None,
            started: i64::try_from(number).unwrap_or(0),
            term_ended_us: None,
            promoted_us: None,
            healed_us: 0,
        };
        let mut nodes = Nodes {
            nodes: (0..plan.nodes).map(node).collect(),
            plan: plan.clone(),
            rng: Rng::new(seed ^ 0x5eed_c105_7e55),
            wal,
            xids: Xids::default(),
            known: Known::default(),
            seen: BTreeMap::new(),
            acts: BTreeMap::new(),
            planned: 0,
            last_us: now_us,
            served_us: BTreeMap::new(),
            leader: 0,
            source: plan.source_us.map(|interval_us| Source::new(seed, interval_us)),
            lags: plan.asks_lag.then(|| Lags::new(seed, plan.nodes)),
        };
        nodes.write_story(now_us);
        nodes
    }

    /// Writes the events of the run, one after the other. At the end of each there is one primary, and all
    /// nodes run.
    fn write_story(&mut self, now_us: u64) {
        let (mut at_us, mut primary) = (now_us, 0);
        for _ in 0..self.plan.happenings {
            at_us += self.rng.between(20_000, 900_000);
            let standby = (primary + 1 + self.rng.index(self.nodes.len() - 1)) % self.nodes.len();
            let soon_us = match self.rng.percent(8) {
                true => self.rng.between(1_000_000, 3_000_000),
                false => self.rng.between(1_000, 400_000),
            };
            let later_us = soon_us + self.rng.between(1_000, 900_000);
            let (acts, next) = match self.rng.below(13) {
                // It dies, and another one is promoted.
                0 | 1 => (vec![(0, Act::Crash(primary)), (soon_us, Act::Promote(standby))], standby),
                2 => (vec![(0, Act::Stop(primary)), (soon_us, Act::Promote(standby))], standby),
                // Another one is promoted although it lives.
                3 => (vec![(0, Act::Promote(standby)), (later_us, Act::Crash(primary))], standby),
                // It is cut off, and another one is promoted; then it is back, and still takes itself for the primary.
                4 => (
                    vec![
                        (0, Act::Part(primary)),
                        (soon_us, Act::Promote(standby)),
                        (later_us, Act::Heal(primary)),
                        (later_us + soon_us, Act::Stop(primary)),
                    ],
                    standby,
                ),
                // It is cut off for a while.
                5 => (vec![(0, Act::Part(primary)), (soon_us, Act::Heal(primary))], primary),
                // It restarts in place.
                6 => (vec![(0, Act::Stop(primary))], primary),
                // It crashes, and recovers in place.
                10 => (vec![(0, Act::Crash(primary))], primary),
                // Its connections are cut, and another one is promoted, or not.
                11 => (vec![(0, Act::Sever(primary))], primary),
                12 => (
                    vec![
                        (0, Act::Sever(primary)),
                        (soon_us / 8, Act::Crash(primary)),
                        (soon_us, Act::Promote(standby)),
                    ],
                    standby,
                ),
                7 => (vec![(0, Act::Crash(standby))], primary),
                // A standby is cut off, perhaps until it is down.
                8 => (vec![(0, Act::Part(standby)), (soon_us + later_us, Act::Heal(standby))], primary),
                _ => (
                    (0..8)
                        .map(|i| {
                            (i * soon_us / 8, Act::Terminate(if i % 3 == 0 { standby } else { primary }))
                        })
                        .collect(),
                    primary,
                ),
            };
            let stopped = acts.iter().find_map(|(_, act)| match act {
                Act::Crash(node) | Act::Stop(node) => Some(*node),
                _ => None,
            });
            let end_us = acts.iter().map(|(us, _)| *us).max().unwrap_or(0);
            acts.into_iter().for_each(|(us, act)| self.put(at_us + us, act));
            at_us += end_us + self.rng.between(1_000, 300_000);
            if let Some(node) = stopped {
                self.put(at_us, Act::Start(node));
                at_us += self.rng.between(1_000, 300_000);
                self.put(at_us, Act::Serve(node));
            }
            primary = next;
        }
        self.last_us = now_us;
    }

    fn put(&mut self, at_us: u64, act: Act) {
        self.planned += 1;
        self.acts.insert((at_us, self.planned), act);
    }

    /// Returns the time of the next event.
    #[must_use]
    pub fn due_us(&self) -> Option<u64> {
        self.acts.keys().next().map(|(at_us, _)| *at_us)
    }

    /// Returns the event that happens now.
    pub fn take_due(&mut self, now_us: u64) -> Option<Act> {
        let entry = self.acts.first_entry()?;
        if entry.key().0 > now_us {
            return None;
        }
        let act = entry.remove();
        self.last_us = now_us;
        self.happen(act, now_us);
        Some(act)
    }

    fn happen(&mut self, act: Act, now_us: u64) {
        match act {
            Act::Crash(node) => self.crash(node, now_us),
            Act::Stop(node) => self.nodes[node].status = Status::Stopped,
            // A node that is down for two reasons comes back with the first of them: what runs is not started again.
            Act::Start(node) if self.nodes[node].status == Status::Stopped => self.start(node),
            Act::Serve(node) if self.nodes[node].status == Status::Starting => {
                self.nodes[node].status = Status::Running;
            }
            Act::Promote(promoted) => self.promote(promoted, now_us),
            Act::Part(node) => self.nodes[node].isolated = true,
            Act::Heal(node) => {
                self.nodes[node].isolated = false;
                self.nodes[node].healed_us = now_us;
            }
            Act::Start(_) | Act::Serve(_) | Act::Terminate(_) | Act::Sever(_) => {}
        }
    }

    /// A primary loses some of what it has not flushed.
    fn crash(&mut self, node: usize, now_us: u64) {
        let left = self.rng.index(4);
        let node = &mut self.nodes[node];
        if node.status == Status::Running && !node.in_recovery {
            node.crashed_at = Some(self.wal.crash(node.place.timeline, left, now_us));
        }
        node.status = Status::Stopped;
    }

    /// Starts a node. It begins where it was; a standby begins a little before that, and a node whose history
    /// is not the newest primary's is copied from that primary.
    fn start(&mut self, node: usize) {
        let (back, number) = (self.rng.index(4), node);
        let newest = self.wal.newest();
        let node = &mut self.nodes[node];
        node.status = Status::Starting;
        (node.recovered, node.crashed_at) = (node.crashed_at, None);
        // If only the processes of clients have crashed, the one that started them goes on.
        if node.recovered.is_none() || self.rng.percent(50) {
            node.started += 100;
        }
        if node.place.timeline < newest && !(node.in_recovery && self.wal.is_in_newest(node.place)) {
            (node.in_recovery, node.place, node.term_ended_us) = (true, self.wal.rewound(), None);
        } else if node.in_recovery {
            node.place = self.wal.back(node.place, back);
        } else if node.recovered.is_some() {
            self.recover_xids(number);
        }
    }

    fn promote(&mut self, promoted: usize, now_us: u64) {
        self.replay(now_us);
        for node in self.nodes.iter_mut().filter(|node| !node.in_recovery) {
            node.term_ended_us.get_or_insert(now_us);
        }
        let node = &mut self.nodes[promoted];
        let from = if node.in_recovery { node.place } else { self.wal.end(node.place.timeline) };
        if node.in_recovery {
            node.recovered = Some(from.lsn);
        }
        self.wal.promote(from, now_us);
        node.place = Place { timeline: self.wal.newest(), lsn: from.lsn };
        (node.in_recovery, node.term_ended_us, node.promoted_us) = (false, None, Some(now_us));
        self.leader = promoted;
        self.recover_xids(promoted);
        for other in 0..self.nodes.len() {
            let Node { in_recovery, place, status, .. } = self.nodes[other];
            if in_recovery && status == Status::Running && !self.wal.is_in_newest(place) {
                // It has what the new primary lacks, and is made from that one.
                let at_us = now_us + self.rng.between(1_000, 500_000);
                self.put(at_us, Act::Crash(other));
                self.put(at_us + 1_000, Act::Start(other));
                self.put(at_us + 2_000, Act::Serve(other));
            }
        }
    }

    /// The standbys have replayed what is old enough.
    fn replay(&mut self, now_us: u64) {
        let replays = |node: &&mut Node| node.in_recovery && node.status == Status::Running;
        for node in self.nodes.iter_mut().filter(replays) {
            self.wal.replay(&mut node.place, node.delay, now_us);
        }
    }

    /// Returns the snapshot of a statement that begins at a node now.
    #[must_use]
    pub fn snapshot(&mut self, node: usize, now_us: u64) -> Snapshot {
        self.replay(now_us);
        let Node { in_recovery, place, .. } = self.nodes[node];
        match in_recovery {
            true => Snapshot { place, is_standby: true, tells: place.lsn },
            false => Snapshot {
                place: self.wal.changed(place.timeline),
                is_standby: false,
                tells: self.wal.inserts_at(place.timeline),
            },
        }
    }

    /// A client was told rows of one of its statements, by the number of it. What is wrong with what it saw, if anything.
    pub fn saw(&mut self, client: u32, number: u32, snapshot: Snapshot) -> Option<String> {
        let Snapshot { place, is_standby, .. } = snapshot;
        let before = self.seen.insert(client, place);
        if !is_standby || self.plan.causal_reads == "off" && !self.plan.is_checked {
            return None;
        }
        if let Some(lacking) =
            self.wal.lacks(place, (client, number), |change| !self.xids.may_be_missing(change))
        {
            return Some(format!(
                "statement {number} does not see the change of statement {lacking} of its client"
            ));
        }
        let back = before.filter(|before| !self.wal.covers(place, *before))?;
        Some(format!("statement {number} sees {place:?}, and its client had seen {back:?}"))
    }

    /// Returns the time after which the pooler must know the role of each node.
    fn known_us(&self) -> u64 {
        let known_ms =
            10 * self.plan.check_interval_ms + self.plan.down_after_ms + 5 * self.plan.check_timeout_ms;
        known_ms * 1000 + 1_000_000
    }

    /// Returns whether the last event is so long ago, and the source has been right for so long, that the
    /// pooler must know the role of each node and hold no client back.
    #[must_use]
    pub fn is_settled(&self, now_us: u64) -> bool {
        let strayed_us = self.source.as_ref().map_or(0, Source::strayed_us);
        now_us > self.last_us.max(strayed_us) + self.known_us()
    }

    /// Returns the source's report, and the time of its next one.
    pub fn ask_source(&mut self, now_us: u64) -> (Option<Arc<SourceReport>>, Option<u64>) {
        let Some(source) = &mut self.source else { return (None, None) };
        let report = source.says(self.nodes.len(), self.leader, self.acts.is_empty(), now_us);
        (report, Some(source.next_us(now_us)))
    }

    /// Returns whether no bytes pass between a node and the pooler.
    #[must_use]
    pub fn is_isolated(&self, node: usize) -> bool {
        self.nodes[node].isolated
    }

    /// The answer to the pooler's question what a node is.
    #[must_use]
    pub fn answer(&mut self, node: usize, now_us: u64) -> Vec<Message> {
        self.replay(now_us);
        let node = &self.nodes[node];
        let Place { timeline, lsn } = node.place;
        // A primary tells where the next record begins, a standby where it has come.
        let (at, replayed) = match node.in_recovery {
            true => (lsn, Some(lsn)),
            false => (self.wal.inserts_at(timeline), node.recovered),
        };
        let columns = [
            Some(node.in_recovery.to_string()),
            Some(position(at)),
            Some(position(at)),
            replayed.map(position),
            Some(format!("{timeline:08X}")),
            Some(IDENTIFIER.to_owned()),
            Some(node.started.to_string()),
            Some("180000".to_owned()),
            Some("none".to_owned()),
        ];
        let mut description = Body::new().int16(9);
        let mut row = Body::new().int16(9);
        for value in columns {
            description = description.text("c").int32(0).int16(0).int32(25).int16(-1).int32(-1).int16(0);
            row = match value {
                Some(value) => row.counted(value.as_bytes()),
                None => row.int32(-1),
            };
        }
        vec![
            description.message(b'T'),
            row.message(b'D'),
            Body::new().text("SELECT 1").message(b'C'),
            Body::new().byte(b'I').message(b'Z'),
        ]
    }

    /// The answer to `lag_query`.
    #[must_use]
    pub fn answer_lag(&mut self, node: usize, now_us: u64) -> LagAnswer {
        self.lags.as_mut().map_or(LagAnswer::Silent, |lags| lags.answer(node, now_us))
    }

    /// A client that may go to any standby begins at this one, with what the pooler sent then. What is wrong with that, if anything.
    #[must_use]
    pub fn chosen(&self, node: usize, sent_us: u64) -> Option<String> {
        let lags = self.lags.as_ref().filter(|_| self.nodes[node].in_recovery)?;
        lags.is_known_behind(node, self.plan.check_timeout_ms, sent_us)
            .then(|| format!("a read begins at node{node}, which has not said that it is current"))
    }

    /// A client's statement runs at a node. `sent_us`: when the pooler sent it, if it begins a transaction. What is wrong with that, if
    /// anything. `route` is the client's.
    pub fn runs(&mut self, node: usize, sent_us: Option<u64>, now_us: u64, route: &str) -> Option<String> {
        let timeline = self.nodes[node].place.timeline;
        if route == "standby" {
            return self.reads(node, sent_us?);
        }
        if self.nodes[node].in_recovery && route != "primary" {
            return None;
        }
        if self.nodes[node].in_recovery {
            return Some(format!("a client's statement runs at node{node}, which is a standby"));
        }
        if route == "primary" {
            // Others may still have a server there from the time when it was a standby.
            self.served_us.entry(timeline).or_insert(now_us);
        }
        let newer = self.served_us.iter().find(|(other, _)| **other > timeline).map(|(_, us)| *us);
        let healed_us = self.nodes[node].healed_us;
        let known_us = newer.map(|since_us| since_us.max(healed_us) + NEWS_US);
        let is_late = sent_us > known_us && known_us.is_some();
        is_late.then(|| format!("a transaction begins at node{node}, and a newer primary serves clients"))
    }

    /// A statement of a client that goes to standbys begins a transaction at a node.
    fn reads(&self, node: usize, sent_us: u64) -> Option<String> {
        let Node { in_recovery, promoted_us, healed_us, .. } = self.nodes[node];
        // The pooler has asked it.
        let known_us = (self.plan.check_interval_ms + self.plan.check_timeout_ms) * 1000 + NEWS_US;
        let is_known = promoted_us.is_none_or(|since_us| sent_us > since_us.max(healed_us) + known_us);
        (!in_recovery && is_known)
            .then(|| format!("a statement of route=standby begins at node{node}, which is a primary"))
    }

    /// A pool may have servers there from the time when it was a standby, and others as the primary's; or the other way round, if a
    /// client has not read yet what the primary had sent.
    #[must_use]
    pub fn has_changed_role(&self, node: usize) -> bool {
        let Node { in_recovery, promoted_us, .. } = self.nodes[node];
        // The first node begins as the primary.
        promoted_us.is_some() || in_recovery == (node == 0)
    }
}

/// Returns a position in the form of `pg_lsn`.
fn position(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff)
}

/// The system identifier of all nodes.
const IDENTIFIER: &str = "7000000000000000001";

/// The check of what clients see of a standby.
pub const OLD_READ: &str = "a client sees its own changes, and never goes back in time";

/// Words that clients may be told once something has happened to a node.
pub const TOLD: [&str; 12] = [
    "the connection to the primary was lost",
    "has no primary",
    "the primary has changed",
    "the node is not the primary any more",
    "notifications may have been missed",
    "the server is a standby",
    "the server is no standby",
    "has no usable standby",
    "the node takes no more reads",
    "the standby is down or refused",
    "server conn crashed?",
    "",
];

/// The next thing that happens to a node goes into the calendar.
pub fn schedule(cx: &mut SimContext) {
    if let Some(at_us) = cx.nodes.as_ref().and_then(Nodes::due_us) {
        cx.at(at_us, Event::Nodes);
    }
}

#[cfg(test)]
mod tests;
