//! The model's session against the protocol's documentation: what a real server answers, spelled out.

use super::session::{Behaviour, Note, Session, Step};
use crate::sim::client::message::{
    bind, close, copy_data, copy_done, copy_fail, describe, execute, flush, function_call, parse, query, sync,
};
use crate::sim::network::proto::{ErrorText, Fields, Message};

fn session() -> Session {
    let mut session = Session::new(7, &[], Behaviour::default());
    session.greeting(b"key");
    session
}

/// Runs until the session wants input; answers as a string of type bytes, with error codes, tags and status.
fn answers(session: &mut Session, messages: Vec<Message>) -> String {
    messages.into_iter().for_each(|m| session.feed(m));
    let mut shown = String::new();
    loop {
        match session.step() {
            Step::Say(message) => {
                shown.push_str(&show(&message));
                shown.push(' ');
            }
            Step::NeedInput => return shown.trim_end().to_owned(),
            Step::Quit => return shown + "quit",
            Step::Wait(_) | Step::Flush | Step::Ask(_) | Step::Quiet => {}
            // No other session is there.
            Step::Lock { .. } => session.told_of_lock(true),
        }
    }
}

fn show(message: &Message) -> String {
    let letter = char::from(message.tag);
    match message.tag {
        b'E' | b'N' => format!("{letter}:{}", ErrorText::read(message).code),
        b'C' => format!("{letter}:{}", Fields(&message.body).text().unwrap_or("?")),
        b'Z' => format!("{letter}{}", char::from(message.body[0])),
        b'S' => format!("{letter}:{}", Fields(&message.body).text().unwrap_or("?")),
        _ => letter.to_string(),
    }
}

#[test]
fn simple_queries_answer_statement_by_statement_and_stop_at_the_first_error() {
    let mut s = session();
    assert_eq!(answers(&mut s, vec![query("SELECT 1")]), "T D C:SELECT 1 ZI");
    assert_eq!(answers(&mut s, vec![query("")]), "I ZI");
    assert_eq!(answers(&mut s, vec![query("/*c=1 n=2*/")]), "I ZI");
    let several = "SELECT a /*r=2*/; INSERT x; SELECT fail /*r=1*/; SELECT b";
    assert_eq!(answers(&mut s, vec![query(several)]), "T D D C:SELECT 2 C:INSERT 0 1 T D E:22012 ZI");
    assert_eq!(answers(&mut s, vec![query("NONSENSE")]), "E:42601 ZI");
}

#[test]
fn a_failed_block_refuses_all_but_its_end() {
    let mut s = session();
    let run = |s: &mut Session, text: &str| answers(s, vec![query(text)]);
    assert_eq!(run(&mut s, "BEGIN"), "C:BEGIN ZT");
    assert_eq!(run(&mut s, "SELECT fail"), "T E:22012 ZE");
    assert_eq!(run(&mut s, "SELECT 1"), "E:25P02 ZE");
    assert_eq!(answers(&mut s, vec![parse("", "SELECT 1"), sync()]), "E:25P02 ZE");
    assert_eq!(answers(&mut s, vec![function_call(1, "")]), "E:25P02 ZE");
    assert_eq!(run(&mut s, "COMMIT"), "C:ROLLBACK ZI");
    assert_eq!(run(&mut s, "COMMIT"), "N:25P01 C:COMMIT ZI");
}

#[test]
fn after_an_error_everything_up_to_sync_is_ignored() {
    let mut s = session();
    let group = vec![
        parse("a", "SELECT who"),
        bind("", "nowhere", &[]),
        parse("b", "SELECT who"),
        query("SELECT 1"),
        execute("", 0),
        flush(),
        sync(),
    ];
    assert_eq!(answers(&mut s, group), "1 E:26000 ZI");
    let group = vec![bind("", "a", &[]), execute("", 0), bind("", "b", &[]), sync()];
    assert_eq!(answers(&mut s, group), "2 D C:SELECT 1 E:26000 ZI");
}

