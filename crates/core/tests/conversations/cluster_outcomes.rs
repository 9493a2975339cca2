//! `commit_outcome`: what a client is told whose primary is lost behind its COMMIT.

use crate::clusters::{begin_with_primary, begins, says, served};
use crate::rig::{End, Rig, be, fe, greeting};

const MAIN: &str = "server_check_query =";

const CLUSTER: &str = "app = cluster=main\n\
    app_ro = cluster=main dbname=app route=standby\n\
    [clusters]\nmain = nodes=m1,m2 check_user=carol commit_outcome=on down_after_ms=500 primary_max_age_ms=3000 primary_wait=5\n\
    [nodes]\nm1 = host=10.0.0.1\nm2 = host=10.0.0.2\n";

pub(super) const COMMITTED: [&str; 2] = ["Complete COMMIT", "Ready I"];
pub(super) const ROLLED_BACK: [&str; 2] =
    ["ERROR 40001 the transaction was rolled back: the connection to the primary was lost", "Ready I"];
const UNKNOWN: [&str; 2] = [
    "ERROR 08007 the connection to the primary was lost; it is not known whether the transaction was committed",
    "Ready I",
];

pub(super) fn cluster(setting: &str) -> String {
    CLUSTER.replace("commit_outcome=on", &format!("commit_outcome={setting}"))
}

pub(super) struct Stage {
    pub(super) rig: Rig,
    pub(super) watches: [End; 2],
    pub(super) client: End,
    pub(super) server: End,
}

/// What a server got.
pub(super) fn text(rig: &mut Rig, server: End) -> String {
    String::from_utf8_lossy(&rig.raw(server)).into_owned()
}

/// A row of text.
fn row(values: &[Option<&str>], tag: &str, status: char) -> Vec<u8> {
    let values: Vec<Option<&[u8]>> = values.iter().map(|value| value.map(str::as_bytes)).collect();
    [be::columns(), be::row_values(&values), be::complete(tag), be::ready(status)].concat()
}

/// The answer to the question for a number.
pub(super) fn number(xid: Option<&str>, record: Option<&str>) -> Vec<u8> {
    row(&[xid, Some("0/3000050"), record, None], "SELECT 1", 'T')
}

/// The answer of the new primary.
pub(super) fn outcome(status: Option<&str>, recovered: Option<&str>, run: (&str, &str)) -> Vec<u8> {
    row(&[status, recovered, Some(run.0), Some("7000000000000000001"), Some(run.1)], "SELECT 1", 'I')
}

/// The run of the second node behind its promotion.
pub(super) const PROMOTED: (&str, &str) = ("00000002", "2");

impl Stage {
    /// A client in a transaction that has changed something, and was asked for.
    fn changed(answer: &[u8]) -> Stage {
        let mut stage = Stage::begun();
        stage.changes(answer);
        stage
    }

    /// The client changes something, and was asked for.
    fn changes(&mut self, answer: &[u8]) {
        self.rig.send(self.client, &fe::query("insert into t values (1)"));
        let asked = text(&mut self.rig, self.server);
        assert!(asked.contains("insert into t values (1)\0Q"), "{asked}");
        assert!(asked.matches("txid_current_if_assigned").count() > 0, "{asked}");
        let told = [&be::complete("INSERT 0 1")[..], &be::ready('T'), answer].concat();
        self.rig.send(self.server, &told);
        assert_eq!(self.rig.gets(self.client), ["Complete INSERT 0 1", "Ready T"]);
    }

    fn begun() -> Stage {
        Stage::begun_with("on")
    }

    /// The same with this `commit_outcome`.
    pub(super) fn begun_with(setting: &str) -> Stage {
        Stage::of("", setting)
    }

    /// The same with these settings of the pooler, too.
    pub(super) fn of(main: &str, setting: &str) -> Stage {
        let mut rig = Rig::with(&format!("{MAIN}\n{main}"), &cluster(setting), 1);
        let watches = begin_with_primary(&mut rig);
        let (client, server) = served(&mut rig);
        begins(&mut rig, (client, server));
        Stage { rig, watches, client, server }
    }

