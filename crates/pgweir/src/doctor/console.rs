//! The console of a running pooler: how it is found and entered, and the numbers that its tables have.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use pgweir_auth::{Credential, Secret};
use pgweir_client::{Address, Client, Login, UrlError, parse_url};
use pgweir_control::Examination;
use pgweir_doctor::{
    Database, Lagging, Pinned, Pool, Settings, SharedLimit, Snapshot, Source, Statement, Vip,
};
use pgweir_net::{DEEP_BACKLOG_BYTES, Pems, TlsConfigs};
use pgweir_settings::{ADMIN_DATABASE, Main};

use super::system;
use crate::probe;

const APPLICATION_NAME: &str = "pgweir doctor";

/// The user that the operating system's user of the pooler enters as, over the unix socket without a password.
const HOUSE_USER: &str = "pgbouncer";

/// How long the console may take for an answer.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The time between two looks at clients that may not read.
const WATCH_S: u64 = 1;

/// A row of a table, by the names of its columns.
type Row = BTreeMap<String, String>;

/// A console that was entered.
pub(super) struct Console {
    client: Client,
    name: String,
    is_local: bool,
    settings: BTreeMap<String, String>,
}

/// Where a login goes.
pub(crate) fn place(login: &Login) -> String {
    match &login.address {
        Address::Loopback(port) => format!("127.0.0.1:{port}"),
        Address::Tcp(host, port) => format!("{host}:{port}"),
        Address::Unix(folder, port) => format!("unix:{}:{port}", folder.display()),
    }
}

/// The login of a URL; without a database, it is the console.
pub(crate) fn login_of_url(url: &str) -> Result<Login, UrlError> {
    let mut login = parse_url(url, APPLICATION_NAME)?;
    if login.database == login.user {
        ADMIN_DATABASE.clone_into(&mut login.database);
    }
    Ok(prepared(login))
}

/// Over TCP, TLS is spoken where the pooler offers it.
fn prepared(mut login: Login) -> Login {
    login.wait_max = WAIT_MAX;
    let host = match &login.address {
        Address::Tcp(host, _) => host.clone(),
        Address::Loopback(_) | Address::Unix(..) => return login,
    };
    let prefer = TlsConfigs::build(&Main::default(), Pems::default(), Pems::default()).unwrap_or_default();
    login.tls = probe::of_server(&prefer, &host).unwrap_or_default();
    login
}

/// The console of the pooler that runs with this file: as the user of the operating system, else as a user of the console whose password
/// is in `auth_file`.
///
/// # Errors
/// The last reason why none could be entered.
pub(super) fn find(seen: &Examination) -> Result<Console, String> {
    let main = &seen.config.main;
    let mut why = if main.listen_addr.is_empty() && main.unix_socket_dir.is_empty() {
        "neither listen_addr nor unix_socket_dir is set".to_owned()
    } else {
        "no user of admin_users or stats_users has a password in auth_file with which pgweir could log in over TCP, and there is no unix socket"
            .to_owned()
    };
    for login in logins(seen) {
        match Console::enter(&login) {
            Ok(console) => return Ok(console),
            Err(reason) => why = format!("{}: {reason}", place(&login)),
        }
    }
    Err(why)
}

/// The ways into the console of the pooler that runs with this file, the one that needs no password first.
pub(crate) fn logins(seen: &Examination) -> Vec<Login> {
    let main = &seen.config.main;
    let port = main.listen_port;
    let unix = Some(&main.unix_socket_dir).filter(|folder| !folder.is_empty());
    let unix = unix.map(|folder| Address::Unix(folder.into(), port));
    let tcp = main.listen_addr.first().map(|host| match host.as_str() {
        "*" | "0.0.0.0" | "::" => Address::Tcp("127.0.0.1".to_owned(), port),
        host => Address::Tcp(host.to_owned(), port),
    });
    let names = main.admin_users.iter().chain(&main.stats_users);
    let known: Vec<(&String, &Secret)> =
        names.filter_map(|name| Some((name, seen.users.as_ref()?.get(name)?))).collect();
    let mut found = Vec::new();
    found.extend(unix.clone().map(|address| trusted(address, HOUSE_USER)));
    for address in unix.into_iter().chain(tcp) {
        for (name, secret) in &known {
            // A SCRAM secret proves nothing to the pooler.
            if !matches!(secret, Secret::Scram(_)) {
                let credential = Credential::Secret((*secret).clone());
                found.push(prepared(Login { credential, ..trusted(address.clone(), name) }));
            }
        }
    }
    found.into_iter().map(|login| Login { wait_max: WAIT_MAX, ..login }).collect()
}

