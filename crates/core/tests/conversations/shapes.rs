//! A prepared statement returns the columns that its client was told of, on whichever server it runs: a table that has changed past
//! pgweir since the statement was prepared makes it fail as on a direct connection, before anything of it has run.

use crate::cluster_auto::balanced;
use crate::rig::{End, Rig, be, fe};

const TEXT: &str = "select a, b from t where a = $1";
const INT: u32 = 23;
const REAL: u32 = 700;

/// What servers say of the statement at first, and after `alter table t alter b type real`.
fn before() -> Vec<u8> {
    be::described(&[INT], &[("a", INT), ("b", INT)])
}

fn after() -> Vec<u8> {
    be::described(&[INT], &[("a", INT), ("b", REAL)])
}

const PARSED: &str = "Parse PGWEIR_1 select a, b from t where a = $1 [23]";
const ASKED: [&str; 3] = [PARSED, "Describe S PGWEIR_1", "Flush"];
const REFUSED: [&str; 3] = ["Bind PGWEIR_OUTDATED", "Execute", "Sync"];
const CHANGED: &str = "ERROR 0A000 cached plan must not change result type";

fn run(name: &str) -> Vec<u8> {
    [fe::bind(name), fe::execute(), fe::sync()].concat()
}

/// As libpq runs it.
fn run_described(name: &str) -> Vec<u8> {
    [fe::bind(name), fe::describe_portal(), fe::execute(), fe::sync()].concat()
}

fn ran(status: char) -> Vec<u8> {
    [be::bind_complete(), be::row("1"), be::complete("SELECT 1"), be::ready(status)].concat()
}

fn told(status: &str) -> Vec<String> {
    ["BindComplete", "Row 1", "Complete SELECT 1", status].map(str::to_owned).to_vec()
}

/// PostgreSQL's answer to the Bind that is to fail.
fn fails(status: char) -> Vec<u8> {
    let error = be::error("26000", "prepared statement \"PGWEIR_OUTDATED\" does not exist");
    [error, be::ready(status)].concat()
}

