//! This worker's part of SHOW, as rows of text; and how the workers' rows become one table.

use std::collections::BTreeSet;

use super::hosts::{host_rows, zone_rows};
use super::measure::statement_rows;
use super::observe::shown_state;
use super::{Activity, Worker};
use crate::client::{Client, ClientState, Link, QueuedBehind};
use crate::client_handoff::Replication;
use crate::console::command::{Outcome, Topic};
use crate::console::table::{TOTALS, column_names};
use crate::context::{Cx, Env};
use crate::driver::{Driver, Endpoint, NamesSeen, Peer};
use crate::mail::Shutdown;
use crate::params::Params;
use crate::pool::{Pool, ServerKind};
use crate::server::{Server, ServerState};
use crate::stats::{Stats, Window};

type Row = Vec<Option<String>>;

/// A cell that has a value.
fn cell(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

impl Worker {
    /// This worker's part of a topic. If all workers have the same rows, they come from the first worker alone.
    pub(super) fn report<D: Driver>(&mut self, cx: &Cx<'_, D>, topic: Topic) -> Outcome {
        let first = cx.env.worker.0 == 0;
        match topic {
            Topic::Clients | Topic::ClientsExtended => Outcome::Rows(self.client_rows(cx, false, false)),
            Topic::Servers | Topic::ServersExtended => Outcome::Rows(self.server_rows(cx, false, false)),
            Topic::Sockets | Topic::ActiveSockets => {
                let active = topic == Topic::ActiveSockets;
                let mut rows = self.client_rows(cx, true, active);
                rows.extend(self.server_rows(cx, true, active));
                Outcome::Rows(rows)
            }
            Topic::Pools | Topic::PoolsExtended => Outcome::Rows(self.pool_rows(cx.env)),
            Topic::Stats
            | Topic::StatsAverages
            | Topic::StatsExtended
            | Topic::StatsTotals
            | Topic::Totals => Outcome::Stats(self.stats_by_database(cx.env)),
            Topic::Lists => Outcome::Sums(self.list_sums(cx.env, &cx.driver.names())),
            Topic::Mem => Outcome::Sums(self.memory_sums(cx.env)),
            Topic::PeerPools => Outcome::Rows(self.peer_pool_rows(cx.env)),
            Topic::Percentiles => Outcome::Rows(self.percentile_rows()),
            Topic::Statements => Outcome::Statements(self.top_statements(cx.env)),
            Topic::Fds => Outcome::Rows(self.descriptor_rows(cx)),
            Topic::DnsHosts => Outcome::Rows(host_rows(&cx.driver.names())),
            Topic::DnsZones => Outcome::Rows(zone_rows(&cx.driver.names())),
            _ if !first => Outcome::Rows(Vec::new()),
            Topic::Databases => Outcome::Rows(self.database_rows(cx.env)),
            Topic::Users => Outcome::Rows(self.user_rows(cx.env)),
            Topic::Config => Outcome::Rows(self.config_rows(cx.env)),
            Topic::State => Outcome::Rows(self.state_rows(cx.env)),
            Topic::Version => Outcome::Rows(vec![vec![cell("PgBouncer 1.25.2")]]),
            Topic::Peers => Outcome::Rows(self.peer_rows(cx.env)),
            Topic::Help => Outcome::Rows(Vec::new()),
        }
    }

    /// Puts the workers' answers together.
    pub(super) fn merge(&self, topic: Topic, outcomes: Vec<Outcome>) -> Vec<Row> {
        let mut rows = Worker::merged(topic, outcomes);
        // Rows are made for the extended tables. The other ones lack the columns at the end.
        let width = column_names(topic).len();
        rows.iter_mut().for_each(|row| row.truncate(width));
        rows
    }

    fn merged(topic: Topic, outcomes: Vec<Outcome>) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        let mut stats: Vec<(String, Stats, Window)> = Vec::new();
        let mut statements = Vec::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Rows(more) => rows.extend(more),
                Outcome::Sums(more) if sums.is_empty() => sums = more,
                Outcome::Sums(more) => {
                    sums.iter_mut().zip(more).for_each(|(sum, (_, value))| sum.1 += value);
                }
                Outcome::Statements(more) => statements.extend(more),
                Outcome::Stats(more) => more.into_iter().for_each(|one| add_stats(&mut stats, one)),
                Outcome::Done | Outcome::Noted(_) | Outcome::Failed(_) | Outcome::Undone(_) => {}
            }
        }
        stats.sort_by(|one, other| one.0.cmp(&other.0));
        match topic {
            Topic::Lists => sums.into_iter().map(|(name, sum)| vec![cell(name), cell(sum)]).collect(),
            Topic::Mem => sums.chunks(2).filter_map(memory_row).collect(),
            Topic::Stats | Topic::StatsExtended => {
                stats.iter().map(|one| stats_row(one, true, true)).collect()
            }
            Topic::StatsTotals => stats.iter().map(|one| stats_row(one, true, false)).collect(),
            Topic::StatsAverages => stats.iter().map(|one| stats_row(one, false, true)).collect(),
            Topic::Totals => total_rows(&stats),
            Topic::PeerPools => sum_rows(rows),
            Topic::Statements => statement_rows(statements),
            Topic::Pools | Topic::PoolsExtended | Topic::Percentiles => {
                rows.sort();
                rows
            }
            // By pool, in the order of SHOW POOLS.
            Topic::Clients
            | Topic::ClientsExtended
            | Topic::Servers
            | Topic::ServersExtended
            | Topic::Sockets
            | Topic::ActiveSockets => {
                let place = |row: &Row| (row[2].clone(), row[1].clone(), row[0].clone());
                rows.sort_by_cached_key(place);
                rows
            }
            // Each worker looks up the names that it needs.
            Topic::DnsHosts | Topic::DnsZones => {
                rows.sort();
                rows.dedup_by(|one, other| one[0] == other[0]);
                rows
            }
            _ => rows,
        }
    }

    fn client_rows<D: Driver>(&self, cx: &Cx<'_, D>, sockets: bool, active: bool) -> Vec<Row> {
        self.clients
            .values()
            .filter(|client| {
                sockets || client.account.is_some() || matches!(client.state, ClientState::Console(_))
            })
            .filter(|client| !active || cx.driver.backlog(client.conn) > 0 || !client.inbox.is_empty())
            .map(|client| {
                let mut row = self.client_row(cx.env, client, sockets);
                if sockets {
                    row.extend(buffer_cells(client.inbox.len(), cx.driver.backlog(client.conn)));
                } else {
                    row.push(cell(u8::from(matches!(client.state, ClientState::QueuedBehind(_)))));
                    row.extend(self.pin_cells(cx.env, Some(client)));
                    let server = match &client.state {
                        ClientState::Linked(link) => self.servers.get(link.server),
                        _ => None,
                    };
                    row.extend(self.work_cells(cx.env, server));
                }
                row
            })
            .collect()
    }

    fn client_row(&self, env: &Env, client: &Client, sockets: bool) -> Row {
        let (user, database) = match (&client.account, &client.state) {
            (Some(account), _) => (account.user.to_string(), self.pools[account.pool].database.to_string()),
            (None, ClientState::Console(console)) => {
                (console.user().to_owned(), crate::console::DATABASE.to_owned())
            }
            (None, _) => (String::new(), String::new()),
        };
        let state = match &client.state {
            ClientState::Waiting(_) | ClientState::QueuedBehind(_) | ClientState::AwaitingServer(_)
                if sockets =>
            {
                "cl_waiting"
            }
            ClientState::Linked(_) if sockets => "cl_active",
            state => shown_state(state),
        };
        let (addr, port, local_addr, local_port) = peer_cells(&client.origin.peer);
        let request_us = match (&client.account, &client.state) {
            (Some(account), _) => account.request_us,
            (None, ClientState::Console(console)) => console.request_us,
            (None, _) => client.origin.since.mono_us,
        };
        let wait_us = match &client.state {
            ClientState::Waiting(_) | ClientState::QueuedBehind(_) => {
                env.now.mono_us.saturating_sub(request_us)
            }
            ClientState::Linked(link) => self.answer_wait_us(env, link, request_us),
            _ => 0,
        };
        let link = match &client.state {
            ClientState::Linked(Link { server, .. })
            | ClientState::QueuedBehind(QueuedBehind { server, .. }) => {
                self.servers.get(*server).map(|server| pointer(server.serial))
            }
            _ => None,
        };
        let remote_pid = match client.origin.peer {
            Peer::Unix { pid, .. } => pid,
            Peer::Tcp { .. } => 0,
        };
        let application = match (&client.account, &client.state) {
            (Some(account), _) => self.application_name(env, &account.params),
            (None, ClientState::Console(console)) => console.application.as_deref(),
            (None, _) => None,
        };
        let application = application.map(|name| String::from_utf8_lossy(name).into_owned());
        let statements = client
            .account
            .as_ref()
            .and_then(|account| account.statements.as_ref())
            .map_or(0, |statements| statements.len());
        vec![
            cell("C"),
            cell(user),
            cell(database),
            cell(client.replication().text()),
            cell(state),
            cell(addr),
            cell(port),
            cell(local_addr),
            cell(local_port),
            cell(self.time_text(env, client.origin.since.mono_us)),
            cell(self.time_text(env, request_us)),
            cell(wait_us / 1_000_000),
            cell(wait_us % 1_000_000),
            cell(0),
            cell(pointer(client.serial)),
            cell(link.unwrap_or_default()),
            cell(remote_pid),
            cell(client.origin.tls.as_ref().map_or("", |tls| &tls.description)),
            cell(application.unwrap_or_default()),
            cell(statements),
            cell(client.serial),
        ]
    }

    /// How long a client that has a server waits for an answer. Between its statements it waits for nothing.
    fn answer_wait_us(&self, env: &Env, link: &Link, request_us: u64) -> u64 {
        let Some(server) = self.servers.get(link.server) else { return 0 };
        let since_us = match server.state {
            ServerState::Settling(_) => request_us,
            _ => server.query_us,
        };
        if since_us > 0 { env.now.mono_us.saturating_sub(since_us) } else { 0 }
    }

    fn server_rows<D: Driver>(&self, cx: &Cx<'_, D>, sockets: bool, active: bool) -> Vec<Row> {
        self.servers
            .values()
            .filter(|server| !active || cx.driver.backlog(server.conn) > 0 || !server.inbox.is_empty())
            .map(|server| {
                let mut row = self.server_row(cx.env, server, sockets);
                if sockets {
                    row.extend(buffer_cells(server.inbox.len(), cx.driver.backlog(server.conn)));
                } else {
                    row.push(cell(server.pipelined.len()));
                    let client = server.state.client().and_then(|client| self.clients.get(client));
                    row.extend(self.pin_cells(cx.env, client));
                    row.extend(self.work_cells(cx.env, Some(server)));
                }
                row
            })
            .collect()
    }

    fn server_row(&self, env: &Env, server: &Server, sockets: bool) -> Row {
        let pool = &self.pools[server.pool];
        let state = match server.state.kind() {
            ServerKind::Active => "active",
            ServerKind::Idle if self.is_long_idle(env, server) => "used",
            ServerKind::Idle => "idle",
            ServerKind::Tested => "tested",
            ServerKind::Login if sockets => "login",
            ServerKind::Login => "new",
            ServerKind::BeingCanceled => "being_canceled",
            ServerKind::Listening => "listening",
        };
        let state = if sockets { format!("sv_{state}") } else { state.to_owned() };
        let (addr, port) = match &server.endpoint {
            Endpoint::Tcp { host, port } => {
                (server.remote.map_or_else(|| host.to_string(), |remote| remote.ip().to_string()), *port)
            }
            Endpoint::Unix { .. } => ("unix".to_owned(), pool.config.port),
        };
        let (local_addr, local_port) = server.local.rsplit_once(':').unwrap_or(("unix", "0"));
        let request_us = if server.query_us > 0 { server.query_us } else { server.active_us };
        let wait_us = if server.query_us > 0 { env.now.mono_us.saturating_sub(server.query_us) } else { 0 };
        let link = match &server.state {
            ServerState::Busy(client) => Some(*client),
            ServerState::Settling(settling) => Some(settling.client),
            ServerState::Auditing(auditing) => Some(auditing.client),
            _ => None,
        };
        let link = link.and_then(|client| self.clients.get(client)).map(|client| pointer(client.serial));
        let application =
            self.application_name(env, &server.params).map(|name| String::from_utf8_lossy(name).into_owned());
        let replication = match server.state.client().and_then(|client| self.clients.get(client)) {
            Some(client) if server.replication => client.replication(),
            _ => Replication::None,
        };
        vec![
            cell("S"),
            cell(&pool.user),
            cell(&pool.database),
            cell(replication.text()),
            cell(state),
            cell(addr),
            cell(port),
            cell(local_addr),
            cell(local_port),
            cell(self.time_text(env, server.since.mono_us)),
            cell(self.time_text(env, request_us)),
            cell(wait_us / 1_000_000),
            cell(wait_us % 1_000_000),
            cell(u8::from(server.retire.is_some())),
            cell(pointer(server.serial)),
            cell(link.unwrap_or_default()),
            cell(server.pid),
            cell(&server.tls),
            cell(application.unwrap_or_default()),
            cell(server.statements.len()),
            cell(server.serial),
        ]
    }

    /// Free for longer than `server_check_delay`: it will be checked before its next use.
    pub(super) fn is_long_idle(&self, env: &Env, server: &Server) -> bool {
        let delay_us = super::duration_us(env.rules.config.main.server_check_delay);
        env.now.mono_us.saturating_sub(server.active_us) > delay_us
    }

    /// Why a client keeps its server between transactions, and since when.
    fn pin_cells(&self, env: &Env, client: Option<&Client>) -> [Option<String>; 2] {
        let pin = client.and_then(|client| match &client.state {
            ClientState::Linked(link) => link.pin.as_ref(),
            _ => None,
        });
        match pin {
            Some(pin) => [cell(pin.reasons.text()), cell(self.time_text(env, pin.since_us))],
            None => [cell(""), None],
        }
    }

    /// The age of a server's transaction, 0 if none is open, and the fingerprint of the statement that it runs.
    fn work_cells(&self, env: &Env, server: Option<&Server>) -> [Option<String>; 2] {
        let Some(server) = server else { return [cell(0), cell("")] };
        let transaction_us = match server.xact_us {
            0 => 0,
            begun_us => env.now.mono_us.saturating_sub(begun_us),
        };
        let statement = Some(&server.running)
            .filter(|_| server.query_us > 0)
            .and_then(|running| env.measured.fingerprint(running))
            .map_or_else(String::new, |fingerprint| format!("{fingerprint:016x}"));
        [cell(transaction_us), cell(statement)]
    }

    fn pool_rows(&self, env: &Env) -> Vec<Row> {
        let mut rows: Vec<Row> = self.pools.iter().map(|(id, pool)| self.pool_row(env, id, pool)).collect();
        if env.worker.0 == 0 {
            rows.push(self.console_pool_row());
        }
        rows
    }

    fn pool_row(&self, env: &Env, id: crate::ids::PoolId, pool: &Pool) -> Row {
        let used = self.long_idle_servers(env, id);
        let wait_us = self.wait_oldest_us(env, id);
        let sent = self.cancels.values().filter(|cancel| cancel.pool == id).count();
        let hosts = pool.config.hosts.len() > 1;
        let balance = hosts.then(|| env.rules.config.load_balance_hosts(&pool.config).as_str().to_owned());
        let waiting = (pool.waiting + pool.queued_behind) as usize + pool.at_login();
        let asking = pool.lookups.len();
        let mut row = vec![
            cell(&pool.database),
            cell(&pool.user),
            cell((pool.clients as usize).saturating_sub(waiting)),
            cell(waiting + asking),
            cell(sent),
            cell(pool.waiting_cancels.len()),
            cell(pool.servers(ServerKind::Active)),
            cell(pool.cancels),
            cell(pool.servers(ServerKind::BeingCanceled)),
            cell(pool.servers(ServerKind::Idle) - used),
            cell(used),
            cell(pool.servers(ServerKind::Tested)),
            cell(pool.servers(ServerKind::Login)),
            cell(wait_us / 1_000_000),
            cell(wait_us % 1_000_000),
            cell(pool.mode),
            balance,
            cell(pool.pace.target(env.rules.config.main.multiplex_servers)),
            cell(pool.short.len()),
            cell(pool.queued_behind),
            cell(pool.multiplexing.multiplexed),
            cell(pool.multiplexing.requeued),
            cell(pool.multiplexing.violations),
            cell(pool.pace.decisions()),
            cell(pool.pinned),
        ];
        row.extend(pool.continuity.each().map(|(_, _, count)| cell(count)));
        row.push(pool.failure.as_ref().map(|failure| failure.text.clone()));
        row
    }

    fn console_pool_row(&self) -> Row {
        let clients = self.clients.values().filter(|client| matches!(client.state, ClientState::Console(_)));
        let mut row =
            vec![cell(crate::console::DATABASE), cell(crate::console::DATABASE), cell(clients.count())];
        row.extend((0..12).map(|_| cell(0)));
        row.extend([cell("statement"), None]);
        row.extend((0..14).map(|_| cell(0)));
        row.push(None);
        row
    }

    fn stats_by_database(&self, env: &Env) -> Vec<(String, Stats, Window)> {
        let mut all = Vec::new();
        if env.worker.0 == 0 || self.console_logins > 0 {
            let stats = Stats { client_logins: self.console_logins, ..Stats::default() };
            all.push((crate::console::DATABASE.to_owned(), stats, Window::default()));
        }
        for pool in self.pools.values() {
            add_stats(&mut all, (pool.database.to_string(), pool.stats, pool.window(env.now.mono_us)));
        }
        all
    }

    fn list_sums(&self, env: &Env, names: &NamesSeen) -> Vec<(&'static str, u64)> {
        let first = |count: usize| if env.worker.0 == 0 { count as u64 } else { 0 };
        let config = &env.rules.config;
        let logging_in = self
            .clients
            .values()
            .filter(|client| client.account.is_none() && !matches!(client.state, ClientState::Console(_)))
            .count();
        vec![
            ("databases", first(self.database_names(env).len() + 1)),
            ("users", first(self.user_names(env).len())),
            ("peers", first(config.peers.len())),
            ("pools", self.pools.len() as u64 + first(1)),
            ("peer_pools", first(config.peers.len())),
            ("free_clients", 0),
            ("used_clients", (self.clients.len() - logging_in) as u64),
            ("login_clients", logging_in as u64),
            ("free_servers", 0),
            ("used_servers", self.servers.len() as u64),
            ("dns_names", names.hosts.len() as u64),
            ("dns_zones", names.zones.len() as u64),
            ("dns_queries", names.asked as u64),
            ("dns_pending", 0),
        ]
    }

    /// Two numbers a row: the number in use, and the number that there is room for.
    fn memory_sums(&self, env: &Env) -> Vec<(&'static str, u64)> {
        let first = |count: usize| if env.worker.0 == 0 { count as u64 } else { 0 };
        let users = first(env.rules.users.len());
        let databases = first(env.rules.config.databases.len());
        let statements = env.statements.len() as u64;
        let rows = [
            ("user_cache", users, users),
            ("credentials_cache", users, users),
            ("db_cache", databases, databases),
            ("peer_cache", 0, 0),
            ("peer_pool_cache", 0, 0),
            ("pool_cache", self.pools.len() as u64, self.pools.capacity() as u64),
            (
                "outstanding_request_cache",
                self.servers.values().map(|server| server.ledger.len() as u64).sum(),
                0,
            ),
            ("server_cache", self.servers.len() as u64, self.servers.capacity() as u64),
            ("client_cache", self.clients.len() as u64, self.clients.capacity() as u64),
            ("iobuf_cache", 0, 0),
            ("var_list_cache", 0, 0),
            ("server_prepared_statement_cache", statements, statements),
        ];
        rows.into_iter().flat_map(|(name, used, room)| [(name, used), (name, room)]).collect()
    }

    fn database_rows(&self, env: &Env) -> Vec<Row> {
        let config = &env.rules.config;
        let mut rows: Vec<Row> = Vec::new();
        for name in self.database_names(env) {
            let Some(database) = config.database(name) else { continue };
            let (counts, switches) = (env.shared.database(name), env.shared.switches(name));
            let user = database.user.as_deref().unwrap_or_default();
            let hosts = database.hosts.len() > 1;
            let lifetime_s = config.server_lifetime(&database).as_secs();
            rows.push(vec![
                cell(name),
                (!database.hosts.is_empty()).then(|| database.hosts.join(",")),
                cell(database.port),
                cell(database.dbname.as_deref().unwrap_or(name)),
                database.user.clone(),
                cell(config.pool_size(&database, user)),
                cell(config.min_pool_size(&database)),
                cell(config.reserve_pool_size(&database, user)),
                cell(lifetime_s),
                database.pool_mode.map(|mode| mode.to_string()),
                hosts.then(|| config.load_balance_hosts(&database).as_str().to_owned()),
                cell(config.max_db_connections(&database)),
                cell(counts.servers.taken()),
                cell(config.max_db_client_connections(&database)),
                cell(counts.clients.taken()),
                cell(u8::from(switches.paused)),
                cell(u8::from(switches.disabled)),
            ]);
        }
        rows.push(self.console_database_row(env));
        rows.sort();
        rows
    }

    /// Databases by name: those of the configuration, and those that were made from its fallback.
    fn database_names<'a>(&'a self, env: &'a Env) -> BTreeSet<&'a str> {
        let automatic = self.pools.values().map(|pool| &*pool.database);
        let fallback = pgweir_settings::FALLBACK_DATABASE;
        env.rules
            .config
            .databases
            .keys()
            .map(String::as_str)
            .filter(|name| *name != fallback)
            .chain(automatic)
            .collect()
    }

    /// Users by name: those of `auth_file` and of the configuration, and the console's own.
    fn user_names<'a>(&self, env: &'a Env) -> BTreeSet<&'a str> {
        let configured = env.rules.config.users.keys().map(String::as_str);
        env.rules.users.names().chain(configured).chain([crate::console::DATABASE]).collect()
    }

    fn console_database_row(&self, env: &Env) -> Row {
        let name = crate::console::DATABASE;
        let clients = env.shared.database(name).clients.taken();
        let main = &env.rules.config.main;
        let (port, clients_max) = (main.listen_port, main.max_db_client_connections);
        let mut row = vec![cell(name), None, cell(port), cell(name), cell(name), cell(2), cell(0), cell(0)];
        row.extend([cell(3600), cell("statement"), None, cell(0), cell(0), cell(clients_max), cell(clients)]);
        row.extend([cell(0), cell(0)]);
        row
    }

    fn user_rows(&self, env: &Env) -> Vec<Row> {
        let config = &env.rules.config;
        let size = |value: Option<u32>| cell(value.map(|value| format!("{value:9}")).unwrap_or_default());
        self.user_names(env)
            .into_iter()
            .map(|name| {
                let own = config.users.get(name);
                let counts = env.shared.user(name);
                vec![
                    cell(name),
                    size(own.and_then(|own| own.pool_size)),
                    size(own.and_then(|own| own.reserve_pool_size)),
                    own.and_then(|own| own.pool_mode).map(|mode| mode.to_string()),
                    cell(config.max_user_connections(name)),
                    cell(counts.servers.taken()),
                    cell(config.max_user_client_connections(name)),
                    cell(counts.clients.taken()),
                ]
            })
            .collect()
    }

    fn config_rows(&self, env: &Env) -> Vec<Row> {
        env.rules
            .config
            .show()
            .into_iter()
            .map(|row| {
                let changeable = if row.changeable { "yes" } else { "no" };
                vec![cell(row.key), row.value, row.default.map(str::to_owned), cell(changeable)]
            })
            .collect()
    }

    fn peer_rows(&self, env: &Env) -> Vec<Row> {
        let config = &env.rules.config;
        config
            .peers
            .values()
            .map(|peer| {
                let size = peer.pool_size.unwrap_or(config.main.default_pool_size);
                vec![cell(peer.id), cell(&peer.host), cell(peer.port), cell(size)]
            })
            .collect()
    }

    fn peer_pool_rows(&self, env: &Env) -> Vec<Row> {
        let ids = env.rules.config.peers.keys();
        ids.map(|&id| {
            let numbers = self.peer_pool_numbers(id);
            std::iter::once(cell(id)).chain(numbers.map(cell)).collect()
        })
        .collect()
    }

    /// As it is known to servers, too.
    pub(super) fn application_name<'a>(&self, env: &Env, params: &'a Params) -> Option<&'a [u8]> {
        params.get(env.tracked.position(b"application_name")?)
    }

    fn state_rows(&self, env: &Env) -> Vec<Row> {
        // A shutdown that waits for servers is a pause that ends with the process.
        let present = match env.stopping {
            Some(Shutdown::WaitForServers) if env.activity == Activity::Active => Activity::Paused,
            _ => env.activity,
        };
        let is = |activity: Activity| cell(if present == activity { "yes" } else { "no" });
        vec![
            vec![cell("active"), is(Activity::Active)],
            vec![cell("paused"), is(Activity::Paused)],
            vec![cell("suspended"), is(Activity::Suspended)],
        ]
    }

    /// A monotonic time as wall clock text: in local time if the caller has said how to write that, else in UTC.
    fn time_text(&self, env: &Env, mono_us: u64) -> String {
        let ago_us = env.now.mono_us.saturating_sub(mono_us);
        let seconds = env.now.wall_us.saturating_sub(ago_us) / 1_000_000;
        self.write_time.as_ref().map_or_else(|| utc_text(seconds), |write| write(seconds))
    }
}

