//! Answers that are kept until PostgreSQL tells of a change (`follow=wal`): the two connections that follow a database, what they are asked, and what
//! clients are answered.

use crate::listening::{channels, done};
use crate::rig::{End, Rig, be, fe};

const ON: &str =
    "query_cache = on\nquery_cache_user = follower\nmultiplex_depth = 0\n[cache]\nall = follow=wal\n[pgweir]";

/// What the server says that it is.
const NODE: [&str; 5] = ["17", "-5", "6", "false", "read committed"];
/// The number of the table that statements read here.
const TABLE: u32 = 5;

/// A database that is followed, as far as its connections have come.
pub(super) struct Following {
    pub(super) rig: Rig,
    pub(super) monitor: End,
    pub(super) stream: End,
    /// The tables that can be followed, as the catalog's question tells them.
    pub(super) tables: &'static str,
}

/// The steps until the stream begins, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Step {
    Check,
    Definitions,
    Catalog,
    Identify,
    Slot,
    Start,
}

pub(super) const STEPS: [Step; 6] =
    [Step::Check, Step::Definitions, Step::Catalog, Step::Identify, Step::Slot, Step::Start];

/// Returns the answer to the first question, with another value in a column.
pub(super) fn checked(column: usize, value: Option<&str>) -> Vec<u8> {
    let mut row: Vec<Option<&[u8]>> =
        ["150000", "17", "-5", "6", "8192", "10:10:", "logical", "false", "false", "true"]
            .map(|text| Some(text.as_bytes()))
            .into();
    row[column] = value.map(str::as_bytes);
    [be::columns(), be::row_values(&row), be::complete("SELECT 1"), be::ready('I')].concat()
}

pub(super) fn keepalive(position: u64, wants_reply: bool) -> Vec<u8> {
    be::copy_data(&[b"k", &position.to_be_bytes()[..], &[0; 8], &[u8::from(wants_reply)]].concat())
}

/// A transaction that has changed the table, as the stream has it.
pub(super) fn transaction(xid: u32, end: u64) -> Vec<u8> {
    changes(xid, end, &[[b"I", &TABLE.to_be_bytes()[..], b"N\0\0"].concat()])
}

/// A transaction with these messages of the plugin, as the stream has it.
pub(super) fn changes(xid: u32, end: u64, messages: &[Vec<u8>]) -> Vec<u8> {
    let data = |body: &[u8]| be::copy_data(&[b"w", &[0; 24][..], body].concat());
    [
        data(&[b"B", &[0; 16][..], &xid.to_be_bytes()].concat()),
        messages.iter().flat_map(|message| data(message)).collect(),
        data(&[b"C", &[0; 9][..], &end.to_be_bytes(), &[0; 8]].concat()),
    ]
    .concat()
}

impl Following {
    /// The connections are opened and logged in.
    pub(super) fn dialed(main: &str) -> Following {
        let mut rig = Rig::new(&format!("{ON}\n{main}"));
        rig.pass_us(400_000);
        let (monitor, stream) = (rig.dialed(), rig.dialed());
        assert!(!rig.connect(monitor).contains("replication"));
        assert!(rig.connect(stream).contains("replication"));
        for end in [monitor, stream] {
            rig.send(end, &crate::rig::greeting());
        }
        Following { rig, monitor, stream, tables: "5,6" }
    }

    /// The connections have taken the steps before this one: its question is asked.
    pub(super) fn before(step: Step, main: &str) -> Following {
        let mut known = Following::dialed(main);
        STEPS.into_iter().filter(|done| *done < step).for_each(|done| known.take(done));
        known.expects(step);
        known
    }

    fn expects(&mut self, step: Step) {
        let (end, part) = match step {
            Step::Check => (self.monitor, "server_version_num"),
            Step::Definitions => (self.monitor, "PREPARE pgweir_definitions"),
            Step::Catalog => (self.monitor, "string_agg"),
            Step::Identify => (self.stream, "pg_control_system"),
            Step::Slot => (self.stream, "TEMPORARY LOGICAL pgoutput"),
            Step::Start => (self.stream, "START_REPLICATION SLOT"),
        };
        self.gets(end, part);
    }

