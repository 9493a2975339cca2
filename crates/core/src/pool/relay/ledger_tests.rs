//! The ledger against PostgreSQL's rules, and against itself under every interleaving of sending and answering.

use proptest::prelude::*;
use slotmap::SlotMap;

use super::*;

fn client() -> ClientId {
    let mut map: SlotMap<ClientId, ()> = SlotMap::with_key();
    map.insert(())
}

fn entry(kind: Kind) -> Entry {
    Entry::new(Owner::Client(client()), kind)
}

fn push(ledger: &mut Ledger, kinds: &[Kind]) -> Vec<Concluded> {
    let mut settled = Vec::new();
    for &kind in kinds {
        ledger.push(entry(kind));
        settled.extend(drain(ledger));
    }
    settled
}

fn drain(ledger: &mut Ledger) -> Vec<Concluded> {
    std::iter::from_fn(|| ledger.conclude()).collect()
}

fn feed(ledger: &mut Ledger, tags: &[u8]) -> Vec<Concluded> {
    let mut settled = Vec::new();
    for &message in tags {
        ledger.accept(message).expect("the script is what a server would send");
        settled.extend(drain(ledger));
    }
    settled
}

#[test]
fn simple_query_ends_at_ready() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Query]);
    feed(&mut ledger, b"TDDC");
    assert!(!ledger.is_at_rest());
    feed(&mut ledger, b"Z");
    assert!(ledger.is_at_rest());
}

/// A client may send the data of a COPY, its end, and the beginning of another group before the server says that it copies.
#[test]
fn a_group_behind_a_copy_is_open_although_the_copys_own_has_ended() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Parse, Kind::Bind, Kind::Execute, Kind::CopyEnd, Kind::Sync, Kind::Bind]);
    feed(&mut ledger, b"12G");
    assert!(!ledger.is_between_groups());
    feed(&mut ledger, b"CZ2");
    assert!(ledger.is_empty() && !ledger.is_at_rest());
    push(&mut ledger, &[Kind::Execute, Kind::Sync]);
    assert!(ledger.is_between_groups());
    feed(&mut ledger, b"CZ");
    assert!(ledger.is_at_rest());
}

#[test]
fn an_open_group_is_not_at_rest_although_nothing_is_owed() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Parse, Kind::Bind, Kind::Execute]);
    feed(&mut ledger, b"12DC");
    assert!(ledger.is_empty());
    assert!(!ledger.is_at_rest(), "the Sync is still to come");
    push(&mut ledger, &[Kind::Sync]);
    feed(&mut ledger, b"Z");
    assert!(ledger.is_at_rest());
}

#[test]
fn an_error_skips_to_the_next_sync_only() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Parse, Kind::Bind, Kind::Execute, Kind::Sync, Kind::Parse, Kind::Sync]);
    let settled = feed(&mut ledger, b"1E");
    assert_eq!(settled, vec![Concluded::Skipped(entry(Kind::Execute))]);
    feed(&mut ledger, b"Z1Z");
    assert!(ledger.is_at_rest());
}

#[test]
fn messages_sent_after_the_error_was_seen_are_ignored_until_sync() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Parse]);
    feed(&mut ledger, b"E");
    assert_eq!(ledger.push(entry(Kind::Bind)), Pushed::Ignored);
    assert_eq!(ledger.push(entry(Kind::Query)), Pushed::Ignored, "even a Query: ignore_till_sync");
    assert_eq!(ledger.push(entry(Kind::Local(Local::ParseComplete))), Pushed::Ignored);
    assert!(!ledger.is_at_rest());
    assert_eq!(ledger.push(entry(Kind::Sync)), Pushed::Queued);
    feed(&mut ledger, b"Z");
    assert!(ledger.is_at_rest());
}