    /// COMMIT is sent, and the primary is lost.
    pub(super) fn loses(&mut self, commit: &[u8]) {
        self.rig.send(self.client, commit);
        self.rig.gets_raw(self.server);
        self.rig.eof(self.server);
    }

    /// The second node is promoted, and a server of it is asked.
    pub(super) fn asks(&mut self) -> End {
        self.rig.gets_nothing(self.client);
        self.fails_over();
        self.is_asked()
    }

    fn fails_over(&mut self) {
        self.rig.eof(self.watches[0]);
        for _ in 0..8 {
            self.rig.pass_us(100_000);
            while self.rig.new_dials() > 0 {
                let again = self.rig.dialed();
                if self.rig.endpoint(again) == "10.0.0.1:5432" {
                    self.rig.refuse_dial(again, "connection refused");
                    continue;
                }
                // It is asked on a new connection, as one to the primary failed.
                self.watches[1] = again;
                self.rig.connect(again);
                self.rig.send(again, &greeting());
            }
        }
        self.rig.gets_loosely(self.watches[1]);
        self.rig.send(self.watches[1], &says(false, 2, 2));
    }

    fn is_asked(&mut self) -> End {
        let server = self.rig.dialed();
        self.rig.greet(server);
        let asked = text(&mut self.rig, server);
        assert!(asked.starts_with('Q') && asked.matches("txid_status('731')").count() == 1, "{asked}");
        self.rig.gets_nothing(self.client);
        server
    }

    pub(super) fn goes_on(&mut self, server: End) {
        self.rig.send(self.client, &fe::query("select 4"));
        assert_eq!(self.rig.gets(server), ["Query select 4"]);
        self.rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
        assert_eq!(self.rig.gets(self.client), ["Complete SELECT 1", "Ready I"]);
    }
}

#[test]
fn the_next_primary_tells_what_became_of_it() {
    // The standby was seen at 0/3000060.
    for (record, status, recovered, told) in [
        ("0/3000058", "committed", "0/3000100", COMMITTED),
        ("0/3000060", "committed", "0/3000060", COMMITTED),
        ("0/3000058", "aborted", "0/3000100", ROLLED_BACK),
        ("0/3000068", "committed", "0/3000060", ROLLED_BACK),
        ("0/3000068", "committed", "0/3000100", UNKNOWN),
    ] {
        let mut stage = Stage::changed(&number(Some("731"), Some(record)));
        stage.loses(&fe::query("commit"));
        let server = stage.asks();
        stage.rig.send(server, &outcome(Some(status), Some(recovered), PROMOTED));
        assert_eq!(stage.rig.gets(stage.client), told, "{record} {status} {recovered}");
        stage.goes_on(server);
    }
}

#[test]
fn the_time_of_its_transaction_is_not_held_against_a_commit() {
    let mut stage = Stage::of("query_timeout = 2", "on");
    for _ in 0..6 {
        stage.rig.pass_us(500_000);
        for (watch, answer) in stage.watches.into_iter().zip([says(false, 1, 1), says(true, 1, 2)]) {
            if !stage.rig.raw(watch).is_empty() {
                stage.rig.send(watch, &answer);
            }
        }
    }
    stage.changes(&number(Some("731"), Some("0/3000058")));
    stage.loses(&fe::query("commit"));
    let server = stage.asks();
    stage.rig.send(server, &outcome(Some("committed"), Some("0/3000060"), PROMOTED));
    assert_eq!(stage.rig.gets(stage.client), COMMITTED);
}

#[test]
fn extended_messages_get_their_own_answers() {
    // As libpq binds: all columns of the result in one format.
    for bind in [fe::bind(""), fe::bind_format("", 0), fe::bind_format("", 1)] {
        let mut stage = Stage::changed(&number(Some("731"), Some("0/3000058")));
        stage.loses(&[fe::parse("", "commit"), bind, fe::execute(), fe::sync()].concat());
        let server = stage.asks();
        stage.rig.send(server, &outcome(Some("committed"), Some("0/3000060"), PROMOTED));
        let told = ["ParseComplete", "BindComplete", "Complete COMMIT", "Ready I"];
        assert_eq!(stage.rig.gets(stage.client), told);
        stage.goes_on(server);
    }
}

