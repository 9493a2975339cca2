//! A switchover, step by step: what refuses it, what each step waits for, and what it says when it fails.

use std::sync::Arc;

use pgweir_settings::{ClusterOptions, Config, Discovery, NodeOptions};

use crate::cluster::answer::Lsn;
use crate::cluster::node::Observation;
use crate::cluster::source::{SourceMember, SourceReport, SourceRole, SourceWord};
use crate::cluster::switchover::{Act, Drain};
use crate::cluster::tests::{LIMITS, answer};
use crate::cluster::view::Switch;
use crate::cluster::{Cluster, Limits};

const MS: u64 = 1000;

/// Two nodes, of which m1 is the primary.
struct Rig {
    cluster: Cluster,
    now_us: u64,
}

impl Rig {
    fn new(discovery: Discovery) -> Rig {
        Rig::with(LIMITS, discovery)
    }

    /// A cluster whose `promote_command` may run for 30 s.
    fn with_command() -> Rig {
        Rig::with(Limits { promote_us: Some(30_000 * MS), ..LIMITS }, Discovery::Sql)
    }

    fn with(limits: Limits, discovery: Discovery) -> Rig {
        let mut rig = Rig { cluster: Cluster::new("main", limits, 1), now_us: 1 };
        rig.cluster.follow_source(&ClusterOptions { discovery, ..ClusterOptions::default() });
        let lines: Vec<(String, NodeOptions)> = (1..3)
            .map(|n| (format!("m{n}"), NodeOptions { host: format!("10.0.0.{n}"), ..NodeOptions::default() }))
            .collect();
        if discovery == Discovery::Sql {
            let lines: Vec<_> = lines.iter().map(|(name, options)| (name.as_str(), options)).collect();
            rig.cluster.follow(limits, &lines, 1);
        } else {
            rig.names(1);
        }
        rig.see(1, false, 1, 0);
        rig.see(2, true, 1, 0);
        rig.cluster.take_remarks();
        rig
    }

    /// The source names this node as the primary.
    fn names(&mut self, n: usize) {
        let member = |of: usize| SourceMember {
            name: format!("m{of}").into(),
            host: format!("10.0.0.{of}").into(),
            port: 5432,
            role: if of == n { SourceRole::Primary } else { SourceRole::Other },
        };
        let word = SourceWord { by: "a".into(), members: vec![member(1), member(2)], announced: None };
        let report = SourceReport { cluster: "main".into(), discovery: Discovery::Patroni, said: Ok(word) };
        if self.cluster.take_source(&report, self.now_us).is_some() {
            let nodes = self.cluster.discovered(&Config::default());
            let nodes: Vec<_> = nodes.iter().map(|(name, options)| (&**name, options)).collect();
            self.cluster.follow(LIMITS, &nodes, self.now_us);
        }
    }

    fn see(&mut self, n: usize, in_recovery: bool, timeline: u32, behind: u64) {
        let mut answer = answer(in_recovery, timeline, n, 7);
        answer.position = Some(Lsn(0x4000_0000 - behind));
        answer.received = in_recovery.then_some(Lsn(0x4000_0000));
        let id = self.cluster.nodes[n - 1].id;
        self.cluster.observe(id, &Observation::Answered(answer), self.now_us);
    }

    fn pass(&mut self, ms: u64) {
        // Both nodes go on answering.
        for _ in 0..ms / 1000 {
            self.now_us += 1000 * MS;
            for n in 1..3 {
                let member = self.cluster.nodes[n - 1].state.member().cloned();
                if let Some(member) = member {
                    let id = self.cluster.nodes[n - 1].id;
                    self.cluster.observe(id, &Observation::Answered(member.answer), self.now_us);
                }
            }
        }
        self.now_us += ms % 1000 * MS;
        self.cluster.decide(self.now_us);
    }

    fn begin(&mut self, force: bool) -> Result<u64, String> {
        self.cluster.begin_switchover("m2", force, self.now_us)
    }

    fn drained(&mut self, number: u64) -> Option<Act> {
        self.cluster.switchover_drained(number, self.now_us)
    }

    fn is_held(&self) -> bool {
        let view = self.cluster.view();
        view.primary.is_none() && view.is_planned
    }

