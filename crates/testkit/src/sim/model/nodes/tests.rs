//! The model's nodes, without a pooler.

use pgweir_core::Machine;

use super::{Act, Nodes, Status};
use crate::sim::plan::Plan;
use crate::sim::subject::Subject;

/// The nodes of the first world with a source in which something happens.
fn nodes() -> Nodes {
    let plans = (1..).map(|seed| Plan::cluster(seed, &Machine::profile()));
    let plan = plans
        .filter_map(|plan| plan.cluster)
        .find(|plan| plan.source_us.is_some() && plan.happenings > 2)
        .expect("a world with a source");
    Nodes::new(&plan, 1, 0)
}

#[test]
fn nothing_is_settled_while_the_source_strays() {
    let mut nodes = nodes();
    let (mut now_us, mut strayed) = (60_000_000, 0);
    assert!(nodes.is_settled(now_us));
    for _ in 0..1000 {
        let source = nodes.source.as_mut().expect("a source");
        source.says(2, 0, false, now_us);
        if source.strayed_us() == now_us {
            strayed += 1;
            assert!(!nodes.is_settled(now_us + 1_000_000), "the pooler may hold its clients");
        }
        assert!(nodes.is_settled(now_us + 60_000_000));
        now_us += 100_000;
    }
    assert!(strayed > 0);
}

#[test]
fn a_node_has_another_role_than_before_once_it_is_promoted_or_made_a_standby() {
    let mut nodes = nodes();
    assert!(!nodes.has_changed_role(0) && !nodes.has_changed_role(1));
    for act in [Act::Crash(0), Act::Promote(1), Act::Start(0), Act::Serve(0)] {
        nodes.happen(act, 1);
    }
    assert!(nodes.has_changed_role(0) && nodes.has_changed_role(1));
}

/// The sessions of a running node live on, and values that they have shown stay valid.
#[test]
fn a_node_that_runs_is_not_started_again() {
    let mut nodes = nodes();
    for act in [Act::Crash(1), Act::Start(1), Act::Serve(1)] {
        nodes.happen(act, 1);
    }
    let (place, started) = (nodes.nodes[1].place, nodes.nodes[1].started);
    for _ in 0..20 {
        nodes.happen(Act::Start(1), 2);
        assert!(nodes.nodes[1].status == Status::Running);
        assert!(nodes.nodes[1].place == place && nodes.nodes[1].started == started);
    }
    for act in [Act::Crash(1), Act::Serve(1)] {
        nodes.happen(act, 3);
    }
    assert!(nodes.nodes[1].status == Status::Stopped, "it recovers first");
}
