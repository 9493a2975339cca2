//! The proof against a small model of histories, in which positions and numbers come again after a loss.

use proptest::prelude::*;

use super::*;

/// An event in the model.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The primary begins a transaction and writes for it. The second transaction is the one that is asked for.
    Begins,
    /// The primary commits its oldest open transaction, or rolls it back.
    Ends { commits: bool },
    /// The standby replays this number of records.
    Replays(usize),
    /// The primary crashes, loses this number of records that were not on disk, and comes back. `same`: its postmaster survived.
    Crashes { lost: usize, same: bool },
    /// The primary is stopped cleanly and started.
    Restarts,
    /// The standby is promoted, and a new one is made from it.
    Promotes,
    /// The pooler looks at the standby.
    Looks,
}

/// A record of the log; each record has length one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    xid: u64,
    /// The transaction to which the record really belongs.
    of: usize,
    commits: Option<bool>,
}

#[derive(Clone, Debug)]
struct Node {
    log: Vec<Record>,
    /// The number of records that are certainly on disk: those up to the end of the node's last recovery.
    flushed: usize,
    next: u64,
    run: Run,
    recovered: Option<Lsn>,
    open: Vec<(u64, usize)>,
}

impl Node {
    fn recover(&mut self) {
        self.next = self.log.iter().map(|record| record.xid + 1).max().unwrap_or(1).max(1);
        self.open.clear();
        self.recovered = Some(Lsn(self.log.len() as u64));
    }

    /// The end of recovery is a record of its own, and on disk before anything else is written.
    fn end_recovery(&mut self) {
        self.log.push(Record { xid: 0, of: usize::MAX, commits: None });
        self.flushed = self.log.len();
    }

    fn status(&self, xid: u64) -> Option<Status> {
        if xid >= self.next {
            return None;
        }
        let end = self.log.iter().find(|record| record.xid == xid && record.commits.is_some());
        Some(match end.and_then(|record| record.commits) {
            _ if self.open.iter().any(|(open, _)| *open == xid) => Status::InProgress,
            Some(true) => Status::Committed,
            _ => Status::Aborted,
        })
    }
}

struct World {
    primary: Node,
    standby: Node,
    begun: usize,
    /// The transaction that is asked for.
    asked: Option<(Stake, Term)>,
    /// The standby's state when the pooler saw it last.
    seen: Option<Followed>,
    /// The last state in which the pooler saw the present primary as a standby.
    followed: Option<Followed>,
    /// The primary was started again since the pooler saw it: the standby does not receive from it yet.
    is_new: bool,
    clock: i64,
}

const MINE: usize = 1;

impl World {
    fn new() -> World {
        let run = |started_us| Run { system_identifier: 7, timeline: 1, started_us };
        let node = |started| Node {
            log: Vec::new(),
            flushed: 0,
            next: 1,
            run: run(started),
            recovered: None,
            open: Vec::new(),
        };
        World {
            primary: node(1),
            standby: node(2),
            begun: 0,
            asked: None,
            seen: None,
            followed: None,
            is_new: false,
            clock: 2,
        }
    }

    fn act(&mut self, act: Act) {
        let primary = &mut self.primary;
        match act {
            Act::Begins => {
                let (xid, of) = (primary.next, self.begun);
                primary.next += 1;
                self.begun += 1;
                primary.log.push(Record { xid, of, commits: None });
                primary.open.push((xid, of));
                if of == MINE {
                    let position = Lsn(primary.log.len() as u64);
                    let stake = Stake { xid, position, counts: true, recovered: primary.recovered };
                    self.asked = Some((stake, Term { node: "any".into(), run: primary.run }));
                }
            }
            Act::Ends { commits } if !primary.open.is_empty() => {
                let (xid, of) = primary.open.remove(0);
                primary.log.push(Record { xid, of, commits: Some(commits) });
            }
            Act::Ends { .. } => {}
            Act::Replays(_) if self.is_new => {}
            Act::Replays(records) => {
                let from = self.standby.log.len();
                self.standby.log.extend(primary.log.iter().skip(from).take(records));
            }
            Act::Crashes { lost, same } => {
                self.is_new = true;
                let replayed = self.standby.log.len();
                primary
                    .log
                    .truncate(primary.log.len().saturating_sub(lost).max(replayed).max(primary.flushed));
                primary.recover();
                self.clock += 1;
                if !same {
                    primary.run.started_us = self.clock;
                }
                primary.end_recovery();
            }
            Act::Restarts => {
                self.is_new = true;
                primary.open.clear();
                primary.recovered = None;
                self.clock += 1;
                primary.run.started_us = self.clock;
            }
            Act::Promotes => {
                let timeline = primary.run.timeline + 1;
                self.followed = self.seen.take();
                self.is_new = false;
                std::mem::swap(&mut self.primary, &mut self.standby);
                self.primary.run.timeline = timeline;
                self.primary.recover();
                self.clock += 1;
                self.standby = self.primary.clone();
                self.standby.run.started_us = self.clock;
                self.primary.end_recovery();
            }
            Act::Looks => {
                self.is_new = false;
                self.seen = Some(Followed {
                    from: term(primary.run),
                    recovered: primary.recovered,
                    started_us: self.standby.run.started_us,
                    replayed: Lsn(self.standby.log.len() as u64),
                });
            }
        }
    }