    /// The end gets a question with this part.
    pub(super) fn gets(&mut self, end: End, part: &str) {
        let bytes = self.rig.raw(end);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains(part), "{part}: {text}");
    }

    pub(super) fn answer(&mut self, step: Step) {
        self.answer_as(step, &NODE);
    }

    /// The same of a server that says this of itself.
    fn answer_as(&mut self, step: Step, node: &[&str]) {
        let catalog = [Some(self.tables.as_bytes()), None, None, None];
        let (end, answer) = match step {
            Step::Check => (self.monitor, checked(1, Some(node[0]))),
            Step::Definitions => (self.monitor, definitions(["1", "2", "3"])),
            Step::Catalog => (
                self.monitor,
                [be::columns(), be::row_values(&catalog), be::complete("SELECT 1"), be::ready('I')].concat(),
            ),
            Step::Identify => (self.stream, be::answer(&[node])),
            Step::Slot => (self.stream, be::answer(&[&["slot", "0/100", "", ""]])),
            Step::Start => (self.stream, be::copy_both()),
        };
        self.rig.send(end, &answer);
    }

    pub(super) fn take(&mut self, step: Step) {
        self.take_as(step, &NODE);
    }

    /// The same at a server that says this of itself.
    pub(super) fn take_as(&mut self, step: Step, node: &[&str]) {
        self.expects(step);
        self.answer_as(step, node);
    }

    /// The monitor gets a probe, and answers it. The stream is read up to its position.
    pub(super) fn probed(&mut self, snapshot: &str, position: u64) {
        self.gets(self.monitor, "pg_current_snapshot");
        self.rig.send(self.monitor, &probe(snapshot, position));
        self.rig.send(self.stream, &keepalive(position, false));
    }

    /// Answers the question for spilled bytes if the monitor gets it: none are.
    pub(super) fn spills_nothing(&mut self) {
        if String::from_utf8_lossy(&self.rig.raw(self.monitor)).contains("spill_bytes") {
            self.rig.send(self.monitor, &be::answer(&[&["0", "10:10:"]]));
        }
    }

    /// The monitor gets the probe that has a number of its own, which goes ahead of the wait for transactions, and answers it.
    pub(super) fn marked(&mut self, snapshot: &str, position: u64) {
        self.gets(self.monitor, "pg_logical_emit_message");
        self.rig.send(self.monitor, &probe(snapshot, position));
    }

    /// Changes are followed, and answers may be kept.
    pub(super) fn opened(main: &str) -> Following {
        Following::opened_with(main, "5,6")
    }

    /// The same, with these tables.
    pub(super) fn opened_with(main: &str, tables: &'static str) -> Following {
        let mut known = Following { tables, ..Following::dialed(main) };
        STEPS.into_iter().for_each(|step| known.take(step));
        known.marked("10:10:", 0x100);
        known.probed("10:10:", 0x100);
        known.rig.gets(known.stream);
        known.rig.pass_us(10);
        known
    }

    /// A client with its server, which is the one whose changes are followed.
    pub(super) fn client(&mut self) -> (End, End) {
        let client = self.rig.client("alice");
        let server = self.rig.dialed();
        self.tells_node(server, &NODE);
        (client, server)
    }

    /// A server that has logged in is asked what it is.
    pub(super) fn tells_node(&mut self, server: End, node: &[&str]) {
        self.gets(server, "pg_control_system");
        self.rig.send(server, &be::answer(&[node]));
    }

    /// The row of SHOW CACHE.
    pub(super) fn shown(&mut self) -> String {
        let console = self.rig.console();
        let rows = self.rig.command(console, "SHOW CACHE");
        rows.into_iter().find(|row| row.starts_with("Row app,")).unwrap_or_default()
    }

    /// The client's statement runs on the server.
    pub(super) fn runs(&mut self, (client, server): (End, End), text: &str, value: &str) {
        self.rig.pass_us(10);
        self.rig.send(client, &fe::query(text));
        assert_eq!(self.rig.gets(server), [format!("Query {text}")]);
        self.rig.send(server, &super::cache::rows(value));
        assert_eq!(self.rig.gets(client)[1], format!("Row {value}"));
    }

    /// The server is asked for the tables of the statement that it has just run.
    pub(super) fn tells_tables(&mut self, server: End, tables: &str) {
        self.tells_reads(server, tables, "{}");
    }

    /// The same, with the types of the statement's parameters.
    pub(super) fn tells_reads(&mut self, server: End, tables: &str, types: &str) {
        self.gets(server, "pg_lock_status");
        self.answers_reads(server, tables, types);
    }

    /// The server answers the question for the tables of a statement.
    pub(super) fn answers_reads(&mut self, server: End, tables: &str, types: &str) {
        let answer = [
            be::complete("BEGIN"),
            be::complete("SET"),
            be::complete("SET"),
            be::ready('T'),
            be::parse_complete(),
            be::close_complete(),
            be::parse_complete(),
            be::bind_complete(),
            be::row_values(&[Some(b"false"), Some(tables.as_bytes()), Some(types.as_bytes())]),
            be::complete("SELECT 1"),
            be::close_complete(),
            be::close_complete(),
            be::ready('T'),
            be::complete("ROLLBACK"),
            be::ready('I'),
            be::close_complete(),
            be::ready('I'),
        ];
        self.rig.send(server, &answer.concat());
    }

    /// A statement is executed until its answer is kept.
    pub(super) fn kept(&mut self, (client, server): (End, End), text: &str) {
        self.runs((client, server), text, "a");
        self.runs((client, server), text, "a");
        self.tells_tables(server, "5");
        self.runs((client, server), text, "a");
    }

    /// The client asks. A probe that is sent after its last answer confirms that no table has changed, and the client is answered.
    pub(super) fn is_hit(&mut self, client: End, text: &str, snapshot: &str, position: u64) {
        self.rig.pass_us(10);
        self.rig.send(client, &fe::query(text));
        self.rig.gets_nothing(client);
        self.probed(snapshot, position);
        assert_eq!(self.rig.gets(client)[1], "Row a");
    }
}

