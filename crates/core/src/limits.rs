//! Every limit of the data plane, with its reason. Nothing else in this crate states a number that bounds a peer.

/// The limits at which pgweir changes what it does: it stops reading, or makes a message wait. [`Limits::default`] is what the binary
/// uses. A simulated run draws smaller values, so that it reaches each of these limits: a limit that only production reaches is not
/// tested. A limit that moves here from the constants below is read from `Env::limits`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum number of bytes that a client may have waiting for a server before pgweir stops reading from it: more than
    /// [`HOLD_MESSAGE_BYTES`], because the rest of a message that is held until it is whole must still be read.
    pub inbox_bytes: usize,
    /// The number of bytes queued for one connection above which pgweir stops reading from the connection that they come from.
    pub backlog_bytes: usize,
    /// Maximum number of answers that one server may owe. The messages of a client that pipelines more wait in its inbox until the server
    /// owes half of that.
    pub ledger_entries: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            inbox_bytes: INBOX_BYTES_MAX,
            backlog_bytes: BACKLOG_HIGH_BYTES,
            ledger_entries: LEDGER_ENTRIES_MAX,
        }
    }
}

/// A client's message up to this size is held until it is whole before a server is asked for: a client that sends
/// slowly then does not hold a server while it does so. Larger ones stream.
pub const HOLD_MESSAGE_BYTES: usize = NAMES_BYTES_MAX;

/// The default of [`Limits::inbox_bytes`].
pub const INBOX_BYTES_MAX: usize = 64 * 1024;

/// A message that must be understood as a whole (a named Parse, with the text that is the key of a prepared
/// statement) may be at most this long; SQLSTATE 54000 beyond it.
pub const PARSE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The body of a message that PostgreSQL expects to be small (`PQ_SMALL_MESSAGE_LIMIT`, less the length itself): the connection
/// that sends more ends, with 08P01.
pub const SMALL_BODY_BYTES_MAX: usize = 10_000 - 4;

/// Maximum size of the portal and statement names at the front of Bind, and of Describe and Close as a whole: a name of 16 kB, and the
/// bytes around it.
pub const NAMES_BYTES_MAX: usize = 16 * 1024 + 64;

/// The default of [`Limits::backlog_bytes`].
pub const BACKLOG_HIGH_BYTES: usize = 256 * 1024;

/// The default of [`Limits::ledger_entries`].
pub const LEDGER_ENTRIES_MAX: usize = 16 * 1024;

/// The time after which a login that pgweir has given up, and whose connection broke, has ended in PostgreSQL. PostgreSQL ends a
/// login after `authentication_timeout`, by default 60 s.
pub(crate) const UNCONFIRMED_LOGIN_US: u64 = 75_000_000;

/// The time for which a connection that broke counts towards a shared limit if PostgreSQL can no longer be asked about it, because its
/// database was removed from the configuration. After about 15 minutes Linux ends a connection whose data is not acknowledged.
pub(crate) const UNASKED_CLOSING_US: u64 = 1_000_000_000;

/// The time for which PostgreSQL must not show a process until its connection counts as gone. A process that ends is not shown any more a moment
/// before PostgreSQL counts it off.
pub(crate) const UNSEEN_US: u64 = 100_000;

/// A message of a server that must be understood is read whole up to this size; a larger one ends the
/// connection, unless it is one that can pass in pieces (rows, COPY data, notices and errors for a client).
pub const SERVER_MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// The body of a client's password or SASL message; PostgreSQL's PG_MAX_AUTH_TOKEN_LENGTH is 65535.
pub const PASSWORD_BYTES_MAX: usize = 65_535;

/// A row of `auth_query`: a name and a secret. PgBouncer's longest secret has 65,530 bytes.
pub const LOOKUP_ROW_BYTES_MAX: usize = 66_000;

/// Maximum length of database, user and application names in a startup packet; the packet itself is bounded by the wire crate.
pub const NAME_BYTES_MAX: usize = 63;

/// Maximum length of names in a startup packet that are not identifiers (application_name before PostgreSQL cuts it, option values).
pub const PARAMETER_BYTES_MAX: usize = 8 * 1024;

/// Maximum number of prepared statements of one client; SQLSTATE 54000 beyond it.
pub const CLIENT_STATEMENTS_MAX: usize = 10_000;

/// Maximum size of the names, texts and parameter types of one client's prepared statements together; SQLSTATE 54000 beyond it. One text of
/// the longest kind fits.
pub const CLIENT_STATEMENTS_BYTES_MAX: usize = PARSE_BYTES_MAX;

