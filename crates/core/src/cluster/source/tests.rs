//! What the word of a source counts for: agreement, contradiction, silence, a switchover that is announced; and the invariants under any
//! order of words and observations.

use std::sync::Arc;

use pgweir_settings::{ClusterOptions, Config, Discovery, SourceLost};
use proptest::prelude::*;

use crate::cluster::node::{Doubt, NodeState, Observation, Refusal};
use crate::cluster::source::{Announced, SourceMember, SourceReport, SourceRole, SourceWord};
use crate::cluster::tests::{LIMITS, answer};
use crate::cluster::view::Retirement;
use crate::cluster::{Cluster, NodeId};

const MS: u64 = 1000;

/// A cluster with a source, and its clock.
struct Rig {
    cluster: Cluster,
    now_us: u64,
    announced: bool,
}

impl Rig {
    fn new(lost: SourceLost) -> Rig {
        let mut cluster = Cluster::new("main", LIMITS, 1);
        let options =
            ClusterOptions { discovery: Discovery::Etcd, source_lost: lost, ..ClusterOptions::default() };
        cluster.follow_source(&options);
        Rig { cluster, now_us: 1, announced: false }
    }

    /// The source says what each node is.
    fn says(&mut self, roles: &[SourceRole]) {
        let member = |(n, role): (usize, &SourceRole)| SourceMember {
            name: format!("m{}", n + 1).into(),
            host: format!("10.0.0.{}", n + 1).into(),
            port: 5432,
            role: *role,
        };
        let members = roles.iter().enumerate().map(member).collect();
        let announced = self.announced.then_some(Announced { to: None });
        self.hear(Ok(SourceWord { by: "http://etcd:2379".into(), members, announced }));
    }

    fn hear(&mut self, said: Result<SourceWord, String>) {
        let report = SourceReport { cluster: "main".into(), discovery: Discovery::Etcd, said };
        if self.cluster.take_source(&report, self.now_us).is_some() {
            let nodes = self.cluster.discovered(&Config::default());
            let nodes: Vec<_> = nodes.iter().map(|(name, options)| (&**name, options)).collect();
            self.cluster.follow(LIMITS, &nodes, self.now_us);
        }
    }

    /// The source names this node, and another one as no primary.
    fn names(&mut self, n: usize) {
        let mut roles = [SourceRole::Other; 2];
        roles[n - 1] = SourceRole::Primary;
        self.says(&roles);
    }

    fn id(&self, n: usize) -> NodeId {
        self.cluster.nodes[n - 1].id
    }

    fn see(&mut self, n: usize, in_recovery: bool, timeline: u32) {
        let observation = Observation::Answered(answer(in_recovery, timeline, n, 7));
        self.cluster.observe(self.id(n), &observation, self.now_us);
    }

    fn primary(&mut self, n: usize, timeline: u32) {
        self.see(n, false, timeline);
    }

    fn standby(&mut self, n: usize, timeline: u32) {
        self.see(n, true, timeline);
    }

    fn pass(&mut self, ms: u64) {
        self.now_us += ms * MS;
        self.cluster.decide(self.now_us);
    }

    fn goes_to(&self) -> Option<usize> {
        let term = self.cluster.view().primary?.term;
        (1..=self.cluster.nodes.len()).find(|&n| self.cluster.nodes[n - 1].name == term.node)
    }

    fn doubt(&self, n: usize) -> Option<Doubt> {
        match &self.cluster.nodes[n - 1].state {
            NodeState::Unsure(unsure) => Some(unsure.why),
            _ => None,
        }
    }

    fn said(&mut self, words: &str) -> bool {
        self.cluster.take_remarks().iter().any(|remark| remark.text.contains(words))
    }
}

#[test]
fn a_node_is_the_primary_if_it_and_the_source_say_so() {
    let mut rig = Rig::new(SourceLost::Trust);
    assert!(rig.cluster.view().obstacle.contains("has named no node"));
    rig.names(1);
    assert_eq!(rig.goes_to(), None, "the source alone makes none");
    rig.primary(1, 1);
    rig.standby(2, 1);
    assert_eq!(rig.goes_to(), Some(1));
    rig.names(2);
    assert_eq!((rig.goes_to(), rig.doubt(1)), (None, Some(Doubt::Source)), "taken away at once");
    rig.primary(2, 2);
    assert_eq!(rig.goes_to(), Some(2), "both agree: nothing is waited for");
    let state = &rig.cluster.nodes[0].state;
    let is_old = |state: &NodeState| matches!(state, NodeState::Refused(refused) if matches!(refused.why, Refusal::OldPrimary { .. }));
    assert!(is_old(state), "{state:?}");
}

