//! COPY, in every shape that the protocol knows, and FunctionCall.

use crate::rig::{End, Rig, be, fe};

#[test]
fn copy_in_holds_the_server_until_it_is_complete() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("copy t from stdin"));
    assert_eq!(rig.answer(server, &be::copy_in(), client), ["CopyIn"]);
    rig.send(client, &fe::copy_data(b"1\n"));
    rig.send(client, &[fe::copy_data(b"2\n"), fe::copy_done()].concat());
    assert_eq!(rig.gets(server), ["Query copy t from stdin", "CopyData 1\n", "CopyData 2\n", "CopyDone"]);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 2"));
    rig.gets_nothing(server);
    assert_eq!(
        rig.answer(server, &[be::complete("COPY 2"), be::ready('I')].concat(), client),
        ["Complete COPY 2", "Ready I"]
    );
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

/// A client has asked for a COPY by messages of the extended protocol, with its Sync; and how the server's answer begins.
fn extended_copy() -> (Rig, End, End, Vec<u8>) {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    let ask = [fe::parse("", "copy t from stdin"), fe::bind(""), fe::execute(), fe::sync()].concat();
    rig.send(client, &ask);
    rig.gets(server);
    (rig, client, server, [be::parse_complete(), be::bind_complete(), be::copy_in()].concat())
}

#[test]
fn copy_in_by_extended_messages_ignores_the_sync_before_its_end() {
    let (mut rig, client, server, begin) = extended_copy();
    assert_eq!(rig.answer(server, &begin, client), ["ParseComplete", "BindComplete", "CopyIn"]);
    rig.send(client, &[fe::copy_data(b"1\n"), fe::copy_done(), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["CopyData 1\n", "CopyDone", "Sync"]);
    let end = [be::complete("COPY 1"), be::ready('I')].concat();
    assert_eq!(rig.answer(server, &end, client), ["Complete COPY 1", "Ready I"]);
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn a_copy_pipelined_with_its_data_is_understood() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    let all = [fe::query("copy t from stdin"), fe::copy_data(b"1\n"), fe::copy_done(), fe::query("select 1")];
    rig.send(client, &all.concat());
    rig.gets(server);
    let end = [be::copy_in(), be::complete("COPY 1"), be::ready('I'), be::one_row("1"), be::ready('I')];
    assert_eq!(
        rig.answer(server, &end.concat(), client),
        ["CopyIn", "Complete COPY 1", "Ready I", "Columns", "Row 1", "Complete SELECT 1", "Ready I"]
    );
}

#[test]
fn data_of_a_copy_that_failed_at_once_is_dropped() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("copy nothing from stdin"));
    rig.gets(server);
    let failure = [be::error("42P01", "no such table"), be::ready('I')].concat();
    assert_eq!(rig.answer(server, &failure, client), ["ERROR 42P01 no such table", "Ready I"]);
    let late =
        [fe::copy_data(b"1\n"), fe::copy_fail("no"), fe::copy_done(), fe::sync(), fe::query("select 1")];
    rig.send(client, &late.concat());
    assert_eq!(rig.gets(server), ["Query select 1"], "no byte of the dead COPY reaches a server");
    assert_eq!(rig.gets(client), ["Ready I"], "the Sync is answered");
}

#[test]
fn two_copies_in_one_query_each_have_their_end() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("copy a from stdin; copy b from stdin"));
    rig.send(server, &be::copy_in());
    rig.send(client, &[fe::copy_data(b"1\n"), fe::copy_done()].concat());
    rig.send(server, &[be::complete("COPY 1"), be::copy_in()].concat());
    rig.send(client, &[fe::copy_data(b"2\n"), fe::copy_done()].concat());
    rig.send(server, &[be::complete("COPY 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["CopyIn", "Complete COPY 1", "CopyIn", "Complete COPY 1", "Ready I"]);
    assert!(!rig.is_closed(server));
}

#[test]
fn copy_out_streams() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("copy t to stdout"));
    let answer = [
        be::copy_out(),
        be::copy_data(b"1\n"),
        be::copy_data(b"2\n"),
        be::copy_done(),
        be::complete("COPY 2"),
        be::ready('I'),
    ];
    rig.send_bytewise(server, &answer.concat());
    assert_eq!(
        rig.gets(client),
        ["CopyOut", "CopyData 1\n", "CopyData 2\n", "CopyDone", "Complete COPY 2", "Ready I"]
    );
}

