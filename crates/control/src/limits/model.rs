//! A model of poolers, etcd and one PostgreSQL, driven at random: whatever is delayed, lost, frozen, killed or cut off, PostgreSQL never has
//! more connections than the limit.

use std::collections::{BTreeMap, BTreeSet};

use pgweir_core::mail::Scarce;
use proptest::prelude::*;

use super::divide::{PoolerId, Report};
use super::documents::{Division, Document};
use super::member::{Parts, Snapshot};
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
    /// The connections that PostgreSQL has.
    backends: BTreeSet<u32>,
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
    Open(usize),
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
                    self.etcd.now.members.remove(&pooler.id);
                }
            }
            Act::Renew(at) => self.renew(at % count),
            Act::Kill(at) => {
                let pooler = &mut self.poolers[at % count];
                pooler.is_alive = false;
                pooler.pids.clear();
            }
            Act::Start(at) => {
                if !self.poolers[at % count].is_alive && !self.poolers[at % count].has_lease {
                    self.poolers[at % count] = self.pooler();
                }
            }
            Act::End(which) => {
                let orphans: Vec<u32> =
                    self.backends.iter().copied().filter(|pid| self.is_orphan(*pid)).collect();
                if !orphans.is_empty() {
                    self.backends.remove(&orphans[which as usize % orphans.len()]);
                }
            }
            Act::Look(at) => {
                let pooler = &mut self.poolers[at % count];
                pooler.looks += 1;
                let shown = self.backends.iter().chain(&self.strangers).copied().collect();
                pooler.looked = Some((pooler.looks, shown));
            }
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
        let held = u32::try_from(pooler.pids.len()).expect("few");
        if pooler.is_alive && !pooler.is_frozen && held < pooler.parts.of(&of()).min(self.limit) {
            self.next_pid += 1;
            pooler.pids.insert(self.next_pid);
            self.backends.insert(self.next_pid);
        }
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
            held: u32::try_from(pooler.pids.len()).expect("few"),
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
            let has = world.backends.len();
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