    /// Returns the outcome that the pooler finds, and whether the transaction was really committed.
    fn verdict(&self) -> Option<(Outcome, bool)> {
        let (stake, term) = self.asked.as_ref()?;
        let mut committed = self.primary.log.iter().filter(|record| record.of == MINE);
        let is_committed = committed.any(|record| record.commits == Some(true));
        let Some(status) = self.primary.status(stake.xid) else {
            return Some((Outcome::RolledBack, is_committed));
        };
        let said = Said { run: self.primary.run, recovered: self.primary.recovered, status };
        Some((outcome(stake, term, &said, self.followed.as_ref()), is_committed))
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => Just(Act::Begins),
        4 => any::<bool>().prop_map(|commits| Act::Ends { commits }),
        3 => (0usize..5).prop_map(Act::Replays),
        1 => ((0usize..4), any::<bool>()).prop_map(|(lost, same)| Act::Crashes { lost, same }),
        1 => Just(Act::Restarts),
        1 => Just(Act::Promotes),
        2 => Just(Act::Looks),
    ];
    prop::collection::vec(act, 2..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn what_is_said_is_true_in_the_history_that_counts(acts in acts()) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
            let (said, is_committed) = world.verdict().unwrap_or((Outcome::AskAgain, false));
            match said {
                Outcome::Committed => prop_assert!(is_committed, "told committed"),
                Outcome::RolledBack => prop_assert!(!is_committed, "told rolled back"),
                Outcome::Unknown(_) | Outcome::AskAgain => {}
            }
        }
    }
}

const fn run(timeline: u32, started_us: i64) -> Run {
    Run { system_identifier: 7, timeline, started_us }
}

fn term(run: Run) -> Term {
    Term { node: "any".into(), run }
}

fn followed(from: Run, started_us: i64) -> Followed {
    Followed { from: term(from), recovered: None, started_us, replayed: Lsn(10) }
}

/// A transaction of timeline 1, with its record before this position; and what a node says that had replayed 10 and recovered to 12.
fn failed_over(position: u64, status: Status) -> Outcome {
    let stake = Stake { xid: 9, position: Lsn(position), counts: true, recovered: None };
    let said = Said { run: run(2, 2), recovered: Some(Lsn(12)), status };
    let followed = followed(run(1, 1), 2);
    outcome(&stake, &term(run(1, 1)), &said, Some(&followed))
}

#[test]
fn a_failover_tells_by_what_was_replayed() {
    assert_eq!(failed_over(10, Status::Committed), Outcome::Committed);
    assert_eq!(
        failed_over(11, Status::Committed),
        Outcome::Unknown(Why::Reused),
        "it may be another one's number"
    );
    assert_eq!(failed_over(13, Status::Committed), Outcome::RolledBack, "it is another one's number");
    assert_eq!(failed_over(10, Status::Aborted), Outcome::RolledBack);
    assert_eq!(failed_over(10, Status::Forgotten), Outcome::Unknown(Why::Forgotten));
    assert_eq!(failed_over(10, Status::InProgress), Outcome::Unknown(Why::Reused));
}

#[test]
fn what_another_primary_came_from_proves_nothing() {
    let stake = Stake { xid: 9, position: Lsn(5), counts: true, recovered: None };
    let said = Said { run: run(3, 2), recovered: Some(Lsn(12)), status: Status::Committed };
    let crashed = Followed { recovered: Some(Lsn(3)), ..followed(run(1, 1), 2) };
    for followed in [followed(run(2, 1), 2), followed(run(1, 1), 9), followed(run(1, 3), 2), crashed] {
        let told = outcome(&stake, &term(run(1, 1)), &said, Some(&followed));
        assert_eq!(told, Outcome::Unknown(Why::Reused));
    }
}

#[test]
fn a_position_without_a_record_before_it_proves_no_commit() {
    let stake = Stake { xid: 9, position: Lsn(5), counts: false, recovered: None };
    let said = Said { run: run(2, 2), recovered: Some(Lsn(10)), status: Status::Committed };
    let followed = followed(run(1, 1), 2);
    let told = outcome(&stake, &term(run(1, 1)), &said, Some(&followed));
    assert_eq!(told, Outcome::Unknown(Why::Reused));
    let same = Said { run: run(1, 1), recovered: None, status: Status::Committed };
    assert_eq!(outcome(&stake, &term(run(1, 1)), &same, None), Outcome::Committed);
    let under_way = Said { status: Status::InProgress, ..same };
    assert_eq!(outcome(&stake, &term(run(1, 1)), &under_way, None), Outcome::AskAgain);
}

#[test]
fn the_model_reaches_each_answer() {
    let told = |acts: &[Act]| {
        let mut world = World::new();
        acts.iter().for_each(|act| world.act(*act));
        world.verdict().map(|(said, _)| said)
    };
    let ends = Act::Ends { commits: true };
    let begun = [Act::Begins, ends, Act::Begins];
    let with = |more: &[Act]| told(&[&begun[..], more].concat());
    assert_eq!(with(&[ends, Act::Replays(9), Act::Looks, Act::Promotes]), Some(Outcome::Committed));
    assert_eq!(with(&[ends, Act::Replays(2), Act::Promotes, Act::Begins, ends]), Some(Outcome::RolledBack));
    assert_eq!(with(&[ends, Act::Replays(3), Act::Promotes]), Some(Outcome::RolledBack));
    let crash = Act::Crashes { lost: 0, same: true };
    assert_eq!(with(&[ends, crash]), Some(Outcome::Unknown(Why::Reused)));
    assert_eq!(with(&[Act::Crashes { lost: 2, same: false }]), Some(Outcome::RolledBack));
    assert_eq!(with(&[]), Some(Outcome::AskAgain));
}