#[test]
fn a_number_of_the_future_was_rolled_back() {
    let mut stage = Stage::changed(&number(Some("731"), Some("0/3000058")));
    stage.loses(&fe::query("commit"));
    let server = stage.asks();
    let error = be::error("22023", "transaction ID 731 is in the future");
    stage.rig.send(server, &[error, be::ready('I')].concat());
    assert_eq!(stage.rig.gets(stage.client), ROLLED_BACK);
    stage.goes_on(server);
}

/// PostgreSQL has written nothing with the number yet: after the failover it may be another transaction's.
#[test]
fn a_number_without_a_record_proves_no_commit() {
    for (status, told) in [("committed", UNKNOWN), ("aborted", ROLLED_BACK)] {
        let mut stage = Stage::changed(&number(Some("731"), None));
        stage.loses(&fe::query("commit"));
        let server = stage.asks();
        stage.rig.send(server, &outcome(Some(status), Some("0/3000060"), PROMOTED));
        assert_eq!(stage.rig.gets(stage.client), told, "{status}");
    }
}

#[test]
fn the_same_primary_tells_it_too_and_is_asked_until_it_is_over() {
    let mut stage = Stage::changed(&number(Some("731"), Some("0/3000058")));
    stage.loses(&fe::query("commit"));
    let server = stage.is_asked();
    stage.rig.send(server, &outcome(Some("in progress"), None, ("00000001", "1")));
    let again = text(&mut stage.rig, server);
    assert!(again.contains("pg_sleep"), "{again}");
    stage.rig.send(server, &outcome(Some("committed"), None, ("00000001", "1")));
    assert_eq!(stage.rig.gets(stage.client), COMMITTED);
    stage.goes_on(server);
}

#[test]
fn a_server_that_crashed_proves_no_commit() {
    let mut stage = Stage::changed(&number(Some("731"), Some("0/3000058")));
    stage.loses(&fe::query("commit"));
    let server = stage.is_asked();
    stage.rig.send(server, &outcome(Some("committed"), Some("0/3000100"), ("00000001", "1")));
    assert_eq!(stage.rig.gets(stage.client), UNKNOWN);
}

#[test]
fn what_is_lost_while_it_is_asked_is_asked_again() {
    let mut stage = Stage::changed(&number(Some("731"), Some("0/3000058")));
    stage.loses(&fe::query("commit"));
    let server = stage.is_asked();
    stage.rig.eof(server);
    let server = stage.asks();
    stage.rig.send(server, &outcome(Some("committed"), Some("0/3000060"), PROMOTED));
    assert_eq!(stage.rig.gets(stage.client), COMMITTED);
}

#[test]
fn an_older_primary_is_not_believed() {
    let mut stage = Stage::changed(&number(Some("731"), Some("0/3000058")));
    stage.loses(&fe::query("commit"));
    let old = stage.is_asked();
    stage.rig.pass_us(1_000_000);
    stage.rig.send(stage.watches[0], &says(true, 1, 1));
    stage.rig.send(stage.watches[1], &says(false, 2, 2));
    assert!(stage.rig.is_closed(old), "it is not listened to any more");
    stage.rig.gets_nothing(stage.client);
    let server = stage.is_asked();
    stage.rig.send(server, &outcome(Some("aborted"), Some("0/3000060"), PROMOTED));
    assert_eq!(stage.rig.gets(stage.client), ROLLED_BACK);
}

#[test]
fn a_primary_of_which_nothing_is_heard_is_not_believed() {
    let mut stage = Stage::changed(&number(Some("731"), Some("0/3000058")));
    stage.loses(&fe::query("commit"));
    let asked = stage.is_asked();
    stage.rig.eof(stage.watches[0]);
    stage.rig.pass_us(4_000_000);
    assert!(!stage.rig.is_closed(asked));
    stage.rig.send(asked, &outcome(Some("committed"), None, ("00000001", "1")));
    stage.rig.gets_nothing(stage.client);
}

#[test]
fn without_a_number_it_is_not_known() {
    for answer in [Vec::new(), number(None, None)] {
        let mut stage = Stage::changed(&answer);
        stage.loses(&fe::query("commit"));
        assert_eq!(stage.rig.gets(stage.client), UNKNOWN);
    }
}