fn prepares(rig: &mut Rig, client: End, server: End, text: &str, described: &[u8]) {
    rig.send(client, &[fe::parse("s", text), fe::sync()].concat());
    rig.gets(server);
    rig.send(server, &[be::parse_complete(), described.to_vec(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
}

/// A client that has prepared `s` on its pool's first server, where another client has a transaction; and a second server.
struct Two {
    rig: Rig,
    client: End,
    second: End,
}

fn two_with(main: &str, text: &str, described: &[u8]) -> Two {
    let mut rig = Rig::new(main);
    rig.describes = true;
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let first = rig.dialed();
    prepares(&mut rig, client, first, text, described);
    rig.send(other, &fe::query("begin"));
    rig.gets(first);
    rig.send(first, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets(other);
    rig.send(client, &fe::query("select 0"));
    let second = rig.dialed();
    rig.greet(second);
    rig.gets(second);
    rig.send(second, &[be::complete("SELECT 0"), be::ready('I')].concat());
    rig.gets(client);
    Two { rig, client, second }
}

fn two(main: &str) -> Two {
    two_with(main, TEXT, &before())
}

impl Two {
    fn sends(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rig.send(self.client, bytes);
        self.rig.gets(self.second)
    }

    fn says(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rig.send(self.second, bytes);
        self.rig.gets(self.client)
    }

    fn gets(&mut self) -> Vec<String> {
        self.rig.gets(self.second)
    }

    /// The second server describes the statement otherwise: it is prepared once more, as a new statement, and described so, too. Returns
    /// what the server gets then.
    fn changes(&mut self) -> Vec<String> {
        assert!(self.says(&[be::parse_complete(), after()].concat()).is_empty());
        let sent = self.gets();
        assert!(
            sent[0].starts_with("Parse PGWEIR_2 ") && sent[1..] == ["Describe S PGWEIR_2", "Flush"],
            "{sent:?}"
        );
        assert!(self.says(&[be::parse_complete(), after()].concat()).is_empty());
        self.gets()
    }
}

#[test]
fn a_statement_of_the_same_shape_goes_on_and_is_not_asked_about_again() {
    let mut two = two("");
    assert_eq!(two.sends(&run("s")), ASKED);
    assert!(two.says(&[be::parse_complete(), before()].concat()).is_empty());
    assert_eq!(two.gets(), ["Bind PGWEIR_1", "Execute", "Sync"]);
    assert_eq!(two.says(&ran('I')), told("Ready I"));
    assert_eq!(two.sends(&run("s")), ["Bind PGWEIR_1", "Execute", "Sync"]);
    assert_eq!(two.says(&ran('I')), told("Ready I"));
}

#[test]
fn a_description_in_pieces_is_waited_for() {
    let mut two = two("");
    two.sends(&run("s"));
    two.rig.send_bytewise(two.second, &[be::parse_complete(), before()].concat());
    assert_eq!(two.gets(), ["Bind PGWEIR_1", "Execute", "Sync"]);
    assert_eq!(two.says(&ran('I')), told("Ready I"));
}

#[test]
fn a_statement_of_another_shape_fails_before_anything_runs() {
    for text in [TEXT, "insert into t values ($1) returning a, b", "select * from t where a = $1"] {
        let mut two = two_with("", text, &before());
        assert_eq!(two.sends(&run("s")).len(), 3);
        assert_eq!(two.changes(), REFUSED, "{text}");
        assert_eq!(two.says(&fails('I')), [CHANGED, "Ready I"]);
        // Until the client prepares it again.
        assert_eq!(two.sends(&run("s")), REFUSED);
        two.says(&fails('I'));
        assert!(two.sends(&[fe::close("s"), fe::parse("s", text), fe::sync()].concat()).is_empty());
        assert_eq!(two.sends(&run("s")), ["Bind PGWEIR_2", "Execute", "Sync"]);
    }
}

#[test]
fn columns_that_become_those_again_that_the_client_was_told_are_asked_for_once() {
    let mut two = two("");
    two.sends(&run("s"));
    assert_eq!(two.changes(), REFUSED);
    two.says(&fails('I'));
    // `alter table t alter b type int`, and a server that has to prepare the statement after that.
    two.rig.eof(two.second);
    two.rig.send(two.client, &run("s"));
    two.second = two.rig.dialed();
    two.rig.greet(two.second);
    assert_eq!(two.gets()[0], format!("Parse PGWEIR_2 {TEXT} [23]"));
    assert!(two.says(&[be::parse_complete(), before()].concat()).is_empty());
    assert_eq!(two.gets()[0], format!("Parse PGWEIR_3 {TEXT}"));
    assert!(two.says(&[be::parse_complete(), before()].concat()).is_empty());
    assert_eq!(two.gets(), ["Bind PGWEIR_3", "Execute", "Sync"]);
    assert_eq!(two.says(&ran('I')), told("Ready I"));
    assert_eq!(two.sends(&run("s")), ["Bind PGWEIR_3", "Execute", "Sync"]);
}

#[test]
fn in_a_failed_transaction_the_error_is_that_of_every_statement() {
    let mut two = two("");
    two.sends(&run("s"));
    two.changes();
    two.says(&fails('I'));
    two.sends(&fe::query("begin; select 1/0"));
    two.says(&[be::complete("BEGIN"), be::error("22012", "division by zero"), be::ready('E')].concat());
    assert_eq!(two.sends(&run("s")), REFUSED);
    let failed =
        "ERROR 25P02 current transaction is aborted, commands ignored until end of transaction block";
    assert_eq!(two.says(&fails('E')), [failed, "Ready E"]);
}

#[test]
fn the_error_has_what_drivers_look_for() {
    let mut two = two("");
    two.sends(&run("s"));
    two.changes();
    two.rig.send(two.second, &fails('I'));
    let raw = two.rig.raw(two.client);
    let text = String::from_utf8_lossy(&raw);
    for field in ["C0A000\0", "Mcached plan must not change result type\0", "RRevalidateCachedQuery\0"] {
        assert!(text.contains(field), "{field} in {text:?}");
    }
    assert!(!text.contains("PGWEIR"), "{text:?}");
}

#[test]
fn another_error_of_the_bind_that_is_to_fail_is_told_as_it_is() {
    let mut two = two("");
    two.sends(&run("s"));
    two.changes();
    let cancelled = [be::error("57014", "canceling statement"), be::ready('I')].concat();
    assert_eq!(two.says(&cancelled), ["ERROR 57014 canceling statement", "Ready I"]);
}

#[test]
fn a_bind_that_is_to_fail_and_does_not_ends_the_server() {
    let mut two = two("");
    two.sends(&run("s"));
    two.changes();
    two.rig.send(two.second, &be::bind_complete());
    assert!(two.rig.is_closed(two.second));
}

#[test]
fn a_client_that_asks_for_the_columns_waits_for_nothing_and_gets_the_new_ones() {
    let mut two = two("");
    let whole = [PARSED, "Describe S PGWEIR_1", "Bind PGWEIR_1", "Describe P ", "Execute", "Sync"];
    assert_eq!(two.sends(&run_described("s")), whole);
    let answer = [
        be::parse_complete(),
        after(),
        be::bind_complete(),
        be::columns_of(&[("a", INT), ("b", REAL)]),
        be::row("1"),
        be::complete("SELECT 1"),
        be::ready('I'),
    ];
    let got = two.says(&answer.concat());
    assert_eq!(got, ["BindComplete", "Columns", "Row 1", "Complete SELECT 1", "Ready I"]);
    // It knows the new columns now, and the parameter types of before.
    assert_eq!(two.sends(&run("s"))[0], format!("Parse PGWEIR_2 {TEXT}"));
    two.says(&[be::parse_complete(), after()].concat());
    assert_eq!(two.gets(), ["Bind PGWEIR_2", "Execute", "Sync"]);
    assert_eq!(two.says(&ran('I')), told("Ready I"));
    assert_eq!(two.sends(&run("s")), ["Bind PGWEIR_2", "Execute", "Sync"]);
}

#[test]
fn a_client_that_describes_the_statement_first_is_told_the_new_columns() {
    let mut two = two("");
    assert_eq!(
        two.sends(&[fe::describe("s"), fe::sync()].concat()),
        [PARSED, "Describe S PGWEIR_1", "Describe S PGWEIR_1", "Sync"]
    );
    let got = two.says(&[be::parse_complete(), after(), after(), be::ready('I')].concat());
    assert_eq!(got, ["Parameters", "Columns", "Ready I"]);
    two.sends(&run("s"));
    two.says(&[be::parse_complete(), after()].concat());
    assert_eq!(two.gets(), ["Bind PGWEIR_2", "Execute", "Sync"]);
    // In the same group as its execution.
    let mut two = two_with("", TEXT, &before());
    let group = [fe::describe("s"), run("s")].concat();
    assert_eq!(two.sends(&group).len(), 6, "nothing waits");
}

#[test]
fn a_description_that_failed_tells_nothing() {
    let mut two = two("");
    two.sends(&[fe::describe("s"), fe::sync()].concat());
    let failed = [be::parse_complete(), after(), be::error("57014", "canceling"), be::ready('I')];
    assert_eq!(two.says(&failed.concat()), ["ERROR 57014 canceling", "Ready I"]);
    two.sends(&run("s"));
    two.says(&[be::parse_complete(), after()].concat());
    assert_eq!(two.gets(), REFUSED);
}

#[test]
fn formats_for_each_column_are_for_the_columns_that_the_client_knows() {
    // As pgx sends it: it asks for the columns, but says the format of each of those that it knows.
    let formats = b"\0s\0\0\0\0\0\0\x02\0\x01\0\x01";
    let mut two = two("");
    two.rig.send(
        two.client,
        &[fe::message(b'B', formats), fe::describe_portal(), fe::execute(), fe::sync()].concat(),
    );
    assert_eq!(two.gets(), ASKED);
    assert_eq!(two.changes(), ["Bind PGWEIR_OUTDATED", "Describe P ", "Execute", "Sync"]);
    assert_eq!(two.says(&fails('I')), [CHANGED, "Ready I"]);
}

#[test]
fn in_a_transaction_it_fails_and_nothing_follows() {
    let mut two = two("");
    assert_eq!(two.sends(&fe::query("begin")), ["Query begin"]);
    two.says(&[be::complete("BEGIN"), be::ready('T')].concat());
    two.sends(&run("s"));
    assert_eq!(two.changes(), REFUSED);
    assert_eq!(two.says(&fails('E')), [CHANGED, "Ready E"]);
    assert_eq!(two.sends(&fe::query("rollback")), ["Query rollback"]);
    two.says(&[be::complete("ROLLBACK"), be::ready('I')].concat());
}

#[test]
fn with_a_deferred_begin_it_fails_in_the_transaction_that_the_client_was_told_of() {
    for main in ["defer_begin = packet", "defer_begin = server"] {
        let mut two = two(main);
        two.rig.send(two.client, &fe::query("BEGIN"));
        assert_eq!(two.rig.gets(two.client), ["Complete BEGIN", "Ready T"], "{main}");
        let begin = ["Parse  BEGIN", "Bind ", "Execute"];
        assert_eq!(two.sends(&run("s")), [&begin[..], &ASKED].concat());
        let begun = [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat();
        assert!(two.says(&begun).is_empty());
        assert_eq!(two.changes(), REFUSED);
        assert_eq!(two.says(&fails('E')), [CHANGED, "Ready E"]);
    }
}

#[test]
fn in_a_pipeline_the_other_groups_run() {
    let mut two = two("");
    let groups = [fe::query("select 1"), run("s"), run("s"), fe::query("select 2")].concat();
    assert_eq!(two.sends(&groups), [&["Query select 1"], &ASKED[..]].concat());
    two.says(&[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(two.changes(), [&REFUSED[..], &REFUSED, &["Query select 2"]].concat());
    let answers = [fails('I'), fails('I'), be::one_row("2"), be::ready('I')].concat();
    let last = ["Columns", "Row 2", "Complete SELECT 1", "Ready I"];
    assert_eq!(two.says(&answers), [&[CHANGED, "Ready I", CHANGED, "Ready I"][..], &last].concat());
}

#[test]
fn two_statements_of_one_group_wait_one_after_the_other() {
    let mut two = two("max_prepared_statements = 1");
    two.rig.send(two.client, &[fe::parse("u", "select c from u"), fe::sync()].concat());
    assert_eq!(two.gets(), ["Parse PGWEIR_2 select c from u", "Describe S PGWEIR_2", "Sync"]);
    two.says(&[be::parse_complete(), be::described(&[], &[("c", INT)]), be::ready('I')].concat());
    let group = [fe::bind("s"), fe::execute(), fe::bind("u"), fe::execute(), fe::sync()].concat();
    let close = "Close S PGWEIR_2";
    assert_eq!(two.sends(&group), [&[close][..], &ASKED].concat());
    two.says(&[be::close_complete(), be::parse_complete(), before()].concat());
    let next = ["Close S PGWEIR_1", "Parse PGWEIR_2 select c from u", "Describe S PGWEIR_2", "Flush"];
    assert_eq!(two.gets(), [&["Bind PGWEIR_1", "Execute"][..], &next].concat());
    let first = [be::bind_complete(), be::row("1"), be::complete("SELECT 1"), be::close_complete()];
    assert_eq!(two.says(&first.concat()), ["BindComplete", "Row 1", "Complete SELECT 1"]);
    two.says(&[be::parse_complete(), be::described(&[], &[("c", INT)])].concat());
    assert_eq!(two.gets(), ["Bind PGWEIR_2", "Execute", "Sync"]);
    assert_eq!(two.says(&ran('I')), told("Ready I"));
}

#[test]
fn a_statement_without_columns_does_not_wait() {
    let none = be::described(&[INT], &[]);
    let mut two = two_with("", "insert into t values ($1)", &none);
    let types = "Parse PGWEIR_1 insert into t values ($1) [23]";
    assert_eq!(two.sends(&run("s")), [types, "Describe S PGWEIR_1", "Bind PGWEIR_1", "Execute", "Sync"]);
    let done = [be::parse_complete(), none, be::bind_complete(), be::complete("INSERT 0 1"), be::ready('I')];
    assert_eq!(two.says(&done.concat()), ["BindComplete", "Complete INSERT 0 1", "Ready I"]);
}

#[test]
fn what_postgresql_does_not_compare_is_not_compared() {
    for text in ["fetch 1 from c", "show work_mem"] {
        let mut two = two_with("", text, &be::described(&[], &[("c", INT)]));
        assert_eq!(two.sends(&run("s")).len(), 5, "{text}");
        let other = be::described(&[], &[("d", REAL)]);
        let done = [be::parse_complete(), other, ran('I')].concat();
        assert_eq!(two.says(&done), told("Ready I"), "{text}");
    }
}

#[test]
fn types_that_the_client_gave_are_resolved_where_it_left_them_open() {
    let mut rig = Rig::new("");
    rig.describes = true;
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::parse_typed("s", "select $1, $2", &[INT, 0]), fe::sync()].concat());
    assert_eq!(rig.gets(server)[0], "Parse PGWEIR_1 select $1, $2 [23, 0]");
    let described = be::described(&[INT, 25], &[("a", INT), ("b", 25)]);
    rig.send(server, &[be::parse_complete(), described, be::ready('I')].concat());
    rig.gets(client);
    // The server forgets it.
    rig.end(server, pgweir_core::driver::Closed::Eof);
    rig.send(client, &run("s"));
    let server = rig.dials.last().copied().expect("another server");
    rig.greet(server);
    assert_eq!(rig.gets(server)[0], "Parse PGWEIR_1 select $1, $2 [23, 25]");
}

#[test]
fn a_client_that_prepares_a_text_of_another_shape_gets_that() {
    let mut two = two("");
    let other = two.rig.client("alice");
    // pgweir knows the text, so the second client's Parse needs no server; its own Parse on a server has the types that it gave.
    two.rig.send(other, &[fe::query("begin"), fe::parse("x", TEXT), fe::bind("x")].concat());
    two.rig.send(other, &[fe::execute(), fe::sync()].concat());
    assert_eq!(two.gets()[..3], ["Query begin", &format!("Parse PGWEIR_1 {TEXT}"), "Describe S PGWEIR_1"]);
    let answer = [be::complete("BEGIN"), be::ready('T'), be::parse_complete(), after(), ran('T')].concat();
    two.rig.send(two.second, &answer);
    assert_eq!(two.rig.gets(other)[2..], [&["ParseComplete".to_owned()], &told("Ready T")[..]].concat());
    // From then on its name stands for a new statement, which the server gets when it is used.
    two.rig.send(other, &[fe::bind("x"), fe::execute(), fe::sync()].concat());
    assert_eq!(two.gets()[..2], [format!("Parse PGWEIR_2 {TEXT} [23]"), "Describe S PGWEIR_2".to_owned()]);
    two.rig.send(two.second, &[be::parse_complete(), after()].concat());
    assert_eq!(two.gets(), ["Bind PGWEIR_2", "Execute", "Sync"]);
}

#[test]
fn a_server_that_did_not_describe_it_is_asked_once_more() {
    let mut two = two("");
    two.sends(&run("s"));
    let failed = [be::parse_complete(), be::error("57014", "canceling statement")].concat();
    assert_eq!(two.says(&failed), ["ERROR 57014 canceling statement"]);
    assert_eq!(
        two.gets().last().map(String::as_str),
        Some("Sync"),
        "PostgreSQL ignores what comes before it"
    );
    assert_eq!(two.says(&be::ready('I')), ["Ready I"]);
    assert_eq!(two.sends(&run("s")), [&["Close S PGWEIR_1"][..], &ASKED].concat());
    two.says(&[be::close_complete(), be::parse_complete(), before()].concat());
    assert_eq!(two.gets(), ["Bind PGWEIR_1", "Execute", "Sync"]);
}

#[test]
fn a_parse_that_fails_is_the_clients_error() {
    let mut two = two("");
    two.sends(&run("s"));
    assert_eq!(two.says(&be::error("42P01", "no such table")), ["ERROR 42P01 no such table"]);
    two.gets();
    assert_eq!(two.says(&be::ready('I')), ["Ready I"]);
    assert_eq!(two.sends(&run("s")), ASKED);
}

#[test]
fn a_large_bind_that_is_refused_is_dropped_as_it_comes() {
    let mut two = two("");
    let bind = fe::bind_with("s", 100_000);
    let (front, rest) = bind.split_at(60_000);
    assert_eq!(two.sends(front), ASKED);
    assert_eq!(two.changes(), ["Bind PGWEIR_OUTDATED"]);
    assert_eq!(two.sends(&[rest, &fe::execute(), &fe::sync()].concat()), ["Execute", "Sync"]);
    assert_eq!(two.says(&fails('I')), [CHANGED, "Ready I"]);
}

#[test]
fn a_large_bind_of_the_same_shape_passes_as_it_comes() {
    let mut two = two("");
    let bind = fe::bind_with("s", 100_000);
    let (front, rest) = bind.split_at(60_000);
    two.sends(front);
    two.says(&[be::parse_complete(), before()].concat());
    two.sends(&[rest, &fe::execute(), &fe::sync()].concat());
    assert_eq!(two.says(&ran('I')), told("Ready I"));
}

#[test]
fn two_servers_that_prepare_it_at_once_are_compared() {
    let mut rig = Rig::new("");
    rig.describes = true;
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let first = rig.dialed();
    let prepare = [fe::parse("s", TEXT), fe::sync()].concat();
    rig.send(one, &prepare);
    rig.send(two, &prepare);
    let second = rig.dialed();
    rig.greet(second);
    for server in [first, second] {
        let sent = rig.gets(server);
        assert_eq!(sent, [format!("Parse PGWEIR_1 {TEXT}"), "Describe S PGWEIR_1".into(), "Sync".into()]);
    }
    for (server, described) in [(first, before()), (second, after())] {
        rig.send(server, &[be::parse_complete(), described, be::ready('I')].concat());
    }
    // Each was told what its server said.
    rig.gets(one);
    rig.gets(two);
    rig.end(first, pgweir_core::driver::Closed::Eof);
    rig.send(one, &run("s"));
    assert_eq!(rig.gets(second)[..2], ["Close S PGWEIR_1", PARSED]);
    rig.send(second, &[be::close_complete(), be::parse_complete(), after()].concat());
    // The second client has brought a statement of the new shape.
    assert_eq!(rig.gets(second)[0], format!("Parse PGWEIR_2 {TEXT} [23]"));
    rig.send(second, &[be::parse_complete(), after()].concat());
    assert_eq!(rig.gets(second), REFUSED);
    rig.send(second, &fails('I'));
    assert_eq!(rig.gets(one), [CHANGED, "Ready I"]);
    rig.send(two, &run("s"));
    assert_eq!(rig.gets(second), ["Bind PGWEIR_2", "Execute", "Sync"]);
    rig.send(second, &ran('I'));
    assert_eq!(rig.gets(two), told("Ready I"));
}

#[test]
fn a_parse_that_pgweir_answers_itself_is_decided_by_the_first_server() {
    let mut two = two("");
    let other = two.rig.client("alice");
    two.rig.send(other, &[fe::parse("x", TEXT), fe::sync()].concat());
    assert_eq!(two.rig.gets(other), ["ParseComplete", "Ready I"]);
    // With the types that it gave, and without waiting: it was told nothing yet.
    let whole =
        [&format!("Parse PGWEIR_1 {TEXT}"), "Describe S PGWEIR_1", "Bind PGWEIR_1", "Execute", "Sync"];
    two.rig.send(other, &run("x"));
    assert_eq!(two.gets(), whole);
    two.rig.send(two.second, &[be::parse_complete(), after(), ran('I')].concat());
    assert_eq!(two.rig.gets(other), told("Ready I"));
    // From then on it is a statement of that shape.
    two.rig.send(other, &run("x"));
    assert_eq!(two.gets()[0], format!("Parse PGWEIR_2 {TEXT} [23]"));
    two.rig.send(two.second, &[be::parse_complete(), before()].concat());
    assert_eq!(two.gets()[0], format!("Parse PGWEIR_3 {TEXT}"));
    two.rig.send(two.second, &[be::parse_complete(), before()].concat());
    assert_eq!(two.gets(), REFUSED);
    two.rig.send(two.second, &fails('I'));
    two.rig.gets(other);
}

#[test]
fn a_clients_texts_have_a_bound_together() {
    let mut rig = Rig::new("");
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    let text = |at: usize| format!("select {at} /*{}*/", "x".repeat(13 * 1024 * 1024));
    let prepare = |at: usize| [fe::parse(&format!("s{at}"), &text(at)), fe::sync()].concat();
    for at in 0..4 {
        rig.send(client, &prepare(at));
        rig.raw(server);
        rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
        assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
    }
    // A name that is closed makes room.
    rig.send(client, &[fe::close("s0"), fe::sync()].concat());
    rig.gets(client);
    rig.send(client, &prepare(4));
    rig.raw(server);
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
    rig.send(client, &prepare(5));
    let refused = "FATAL 54000 a client's prepared statements may have 67108864 bytes together";
    assert_eq!(rig.gets(client), [refused]);
    rig.send(other, &prepare(6));
    assert!(!rig.is_closed(other));
}

#[test]
fn another_database_has_other_columns_and_types() {
    let mut rig = Rig::with("", "app = host=pg\nother = host=pg2", 1);
    rig.describes = true;
    let client = rig.client("alice");
    let server = rig.dialed();
    prepares(&mut rig, client, server, TEXT, &before());
    // Its Parse is not answered without a server, and has nothing of the types of the first database.
    let elsewhere = rig.client_with(&[("user", "alice"), ("database", "other")]);
    let other = rig.dialed();
    rig.send(elsewhere, &[fe::parse("s", TEXT), fe::sync()].concat());
    assert_eq!(rig.gets(other)[..2], [format!("Parse PGWEIR_2 {TEXT}"), "Describe S PGWEIR_2".to_owned()]);
    let described = be::described(&[16_500], &[("a", 16_500), ("b", 25)]);
    rig.send(other, &[be::parse_complete(), described.clone(), be::ready('I')].concat());
    assert_eq!(rig.gets(elsewhere), ["ParseComplete", "Ready I"]);
    rig.end(other, pgweir_core::driver::Closed::Eof);
    rig.send(elsewhere, &run("s"));
    let other = rig.dialed();
    rig.greet(other);
    assert_eq!(rig.gets(other)[0], format!("Parse PGWEIR_2 {TEXT} [16500]"));
    rig.send(other, &[be::parse_complete(), described].concat());
    assert_eq!(rig.gets(other), ["Bind PGWEIR_2", "Execute", "Sync"]);
    // Neither has anything changed for the first one.
    rig.send(client, &run("s"));
    assert_eq!(rig.gets(server), ["Bind PGWEIR_1", "Execute", "Sync"]);
}

/// Clients that know the same short statement, and their one server, at which the statement runs for the first of them.
fn queued(main: &str) -> (Rig, Vec<End>, End) {
    let mut rig = Rig::new(&format!("default_pool_size = 1\nmultiplex_servers = 1\n{main}"));
    rig.describes = true;
    let clients: Vec<End> = (0..3).map(|_| rig.client("alice")).collect();
    let server = rig.dialed();
    prepares(&mut rig, clients[0], server, "select a from t", &be::described(&[], &[("a", INT)]));
    rig.send(clients[1], &[fe::parse("s", "select a from t"), fe::sync()].concat());
    rig.gets(clients[1]);
    for (client, bytes) in [
        (clients[0], run("s")),
        // What it was told is decided here.
        (clients[1], run("s")),
        (clients[2], fe::query("select 2")),
    ] {
        rig.send(client, &bytes);
        let is_query = client == clients[2];
        let answer = if is_query { be::columns() } else { Vec::new() };
        let bind = if is_query { Vec::new() } else { be::bind_complete() };
        rig.send(server, &[bind, answer, be::row("1"), be::complete("SELECT 1"), be::ready('I')].concat());
        rig.gets(client);
    }
    rig.gets(server);
    (rig, clients, server)
}

#[test]
fn behind_other_clients_it_runs_again_and_is_refused_then() {
    let (mut rig, clients, server) = queued("max_prepared_statements = 1");
    // The server forgets the statement.
    rig.send(clients[2], &[fe::parse("u", "select 3"), fe::sync()].concat());
    rig.gets(server);
    let described = be::described(&[], &[("c", INT)]);
    rig.send(server, &[be::close_complete(), be::parse_complete(), described, be::ready('I')].concat());
    rig.gets(clients[2]);
    rig.send(clients[2], &fe::query("select 2"));
    rig.send(clients[1], &run("s"));
    let sent = rig.gets(server);
    let group = [
        "Close S PGWEIR_2",
        "Parse PGWEIR_1 select a from t",
        "Describe S PGWEIR_1",
        "Bind PGWEIR_1",
        "Execute",
        "Sync",
    ];
    assert_eq!(sent, [&["Query select 2"][..], &group].concat(), "it is queued, and waits for nothing");
    rig.send(server, &[be::columns(), be::row("1"), be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(clients[2]);
    let changed = be::described(&[], &[("a", REAL)]);
    let answer = [be::close_complete(), be::parse_complete(), changed.clone(), ran('I')].concat();
    rig.send_bytewise(server, &answer);
    rig.gets_nothing(clients[1]);
    let again = ["Close S PGWEIR_1", "Parse PGWEIR_2 select a from t", "Describe S PGWEIR_2", "Flush"];
    let again: Vec<String> = again.map(|text| text.replace("PGWEIR_2", "PGWEIR_3")).to_vec();
    assert_eq!(rig.gets(server), again);
    rig.send(server, &[be::close_complete(), be::parse_complete(), changed].concat());
    assert_eq!(rig.gets(server), REFUSED);
    rig.send(server, &fails('I'));
    assert_eq!(rig.gets(clients[1]), [CHANGED, "Ready I"]);
}

#[test]
fn behind_other_clients_the_same_shape_is_answered() {
    let (mut rig, clients, server) = queued("max_prepared_statements = 1");
    rig.send(clients[2], &[fe::parse("u", "select 3"), fe::sync()].concat());
    rig.gets(server);
    let described = be::described(&[], &[("c", INT)]);
    rig.send(server, &[be::close_complete(), be::parse_complete(), described, be::ready('I')].concat());
    rig.gets(clients[2]);
    rig.send(clients[2], &fe::query("select 2"));
    rig.send(clients[1], &run("s"));
    rig.send(server, &[be::columns(), be::row("1"), be::complete("SELECT 1"), be::ready('I')].concat());
    let same = be::described(&[], &[("a", INT)]);
    rig.send_bytewise(server, &[be::close_complete(), be::parse_complete(), same, ran('I')].concat());
    assert_eq!(rig.gets(clients[1]), told("Ready I"));
}

#[test]
fn a_group_with_two_statements_is_not_queued() {
    let (mut rig, clients, server) = queued("");
    rig.send(clients[1], &[fe::parse("v", "select a from t"), fe::sync()].concat());
    rig.gets(clients[1]);
    let group = [fe::bind("s"), fe::bind("v"), fe::execute(), fe::sync()].concat();
    for _ in 0..2 {
        rig.send(clients[1], &group);
        rig.gets(server);
        rig.send(server, &[be::bind_complete(), ran('I')].concat());
        rig.gets(clients[1]);
    }
    rig.send(clients[2], &fe::query("select 2"));
    rig.gets(server);
    rig.send(clients[1], &group);
    rig.gets_nothing(server);
}

#[test]
fn at_a_standby_that_describes_it_otherwise_the_primary_runs_it() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.rig.describes = true;
    let text = "select a from t";
    stage.rig.send(client, &[fe::parse("s", text), fe::sync()].concat());
    stage.rig.gets(primary);
    let (new, old) = (be::described(&[], &[("a", REAL)]), be::described(&[], &[("a", INT)]));
    stage.rig.send(primary, &[be::parse_complete(), new.clone(), be::ready('I')].concat());
    stage.rig.gets(client);
    // The standby has not replayed the change.
    let on_standby =
        ["Parse PGWEIR_1 select a from t", "Describe S PGWEIR_1", "Bind PGWEIR_1", "Execute", "Sync"];
    for closed in [false, true] {
        stage.rig.send(client, &run("s"));
        let close = ["Close S PGWEIR_1"];
        let expected = [if closed { &close[..] } else { &[] }, &on_standby].concat();
        assert_eq!(stage.rig.gets(standby), expected);
        let close = if closed { be::close_complete() } else { Vec::new() };
        let answer = [close, be::parse_complete(), old.clone(), ran('I')].concat();
        stage.rig.send_bytewise(standby, &answer);
        assert_eq!(stage.rig.gets(primary), ["Bind PGWEIR_1", "Execute", "Sync"]);
        stage.rig.send(primary, &ran('I'));
        assert_eq!(stage.rig.gets(client), told("Ready I"));
    }
    // Now it has.
    stage.rig.send(client, &run("s"));
    stage.rig.gets(standby);
    let answer = [be::close_complete(), be::parse_complete(), new, ran('I')].concat();
    stage.rig.send(standby, &answer);
    assert_eq!(stage.rig.gets(client), told("Ready I"));
    stage.rig.send(client, &run("s"));
    assert_eq!(stage.rig.gets(standby), ["Bind PGWEIR_1", "Execute", "Sync"]);
}

#[test]
fn the_next_process_knows_what_clients_were_told() {
    let mut rig = Rig::new("");
    rig.describes = true;
    let client = rig.client("alice");
    let server = rig.dialed();
    prepares(&mut rig, client, server, TEXT, &before());
    rig.take_over("", "app = host=pg");
    assert_eq!((rig.worker_of(client), rig.worker_of(server)), (1, 1));
    assert!(!rig.is_closed(server));
    // Its server ends; another one describes the statement otherwise.
    rig.eof(server);
    rig.send(client, &run("s"));
    let server = rig.dials.last().copied().expect("another server");
    rig.greet(server);
    let sent = rig.gets(server);
    assert!(sent[0].contains(TEXT) && sent[2] == "Flush", "{sent:?}");
    rig.send(server, &[be::parse_complete(), after()].concat());
    assert_eq!(rig.gets(server), REFUSED);
    rig.send(server, &fails('I'));
    assert_eq!(rig.gets(client), [CHANGED, "Ready I"]);
    // That it knows only the former columns is carried, too.
    rig.take_over("", "app = host=pg");
    rig.send(client, &run("s"));
    let sent = rig.gets(server);
    let is_asked = sent.last().map(String::as_str) == Some("Flush");
    if is_asked {
        rig.send(server, &[be::parse_complete(), after()].concat());
        assert_eq!(rig.gets(server), REFUSED);
    } else {
        assert_eq!(sent, REFUSED);
    }
}

#[test]
fn in_session_pooling_nothing_is_asked() {
    let mut rig = Rig::new("pool_mode = session");
    rig.describes = true;
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::parse("s", TEXT), fe::sync()].concat());
    assert_eq!(rig.gets(server), [format!("Parse s {TEXT}"), "Sync".to_owned()]);
}

#[test]
fn an_unnamed_statement_after_a_doubtful_one_stays_the_groups_own() {
    let mut two = two("");
    let unnamed = [fe::parse("", "select 1"), fe::bind(""), fe::execute()].concat();
    let group = [fe::describe("s"), fe::bind("s"), fe::execute(), unnamed, fe::sync()].concat();
    let sent = two.sends(&group);
    assert_eq!(
        sent,
        [
            PARSED,
            "Describe S PGWEIR_1",
            "Describe S PGWEIR_1",
            "Bind PGWEIR_1",
            "Execute",
            "Parse  select 1",
            "Bind ",
            "Execute",
            "Sync"
        ],
        "nothing is closed or prepared between the last Parse and its Bind"
    );
}
