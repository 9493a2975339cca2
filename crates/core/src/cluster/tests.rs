//! The states of nodes, row by row, and the invariants under any order of observations.

use std::sync::Arc;

use proptest::prelude::*;

use pgweir_settings::NodeOptions;

use super::answer::{Answer, Hindrance, Lsn};
use super::lag::LagLimits;
use super::node::{Doubt, NodeState, Observation, Refusal};
use super::view::{Retirement, Switch};
use super::{Cluster, Limits, NodeId, Run, Term};

const MS: u64 = 1000;

pub(super) const LIMITS: Limits = Limits {
    interval_us: 1000 * MS,
    timeout_us: 1000 * MS,
    down_after_us: 5000 * MS,
    recovery_wait_us: 60_000 * MS,
    primary_max_age_us: 10_000 * MS,
    primary_wait_us: 60_000 * MS,
    node_drain_us: 60_000 * MS,
    drain_us: 10_000 * MS,
    max_lag_bytes: 1 << 24,
    promote_us: None,
    warm_up_us: 9_000 * MS,
    lag: LagLimits { is_told: false, us: 2_000 * MS, bytes: 0 },
    prefers_lower_lag: false,
};

fn options(host: &str) -> NodeOptions {
    NodeOptions { host: host.to_owned(), ..NodeOptions::default() }
}

/// A cluster and its clock.
struct Rig {
    cluster: Cluster,
    now_us: u64,
}

impl Rig {
    fn new(nodes: usize) -> Rig {
        let mut cluster = Cluster::new("main", LIMITS, 1);
        let lines: Vec<(String, NodeOptions)> =
            (1..=nodes).map(|n| (format!("m{n}"), options(&format!("10.0.0.{n}")))).collect();
        let lines: Vec<(&str, &NodeOptions)> =
            lines.iter().map(|(name, options)| (name.as_str(), options)).collect();
        cluster.follow(LIMITS, &lines, 1);
        Rig { cluster, now_us: 1 }
    }

    fn id(&self, n: usize) -> NodeId {
        self.cluster.nodes[n - 1].id
    }

    fn see(&mut self, n: usize, observation: &Observation) {
        self.cluster.observe(self.id(n), observation, self.now_us);
    }

    /// The node says that it is the primary.
    fn primary(&mut self, n: usize, timeline: u32) {
        self.see(n, &Observation::Answered(answer(false, timeline, n, 7)));
    }

    fn standby(&mut self, n: usize, timeline: u32) {
        self.see(n, &Observation::Answered(answer(true, timeline, n, 7)));
    }

    fn fail(&mut self, n: usize) {
        self.see(n, &Observation::Failed("refused".to_owned()));
    }

    fn pass(&mut self, ms: u64) {
        self.now_us += ms * MS;
        self.cluster.decide(self.now_us);
    }

    fn word(&self, n: usize) -> &'static str {
        self.cluster.nodes[n - 1].state.word()
    }

    /// The node that new work goes to, by its number.
    fn goes_to(&self) -> Option<usize> {
        let term = self.cluster.view().primary?.term;
        (1..=self.cluster.nodes.len()).find(|&n| self.cluster.nodes[n - 1].name == term.node)
    }

    fn refusal(&self, n: usize) -> Option<&Refusal> {
        match &self.cluster.nodes[n - 1].state {
            NodeState::Refused(refused) => Some(&refused.why),
            _ => None,
        }
    }

    fn doubt(&self, n: usize) -> Option<Doubt> {
        match &self.cluster.nodes[n - 1].state {
            NodeState::Unsure(unsure) => Some(unsure.why),
            _ => None,
        }
    }
}

/// Returns an answer of the server at this node. A standby that is promoted keeps its process.
pub(super) fn answer(in_recovery: bool, timeline: u32, node: usize, identifier: u64) -> Answer {
    let started_us = i64::try_from(node).expect("few nodes");
    Answer {
        in_recovery,
        position: Some(Lsn(0x0300_0000)),
        received: None,
        replayed: None,
        run: Run { system_identifier: identifier, timeline, started_us },
        version: 150_000,
        hindrance: None,
    }
}

#[test]
fn the_one_that_says_so_is_the_primary_at_once() {
    let mut rig = Rig::new(2);
    assert_eq!((rig.word(1), rig.goes_to()), ("unknown", None));
    rig.standby(2, 1);
    assert_eq!((rig.word(2), rig.goes_to()), ("standby", None));
    rig.primary(1, 1);
    assert_eq!((rig.word(1), rig.goes_to(), rig.cluster.epoch()), ("primary", Some(1), 1));
    assert!(
        rig.cluster.take_remarks().iter().any(|remark| remark.text.contains("m1 is the primary (epoch 1"))
    );
}