    /// Returns the result of the switchover, if it has ended.
    fn result(&mut self) -> Option<Result<(), String>> {
        self.cluster.take_ended().map(|ended| ended.result)
    }

    fn fails(&mut self, words: &str) {
        let result = self.result().expect("it has ended");
        let why = result.expect_err("it has failed");
        assert!(why.contains(words) && why.contains("go on"), "{why}");
        assert!(!self.cluster.view().is_planned);
    }
}

#[test]
fn what_a_target_must_be() {
    let mut rig = Rig::new(Discovery::Sql);
    let refused = |rig: &mut Rig, to: &str, words: &str| {
        let why = rig.cluster.begin_switchover(to, false, rig.now_us).expect_err(words);
        assert!(why.contains(words), "{why}");
        assert!(!rig.is_held());
    };
    refused(&mut rig, "m9", "has no node m9");
    refused(&mut rig, "m1", "is the primary of cluster main already");
    rig.see(2, true, 1, (1 << 24) + 1);
    refused(&mut rig, "m2", "is 16777217 bytes behind");
    rig.see(2, true, 1, 1 << 24);
    let id = rig.cluster.nodes[1].id;
    rig.cluster.switch(id, Switch::Detached, rig.now_us);
    refused(&mut rig, "m2", "ATTACH NODE main.m2");
    rig.cluster.switch(id, Switch::Attached, rig.now_us);
    rig.cluster.observe(id, &Observation::Failed("refused".to_owned()), rig.now_us);
    refused(&mut rig, "m2", "does not answer now");
    rig.cluster.observe(id, &Observation::Answered(answer(true, 1, 2, 7)), rig.now_us);
    refused(&mut rig, "m2", "does not stream");
    rig.see(2, true, 1, 0);
    assert!(rig.begin(false).is_ok());
    let why = rig.begin(false).expect_err("one at a time");
    assert!(why.contains("is under way"), "{why}");
}

#[test]
fn patroni_is_asked_once_nothing_is_open_and_the_target_has_the_last_word() {
    let mut rig = Rig::new(Discovery::Patroni);
    let number = rig.begin(false).expect("it begins");
    assert!(rig.is_held());
    assert_eq!(rig.cluster.view().drain, Some(Drain { number, cuts: false }));
    assert_eq!(rig.drained(number + 1), None, "that was an earlier one");
    let ask = Act::AskPatroni { from: "m1".into(), to: "m2".into() };
    assert_eq!(rig.drained(number), Some(ask));
    assert_eq!((rig.drained(number), rig.cluster.view().drain), (None, None));
    rig.cluster.switchover_answered(number, &Ok(()), rig.now_us);
    assert!(rig.is_held() && rig.result().is_none());
    rig.names(2);
    rig.see(1, true, 1, 0);
    assert!(rig.is_held());
    rig.see(2, false, 2, 0);
    assert_eq!(rig.result(), Some(Ok(())));
    let view = rig.cluster.view();
    assert_eq!(view.primary.map(|primary| primary.term.node), Some(Arc::from("m2")));
    assert!(rig.cluster.take_remarks().iter().any(|remark| remark.text.contains("switchover to m2 is done")));
}

#[test]
fn without_patroni_clients_wait_for_a_promotion_until_primary_wait_ends() {
    let mut rig = Rig::new(Discovery::Sql);
    let number = rig.begin(false).expect("it begins");
    assert_eq!(rig.drained(number), Some(Act::Wait));
    rig.pass(59_000);
    assert!(rig.is_held());
    rig.pass(1_001);
    rig.fails("step 3 failed, m2 was not promoted in time");
    assert!(rig.cluster.view().primary.is_some(), "m1 goes on");
    let number = rig.begin(false).expect("it begins");
    rig.drained(number);
    rig.see(1, true, 1, 0);
    rig.see(2, false, 2, 0);
    assert_eq!(rig.result(), Some(Ok(())));
}

