//! A worker's part of SHOW as rows of text, and the merging of the workers' rows into one table.

use std::collections::BTreeSet;

use pgweir_settings::CompatibleWith;

use crate::cluster::vip::VipReport;
use crate::context::Activity;
use crate::context::{Cx, Env};
use crate::driver::{Driver, NamesSeen};
use crate::mail::Scarce;
use crate::mail::Shutdown;
use crate::pool::client::state::Client;
use crate::pool::server::state::Server;
use crate::pool::show::rows::unpooled_row;
use crate::pool::{Pool, PoolState};
use crate::shared::places::LimitReport;
use crate::stats::{Stats, Window};
use crate::worker::Worker;
use crate::worker::clusters::report::{merged_clusters, merged_nodes};
use crate::worker::console::command::{Outcome, Topic};
use crate::worker::console::hosts::{host_rows, zone_rows};
use crate::worker::console::statements::statement_rows;
use crate::worker::console::table::column_names;
use crate::worker::console::{self, statistics};

pub(crate) type Row = Vec<Option<String>>;

/// A cell that has a value.
pub(crate) fn cell(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

impl Worker {
    /// Returns this worker's part of a topic. If all workers have the same rows, they come from the first worker alone.
    pub(crate) fn report<D: Driver>(&mut self, cx: &Cx<'_, D>, topic: Topic) -> Outcome {
        let first = cx.env.worker.0 == 0;
        match topic {
            Topic::Clients | Topic::ClientsExtended => Outcome::Rows(self.client_rows(cx, false, false)),
            Topic::Servers | Topic::ServersExtended => Outcome::Rows(
                self.pools.values().flat_map(|pool| pool.server_rows(cx, false, false)).collect(),
            ),
            Topic::Sockets | Topic::ActiveSockets => {
                let active = topic == Topic::ActiveSockets;
                let mut rows = self.client_rows(cx, true, active);
                rows.extend(self.pools.values().flat_map(|pool| pool.server_rows(cx, true, active)));
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
            Topic::Cache => Outcome::Rows(self.pools.values().map(|pool| pool.cache_row(cx.env)).collect()),
            Topic::Statements => Outcome::Statements(self.top_statements(cx.env)),
            Topic::Fds => Outcome::Rows(self.descriptor_rows(cx)),
            Topic::DnsHosts => Outcome::Rows(host_rows(&cx.driver.names())),
            Topic::DnsZones => Outcome::Rows(zone_rows(&cx.driver.names())),
            Topic::Clusters => Outcome::Rows(self.cluster_rows(cx.env)),
            Topic::Nodes => Outcome::Rows(self.node_rows(cx.env)),
            _ if !first => Outcome::Rows(Vec::new()),
            Topic::Databases => Outcome::Rows(self.database_rows(cx.env)),
            Topic::Users => Outcome::Rows(self.user_rows(cx.env)),
            Topic::Config => Outcome::Rows(self.config_rows(cx.env, false)),
            Topic::ConfigExtended => Outcome::Rows(self.config_rows(cx.env, true)),
            Topic::Overlay => Outcome::Rows(self.overlay_rows(cx.env)),
            Topic::State => Outcome::Rows(self.state_rows(cx.env)),
            Topic::Version => Outcome::Rows(vec![vec![cell(console::version_text(
                &cx.env.rules.config.main,
                cx.env.version,
            ))]]),
            Topic::Peers => Outcome::Rows(self.peer_rows(cx.env)),
            Topic::Vip => Outcome::Rows(vip_rows(cx.env)),
            Topic::Limits => Outcome::Rows(limit_rows(cx.env)),
            Topic::Help => Outcome::Rows(Vec::new()),
        }
    }

    fn client_rows<D: Driver>(&self, cx: &Cx<'_, D>, sockets: bool, active: bool) -> Vec<Row> {
        let unpooled = self
            .unpooled
            .values()
            .filter(|client| sockets || client.console().is_some())
            .filter(|client| !active || cx.driver.backlog(client.conn) > 0 || !client.inbox.is_empty());
        let unpooled = unpooled.map(|client| unpooled_row(cx, client, sockets));
        self.pools.values().flat_map(|pool| pool.client_rows(cx, sockets, active)).chain(unpooled).collect()
    }

    /// Merges the workers' answers.
    pub(crate) fn merge(
        &self,
        topic: Topic,
        compatible_with: CompatibleWith,
        outcomes: Vec<Outcome>,
    ) -> Vec<Row> {
        let mut rows = Worker::merged(topic, compatible_with, outcomes);
        // Rows are made for the extended tables. The other ones lack the columns at the end.
        let width = column_names(topic, compatible_with).len();
        rows.iter_mut().for_each(|row| row.truncate(width));
        rows
    }

    fn merged(topic: Topic, compatible_with: CompatibleWith, outcomes: Vec<Outcome>) -> Vec<Row> {
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
            Topic::Stats | Topic::StatsExtended | Topic::StatsTotals | Topic::StatsAverages => {
                stats.iter().map(|one| statistics::row(topic, compatible_with, one)).collect()
            }
            Topic::Totals => statistics::total_rows(compatible_with, &stats),
            Topic::PeerPools => sum_rows(rows),
            Topic::Clusters => merged_clusters(rows),
            Topic::Statements => statement_rows(statements),
            Topic::Nodes => merged_nodes(rows),
            Topic::Pools | Topic::PoolsExtended | Topic::Percentiles | Topic::Cache => {
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
}

fn limit_rows(env: &Env) -> Vec<Row> {
    let row = |limit: LimitReport| {
        let (name, kind, node) = match limit.of {
            Scarce::Database(name) => (name, "database", None),
            Scarce::Standby(name, node) => (name, "database", Some(node)),
            Scarce::User(name) => (name, "user", None),
        };
        vec![
            cell(name),
            cell(kind),
            node.map(|node| node.to_string()),
            cell(limit.limit),
            cell(limit.granted),
            cell(limit.held),
            cell(limit.demand),
            cell(limit.poolers),
            cell(limit.kept_back),
            limit.leader.map(|leader| leader.to_string()),
            cell(limit.state),
            limit.reason,
        ]
    };
    env.shared.limits().into_iter().map(row).collect()
}

fn vip_rows(env: &Env) -> Vec<Row> {
    let row = |VipReport { address, interface, state, lease, holder, error }| {
        vec![cell(address), interface, cell(state), cell(lease), holder, error]
    };
    env.shared.vip().into_iter().map(row).collect()
}

impl Worker {
    fn pool_rows(&self, env: &Env) -> Vec<Row> {
        let mut rows: Vec<Row> = self.pools.values().map(|pool| pool.pool_row(env)).collect();
        if env.worker.0 == 0 {
            rows.push(self.console_pool_row());
        }
        rows
    }

    fn console_pool_row(&self) -> Row {
        let clients = self.unpooled.values().filter(|client| client.console().is_some());
        let mut row = vec![
            cell(crate::worker::console::DATABASE),
            cell(crate::worker::console::DATABASE),
            cell(clients.count()),
        ];
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
            all.push((crate::worker::console::DATABASE.to_owned(), stats, Window::default()));
        }
        for pool in self.pools.values().map(|pool| &pool.state) {
            add_stats(
                &mut all,
                (pool.database.to_string(), pool.numbers.stats, pool.numbers.window(env.now.mono_us)),
            );
        }
        all
    }

    fn list_sums(&self, env: &Env, names: &NamesSeen) -> Vec<(&'static str, u64)> {
        let first = |count: usize| if env.worker.0 == 0 { count as u64 } else { 0 };
        let config = &env.rules.config;
        let logging_in = self.unpooled.values().filter(|client| client.console().is_none()).count();
        let pooled: usize = self.pools.values().map(|pool| pool.clients.len()).sum();
        let servers: usize = self.pools.values().map(|pool| pool.servers.len()).sum();
        vec![
            ("databases", first(self.database_names(env).len() + 1)),
            ("users", first(self.user_names(env).len())),
            ("peers", first(config.peers.len())),
            ("pools", self.pools.len() as u64 + first(1)),
            ("peer_pools", first(config.peers.len())),
            ("free_clients", 0),
            ("used_clients", (pooled + self.unpooled.len() - logging_in) as u64),
            ("login_clients", logging_in as u64),
            ("free_servers", 0),
            ("used_servers", servers as u64),
            ("dns_names", names.hosts.len() as u64),
            ("dns_zones", names.zones.len() as u64),
            ("dns_queries", names.asked as u64),
            ("dns_pending", 0),
        ]
    }

    /// Returns two entries for each row of SHOW MEM: the number in use, and the number that there is room for.
    fn memory_sums(&self, env: &Env) -> Vec<(&'static str, u64)> {
        let first = |count: usize| if env.worker.0 == 0 { count as u64 } else { 0 };
        let users = first(env.rules.users.len());
        let databases = first(env.rules.config.databases.len());
        let statements = env.statements.len() as u64;
        let servers = || self.pools.values().flat_map(|pool| pool.servers.values());
        let sum = |of: fn(&Pool) -> usize| self.pools.values().map(|pool| of(pool) as u64).sum::<u64>();
        let rows = [
            ("user_cache", users, users),
            ("credentials_cache", users, users),
            ("db_cache", databases, databases),
            ("peer_cache", 0, 0),
            ("peer_pool_cache", 0, 0),
            ("pool_cache", self.pools.len() as u64, self.pools.capacity() as u64),
            ("outstanding_request_cache", servers().map(|server| server.ledger.len() as u64).sum(), 0),
            ("server_cache", sum(|pool| pool.servers.len()), sum(|pool| pool.servers.capacity())),
            ("client_cache", sum(|pool| pool.clients.len()), sum(|pool| pool.clients.capacity())),
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
            let view = database.cluster.as_deref().and_then(|cluster| env.clusters.views.get(cluster));
            let primary = view.and_then(|view| view.primary.as_ref());
            let host = (!database.hosts.is_empty()).then(|| database.hosts.join(","));
            let lifetime_s = config.server_lifetime(&database).as_secs();
            rows.push(vec![
                cell(name),
                primary.map_or(host, |primary| Some(primary.host.to_string())),
                cell(primary.map_or(database.port, |primary| primary.port)),
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
        let automatic = self.pools.values().map(|pool| &*pool.state.database);
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
        env.rules.users.names().chain(configured).chain([crate::worker::console::DATABASE]).collect()
    }

    fn console_database_row(&self, env: &Env) -> Row {
        let name = crate::worker::console::DATABASE;
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

    /// The sources of the configuration, for a process that takes this one's place. The values may be secrets: `run_command` shows them
    /// to a process of the same user only.
    fn overlay_rows(&self, env: &Env) -> Vec<Row> {
        let handed_over = &env.rules.config.handed_over.0;
        handed_over.iter().map(|(name, text)| vec![cell(name), cell(text)]).collect()
    }

    fn config_rows(&self, env: &Env, with_source: bool) -> Vec<Row> {
        env.rules
            .config
            .show()
            .into_iter()
            .map(|row| {
                let changeable = if row.changeable { "yes" } else { "no" };
                let mut cells =
                    vec![cell(row.key), row.value, row.default.map(str::to_owned), cell(changeable)];
                if with_source {
                    cells.push(cell(row.source));
                }
                cells
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
}

/// Adds up the workers' rows that have the same first cell.
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

/// One row of SHOW MEM: the sizes are those of the objects' fixed parts.
fn memory_row(pair: &[(&'static str, u64)]) -> Option<Row> {
    let [(name, used), (_, room)] = pair else { return None };
    let size = match *name {
        "client_cache" => size_of::<Client>(),
        "server_cache" => size_of::<Server>(),
        "pool_cache" => size_of::<PoolState>(),
        "db_cache" => size_of::<pgweir_settings::Database>(),
        _ => 64,
    } as u64;
    let free = room.saturating_sub(*used);
    // PgBouncer announces an int4.
    let total = ((used + free) * size).min(i32::MAX.unsigned_abs().into());
    Some(vec![cell(name), cell(size), cell(used), cell(free), cell(total)])
}
