//! SHOW STATEMENTS, SHOW PERCENTILES and the slow log: which statement an answer is counted for, and what of it is shown.

use pgweir_core::mail::Question;
use pgweir_core::trace::TracedStatement;

use crate::rig::{End, Rig, be, fe};

fn group(messages: &[Vec<u8>]) -> Vec<u8> {
    [messages.concat(), fe::sync()].concat()
}

/// The rows of SHOW STATEMENTS as `calls rows errors query`, in the order of their texts.
fn statements(rig: &mut Rig) -> Vec<String> {
    let console = rig.console();
    let rows = rig.command(console, "SHOW STATEMENTS");
    let mut shown: Vec<(String, String)> = rows
        .iter()
        .filter_map(|row| row.strip_prefix("Row "))
        .map(|row| {
            let cells: Vec<&str> = row.splitn(16, ',').collect();
            // The text may have commas; three columns follow it.
            let text = cells[15].rsplitn(4, ',').last().expect("a text");
            (text.to_owned(), format!("{} {} {} {text}", cells[2], cells[12], cells[14]))
        })
        .collect();
    shown.sort();
    shown.into_iter().map(|(_, row)| row).collect()
}

fn run(rig: &mut Rig, client: End, server: End, text: &str, tag: &str) {
    rig.send(client, &fe::query(text));
    rig.send(server, &[be::complete(tag), be::ready('I')].concat());
    rig.gets(server);
    rig.gets(client);
}

#[test]
fn literals_are_gone_and_rows_are_added_up() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, client, server, "update t set a = 'secret' where b = 1", "UPDATE 3");
    run(&mut rig, client, server, "update t set a = 'other' where b = 2", "UPDATE 4");
    run(&mut rig, client, server, "alter role alice password 'secret'", "ALTER ROLE");
    assert_eq!(
        statements(&mut rig),
        ["1 0 0 alter role alice password ?", "2 7 0 update t set a = ? where b = ?"]
    );
}

#[test]
fn in_every_form_of_the_protocol_it_is_the_same_statement() {
    for main in ["", "multiplex_depth = 0", "pool_mode = session", "max_prepared_statements = 0"] {
        let mut rig = Rig::new(main);
        let client = rig.client("alice");
        let server = rig.dialed();
        run(&mut rig, client, server, "select 7", "SELECT 1");
        let answered = [be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat();
        let with_parse = [be::parse_complete(), answered.clone()].concat();
        rig.send(client, &group(&[fe::parse("", "select $1"), fe::bind(""), fe::execute()]));
        rig.send(server, &with_parse);
        rig.send(client, &group(&[fe::parse("s", "SELECT  $1")]));
        rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
        for _ in 0..2 {
            rig.send(client, &group(&[fe::bind("s"), fe::execute()]));
            rig.send(server, &answered);
        }
        let gone = rig.gets(client);
        assert_eq!(gone.iter().filter(|message| *message == "Ready I").count(), 4, "{main}: {gone:?}");
        let expected = if main.starts_with("max_prepared") {
            // In transaction pooling, names that are not followed mean nothing once the server is another's.
            "2 2 0 select ?"
        } else {
            "4 4 0 select ?"
        };
        assert_eq!(statements(&mut rig), [expected], "{main}");
    }
}

#[test]
fn a_group_counts_for_what_it_does_first_after_its_begin() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    let begin = [fe::parse("", "begin"), fe::bind(""), fe::execute()];
    let insert = [fe::parse("", "insert into t values ($1)"), fe::bind(""), fe::execute()];
    rig.send(client, &group(&[begin.concat(), insert.concat(), insert.concat()]));
    let one = |tag: &str| [be::parse_complete(), be::bind_complete(), be::complete(tag)].concat();
    rig.send(server, &[one("BEGIN"), one("INSERT 0 1"), one("INSERT 0 1"), be::ready('T')].concat());
    rig.send(client, &fe::query("commit"));
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    rig.gets(client);
    assert_eq!(statements(&mut rig), ["1 0 0 commit", "1 2 0 insert into t values (?)"]);
}

#[test]
fn queued_clients_count_each_for_its_own_with_the_bytes_of_its_own_answer() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "select 1", "SELECT 1");
    run(&mut rig, one, server, "select a from t", "SELECT 1");
    rig.send(one, &fe::query("select 2"));
    rig.send(two, &fe::query("select a from t"));
    assert_eq!(rig.gets(server).len(), 2, "both are queued");
    let long = [be::row_of(1_000), be::complete("SELECT 1"), be::ready('I')].concat();
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I'), long].concat());
    assert_eq!(statements(&mut rig), ["2 2 0 select ?", "2 2 0 select a from t"]);
    let console = rig.console();
    let rows = rig.command(console, "SHOW STATEMENTS");
    let bytes = |text: &str| -> u64 {
        let row = rows.iter().find(|row| row.contains(text)).expect("it is there");
        row.split(',').nth(13).expect("bytes").parse().expect("a number")
    };
    assert!(bytes(",select ?,") < 100 && bytes(",select a from t,") > 1_000, "{rows:?}");
}

#[test]
fn errors_are_counted_and_what_fails_shows_no_value_either() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("alter role alice password secret 'unterminated"));
    rig.send(server, &[be::error("42601", "syntax error"), be::ready('I')].concat());
    rig.gets(client);
    assert_eq!(statements(&mut rig), ["1 0 1 alter role alice password ? ..."]);
}