#[test]
fn no_lock_is_no_primary() {
    let mut rig = Rig::new(SourceLost::Trust);
    rig.says(&[SourceRole::Other; 2]);
    rig.primary(1, 1);
    assert_eq!((rig.goes_to(), rig.doubt(1)), (None, Some(Doubt::Source)));
}

#[test]
fn a_silent_source_is_trusted_to_have_said_nothing_new_or_holds() {
    for (lost, to, doubt) in
        [(SourceLost::Trust, Some(1), None), (SourceLost::Hold, None, Some(Doubt::SourceSilent))]
    {
        let mut rig = Rig::new(lost);
        rig.names(1);
        rig.primary(1, 1);
        rig.standby(2, 1);
        rig.pass(9_000);
        rig.hear(Err("refused".to_owned()));
        rig.primary(1, 1);
        assert_eq!(rig.goes_to(), Some(1), "its last word is fresh");
        rig.pass(2_000);
        assert_eq!((rig.goes_to(), rig.doubt(1)), (to, doubt), "{lost}");
        assert!(
            rig.said("its source (etcd) does not answer: refused") && !rig.said("does not answer"),
            "once"
        );
        rig.names(1);
        assert_eq!(rig.goes_to(), Some(1));
    }
}

#[test]
fn without_a_source_two_that_claim_are_one_too_many() {
    let mut rig = Rig::new(SourceLost::Trust);
    rig.names(1);
    rig.primary(1, 1);
    rig.standby(2, 1);
    rig.pass(11_000);
    rig.primary(1, 1);
    assert_eq!(rig.goes_to(), Some(1));
    (0..5).for_each(|_| rig.primary(2, 2));
    assert_eq!(
        (rig.goes_to(), rig.doubt(1), rig.doubt(2)),
        (None, Some(Doubt::TwoPrimaries), Some(Doubt::TwoPrimaries))
    );
    rig.names(2);
    assert_eq!(rig.goes_to(), Some(2), "the source decides");
}

#[test]
fn an_agent_that_is_silent_is_no_contradiction_unless_another_one_speaks() {
    let mut rig = Rig::new(SourceLost::Trust);
    rig.says(&[SourceRole::Silent, SourceRole::Other]);
    rig.primary(1, 1);
    assert_eq!(rig.goes_to(), Some(1));
    rig.says(&[SourceRole::Silent, SourceRole::Primary]);
    assert_eq!((rig.goes_to(), rig.doubt(1)), (None, Some(Doubt::Source)));
}

#[test]
fn a_newer_primary_that_the_source_has_not_named_yet_makes_clients_wait() {
    let mut rig = Rig::new(SourceLost::Trust);
    rig.names(1);
    rig.primary(1, 1);
    rig.standby(2, 1);
    rig.pass(100);
    rig.primary(2, 2);
    assert_eq!(
        (rig.goes_to(), rig.doubt(2)),
        (None, Some(Doubt::Source)),
        "its word for the old one may be old"
    );
    rig.pass(500);
    rig.names(1);
    assert_eq!(rig.goes_to(), None, "it may have been asked before");
    rig.pass(600);
    rig.names(1);
    assert_eq!(
        (rig.goes_to(), rig.doubt(2)),
        (Some(1), Some(Doubt::Source)),
        "it has had its time: it decides"
    );
}

#[test]
fn a_switchover_that_is_announced_holds_for_a_while_and_until_another_node_is_the_primary() {
    let mut rig = Rig::new(SourceLost::Trust);
    rig.names(1);
    rig.primary(1, 1);
    rig.standby(2, 1);
    rig.announced = true;
    rig.names(1);
    let view = rig.cluster.view();
    assert!(view.primary.is_none() && view.is_planned && rig.said("a switchover is under way"));
    rig.pass(9_000);
    rig.names(1);
    rig.primary(1, 1);
    assert_eq!(rig.goes_to(), None);
    rig.pass(1_100);
    assert_eq!(rig.goes_to(), Some(1), "switchover_drain_ms is over");
    rig.announced = false;
    rig.names(1);
    rig.announced = true;
    rig.names(2);
    rig.standby(1, 1);
    rig.primary(2, 2);
    assert_eq!((rig.goes_to(), rig.cluster.view().is_planned), (Some(2), false), "the key is still there");
}

