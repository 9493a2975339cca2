//! Transactions of the model's cluster by their numbers: which server process has which, what was committed under them, and what each
//! node says of them. And the checks of what clients are told of their transactions, against the one history that is true.

use std::collections::{BTreeMap, BTreeSet};

use super::wal::{Place, Wal};
use super::{IDENTIFIER, Node, Nodes, position};
use crate::sim::context::LinkId;
use crate::sim::model::statement::Inquiry;

/// A change: the client, and the number of its statement.
pub type Change = (u32, u32);

/// The row in answer to an [`Inquiry`], or SQLSTATE and text of an error.
pub type Reply = Result<Vec<Option<String>>, (&'static str, String)>;

/// The report to a client about the changes of one of its transactions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// The changes are committed.
    Committed(Vec<Change>),
    /// The changes are rolled back: an error, or the answer to ROLLBACK.
    RolledBack(Vec<Change>),
    /// The outcome of the changes is not known.
    Unknown(Vec<Change>),
}

/// The check of what is told committed.
pub const TOLD_COMMITTED: &str = "what a client is told is committed is in the history of its primary";
/// The check of what is told rolled back.
pub const TOLD_ROLLED_BACK: &str = "what a client is told is rolled back is in no history";

/// The first number that is given out.
const FIRST_XID: u64 = 731;

/// A transaction that a server process is at.
#[derive(Clone, Copy, Debug)]
struct Running {
    node: usize,
    /// `true` if the transaction began at a standby, so that it only reads.
    only_reads: bool,
    xid: Option<u64>,
}

/// A commit record.
#[derive(Clone, Debug)]
struct Commit {
    place: Place,
    xid: u64,
    changes: Vec<Change>,
    /// The answer to it begins here in what was sent on that connection.
    answer: (LinkId, u64),
}

/// See the module's head.
#[derive(Default)]
pub struct Xids {
    /// The number that each timeline's primary gives out next.
    next: BTreeMap<u32, u64>,
    /// The running transactions by server process.
    running: BTreeMap<usize, Running>,
    /// Records with a number that commit nothing.
    marks: Vec<(Place, u64)>,
    commits: Vec<Commit>,
    /// The commits of a change, as places in `commits`.
    of_change: BTreeMap<Change, Vec<usize>>,
    /// Changes that a standby took for done.
    at_standbys: BTreeSet<Change>,
    /// Changes of which a node has said rightly that they are committed.
    vouched: BTreeSet<Change>,
    /// Changes that were lost until a node was promoted that has them.
    came_back: BTreeSet<Change>,
    told_rolled_back: BTreeSet<Change>,
    /// Changes of which a client was told that their outcome is unknown.
    told_unknown: BTreeSet<Change>,
    /// Those of them that were committed after that, by a server process whose connection was lost.
    late: BTreeSet<Change>,
}

impl Xids {
    fn take_next(&mut self, timeline: u32) -> u64 {
        let next = self.next.entry(timeline).or_insert(FIRST_XID);
        *next += 1;
        *next - 1
    }

    /// A primary begins, or goes on after a crash: it gives out the numbers behind those of which it has records, or that are taken.
    fn recover(&mut self, wal: &Wal, timeline: u32, node: usize) {
        let of_commits = self.commits.iter().map(|commit| (commit.place, commit.xid));
        let recorded = self.marks.iter().copied().chain(of_commits);
        let kept = recorded.filter(|(place, _)| has(wal, timeline, *place)).map(|(_, xid)| xid);
        let taken = self.running.values().filter(|running| running.node == node);
        let taken = taken.filter_map(|running| running.xid);
        let last = kept.chain(taken).max().unwrap_or(FIRST_XID - 1);
        self.next.insert(timeline, last + 1);
    }

    /// A record with this number was written somewhere, and is not in a timeline's history.
    fn was_given_out_elsewhere(&self, wal: &Wal, timeline: u32, xid: u64) -> bool {
        let is_elsewhere = |place: Place, other: u64| other == xid && !has(wal, timeline, place);
        self.marks.iter().any(|(place, other)| is_elsewhere(*place, *other))
            || self.commits.iter().any(|commit| is_elsewhere(commit.place, commit.xid))
    }

    /// The client's next statements need not see it: it was committed after its client was told that its outcome is unknown, or it was
    /// lost until a node was promoted that has it. Who reads where it was lost sees the history of the primary that the pooler knows.
    pub(super) fn may_be_missing(&self, change: Change) -> bool {
        self.late.contains(&change) || self.came_back.contains(&change)
    }

