//! A model of poolers, etcd and one PostgreSQL, driven at random: whatever is delayed, lost, frozen, stopped, killed or cut off, PostgreSQL never has
//! more connections than the limit.

use std::collections::{BTreeMap, BTreeSet};

use pgweir_core::mail::Scarce;
use proptest::prelude::*;

use super::divide::{PoolerId, Report};
use super::documents::{Division, Document};
use super::member::{Left, Parts, Snapshot};
use super::unclaimed::Unclaimed;

/// etcd: the keys, each with the revision at which it was written.
#[derive(Default)]
struct Etcd {
    revision: u64,
    now: Snapshot,
}

/// A request that is on its way to etcd, or its answer on the way back.
#[derive(Clone)]
enum Write {
    Report { document: Document, own_at: u64, division_at: u64 },
    Division { division: Division, division_at: u64 },
}

impl Etcd {
    /// Carries out a write by a pooler. Returns whether its conditions held.
    fn commit(&mut self, id: &PoolerId, write: &Write, has_lease: bool) -> bool {
        let own_is_at = self.now.members.get(id).map_or(0, |(_, at)| *at);
        match write {
            Write::Report { document, own_at, division_at } => {
                if !has_lease || own_is_at != *own_at || self.now.division_at != *division_at {
                    return false;
                }
                self.revision += 1;
                self.now.members.insert(id.clone(), (document.clone(), self.revision));
            }
            Write::Division { division, division_at } => {
                if self.now.division_at != *division_at {
                    return false;
                }
                self.revision += 1;
                (self.now.division, self.now.division_at) = (division.clone(), self.revision);
            }
        }
        true
    }
}

/// A pooler's process.
struct Pooler {
    id: PoolerId,
    is_alive: bool,
    has_lease: bool,
    /// The time after which the pooler must open nothing is over, as its own clock says.
    is_frozen: bool,
    parts: Parts,
    pids: BTreeSet<u32>,
    /// The connections whose login is not over.
    logins: BTreeSet<u32>,
    demand: u32,
    snapshot: Snapshot,
    unclaimed: Unclaimed,
    ended: BTreeSet<PoolerId>,
    looks: u64,
    /// Writes that etcd has not carried out yet. They may come late, also after others.
    sent: Vec<Write>,
    /// A look at PostgreSQL's processes that is answered and was not read.
    looked: Option<(u64, Vec<u32>)>,
}

struct World {
    limit: u32,
    etcd: Etcd,
    poolers: Vec<Pooler>,
    /// The connections that PostgreSQL has and shows.
    backends: BTreeSet<u32>,
    /// The connections that PostgreSQL counts and does not show yet: their logins are not over.
    logins: BTreeSet<u32>,
    /// The logins of poolers that are dead or frozen, and for which the other poolers wait before they look.
    awaited: BTreeSet<u32>,
    /// The connections that PostgreSQL counts and does not show any more, with the poolers that have looked since.
    exiting: BTreeMap<u32, BTreeSet<usize>>,
    /// The connections that are neither a pooler's nor count towards the limit in the poolers' eyes.
    strangers: BTreeSet<u32>,
    next_pid: u32,
    lives: u32,
}

fn of() -> Scarce {
    Scarce::Database("app".into())
}

#[derive(Clone, Debug)]
enum Act {
    /// A pooler begins a login.
    Open(usize),
    /// A login is over: the connection serves, or ends if its pooler has ended.
    LogIn(u32),
    Close(usize),
    Demand(usize, u32),
    /// A pooler reads etcd, and follows at once.
    Read(usize),
    /// A pooler sends its report; etcd carries it out at once and the pooler hears of it, or not.
    Report(usize, Fate),
    /// A pooler sends a division, as leader or because a look has told something.
    Lead(usize, bool, Fate),
    /// A write that was sent long ago comes after all.
    Late(usize, usize),
    Freeze(usize),
    Expire(usize),
    Renew(usize),
    Kill(usize),
    /// A pooler ends in order: it writes what it still has, or that does not get through.
    Stop(usize, bool),
    Start(usize),
    /// A connection of a pooler that is gone ends.
    End(u32),
    Look(usize),
    HearLook(usize),
    Stranger(bool),
}

/// The fate of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Heard,
    Unheard,
    Late,
}