#[test]
fn a_promotion_counts_at_once_if_the_old_primary_does_not_answer() {
    let mut rig = Rig::new(2);
    rig.primary(1, 1);
    rig.standby(2, 1);
    rig.fail(1);
    assert_eq!((rig.word(1), rig.goes_to()), ("primary", Some(1)), "one failed check takes nothing away");
    assert!(rig.cluster.hurries());
    rig.primary(2, 2);
    assert_eq!((rig.goes_to(), rig.cluster.epoch(), rig.doubt(1)), (Some(2), 2, Some(Doubt::Unconfirmed)));
    rig.primary(1, 1);
    assert_eq!(rig.refusal(1), Some(&Refusal::OldPrimary { timeline: 1, newer: 2 }));
}

#[test]
fn two_that_live_make_clients_wait_for_three_checks() {
    let mut rig = Rig::new(2);
    (0..5).for_each(|_| rig.primary(1, 1));
    rig.standby(2, 1);
    for _ in 0..2 {
        rig.primary(2, 2);
        assert_eq!(
            (rig.goes_to(), rig.doubt(1), rig.doubt(2)),
            (None, Some(Doubt::TwoPrimaries), Some(Doubt::TwoPrimaries))
        );
        rig.primary(1, 1);
        assert_eq!(rig.goes_to(), None);
    }
    rig.primary(2, 2);
    assert_eq!((rig.goes_to(), rig.word(1), rig.cluster.epoch()), (Some(2), "refused", 2));
    assert!(rig.cluster.view().cut_off.contains(&Arc::from("m1")), "its busy servers are cut");
}

#[test]
fn an_old_primary_that_comes_back_is_refused_and_may_become_a_standby() {
    let mut rig = Rig::new(2);
    (0..3).for_each(|_| rig.primary(2, 2));
    rig.primary(1, 1);
    assert_eq!((rig.goes_to(), rig.word(1)), (Some(2), "refused"));
    let errors: Vec<_> =
        rig.cluster.take_remarks().into_iter().filter(|remark| remark.text.contains("old primary")).collect();
    assert_eq!(errors.len(), 1);
    rig.primary(1, 1);
    assert!(rig.cluster.take_remarks().is_empty(), "it is said once");
    rig.standby(1, 2);
    assert_eq!((rig.word(1), rig.goes_to()), ("standby", Some(2)));
}

#[test]
fn a_newer_primary_that_is_gone_still_shuts_out_the_old_one() {
    let mut rig = Rig::new(2);
    rig.primary(2, 2);
    for _ in 0..4 {
        rig.pass(2000);
        rig.fail(2);
    }
    assert_eq!(rig.word(2), "down");
    rig.primary(1, 1);
    assert_eq!((rig.word(1), rig.goes_to()), ("refused", None));
    rig.cluster.forget(rig.now_us);
    rig.primary(1, 1);
    assert_eq!(rig.goes_to(), Some(1), "RECHECK is the operator's word that it counts");
}

#[test]
fn on_one_timeline_the_one_that_had_the_role_keeps_it() {
    let mut rig = Rig::new(2);
    rig.primary(1, 1);
    rig.primary(2, 1);
    assert_eq!((rig.goes_to(), rig.refusal(2)), (Some(1), Some(&Refusal::Twin { of: Arc::from("m1") })));
    let mut rig = Rig::new(2);
    rig.see(1, &Observation::Lives("too many clients".to_owned()));
    rig.cluster.nodes[0].switch = Switch::Detached;
    rig.primary(1, 1);
    rig.cluster.nodes[1].switch = Switch::Detached;
    rig.primary(2, 1);
    let (one, other) = (rig.id(1), rig.id(2));
    rig.cluster.nodes[1].switch = Switch::Attached;
    rig.cluster.switch(one, Switch::Attached, rig.now_us);
    assert_eq!(rig.goes_to(), None, "none had it");
    rig.cluster.switch(other, Switch::Detached, rig.now_us);
    assert_eq!(rig.goes_to(), Some(1));
}

