use super::*;
use proptest::prelude::*;

mod readings;

use readings::{Reading, outside};

fn certain(sql: &str) -> bool {
    traits(sql.as_bytes()).certainly_self_contained
}

#[test]
fn ordinary_statements_are_certain() {
    for sql in [
        "select 1",
        "SELECT * FROM t WHERE a = $1 AND b ->> 'x' = 'begin; commit' LIMIT 10;",
        ";; /* select; */ select 1 -- begin\n ; ",
        "(select 1) union all (select 2)",
        "((values (1), (2)))",
        "table t",
        "insert into t (a, b) values ($1, 'it''s') on conflict (a) do update set b = excluded.b returning id",
        "insert into t select * from u on conflict do nothing",
        "UPDATE t SET a = a + 1, b = case when c then 'x' else 'y' end WHERE id = 7",
        "delete from t where id in (select id from t for update skip locked)",
        "with x as (update t set a = 1 returning *) insert into u select * from x",
        "merge into t using u on t.id = u.id when matched then update set a = 1 when not matched then do nothing",
        r"select 'c:\temp' like '%\_%', e'tab\t', $$begin;$$, $f$ set x = 1 $f$, U&'\0041'",
        "select start, finish, \"begin\", \"set\" from t where local = 'x' and note = 'größe'",
        "select count(*) from temp",
        "select 1 as start;",
        "with recursive r as (select 1) select * from r",
    ] {
        assert!(certain(sql), "{sql}");
        assert_eq!(traits(sql.as_bytes()).statements, Statements::One, "{sql}");
    }
}

#[test]
fn what_touches_a_session_is_never_certain() {
    for sql in [
        "set x = 1",
        "SET LOCAL x = 1",
        "reset all",
        "show x",
        "select set_config('a', 'b', false)",
        "select pg_catalog.SET_CONFIG('a', 'b', true)",
        "select \"set_config\"('a', 'b', false)",
        "select U&\"set\\005fconfig\"('a', 'b', false)",
        "update pg_settings set setting = '1' where name = 'x'",
        "listen a",
        "unlisten *",
        "notify a",
        "prepare p as select 1",
        "prepare transaction 'x'",
        "execute p",
        "deallocate all",
        "discard all",
        "declare c cursor with hold for select 1",
        "fetch 1 from c",
        "create temp table t (a int)",
        "create table t (a int)",
        "select 1 into temp t",
        "select 1 into t",
        "select insert into temp t from u",
        "select merge INTO /* x */ LOCAL TEMPORARY t from u",
        "select * from pg_temp.t",
        "insert into \"pg_temp_3\".t values (1)",
        "load 'x'",
        "select pg_advisory_lock(1)",
        "select pg_try_advisory_lock_shared(1)",
        "select pg_advisory_unlock_all()",
        "select currval('s')",
        "select lastval()",
        "insert into t values (nextval('s'))",
        "select setval('s', 1)",
        "select setseed(0.5)",
        "select * from dblink('c', 'q')",
        "select pg_create_logical_replication_slot('a', 'b', true)",
        "select query_to_xml('select set_config(1)', true, true, '')",
        "select pg_listening_channels()",
        "do $$ begin end $$",
        "call p()",
        "copy t from stdin",
        "copy (select 1) to stdout",
        "explain analyze select 1",
        "lock table t",
        "vacuum",
        "IDENTIFY_SYSTEM",
        "START_REPLICATION SLOT s LOGICAL 0/0",
    ] {
        assert!(!certain(sql), "{sql}");
    }
}

#[test]
fn transactions_are_never_certain() {
    for sql in [
        "begin",
        "BEGIN;",
        "start transaction",
        "commit",
        "end",
        "rollback",
        "abort",
        "savepoint a",
        "release a",
        "select 1; begin",
        "begin; select 1",
        "select 1; select 2",
        "select 'a\\'; begin; --'",
        "select '\\'; begin; select '\\'",
        "select e'\\\\'; begin; --'",
        "select $a$ $b$ $a$; begin; select $b$ $b$",
        "select 1 /* /* */ */; begin",
        "select 1 -- x\n; begin",
        "select 1 -- x\r; begin",
        "select a$$; begin; select b$$",
        "select \"a\"\"; \"; begin; select \"b\"",
        "select (1; begin)",
        "/* unfinished begin",
    ] {
        assert!(!certain(sql), "{sql}");
    }
}

#[test]
fn verbs() {
    for (sql, verb) in [
        ("select", Verb::Select),
        ("insert into", Verb::Insert),
        ("uPdAtE", Verb::Update),
        ("delete", Verb::Delete),
        ("merge", Verb::Merge),
        ("with", Verb::With),
        ("values", Verb::Values),
        ("table", Verb::Table),
        ("begin", Verb::Begin),
        ("start transaction", Verb::Begin),
        ("commit prepared 'x'", Verb::Commit),
        ("end", Verb::Commit),
        ("rollback to a", Verb::Rollback),
        ("abort", Verb::Rollback),
        ("savepoint a", Verb::Savepoint),
        ("set a = 1", Verb::Set),
        ("reset a", Verb::Reset),
        ("show a", Verb::Show),
        ("discard all", Verb::Discard),
        ("deallocate a", Verb::Deallocate),
        ("prepare a as select 1", Verb::Prepare),
        ("execute a", Verb::Execute),
        ("listen a", Verb::Listen),
        ("unlisten a", Verb::Unlisten),
        ("notify a", Verb::Notify),
        ("copy a to stdout", Verb::Copy),
        ("create table a()", Verb::Other),
        ("selects", Verb::Other),
        (" ; -- a\n ; set a = 1; select 1", Verb::Set),
        ("(( select", Verb::Select),
        ("", Verb::Empty),
        (" ; /* */ ;", Verb::Empty),
        ("'(' select", Verb::Unknown),
        ("\"select\"", Verb::Unknown),
        ("1", Verb::Unknown),
        ("( ;", Verb::Unknown),
        ("{", Verb::Unknown),
        ("'", Verb::Unknown),
        ("discard all 'unfinished", Verb::Discard),
    ] {
        assert_eq!(traits(sql.as_bytes()).verb, verb, "{sql}");
    }
}