#[test]
fn a_local_answer_waits_for_its_turn() {
    let mut ledger = Ledger::default();
    let settled = push(&mut ledger, &[Kind::Execute, Kind::Local(Local::CloseComplete), Kind::Sync]);
    assert!(settled.is_empty());
    let settled = feed(&mut ledger, b"C");
    let local = Local::CloseComplete;
    assert_eq!(settled, vec![Concluded::Answer(entry(Kind::Local(local)), local)]);
    feed(&mut ledger, b"Z");
    assert!(ledger.is_at_rest());
}

#[test]
fn a_local_answer_is_given_at_once_when_nothing_is_owed() {
    let mut ledger = Ledger::default();
    assert_eq!(push(&mut ledger, &[Kind::Local(Local::ParseComplete)]).len(), 1);
}

#[test]
fn copy_in_by_simple_query() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Query]);
    feed(&mut ledger, b"G");
    assert!(ledger.is_copying_in());
    push(&mut ledger, &[Kind::CopyEnd]);
    assert!(!ledger.is_copying_in());
    feed(&mut ledger, b"CZ");
    assert!(ledger.is_at_rest());
}

#[test]
fn sync_before_the_copy_data_is_ignored_and_the_one_after_counts() {
    // libpq: Parse Bind Describe Execute Sync, then CopyData.., CopyDone, Sync.
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Parse, Kind::Bind, Kind::DescribePortal, Kind::Execute, Kind::Sync]);
    feed(&mut ledger, b"12nG");
    assert!(ledger.is_copying_in());
    push(&mut ledger, &[Kind::CopyEnd, Kind::Sync]);
    feed(&mut ledger, b"CZ");
    assert!(ledger.is_at_rest());
}

#[test]
fn copy_in_sent_in_one_go() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Parse, Kind::Bind, Kind::Execute, Kind::CopyEnd, Kind::Sync]);
    feed(&mut ledger, b"12GCZ");
    assert!(ledger.is_at_rest());
}

#[test]
fn copy_in_that_fails_midway_ignores_the_late_end() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Query]);
    feed(&mut ledger, b"GE");
    push(&mut ledger, &[Kind::CopyEnd]);
    feed(&mut ledger, b"Z");
    assert!(ledger.is_at_rest());
}

/// The receivers of the answers: `c` a client, `-` none; and at the end whether the server rests.
fn told(ledger: &mut Ledger, messages: &[u8]) -> (String, bool) {
    let mut told = String::new();
    for message in messages {
        let accepted = ledger.accept(*message).expect("it was due");
        told.push(if matches!(accepted.owner, Owner::Client(_)) { 'c' } else { '-' });
        while ledger.conclude().is_some() {}
        if ledger.needs_fence() {
            assert!(!ledger.is_at_rest());
            ledger.push(Entry::new(Owner::Hidden(Purpose::Fence), Kind::Query));
        }
    }
    (told, ledger.is_at_rest())
}

#[test]
fn a_sync_inside_of_a_copy_is_answered_where_the_copy_failed_before_it_was_read() {
    for (sent_before, answered) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let mut ledger = Ledger::default();
        push(&mut ledger, &[Kind::Query]);
        if sent_before {
            push(&mut ledger, &[Kind::Sync]);
        }
        feed(&mut ledger, b"G");
        if !sent_before {
            push(&mut ledger, &[Kind::Sync]);
        }
        // The COPY's own, and that of the Sync; the last two are the fence's.
        let (answers, due): (&[u8], &str) =
            if answered == 0 { (b"EZIZ", "cc--") } else { (b"EZZIZ", "ccc--") };
        assert_eq!(told(&mut ledger, answers), (due.to_owned(), true), "{sent_before} {answered}");
    }
}

#[test]
fn the_next_statement_tells_as_well_how_many_syncs_were_answered() {
    for (answers, due) in [(&b"EZCZ"[..], "cccc"), (b"EZZCZ", "ccccc"), (b"EZZEZ", "ccccc")] {
        let mut ledger = Ledger::default();
        push(&mut ledger, &[Kind::Query]);
        feed(&mut ledger, b"G");
        push(&mut ledger, &[Kind::Sync, Kind::CopyEnd, Kind::Query]);
        assert_eq!(told(&mut ledger, answers), (due.to_owned(), true));
    }
}