pub(super) fn definitions(sums: [&str; 3]) -> Vec<u8> {
    be::answer(&[&sums])
}

pub(super) fn probe(snapshot: &str, position: u64) -> Vec<u8> {
    be::answer(&[&[snapshot, &format!("0/{position:X}"), "17"]])
}

#[test]
fn an_answer_is_given_until_its_table_changes() {
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.kept((client, server), "select a from t");
    known.is_hit(client, "select a from t", "10:10:", 0x200);
    // Without another answer of a server, the last probe is new enough.
    known.rig.send(client, &fe::query("select a from t"));
    assert_eq!(known.rig.gets(client)[1], "Row a");
    known.rig.gets_nothing(server);
    known.rig.send(known.stream, &transaction(10, 0x300));
    known.runs((client, server), "select a from t", "b");
}

#[test]
fn a_client_does_not_wait_longer_than_20_ms() {
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.kept((client, server), "select a from t");
    known.rig.send(client, &fe::query("select a from t"));
    known.gets(known.monitor, "pg_current_snapshot");
    known.rig.pass_us(19_000);
    known.rig.gets_nothing(server);
    known.rig.pass_us(1_500);
    assert_eq!(known.rig.gets(server), ["Query select a from t"]);
}

/// A change of rows is told by the stream. Of the others no answer tells what they have changed.
#[test]
fn a_client_is_shown_the_definitions_that_it_may_have_changed() {
    for (text, tag, is_plain) in [
        ("insert into u values (1)", "INSERT 0 1", true),
        ("do 'begin end'", "DO", false),
        ("call p()", "CALL", false),
        ("explain analyze select a from t", "EXPLAIN", false),
        ("commit prepared 'x'", "COMMIT PREPARED", false),
    ] {
        let mut known = Following::opened("");
        let (client, server) = known.client();
        known.kept((client, server), "select a from t");
        known.rig.pass_us(10);
        known.rig.send(client, &fe::query(text));
        known.gets(server, text);
        known.rig.send(server, &[be::complete(tag), be::ready('I')].concat());
        known.rig.gets_raw(client);
        if !known.rig.raw(server).is_empty() {
            // It was asked what its session holds.
            known.rig.send(server, &be::answer(&[]));
        }
        if is_plain {
            known.is_hit(client, "select a from t", "10:10:", 0x200);
        } else {
            known.rig.send(client, &fe::query("select a from t"));
            known.gets(server, "select a from t");
        }
    }
}