/// Every worker's numbers for the same thing, which the first cell names, become one row.
fn sum_rows(rows: Vec<Row>) -> Vec<Row> {
    let number = |cell: &Option<String>| cell.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0u64);
    let mut sums: Vec<Row> = Vec::new();
    for row in rows {
        match sums.iter_mut().find(|sum| sum.first() == row.first()) {
            Some(sum) => {
                for (total, more) in sum.iter_mut().zip(&row).skip(1) {
                    *total = cell(number(total) + number(more));
                }
            }
            None => sums.push(row),
        }
    }
    sums
}

fn add_stats(all: &mut Vec<(String, Stats, Window)>, (name, stats, window): (String, Stats, Window)) {
    match all.iter_mut().find(|(known, _, _)| *known == name) {
        Some((_, sum, sum_window)) => {
            *sum = sum.plus(&stats);
            *sum_window = sum_window.plus(&window);
        }
        None => all.push((name, stats, window)),
    }
}

/// PgBouncer's counters, then the logins, which only the extended table shows.
fn stats_row((name, stats, window): &(String, Stats, Window), totals: bool, averages: bool) -> Row {
    let parts = [(totals, stats.columns()), (averages, window.averages())];
    let shown = || parts.iter().filter(|(shown, _)| *shown).map(|(_, columns)| columns);
    let theirs = shown().flat_map(|columns| &columns[..TOTALS.len()]);
    let ours = shown().flat_map(|columns| &columns[TOTALS.len()..]);
    std::iter::once(cell(name)).chain(theirs.chain(ours).map(cell)).collect()
}