#[test]
fn a_stranger_is_refused() {
    let mut rig = Rig::new(3);
    rig.primary(1, 1);
    rig.see(2, &Observation::Answered(answer(true, 1, 2, 8)));
    rig.see(3, &Observation::Answered(answer(false, 9, 3, 8)));
    let why = Refusal::Stranger { theirs: 8, ours: 7 };
    assert_eq!((rig.refusal(2), rig.refusal(3), rig.goes_to()), (Some(&why), Some(&why), Some(1)));
    let mut rig = Rig::new(2);
    rig.see(1, &Observation::Answered(answer(false, 1, 1, 8)));
    rig = {
        let mut other = Rig::new(2);
        other.cluster.nodes[0].switch = Switch::Detached;
        other.see(1, &Observation::Answered(answer(false, 1, 1, 8)));
        other.cluster.nodes[1].switch = Switch::Detached;
        other.primary(2, 5);
        other.cluster.nodes.iter_mut().for_each(|node| node.switch = Switch::Attached);
        other.pass(0);
        other
    };
    assert_eq!(rig.goes_to(), None, "two databases, and none is known: no node is chosen");
}

#[test]
fn a_server_that_does_not_report_its_role_is_refused() {
    let mut rig = Rig::new(1);
    rig.see(1, &Observation::Answered(Answer { version: 130_012, ..answer(false, 1, 1, 7) }));
    assert_eq!(rig.refusal(1), Some(&Refusal::TooOld { version: 130_012 }));
}

#[test]
fn a_replay_that_is_paused_is_said_once() {
    let mut rig = Rig::new(2);
    rig.primary(1, 1);
    rig.standby(2, 1);
    rig.cluster.take_remarks();
    let paused = Answer { hindrance: Some(Hindrance::Paused), ..answer(true, 1, 2, 7) };
    rig.see(2, &Observation::Answered(paused));
    rig.see(2, &Observation::Answered(paused));
    let said: Vec<String> = rig.cluster.take_remarks().into_iter().map(|remark| remark.text).collect();
    assert!(said.len() == 1 && said[0].contains("node m2 is standby: its replay is paused"), "{said:?}");
    assert_eq!(rig.word(2), "standby");
    assert!(rig.cluster.nodes[1].trouble().is_some_and(|text| text.contains("paused")));
    let serializable = Answer { hindrance: Some(Hindrance::Serializable), ..answer(true, 1, 2, 7) };
    rig.see(2, &Observation::Answered(serializable));
    assert!(rig.cluster.nodes[1].trouble().is_some_and(|text| text.contains("serializable")));
    rig.standby(2, 1);
    assert_eq!(rig.cluster.nodes[1].trouble(), None);
}

#[test]
fn a_standby_that_receives_nothing_any_more_stays_on_its_timeline() {
    let mut rig = Rig::new(2);
    rig.primary(1, 2);
    rig.standby(2, 2);
    rig.fail(1);
    let later = Lsn(0x0300_1000);
    rig.see(2, &Observation::Answered(Answer { position: Some(later), ..answer(true, 1, 2, 7) }));
    let timeline = |rig: &Rig| rig.cluster.nodes[1].state.member().expect("it answers").answer.run.timeline;
    assert_eq!(timeline(&rig), 2);
    // So what it has replayed since then proves what was kept.
    assert_eq!(rig.cluster.nodes[1].followed.as_ref().map(|followed| followed.replayed), Some(later));
    // Another start of its server begins where it left off.
    let restarted = answer(true, 1, 3, 7);
    rig.see(2, &Observation::Answered(restarted));
    assert_eq!(timeline(&rig), 1);
}

#[test]
fn a_standby_that_does_not_say_which_timeline_it_follows_is_told_of_once() {
    let mut rig = Rig::new(2);
    let promoted = Answer { replayed: Some(Lsn(0x0200_0000)), ..answer(false, 2, 1, 7) };
    rig.see(1, &Observation::Answered(promoted));
    rig.see(2, &Observation::Answered(Answer { position: Some(Lsn(0x0200_0000)), ..answer(true, 1, 2, 7) }));
    let trouble = |rig: &Rig| rig.cluster.trouble(&rig.cluster.nodes[1]);
    assert_eq!(trouble(&rig), None, "it may not have come further");
    rig.cluster.take_remarks();
    rig.standby(2, 1);
    rig.standby(2, 1);
    let said: Vec<String> = rig.cluster.take_remarks().into_iter().map(|remark| remark.text).collect();
    assert!(said.len() == 1 && said[0].contains("pg_read_all_stats"), "{said:?}");
    assert!(trouble(&rig).is_some_and(|text| text.contains("pg_read_all_stats")));
    rig.standby(2, 2);
    assert_eq!(trouble(&rig), None);
}