impl World {
    fn new(limit: u32, poolers: u32) -> World {
        let mut world = World {
            limit,
            etcd: Etcd::default(),
            poolers: Vec::new(),
            backends: BTreeSet::new(),
            logins: BTreeSet::new(),
            awaited: BTreeSet::new(),
            exiting: BTreeMap::new(),
            strangers: BTreeSet::new(),
            next_pid: 100,
            lives: 0,
        };
        for _ in 0..poolers {
            let pooler = world.pooler();
            world.poolers.push(pooler);
        }
        world
    }

    fn pooler(&mut self) -> Pooler {
        self.lives += 1;
        Pooler {
            id: format!("p{}", self.lives),
            is_alive: true,
            has_lease: true,
            is_frozen: false,
            parts: Parts::default(),
            pids: BTreeSet::new(),
            logins: BTreeSet::new(),
            demand: 0,
            snapshot: Snapshot::default(),
            unclaimed: Unclaimed::default(),
            ended: BTreeSet::new(),
            looks: 0,
            sent: Vec::new(),
            looked: None,
        }
    }

    fn act(&mut self, act: &Act) {
        let count = self.poolers.len();
        match *act {
            Act::Open(at) => self.open(at % count),
            Act::LogIn(which) => self.log_in(which),
            Act::Close(at) => {
                // PostgreSQL has ended the connection before the pooler counts it off.
                let pooler = &mut self.poolers[at % count];
                if let Some(pid) = pooler.pids.first().copied().filter(|_| pooler.is_alive) {
                    self.backends.remove(&pid);
                    pooler.pids.remove(&pid);
                }
            }
            Act::Demand(at, demand) => self.poolers[at % count].demand = demand,
            Act::Read(at) => self.read(at % count),
            Act::Report(at, fate) => {
                if let Some(document) = self.document(at % count) {
                    let pooler = &self.poolers[at % count];
                    let own_at = pooler.snapshot.members.get(&pooler.id).map_or(0, |(_, at)| *at);
                    let write = Write::Report { document, own_at, division_at: pooler.snapshot.division_at };
                    self.write(at % count, write, fate);
                }
            }
            Act::Lead(at, divides, fate) => self.lead(at % count, divides, fate),
            Act::Late(at, which) => {
                let pooler = &mut self.poolers[at % count];
                if !pooler.sent.is_empty() {
                    let write = pooler.sent.remove(which % pooler.sent.len());
                    let (id, has_lease) = (pooler.id.clone(), pooler.has_lease);
                    self.etcd.commit(&id, &write, has_lease);
                }
            }
            Act::Freeze(at) => self.poolers[at % count].is_frozen = true,
            Act::Expire(at) => {
                // The lease outlives the time that the pooler gives itself.
                let pooler = &mut self.poolers[at % count];
                if pooler.is_frozen || !pooler.is_alive {
                    pooler.has_lease = false;
                    self.awaited.extend(&pooler.logins);
                    self.etcd.now.members.remove(&pooler.id);
                }
            }
            Act::Renew(at) => self.renew(at % count),
            Act::Kill(at) => {
                let pooler = &mut self.poolers[at % count];
                pooler.is_alive = false;
                pooler.pids.clear();
                self.awaited.extend(&std::mem::take(&mut pooler.logins));
            }
            Act::Stop(at, is_heard) => self.stop(at % count, is_heard),
            Act::Start(at) => {
                if !self.poolers[at % count].is_alive && !self.poolers[at % count].has_lease {
                    self.poolers[at % count] = self.pooler();
                }
            }
            Act::End(which) => {
                let orphans: Vec<u32> =
                    self.backends.iter().copied().filter(|pid| self.is_orphan(*pid)).collect();
                if !orphans.is_empty() {
                    let pid = orphans[which as usize % orphans.len()];
                    self.backends.remove(&pid);
                    self.exiting.insert(pid, BTreeSet::new());
                }
            }
            // The first look comes when the logins of dead poolers have had the time to end.
            Act::Look(_) if !self.awaited.is_empty() => {}
            Act::Look(at) => self.look(at % count),
            Act::HearLook(at) => {
                let pooler = &mut self.poolers[at % count];
                if let Some((number, shown)) = pooler.looked.take().filter(|_| pooler.is_alive) {
                    let living = pooler.living();
                    pooler.unclaimed.look(number, &shown, &living);
                }
            }
            Act::Stranger(comes) => {
                if comes {
                    self.next_pid += 1;
                    self.strangers.insert(self.next_pid);
                } else {
                    self.strangers.pop_first();
                }
            }
        }
    }