#[test]
fn server_is_not_released_in_the_middle_of_copy_data() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("copy t from stdin"));
    rig.send(server, &be::copy_in());
    let large = fe::copy_data(&vec![b'Q'; 100_000]);
    rig.send(client, &[fe::copy_data(b"bad\n"), large[..50_000].to_vec()].concat());
    // The first line was wrong: the server says so while the next message is still on its way.
    rig.send(server, &[be::error("22P02", "bad line"), be::ready('I')].concat());
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 2"));
    rig.gets(client);
    rig.raw(server);
    rig.send(client, &large[50_000..]);
    let rest = rig.raw(server);
    assert!(
        rest.starts_with(&large[50_000..]),
        "the rest of the message follows before anything else reaches that server"
    );
    assert_eq!(
        rest.len(),
        large.len() - 50_000 + fe::query("select 2").len(),
        "then the next client has its turn"
    );
    rig.send(client, &fe::sync());
    assert_eq!(rig.gets(client), ["Ready I"], "the client's messages are still told apart");
}

#[test]
fn copy_done_after_a_failed_copy_is_no_statement() {
    let mut rig = Rig::with("query_timeout = 5", "app = host=pg pool_mode=session", 1);
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("copy t from stdin"));
    rig.send(server, &[be::error("42P01", "no such table"), be::ready('I')].concat());
    rig.send(client, &fe::copy_done());
    rig.gets(client);
    rig.pass_s(10);
    assert_eq!(rig.gets(client), Vec::<String>::new(), "an idle client has no query that could time out");
}

#[test]
fn copy_fail_of_the_client_is_answered_by_the_server() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("copy t from stdin"));
    rig.send(server, &be::copy_in());
    rig.send(client, &fe::copy_fail("changed my mind"));
    rig.send(server, &[be::error("57014", "COPY from stdin failed"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["CopyIn", "ERROR 57014 COPY from stdin failed", "Ready I"]);
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Query select 1"));
}

#[test]
fn an_error_inside_an_extended_copy_skips_to_the_next_sync() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(
        client,
        &[fe::parse("", "copy t from stdin"), fe::bind(""), fe::execute(), fe::flush()].concat(),
    );
    rig.send(server, &[be::parse_complete(), be::bind_complete(), be::copy_in()].concat());
    rig.send(client, &fe::copy_data(b"bad\n"));
    rig.send(server, &be::error("22P02", "bad line"));
    rig.send(client, &[fe::copy_data(b"1\n"), fe::copy_done(), fe::sync()].concat());
    rig.send(server, &be::ready('I'));
    assert_eq!(
        rig.gets(client),
        ["ParseComplete", "BindComplete", "CopyIn", "ERROR 22P02 bad line", "Ready I"]
    );
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Query select 1"));
    assert!(!rig.is_closed(server));
}

#[test]
fn a_function_call_has_one_answer_also_a_large_one() {
    let mut rig = Rig::new("session_state = pgbouncer");
    let client = rig.client("alice");
    let server = rig.dialed();
    for bytes in [4, 100_000] {
        rig.send(client, &fe::function_call());
        assert_eq!(rig.gets(server), ["FunctionCall"]);
        let answer = [be::function_result(bytes), be::ready('I')].concat();
        for piece in answer.chunks(1000) {
            rig.send(server, piece);
        }
        assert_eq!(rig.gets(client), ["FunctionResult", "Ready I"]);
    }
}

#[test]
fn an_unfinished_message_after_a_failed_copy_has_the_idle_timeout() {
    let mut rig = Rig::new("idle_transaction_timeout = 5");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("copy t from stdin"));
    rig.send(server, &be::copy_in());
    rig.send(client, &[fe::copy_data(b"bad\n"), fe::copy_data(&[b'x'; 50_000])[..30_000].to_vec()].concat());
    rig.send(server, &[be::error("22P02", "bad line"), be::ready('I')].concat());
    rig.pass_s(10);
    assert!(rig.is_closed(client) && rig.is_closed(server), "a server must not be held by nothing");
}

#[test]
fn a_message_that_arrives_slowly_after_a_failed_copy_is_no_idle_transaction() {
    let mut rig = Rig::new("idle_transaction_timeout = 5");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("begin; copy t from stdin"));
    rig.send(server, &[be::complete("BEGIN"), be::error("22P02", "bad line"), be::ready('E')].concat());
    rig.gets(client);
    let data = fe::copy_data(&[b'x'; 50_000]);
    for piece in data.chunks(10_000) {
        rig.send(client, piece);
        rig.pass_s(3);
        assert!(!rig.is_closed(client));
    }
    rig.pass_s(5);
    assert_eq!(rig.gets(client), ["FATAL 25P03 idle transaction timeout"]);
}