    fn commits_of(&self, change: Change) -> impl Iterator<Item = &Commit> {
        self.of_change.get(&change).into_iter().flatten().map(|at| &self.commits[*at])
    }
}

/// A timeline's history has this record.
fn has(wal: &Wal, timeline: u32, place: Place) -> bool {
    wal.fork(timeline, place.timeline).is_some_and(|end| place.lsn <= end)
}

impl Nodes {
    /// A server process begins with a statement, and with a transaction if it is at none.
    pub fn begins(&mut self, node: usize, pid: usize) {
        let only_reads = self.nodes[node].in_recovery;
        self.xids.running.entry(pid).or_insert(Running { node, only_reads, xid: None });
    }

    /// A statement of a server process has changed something. Returns whether its transaction has got a number that was given out
    /// before. `is_recorded`: not to a temporary or unlogged table.
    pub fn writes(
        &mut self,
        node: usize,
        pid: usize,
        change: Change,
        is_recorded: bool,
        now_us: u64,
    ) -> bool {
        let timeline = self.nodes[node].place.timeline;
        let Some(running) = self.xids.running.get(&pid).copied().filter(|running| !running.only_reads) else {
            self.xids.at_standbys.insert(change);
            return false;
        };
        let known = running.xid;
        let xid = known.unwrap_or_else(|| self.xids.take_next(timeline));
        self.xids.running.insert(pid, Running { xid: Some(xid), ..running });
        if is_recorded {
            self.mark(timeline, xid, now_us);
        }
        known.is_none() && self.xids.was_given_out_elsewhere(&self.wal, timeline, xid)
    }

    /// Writes a record with a number; where it ends.
    fn mark(&mut self, timeline: u32, xid: u64, now_us: u64) -> u64 {
        let lsn = self.wal.write(timeline, None, &mut self.rng, now_us);
        self.xids.marks.push((Place { timeline, lsn }, xid));
        lsn
    }

    /// The transaction of a server process is rolled back or has changed nothing, or the process is gone.
    pub fn rolls_back(&mut self, pid: usize) {
        self.xids.running.remove(&pid);
    }

    /// The transaction of a server process is committed at a node, by a message that was sent at this time. The answer to it begins at
    /// `answer` in what is sent on that connection. What is wrong with that, if anything.
    pub fn commits(
        &mut self,
        node: usize,
        pid: usize,
        changes: Vec<Change>,
        answer: (LinkId, u64),
        (sent_us, now_us): (u64, u64),
    ) -> Option<(&'static str, String)> {
        let running = self.xids.running.remove(&pid);
        let last = *changes.last()?;
        let xid = running.and_then(|running| running.xid)?;
        let timeline = self.nodes[node].place.timeline;
        let wrong = changes.iter().find_map(|change| self.may_not_commit(timeline, *change));
        let lsn = self.wal.write(timeline, Some(last), &mut self.rng, now_us);
        let at = self.xids.commits.len();
        for change in &changes {
            if self.xids.told_unknown.contains(change) {
                self.xids.late.insert(*change);
            }
            self.xids.of_change.entry(*change).or_default().push(at);
        }
        self.xids.commits.push(Commit { place: Place { timeline, lsn }, xid, changes, answer });
        wrong.or_else(|| self.sent_to_deposed(node, sent_us)).or_else(|| {
            let late_us = now_us.saturating_sub(self.nodes[node].term_ended_us?);
            let is_late = late_us > self.plan.primary_max_age_ms * 1000;
            let text = format!("a change is committed at node{node} {late_us} us after its term");
            is_late.then_some(("no change is carried out at a node after its term", text))
        })
    }

    fn may_not_commit(&self, timeline: u32, change: Change) -> Option<(&'static str, String)> {
        let is_there = |commit: &Commit| has(&self.wal, timeline, commit.place);
        if self.xids.commits_of(change).any(is_there) {
            return Some(("no statement takes effect twice", format!("{change:?} is committed twice")));
        }
        let counts = self.wal.fork(self.wal.newest(), timeline) == Some(u64::MAX);
        (counts && self.xids.told_rolled_back.contains(&change)).then(|| {
            (
                TOLD_ROLLED_BACK,
                format!("{change:?} is committed after its client was told that it is rolled back"),
            )
        })
    }

