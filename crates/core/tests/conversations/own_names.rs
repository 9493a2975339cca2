//! SQL that names what was prepared through the protocol: which names the server knows, and for how long it stays with its client.

use crate::rig::{End, Rig, be, fe};

/// A client that has prepared `p`, and its server.
fn prepared() -> (Rig, End, End) {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::parse("p", "select 1"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Parse PGWEIR_1 select 1", "Sync"]);
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
    (rig, client, server)
}

/// What has the server know `p` by its own name, and no other.
const EXPOSES: [&str; 5] = ["Close S PGWEIR_1", "Close S PGWEIR_0", "Close S p", "Parse p select 1", "Sync"];

fn exposed() -> Vec<u8> {
    [be::close_complete(), be::close_complete(), be::close_complete(), be::parse_complete(), be::ready('I')]
        .concat()
}

/// The answer to the question what the session holds; `by_protocol`: something that was prepared through the protocol.
fn holds(by_protocol: bool) -> Vec<u8> {
    let row = be::row_values(&[Some(b"h"), None, None]);
    let rows = if by_protocol { row } else { Vec::new() };
    [be::columns(), rows, be::complete("SELECT"), be::ready('I')].concat()
}

#[test]
fn execute_keeps_the_server_with_the_clients_own_names() {
    let (mut rig, client, server) = prepared();
    rig.send(client, &fe::query("execute p"));
    assert_eq!(rig.gets(server), [&EXPOSES[..], &["Query execute p"]].concat());
    rig.send(server, &[exposed(), be::one_row("1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    let asked = rig.gets(server);
    assert_eq!(asked.len(), 1, "it is asked what is left: {asked:?}");
    rig.send(server, &holds(true));
    // What passes, passes as it is.
    let group = [fe::bind("p"), fe::parse("q", "select 2"), fe::describe("q"), fe::sync()].concat();
    rig.send(client, &group);
    assert_eq!(rig.gets(server), ["Bind p", "Parse q select 2", "Describe S q", "Sync"]);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 3"));
    rig.gets_nothing(server);
}

#[test]
fn a_client_without_statements_prepares_a_question_for_them() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    let text = "select name from pg_prepared_statements";
    rig.send(client, &[fe::parse("p", text), fe::sync()].concat());
    assert_eq!(
        rig.gets(server),
        ["Close S PGWEIR_0".to_owned(), format!("Parse p {text}"), "Sync".to_owned()]
    );
    rig.send(server, &[be::close_complete(), be::parse_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
}

#[test]
fn a_name_that_is_prepared_before_a_text_with_it_runs_is_met_by_it() {
    let (mut rig, client, server) = prepared();
    let bound = [fe::parse("", "execute q"), fe::bind("")].concat();
    rig.send(client, &[bound, fe::parse("q", "select 2"), fe::execute(), fe::sync()].concat());
    assert_eq!(
        rig.gets(server),
        ["Parse  execute q", "Bind ", "Flush"],
        "names follow if the group has not failed"
    );
    rig.send(server, &[be::parse_complete(), be::bind_complete()].concat());
    let hides = &EXPOSES[..2];
    let exposes = ["Close S p", "Parse p select 1", "Parse q select 2", "Execute", "Sync"];
    assert_eq!(rig.gets(server), [hides, &exposes].concat());
    // In another group nothing is met.
    let (mut rig, client, server) = prepared();
    rig.send(client, &[fe::parse("", "execute q"), fe::bind(""), fe::sync()].concat());
    rig.send(client, &[fe::parse("q", "select 2"), fe::sync()].concat());
    rig.send(server, &[be::parse_complete(), be::bind_complete(), be::ready('I')].concat());
    rig.send(server, &holds(false));
    assert!(rig.gets(server).contains(&"Parse PGWEIR_2 select 2".to_owned()));
}

#[test]
fn names_wait_for_a_string_that_may_end_them() {
    let (mut rig, client, server) = prepared();
    let text = "select 1; deallocate all";
    rig.send(client, &[fe::query(text), fe::describe("p"), fe::sync()].concat());
    assert_eq!(
        rig.gets(server),
        [&format!("Query {text}"), "Flush"],
        "p means something until that is answered"
    );
    rig.send(server, &[be::one_row("1"), be::complete("DEALLOCATE ALL"), be::ready('I')].concat());
    rig.gets(client);
    assert_eq!(rig.gets(server).len(), 1, "it is asked what is left");
    rig.send(server, &holds(false));
    assert_eq!(rig.gets(server)[..], ["Describe S p", "Sync"]);
}

#[test]
fn a_name_is_prepared_at_the_server_although_its_text_is_known() {
    let mut rig = Rig::new("default_pool_size = 1\ndefer_begin = packet");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::parse("p", "select 1"), fe::sync()].concat());
    rig.gets(server);
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    rig.send(client, &fe::query("execute p"));
    assert_eq!(rig.gets(server), [&EXPOSES[..], &["Query execute p"]].concat());
    rig.send(server, &[exposed(), be::one_row("1"), be::ready('I')].concat());
    rig.gets(server);
    rig.send(server, &holds(true));
    rig.gets(client);
    rig.send(client, &fe::query("begin"));
    rig.gets_nothing(server);
    rig.send(client, &[fe::parse("q", "select 1"), fe::bind("q"), fe::execute(), fe::sync()].concat());
    let got = rig.gets(server);
    assert!(got.ends_with(&["Parse q select 1", "Bind q", "Execute", "Sync"].map(str::to_owned)), "{got:?}");
}

#[test]
fn when_no_name_is_left_the_server_is_given_back() {
    let (mut rig, client, server) = prepared();
    rig.send(client, &fe::query("execute p"));
    rig.gets(server);
    rig.send(server, &[exposed(), be::one_row("1"), be::ready('I')].concat());
    rig.gets(server);
    rig.send(server, &holds(true));
    rig.send(client, &[fe::close("p"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Close S p", "Sync"]);
    rig.send(server, &[be::close_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(server).len(), 1, "it is asked what is left");
    rig.send(server, &holds(false));
    rig.gets(client);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 3"));
    assert_eq!(rig.gets(server), ["Query select 3"]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.send(client, &[fe::parse("p", "select 4"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Parse PGWEIR_2 select 4", "Sync"], "the name is free");
}

#[test]
fn a_plain_deallocate_keeps_no_server() {
    let (mut rig, client, server) = prepared();
    rig.send(client, &fe::query("DEALLOCATE p"));
    let asked = rig.gets(server);
    assert_eq!(asked[..4], ["Close S p", "Parse p ", "Sync", "Query DEALLOCATE p"]);
    assert_eq!(asked[4..], ["Close S p", "Sync"], "whatever became of it, the name is gone");
    let lent = [be::close_complete(), be::parse_complete(), be::ready('I')].concat();
    let done = [be::complete("DEALLOCATE"), be::ready('I')].concat();
    rig.send(server, &[lent, done, be::close_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete DEALLOCATE", "Ready I"]);
    rig.gets(server);
    rig.send(server, &holds(false));
    rig.send(client, &[fe::bind("p"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Bind p", "Sync"], "PostgreSQL says that there is no such name");
}

#[test]
fn names_of_ours_are_no_clients() {
    let (mut rig, owner, server) = prepared();
    let client = rig.client("alice");
    rig.send(client, &[fe::bind("PGWEIR_1"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Close S PGWEIR_1", "Close S PGWEIR_0", "Bind PGWEIR_1", "Sync"]);
    let error = be::error("26000", "prepared statement \"PGWEIR_1\" does not exist");
    rig.send(server, &[be::close_complete(), be::close_complete(), error, be::ready('I')].concat());
    rig.gets(client);
    rig.send(owner, &[fe::bind("p"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Parse PGWEIR_1 select 1", "Bind PGWEIR_1", "Sync"]);
}

/// A Query behind an open group, for which names are exposed in that group.
fn query_in_open_group() -> (Rig, End, End) {
    let (mut rig, client, server) = prepared();
    rig.send(client, &fe::parse("", "select 2"));
    rig.send(client, &fe::query("execute p"));
    assert_eq!(rig.gets(server), ["Parse  select 2", "Flush"]);
    rig.send(server, &be::parse_complete());
    let exposes = ["Close S PGWEIR_1", "Close S PGWEIR_0", "Close S p", "Parse p select 1"];
    assert_eq!(rig.gets(server), [&exposes[..], &["Query execute p", "Sync"]].concat());
    assert_eq!(rig.gets(client), ["ParseComplete"]);
    (rig, client, server)
}

#[test]
fn a_query_in_an_open_group_is_answered_although_a_name_cannot_be_exposed() {
    let (mut rig, client, server) = query_in_open_group();
    let closed = [be::close_complete(), be::close_complete(), be::close_complete()].concat();
    rig.send(server, &[closed, be::error("42P01", "no such table"), be::ready('I')].concat());
    let told = rig.gets(client);
    assert_eq!((told.len(), &*told[1]), (2, "Ready I"), "{told:?}");
}

#[test]
fn a_query_in_an_open_group_gets_its_own_end() {
    let (mut rig, client, server) = query_in_open_group();
    let exposed =
        [be::close_complete(), be::close_complete(), be::close_complete(), be::parse_complete()].concat();
    rig.send(server, &[exposed, be::one_row("1"), be::ready('I')].concat());
    let told = rig.gets(client);
    assert_eq!(told.last().map(String::as_str), Some("Ready I"));
    rig.send(server, &be::ready('I'));
    assert!(rig.gets(client).is_empty(), "no client gets the answer to the hidden Sync");
}