#[test]
fn statements_are_counted_or_not_known() {
    for (sql, statements) in [
        ("", Statements::None),
        (";;", Statements::None),
        ("-- select 1", Statements::None),
        ("select 1", Statements::One),
        (";select 1;;", Statements::One),
        ("set a = ';'", Statements::One),
        ("create table t (a int)", Statements::One),
        ("select 1; select 2", Statements::Many),
        ("begin; select 1; commit", Statements::Many),
        ("create rule r as on insert to t do (delete from u; delete from v)", Statements::Unknown),
        ("create function f() returns int begin atomic select 1; select 2; end", Statements::Unknown),
        ("select '", Statements::Unknown),
        ("select (1", Statements::Unknown),
    ] {
        assert_eq!(traits(sql.as_bytes()).statements, statements, "{sql}");
    }
}

/// Pieces that a text is made of in the properties below: what opens, closes and escapes, and some words.
const PIECES: &[&[u8]] = &[
    b"'",
    b"'",
    b"''",
    b"\"",
    b"$$",
    b"$a$",
    b"$",
    b"$1",
    b"\\",
    b"\\'",
    b"e'",
    b"E'",
    b"u&'",
    b"U&\"",
    b"n'",
    b"--",
    b"/*",
    b"*/",
    b"*",
    b"/",
    b"-",
    b"\n",
    b"\r",
    b" ",
    b";",
    b",",
    b"(",
    b")",
    b"a",
    b"1",
    b".",
    b"=",
    b"\x83",
    b"\xc3\xa9",
    b"\x83\\",
    b"\x83|",
    b"|",
    b"begin",
    b" BEGIN ",
    b" commit ",
    b"select ",
    b" select",
    b" set ",
    b" into ",
    b" temp ",
    b"insert ",
    b"update",
    b" set_config(",
];

fn text() -> impl Strategy<Value = Vec<u8>> {
    let pieces = proptest::collection::vec(proptest::sample::select(PIECES), 0..24);
    pieces.prop_map(|pieces| [b"select ".as_slice(), &pieces.concat()].concat())
}

/// Texts that are whole in themselves, so that what stands behind them is outside of quotes.
fn whole() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        "[a-z]{1,6}",
        "[0-9]{1,4}",
        "'[a-z \";$]{0,6}'",
        "\"[a-z ';$]{1,6}\"",
        r"e'([a-z]|\\'|''|\\\\){0,5}'",
        r"\$\$[a-z';]{0,6}\$\$",
        r"\$q\$[a-z';]{0,6}\$q\$",
        "/\\*[a-z';]{0,6}\\*/",
        "--[a-z';]{0,6}\n",
        "[+<>=,.:;()]",
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.join(" ").into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn any_bytes(sql: Vec<u8>) {
        let found = traits(&sql);
        prop_assert!(!found.certainly_self_contained || found.statements == Statements::One);
    }

    /// A `BEGIN` outside of quotes is seen, whatever stands around it.
    #[test]
    fn begin_between_anything(before in whole(), after in prop_oneof![any::<Vec<u8>>(), text(), whole()]) {
        for start in [&b""[..], b"select ", b"select 1;"] {
            let sql = [start, &before, b" begin ", &after].concat();
            prop_assert!(!traits(&sql).certainly_self_contained, "{}", sql.escape_ascii());
        }
    }

    /// A text that is certain must be so under each reading that a server could have, by a second and simpler
    /// lexer.
    #[test]
    fn certain_under_every_reading(sql in text()) {
        if traits(&sql).certainly_self_contained {
            for reading in Reading::ALL {
                let seen = outside(&sql, reading);
                prop_assert!(seen.closed, "{:?}: {}", reading, sql.escape_ascii());
                prop_assert_eq!(seen.statements(), 1, "{:?}: {}", reading, sql.escape_ascii());
                for word in [&b"begin"[..], b"set_config"] {
                    prop_assert!(!seen.has_word(word), "{:?}: {}", reading, sql.escape_ascii());
                }
            }
        }
    }

    /// The same text with a second statement or a marked name in it is not certain.
    #[test]
    fn one_more_piece_ends_certainty(sql in whole()) {
        let certain = |sql: &[&[u8]]| traits(&sql.concat()).certainly_self_contained;
        if certain(&[b"select ", &sql]) {
            prop_assert!(!certain(&[b"select ", &sql, b"; select 1"]));
            prop_assert!(!certain(&[b"select ", &sql, b" , setval('a', 1)"]));
            prop_assert!(!certain(&[b"select ", &sql, b" '"]));
            prop_assert!(!certain(&[b"discard ", &sql]));
            prop_assert!(certain(&[b"/* begin */ select ", &sql, b" -- begin"]));
        }
    }
}
