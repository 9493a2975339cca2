//! The life of a client in transaction pooling: login, query, release, the queue.

use crate::rig::{Rig, be, fe};

#[test]
fn a_query_goes_to_a_server_and_its_answer_comes_back() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dials[0];
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Columns", "Row 1", "Complete SELECT 1", "Ready I"]);
}