#[test]
fn portals_suspend_and_end_with_their_transaction() {
    let mut s = session();
    let rows = "SELECT who /*r=4*/";
    let group =
        vec![parse("", rows), bind("p", "", &[]), execute("p", 2), execute("p", 2), execute("p", 2), sync()];
    assert_eq!(answers(&mut s, group), "1 2 D D s D D s C:SELECT 0 ZI");
    assert_eq!(answers(&mut s, vec![execute("p", 0), sync()]), "E:34000 ZI");
    assert_eq!(answers(&mut s, vec![query("BEGIN")]), "C:BEGIN ZT");
    let group = vec![parse("", rows), bind("p", "", &[]), execute("p", 3), sync()];
    assert_eq!(answers(&mut s, group), "1 2 D D D s ZT");
    assert_eq!(answers(&mut s, vec![execute("p", 0), sync()]), "D C:SELECT 1 ZT");
    assert_eq!(answers(&mut s, vec![bind("p", "", &[]), sync()]), "E:42P03 ZE");
}

#[test]
fn prepared_statements_live_with_the_session() {
    let mut s = session();
    let group = vec![parse("a", "SELECT who($1) /*t=5*/"), describe(b'S', "a"), sync()];
    assert_eq!(answers(&mut s, group), "1 t T ZI");
    assert_eq!(answers(&mut s, vec![parse("a", "SELECT 1"), sync()]), "E:42P05 ZI");
    assert_eq!(answers(&mut s, vec![bind("", "a", &[]), sync()]), "E:08P01 ZI");
    let arguments = ["c=1 n=2 r=2".to_owned()];
    let group = vec![bind("", "a", &arguments), describe(b'P', ""), execute("", 0), close(b'S', "a"), sync()];
    assert_eq!(answers(&mut s, group), "2 T D D C:SELECT 2 3 ZI");
    assert_eq!(answers(&mut s, vec![bind("", "a", &arguments), sync()]), "E:26000 ZI");
    let group =
        vec![parse("", "SET work_mem='1'"), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()];
    assert_eq!(answers(&mut s, group), "1 2 n C:SET ZI");
    assert_eq!(answers(&mut s, vec![parse("", "SELECT 1; SELECT 2"), sync()]), "E:42601 ZI");
    assert_eq!(answers(&mut s, vec![parse("", ""), bind("", "", &[]), execute("", 0), sync()]), "1 2 I ZI");
}

#[test]
fn a_query_drops_the_unnamed_statement() {
    let mut s = session();
    answers(&mut s, vec![parse("", "SELECT 1"), sync(), query("SELECT 1")]);
    assert_eq!(answers(&mut s, vec![bind("", "", &[]), sync()]), "E:26000 ZI");
}

#[test]
fn copy_in_swallows_sync_and_flush_and_copy_data_means_nothing_outside() {
    let mut s = session();
    assert_eq!(answers(&mut s, vec![copy_data(b"x"), copy_done(), copy_fail("")]), "");
    assert_eq!(answers(&mut s, vec![query("COPY t FROM STDIN")]), "G");
    let sent = vec![copy_data(b"x"), flush(), sync(), copy_data(b"y"), copy_done()];
    assert!(answers(&mut s, sent).starts_with("C:COPY "));
    let group = vec![parse("", "COPY t FROM STDIN"), bind("", "", &[]), execute("", 0), sync()];
    assert_eq!(answers(&mut s, group), "1 2 G");
    assert_eq!(answers(&mut s, vec![copy_fail("no"), copy_data(b"late"), sync()]), "E:57014 ZI");
    assert_eq!(answers(&mut s, vec![query("COPY t TO STDOUT /*r=2*/")]), "H d d c C:COPY 2 ZI");
    assert_eq!(answers(&mut s, vec![query("COPY t FROM STDIN"), query("SELECT 1")]), "G E:08P01 ZI");
}

#[test]
fn copy_data_in_another_order_has_another_checksum() {
    let sum = |parts: &[&[u8]]| {
        let mut s = session();
        let data = parts.iter().map(|part| copy_data(part));
        let sent = std::iter::once(query("COPY t FROM STDIN")).chain(data).chain([copy_done()]).collect();
        answers(&mut s, sent)
    };
    assert_ne!(sum(&[b"a", b"b"]), sum(&[b"b", b"a"]));
    assert_ne!(sum(&[b"ab"]), sum(&[b"a", b"b"]));
}