    /// A node was promoted to a new timeline, or has recovered on its own.
    pub(super) fn recover_xids(&mut self, node: usize) {
        let timeline = self.nodes[node].place.timeline;
        let (wal, xids) = (&self.wal, &mut self.xids);
        xids.marks.retain(|(place, _)| place.lsn <= wal.end(place.timeline).lsn);
        xids.recover(wal, timeline, node);
        let is_back =
            |commit: &&Commit| has(wal, timeline, commit.place) && !has(wal, timeline - 1, commit.place);
        if timeline > 1 && timeline == wal.newest() {
            let back = xids.commits.iter().filter(is_back).flat_map(|commit| commit.changes.clone());
            let back: Vec<Change> = back.collect();
            xids.came_back.extend(back);
        }
    }

    /// Returns the node's reply to a server process that asks.
    pub fn reply(&mut self, node: usize, pid: usize, inquiry: &Inquiry, now_us: u64) -> Reply {
        let Node { in_recovery, place: Place { timeline, .. }, recovered, started, .. } = self.nodes[node];
        if in_recovery {
            return Err(("55000", "recovery is in progress".to_owned()));
        }
        let recovered = recovered.map(position);
        match inquiry {
            Inquiry::Number => {
                let xid = self.xids.running.get(&pid).and_then(|running| running.xid);
                let inserts_at = position(self.wal.inserts_at(timeline));
                let record = xid.filter(|_| !self.plan.wal_is_logical);
                let record = record.map(|xid| position(self.mark(timeline, xid, now_us)));
                Ok(vec![xid.map(|xid| xid.to_string()), Some(inserts_at), record, recovered])
            }
            // The pooler follows no database of a cluster.
            Inquiry::Node => Err(("0A000", "the database of a cluster is followed".to_owned())),
            Inquiry::Outcome { xid, .. } => {
                let status = self.status(node, timeline, *xid)?;
                let run = [format!("{timeline:08X}"), IDENTIFIER.to_owned(), started.to_string()];
                Ok([Some(status.to_owned()), recovered].into_iter().chain(run.map(Some)).collect())
            }
        }
    }

