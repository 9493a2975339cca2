//! What ends the following of a database's changes: refusals, connections that end at each step, and servers that say anything.

use crate::cache_follow::{Following, STEPS, Step, checked, definitions, keepalive, probe, transaction};
use crate::rig::{be, fe};

/// The changes are not followed any more, for a reason with this part. Both connections are closed, and others are opened later.
fn has_ended(known: &mut Following, part: &str) {
    assert!(known.rig.is_closed(known.monitor) && known.rig.is_closed(known.stream), "{part}");
    assert!(known.rig.logged(part), "{part}");
    let before = known.rig.new_dials();
    known.rig.pass_s(62);
    assert!(known.rig.new_dials() > before, "it is tried again: {part}");
}

#[test]
fn a_server_that_cannot_be_followed_is_told_with_what_mends_it() {
    for (column, value, expected) in [
        (0, Some("130000"), "from PostgreSQL 14 on"),
        (6, Some("replica"), "wal_level is replica: it must be logical"),
        (7, Some("true"), "the server is a standby"),
        (8, Some("true"), "Aurora"),
        (9, None, "CREATE PUBLICATION"),
        (9, Some("false"), "SET (publish ="),
        (5, Some("10"), "cannot be read"),
        (4, Some("x"), "cannot be read"),
    ] {
        let mut known = Following::before(Step::Check, "");
        known.rig.send(known.monitor, &checked(column, value));
        has_ended(&mut known, expected);
    }
}

/// The two connections serve no client: no limit of clients' connections holds them back, or ends them.
#[test]
fn a_database_is_followed_without_a_part_of_a_shared_limit() {
    let mut known =
        Following::opened("shared_limits = etcd\netcd_endpoints = http://e:2379\nmax_db_connections = 4");
    known.rig.eof(known.stream);
    has_ended(&mut known, "are not followed");
}

#[test]
fn a_slot_that_is_refused_is_told_with_what_mends_it() {
    for (code, expected) in [
        ("42501", "ALTER ROLE \"follower\" REPLICATION"),
        ("53400", "ALTER SYSTEM SET max_replication_slots"),
        ("XX000", "refused"),
    ] {
        let mut known = Following::before(Step::Slot, "");
        known.rig.send(known.stream, &[be::error(code, "refused"), be::ready('I')].concat());
        has_ended(&mut known, expected);
    }
}

#[test]
fn a_connection_that_ends_at_any_step_ends_both() {
    for step in STEPS {
        for stream in [false, true] {
            let mut known = Following::before(step, "");
            let end = if stream { known.stream } else { known.monitor };
            known.rig.eof(end);
            has_ended(&mut known, "are not followed");
        }
    }
    for stream in [false, true] {
        let mut known = Following::opened("");
        let (client, server) = known.client();
        known.kept((client, server), "select a from t");
        let end = if stream { known.stream } else { known.monitor };
        known.rig.eof(end);
        known.runs((client, server), "select a from t", "b");
        assert!(known.rig.is_closed(known.monitor) && known.rig.is_closed(known.stream));
    }
}

#[test]
fn a_refused_question_ends_both_connections() {
    for step in STEPS {
        let mut known = Following::before(step, "");
        let end = if step < Step::Identify { known.monitor } else { known.stream };
        known.rig.send(end, &[be::error("57014", "refused"), be::ready('I')].concat());
        has_ended(&mut known, "refused");
    }
}

#[test]
fn a_server_that_says_anything_is_left() {
    let garbage: [&[u8]; 5] = [
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"Z\0\0\0\x01",
        b"d\0\0\0\x05q",
        b"c\0\0\0\x04",
        b"H\0\0\0\x07\0\0\0",
    ];
    for bytes in garbage {
        let mut known = Following::opened("");
        let (client, server) = known.client();
        known.kept((client, server), "select a from t");
        known.rig.send_unchanged(known.stream, bytes);
        assert!(known.rig.is_closed(known.stream), "{}", bytes.escape_ascii());
        known.runs((client, server), "select a from t", "b");
    }
    // The beginning of a message whose end never comes: the stream is not read on, so that no probe is confirmed.
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.kept((client, server), "select a from t");
    known.rig.send_unchanged(known.stream, b"d\x7f\xff\xff\xff");
    known.rig.send(client, &fe::query("select a from t"));
    known.rig.gets_nothing(server);
    known.gets(known.monitor, "pg_current_snapshot");
    known.rig.send(known.monitor, &probe("10:10:", 0x200));
    known.rig.pass_us(21_000);
    assert_eq!(known.rig.gets(server), ["Query select a from t"]);
}

