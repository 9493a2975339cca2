//! How often the nodes of a cluster and its source are asked while clients wait.

use std::sync::Arc;

use pgweir_core::mail::{Mail, Question};
use pgweir_core::source::{SourceMember, SourceReport, SourceRole, SourceWord};
use pgweir_settings::Discovery;

use crate::clusters::{MAIN, is_asked, primary, standby, streams, watches};
use crate::rig::{Rig, fe};

const PATRONI: &str = "app = cluster=main\n\
    [clusters]\nmain = discovery=patroni patroni_api=http://10.0.0.1:8008 check_user=carol\n";

/// The agents' word on two nodes.
fn word(one: SourceRole, other: SourceRole) -> Mail {
    let member = |name: &str, host: &str, role| SourceMember {
        name: name.into(),
        host: host.into(),
        port: 5432,
        role,
    };
    let members = vec![member("m1", "10.0.0.1", one), member("m2", "10.0.0.2", other)];
    let said = Ok(SourceWord { by: "http://10.0.0.1:8008".into(), members, announced: None });
    Mail::Source(Arc::new(SourceReport { cluster: "main".into(), discovery: Discovery::Patroni, said }))
}

/// What the control plane was told of how often to ask the source.
fn hurries(rig: &mut Rig) -> Vec<bool> {
    let of = |question| match question {
        Question::HurrySource { hurries, .. } => Some(hurries),
        _ => None,
    };
    rig.asked().into_iter().filter_map(of).collect()
}

#[test]
fn the_source_is_asked_more_often_while_there_is_no_primary() {
    let mut rig = Rig::with(&format!("{MAIN}\nallow_discovered_hosts = 10.0.0.0/8"), PATRONI, 1);
    rig.pass_us(1);
    assert_eq!(hurries(&mut rig), [true], "nothing is known yet");
    rig.mail(0, word(SourceRole::Primary, SourceRole::Other));
    let [one, other] = watches(&mut rig);
    rig.send(one, &primary(1));
    rig.send(other, &standby());
    assert_eq!(hurries(&mut rig), [false]);
    rig.mail(0, word(SourceRole::Primary, SourceRole::Other));
    assert_eq!(hurries(&mut rig), [], "nothing has changed");
    // The primary is lost, and its agent still holds the lock.
    rig.eof(one);
    rig.pass_us(1_000_000);
    let again = rig.dialed();
    rig.refuse_dial(again, "connection refused");
    assert_eq!(hurries(&mut rig), [true]);
}

#[test]
fn the_nodes_are_asked_every_10_ms_during_a_switchover() {
    let cluster = "app = cluster=main\n[clusters]\nmain = nodes=m1,m2 check_user=carol\n\
        [nodes]\nm1 = host=10.0.0.1\nm2 = host=10.0.0.2\n";
    let mut rig = Rig::with(MAIN, cluster, 1);
    let nodes = watches(&mut rig);
    rig.send(nodes[0], &primary(1));
    rig.send(nodes[1], &streams());
    assert_eq!(hurries(&mut rig), [], "it has no source");
    let console = rig.console();
    rig.send(console, &fe::query("SWITCHOVER main TO m2"));
    rig.pass_us(10_000);
    for _ in 0..3 {
        for (watch, says) in nodes.into_iter().zip([primary(1), streams()]) {
            is_asked(&mut rig, watch);
            rig.send(watch, &says);
        }
        rig.pass_us(9_999);
        nodes.into_iter().for_each(|watch| rig.gets_nothing(watch));
        rig.pass_us(1);
    }
}