#[test]
fn a_client_that_waits_for_a_probe_is_not_read_without_end() {
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.kept((client, server), "select a from t");
    let long = fe::query(&format!("select '{}'", "x".repeat(100_000)));
    known.rig.send(client, &[fe::query("select a from t"), long].concat());
    assert!(known.rig.is_paused(client));
    known.probed("10:10:", 0x200);
    assert_eq!(known.rig.gets(client)[1], "Row a");
    known.gets(server, "select 'xxx");
    assert!(!known.rig.is_paused(client));
}

#[test]
fn probes_are_sent_as_often_as_is_set_while_clients_ask() {
    let mut known = Following::opened("query_cache_probe_ms = 50");
    let (client, server) = known.client();
    known.rig.pass_us(200_000);
    known.rig.gets_nothing(known.monitor);
    known.kept((client, server), "select a from t");
    known.probed("10:10:", 0x200);
    known.runs((client, server), "select b from t", "a");
    known.rig.pass_us(45_000);
    known.rig.gets_nothing(known.monitor);
    known.rig.pass_us(10_000);
    known.probed("10:10:", 0x300);
}

#[test]
fn a_transaction_that_is_not_visible_yet_keeps_answers_out() {
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.kept((client, server), "select a from t");
    // It is received before it is visible: the server's answer still lacks it.
    known.rig.send(known.stream, &transaction(10, 0x300));
    known.runs((client, server), "select a from t", "a");
    known.rig.pass_us(20_000);
    known.probed("10:11:10", 0x310);
    known.runs((client, server), "select a from t", "a");
    known.runs((client, server), "select a from t", "b");
    assert!(known.shown().contains(",following,"), "{}", known.shown());
    // The next probe shows it: what is sent from then on is kept.
    known.rig.pass_us(20_000);
    known.probed("11:11:", 0x320);
    known.runs((client, server), "select a from t", "a");
    known.is_hit(client, "select a from t", "11:11:", 0x330);
}

#[test]
fn a_change_through_the_pooler_has_definitions_looked_at_before_answers_are_kept() {
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.kept((client, server), "select a from t");
    known.rig.send(client, &fe::query("alter table t rename to u"));
    known.rig.gets(server);
    known.rig.send(server, &[be::complete("ALTER TABLE"), be::ready('I')].concat());
    known.rig.gets(client);
    known.rig.gets(known.monitor);
    // Neither the kept answer is given, nor is a new one kept under the tables of before.
    known.runs((client, server), "select a from t", "b");
    known.runs((client, server), "select a from t", "b");
    known.rig.pass_us(150_000);
    known.runs((client, server), "select a from t", "b");
    known.gets(known.monitor, "EXECUTE pgweir_definitions");
    known.rig.send(known.monitor, &definitions(["1", "8", "3"]));
    known.gets(known.monitor, "string_agg");
    known.answer(Step::Catalog);
    known.probed("10:10:", 0x280);
    // The statement is analysed again.
    known.kept((client, server), "select a from t");
    known.is_hit(client, "select a from t", "10:10:", 0x300);
}

#[test]
fn a_server_of_another_postgresql_closes_the_cache() {
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.kept((client, server), "select a from t");
    let other = known.rig.client("bob");
    let theirs = known.rig.dialed();
    known.tells_node(theirs, &["18", "-5", "6", "false", "read committed"]);
    assert!(known.rig.is_closed(known.monitor) && known.rig.is_closed(known.stream));
    known.runs((client, server), "select a from t", "b");
    known.runs((other, theirs), "select a from t", "c");
    assert!(known.shown().contains("different PostgreSQL servers"), "{}", known.shown());
}

#[test]
fn a_server_whose_transactions_begin_as_serializable_fills_nothing() {
    let mut known = Following::opened("");
    let client = known.rig.client("alice");
    let server = known.rig.dialed();
    known.tells_node(server, &["17", "-5", "6", "false", "serializable"]);
    for _ in 0..4 {
        known.runs((client, server), "select a from t", "a");
        known.rig.gets_nothing(server);
    }
    assert!(known.shown().contains(",following,"), "other servers are not: {}", known.shown());
}