#[test]
fn settings_follow_transactions_and_are_reported_before_ready() {
    let mut s = session();
    let run = |s: &mut Session, text: &str| answers(s, vec![query(text)]);
    assert_eq!(run(&mut s, "SET application_name='a'"), "C:SET S:application_name ZI");
    assert_eq!(run(&mut s, "SET work_mem='a'"), "C:SET ZI");
    assert_eq!(run(&mut s, "SET application_name='b'; SELECT fail"), "C:SET T E:22012 ZI");
    let sent = "BEGIN; SET LOCAL TimeZone='x'";
    assert_eq!(run(&mut s, sent), "C:BEGIN C:SET S:TimeZone ZT");
    assert_eq!(run(&mut s, "COMMIT"), "C:COMMIT S:TimeZone ZI");
    assert_eq!(run(&mut s, "SET nonsense='a'"), "E:42704 ZI");
    assert_eq!(run(&mut s, "DISCARD ALL"), "C:DISCARD ALL S:application_name ZI");
    assert_eq!(run(&mut s, "BEGIN; DISCARD ALL"), "C:BEGIN E:25001 ZE");
}

#[test]
fn what_a_session_holds_follows_transactions_where_postgres_says_so() {
    let mut s = session();
    let run = |s: &mut Session, text: &str| answers(s, vec![query(text)]);
    assert_eq!(
        run(&mut s, "BEGIN; CREATE TEMP TABLE a; LISTEN x; SELECT pg_advisory_lock(1)"),
        "C:BEGIN C:CREATE TABLE C:LISTEN T D C:SELECT 1 ZT"
    );
    assert_eq!(
        run(&mut s, "PREPARE p AS SELECT who; DECLARE h CURSOR WITH HOLD FOR SELECT who"),
        "C:PREPARE C:DECLARE CURSOR ZT"
    );
    assert_eq!(run(&mut s, "ROLLBACK"), "C:ROLLBACK ZI");
    assert!(s.channels().is_empty());
    assert_eq!(run(&mut s, "DROP TABLE a"), "E:42P01 ZI");
    assert_eq!(run(&mut s, "FETCH 1 FROM h"), "T E:34000 ZI");
    assert_eq!(run(&mut s, "SELECT pg_advisory_unlock(1)"), "T D C:SELECT 1 ZI", "it was not rolled back");
    assert_eq!(run(&mut s, "SELECT pg_advisory_unlock(1)"), "T N:01000 D C:SELECT 1 ZI");
    assert_eq!(run(&mut s, "EXECUTE p"), "T D C:SELECT 1 ZI");
    assert_eq!(run(&mut s, "PREPARE p AS SELECT who"), "E:42P05 ZI");
    assert_eq!(run(&mut s, "DEALLOCATE p; EXECUTE p"), "C:DEALLOCATE E:26000 ZI");
    assert_eq!(run(&mut s, "DECLARE h CURSOR WITH HOLD FOR SELECT who /*r=3*/"), "C:DECLARE CURSOR ZI");
    assert_eq!(run(&mut s, "FETCH 2 FROM h; FETCH 2 FROM h"), "T D D C:FETCH 2 T D C:FETCH 1 ZI");
    assert_eq!(run(&mut s, "LISTEN x; LISTEN y; UNLISTEN x"), "C:LISTEN C:LISTEN C:UNLISTEN ZI");
    assert_eq!(s.channels().iter().collect::<Vec<_>>(), ["y"]);
    assert!(s.is_bound_to_process());
    assert_eq!(run(&mut s, "DISCARD ALL"), "C:DISCARD ALL ZI");
    assert!(s.channels().is_empty() && !s.is_bound_to_process());
}

#[test]
fn a_session_tells_whose_things_it_holds() {
    let mut s = session();
    for text in ["CREATE TEMP TABLE a /*c=1 n=1*/", "PREPARE a AS SELECT who /*c=1 n=2*/"] {
        answers(&mut s, vec![query(text)]);
        assert_eq!(s.stranger(1), None);
        assert_eq!(s.stranger(2).map(|(owner, _)| owner), Some(1), "{text}");
    }
    answers(
        &mut s,
        vec![query("DROP TABLE a"), query("DEALLOCATE a"), query("SELECT pg_advisory_lock(1) /*c=3 n=1*/")],
    );
    assert_eq!(s.stranger(1), Some((3, "lock 1".to_owned())));
}