/// Maximum size of the texts and parameter types of the prepared statements that a pool's clients have prepared, each counted once even if
/// several clients and servers have it; SQLSTATE 54000 beyond it, for a new text.
pub const POOL_STATEMENTS_BYTES_MAX: usize = 4 * PARSE_BYTES_MAX;

/// The size above which a statement that no client has any more is forgotten; servers keep smaller ones for the next client.
pub const KEPT_STATEMENT_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of parameters of a server's greeting that are kept; PostgreSQL 18 reports 15.
pub const GREETING_PARAMETERS_MAX: usize = 64;

/// The maximum time, while clients log in, between two confirmations by a server of the parameters that clients are told.
pub const GREETING_CONFIRMED_US: u64 = 3_000_000;

/// The maximum time that a login waits until a server has confirmed the parameters that the client is told.
pub const GREETING_WAIT_US: u64 = 1_000_000;

/// The time without a free server after which the next free server confirms the parameters before a waiting client gets it.
pub const GREETING_LATE_US: u64 = 10_000_000;

/// Maximum number of PostgreSQL servers (each run of one counts) for which a pool remembers the values with which new connections begin.
pub const GREETING_ORIGINS_MAX: usize = 16;

/// The time between two checks of timeouts and pool sizes.
pub const MAINTENANCE_PERIOD_US: u64 = 333_000;

/// The delay of a check of timeouts from which the process counts as having stood still: it was stopped (SIGSTOP, the freezer of cgroups),
/// or its computer was asleep or moved, or had no memory. The worker then reads for the same time what came in the meantime.
pub const STANDSTILL_US: u64 = 1_000_000;

/// The time between two requests to PostgreSQL to cancel a statement that its client has left running (µs).
pub const CANCEL_AGAIN_US: u64 = 1_000_000;

/// The time after which a statement that its client has left running counts as hanging (µs): pgweir closes the server and counts it no
/// longer, because a hanging backend would otherwise keep its place in a pool.
pub const ABANDONED_US: u64 = 10_000_000;

/// A cancel secret of ours for protocol 3.2 clients; 3.0 clients get 4 bytes, as the protocol says.
pub const CANCEL_KEY_BYTES: usize = 32;

/// Maximum length of one console command; a longer one is refused.
pub const CONSOLE_QUERY_BYTES_MAX: usize = 4096;

/// Maximum number of prepared statements, and of portals, of one console client; SQLSTATE 54000 beyond it.
pub const CONSOLE_STATEMENTS_MAX: usize = 100;

/// Maximum length of a server's error text that is repeated to clients while the server is not asked again.
pub const CACHED_ERROR_BYTES_MAX: usize = 512;

/// Maximum number of sets of parameters that a pool remembers, so that clients and servers that have the same share one object.
pub const KNOWN_PARAMS_MAX: usize = 16;

/// Maximum number of sessions that a pool remembers, so that clients and servers that have the same share one object.
pub const KNOWN_SESSIONS_MAX: usize = 64;

/// Maximum number of settings that a transaction names and that are asked for one by one. With more, the client keeps its server, unless
/// PostgreSQL lists them.
pub const TOUCHED_NAMES_MAX: usize = 64;

/// Maximum number of texts of SET statements that a pool remembers, with their effects; when it is reached, all are forgotten.
pub const KNOWN_SETS_MAX: usize = 512;

/// The longest SET statement that is remembered.
pub const SET_BYTES_MAX: usize = 512;

/// Maximum number of SET statements of one transaction that are kept as texts until it ends; with more, the server is asked.
pub const TOUCHED_SETS_MAX: usize = 8;

/// Maximum number of custom settings (`a.b`), which no list of PostgreSQL shows, that follow a client from server to server. With more, the
/// client keeps its server.
pub const CUSTOM_SETTINGS_MAX: usize = 64;

/// Maximum number of custom settings that the routines of a database are known to set. With more, a client that calls such a routine keeps
/// its server.
pub const ROUTINE_SETTINGS_MAX: usize = 500;

/// The time after login within which the end of an unused server connection is a sign of trouble: after [`STILLBORN_MAX`] such connections
/// in a row the next one must wait.
pub const STILLBORN_US: u64 = 1_000_000;
/// The number of consecutive server connections that end within [`STILLBORN_US`] before the next one must wait.
pub const STILLBORN_MAX: u8 = 3;

/// Maximum number of settings that a pool's user is known to be able to set. PostgreSQL has fewer that a user would set.
pub const SETTABLE_MAX: usize = 256;

/// Maximum length of the name of a setting; a client that names a longer one keeps its server.
pub const CUSTOM_NAME_BYTES_MAX: usize = 128;