#[test]
fn a_list_without_nodes_changes_nothing_and_nodes_that_are_gone_are_cut_off() {
    let mut rig = Rig::new(SourceLost::Trust);
    rig.names(1);
    rig.primary(1, 1);
    rig.standby(2, 1);
    rig.says(&[]);
    assert_eq!((rig.goes_to(), rig.cluster.nodes.len()), (Some(1), 2));
    let old = rig.cluster.view().primary.map(|primary| primary.term);
    let member = |role| SourceMember { name: "m2".into(), host: "10.0.0.2".into(), port: 5432, role };
    let word = |role| SourceWord { by: "e".into(), members: vec![member(role)], announced: None };
    rig.hear(Ok(word(SourceRole::Other)));
    assert_eq!(rig.cluster.view().retirement(old.as_ref()), Retirement::Stays, "nothing is decided yet");
    rig.hear(Ok(word(SourceRole::Primary)));
    rig.primary(1, 2);
    assert_eq!((rig.goes_to(), rig.cluster.view().retirement(old.as_ref())), (Some(1), Retirement::Cut));
    assert_eq!(rig.cluster.nodes[0].name, Arc::from("m2"));
}

#[test]
fn another_way_of_discovery_takes_back_nothing() {
    let mut rig = Rig::new(SourceLost::Trust);
    rig.names(1);
    rig.primary(1, 1);
    let epoch = rig.cluster.epoch();
    rig.cluster.follow_source(&ClusterOptions { discovery: Discovery::Patroni, ..ClusterOptions::default() });
    rig.names(2);
    rig.cluster.decide(rig.now_us);
    assert_eq!(
        (rig.goes_to(), rig.cluster.epoch()),
        (Some(1), epoch),
        "a word of the old source does not count"
    );
}

/// An event in the property test.
#[derive(Clone, Debug)]
enum Step {
    Says(Vec<SourceRole>, bool),
    Fails,
    Node(usize, bool, u32),
    Unreachable(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let role = prop_oneof![
        3 => Just(SourceRole::Primary),
        4 => Just(SourceRole::Other),
        2 => Just(SourceRole::Silent),
    ];
    prop_oneof![
        3 => (prop::collection::vec(role, 0..4), any::<bool>()).prop_map(|(roles, announced)| Step::Says(roles, announced)),
        1 => Just(Step::Fails),
        6 => (0..3usize, any::<bool>(), 1..4u32).prop_map(|(n, recovery, timeline)| Step::Node(n, recovery, timeline)),
        2 => (0..3usize).prop_map(Step::Unreachable),
    ]
}

proptest! {
    #[test]
    fn no_word_of_a_source_makes_a_primary_and_a_fresh_one_unmakes_it(
        holds in any::<bool>(),
        steps in prop::collection::vec((step(), 0..4000u64), 1..120)
    ) {
        let mut rig = Rig::new(if holds { SourceLost::Hold } else { SourceLost::Trust });
        let mut word: Option<(Vec<SourceRole>, u64)> = None;
        let mut epoch = 0;
        for (step, ms) in steps {
            rig.pass(ms);
            match &step {
                Step::Says(roles, announced) => {
                    rig.announced = *announced;
                    rig.says(roles);
                    if !roles.is_empty() {
                        word = Some((roles.clone(), rig.now_us));
                    }
                }
                Step::Fails => rig.hear(Err("x".to_owned())),
                Step::Node(n, ..) | Step::Unreachable(n) if *n >= rig.cluster.nodes.len() => {}
                Step::Node(n, recovery, timeline) => rig.see(n + 1, *recovery, *timeline),
                Step::Unreachable(n) => {
                    rig.cluster.observe(rig.id(n + 1), &Observation::Failed("x".to_owned()), rig.now_us);
                }
            }
            prop_assert!(rig.cluster.epoch() >= epoch);
            epoch = rig.cluster.epoch();
            let view = rig.cluster.view();
            if let Some(to) = rig.goes_to() {
                prop_assert!(!view.is_planned);
                let node = &rig.cluster.nodes[to - 1];
                let member = node.state.member().expect("it answered");
                prop_assert!(!member.answer.in_recovery, "by its own word");
                prop_assert!(rig.now_us - member.heard_us <= LIMITS.primary_max_age_us, "which is fresh");
                let (roles, heard_us) = word.as_ref().expect("the source named it once");
                let fresh = rig.now_us - heard_us <= LIMITS.primary_max_age_us;
                let role = roles.get(to - 1).copied();
                prop_assert!(!fresh || role != Some(SourceRole::Other), "no fresh word is against it");
                prop_assert!(!holds || fresh && role == Some(SourceRole::Primary), "hold: a fresh word is for it");
            }
            rig.cluster.decide(rig.now_us);
            prop_assert_eq!(view, rig.cluster.view(), "deciding twice is deciding once");
        }
    }
}