    fn is_orphan(&self, pid: u32) -> bool {
        !self.poolers.iter().any(|pooler| pooler.pids.contains(&pid))
    }

    fn open(&mut self, at: usize) {
        let pooler = &mut self.poolers[at];
        if pooler.is_alive && !pooler.is_frozen && pooler.held() < pooler.parts.of(&of()).min(self.limit) {
            self.next_pid += 1;
            pooler.logins.insert(self.next_pid);
            self.logins.insert(self.next_pid);
        }
    }

    fn look(&mut self, at: usize) {
        // The end of a process takes less time than passes between two looks.
        self.exiting.retain(|_, looked| looked.insert(at));
        let pooler = &mut self.poolers[at];
        pooler.looks += 1;
        let shown = self.backends.iter().chain(&self.strangers).copied().collect();
        pooler.looked = Some((pooler.looks, shown));
    }

    fn log_in(&mut self, which: u32) {
        let Some(&pid) = self.logins.iter().nth(which as usize % self.logins.len().max(1)) else { return };
        self.logins.remove(&pid);
        self.awaited.remove(&pid);
        self.backends.insert(pid);
        for pooler in &mut self.poolers {
            if pooler.logins.remove(&pid) {
                pooler.pids.insert(pid);
            }
        }
    }

    /// A pooler ends in order. Only the logins of one that could not say what it has are waited for.
    fn stop(&mut self, at: usize, is_heard: bool) {
        let pooler = &mut self.poolers[at];
        if !pooler.is_alive || !pooler.has_lease || pooler.is_frozen {
            return;
        }
        let left = Left { held: pooler.held(), logins: u32::try_from(pooler.logins.len()).expect("few") };
        let division = self.etcd.now.without(&pooler.id, &[(of(), left)].into());
        if is_heard {
            self.etcd.revision += 1;
            (self.etcd.now.division, self.etcd.now.division_at) = (division, self.etcd.revision);
        }
        self.etcd.now.members.remove(&pooler.id);
        (pooler.is_alive, pooler.has_lease) = (false, false);
        pooler.pids.clear();
        let logins = std::mem::take(&mut pooler.logins);
        if self.etcd.now.grant(&of(), &self.poolers[at].id) > 0 {
            self.awaited.extend(&logins);
        }
    }

    /// The number of connections that PostgreSQL counts.
    fn counted(&self) -> usize {
        self.backends.len() + self.logins.len() + self.exiting.len()
    }

    fn read(&mut self, at: usize) {
        let pooler = &mut self.poolers[at];
        if !pooler.is_alive {
            return;
        }
        pooler.snapshot = self.etcd.now.clone();
        pooler.parts.lower(&pooler.snapshot, &pooler.id);
        let ended = pooler.snapshot.ended(&of());
        if !ended.is_subset(&pooler.ended) {
            pooler.unclaimed.begin(pooler.looks + 1);
        }
        pooler.ended = ended;
    }

    fn document(&self, at: usize) -> Option<Document> {
        let pooler = &self.poolers[at];
        let report = Report {
            limit: self.limit,
            part: pooler.snapshot.grant(&of(), &pooler.id),
            held: pooler.held(),
            unconfirmed: 0,
            demand: pooler.demand,
            pids: pooler.pids.iter().copied().collect(),
        };
        let limits = [(of(), report)].into();
        (pooler.is_alive && pooler.has_lease).then_some(Document { limits, ..Document::default() })
    }

    fn write(&mut self, at: usize, write: Write, fate: Fate) {
        let pooler = &mut self.poolers[at];
        if fate == Fate::Late {
            pooler.sent.push(write);
            return;
        }
        let has_lease = pooler.has_lease;
        let is_done = self.etcd.commit(&pooler.id, &write, has_lease);
        if let (true, Fate::Heard, Write::Report { document, .. }) = (is_done, fate, &write) {
            pooler.parts.raise(document);
            pooler.snapshot.members.insert(pooler.id.clone(), (document.clone(), self.etcd.revision));
        }
    }