#[test]
fn it_can_be_switched_off_and_on() {
    let mut rig = Rig::new("statement_stats_bytes = 0");
    let client = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, client, server, "select 1", "SELECT 1");
    assert_eq!(statements(&mut rig), [""; 0]);
    rig.reload("", "app = host=pg");
    run(&mut rig, client, server, "select 1", "SELECT 1");
    assert_eq!(statements(&mut rig), ["1 1 0 select ?"]);
    rig.reload("statement_stats_bytes = 0", "app = host=pg");
    assert_eq!(statements(&mut rig), [""; 0]);
}

#[test]
fn a_slow_statement_is_logged_with_where_its_time_went() {
    let mut rig = Rig::new("default_pool_size = 1\nlog_min_duration_ms = 100");
    let (busy, slow) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(busy, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.send(slow, &fe::query("select 'secret' from t"));
    rig.pass_us(30_000);
    rig.send(busy, &fe::query("commit"));
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    rig.pass_us(80_000);
    assert!(!rig.logged("duration:"), "nothing took long yet");
    rig.send(server, &[be::complete("SELECT 5"), be::ready('I')].concat());
    let line = "duration: 110.000 ms (wait 30.000 ms, server 80.000 ms, client 0.000 ms), 5 rows";
    assert!(rig.logged(line));
    assert!(rig.logged("statement: select ? from t"));
    assert!(!rig.logged("secret"));
}

#[test]
fn a_database_and_a_user_have_a_limit_of_their_own() {
    let mut rig = Rig::with("log_min_duration_ms = 1", "app = host=pg log_min_duration_ms=0", 1);
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.pass_us(80_000);
    rig.send(server, &[be::complete("SELECT 5"), be::ready('I')].concat());
    assert!(!rig.logged("duration:"));
    rig.reload("", "app = host=pg log_min_duration_ms=70");
    rig.send(client, &fe::query("select 1"));
    rig.pass_us(80_000);
    rig.send(server, &[be::complete("SELECT 5"), be::ready('I')].concat());
    assert!(rig.logged("duration: 80.000 ms"));
    assert!(!rig.logged("duration: 75.000 ms"));
    let user = "app = host=pg\n[users]\nalice = log_min_duration_ms=75";
    rig.reload("log_min_duration_ms = 1000", user);
    rig.send(client, &fe::query("select 1"));
    rig.pass_us(75_000);
    rig.send(server, &[be::complete("SELECT 5"), be::ready('I')].concat());
    assert!(rig.logged("duration: 75.000 ms"));
}

#[test]
fn percentiles_are_those_of_the_last_period() {
    let mut rig = Rig::new("stats_period = 10");
    let client = rig.client("alice");
    let server = rig.dialed();
    let console = rig.console();
    let shown = |rig: &mut Rig| -> Vec<String> {
        let rows = rig.command(console, "SHOW PERCENTILES");
        rows.into_iter().filter(|row| row.starts_with("Row app,alice,total,")).collect()
    };
    assert_eq!(shown(&mut rig), [""; 0]);
    rig.send(client, &fe::query("select 1"));
    rig.pass_us(1_000);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    let row = &shown(&mut rig)[0];
    assert!(row.starts_with("Row app,alice,total,1,1000,"), "{row}");
    // Whole periods pass in which nothing happens.
    for _ in 0..3 {
        rig.pass_s(10);
    }
    assert_eq!(shown(&mut rig), [""; 0]);
}

/// The statements that were traced.
fn traced(rig: &mut Rig) -> Vec<TracedStatement> {
    let questions = rig.asked().into_iter();
    questions
        .filter_map(|question| if let Question::Traced(one) = question { Some(*one) } else { None })
        .collect()
}

#[test]
fn a_statement_is_traced_in_the_trace_of_its_comment() {
    let comment = "/*traceparent='00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'*/";
    for main in ["", "multiplex_depth = 0", "pool_mode = session", "statement_stats_bytes = 0"] {
        let mut rig = Rig::new(&format!("otlp_endpoint = http://collector:4318\n{main}"));
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send(client, &fe::query("select 1"));
        rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
        assert_eq!(traced(&mut rig), [], "without a context none is traced");
        let text = format!("select 2 {comment}");
        let extended = group(&[fe::parse("", &text), fe::bind(""), fe::execute()]);
        for (messages, before) in
            [(fe::query(&text), Vec::new()), (extended, [be::parse_complete(), be::bind_complete()].concat())]
        {
            rig.send(client, &messages);
            rig.pass_us(500);
            rig.send(server, &[before, be::complete("SELECT 9"), be::ready('I')].concat());
            let traced = traced(&mut rig);
            let [one] = &traced[..] else { panic!("{main}: {traced:?}") };
            let context = one.context.expect("that of the comment");
            assert_eq!((context.trace[0], context.parent[7]), (0x0a, 0x31));
            assert_eq!((one.split.server_us, one.rows, &*one.database, &*one.host), (500, 9, "app", "pg"));
            let text = if main.starts_with("statement_stats") { None } else { Some("select ?") };
            assert_eq!(one.text.as_deref(), text);
        }
        rig.gets(client);
    }
}

#[test]
fn of_the_others_one_in_so_many_is_traced_and_a_reload_ends_it() {
    let mut rig = Rig::new("otlp_endpoint = http://collector:4318\ntrace_one_in = 2");
    let client = rig.client("alice");
    let server = rig.dialed();
    for _ in 0..4 {
        run(&mut rig, client, server, "select 1", "SELECT 1");
    }
    assert_eq!(traced(&mut rig).len(), 2);
    rig.reload("trace_one_in = 1", "app = host=pg");
    run(&mut rig, client, server, "select 1", "SELECT 1");
    assert_eq!(traced(&mut rig).len(), 0);
}