#[test]
fn a_transaction_without_a_number_may_have_done_something_else() {
    let mut stage = Stage::changed(&number(None, None));
    stage.rig.send(stage.client, &fe::query("commit"));
    assert_eq!(stage.rig.gets(stage.server), ["Query commit"]);
    stage.rig.eof(stage.server);
    assert_eq!(stage.rig.gets(stage.client), UNKNOWN);
}

/// So many questions are under way that none goes behind the last change.
#[test]
fn answers_say_nothing_of_a_change_behind_their_questions() {
    let mut stage = Stage::begun();
    for _ in 0..3 {
        stage.rig.send(stage.client, &fe::query("insert into t values (1)"));
    }
    let asked = text(&mut stage.rig, stage.server);
    assert_eq!(asked.matches("pg_current_wal_insert_lsn").count(), 2, "{asked}");
    let told = [be::complete("INSERT 0 1"), be::ready('T')].concat();
    stage
        .rig
        .send(stage.server, &[&told[..], &number(None, None), &told, &number(None, None), &told].concat());
    stage.rig.gets_raw(stage.client);
    stage.rig.send(stage.client, &fe::query("commit"));
    let asked = text(&mut stage.rig, stage.server);
    assert!(asked.contains("txid_current_if_assigned") && asked.ends_with("commit\0"), "{asked}");
    stage.rig.send(stage.server, &number(Some("731"), Some("0/3000058")));
    stage.rig.eof(stage.server);
    let server = stage.asks();
    stage.rig.send(server, &outcome(Some("committed"), Some("0/3000060"), PROMOTED));
    assert_eq!(stage.rig.gets(stage.client), COMMITTED);
}

#[test]
fn an_answer_with_no_number_says_nothing_of_a_question_that_is_not_answered() {
    let mut stage = Stage::begun();
    for _ in 0..2 {
        stage.rig.send(stage.client, &fe::query("insert into t values (1)"));
    }
    let asked = text(&mut stage.rig, stage.server);
    assert_eq!(asked.matches("pg_current_wal_insert_lsn").count(), 2, "{asked}");
    let told = [be::complete("INSERT 0 1"), be::ready('T')].concat();
    stage.rig.send(stage.server, &[&told[..], &number(None, None), &told].concat());
    stage.rig.gets_raw(stage.client);
    stage.loses(&fe::query("commit"));
    assert_eq!(stage.rig.gets(stage.client), UNKNOWN);
    assert!(stage.rig.logged("COMMIT was sent before the number of the transaction was known"));
}

#[test]
fn a_transaction_that_only_read_is_committed() {
    let mut stage = Stage::begun();
    stage.rig.send(stage.client, &fe::query("select a from t"));
    assert_eq!(stage.rig.gets(stage.server), ["Query select a from t"]);
    stage.rig.send(stage.server, &[be::complete("SELECT 0"), be::ready('T')].concat());
    stage.rig.gets_raw(stage.client);
    stage.loses(&fe::query("commit"));
    assert_eq!(stage.rig.gets(stage.client), COMMITTED);
}

/// A standby has nothing to commit. If it was promoted, it may have, and no view may say so yet.
#[test]
fn a_server_of_a_standby_that_was_promoted_may_have_something_to_commit() {
    for (promoted, reconnects, told) in
        [(false, false, COMMITTED), (false, true, COMMITTED), (true, false, UNKNOWN), (true, true, UNKNOWN)]
    {
        let mut rig = Rig::with(MAIN, CLUSTER, 1);
        begin_with_primary(&mut rig);
        let client = rig.knock("alice", "app_ro");
        let server = rig.dialed();
        rig.connect(server);
        let (role, greeting, auth) = (be::parameter("in_hot_standby", "on"), greeting(), be::auth_ok());
        rig.send(server, &[&auth[..], &role, &greeting[auth.len()..]].concat());
        rig.gets_raw(client);
        for (text, tag) in [("begin", "BEGIN"), ("insert into t values (1)", "INSERT 0 1")] {
            rig.send(client, &fe::query(text));
            assert_eq!(rig.gets(server), [format!("Query {text}")]);
            let is_told = promoted && text == "begin";
            let role = if is_told { be::parameter("in_hot_standby", "off") } else { Vec::new() };
            rig.send(server, &[be::complete(tag), role, be::ready('T')].concat());
            rig.gets_raw(client);
        }
        if reconnects {
            // The server is to be closed when its transaction is over.
            let console = rig.console();
            rig.command(console, "RECONNECT");
        }
        rig.send(client, &fe::query("commit"));
        rig.gets_raw(server);
        rig.eof(server);
        assert_eq!(rig.gets(client), told, "promoted: {promoted}, reconnects: {reconnects}");
    }
}