fn total_rows(stats: &[(String, Stats, Window)]) -> Vec<Row> {
    let mut sum = Stats::default();
    let mut window = Window::default();
    for (_, one, change) in stats {
        sum = sum.plus(one);
        window = window.plus(change);
    }
    let row = |prefix: &str, name: &str, value: u64| vec![cell(format!("{prefix}_{name}")), cell(value)];
    let totals = TOTALS.iter().zip(sum.columns()).map(|(name, value)| row("total", name, value));
    let averages = TOTALS.iter().zip(window.averages()).map(|(name, value)| row("avg", name, value));
    totals.chain(averages).collect()
}

/// One row of SHOW MEM: the sizes are those of the objects' fixed parts.
fn memory_row(pair: &[(&'static str, u64)]) -> Option<Row> {
    let [(name, used), (_, room)] = pair else { return None };
    let size = match *name {
        "client_cache" => size_of::<Client>(),
        "server_cache" => size_of::<Server>(),
        "pool_cache" => size_of::<Pool>(),
        "db_cache" => size_of::<pgweir_settings::Database>(),
        _ => 64,
    } as u64;
    let free = room.saturating_sub(*used);
    // PgBouncer announces an int4.
    let total = ((used + free) * size).min(i32::MAX.unsigned_abs().into());
    Some(vec![cell(name), cell(size), cell(used), cell(free), cell(total)])
}

fn buffer_cells(received: usize, queued: usize) -> [Option<String>; 7] {
    [cell(0), cell(0), cell(0), cell(0), cell(queued), cell(received), cell(queued)]
}

fn peer_cells(peer: &Peer) -> (String, u16, String, u16) {
    match peer {
        Peer::Tcp { remote, local } => {
            (remote.ip().to_string(), remote.port(), local.ip().to_string(), local.port())
        }
        Peer::Unix { port, .. } => ("unix".to_owned(), *port, "unix".to_owned(), *port),
    }
}

/// `ptr` and `link` identify a connection; the serial number does so for good.
fn pointer(serial: u64) -> String {
    format!("{serial:#x}")
}

/// Seconds since 1970 as `YYYY-MM-DD HH:MM:SS UTC` (days to civil date after Howard Hinnant's published algorithm).
fn utc_text(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest % 3_600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        assert_eq!(utc_text(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc_text(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc_text(1_795_132_799), "2026-11-19 23:59:59 UTC");
    }
}