/// Maximum size of a session's state (names and values of settings, texts of prepared statements) that can move to another server; with
/// more, the client keeps its server.
pub const SESSION_BYTES_MAX: usize = 256 * 1024;

/// Maximum number of parse contexts (settings under which clients prepare) that a worker distinguishes. With more, the contexts that were
/// not used for longest are forgotten, and statements that were prepared under them are not shared any more.
pub const PARSE_CONTEXTS_MAX: usize = 256;

/// Maximum size of the names and values of a parse context's settings; statements that are prepared under larger ones are not shared.
pub const PARSE_CONTEXT_BYTES_MAX: usize = 8 * 1024;

/// The number of times that a server is asked for the state of its session, or to send a barrier, before its client keeps it.
pub const AUDIT_ATTEMPTS_MAX: u8 = 3;

/// Maximum number of a pool's routines that are known to ask for drawn values; with more, every statement is taken for one that asks. The
/// question for them names this number.
pub const ROUTINES_MAX: usize = 1000;

/// Maximum number of names of a pool's database that are known to lead to code that changes sessions; with more, every statement is taken
/// for one that runs such code. The question for them names this number.
pub const CHANGERS_MAX: usize = 20_000;

/// The time after which the catalog is asked again for names that lead to code that changes sessions (µs): the question reads the bodies of
/// all routines.
pub const CHANGERS_AGE_US: u64 = 600_000_000;

/// The factor by which the pause after a question to the catalog exceeds the time that the question took.
pub const CATALOG_REST: u64 = 3;

/// The maximum pause after a question to the catalog (µs).
pub const CATALOG_REST_US_MAX: u64 = 5_000_000;

/// The time after which the catalog may be asked again for routines that ask for drawn values (µs).
pub const ROUTINES_AGE_US: u64 = 60_000_000;

/// Maximum number of servers that are tried for one request of a client, if they cannot be brought to its session.
pub const REFUSED_SERVERS_MAX: u8 = 3;

/// The number of transactions in which a client draws from a sequence that show whether it asks for the value in a later transaction.
pub const DRAWS_TRIED: u8 = 3;

/// Maximum number of pairs of user and application name of a pool whose clients are known to ask for drawn values in a later transaction.
pub const CURRVAL_CLIENTS_MAX: usize = 256;

/// The number of statements that a server answered last and that are named if its session is found in another state than expected.
pub const RECENT_STATEMENTS: usize = 8;

/// The number of a pool's releases that are checked one by one after a session was found in another state than expected and the statement
/// that caused it could not be identified.
pub const LOOKS_ALERT: u32 = 1_000;

/// Maximum number of statements of a worker's pools that were found to change sessions unseen; with more, the oldest is forgotten.
pub const WATCHED_STATEMENTS_MAX: usize = 256;

/// Maximum number of sets of startup parameters that a pool remembers, with their outcomes.
pub const STARTUP_CHECKS_MAX: usize = 64;

/// Maximum size of the notifications that wait for one client: for the end of its transaction, or because it does not read. SQLSTATE 54000
/// beyond it.
pub const NOTIFICATIONS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum size of the notices of a server's login that are kept for its first client; later ones are dropped.
pub const LOGIN_NOTICES_BYTES_MAX: usize = 8 * 1024;

/// Maximum number of startup parameters that one client may give, besides the tracked ones.
pub const STARTUP_PARAMETERS_MAX: usize = 128;
/// Maximum number of pools in one snapshot for the control plane: with their times they are 10 kB each, so that copying these takes a
/// fraction of a millisecond.
pub const POOLS_SHOWN_MAX: usize = 64;

/// Maximum number of groups of clients with the same database, user, application_name and state that are counted separately in the metrics.
pub const APPLICATION_NAMES_SHOWN_MAX: usize = 2_000;

/// Maximum size of the buffers for partial and waiting messages that a worker keeps for the next use.
pub const BUFFER_POOL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The largest buffer that a worker keeps for the next use.
pub const POOLED_BUFFER_BYTES_MAX: usize = 64 * 1024;

const _: () = assert!(HOLD_MESSAGE_BYTES < INBOX_BYTES_MAX, "a held message must fit the inbox");
const _: () = assert!(NAMES_BYTES_MAX <= HOLD_MESSAGE_BYTES, "names are looked for in held messages");
const _: () = assert!(CANCEL_KEY_BYTES <= 256, "protocol 3.2 allows 4 to 256 bytes");

/// Maximum number of times that a group is sent again because its prepared statement is outdated: first with another statement of the
/// present age; if that is outdated, too, with one that is made for the group.
pub const ASKED_AGAIN_MAX: u8 = 2;

