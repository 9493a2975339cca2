//! The changes of a database with a cluster (`follow=wal`) are those of its primary. Nothing that was kept outlasts a primary.

use crate::cache_follow::{Following, STEPS};
use crate::clusters::{CLUSTER, fail_over, primary, says, standby, watches};
use crate::rig::{End, Rig, be, fe};

const MAIN: &str = "multiplex_depth = 0\nserver_check_query =\nquery_cache = on\nquery_cache_user = follower\n\
    [cache]\nall = follow=wal\n[pgweir]";

const READ: &str = "select a from t";

/// The second node's answer to the question which server it is, after its promotion.
const PROMOTED: [&str; 5] = ["2", "-5", "6", "false", "read committed"];

/// The watches of a cluster whose first node is the primary, and the connections that follow a database there.
fn followed() -> (Following, [End; 2]) {
    let mut rig = Rig::with(MAIN, CLUSTER, 1);
    let watches = watches(&mut rig);
    assert_eq!(rig.new_dials(), 0, "no primary is known yet");
    rig.send(watches[0], &primary(1));
    rig.send(watches[1], &standby());
    let mut known = logged_in(rig, "10.0.0.1:5432");
    STEPS.into_iter().for_each(|step| known.take(step));
    known.marked("10:10:", 0x100);
    known.probed("10:10:", 0x100);
    known.rig.gets(known.stream);
    known.rig.pass_us(10);
    (known, watches)
}

/// The two connections are opened to this node, and logged in.
fn logged_in(mut rig: Rig, node: &str) -> Following {
    let (monitor, stream) = (rig.dialed(), rig.dialed());
    for end in [monitor, stream] {
        assert_eq!(rig.endpoint(end), node);
        rig.connect(end);
        rig.send(end, &crate::rig::greeting());
    }
    Following { rig, monitor, stream, tables: "5,6" }
}

#[test]
fn the_primary_is_followed_and_the_next_one_from_the_start() {
    let (mut known, watches) = followed();
    let (client, server) = known.client();
    known.kept((client, server), READ);
    known.is_hit(client, READ, "10:10:", 0x200);
    fail_over(&mut known.rig, watches);
    assert!(known.rig.is_closed(known.monitor) && known.rig.is_closed(known.stream));
    assert!(known.rig.is_closed(server));
    known = logged_in(known.rig, "10.0.0.2:5432");
    // The client's read runs at the new primary, although its answer was kept.
    known.rig.send(client, &fe::query(READ));
    let next = known.rig.dialed();
    known.rig.greet(next);
    known.tells_node(next, &PROMOTED);
    assert_eq!(known.rig.gets(next), [format!("Query {READ}")]);
    known.rig.send(next, &crate::cache::rows("b"));
    assert_eq!(known.rig.gets(client)[1], "Row b");
    assert!(known.shown().contains("opening"), "{}", known.shown());
    STEPS.into_iter().for_each(|step| known.take_as(step, &PROMOTED));
    assert!(known.rig.is_closed(next), "its settings may be older than those that are followed");
    known.rig.gets_raw(known.stream);
    for _ in 0..2 {
        known.gets(known.monitor, "pg_current_snapshot");
        known.rig.send(known.monitor, &be::answer(&[&["10:10:", "0/300", PROMOTED[0]]]));
    }
    assert!(known.shown().contains("following"), "{}", known.shown());
}

#[test]
fn without_a_primary_nothing_is_followed_and_no_answer_is_given() {
    let (mut known, watches) = followed();
    let (client, server) = known.client();
    known.kept((client, server), READ);
    known.is_hit(client, READ, "10:10:", 0x200);
    // The primary says that it is a standby now.
    known.rig.pass_us(1_000_000);
    known.rig.gets_raw(watches[0]);
    known.rig.send(watches[0], &says(true, 1, 1));
    assert!(known.rig.is_closed(known.monitor) && known.rig.is_closed(known.stream));
    known.rig.send(client, &fe::query(READ));
    known.rig.gets_nothing(client);
    let shown = known.shown();
    assert!(shown.contains("off") && shown.contains("cluster \"main\" has no primary"), "{shown}");
}