#[test]
fn what_is_told_to_others_is_told_at_the_commit() {
    let mut s = session();
    let told = |s: &mut Session, text: &str| {
        answers(s, vec![query(text)]);
        s.take_notes().into_iter().filter(|note| matches!(note, Note::Told { .. })).count()
    };
    assert_eq!(told(&mut s, "BEGIN; LISTEN a; NOTIFY a, 'x'"), 0);
    assert_eq!(told(&mut s, "COMMIT"), 2);
    assert_eq!(told(&mut s, "LISTEN a"), 0, "it does already");
    assert_eq!(told(&mut s, "NOTIFY a, 'y'; SELECT fail"), 0);
    assert_eq!(told(&mut s, "UNLISTEN *"), 1);
}

#[test]
fn a_session_that_waits_for_a_lock_can_be_told_that_it_waits_in_vain() {
    let mut s = session();
    s.feed(query("SELECT pg_advisory_lock(1) /*c=1 n=1*/"));
    while !matches!(s.step(), Step::Lock { key: 1, waits: true }) {}
    assert!(s.deadlock());
    assert_eq!(answers(&mut s, vec![]), "E:40P01 ZI");
    s.feed(query("SELECT who"));
    assert!(!s.deadlock_next());
}

#[test]
fn a_cancel_hits_what_runs_and_only_that() {
    let mut s = session();
    assert_eq!(s.cancel(), None);
    s.feed(query("SELECT who /*c=1 n=9 d=10 r=3*/"));
    while s.step() != Step::Wait(5) {}
    assert_eq!(s.cancel().map(|tag| tag.number), Some(9));
    assert_eq!(answers(&mut s, vec![]), "E:57014 ZI");
    assert_eq!(s.cancel(), None);
    let group = [parse("", "INSERT x /*c=1 n=4*/"), bind("", "", &[]), execute("", 0), sync()];
    group.into_iter().for_each(|m| s.feed(m));
    assert!(!s.cancel_next(), "ParseComplete comes first");
    while s.step() != Step::Say(Message::bare(b'2')) {}
    assert!(s.cancel_next());
    assert_eq!(answers(&mut s, vec![]), "E:57014 ZI");
}

#[test]
fn what_waits_is_cancelled_as_a_whole_and_before_anything_of_it() {
    let mut s = session();
    assert!(!s.cancel_waiting());
    s.feed(query("SELECT who /*c=1 n=9*/"));
    assert!(s.cancel_waiting());
    assert_eq!(answers(&mut s, vec![]), "E:57014 ZI");
    let group = [parse("", "INSERT x /*c=1 n=4*/"), bind("", "", &[]), execute("", 0)];
    group.into_iter().for_each(|m| s.feed(m));
    assert!(s.cancel_waiting());
    assert_eq!(answers(&mut s, vec![]), "E:57014");
    assert!(!s.cancel_waiting(), "it was told already");
    assert_eq!(answers(&mut s, vec![parse("", "SELECT who /*c=1 n=5*/"), sync()]), "ZI");
    answers(&mut s, vec![query("BEGIN /*c=1 n=6*/")]);
    s.feed(query("SELECT who /*c=1 n=7*/"));
    assert!(!s.cancel_waiting(), "a transaction has its server");
}

#[test]
fn the_observer_learns_whose_statements_run_and_which_have_no_owner() {
    let mut s = session();
    answers(&mut s, vec![query("BEGIN /*c=3 n=1*/"), query("SELECT 1"), query("garbage")]);
    let notes = s.take_notes();
    assert!(matches!(&notes[0], Note::Runs(tag) if tag.client == Some(3)));
    assert!(matches!(&notes[1], Note::Hidden { bound: true, .. }));
    assert!(matches!(&notes[2], Note::NotUnderstood(text) if text == "garbage"));
    answers(&mut s, vec![query("ROLLBACK"), query("COPY t FROM STDIN /*c=3 n=4*/"), copy_data(b"c=4 n=4 ")]);
    assert!(s.take_notes().iter().any(|note| matches!(note, Note::ForeignCopyData { .. })));
}