#[test]
fn a_client_waits_for_as_long_as_others() {
    let mut stage = Stage::changed(&number(Some("731"), Some("0/3000058")));
    stage.rig.eof(stage.watches[0]);
    stage.loses(&fe::query("commit"));
    for _ in 0..120 {
        stage.rig.pass_us(100_000);
        while stage.rig.new_dials() > 0 {
            let again = stage.rig.dialed();
            stage.rig.refuse_dial(again, "connection refused");
        }
    }
    let told = stage.rig.gets(stage.client);
    assert!(told[0].starts_with("NOTICE"), "it waits: {told:?}");
    assert!(told[1].starts_with("FATAL 08007"), "{told:?}");
    assert!(stage.rig.is_closed(stage.client));
}

#[test]
fn what_is_asked_ahead_of_commit_if_it_was_not_before() {
    let mut stage = Stage::begun();
    let group = [fe::parse("", "insert into t values (1)"), fe::bind(""), fe::execute()].concat();
    stage.rig.send(stage.client, &[group, fe::flush()].concat());
    stage.rig.gets_raw(stage.server);
    let told = [be::parse_complete(), be::bind_complete(), be::complete("INSERT 0 1")].concat();
    stage.rig.send(stage.server, &told);
    stage.rig.send(stage.client, &fe::sync());
    stage.rig.gets_raw(stage.server);
    stage.rig.send(stage.server, &be::ready('T'));
    stage.rig.gets_raw(stage.client);
    stage.rig.send(stage.client, &fe::query("commit"));
    let asked = text(&mut stage.rig, stage.server);
    assert!(asked.contains("txid_current_if_assigned") && asked.ends_with("commit\0"), "{asked}");
    stage.rig.send(stage.server, &number(Some("731"), Some("0/3000058")));
    stage.rig.gets_nothing(stage.client);
    stage.rig.eof(stage.server);
    let server = stage.asks();
    stage.rig.send(server, &outcome(Some("committed"), Some("0/3000060"), PROMOTED));
    assert_eq!(stage.rig.gets(stage.client), COMMITTED);
}

#[test]
fn a_question_that_fails_costs_the_transaction_and_is_asked_no_more() {
    let mut stage = Stage::begun();
    stage.rig.send(stage.client, &fe::query("insert into t values (1)"));
    stage.rig.gets_raw(stage.server);
    let refused = be::error("42501", "permission denied for function pg_logical_emit_message");
    let told = [be::complete("INSERT 0 1"), be::ready('T'), refused, be::ready('E')].concat();
    stage.rig.send(stage.server, &told);
    assert_eq!(stage.rig.gets(stage.client), ["Complete INSERT 0 1", "Ready T"]);
    stage.rig.send(stage.client, &fe::query("commit"));
    assert_eq!(stage.rig.gets(stage.client), ROLLED_BACK);
    stage.rig.send(stage.client, &fe::query("begin"));
    let server = stage.rig.dialed();
    stage.rig.greet(server);
    stage.rig.gets_raw(server);
    stage.rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    stage.rig.send(stage.client, &fe::query("insert into t values (1)"));
    assert_eq!(stage.rig.gets(server), ["Query insert into t values (1)"]);
}

#[test]
fn a_number_is_of_its_own_transaction_if_the_next_ones_first_statement_comes_in_pieces() {
    first_statement_in_pieces(false);
}

#[test]
fn a_client_whose_begin_alone_was_sent_is_not_left_waiting() {
    first_statement_in_pieces(true);
}