#[test]
fn a_primary_that_does_not_confirm_its_role_loses_it_in_time() {
    let mut rig = Rig::new(1);
    rig.primary(1, 1);
    let expires_us = rig.cluster.expires_us(rig.now_us).expect("it has a primary");
    rig.pass(10_000);
    assert_eq!((rig.goes_to(), rig.now_us + 1), (Some(1), expires_us));
    rig.pass(1);
    assert_eq!((rig.goes_to(), rig.doubt(1)), (None, Some(Doubt::Unconfirmed)));
    rig.primary(1, 1);
    assert_eq!((rig.goes_to(), rig.cluster.epoch()), (Some(1), 1), "the same run is the same epoch");
}

#[test]
fn it_takes_time_and_three_failures_to_be_down_and_two_successes_to_be_up() {
    let mut rig = Rig::new(1);
    rig.primary(1, 1);
    rig.fail(1);
    rig.fail(1);
    rig.pass(6000);
    assert_eq!(rig.word(1), "primary");
    rig.fail(1);
    assert_eq!((rig.word(1), rig.goes_to()), ("down", None));
    assert_eq!(rig.cluster.view().cut_off, [Arc::from("m1")]);
    rig.primary(1, 1);
    assert_eq!(rig.word(1), "down");
    rig.fail(1);
    rig.primary(1, 1);
    assert_eq!(rig.word(1), "down");
    rig.primary(1, 1);
    assert_eq!((rig.word(1), rig.goes_to(), rig.cluster.epoch()), ("primary", Some(1), 1));
}

#[test]
fn a_success_between_failures_begins_the_count_again() {
    let mut rig = Rig::new(1);
    rig.primary(1, 1);
    for _ in 0..10 {
        rig.fail(1);
        rig.fail(1);
        rig.pass(3000);
        rig.primary(1, 1);
    }
    assert_eq!(rig.word(1), "primary");
}

#[test]
fn a_server_that_starts_up_is_waited_for() {
    let mut rig = Rig::new(1);
    rig.primary(1, 1);
    let starting = Observation::Starting("the database system is starting up".to_owned());
    rig.see(1, &starting);
    assert_eq!((rig.word(1), rig.goes_to()), ("starting", None));
    assert!(rig.cluster.view().cut_off.is_empty());
    rig.pass(59_000);
    rig.see(1, &starting);
    assert_eq!(rig.word(1), "starting");
    let mut restarted = answer(false, 1, 1, 7);
    restarted.run.started_us = 99;
    rig.see(1, &Observation::Answered(restarted));
    assert_eq!((rig.goes_to(), rig.cluster.epoch()), (Some(1), 2), "a restart is a new epoch");
    rig.see(1, &starting);
    rig.pass(60_000);
    rig.see(1, &starting);
    assert_eq!(rig.word(1), "down");
}

#[test]
fn what_is_no_evidence_changes_nothing() {
    let mut rig = Rig::new(2);
    rig.primary(1, 1);
    rig.standby(2, 1);
    let view = rig.cluster.view();
    for _ in 0..20 {
        rig.pass(400);
        rig.see(1, &Observation::Lives("too many clients already".to_owned()));
        rig.see(2, &Observation::OwnFault("too many open files".to_owned()));
    }
    assert_eq!(rig.cluster.view(), view);
    rig.see(1, &Observation::LoginRefused("password".to_owned()));
    assert_eq!(rig.word(1), "primary", "it is the watching that was refused");
    rig.see(2, &Observation::LoginRefused("password".to_owned()));
    assert_eq!(rig.refusal(2), Some(&Refusal::LoginRefused));
    rig.standby(2, 1);
    assert_eq!(rig.word(2), "standby");
}

#[test]
fn a_draining_primary_gets_nothing_new_until_another_one_is_there() {
    let mut rig = Rig::new(2);
    rig.primary(1, 1);
    rig.standby(2, 1);
    let id = rig.id(1);
    rig.cluster.switch(id, Switch::Draining, rig.now_us);
    let view = rig.cluster.view();
    assert_eq!((rig.goes_to(), rig.word(1)), (None, "primary"));
    assert!(
        view.obstacle.contains("m1: draining") && view.obstacle.contains("m2: standby"),
        "{}",
        view.obstacle
    );
    assert!(view.cut_off.is_empty() && rig.cluster.hurries());
    rig.standby(1, 1);
    rig.primary(2, 2);
    assert_eq!(rig.goes_to(), Some(2));
}

