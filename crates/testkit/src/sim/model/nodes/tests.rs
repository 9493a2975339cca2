//! The model's nodes, without a pooler.

use pgweir_core::Machine;

use super::Nodes;
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