#[test]
fn a_sync_after_the_next_statement_is_not_inside_of_the_copy() {
    for begun in [false, true] {
        let mut ledger = Ledger::default();
        push(&mut ledger, &[Kind::Query]);
        if begun {
            feed(&mut ledger, b"G");
        }
        push(&mut ledger, &[Kind::Sync, Kind::Query, Kind::Sync]);
        if !begun {
            feed(&mut ledger, b"G");
        }
        assert_eq!(told(&mut ledger, b"EZZGEZZ"), ("ccccccc".to_owned(), false), "{begun}");
        assert_eq!(told(&mut ledger, b"IZ"), ("--".to_owned(), true));
    }
}

#[test]
fn what_is_answered_here_does_not_end_a_copy() {
    for begun in [false, true] {
        let mut ledger = Ledger::default();
        push(&mut ledger, &[Kind::Query]);
        if begun {
            feed(&mut ledger, b"G");
        }
        push(&mut ledger, &[Kind::Local(Local::ParseComplete), Kind::Sync]);
        if !begun {
            feed(&mut ledger, b"G");
        }
        assert!(ledger.is_copying_in(), "{begun}");
        push(&mut ledger, &[Kind::CopyEnd]);
        feed(&mut ledger, b"CZ");
        assert!(ledger.is_empty(), "{begun}: the Sync was ignored");
        push(&mut ledger, &[Kind::Sync]);
        feed(&mut ledger, b"Z");
        assert!(ledger.is_at_rest(), "{begun}");
    }
}

#[test]
fn a_copy_that_succeeds_has_ignored_every_sync_before_its_end() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Query]);
    feed(&mut ledger, b"G");
    push(&mut ledger, &[Kind::Sync, Kind::Sync, Kind::CopyEnd]);
    assert_eq!(told(&mut ledger, b"CZ"), ("cc".to_owned(), true));
    assert!(ledger.accept(b'Z').is_err());
}

#[test]
fn an_extended_copy_that_fails_at_once_ends_with_the_sync_after_it() {
    let parts = [Kind::Parse, Kind::Bind, Kind::Execute, Kind::Sync];
    // A trigger fails before anything is read: the Sync was not ignored.
    let mut ledger = Ledger::default();
    push(&mut ledger, &parts);
    assert_eq!(told(&mut ledger, b"12GEZ"), ("ccccc".to_owned(), true));
    // The data is bad: it was, and the next one counts. The fence shows that there is no other.
    for (answers, due) in [(&b"12GEZIZ"[..], "ccccc--"), (b"12GEZZIZ", "cccccc--")] {
        let mut ledger = Ledger::default();
        push(&mut ledger, &parts);
        told(&mut ledger, &answers[..4]);
        push(&mut ledger, &[Kind::CopyEnd, Kind::Sync]);
        assert_eq!(told(&mut ledger, &answers[4..]), (due[4..].to_owned(), true));
    }
}

#[test]
fn copy_data_for_a_statement_that_is_no_copy_is_nothing() {
    let mut ledger = Ledger::default();
    push(&mut ledger, &[Kind::Query, Kind::CopyEnd, Kind::Query]);
    feed(&mut ledger, b"CZCZ");
    assert!(ledger.is_at_rest());
}

#[test]
fn an_answer_to_no_question_is_an_error() {
    let mut ledger = Ledger::default();
    assert!(ledger.accept(b'Z').is_err());
    push(&mut ledger, &[Kind::Bind]);
    assert!(ledger.accept(b'1').is_err());
    assert!(ledger.accept(b'D').is_err());
}

