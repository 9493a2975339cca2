//! A pool's part of SHOW, as rows of text.

use crate::client_handoff::{Origin, Replication};
use crate::context::{Cx, Env};
use crate::driver::{Driver, Endpoint, Peer};
use crate::pool::client::state::{Client, ClientState, Link, QueuedBehind};
use crate::pool::server::state::{Server, ServerState};
use crate::pool::show::snapshot::{shown_state, unpooled_state};
use crate::pool::{Pool, ServerKind};
use crate::worker::console::report::{Row, cell};
use crate::worker::unpooled::Unpooled;

impl Pool {
    /// Returns rows of SHOW CLIENTS, or with `sockets` those of SHOW SOCKETS; with `active` only those that have bytes to move.
    pub(crate) fn client_rows<D: Driver>(&self, cx: &Cx<'_, D>, sockets: bool, active: bool) -> Vec<Row> {
        self.clients
            .values()
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
                    row.extend(self.route_cells(cx.env, client));
                }
                row
            })
            .collect()
    }

    /// Returns the cells for the place where a client of a cluster goes, and for the reason.
    fn route_cells(&self, env: &Env, client: &Client) -> [Option<String>; 2] {
        if self.state.cluster.is_none() || client.account.replication != Replication::None {
            return [None, None];
        }
        let aim = self.state.find_aim(env, client);
        [cell(&aim), cell(&aim.by)]
    }

    fn client_row(&self, env: &Env, client: &Client, sockets: bool) -> Row {
        let account = &client.account;
        let state = match &client.state {
            ClientState::Waiting(_) | ClientState::QueuedBehind(_) | ClientState::AwaitingServer(_)
                if sockets =>
            {
                "cl_waiting"
            }
            ClientState::Linked(_) if sockets => "cl_active",
            state => shown_state(state),
        };
        let request_us = account.request.since_us;
        let wait_us = match &client.state {
            ClientState::Waiting(_) | ClientState::QueuedBehind(_) => {
                env.now.mono_us.saturating_sub(request_us)
            }
            ClientState::Linked(link) => self.answer_wait_us(env, link, request_us),
            _ => 0,
        };
        let link = match &client.state {
            ClientState::Linked(Link { server, .. })
            | ClientState::QueuedBehind(QueuedBehind { server, .. }) => self.servers.get(*server),
            _ => None,
        };
        let shown = ShownClient {
            serial: client.serial,
            origin: &client.origin,
            user: &account.user,
            database: &self.state.database,
            replication: account.replication,
            state,
            request_us,
            wait_us,
            link: link.map(|server| server.at.serial),
            application: env.application_name(&account.params),
            statements: account.statements.as_ref().map_or(0, |statements| statements.len()),
        };
        shown.row(env)
    }

    /// Returns the time (µs) for which a client that has a server has waited for an answer. Between its statements a client waits for
    /// nothing.
    fn answer_wait_us(&self, env: &Env, link: &Link, request_us: u64) -> u64 {
        let Some(server) = self.servers.get(link.server) else { return 0 };
        let since_us = if server.state.syncing().is_some() { request_us } else { server.work.query_us };
        if since_us > 0 { env.now.mono_us.saturating_sub(since_us) } else { 0 }
    }

    /// Returns rows of SHOW SERVERS, or with `sockets` those of SHOW SOCKETS.
    pub(crate) fn server_rows<D: Driver>(&self, cx: &Cx<'_, D>, sockets: bool, active: bool) -> Vec<Row> {
        self.servers
            .values()
            .filter(|server| {
                !active || cx.driver.backlog(server.conn) > 0 || !server.incoming.inbox.is_empty()
            })
            .map(|server| {
                let mut row = self.server_row(cx.env, server, sockets);
                if sockets {
                    row.extend(buffer_cells(server.incoming.inbox.len(), cx.driver.backlog(server.conn)));
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
        let pool = &self.state;
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
        let (addr, port) = match &server.at.endpoint {
            Endpoint::Tcp { host, port } => {
                (server.at.remote.map_or_else(|| host.to_string(), |remote| remote.ip().to_string()), *port)
            }
            Endpoint::Unix { .. } => ("unix".to_owned(), pool.config.port),
        };
        let (local_addr, local_port) = server.at.local.rsplit_once(':').unwrap_or(("unix", "0"));
        let request_us = if server.work.query_us > 0 { server.work.query_us } else { server.active_us };
        let wait_us =
            if server.work.query_us > 0 { env.now.mono_us.saturating_sub(server.work.query_us) } else { 0 };
        let link = match &server.state {
            ServerState::Linked(linked) => Some(linked.client),
            _ => None,
        };
        let link = link.and_then(|client| self.clients.get(client)).map(|client| pointer(client.serial));
        let application =
            env.application_name(&server.params).map(|name| String::from_utf8_lossy(name).into_owned());
        let replication = match server.state.client().and_then(|client| self.clients.get(client)) {
            Some(client) if server.is_replication() => client.replication(),
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
            cell(time_text(env, server.at.since.mono_us)),
            cell(time_text(env, request_us)),
            cell(wait_us / 1_000_000),
            cell(wait_us % 1_000_000),
            cell(u8::from(server.retiring.is_some())),
            cell(pointer(server.at.serial)),
            cell(link.unwrap_or_default()),
            cell(server.at.pid),
            cell(&server.at.tls),
            cell(application.unwrap_or_default()),
            cell(server.statements.len()),
            cell(server.at.serial),
        ]
    }

    /// Whether a server has been free for longer than `server_check_delay`: it will be checked before its next use.
    pub(crate) fn is_long_idle(&self, env: &Env, server: &Server) -> bool {
        let delay_us = crate::context::duration_us(env.rules.config.main.server_check_delay);
        env.now.mono_us.saturating_sub(server.active_us) > delay_us
    }

    /// Returns the reason for which a client keeps its server between transactions, and the time since which it does.
    fn pin_cells(&self, env: &Env, client: Option<&Client>) -> [Option<String>; 2] {
        let pin = client.and_then(|client| match &client.state {
            ClientState::Linked(link) => link.pin.as_ref(),
            _ => None,
        });
        match pin {
            Some(pin) => [cell(pin.reasons.text()), cell(time_text(env, pin.since_us))],
            None => [cell(""), None],
        }
    }

    /// Returns the age of a server's transaction, 0 if none is open, and the fingerprint of the statement that it runs.
    fn work_cells(&self, env: &Env, server: Option<&Server>) -> [Option<String>; 2] {
        let Some(server) = server else { return [cell(0), cell("")] };
        let transaction_us = match server.work.xact_us {
            0 => 0,
            began_us => env.now.mono_us.saturating_sub(began_us),
        };
        let statement = Some(&server.work.running)
            .filter(|_| server.work.query_us > 0)
            .and_then(|running| env.measured.stats.known(running))
            .map_or_else(String::new, |known| format!("{:016x}", known.fingerprint));
        [cell(transaction_us), cell(statement)]
    }

    /// Returns a row of SHOW POOLS_EXTENDED, which begins with that of SHOW POOLS.
    pub(crate) fn pool_row(&self, env: &Env) -> Row {
        let pool = &self.state;
        let used = self.long_idle_servers(env);
        let wait_us = self.wait_oldest_us(env);
        let sent = self.cancels.len();
        let hosts = pool.config.hosts.len() > 1;
        let balance = hosts.then(|| env.rules.config.load_balance_hosts(&pool.config).as_str().to_owned());
        let waiting = (pool.waiting() + pool.count.queued_behind + pool.at_login()) as usize;
        let asking = pool.queue.lookups.len();
        let mut row = vec![
            cell(&pool.database),
            cell(&pool.user),
            cell(self.clients.len().saturating_sub(waiting)),
            cell(waiting + asking),
            cell(sent),
            cell(pool.queue.cancels.len()),
            cell(pool.servers(ServerKind::Active)),
            cell(sent),
            cell(pool.servers(ServerKind::BeingCanceled)),
            cell(pool.servers(ServerKind::Idle) - used),
            cell(used),
            cell(pool.servers(ServerKind::Tested)),
            cell(pool.servers(ServerKind::Login)),
            cell(wait_us / 1_000_000),
            cell(wait_us % 1_000_000),
            cell(pool.policy.mode),
            balance,
            cell(pool.node.pace.target(env.rules.config.main.multiplex_servers)),
            cell(pool.nodes().map(|node| node.short.len()).sum::<usize>()),
            cell(pool.count.queued_behind),
            cell(pool.numbers.multiplexing.multiplexed),
            cell(pool.numbers.multiplexing.requeued),
            cell(pool.numbers.multiplexing.violations),
            cell(pool.node.pace.decisions()),
            cell(pool.count.pinned),
        ];
        row.extend(pool.numbers.continuity.each().map(|(_, _, count)| cell(count)));
        row.push(pool.failure().map(|failure| failure.text.clone()));
        row
    }
}

/// The values of a client in SHOW CLIENTS.
struct ShownClient<'a> {
    serial: u64,
    origin: &'a Origin,
    user: &'a str,
    database: &'a str,
    replication: Replication,
    state: &'static str,
    request_us: u64,
    wait_us: u64,
    /// The number of the client's server.
    link: Option<u64>,
    application: Option<&'a [u8]>,
    statements: usize,
}

impl ShownClient<'_> {
    fn row(&self, env: &Env) -> Row {
        let (addr, port, local_addr, local_port) = peer_cells(&self.origin.peer);
        let remote_pid = match self.origin.peer {
            Peer::Unix { pid, .. } => pid,
            Peer::Tcp { .. } => 0,
        };
        let application = self.application.map(|name| String::from_utf8_lossy(name).into_owned());
        vec![
            cell("C"),
            cell(self.user),
            cell(self.database),
            cell(self.replication.text()),
            cell(self.state),
            cell(addr),
            cell(port),
            cell(local_addr),
            cell(local_port),
            cell(time_text(env, self.origin.since.mono_us)),
            cell(time_text(env, self.request_us)),
            cell(self.wait_us / 1_000_000),
            cell(self.wait_us % 1_000_000),
            cell(0),
            cell(pointer(self.serial)),
            cell(self.link.map(pointer).unwrap_or_default()),
            cell(remote_pid),
            cell(self.origin.tls.as_ref().map_or("", |tls| &tls.description)),
            cell(application.unwrap_or_default()),
            cell(self.statements),
            cell(self.serial),
        ]
    }
}

