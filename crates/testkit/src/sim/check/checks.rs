//! The invariants of the architecture page, as far as they are seen from outside the machine: limits, sharing, cancels; and
//! reasons, in `reasons.rs`. (That every client gets its own answers is judged by [`crate::sim::client::oracle`]; that no client is forgotten and
//! nothing is left over by [`crate::sim::world`].)

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::sim::context::LinkId;
use crate::sim::driver::Side;
use crate::sim::model::Note;
use crate::sim::model::statement::Tag;
use crate::sim::plan::{Mode, Plan};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the check.
    pub check: &'static str,
    /// The observation that broke it.
    pub text: String,
}

/// Database and user.
pub type PoolName = (String, String);

#[derive(Default, Debug)]
pub(in crate::sim) struct PoolWatch {
    /// Deaths and lies of servers that could have cost a client its connection.
    pub(in crate::sim) deaths: u32,
    pub(in crate::sim) deaths_excused: u32,
    /// The time at which a server last could not be reached or logged in to.
    pub(in crate::sim) login_failed_us: Option<u64>,
}

#[derive(Debug)]
struct ServerWatch {
    pool: Option<PoolName>,
    /// The node that it is at; 0 where there is no cluster.
    node: usize,
    /// `true` while the connection is open for the pooler: it has not closed it, and was not told of its end.
    open: bool,
    /// `true` if the server will never answer the login.
    hangs: bool,
    /// `true` if the connection listens for all clients of its pool, so that it is none of the pool's
    /// servers.
    listens: bool,
}

#[derive(Debug)]
pub(in crate::sim) struct ClientWatch {
    /// Database and user as it asks for them.
    name: PoolName,
    open: bool,
    logged_in: bool,
    /// Client connections that were open when the pooler closed this one, itself among them: all, those of its database,
    /// those of its user.
    pub(in crate::sim) crowd_at_close: [usize; 3],
}

/// See the module's head.
pub struct Checks {
    pub(in crate::sim) plan: Rc<Plan>,
    violation: Option<Violation>,
    counters: BTreeMap<&'static str, u64>,
    servers: BTreeMap<LinkId, ServerWatch>,
    pub(in crate::sim) clients: BTreeMap<LinkId, ClientWatch>,
    pub(in crate::sim) pools: BTreeMap<PoolName, PoolWatch>,
    cancels: BTreeMap<u32, (u32, u32)>,
    /// Statements whose changes were committed: client and number.
    written: BTreeSet<(u32, u32)>,
    vanished_busy: u64,
    pub(in crate::sim) clients_lost: u64,
    servers_closed: u64,
    intruded: bool,
    /// Words of the console that clients may be told about, once they were said.
    pub(in crate::sim) operator_words: Vec<&'static str>,
    /// The maximum that default_pool_size was set to.
    pool_size_max: u32,
}

/// Bytes a machine may queue for one connection; more means that it does not slow down the other side.
const BACKLOG_BYTES_MAX: usize = 512 * 1024;

impl Checks {
    /// Creates the checks of a run that has not begun.
    #[must_use]
    pub fn new(plan: Rc<Plan>) -> Self {
        Checks {
            plan,
            violation: None,
            counters: BTreeMap::new(),
            servers: BTreeMap::new(),
            clients: BTreeMap::new(),
            pools: BTreeMap::new(),
            cancels: BTreeMap::new(),
            written: BTreeSet::new(),
            vanished_busy: 0,
            clients_lost: 0,
            servers_closed: 0,
            intruded: false,
            operator_words: Vec::new(),
            pool_size_max: 0,
        }
    }