#[test]
fn servers_of_an_older_epoch_end_and_those_of_a_node_that_is_cut_off_end_now() {
    let mut rig = Rig::new(2);
    rig.primary(1, 1);
    let old = rig.cluster.view().primary.map(|primary| primary.term);
    assert_eq!(rig.cluster.view().retirement(old.as_ref()), Retirement::Stays);
    assert_eq!(rig.cluster.view().retirement(None), Retirement::Ends);
    rig.pass(11_000);
    assert_eq!(
        rig.cluster.view().retirement(old.as_ref()),
        Retirement::Stays,
        "nothing new, and nothing is decided yet"
    );
    rig.standby(1, 1);
    rig.primary(2, 2);
    assert_eq!(rig.cluster.view().retirement(old.as_ref()), Retirement::Deposed);
    rig.primary(1, 1);
    assert_eq!(rig.cluster.view().retirement(old.as_ref()), Retirement::Cut);
}

#[test]
fn a_node_with_another_address_is_another_node() {
    let mut rig = Rig::new(2);
    rig.primary(1, 1);
    rig.standby(2, 1);
    let (one, two) = (rig.id(1), rig.id(2));
    let (first, moved) = (options("10.0.0.1"), options("10.0.0.9"));
    rig.cluster.follow(LIMITS, &[("m2", &moved), ("m1", &first)], rig.now_us);
    assert_eq!((rig.id(2), rig.word(2)), (one, "primary"), "it keeps what is known of it");
    assert!(rig.id(1) != two && rig.word(1) == "unknown");
    rig.cluster.follow(LIMITS, &[("m2", &moved)], rig.now_us);
    assert_eq!(rig.goes_to(), None);
}

/// An event at a node.
#[derive(Clone, Copy, Debug)]
enum Seen {
    Primary(u32),
    Standby(u32),
    Restarted(u32),
    Stranger,
    Failed,
    Starting,
    Lives,
    LoginRefused,
    OwnFault,
    Drained,
    Detached,
    Attached,
}

fn seen() -> impl Strategy<Value = Seen> {
    prop_oneof![
        4 => (1..4u32).prop_map(Seen::Primary),
        4 => (1..4u32).prop_map(Seen::Standby),
        1 => (1..4u32).prop_map(Seen::Restarted),
        1 => Just(Seen::Stranger),
        5 => Just(Seen::Failed),
        1 => Just(Seen::Starting),
        1 => Just(Seen::Lives),
        1 => Just(Seen::LoginRefused),
        1 => Just(Seen::OwnFault),
        1 => Just(Seen::Drained),
        1 => Just(Seen::Detached),
        2 => Just(Seen::Attached),
    ]
}

impl Rig {
    fn happen(&mut self, n: usize, seen: Seen) {
        let id = self.id(n);
        let observation = match seen {
            Seen::Primary(timeline) => Observation::Answered(answer(false, timeline, n, 7)),
            Seen::Standby(timeline) => Observation::Answered(answer(true, timeline, n, 7)),
            Seen::Restarted(timeline) => Observation::Answered(answer(false, timeline, n + 100, 7)),
            Seen::Stranger => Observation::Answered(answer(false, 9, n, 8)),
            Seen::Failed => Observation::Failed(String::new()),
            Seen::Starting => Observation::Starting(String::new()),
            Seen::Lives => Observation::Lives(String::new()),
            Seen::LoginRefused => Observation::LoginRefused(String::new()),
            Seen::OwnFault => Observation::OwnFault(String::new()),
            Seen::Drained => return self.cluster.switch(id, Switch::Draining, self.now_us),
            Seen::Detached => return self.cluster.switch(id, Switch::Detached, self.now_us),
            Seen::Attached => return self.cluster.switch(id, Switch::Attached, self.now_us),
        };
        self.see(n, &observation);
    }
}