/// Returns the row of SHOW CLIENTS, or with `sockets` that of SHOW SOCKETS, for a client that is in no pool.
pub(crate) fn unpooled_row<D: Driver>(cx: &Cx<'_, D>, client: &Unpooled, sockets: bool) -> Row {
    let console = client.console();
    let shown = ShownClient {
        serial: client.serial,
        origin: &client.origin,
        user: console.map_or("", |console| console.user()),
        database: console.map_or("", |_| crate::worker::console::DATABASE),
        replication: Replication::None,
        state: unpooled_state(&client.state),
        request_us: console.map_or(client.origin.since.mono_us, |console| console.request_us),
        wait_us: 0,
        link: None,
        application: console.and_then(|console| console.application.as_deref()),
        statements: 0,
    };
    let mut row = shown.row(cx.env);
    if sockets {
        row.extend(buffer_cells(client.inbox.len(), cx.driver.backlog(client.conn)));
    } else {
        row.extend([cell(0), cell(""), None, cell(0), cell(""), None, None]);
    }
    row
}

/// Returns a monotonic time as wall clock text: in local time if the caller has said how to write that, else in UTC.
pub(crate) fn time_text(env: &Env, mono_us: u64) -> String {
    let ago_us = env.now.mono_us.saturating_sub(mono_us);
    let seconds = env.now.wall_us.saturating_sub(ago_us) / 1_000_000;
    env.write_time.as_ref().map_or_else(|| utc_text(seconds), |write| write(seconds))
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

/// Returns the text for `ptr` and `link`, which identify a connection by its serial number. No other connection ever has it.
fn pointer(serial: u64) -> String {
    format!("{serial:#x}")
}

/// Returns seconds since 1970 as `YYYY-MM-DD HH:MM:SS UTC` (days to civil date after Howard Hinnant's published algorithm).
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