fn trusted(address: Address, user: &str) -> Login {
    Login::trusted(address, user, ADMIN_DATABASE, APPLICATION_NAME)
}

impl Console {
    /// Logs in, and reads the settings.
    pub(super) fn enter(login: &Login) -> Result<Console, String> {
        let mut client = Client::log_in(login).map_err(|error| probe::why(&error))?;
        let rows = show(&mut client, "CONFIG").map_err(|error| probe::why(&error))?;
        let settings = rows
            .into_iter()
            .map(|mut row| (row.remove("key").unwrap_or_default(), row.remove("value").unwrap_or_default()))
            .collect();
        let is_local = match &login.address {
            Address::Loopback(_) | Address::Unix(..) => true,
            Address::Tcp(host, _) => {
                host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        };
        Ok(Console { client, name: place(login), is_local, settings })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// SHOW CONFIG.
    pub(super) fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    /// The pooler's file, if the pooler runs on this machine and the file can be read.
    pub(super) fn config_file(&self) -> Option<PathBuf> {
        let path = PathBuf::from(self.settings.get("conffile")?);
        (self.is_local && path.is_absolute() && std::fs::File::open(&path).is_ok()).then_some(path)
    }

    /// All numbers. A table that cannot be read (PgBouncer has no extended ones) is empty.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let settings = self.settings.iter().map(|(name, value)| (&**name, &**value));
        let settings = Settings::read(settings);
        let databases = self.show("DATABASES");
        let mut pools = self.show("POOLS_EXTENDED");
        if pools.is_empty() {
            pools = self.show("POOLS");
        }
        let users = self.show("USERS");
        let cache = self.show("CACHE");
        let pinned = self.show("CLIENTS_EXTENDED");
        let state = self.show("STATE");
        let statements = self.show("STATEMENTS");
        let on_machine = self.is_local;
        Snapshot {
            source: Source::Console,
            settings,
            files: self.pid().and_then(system::files_limit),
            somaxconn: if on_machine { system::somaxconn() } else { None },
            is_suspended: state
                .iter()
                .any(|row| text(row, "key") == "suspended" && text(row, "value") == "yes"),
            pools: pools
                .iter()
                .filter(|row| text(row, "database") != ADMIN_DATABASE)
                .map(|row| pool(row, &databases, &users, &cache))
                .collect(),
            databases: databases
                .iter()
                .filter(|row| text(row, "name") != ADMIN_DATABASE)
                .map(|row| database(row, &pools))
                .collect(),
            pinned: pinned.iter().filter_map(pin).collect(),
            statements: statements.iter().map(statement).collect(),
            vip: self.show("VIP").first().map(vip),
            shared_limits: self.show("LIMITS").iter().map(shared_limit).collect(),
            lagging: self.lagging(),
            ..Snapshot::default()
        }
    }

    fn show(&mut self, what: &str) -> Vec<Row> {
        show(&mut self.client, what).unwrap_or_default()
    }

    /// The process at the other end, if it is on this machine.
    fn pid(&self) -> Option<u32> {
        if let Some(socket) = self.client.unix_socket() {
            let pid = getsockopt(&socket, PeerCredentials).ok()?.pid();
            return u32::try_from(pid).ok();
        }
        let path = self.settings.get("pidfile").filter(|path| self.is_local && !path.is_empty())?;
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Clients that have much to read both times.
    fn lagging(&mut self) -> Vec<Lagging> {
        let first = behind(&self.show("SOCKETS"));
        if first.is_empty() {
            return Vec::new();
        }
        thread::sleep(Duration::from_secs(WATCH_S));
        let first: BTreeSet<String> = first.into_iter().map(|(id, _)| id).collect();
        let both = behind(&self.show("SOCKETS")).into_iter().filter(|(id, _)| first.contains(id));
        both.map(|(_, client)| client).collect()
    }
}

fn show(client: &mut Client, what: &str) -> io::Result<Vec<Row>> {
    let (columns, rows) = client.table(&format!("SHOW {what}"))?;
    Ok(rows.into_iter().map(|row| columns.iter().cloned().zip(row).collect()).collect())
}

fn text<'a>(row: &'a Row, column: &str) -> &'a str {
    row.get(column).map_or("", String::as_str)
}