proptest! {
    #[test]
    fn roles_are_given_slowly_and_taken_away_fast(
        steps in prop::collection::vec((1..4usize, seen(), 0..4000u64), 1..120)
    ) {
        let mut rig = Rig::new(3);
        // When each node last said that it is the primary.
        let mut said_us = [None::<u64>; 3];
        let mut before: Option<(Term, u64)> = None;
        for (n, seen, ms) in steps {
            rig.pass(ms);
            rig.happen(n, seen);
            match seen {
                Seen::Primary(_) | Seen::Restarted(_) | Seen::Stranger => said_us[n - 1] = Some(rig.now_us),
                Seen::Standby(_) => said_us[n - 1] = None,
                _ => {}
            }
            let primaries = (1..4).filter(|&n| rig.word(n) == "primary").count();
            prop_assert!(primaries <= 1, "one primary");
            let view = rig.cluster.view();
            if let Some(to) = rig.goes_to() {
                let said_us = said_us[to - 1].expect("by its own word");
                prop_assert!(rig.now_us - said_us <= LIMITS.primary_max_age_us, "its word is fresh");
                let term = view.primary.clone().expect("the same").term;
                for (other, node) in rig.cluster.nodes.iter().enumerate() {
                    let Some(member) = node.state.member().filter(|_| node.switch != Switch::Detached) else { continue };
                    let newer = member.answer.run.timeline > term.run.timeline;
                    prop_assert!(!newer || rig.refusal(other + 1).is_some(), "none has a higher timeline");
                }
                if let Some((last, epoch)) = before {
                    prop_assert!(last == term || epoch < view.epoch, "another term is another epoch");
                    prop_assert!(epoch <= view.epoch);
                    // However it came: no server of the last term takes anything in this one.
                    prop_assert!(last == term || view.retirement(Some(&last)) != Retirement::Stays);
                }
                before = Some((term, view.epoch));
            }
            let once = rig.cluster.view();
            rig.cluster.decide(rig.now_us);
            prop_assert_eq!(once, rig.cluster.view(), "deciding twice is deciding once");
        }
    }

    #[test]
    fn a_terminated_backend_is_no_evidence(counts in prop::collection::vec(0..3usize, 1..50)) {
        let mut rig = Rig::new(2);
        rig.primary(1, 1);
        rig.standby(2, 1);
        let view = rig.cluster.view();
        for fails in counts {
            // At most two checks fail before one succeeds: that is never long enough.
            (0..fails).for_each(|_| rig.fail(1));
            rig.pass(900);
            rig.primary(1, 1);
            prop_assert_eq!(&rig.cluster.view(), &view);
        }
    }
}

/// A standby that has replayed up to here.
fn replayed(rig: &mut Rig, n: usize, position: u64) {
    let said = Answer { position: Some(Lsn(position)), ..answer(true, 1, n, 7) };
    rig.see(n, &Observation::Answered(said));
}

fn at(rig: &mut Rig, position: u64) {
    let said = Answer { position: Some(Lsn(position)), ..answer(false, 1, 1, 7) };
    rig.see(1, &Observation::Answered(said));
}

fn shares(rig: &Rig) -> Vec<u32> {
    rig.cluster.view().standbys.iter().map(|standby| standby.share).collect()
}

#[test]
fn a_standby_that_lags_gets_no_reads_until_it_is_at_half_of_the_limit() {
    let mut rig = Rig::new(2);
    at(&mut rig, 0x100_1000);
    replayed(&mut rig, 2, 0x100_1000);
    for second in 1..=3 {
        rig.pass(1000);
        at(&mut rig, 0x100_1000 + second * 100);
        replayed(&mut rig, 2, 0x100_1000);
        let reads = if second <= 3 { 1000 } else { 0 };
        assert_eq!(shares(&rig), [reads], "{second} s: the oldest that it lacks is one second younger");
    }
    rig.pass(1000);
    replayed(&mut rig, 2, 0x100_1000);
    assert_eq!(shares(&rig), [0]);
    assert!(rig.cluster.view().bare_since_us.is_some());
    replayed(&mut rig, 2, 0x100_1000 + 100);
    assert_eq!(shares(&rig), [0], "it is not at half of the limit yet");
    replayed(&mut rig, 2, 0x100_1000 + 200);
    assert_eq!(shares(&rig), [1000]);
    assert_eq!(rig.cluster.view().bare_since_us, None);
}

#[test]
fn a_standby_that_lags_much_more_than_the_best_is_late() {
    let mut rig = Rig::new(3);
    rig.cluster.limits.prefers_lower_lag = true;
    let late =
        |rig: &Rig| -> Vec<bool> { rig.cluster.view().standbys.iter().map(|one| one.is_late).collect() };
    at(&mut rig, 0x100_1000);
    (2..=3).for_each(|n| replayed(&mut rig, n, 0x100_1000));
    at(&mut rig, 0x100_2000);
    rig.pass(500);
    (2..=3).for_each(|n| replayed(&mut rig, n, 0x100_1000));
    assert_eq!(late(&rig), [false, false], "none is better");
    replayed(&mut rig, 2, 0x100_2000);
    assert_eq!(late(&rig), [false, false], "a quarter of two seconds");
    rig.pass(1);
    replayed(&mut rig, 3, 0x100_1000);
    assert_eq!((late(&rig), shares(&rig)), (vec![false, true], vec![1000, 1000]));
    rig.cluster.limits.prefers_lower_lag = false;
    assert_eq!(late(&rig), [false, false]);
}