#[test]
fn a_command_is_run_once_nothing_is_open_and_the_target_has_the_last_word() {
    let mut rig = Rig::with_command();
    let run = Act::RunCommand { from: "m1".into(), to: "m2".into() };
    let number = rig.begin(false).expect("it begins");
    assert_eq!((rig.drained(number), rig.drained(number)), (Some(run.clone()), None));
    rig.cluster.switchover_answered(number, &Err("exit status 3: no route".to_owned()), rig.now_us);
    rig.fails("step 3 failed, promote_command did not switch over to m2: exit status 3: no route");
    assert!(rig.cluster.view().primary.is_some(), "m1 goes on");
    // It succeeds, and the standby does not become the primary.
    let number = rig.begin(false).expect("it begins");
    rig.drained(number);
    rig.pass(20_000);
    rig.cluster.switchover_answered(number, &Ok(()), rig.now_us);
    rig.pass(60_000);
    assert!(rig.is_held());
    rig.pass(1_000);
    rig.fails("step 4 failed, promote_command has ended and m2 does not say that it is the primary");
    // It does.
    let number = rig.begin(false).expect("it begins");
    rig.drained(number);
    rig.see(1, true, 1, 0);
    rig.see(2, false, 2, 0);
    assert_eq!(rig.result(), Some(Ok(())));
    rig.cluster.switchover_answered(number, &Err("too late".to_owned()), rig.now_us);
    assert_eq!(rig.result(), None);
}

#[test]
fn by_force_a_command_gives_a_cluster_its_lost_primary_again() {
    let lost = |mut rig: Rig| {
        let id = rig.cluster.nodes[0].id;
        for _ in 0..7 {
            rig.now_us += 1000 * MS;
            rig.cluster.observe(id, &Observation::Failed("refused".to_owned()), rig.now_us);
            rig.see(2, true, 1, 0);
        }
        assert!(rig.cluster.primary().is_none());
        rig
    };
    let why = lost(Rig::new(Discovery::Sql)).begin(true).expect_err("there is no command");
    assert!(why.contains("has no primary that takes work now") && !why.contains("FORCE"), "{why}");
    let mut rig = lost(Rig::with_command());
    let why = rig.begin(false).expect_err("not without FORCE");
    assert!(why.contains("SWITCHOVER main TO m2 FORCE promotes m2"), "{why}");
    let number = rig.begin(true).expect("it begins");
    assert_eq!(rig.drained(number), Some(Act::RunCommand { from: "m1".into(), to: "m2".into() }));
    rig.cluster.switchover_answered(number, &Ok(()), rig.now_us);
    rig.see(2, false, 2, 0);
    assert_eq!(rig.result(), Some(Ok(())));
}

#[test]
fn open_transactions_end_it_or_are_cut() {
    let mut rig = Rig::new(Discovery::Sql);
    rig.begin(false).expect("it begins");
    rig.pass(10_001);
    rig.fails("step 2 failed, transactions were still open on m1");
    let number = rig.begin(true).expect("it begins");
    rig.pass(10_001);
    assert_eq!(rig.cluster.view().drain, Some(Drain { number, cuts: true }));
    assert!(rig.is_held());
    assert_eq!(rig.drained(number), Some(Act::Wait));
}

#[test]
fn patronis_no_another_primary_and_an_operator_end_it() {
    let mut rig = Rig::new(Discovery::Patroni);
    let number = rig.begin(false).expect("it begins");
    rig.drained(number);
    rig.cluster.switchover_answered(number, &Err("status 412".to_owned()), rig.now_us);
    rig.fails("step 3 failed, Patroni did not switch over to m2: status 412");
    assert!(rig.cluster.view().primary.is_some());
    let number = rig.begin(false).expect("it begins");
    rig.drained(number);
    rig.cluster.switchover_answered(number, &Ok(()), rig.now_us);
    // The same node again, in another run.
    let mut restarted = answer(false, 2, 1, 7);
    restarted.run.started_us = 99;
    let id = rig.cluster.nodes[0].id;
    rig.cluster.observe(id, &Observation::Answered(restarted), rig.now_us);
    rig.fails("step 4 failed, m1 has become the primary and not m2");
    let mut rig = Rig::new(Discovery::Sql);
    assert!(rig.cluster.cancel_switchover(rig.now_us).is_err());
    rig.begin(false).expect("it begins");
    assert_eq!(rig.cluster.cancel_switchover(rig.now_us), Ok(()));
    rig.fails("an operator has canceled");
}