/// A server by the protocol's rules, for groups without COPY: answers the `n`-th message it is sent.
fn answers(kind: Kind, fails: bool, skipping: &mut bool) -> Vec<u8> {
    if *skipping {
        if kind == Kind::Sync {
            *skipping = false;
            return b"Z".to_vec();
        }
        return Vec::new();
    }
    match kind {
        Kind::Query | Kind::FunctionCall if fails => b"EZ".to_vec(),
        Kind::Query => b"TDCZ".to_vec(),
        Kind::FunctionCall => b"VZ".to_vec(),
        Kind::Sync if fails => b"EZ".to_vec(),
        Kind::Sync => b"Z".to_vec(),
        Kind::Local(_) | Kind::CopyEnd => Vec::new(),
        _ if fails || kind == Kind::BindRefused => {
            *skipping = true;
            b"E".to_vec()
        }
        Kind::Parse | Kind::ParseAgain => b"1".to_vec(),
        Kind::Bind | Kind::BindRefused => b"2".to_vec(),
        Kind::DescribeStatement | Kind::DescribeParsed { .. } => b"tT".to_vec(),
        Kind::DescribePortal => b"n".to_vec(),
        Kind::Execute => b"DDC".to_vec(),
        Kind::Close => b"3".to_vec(),
    }
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Query,
        Kind::FunctionCall,
        Kind::Parse,
        Kind::Bind,
        Kind::BindRefused,
        Kind::DescribeStatement,
        Kind::DescribeParsed { own: true },
        Kind::DescribePortal,
        Kind::Execute,
        Kind::Close,
        Kind::Sync,
        Kind::Local(Local::ParseComplete),
        Kind::CopyEnd,
    ])
}

/// The plain way of taking a message has nothing to say that the other one would.
fn take_alike(ledger: &mut Ledger, plain: &mut Ledger, message: u8) -> Result<(), TestCaseError> {
    let accepted = ledger.accept(message);
    prop_assert!(accepted.is_ok(), "unexpected {}", message.escape_ascii());
    let settled = drain(ledger);
    let head = plain.plain_head();
    let ends = head.and_then(|(_, kind)| kind.is_ended_by(message));
    let next = if ends == Some(true) { plain.end_plain() } else { ends.map(|_| head) };
    if let Some(next) = next {
        prop_assert_eq!(next, plain.plain_head());
        prop_assert_eq!(accepted.map(|accepted| accepted.owner), Ok(Owner::Client(client())));
        prop_assert!(settled.is_empty(), "an answer of ours was due: {settled:?}");
    } else {
        prop_assert!(plain.accept(message).is_ok());
        prop_assert_eq!(drain(plain), settled);
    }
    prop_assert_eq!(format!("{plain:?}"), format!("{ledger:?}"));
    Ok(())
}

proptest! {
    /// However sending and answering interleave, every answer finds its entry, each message is answered, skipped or ignored
    /// exactly once, and the ledger is at rest after the last Sync.
    #[test]
    fn every_interleaving_balances(
        script in prop::collection::vec((any_kind(), any::<bool>()), 1..40),
        lags in prop::collection::vec(0usize..6, 40),
    ) {
        let mut ledger = Ledger::default();
        // Takes what it can the plain way.
        let mut plain = Ledger::default();
        let mut skipping = false;
        let mut in_flight: VecDeque<u8> = VecDeque::new();
        let mut lags = lags.into_iter().cycle();
        let script = script.into_iter().chain([(Kind::Sync, false)]);
        for (kind, fails) in script {
            // The server's view and the ledger's view advance apart from each other.
            in_flight.extend(answers(kind, fails, &mut skipping));
            ledger.push(entry(kind));
            let settled = drain(&mut ledger);
            plain.push(entry(kind));
            prop_assert_eq!(drain(&mut plain), settled);
            for _ in 0..lags.next().expect("cycle never ends") {
                let Some(message) = in_flight.pop_front() else { break };
                take_alike(&mut ledger, &mut plain, message)?;
            }
        }
        for message in in_flight {
            take_alike(&mut ledger, &mut plain, message)?;
        }
        prop_assert!(ledger.is_at_rest(), "left over: {:?}", ledger);
    }
}