#[test]
fn settings_that_change_close_servers_that_have_logged_in_before() {
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.runs((client, server), "select a from t", "a");
    known.rig.gets(known.monitor);
    known.rig.pass_us(1_100_000);
    known.gets(known.monitor, "EXECUTE pgweir_definitions");
    known.rig.send(known.monitor, &definitions(["1", "2", "4"]));
    assert!(known.rig.is_closed(server));
    assert!(known.shown().contains(",opening,"), "{}", known.shown());
}

#[test]
fn a_client_does_not_wait_for_an_answer_that_it_could_not_be_given() {
    let mut known = Following::opened("default_pool_size = 2");
    let (client, server) = known.client();
    let late = known.rig.client("alice");
    known.runs((client, server), "select a from t", "a");
    known.runs((client, server), "select a from t", "a");
    known.tells_tables(server, "5");
    known.rig.pass_us(10);
    known.rig.send(client, &fe::query("select a from t"));
    assert_eq!(known.rig.gets(server), ["Query select a from t"]);
    known.rig.pass_us(10);
    known.rig.send(late, &fe::query("select a from t"));
    assert_eq!(known.rig.new_dials(), 1, "the statement was sent before the client came");
}

#[test]
fn a_changed_publication_waits_for_the_transactions_under_way() {
    let mut known = Following::opened("");
    let (_, _) = known.client();
    known.rig.gets(known.monitor);
    known.rig.pass_us(1_100_000);
    known.gets(known.monitor, "EXECUTE pgweir_definitions");
    known.rig.send(known.monitor, &definitions(["9", "2", "3"]));
    known.gets(known.monitor, "string_agg");
    known.answer(Step::Catalog);
    known.marked("10:12:10", 0x300);
    known.probed("10:12:10", 0x300);
    assert!(known.shown().contains("transaction 10"), "{}", known.shown());
    known.rig.pass_us(20_000);
    known.probed("10:13:10,12", 0x300);
    known.rig.pass_us(20_000);
    known.probed("12:13:12", 0x300);
    assert!(known.shown().contains(",following,"), "{}", known.shown());
}

/// A snapshot tells of running transactions only up to the last one that has ended. A transaction that is newer may be committed ahead of the
/// stream's beginning, and not visible yet: then its changes are never sent.
#[test]
fn a_transaction_that_the_first_snapshot_leaves_out_is_waited_for() {
    let mut known = Following::before(Step::Start, "");
    known.answer(Step::Start);
    // Transaction 12 runs. The probe itself is 13.
    known.marked("12:12:", 0x200);
    known.probed("12:14:12", 0x200);
    known.client();
    assert!(known.shown().contains("transaction 12"), "{}", known.shown());
    known.rig.pass_us(20_000);
    known.probed("14:14:", 0x200);
    assert!(known.shown().contains(",following,"), "{}", known.shown());
}

#[test]
fn the_connection_that_listens_is_not_asked_what_it_is() {
    let mut known = Following::opened("");
    let (client, server) = known.client();
    known.rig.send(client, &fe::query("LISTEN a"));
    assert_eq!(known.rig.gets(server), ["Query LISTEN a"]);
    known.rig.send(server, &done("LISTEN"));
    channels(&mut known.rig, server, &["a"]);
    let listens = known.rig.dialed();
    known.rig.greet(listens);
    let asked = known.rig.gets(listens).concat();
    assert!(asked.starts_with("Query LISTEN \"a\";LISTEN"), "{asked}");
}

#[test]
fn databases_that_cannot_be_followed_say_why() {
    for (databases, expected) in
        [("app = host=a,b", "several"), ("* = host=a", "line of the database's own name")]
    {
        let mut rig = Rig::with(&format!("{ON}\n"), databases, 1);
        rig.client("alice");
        rig.dialed();
        rig.pass_s(2);
        assert_eq!(rig.new_dials(), 0, "nothing is followed");
        let console = rig.console();
        let rows = rig.command(console, "SHOW CACHE");
        assert!(rows.iter().any(|row| row.contains(expected) && row.contains(",off,")), "{rows:?}");
    }
}