    fn status(
        &mut self,
        node: usize,
        timeline: u32,
        xid: u64,
    ) -> Result<&'static str, (&'static str, String)> {
        if xid >= *self.xids.next.get(&timeline).unwrap_or(&FIRST_XID) {
            return Err(("22023", format!("transaction ID {xid} is in the future")));
        }
        if self.xids.running.values().any(|running| running.node == node && running.xid == Some(xid)) {
            return Ok("in progress");
        }
        let is_it = |commit: &&Commit| commit.xid == xid && has(&self.wal, timeline, commit.place);
        let Some(commit) = self.xids.commits.iter().find(is_it) else { return Ok("aborted") };
        self.xids.vouched.extend(commit.changes.iter().copied());
        Ok("committed")
    }

    /// The number was given out before, in a history that is lost here.
    #[must_use]
    pub fn is_reused(&self, node: usize, xid: u64) -> bool {
        self.xids.was_given_out_elsewhere(&self.wal, self.nodes[node].place.timeline, xid)
    }

    /// A client was told what became of a transaction. `was_read`: so much of a connection was read by the pooler. What is wrong with
    /// that, if anything.
    pub fn told(&mut self, told: &Told, was_read: impl Fn(LinkId) -> u64) -> Option<(&'static str, String)> {
        let newest = self.wal.newest();
        let is_there = |commit: &Commit| has(&self.wal, newest, commit.place);
        match told {
            Told::Committed(changes) => changes.iter().find_map(|change| {
                // The primary has answered before the pooler knew of a newer one, and what it had is lost, as no standby had received it.
                let was_answered = |commit: &Commit| {
                    let (link, at) = commit.answer;
                    let before = self.known.read_before(commit.place.timeline, link);
                    before.unwrap_or_else(|| was_read(link)) > at
                };
                let is_right = self.xids.at_standbys.contains(change)
                    || self.xids.vouched.contains(change)
                    || self.xids.commits_of(*change).any(|commit| is_there(commit) || was_answered(commit));
                (!is_right).then(|| (TOLD_COMMITTED, format!("{change:?} is not there")))
            }),
            Told::RolledBack(changes) => {
                self.xids.told_rolled_back.extend(changes.iter().copied());
                changes.iter().find_map(|change| {
                    let is_wrong =
                        !self.xids.came_back.contains(change) && self.xids.commits_of(*change).any(is_there);
                    is_wrong.then(|| (TOLD_ROLLED_BACK, format!("{change:?} is committed")))
                })
            }
            Told::Unknown(changes) => {
                self.xids.told_unknown.extend(changes.iter().copied());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pgweir_core::Machine;

    use super::super::wal::Delay;
    use super::*;
    use crate::sim::plan::Plan;
    use crate::sim::subject::Subject;

    const LINK: LinkId = LinkId(3);

    /// A primary, and a standby that is a second late.
    fn nodes() -> Nodes {
        let plan = Plan::cluster(1, &Machine::profile()).cluster.expect("a world with a cluster");
        let mut nodes = Nodes::new(&crate::sim::plan::ClusterPlan { wal_is_logical: false, ..plan }, 1, 0);
        nodes.nodes[1].delay = Delay { base_us: 1_000_000, more_us: 1, repoint_us: 0 };
        nodes
    }

    fn writes(nodes: &mut Nodes, node: usize, pid: usize, change: Change) {
        nodes.begins(node, pid);
        nodes.writes(node, pid, change, true, 10);
    }

    /// A transaction with one change; what is wrong with it.
    fn changes(nodes: &mut Nodes, node: usize, pid: usize, change: Change) -> Option<&'static str> {
        writes(nodes, node, pid, change);
        nodes.commits(node, pid, vec![change], (LINK, 100), (10, 10)).map(|(check, _)| check)
    }

    fn number(nodes: &mut Nodes, node: usize, pid: usize) -> Vec<Option<String>> {
        nodes.reply(node, pid, &Inquiry::Number, 10).expect("a row")
    }

    fn status(nodes: &mut Nodes, node: usize, xid: u64) -> String {
        let reply = nodes.reply(node, 9, &Inquiry::Outcome { xid, waits: false }, 10);
        reply.map_or_else(|(code, _)| code.to_owned(), |columns| columns[0].clone().expect("a status"))
    }

    fn told(nodes: &mut Nodes, told: &Told, read_bytes: u64) -> Option<&'static str> {
        nodes.told(told, |_| read_bytes).map(|(check, _)| check)
    }

    #[test]
    fn a_node_says_what_became_of_a_number() {
        let mut nodes = nodes();
        nodes.begins(0, 1);
        let row = number(&mut nodes, 0, 1);
        assert_eq!((&row[0], &row[2], &row[3]), (&None, &None, &None), "it has changed nothing");
        assert_eq!(status(&mut nodes, 0, 731), "22023");
        writes(&mut nodes, 0, 1, (1, 1));
        let row = number(&mut nodes, 0, 1);
        assert_eq!(row[0].as_deref(), Some("731"));
        assert!(row[2] > row[1], "the record ends behind where it began: {row:?}");
        assert_eq!(status(&mut nodes, 0, 731), "in progress");
        assert_eq!(nodes.commits(0, 1, vec![(1, 1)], (LINK, 0), (10, 10)), None);
        assert_eq!(status(&mut nodes, 0, 731), "committed");
        writes(&mut nodes, 0, 1, (1, 2));
        nodes.rolls_back(1);
        assert_eq!(status(&mut nodes, 0, 732), "aborted");
        assert_eq!(nodes.reply(1, 2, &Inquiry::Number, 10).map_err(|(code, _)| code), Err("55000"));
        nodes.plan.wal_is_logical = true;
        writes(&mut nodes, 0, 1, (1, 3));
        assert_eq!(number(&mut nodes, 0, 1)[2], None);
    }

    #[test]
    fn a_number_that_is_lost_is_given_out_again_and_tells_of_another_transaction() {
        let mut nodes = nodes();
        assert_eq!(changes(&mut nodes, 0, 1, (1, 1)), None);
        nodes.promote(1, 20);
        assert_eq!(status(&mut nodes, 1, 731), "22023");
        assert_eq!(changes(&mut nodes, 1, 2, (2, 1)), None);
        assert_eq!(status(&mut nodes, 1, 731), "committed", "of the other one");
        assert!(nodes.is_reused(1, 731) && !nodes.is_reused(1, 732));
        let recovered = nodes.nodes[1].recovered.map(position);
        assert_eq!(number(&mut nodes, 1, 2)[3], recovered);
        assert!(recovered.is_some());
    }

    #[test]
    fn a_crash_in_place_may_lose_a_number() {
        let mut nodes = nodes();
        assert_eq!(changes(&mut nodes, 0, 1, (1, 1)), None);
        let committed = nodes.wal.end(1).lsn;
        nodes.begins(0, 2);
        nodes.writes(0, 2, (2, 1), false, 10);
        assert_eq!(number(&mut nodes, 0, 2)[0].as_deref(), Some("732"));
        nodes.nodes[0].crashed_at = Some(nodes.wal.crash(1, 0, 20));
        nodes.rolls_back(2);
        nodes.start(0);
        assert_eq!(nodes.nodes[0].recovered, Some(committed));
        assert_eq!(
            (status(&mut nodes, 0, 731), status(&mut nodes, 0, 732)),
            ("committed".into(), "22023".into())
        );
    }

    #[test]
    fn what_is_told_committed_must_be_there_or_have_been_lost_behind_its_answer() {
        let mut nodes = nodes();
        let one = Told::Committed(vec![(1, 1)]);
        assert_eq!(told(&mut nodes, &one, 1000), Some(TOLD_COMMITTED), "it never was");
        changes(&mut nodes, 0, 1, (1, 1));
        assert_eq!(told(&mut nodes, &one, 0), None);
        nodes.promote(1, 20);
        assert_eq!(told(&mut nodes, &one, 100), Some(TOLD_COMMITTED), "its answer was not read");
        assert_eq!(told(&mut nodes, &one, 101), None);
        changes(&mut nodes, 1, 2, (2, 1));
        assert_eq!(status(&mut nodes, 1, 731), "committed");
        assert_eq!(told(&mut nodes, &one, 100), Some(TOLD_COMMITTED), "that was of another one");
    }

    #[test]
    fn what_is_told_rolled_back_must_not_be_there_and_not_come_later() {
        let mut nodes = nodes();
        let of = |client| Told::RolledBack(vec![(client, 1)]);
        assert_eq!(told(&mut nodes, &of(1), 0), None);
        assert_eq!(changes(&mut nodes, 0, 1, (1, 1)), Some(TOLD_ROLLED_BACK));
        changes(&mut nodes, 0, 1, (2, 1));
        assert_eq!(told(&mut nodes, &of(2), 0), Some(TOLD_ROLLED_BACK));
        nodes.promote(1, 20);
        assert_eq!(told(&mut nodes, &of(2), 0), None, "it is lost");
        assert_eq!(changes(&mut nodes, 0, 1, (3, 1)), None);
        assert_eq!(told(&mut nodes, &of(3), 0), None, "in no history that counts");
    }

    #[test]
    fn what_is_committed_after_its_client_was_told_of_an_unknown_outcome_need_not_be_seen() {
        for (is_told_first, lacks) in [(false, true), (true, false)] {
            let mut nodes = nodes();
            if is_told_first {
                told(&mut nodes, &Told::Unknown(vec![(1, 1)]), 0);
            }
            assert_eq!(changes(&mut nodes, 0, 1, (1, 1)), None);
            if !is_told_first {
                told(&mut nodes, &Told::Unknown(vec![(1, 1)]), 0);
            }
            let behind = nodes.snapshot(1, 20);
            assert_eq!(nodes.saw(1, 2, behind).is_some(), lacks);
        }
    }

    #[test]
    fn what_was_lost_and_came_back_with_a_promotion_need_not_be_seen() {
        let mut nodes = nodes();
        changes(&mut nodes, 0, 1, (1, 1));
        nodes.promote(1, 20);
        nodes.promote(0, 30);
        // A standby that still follows the primary of before.
        nodes.nodes[1].in_recovery = true;
        let before = nodes.snapshot(1, 40);
        assert_eq!(nodes.saw(1, 2, before), None);
        changes(&mut nodes, 0, 1, (1, 2));
        assert!(nodes.saw(1, 3, before).is_some());
    }

    #[test]
    fn no_change_is_committed_twice_in_one_history() {
        let mut nodes = nodes();
        assert_eq!(changes(&mut nodes, 0, 1, (1, 1)), None);
        assert_eq!(changes(&mut nodes, 0, 1, (1, 1)), Some("no statement takes effect twice"));
        nodes.promote(1, 20);
        assert_eq!(changes(&mut nodes, 1, 2, (1, 1)), None, "here it is lost");
    }

    #[test]
    fn a_transaction_that_began_at_a_standby_changes_nothing() {
        let mut nodes = nodes();
        nodes.begins(1, 1);
        nodes.promote(1, 20);
        nodes.writes(1, 1, (1, 1), true, 30);
        assert_eq!(number(&mut nodes, 1, 1)[0], None);
        assert_eq!(nodes.commits(1, 1, vec![(1, 1)], (LINK, 0), (30, 30)), None);
        assert_eq!(told(&mut nodes, &Told::Committed(vec![(1, 1)]), 0), None);
        assert_eq!(changes(&mut nodes, 1, 1, (1, 2)), None);
        assert_eq!(status(&mut nodes, 1, 731), "committed");
    }
}