#[test]
fn two_connections_to_different_servers_are_not_used() {
    for node in [
        ["18", "-5", "6", "false", "read committed"],
        ["17", "-6", "6", "false", "read committed"],
        ["17", "-5", "7", "false", "read committed"],
        ["17", "-5", "6", "true", "read committed"],
    ] {
        let mut known = Following::before(Step::Identify, "");
        known.rig.send(known.stream, &be::answer(&[&node]));
        has_ended(&mut known, "different servers");
    }
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.kept((client, server), "select a from t");
    known.rig.send(client, &fe::query("select a from t"));
    known.gets(known.monitor, "pg_current_snapshot");
    known.rig.send(known.monitor, &be::answer(&[&["10:10:", "0/200", "18"]]));
    assert_eq!(known.rig.gets(server), ["Query select a from t"], "the probe reached another server");
    has_ended(&mut known, "another server");
}

#[test]
fn a_stream_that_is_too_far_behind_is_left() {
    let mut known = Following::opened("query_cache_lag_bytes = 1048576");
    let (client, server) = known.client();
    known.kept((client, server), "select a from t");
    known.rig.send(client, &fe::query("select a from t"));
    known.gets(known.monitor, "pg_current_snapshot");
    known.rig.send(known.monitor, &probe("10:10:", 0x100 + 1_048_577));
    assert_eq!(known.rig.gets(server), ["Query select a from t"]);
    has_ended(&mut known, "query_cache_lag_bytes");
}

#[test]
fn a_slot_whose_transactions_spill_is_left() {
    let mut known = Following::opened("query_cache_lag_bytes = 1048576");
    known.client();
    for (bytes, is_left) in [(None, false), (Some("1048576"), false), (Some("1048577"), true)] {
        known.rig.gets(known.monitor);
        known.rig.pass_us(5_100_000);
        known.gets(known.monitor, "EXECUTE pgweir_definitions");
        known.rig.send(known.monitor, &definitions(["1", "2", "3"]));
        known.gets(known.monitor, "spill_bytes");
        let row = [bytes.map(str::as_bytes), Some(&b"10:12:10"[..])];
        known.rig.send(
            known.monitor,
            &[be::columns(), be::row_values(&row), be::complete("SELECT 1"), be::ready('I')].concat(),
        );
        assert_eq!(known.rig.is_closed(known.stream), is_left, "{bytes:?}");
    }
    assert!(known.shown().contains("1048577 bytes of transactions under way"), "{}", known.shown());
    // It begins again later, and waits longer each time.
    assert_eq!(known.rig.new_dials(), 0);
    known.rig.pass_us(1_100_000);
    assert_eq!(known.rig.new_dials(), 2);
}

#[test]
fn each_position_that_was_read_is_acknowledged() {
    let mut known = Following::opened("");
    known.rig.send(known.stream, &keepalive(0x100, false));
    known.rig.gets_nothing(known.stream);
    known.rig.send(known.stream, &keepalive(0x100, true));
    assert_eq!(known.rig.gets(known.stream).len(), 1, "it was asked");
    known.rig.send(known.stream, &transaction(10, 0x200));
    assert_eq!(known.rig.gets(known.stream).len(), 1, "it has read more");
}

#[test]
fn a_server_that_does_not_answer_is_left() {
    for step in [Step::Check, Step::Definitions, Step::Catalog, Step::Identify, Step::Start] {
        let mut known = Following::before(step, "");
        known.rig.pass_us(50_000_000);
        assert!(!known.rig.is_closed(known.stream), "{step:?}: {}", known.rig.logged("in time"));
        known.rig.pass_us(11_000_000);
        assert!(known.rig.is_closed(known.stream) && known.rig.is_closed(known.monitor), "{step:?}");
    }
    // The slot is made when the transactions that have written are over, however long that takes.
    let mut known = Following::before(Step::Slot, "");
    for _ in 0..70 {
        known.rig.pass_us(1_100_000);
        known.gets(known.monitor, "EXECUTE pgweir_definitions");
        known.rig.send(known.monitor, &definitions(["1", "2", "3"]));
        known.spills_nothing();
    }
    assert!(!known.rig.is_closed(known.stream));
}

#[test]
fn a_question_that_takes_too_long_closes_the_cache() {
    let mut known = Following::opened("query_cache_ddl_ms = 1000");
    for _ in 0..12 {
        known.rig.gets(known.monitor);
        known.rig.pass_us(1_000_000);
        if known.rig.is_closed(known.monitor) {
            break;
        }
        known.gets(known.monitor, "EXECUTE pgweir_definitions");
        known.rig.pass_us(15_000);
        known.rig.send(known.monitor, &definitions(["1", "2", "3"]));
        known.spills_nothing();
    }
    assert!(known.rig.logged("a hundredth of query_cache_ddl_ms: set it to 2000 or more"));
    assert!(known.rig.is_closed(known.monitor) && known.rig.is_closed(known.stream));
}