    fn lead(&mut self, at: usize, divides: bool, fate: Fate) {
        let pooler = &mut self.poolers[at];
        if !pooler.is_alive {
            return;
        }
        let mut next = pooler.snapshot.clone();
        let living = pooler.living();
        pooler.unclaimed.clear(&living);
        if let Some(seen) = pooler.unclaimed.count() {
            next.division = next.settled(&of(), seen);
        }
        if divides {
            next.division = next.divided();
        }
        let division_at = pooler.snapshot.division_at;
        self.write(at, Write::Division { division: next.division, division_at }, fate);
    }

    /// A pooler that was cut off, or stood still, asks etcd again.
    fn renew(&mut self, at: usize) {
        let pooler = &mut self.poolers[at];
        if !pooler.is_alive {
            return;
        }
        if !pooler.has_lease {
            pooler.parts.lose();
            pooler.has_lease = true;
        }
        pooler.is_frozen = false;
    }
}

impl Pooler {
    fn held(&self) -> u32 {
        u32::try_from(self.pids.len() + self.logins.len()).expect("few")
    }

    fn living(&self) -> BTreeSet<u32> {
        let mut pids = self.snapshot.pids(&of());
        pids.extend(&self.pids);
        pids
    }
}

fn any_fate() -> impl Strategy<Value = Fate> {
    prop_oneof![6 => Just(Fate::Heard), 1 => Just(Fate::Unheard), 1 => Just(Fate::Late)]
}