/// Maximum size of a message group that may share a server connection. The group is held until its answer came, to be sent to another
/// server if this one dies.
pub const GROUP_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of messages of a group that may share a server connection.
pub const GROUP_MESSAGES_MAX: usize = 64;

/// An unnamed statement that is kept for a client until it is used; a longer one lasts until the client's transaction is over.
pub const UNNAMED_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of statements for which the time is remembered (24 bytes each).
pub const ESTIMATES_MAX: usize = 4096;

/// The size of an answer above which no other statement is queued after the statement, whether the answer has that size or is expected to.
pub const MULTIPLEXED_ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// The number of bytes waiting to be sent to a server above which no further statement is queued on it, because the server does not read.
pub const MULTIPLEXED_BACKLOG_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of places for queued clients that a server keeps allocated.
pub const PIPELINED_KEPT: usize = 64;

/// The maximum time that a short statement waits for a busy server while another one is idle.
pub const WAKE_AFTER_US: u64 = 50_000;

/// The maximum time that a short statement waits for a busy server while another one is idle, if measurements show that more busy servers
/// do not help, because the host is the bottleneck.
pub const WAKE_IN_VAIN_AFTER_US: u64 = 500_000;

/// The answer of a statement that a stranger's cancel request may have hit is held until it is whole, up to this size; beyond it the
/// statement runs again. (A client that is multiplexed has had answers below [`MULTIPLEXED_ANSWER_BYTES_MAX`] until then: this is four
/// times as much.)
pub const HELD_ANSWER_BYTES_MAX: usize = 256 * 1024;

/// The maximum size of a standby's messages ahead of the first row, or the end, of a read that may run on the primary instead: they are
/// held back up to this size. Beyond it the read stays with the standby.
pub const UNSHOWN_ANSWER_BYTES_MAX: usize = 16 * 1024;

/// A statement that was known to be short and has run for this long (µs) may wait for a lock: the statements
/// queued behind it on its server run on another one.
pub const RESCUE_AFTER_US: u64 = 100_000;

/// Maximum number of names of a database that may do more than read, or are known not to. The question for them names this number.
pub const REACH_NAMES_MAX: usize = 20_000;

/// Maximum number of texts per pool that are remembered because they were taken for reads and were not.
pub const BARRED_TEXTS_MAX: usize = 64;

/// Maximum size of the names of a database that may do more than read, or are known not to; the question bounds their characters.
pub const REACH_NAMES_BYTES_MAX: usize = 1024 * 1024;

const _: () = assert!(GROUP_BYTES_MAX < INBOX_BYTES_MAX, "a held group must fit the inbox");
const _: () = assert!(ESTIMATES_MAX.is_power_of_two(), "places are found by their low bits");
const _: () = assert!(TEXTS_MAX.is_power_of_two(), "places are found by their low bits");
const _: () = assert!(FORMS_MAX.is_power_of_two(), "places are found by their low bits");

/// Maximum number of unanswered questions to a server for the number of a transaction.
pub const NUMBER_QUESTIONS_MAX: usize = 2;

/// The number of times, a tenth of a second apart, that a server is asked for a transaction which it reports as still in progress.
pub const OUTCOME_QUESTIONS_MAX: u32 = 50;

/// Maximum size of a BEGIN that is answered before it is sent, with all messages that belong to it.
pub const BEGIN_BYTES_MAX: usize = 512;

/// Maximum number of texts per worker that came more than once and whose analysis is remembered.
pub const TEXTS_MAX: usize = 512;

/// Maximum number of texts per worker that came more than once with other literals and whose analysis is remembered.
pub const FORMS_MAX: usize = 512;

/// The number of variable literals above which a text is analysed each time.
pub const FORM_LITERALS_MAX: usize = 64;

/// The length above which a text is analysed each time. It bounds the memory for the [`TEXTS_MAX`] and [`FORMS_MAX`] remembered texts.
pub const TEXT_BYTES_MAX: usize = 2048;

/// The length up to which texts of prepared statements are analysed; nothing is assumed of longer ones.
pub const LEXED_BYTES_MAX: usize = 64 * 1024;

/// The length of a statement's text without its literals that statistics keep and the slow log shows.
pub const STATEMENT_TEXT_BYTES_MAX: usize = 2048;

/// Maximum number of statements of the top list that each worker returns for one snapshot or SHOW STATEMENTS.
pub const STATEMENTS_SHOWN_MAX: usize = 200;

/// The number of bytes at the end of a text that are searched for the comment with its trace.
pub const TRACE_COMMENT_BYTES_MAX: usize = 2048;