fn number(row: &Row, column: &str) -> u64 {
    text(row, column).parse().unwrap_or_default()
}

/// Clients for which more waits than the pooler reads ahead, by what identifies them.
fn behind(sockets: &[Row]) -> Vec<(String, Lagging)> {
    let lags =
        |row: &&Row| text(row, "type") == "C" && number(row, "send_avail") >= DEEP_BACKLOG_BYTES as u64;
    let client = |row: &Row| {
        let address = match text(row, "addr") {
            "unix" => "unix".to_owned(),
            address => format!("{address}:{}", text(row, "port")),
        };
        let lagging = Lagging {
            database: text(row, "database").to_owned(),
            user: text(row, "user").to_owned(),
            address,
            application_name: text(row, "application_name").to_owned(),
            bytes: number(row, "send_avail"),
            watched_s: WATCH_S,
        };
        (text(row, "ptr").to_owned(), lagging)
    };
    sockets.iter().filter(lags).map(client).collect()
}

fn statement(row: &Row) -> Statement {
    Statement {
        database: text(row, "database").to_owned(),
        user: text(row, "user").to_owned(),
        text: text(row, "query").to_owned(),
        cache: text(row, "cache").to_owned(),
        calls: number(row, "calls"),
        server_us: number(row, "server_us"),
    }
}

fn shared_limit(row: &Row) -> SharedLimit {
    let node = match text(row, "node") {
        "" => String::new(),
        node => format!(" at {node}"),
    };
    SharedLimit {
        name: format!("{} \"{}\"{node}", text(row, "kind"), text(row, "name")),
        state: text(row, "state").to_owned(),
        limit: number(row, "limit"),
        poolers: number(row, "poolers"),
        kept_back: number(row, "kept_back"),
        reason: text(row, "reason").to_owned(),
    }
}

fn vip(row: &Row) -> Vip {
    let text = |column| text(row, column).to_owned();
    Vip { address: text("address"), state: text("state"), lease: text("lease"), error: text("error") }
}

fn pin(row: &Row) -> Option<Pinned> {
    let reasons = text(row, "pinned");
    (!reasons.is_empty())
        .then(|| Pinned { database: text(row, "database").to_owned(), reasons: reasons.to_owned() })
}

fn pool(row: &Row, databases: &[Row], users: &[Row], cache: &[Row]) -> Pool {
    // A size of the user goes before that of the database.
    let of_user = users.iter().find(|user| text(user, "name") == text(row, "user"));
    let of_user = of_user.filter(|user| !text(user, "pool_size").is_empty());
    let of_database = databases.iter().find(|database| text(database, "name") == text(row, "database"));
    let is_same = |other: &&Row| ["database", "user"].iter().all(|key| text(other, key) == text(row, key));
    Pool {
        database: text(row, "database").to_owned(),
        user: text(row, "user").to_owned(),
        size: of_user.or(of_database).map_or(0, |row| number(row, "pool_size")),
        active: number(row, "sv_active"),
        pinned: number(row, "sv_pinned"),
        waiting: number(row, "cl_waiting"),
        wait_oldest_us: number(row, "maxwait") * 1_000_000 + number(row, "maxwait_us"),
        failure: Some(text(row, "connect_failure")).filter(|why| !why.is_empty()).map(str::to_owned),
        multiplex_violations: number(row, "total_multiplex_violations"),
        session_differences: number(row, "total_session_differences"),
        wrong_answers: cache.iter().find(is_same).map_or(0, |row| number(row, "wrong")),
    }
}