fn first_statement_in_pieces(is_lost: bool) {
    let mut rig = Rig::with(&format!("{MAIN}\ndefer_begin = packet"), CLUSTER, 1);
    begin_with_primary(&mut rig);
    let (client, server) = served(&mut rig);
    let begun = [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat();
    let changed = [&begun[..], &be::complete("INSERT 0 1"), &be::ready('T')].concat();
    rig.send(client, &fe::query("begin"));
    rig.gets(client);
    rig.send(client, &fe::query("insert into t values (1)"));
    assert!(text(&mut rig, server).contains("txid_current_if_assigned"));
    rig.send(server, &[&changed[..], &number(Some("731"), Some("0/3000058"))].concat());
    rig.gets(client);
    rig.send(client, &fe::query("rollback"));
    rig.gets_raw(server);
    rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete ROLLBACK", "Ready I"]);
    rig.send(client, &fe::query("begin"));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    let insert = fe::query("insert into t values (2)");
    let (first, rest) = insert.split_at(16);
    rig.send(client, first);
    assert_eq!(rig.gets(server), ["Parse  begin", "Bind ", "Execute"]);
    if is_lost {
        // It waits for no answer to what it has not sent as a whole.
        rig.eof(server);
        assert!(rig.is_closed(client));
        return;
    }
    rig.send(client, rest);
    let asked = text(&mut rig, server);
    assert!(asked.contains("insert into t values (2)"), "{asked}");
    assert!(asked.contains("txid_current_if_assigned"), "{asked}");
}

#[test]
fn a_statement_that_failed_is_asked_nothing_of() {
    let mut stage = Stage::begun();
    stage.rig.send(stage.client, &fe::query("insert into t values (1)"));
    stage.rig.gets_raw(stage.server);
    let failed = [be::error("23505", "duplicate key"), be::ready('E')].concat();
    let aborted = be::error("25P02", "current transaction is aborted");
    stage.rig.send(stage.server, &[failed, aborted, be::ready('E')].concat());
    assert_eq!(stage.rig.gets(stage.client), ["ERROR 23505 duplicate key", "Ready E"]);
    stage.loses(&fe::query("commit"));
    assert_eq!(stage.rig.gets(stage.client), ["Complete ROLLBACK", "Ready I"]);
}

/// A client whose server is reset behind each transaction, so that its session goes ahead of the next one, and that server.
pub(super) fn with_session_ahead(setting: &str) -> (Rig, End, End) {
    let main = "server_check_query =\nserver_reset_query_always = 1\ndefer_begin = off";
    let mut rig = Rig::with(main, &cluster(setting), 1);
    begin_with_primary(&mut rig);
    let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "one")]);
    let server = rig.dialed();
    (rig, client, server)
}

/// The answer to the session in what its server was sent, if it is there.
pub(super) fn replayed_in(sent: &[String]) -> Vec<u8> {
    match sent.len() {
        1 => Vec::new(),
        len => [be::replayed((len - 1) / 3 - 2), be::parameter("application_name", "one")].concat(),
    }
}

/// The server is reset.
pub(super) fn is_reset(rig: &mut Rig, server: End) {
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    let reset = be::parameter("application_name", "");
    rig.send(server, &[reset, be::complete("DISCARD ALL"), be::ready('I')].concat());
}

#[test]
fn a_number_is_of_its_own_transaction_if_the_session_goes_ahead_of_the_next_one() {
    let (mut rig, client, server) = with_session_ahead("on");
    for _ in 0..2 {
        rig.send(client, &fe::query("begin"));
        let replayed = replayed_in(&rig.gets(server));
        rig.send(server, &[replayed, be::complete("BEGIN"), be::ready('T')].concat());
        rig.send(client, &fe::query("insert into t values (1)"));
        let asked = text(&mut rig, server);
        assert_eq!(asked.matches("pg_current_wal_insert_lsn").count(), 1, "{asked}");
        let inserted = [be::complete("INSERT 0 1"), be::ready('T')].concat();
        rig.send(server, &[inserted, number(Some("731"), Some("0/3000058"))].concat());
        rig.send(client, &fe::query("commit"));
        assert_eq!(rig.gets(server), ["Query commit"]);
        rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
        is_reset(&mut rig, server);
        rig.gets_raw(client);
    }
}