/// Maximum number of slow statements that each worker keeps to be looked up.
pub const SLOW_STATEMENTS_KEPT: usize = 100;

/// Maximum number of statements that one session has prepared by name without pgweir's help (in session pooling), and that are counted
/// separately in the statistics.
pub const NAMES_FOLLOWED_MAX: usize = 256;

/// The number of bytes by which a position of a client (`pgweir.read_after`) may be ahead of the primary's. A position beyond that is not
/// one of the cluster.
pub(crate) const AHEAD_BYTES_MAX: u64 = 1 << 40;

/// Maximum number of transactions that were received for one table and that no stamp has shown yet. The query cache remembers the highest one
/// of more.
pub(crate) const UNSETTLED_MAX: usize = 64;

/// Maximum number of keys in the transactions of [`UNSETTLED_MAX`]. A transaction for whose keys there is no room counts as one that has changed
/// any row of the table.
pub(crate) const UNSETTLED_KEYS_MAX: usize = 64;

/// Maximum number of keys that are remembered of one transaction. The transaction counts as one that has changed any row of the tables for whose
/// keys there is no room.
pub(crate) const TRANSACTION_KEYS_MAX: usize = 64;

/// Maximum length of a value in a row's key. Answers to statements with longer values depend on the whole table.
pub(crate) const KEY_VALUE_BYTES_MAX: usize = 63;

const _: () = assert!(KEY_VALUE_BYTES_MAX < 256, "the length of a value in a key is one byte");

/// Maximum number of tables of a replication stream whose keys are read. Any change of another table concerns all its rows.
pub(crate) const KEYED_TABLES_MAX: usize = 10_000;

/// The number of keys of a table for which the keys without answers are first looked for.
pub(crate) const WATCHED_KEYS_MIN: usize = 64;

/// Maximum number of probes that were answered and are not confirmed. The oldest one is forgotten first.
pub(crate) const UNCONFIRMED_PROBES_MAX: usize = 64;

/// Maximum number of large transactions that a replication stream has sent a part of. PostgreSQL has fewer backends than that.
pub(crate) const STREAMED_TRANSACTIONS_MAX: usize = 10_000;

/// The time in which a server must answer each question about a database that is followed, and a login (µs).
pub(crate) const SUBSCRIPTION_ANSWER_US_MAX: u64 = 60_000_000;

/// The number of stamps that are remembered for statements that were just sent.
pub(crate) const STAMPS_KEPT: usize = 64;

/// Maximum number of kept answers of a pool that differ from a server's and about which nothing is known yet.
pub(crate) const SUSPECTS_MAX: usize = 64;

/// Maximum number of statements of a database that a worker has analysed. If there are more, it begins again.
pub(crate) const ANALYSES_MAX: usize = 4096;

/// Maximum length of the texts, with their types, of all statements of a database that a worker has analysed. If they are longer, it begins again.
pub(crate) const ANALYSES_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum length of a text with its types whose statement is analysed.
pub(crate) const ANALYSED_BYTES_MAX: usize = 16 * 1024;

/// Number of places for statements that were executed once since the analyses began. A statement that comes again is analysed.
pub(crate) const SEEN_ONCE_PLACES: usize = 4096;

/// The number of times that a statement is analysed without an answer before it counts as one that cannot be.
pub(crate) const ANALYSIS_ATTEMPTS_MAX: u8 = 3;

/// Maximum length of a user name at login. PostgreSQL cuts names at 63 bytes, but user lists may have longer ones.
pub(crate) const USER_BYTES_MAX: usize = 127;

/// Maximum length of a command word of the console.
pub(crate) const VERB_BYTES_MAX: usize = 15;

/// Maximum length of a value that the console's SET takes, and of any other word there.
pub(crate) const TOKEN_BYTES_MAX: usize = 255;

/// Maximum time for which a client waits for a probe before its statement goes to a server (µs).
pub(crate) const PROBE_WAIT_US_MAX: u64 = 20_000;

/// Maximum number of standbys that a pool goes by: `[clusters]` takes fewer nodes.
pub(crate) const STANDBYS_MAX: usize = 250;

/// Maximum number of a primary's positions that are remembered to tell how far behind its standbys are.
pub(crate) const POSITIONS_MAX: usize = 256;

/// Maximum length of a word of a text that may be a name of the catalog. PostgreSQL's names are shorter (`NAMEDATALEN`), unless it was built for
/// longer ones.
pub(crate) const WORD_BYTES_MAX: usize = 256;

/// Maximum number of nodes that are taken from a source of the nodes of a cluster.
pub const MEMBERS_MAX: usize = 64;