/// A COPY that fails with a Sync inside of it; whether that is answered, only the next answer tells.
#[test]
fn no_client_gets_the_server_of_a_failed_copy_before_every_sync_is_accounted_for() {
    for answered in [false, true] {
        for early in [false, true] {
            let mut rig = Rig::new("default_pool_size = 1");
            let client = rig.client("alice");
            let server = rig.dialed();
            let begin = fe::query("copy t from stdin");
            let data = [fe::copy_data(b"bad\n"), fe::sync()].concat();
            if early {
                rig.send(client, &[begin, data].concat());
            } else {
                rig.send(client, &begin);
                rig.answer(server, &be::copy_in(), client);
                rig.send(client, &data);
            }
            rig.gets(server);
            let (two, three) = (rig.client("alice"), rig.client("alice"));
            rig.send(two, &fe::query("select 2"));
            rig.send(three, &fe::query("select 3"));
            let failed = [be::error("22P02", "invalid input syntax"), be::ready('I')].concat();
            let told = if early { [be::copy_in(), failed].concat() } else { failed };
            let got = rig.answer(server, &told, client);
            assert_eq!(got.last().map(String::as_str), Some("Ready I"));
            assert_eq!(rig.gets(server), ["Query "], "nothing of anybody's is sent behind it");
            if answered {
                assert_eq!(rig.answer(server, &be::ready('I'), client), ["Ready I"]);
            }
            rig.send(server, &[be::empty_query(), be::ready('I')].concat());
            rig.gets_nothing(client);
            assert_eq!(rig.gets(server), ["Query select 2"]);
            let answer = [be::one_row("2"), be::ready('I')].concat();
            assert_eq!(
                rig.answer(server, &answer, two),
                ["Columns", "Row 2", "Complete SELECT 1", "Ready I"]
            );
            rig.gets_nothing(three);
            assert_eq!(rig.gets(server), ["Query select 3"]);
        }
    }
}

#[test]
fn an_extended_copy_that_fails_before_it_reads_is_over_with_its_sync() {
    let (mut rig, client, server, begin) = extended_copy();
    let failed = [begin, be::error("P0001", "a trigger says no"), be::ready('I')].concat();
    assert_eq!(rig.answer(server, &failed, client).last().map(String::as_str), Some("Ready I"));
    // Its late end finds nothing to end.
    rig.send(client, &[fe::copy_done(), fe::sync()].concat());
    assert_eq!(rig.gets(client), ["Ready I"]);
    rig.gets_nothing(server);
}

#[test]
fn a_message_that_servers_answer_by_surprise_never_reaches_one() {
    let long = vec![b'x'; 12_000];
    for (tag, body) in [(b'H', &b"\0\0\0\0"[..]), (b'S', b"\0"), (b'c', &long), (b'f', &long)] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send(client, &fe::query("select 1"));
        assert_eq!(rig.gets(server), ["Query select 1"]);
        rig.send(client, &fe::message(tag, body));
        let told = rig.gets(client);
        assert!(told[0].starts_with("FATAL 08P01"), "{told:?}");
        rig.lets_go(server);
    }
}

#[test]
fn a_client_that_leaves_after_a_failed_copy_leaves_the_server_to_others() {
    for answered in [false, true] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send(client, &fe::query("copy t from stdin"));
        rig.answer(server, &be::copy_in(), client);
        rig.send(client, &[fe::copy_data(b"bad\n"), fe::sync()].concat());
        rig.gets(server);
        let failed = [be::error("22P02", "invalid input syntax"), be::ready('I')].concat();
        rig.answer(server, &failed, client);
        assert_eq!(rig.gets(server), ["Query "]);
        rig.send(client, &fe::terminate());
        let two = rig.client("alice");
        rig.send(two, &fe::query("select 2"));
        rig.gets_nothing(server);
        if answered {
            rig.send(server, &be::ready('I'));
            rig.gets_nothing(server);
        }
        rig.send(server, &[be::empty_query(), be::ready('I')].concat());
        assert_eq!(rig.gets(server), ["Query select 2"]);
        rig.gets_nothing(two);
    }
}