    /// Counts something that happened.
    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.counters.entry(what).or_default() += times;
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &BTreeMap<&'static str, u64> {
        &self.counters
    }

    /// Notes a broken invariant; the first one stays.
    pub fn fail(&mut self, check: &'static str, text: String) {
        self.violation.get_or_insert(Violation { check, text });
    }

    /// The first broken invariant.
    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Notes the number of bytes that are queued for one connection.
    pub fn saw_backlog(&mut self, bytes: usize) {
        if bytes > BACKLOG_BYTES_MAX {
            self.fail("back-pressure", format!("{bytes} bytes are queued for one connection"));
        }
    }

    // Connections, as the pooler sees them.

    /// A client's connection was accepted; it will ask for this database and user.
    pub fn accepted(&mut self, link: LinkId, name: PoolName) {
        self.clients.insert(link, ClientWatch { name, open: true, logged_in: false, crowd_at_close: [0; 3] });
    }

    /// A client sends what is not the protocol: servers may get to see some of it.
    pub fn intruded(&mut self) {
        self.intruded = true;
        self.vanished_busy += 1;
    }

    /// The operator gives a command.
    pub fn operator_did(&mut self, text: &str) {
        let told = [
            ("KILL_CLIENT", "admin forced disconnect"),
            ("KILL ", "database removed"),
            ("DISABLE", "is disabled"),
            ("RECONNECT", "notifications may have been missed"),
        ];
        self.operator_words
            .extend(told.iter().filter(|(word, _)| text.starts_with(word)).map(|(_, told)| told));
        if text.starts_with("SUSPEND") || text.starts_with("KILL") {
            // A client that does not read for long enough, or is in the middle of a message, is closed without a word.
            self.operator_words.push("");
        }
        if let Some(size) = text.strip_prefix("SET default_pool_size = ").and_then(|size| size.parse().ok()) {
            self.pool_size_max = self.pool_size_max.max(size);
        }
    }

    /// A server got what no client sends.
    pub fn malformed(&mut self, pid: usize, why: &str) {
        if !self.intruded {
            self.fail("servers get well-formed messages", format!("server {pid}: {why}"));
        }
    }

    /// Clients for which `counts` holds: all, those of this database, those of this user.
    fn crowd(&self, name: &PoolName, counts: impl Fn(&ClientWatch) -> bool) -> [usize; 3] {
        let some = |same: &dyn Fn(&PoolName) -> bool| {
            self.clients.values().filter(|client| counts(client) && same(&client.name)).count()
        };
        [some(&|_| true), some(&|other| other.0 == name.0), some(&|other| other.1 == name.1)]
    }

    /// The limits that [`Checks::crowd`] counts for.
    pub(in crate::sim) fn crowd_limits(&self) -> [(&'static str, usize); 3] {
        let plan = &self.plan;
        [
            ("max_client_conn", plan.max_client_conn as usize),
            ("max_db_client_connections", plan.max_db_client_connections as usize),
            ("max_user_client_connections", plan.max_user_client_connections as usize),
        ]
    }

    /// A client has logged in.
    pub fn logged_in(&mut self, link: LinkId) {
        self.count("logins", 1);
        if let Some(client) = self.clients.get_mut(&link) {
            client.logged_in = true;
        }
        let Some(name) = self.clients.get(&link).map(|client| client.name.clone()) else { return };
        let inside = self.crowd(&name, |client| client.open && client.logged_in);
        for ((check, limit), is) in self.crowd_limits().into_iter().zip(inside) {
            if self.plan.has_limits && limit > 0 && is > limit {
                self.fail(check, format!("{is} clients are logged in, {limit} are allowed"));
            }
        }
    }

    /// A dialed connection reached the server.
    pub fn server_opened(&mut self, link: LinkId, node: usize) {
        self.servers.insert(link, ServerWatch { pool: None, node, open: true, hangs: false, listens: false });
    }

    /// A server connection said which pool it belongs to. `has_changed_role`: the pool may have others at this node from before.
    pub fn server_named(&mut self, link: LinkId, pool: PoolName, has_changed_role: bool) {
        let mut node = 0;
        if let Some(server) = self.servers.get_mut(&link) {
            server.pool = Some(pool.clone());
            node = server.node;
        }
        if !self.plan.has_limits {
            return;
        }
        let size = self.plan.pool_size.max(self.pool_size_max) + self.plan.reserve_pool_size;
        let count = |same: &dyn Fn(&PoolName, usize) -> bool| {
            let is_same =
                |server: &ServerWatch| server.pool.as_ref().is_some_and(|pool| same(pool, server.node));
            self.servers.values().filter(|server| server.open && is_same(server)).count()
        };
        let listens = |server: &&ServerWatch| {
            server.open && server.listens && server.pool.as_ref().is_some_and(|other| *other == pool)
        };
        let parts = if has_changed_role { 2 } else { 1 };
        let listening = self.servers.values().filter(listens).count();
        // This one may be about to.
        let pool_limit = size as usize * parts + listening.max(usize::from(self.plan.has_hubs()));
        let found = [
            ("pool_size", count(&|other, at| *other == pool && at == node), pool_limit),
            (
                "max_db_connections",
                count(&|other, at| other.0 == pool.0 && at == node),
                self.plan.max_db_connections as usize * parts,
            ),
            (
                "max_user_connections",
                count(&|other, _| other.1 == pool.1),
                self.plan.max_user_connections as usize,
            ),
        ];
        for (check, is, limit) in found {
            if limit > 0 && is > limit {
                self.fail(check, format!("{is} server connections for {pool:?}, {limit} are allowed"));
            }
        }
    }

    /// Notes whether a server connection listens for all clients of its pool, as far as can be told.
    pub fn server_listens(&mut self, link: LinkId, listens: bool) {
        if let Some(server) = self.servers.get_mut(&link) {
            server.listens = listens;
        }
    }

    /// A server connection's login will never be answered.
    pub fn login_hangs(&mut self, link: LinkId) {
        if let Some(server) = self.servers.get_mut(&link) {
            server.hangs = true;
        }
    }

    /// The machine closed a connection. A login that was never answered has failed then: clients may be told of it before the
    /// server sees the end.
    pub fn pooler_closed(&mut self, link: LinkId, side: Side, now_us: u64) {
        if let Some(pool) =
            self.servers.get(&link).filter(|server| server.hangs).map(|server| server.pool.clone())
        {
            self.login_failed(pool.as_ref(), now_us);
        }
        if side == Side::Server
            && self.servers.get(&link).is_some_and(|server| server.pool.is_some() && server.open)
        {
            self.servers_closed += 1;
        }
        self.over(link);
    }

    /// The machine was told that a connection ended.
    pub fn over(&mut self, link: LinkId) {
        let name = self.clients.get(&link).map(|client| client.name.clone());
        let crowd = name.map(|name| self.crowd(&name, |client| client.open));
        if let Some(server) = self.servers.get_mut(&link) {
            server.open = false;
        }
        if let Some(client) = self.clients.get_mut(&link) {
            client.open = false;
            client.crowd_at_close = crowd.unwrap_or_default();
        }
    }

    // What servers see.

    /// A server noticed something about the statements it is given. `owner` is the client whose transaction is open.
    pub fn noted(&mut self, pid: usize, note: &Note, owner: &mut Option<u32>) {
        match note {
            Note::Runs(tag) => {
                self.count("statements", 1);
                let Some(client) = tag.client else { return };
                if owner.is_some_and(|owner| owner != client) {
                    let text = format!(
                        "server {pid}: statement {} of client {client} inside a transaction of client {owner:?}",
                        tag.number
                    );
                    self.fail("a server is not shared inside a transaction", text);
                }
                *owner = Some(client);
            }
            Note::Hidden { what, bound } => {
                self.count("hidden statements", 1);
                match what.split_once(['(', ' ']).map_or(what.as_str(), |(verb, _)| verb) {
                    "Values" | "Everything" => self.count("sessions audited", 1),
                    "SetConfig" => self.count("sessions replayed", 1),
                    _ => {}
                }
                // What a client started with is put back behind its RESET, in the same transaction; what follows a BEGIN that failed
                // is brought about in a separate block.
                // What brings a server to its client's session is a separate transaction, before anything of the client's.
                // What other clients drew from sequences is discarded before a client draws.
                // The number of a transaction is asked for within it. The end of a block in which pgweir runs a client's change belongs to it.
                let clients = *bound && owner.is_some();
                let may = [
                    "Set ",
                    "SetConfig",
                    "PutBack",
                    "RollbackTo",
                    "DiscardSequences",
                    "CheckSequences",
                    "Inquire(Number)",
                    "Commit",
                    "Rollback",
                ];
                if clients && !may.iter().any(|may| what.starts_with(may)) {
                    let text =
                        format!("server {pid}: hidden {what} inside a transaction of client {owner:?}");
                    self.fail("no hidden statement inside a transaction", text);
                }
            }
            Note::Bound { .. } | Note::Wrote(_) | Note::Told { .. } | Note::Unlocked(_) => {}
            Note::Misplaced(_) | Note::Refused | Note::Ended { .. } => {}
            Note::NotUnderstood(_) if self.intruded => {}
            Note::NotUnderstood(text) => {
                self.fail("the pooler's own statements are known", format!("server {pid} got \"{text}\""));
            }
            Note::ForeignCopyData { owner, data } => {
                let text = format!(
                    "server {pid}: COPY of client {:?} statement {} got \"{data}\"",
                    owner.client, owner.number
                );
                self.fail("copy data reaches its own COPY", text);
            }
        }
    }

    /// The changes of a statement were committed. No statement is carried out twice.
    pub fn wrote(&mut self, client: u32, number: u32) {
        if !self.written.insert((client, number)) {
            let text = format!("statement {number} of client {client} was committed twice");
            self.fail("no statement takes effect twice", text);
        }
    }

    /// A server died, or lied, at a point where that may cost one client its connection.
    pub fn server_failed(&mut self, pool: &PoolName) {
        self.count("server failures", 1);
        self.pools.entry(pool.clone()).or_default().deaths += 1;
    }

    /// A server could not be reached, or logged in to. `None`: the pool is not known yet, any may be meant.
    pub fn login_failed(&mut self, pool: Option<&PoolName>, now_us: u64) {
        self.count("login failures", 1);
        let named: Vec<PoolName> = match pool {
            Some(pool) => vec![pool.clone()],
            None => {
                let of = |database: &String| {
                    self.plan.users.iter().map(|user| self.plan.pool_of(database, user)).collect()
                };
                self.plan.databases.iter().flat_map(|database| -> Vec<PoolName> { of(database) }).collect()
            }
        };
        for pool in named {
            self.pools.entry(pool).or_default().login_failed_us = Some(now_us);
        }
    }

    /// A client asks for a cancel.
    pub fn cancel_asked(&mut self, client: u32) {
        self.count("cancels asked", 1);
        let asked = &mut self.cancels.entry(client).or_default().0;
        *asked = asked.saturating_add(1);
    }

    /// A client is gone: the pooler may cancel the statements that it has left, one after the other.
    pub fn may_be_cancelled(&mut self, client: u32) {
        self.cancels.entry(client).or_default().0 = u32::MAX;
    }

    /// A cancel request hit a statement.
    pub fn cancel_hit(&mut self, pid: usize, tag: &Tag) {
        self.count("cancels hit", 1);
        let Some(client) = tag.client else {
            if tag.text > 0 && self.plan.multiplex.0 > 1 {
                // As below; a text of all clients names none.
                return self.count("strangers hit", 1);
            }
            self.fail(
                "a cancel hits only its target",
                format!("server {pid}: it hit a statement of no client, {tag:?}"),
            );
            return;
        };
        let (asked, hit) = self.cancels.entry(client).or_default();
        *hit += 1;
        if *hit > *asked && self.plan.multiplex.0 > 1 {
            // A multiplexed client was hit: it runs again, and its client must not notice (which the oracle sees).
            *hit -= 1;
            return self.count("strangers hit", 1);
        }
        if *hit > *asked {
            let text = format!(
                "server {pid}: it hit statement {} of client {client}, which asked for {asked} and was hit {hit} times",
                tag.number
            );
            self.fail("a cancel hits only its target", text);
        }
    }

    // Reasons.

    /// A client vanished; `busy` if it left anything undone.
    pub fn vanished(&mut self, busy: bool) {
        self.count("clients vanished", 1);
        if busy {
            self.vanished_busy += 1;
        }
    }

    // The end.

    /// Checks the state after the last client has left and all activity has ended.
    pub fn at_end(&mut self) {
        let clients = self.clients.values().filter(|client| client.open).count();
        if clients > 0 {
            self.fail("no connection is left over", format!("{clients} client connections are still open"));
        }
        let limited = self.plan.max_db_connections + self.plan.max_user_connections > 0;
        let short_lived =
            self.plan.timeouts.server_lifetime_s < 1000 || self.plan.timeouts.server_idle_s < 100;
        let excused = self.vanished_busy + self.clients_lost;
        let refuses = self.plan.server.connections_max < 1000;
        let watched = self.plan.has_limits && !self.plan.has_operator && !refuses;
        // In session pooling a server also makes room for one with another client's startup parameters.
        let watched = watched && self.plan.mode != Mode::Session;
        let watched = watched && self.plan.cluster.is_none();
        // A server whose settings have changed is replaced.
        let watched = watched && self.plan.follow().is_none();
        let calm = self.plan.faults.is_none() && !limited && !short_lived && watched;
        if calm && self.servers_closed > excused {
            let text =
                format!("{} servers were closed, {excused} clients gave a reason", self.servers_closed);
            self.fail("a client that vanishes costs at most one server", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::check::reasons::Disconnected;
    use crate::sim::network::proto::ErrorText;
    use crate::sim::plan::Profile;

    fn plan(change: impl Fn(&mut Plan)) -> Rc<Plan> {
        let profile = Profile {
            modes: &[Mode::Transaction],
            workers_max: 1,
            has_limits: true,
            has_prepared: true,
            has_extended: true,
            bears_faults: false,
            bears_vanishing: false,
            has_timeouts: false,
            has_console: false,
        };
        let mut plan = Plan::new(1, &profile);
        plan.pool_size = 2;
        plan.reserve_pool_size = 0;
        plan.max_db_connections = 0;
        plan.max_user_connections = 0;
        plan.max_client_conn = 2;
        change(&mut plan);
        Rc::new(plan)
    }

    fn pool(user: &str) -> PoolName {
        ("db0".to_owned(), user.to_owned())
    }

    fn broken(checks: &Checks) -> Option<&'static str> {
        checks.violation().map(|violation| violation.check)
    }

    fn open(checks: &mut Checks, users: &[&str]) {
        for (i, user) in users.iter().enumerate() {
            checks.server_opened(LinkId(i), 0);
            checks.server_named(LinkId(i), pool(user), false);
        }
    }

    #[test]
    fn one_server_too_many_breaks_each_of_the_limits() {
        let mut checks = Checks::new(plan(|_| {}));
        open(&mut checks, &["a", "a", "b"]);
        assert_eq!(broken(&checks), None);
        open(&mut checks, &["a", "a", "b", "a"]);
        assert_eq!(broken(&checks), Some("pool_size"));
        let mut checks = Checks::new(plan(|plan| plan.max_db_connections = 2));
        open(&mut checks, &["a", "b", "c"]);
        assert_eq!(broken(&checks), Some("max_db_connections"));
        let mut checks = Checks::new(plan(|plan| plan.max_user_connections = 1));
        open(&mut checks, &["a", "b", "b"]);
        assert_eq!(broken(&checks), Some("max_user_connections"));
    }

    #[test]
    fn a_closed_server_makes_room() {
        let mut checks = Checks::new(plan(|_| {}));
        open(&mut checks, &["a", "a"]);
        checks.pooler_closed(LinkId(0), Side::Server, 0);
        checks.server_opened(LinkId(9), 0);
        checks.server_named(LinkId(9), pool("a"), false);
        assert_eq!(broken(&checks), None);
        checks.at_end();
        assert_eq!(broken(&checks), Some("a client that vanishes costs at most one server"));
    }

    #[test]
    fn clients_beyond_the_limit_are_seen_and_so_is_a_refusal_without_need() {
        let mut checks = Checks::new(plan(|_| {}));
        for i in 0..3 {
            checks.accepted(LinkId(i), pool("a"));
            checks.logged_in(LinkId(i));
        }
        assert_eq!(broken(&checks), Some("max_client_conn"));
        let mut checks = Checks::new(plan(|_| {}));
        checks.accepted(LinkId(0), pool("a"));
        checks.over(LinkId(0));
        let text = ErrorText {
            message: "no more connections allowed (max_client_conn)".to_owned(),
            ..ErrorText::default()
        };
        let case = |text| Disconnected {
            client: 0,
            link: LinkId(0),
            pool: pool("a"),
            text: Some(text),
            logged_in: false,
            listens: false,
            waited_us: 0,
            rested_us: 0,
            now_us: 0,
        };
        checks.disconnected(&case(&text));
        assert_eq!(broken(&checks), Some("no client is disconnected without a reason"));
    }

    #[test]
    fn a_dead_server_is_a_reason_once() {
        let mut checks = Checks::new(plan(|_| {}));
        checks.server_failed(&pool("a"));
        let text = ErrorText::default();
        let lose = |checks: &mut Checks| {
            let (pool, link) = (pool("a"), LinkId(0));
            let text = Some(&text);
            checks.disconnected(&Disconnected {
                client: 0,
                link,
                pool,
                text,
                logged_in: true,
                listens: false,
                waited_us: 0,
                rested_us: 0,
                now_us: 9,
            });
        };
        lose(&mut checks);
        assert_eq!(broken(&checks), None);
        lose(&mut checks);
        assert_eq!(broken(&checks), Some("no client is disconnected without a reason"));
    }

    #[test]
    fn sharing_inside_a_transaction_is_seen() {
        let runs = |client| Note::Runs(Tag { client: Some(client), ..Tag::default() });
        let mut checks = Checks::new(plan(|_| {}));
        let mut owner = None;
        checks.noted(1, &runs(1), &mut owner);
        checks.noted(1, &runs(1), &mut owner);
        checks.noted(1, &runs(2), &mut None);
        assert_eq!(broken(&checks), None);
        checks.noted(1, &runs(2), &mut owner);
        assert_eq!(broken(&checks), Some("a server is not shared inside a transaction"));
        let mut checks = Checks::new(plan(|_| {}));
        checks.noted(1, &Note::Hidden { what: "SET".to_owned(), bound: true }, &mut Some(1));
        assert_eq!(broken(&checks), Some("no hidden statement inside a transaction"));
    }

    #[test]
    fn a_cancel_without_a_request_is_seen() {
        let mut checks = Checks::new(plan(|_| {}));
        checks.cancel_asked(1);
        let tag = |client| Tag { client, ..Tag::default() };
        checks.cancel_hit(1, &tag(Some(1)));
        assert_eq!(broken(&checks), None);
        checks.cancel_hit(1, &tag(Some(1)));
        assert_eq!(broken(&checks), Some("a cancel hits only its target"));
        let mut checks = Checks::new(plan(|_| {}));
        checks.cancel_hit(1, &tag(None));
        assert_eq!(broken(&checks), Some("a cancel hits only its target"));
    }
}