fn tells(rig: &mut Rig, n: usize, told: Result<u64, &str>) {
    let (id, now_us) = (rig.id(n), rig.now_us);
    rig.cluster.take_lag(id, told.map(|ms| ms * MS).map_err(str::to_owned), now_us);
}

#[test]
fn a_lag_that_is_told_counts_in_place_of_the_measured_one() {
    let mut rig = Rig::new(2);
    rig.cluster.limits.lag.is_told = true;
    at(&mut rig, 0x100_1000);
    replayed(&mut rig, 2, 0x100_1000);
    assert_eq!(shares(&rig), [0], "nothing is known of its lag");
    tells(&mut rig, 2, Ok(1500));
    assert_eq!(shares(&rig), [1000], "it was never known to be above the limit");
    at(&mut rig, 0x100_2000);
    rig.pass(9000);
    replayed(&mut rig, 2, 0x100_1000);
    let lag = rig.cluster.nodes[1].lag.expect("it is known");
    assert_eq!((lag.bytes, lag.us, shares(&rig)), (0x1000, Some(1500 * MS), vec![1000]));
    tells(&mut rig, 2, Ok(2001));
    assert_eq!(shares(&rig), [0]);
    tells(&mut rig, 2, Ok(1001));
    assert_eq!(shares(&rig), [0], "it is not at half of the limit yet");
    tells(&mut rig, 2, Ok(1000));
    assert_eq!(shares(&rig), [1000]);
    tells(&mut rig, 1, Ok(5000));
    assert!(rig.cluster.nodes[0].lag.is_none(), "it is the primary");
}

#[test]
fn a_lag_that_is_not_told_is_over_the_limit_and_no_evidence_against_the_node() {
    let mut rig = Rig::new(2);
    rig.cluster.limits.lag.is_told = true;
    at(&mut rig, 0x100_1000);
    replayed(&mut rig, 2, 0x100_1000);
    tells(&mut rig, 2, Ok(0));
    rig.cluster.take_remarks();
    for text in ["it gives NULL", "it gives 2 rows"] {
        rig.pass(1000);
        replayed(&mut rig, 2, 0x100_1000);
        tells(&mut rig, 2, Err(text));
        assert_eq!((shares(&rig), rig.word(2)), (vec![0], "standby"));
        assert_eq!(rig.cluster.nodes[1].trouble().as_deref(), Some(text));
        assert!(rig.cluster.view().obstacle.contains("m2: standby, its lag is not known"));
    }
    let said: Vec<String> = rig.cluster.take_remarks().into_iter().map(|remark| remark.text).collect();
    assert_eq!(said, ["cluster main: node m2 is standby: its lag is not known: it gives NULL"]);
    tells(&mut rig, 2, Ok(1999));
    assert_eq!((shares(&rig), rig.cluster.nodes[1].trouble()), (vec![1000], None));
    rig.cluster.limits.lag.us = 0;
    tells(&mut rig, 2, Err("it gives NULL"));
    assert_eq!(shares(&rig), [1000], "there is no limit");
    rig.cluster.limits.lag.is_told = false;
    replayed(&mut rig, 2, 0x100_1000);
    assert_eq!(rig.cluster.nodes[1].trouble(), None, "it is measured again");
}

#[test]
fn without_a_primary_what_a_standby_told_last_counts() {
    let mut rig = Rig::new(2);
    let wants = |rig: &Rig, n| rig.cluster.wants_lag(rig.id(n));
    rig.standby(2, 1);
    assert!(!wants(&rig, 2), "it is measured");
    rig.cluster.limits.lag.is_told = true;
    rig.standby(2, 1);
    assert!(wants(&rig, 2), "nothing is known");
    tells(&mut rig, 2, Ok(1));
    assert!(!wants(&rig, 2));
    rig.primary(1, 1);
    assert!(wants(&rig, 2) && !wants(&rig, 1));
    rig.fail(1);
    assert_eq!((rig.word(1), wants(&rig, 2)), ("primary", false), "it may be dead");
    rig.primary(1, 1);
    assert!(wants(&rig, 2));
    for _ in 0..3 {
        rig.fail(1);
        rig.pass(5000);
    }
    rig.standby(2, 1);
    assert_eq!((rig.word(1), wants(&rig, 2), shares(&rig)), ("down", false, vec![1000]));
}