fn database(row: &Row, pools: &[Row]) -> Database {
    let name = text(row, "name");
    let hosts = text(row, "host").split(',').map(str::trim).filter(|host| !host.is_empty());
    let open = pools.iter().filter(|pool| text(pool, "database") == name).count() as u64;
    Database {
        name: name.to_owned(),
        hosts: hosts.map(str::to_owned).collect(),
        port: text(row, "port").parse().unwrap_or_default(),
        // auth_user has a pool in each database that it is asked in.
        pools: open.max(1),
        pool_size: number(row, "pool_size"),
        reserve_pool_size: number(row, "reserve_pool_size"),
        max_connections: number(row, "max_connections"),
        is_paused: text(row, "paused") == "1",
        is_disabled: text(row, "disabled") == "1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pairs: &[(&str, &str)]) -> Row {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn rows_become_numbers() {
        let databases =
            [row(&[("name", "a"), ("host", "h1,h2"), ("port", "5433"), ("pool_size", "7"), ("paused", "1")])];
        let pools = [
            row(&[
                ("database", "a"),
                ("user", "u"),
                ("sv_active", "2"),
                ("sv_idle", "1"),
                ("cl_waiting", "3"),
                ("maxwait", "1"),
                ("maxwait_us", "5"),
            ]),
            row(&[("database", "a"), ("user", "v"), ("connect_failure", "refused")]),
        ];
        let users = [row(&[("name", "v"), ("pool_size", "3")]), row(&[("name", "u"), ("pool_size", "")])];
        let cache = [row(&[("database", "a"), ("user", "u"), ("wrong", "4")])];
        let first = pool(&pools[0], &databases, &users, &cache);
        let second = pool(&pools[1], &databases, &users, &cache);
        assert_eq!((second.size, first.wrong_answers, second.wrong_answers), (3, 4, 0));
        assert_eq!((first.size, first.active, first.waiting, first.wait_oldest_us), (7, 2, 3, 1_000_005));
        assert_eq!(
            (first.failure, pool(&pools[1], &databases, &[], &[]).failure.as_deref()),
            (None, Some("refused"))
        );
        let seen = database(&databases[0], &pools);
        assert_eq!(
            (seen.hosts.len(), seen.port, seen.pools, seen.is_paused, seen.is_disabled),
            (2, 5433, 2, true, false)
        );
        let unused = row(&[("name", "b"), ("host", "")]);
        assert_eq!((database(&unused, &pools).pools, database(&unused, &pools).hosts.len()), (1, 0));
    }

    #[test]
    fn clients_far_behind_are_found() {
        let socket = |kind: &str, bytes: &str| {
            row(&[("type", kind), ("ptr", "C-1"), ("addr", "10.0.0.1"), ("port", "5"), ("send_avail", bytes)])
        };
        let found = behind(&[socket("C", "16384"), socket("C", "16383"), socket("S", "99999")]);
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].1.address, found[0].1.bytes), ("10.0.0.1:5", 16_384));
    }

    #[test]
    fn a_url_without_a_database_is_the_console() {
        let login = login_of_url("postgres://admin:s3cret@db.example:6432").expect("good");
        assert_eq!((&*login.database, place(&login)), ("pgbouncer", "db.example:6432".to_owned()));
        assert!(login.tls.is_some_and(|tls| !tls.is_required));
        assert!(
            !login_of_url("postgres://admin:s3cret@h:x").expect_err("no port").to_string().contains("s3cret")
        );
    }
}