fn any_act() -> impl Strategy<Value = Act> {
    let at = 0..4_usize;
    prop_oneof![
        12 => at.clone().prop_map(Act::Open),
        12 => any::<u32>().prop_map(Act::LogIn),
        3 => at.clone().prop_map(Act::Close),
        4 => (at.clone(), 0..30_u32).prop_map(|(at, demand)| Act::Demand(at, demand)),
        10 => at.clone().prop_map(Act::Read),
        8 => (at.clone(), any_fate()).prop_map(|(at, fate)| Act::Report(at, fate)),
        8 => (at.clone(), any::<bool>(), any_fate()).prop_map(|(at, divides, fate)| Act::Lead(at, divides, fate)),
        2 => (at.clone(), 0..4_usize).prop_map(|(at, which)| Act::Late(at, which)),
        1 => at.clone().prop_map(Act::Freeze),
        2 => at.clone().prop_map(Act::Expire),
        2 => at.clone().prop_map(Act::Renew),
        1 => at.clone().prop_map(Act::Kill),
        1 => (at.clone(), any::<bool>()).prop_map(|(at, is_heard)| Act::Stop(at, is_heard)),
        2 => at.clone().prop_map(Act::Start),
        3 => any::<u32>().prop_map(Act::End),
        4 => at.clone().prop_map(Act::Look),
        4 => at.prop_map(Act::HearLook),
        1 => any::<bool>().prop_map(Act::Stranger),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn postgresql_never_has_more_than_the_limit(
        limit in 1..12_u32,
        poolers in 1..5_u32,
        acts in prop::collection::vec(any_act(), 0..400),
    ) {
        let mut world = World::new(limit, poolers);
        for (step, act) in acts.iter().enumerate() {
            world.act(act);
            let has = world.counted();
            prop_assert!(has <= limit as usize, "{} connections after step {}, {:?}", has, step, act);
        }
    }
}

/// Lets all poolers that are alive do their rounds, until nothing changes any more.
fn settle(world: &mut World) {
    for _ in 0..40 {
        for at in 0..world.poolers.len() {
            world.act(&Act::Look(at));
            world.act(&Act::HearLook(at));
            world.act(&Act::Read(at));
            world.act(&Act::Report(at, Fate::Heard));
            world.act(&Act::Read(at));
            world.act(&Act::Lead(at, true, Fate::Heard));
            for _ in 0..world.limit {
                world.act(&Act::Open(at));
                world.act(&Act::LogIn(0));
            }
            while world.poolers[at].pids.len() > world.poolers[at].parts.of(&of()) as usize {
                world.act(&Act::Close(at));
            }
        }
    }
}

#[test]
fn the_part_of_a_killed_pooler_is_used_when_its_connections_are_gone() {
    let mut world = World::new(40, 3);
    (0..3).for_each(|at| world.act(&Act::Demand(at, 200)));
    settle(&mut world);
    let held = |world: &World| world.poolers.iter().map(|pooler| pooler.pids.len()).collect::<Vec<_>>();
    assert_eq!(held(&world), [13, 13, 13]);
    world.act(&Act::Kill(1));
    world.act(&Act::Expire(1));
    settle(&mut world);
    assert_eq!(held(&world).iter().sum::<usize>(), 40 - 13, "its connections are still there");
    (0..9).for_each(|which| world.act(&Act::End(which)));
    settle(&mut world);
    assert_eq!(held(&world).iter().sum::<usize>(), 40 - 4, "four of them run on");
    (0..4).for_each(|which| world.act(&Act::End(which)));
    settle(&mut world);
    assert_eq!(held(&world).iter().sum::<usize>(), 39);
}

#[test]
fn a_grant_that_is_used_while_it_is_taken_back_is_not_given_on() {
    let mut world = World::new(12, 3);
    let (leader, second, third) = (0, 1, 2);
    let all = |world: &mut World, at| {
        world.act(&Act::Read(at));
        world.act(&Act::Report(at, Fate::Heard));
    };
    (0..3).for_each(|at| all(&mut world, at));
    world.act(&Act::Demand(second, 8));
    all(&mut world, second);
    for _ in 0..3 {
        all(&mut world, leader);
        world.act(&Act::Lead(leader, true, Fate::Heard));
        all(&mut world, third);
    }
    // The second one has a higher grant and has not read of it when the third one's demand makes the leader take some of it back.
    world.act(&Act::Demand(third, 8));
    all(&mut world, third);
    world.act(&Act::Read(leader));
    all(&mut world, second);
    (0..12).for_each(|_| world.act(&Act::Open(second)));
    world.act(&Act::Lead(leader, true, Fate::Heard));
    for at in [third, leader] {
        all(&mut world, at);
        (0..12).for_each(|_| world.act(&Act::Open(at)));
    }
    assert_eq!(world.poolers[second].held(), 9, "it has opened all of its grant");
    assert!(world.counted() <= 12, "{} connections", world.counted());
}

#[test]
fn a_pooler_that_comes_back_while_its_share_is_given_out_keeps_its_grant() {
    let mut world = World::new(12, 2);
    let (back, leader) = (0, 1);
    world.act(&Act::Demand(back, 6));
    for _ in 0..3 {
        for at in [back, leader] {
            world.act(&Act::Read(at));
            world.act(&Act::Report(at, Fate::Heard));
            world.act(&Act::Lead(leader, true, Fate::Heard));
        }
    }
    world.act(&Act::Freeze(back));
    world.act(&Act::Expire(back));
    world.act(&Act::Demand(leader, 30));
    world.act(&Act::Read(leader));
    world.act(&Act::Report(leader, Fate::Heard));
    world.act(&Act::Look(leader));
    world.act(&Act::HearLook(leader));
    world.act(&Act::Read(leader));
    // The leader has seen none of its connections, and does not know that it is back.
    world.act(&Act::Renew(back));
    world.act(&Act::Read(back));
    world.act(&Act::Report(back, Fate::Heard));
    world.act(&Act::Lead(leader, true, Fate::Heard));
    world.act(&Act::Read(leader));
    world.act(&Act::Report(leader, Fate::Heard));
    for _ in 0..12 {
        world.act(&Act::Open(back));
        world.act(&Act::Open(leader));
    }
    assert!(world.counted() <= 12, "{} connections", world.counted());
}

#[test]
fn a_pooler_that_was_cut_off_comes_back_with_what_it_has() {
    let mut world = World::new(10, 2);
    (0..2).for_each(|at| world.act(&Act::Demand(at, 50)));
    settle(&mut world);
    world.act(&Act::Freeze(0));
    world.act(&Act::Expire(0));
    let held: BTreeMap<usize, usize> = (0..2).map(|at| (at, world.poolers[at].pids.len())).collect();
    for _ in 0..5 {
        world.act(&Act::Open(0));
    }
    assert_eq!(world.poolers[0].pids.len(), held[&0], "it opens none while it is cut off");
    world.act(&Act::Renew(0));
    settle(&mut world);
    assert_eq!(world.poolers.iter().map(|pooler| pooler.pids.len()).sum::<usize>(), 9);
}