#[test]
fn a_standby_that_has_what_the_primary_never_wrote_is_refused() {
    let mut rig = Rig::new(3);
    at(&mut rig, 0x100_1000);
    replayed(&mut rig, 2, 0x100_1000);
    replayed(&mut rig, 3, 0x100_2000);
    assert_eq!(rig.word(3), "standby", "the primary was asked before");
    at(&mut rig, 0x100_1800);
    assert_eq!(rig.word(3), "standby", "it may have been asked before, and answered late");
    replayed(&mut rig, 3, 0x100_2000);
    at(&mut rig, 0x100_1900);
    let expected = Refusal::Diverged { position: Lsn(0x100_2000), primary: Lsn(0x100_1900) };
    assert_eq!((rig.refusal(3), rig.word(2)), (Some(&expected), "standby"));
    assert!(rig.cluster.view().cut_off.iter().any(|node| **node == *"m3"));
    at(&mut rig, 0x100_9000);
    replayed(&mut rig, 3, 0x100_2000);
    assert_eq!(rig.word(3), "refused", "also when the primary has passed it");
    let since_us = rig.cluster.nodes[2].since_us;
    rig.pass(1000);
    replayed(&mut rig, 3, 0x100_2000);
    assert_eq!(rig.cluster.nodes[2].since_us, since_us);
    // It was rewound, and its server started.
    let mut said = answer(true, 1, 30, 7);
    said.position = Some(Lsn(0x100_8000));
    rig.see(3, &Observation::Answered(said));
    assert_eq!(rig.word(3), "standby");
}

#[test]
fn a_standby_that_is_asked_after_its_primary_is_not_ahead_of_it() {
    let mut rig = Rig::new(2);
    for step in 1..50 {
        at(&mut rig, 0x100_0000 + step * 100);
        replayed(&mut rig, 2, 0x100_0000 + step * 100 + 50);
        assert_eq!(rig.word(2), "standby");
    }
}

#[test]
fn another_primary_is_compared_again_with_its_standbys() {
    let mut rig = Rig::new(3);
    at(&mut rig, 0x100_1000);
    replayed(&mut rig, 2, 0x100_2000);
    (0..2).for_each(|_| at(&mut rig, 0x100_1000));
    assert_eq!(rig.word(2), "refused");
    // The one that was ahead is promoted, so it is the history now.
    let promoted = Answer { position: Some(Lsn(0x100_3000)), ..answer(false, 2, 2, 7) };
    rig.fail(1);
    rig.pass(20_000);
    rig.see(2, &Observation::Answered(promoted));
    assert_eq!(rig.goes_to(), Some(2));
    replayed(&mut rig, 3, 0x100_2000);
    rig.see(2, &Observation::Answered(promoted));
    assert_eq!(rig.word(3), "standby");
}

#[test]
fn without_a_primary_standbys_serve_on() {
    let mut rig = Rig::new(2);
    at(&mut rig, 0x100_1000);
    replayed(&mut rig, 2, 0x100_1000);
    (0..6).for_each(|_| {
        rig.pass(1000);
        rig.fail(1);
        replayed(&mut rig, 2, 0x100_1000);
    });
    assert_eq!((rig.word(1), shares(&rig)), ("down", vec![1000]));
}

#[test]
fn a_standby_that_comes_back_warms_up() {
    let mut rig = Rig::new(2);
    at(&mut rig, 0x100_1000);
    replayed(&mut rig, 2, 0x100_1000);
    assert_eq!(shares(&rig), [1000], "at the start nothing is warmer than anything else");
    let id = rig.id(2);
    rig.cluster.switch(id, Switch::Detached, rig.now_us);
    assert!(shares(&rig).is_empty());
    rig.cluster.switch(id, Switch::Attached, rig.now_us);
    assert_eq!(shares(&rig), [100]);
    let due_us = rig.cluster.expires_us(rig.now_us).expect("its share grows");
    assert_eq!(due_us, rig.now_us + 1000 * MS);
    rig.pass(1000);
    assert_eq!(shares(&rig), [200]);
    rig.pass(8000);
    assert_eq!(shares(&rig), [1000]);
}
