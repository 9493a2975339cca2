//! Logins to PostgreSQL as the pools of a configuration would do them: as which user, with which result, and what the server allows.

use std::borrow::Cow;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pgweir_auth::{Credential, PlainPassword, ProverError, Secret, UserList};
use pgweir_client::{Address, Client, ServerError, Tls};
use pgweir_doctor::Limits;
use pgweir_net::{TlsConfigs, certificate_end_point};
use pgweir_settings::{Config, Database, Discovery, FALLBACK_DATABASE};

/// Logins that are under way at once.
const AT_ONCE: usize = 8;

/// The wait for a server that has no limit (`server_connect_timeout = 0`).
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The database that every server has: where the `*` entry is tried.
const MAINTENANCE_DATABASE: &str = "postgres";

const APPLICATION_NAME: &str = "pgweir check";

/// What PostgreSQL allows this session. Settings come in milliseconds, as pg_settings has them.
const LIMITS_QUERY: &str = "\
select current_setting('max_connections'), current_setting('superuser_reserved_connections'), \
coalesce(current_setting('reserved_connections', true), '0'), \
(select case when rolsuper then -1 else rolconnlimit end from pg_roles where rolname = session_user), \
(select datconnlimit from pg_database where datname = current_database()), \
coalesce((select setting from pg_settings where name = 'idle_in_transaction_session_timeout'), '0'), \
coalesce((select setting from pg_settings where name = 'idle_session_timeout'), '0'), \
(select setting from pg_settings where name = 'statement_timeout'), \
(select setting from pg_settings where name = 'client_connection_check_interval'), \
count(*), coalesce(floor(extract(epoch from max(clock_timestamp() - state_change))), 0) \
from pg_stat_activity where datname = current_database() and usename = session_user and state like 'idle in transaction%'";

/// A login to be tried.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The database as clients name it.
    pub(crate) database: String,
    /// The host; empty for the unix socket.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    /// `auth_query` to run after the login.
    pub(crate) auth_query: Option<String>,
    connect_query: Option<String>,
    server: pgweir_client::Login,
}

/// A login that was tried.
pub(crate) struct Login {
    pub(crate) target: Target,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

/// What came of a login.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The pool would have a server.
    Accepted { version: String, limits: Option<Limits>, remark: String },
    /// It would not: why, in PostgreSQL's or the operating system's words.
    Failed(String),
    /// It cannot be known without a client's password.
    Untested(String),
}

impl Target {
    /// Logs in, and stays.
    pub(crate) fn log_in(&self) -> io::Result<Client> {
        Client::log_in(&self.server)
    }
}

impl Outcome {
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Outcome::Failed(_))
    }
}

/// What decides on the user of each login.
pub(crate) struct Logins<'a> {
    pub(crate) config: &'a Config,
    pub(crate) users: &'a UserList,
    pub(crate) tls: &'a TlsConfigs,
    /// The user for databases that force none. Otherwise it is the first of the users whose password is known.
    pub(crate) user: Option<&'a str>,
    /// The password of that user, if it is not the one of `auth_file`.
    pub(crate) password: Option<PlainPassword>,
}

/// A name, and what it stands for.
pub(crate) type Named<'a> = (&'a str, &'a Database);

impl Logins<'_> {
    /// The logins that a configuration asks for: one for each host of each database, and one for each `auth_query`. Errors are told
    /// in place of a login.
    pub(crate) fn targets(&self) -> Vec<Result<Target, String>> {
        let config = self.config;
        let mut found: Vec<Result<Target, String>> = Vec::new();
        let mut asked = Vec::new();
        let fallback = config.fallback.iter().map(|database| (FALLBACK_DATABASE, database));
        let named = config.databases.iter().map(|(name, database)| (&**name, database));
        for (name, database) in named.chain(fallback) {
            let auth_user = database.auth_user.as_deref().or(config.main.auth_user.as_deref());
            let auth_user = auth_user.filter(|user| !user.is_empty());
            let chosen = database.user.as_deref().or(self.user);
            match chosen.or_else(|| self.first_user()).or(auth_user) {
                Some(user) => found.extend(self.at_each_host((name, database), user, None)),
                None => found.push(Err(format!(
                    "database {name}: there is no user in auth_file to log in as; name one with --user"
                ))),
            }
            let query = database.auth_query.as_deref().unwrap_or(&config.main.auth_query);
            let Some(auth_user) = auth_user.filter(|_| !query.is_empty()) else { continue };
            let place =
                database.auth_dbname.as_deref().or(config.main.auth_dbname.as_deref()).unwrap_or(name);
            let question = (place.to_owned(), auth_user.to_owned(), query.to_owned());
            if !asked.contains(&question) {
                found.extend(self.question(place, auth_user, query));
                asked.push(question);
            }
        }
        found
    }

    /// The logins of the query cache to a database that it follows.
    pub(crate) fn followers(&self, (name, database): Named<'_>, user: &str) -> Vec<Result<Target, String>> {
        let own =
            Database { user: Some(user.to_owned()), password: None, connect_query: None, ..database.clone() };
        self.at_each_host((name, &own), user, None)
    }

    /// `auth_query`, where it runs.
    fn question(&self, place: &str, auth_user: &str, query: &str) -> Vec<Result<Target, String>> {
        let template = self.config.fallback.clone().filter(|_| place == FALLBACK_DATABASE);
        match template.or_else(|| self.config.database(place).map(Cow::into_owned)) {
            Some(at) => self.at_each_host((place, &at), auth_user, Some(query)),
            None => vec![Err(format!("authentication database {place} is not configured"))],
        }
    }

    /// The first user whose password is known here; not one of the console's if there is another.
    fn first_user(&self) -> Option<&str> {
        let main = &self.config.main;
        let of_console = |name: &str| main.admin_users.iter().chain(&main.stats_users).any(|own| own == name);
        // `false` comes first.
        let order = |(name, secret): &(&str, &Secret)| (!proves(secret), of_console(name));
        self.users.iter().min_by_key(order).map(|(name, _)| name)
    }

    fn at_each_host(
        &self,
        named: Named<'_>,
        user: &str,
        auth_query: Option<&str>,
    ) -> Vec<Result<Target, String>> {
        let (unix, port) = ([String::new()], named.1.port);
        let hosts = if named.1.hosts.is_empty() { &unix[..] } else { &named.1.hosts };
        let nodes = self.config.nodes_of(named.1).map(|(_, node)| (node.host.as_str(), node.port));
        let nodes: Vec<(&str, u16)> = nodes.collect();
        let cluster = named.1.cluster.as_ref().and_then(|name| self.config.clusters.get(name));
        let nodes = match cluster.map(|cluster| (cluster.discovery, cluster.host.as_deref(), cluster.port)) {
            Some((Discovery::Dns, Some(host), port)) => vec![(host, port)],
            // Where they are Patroni knows, and a pooler that runs.
            Some((Discovery::Patroni | Discovery::Etcd, ..)) => return Vec::new(),
            _ => nodes,
        };
        let hosts: Vec<(&str, u16)> = match nodes.is_empty() {
            true => hosts.iter().map(|host| (host.as_str(), port)).collect(),
            false => nodes,
        };
        hosts.into_iter().map(|host| self.at_host(named, host, user, auth_query)).collect()
    }

    fn at_host(
        &self,
        (name, database): Named<'_>,
        (host, port): (&str, u16),
        user: &str,
        auth_query: Option<&str>,
    ) -> Result<Target, String> {
        let main = &self.config.main;
        let directory = match host {
            "" if main.unix_socket_dir.is_empty() => Some("/tmp"),
            "" => Some(&*main.unix_socket_dir),
            folder if folder.starts_with(['/', '@']) => Some(folder),
            _ => None,
        };
        let address = match directory {
            Some(folder) => Address::Unix(folder.into(), port),
            None => Address::Tcp(host.to_owned(), port),
        };
        let own = if name == FALLBACK_DATABASE { MAINTENANCE_DATABASE } else { name };
        let dbname = database.dbname.as_deref().unwrap_or(own);
        let mut server = pgweir_client::Login::trusted(address, user, dbname, APPLICATION_NAME);
        server.credential = self.credential(database, user);
        server.parameters = parameters(database);
        server.wait_max =
            Some(main.server_connect_timeout).filter(|time| !time.is_zero()).unwrap_or(WAIT_MAX);
        if directory.is_none() {
            server.tls =
                of_server(self.tls, host).map_err(|why| format!("database {name} at {host}: {why}"))?;
        }
        Ok(Target {
            database: name.to_owned(),
            host: host.to_owned(),
            port,
            user: user.to_owned(),
            auth_query: auth_query.map(str::to_owned),
            connect_query: database.connect_query.clone().filter(|query| !query.is_empty()),
            server,
        })
    }

    /// By what a pool proves to be its user, without what clients bring along.
    fn credential(&self, database: &Database, user: &str) -> Credential {
        let is_its = database.user.as_deref().is_none_or(|forced| forced == user);
        let own = database.password.as_ref().filter(|password| is_its && !password.reveal().is_empty());
        match (own, &self.password) {
            (Some(password), _) => Credential::Secret(Secret::parse(password.reveal())),
            (None, Some(password)) if self.user == Some(user) => Credential::Password(password.clone()),
            _ => self.users.get(user).map_or(Credential::None, |secret| Credential::Secret(secret.clone())),
        }
    }
}

/// A stored secret is proof enough for PostgreSQL.
fn proves(secret: &Secret) -> bool {
    match secret {
        Secret::Plain(password) => !password.is_empty(),
        Secret::Md5(_) => true,
        Secret::Scram(_) => false,
    }
}

/// How TLS is spoken with a host, if it is.
pub(crate) fn of_server(tls: &TlsConfigs, host: &str) -> Result<Option<Tls>, String> {
    let tls = tls.for_server(host)?;
    Ok(tls.map(|tls| Tls {
        config: tls.config,
        name: tls.name,
        is_required: tls.is_required,
        end_point: certificate_end_point,
    }))
}

fn parameters(database: &Database) -> Vec<(String, String)> {
    let configured = [
        ("client_encoding", &database.client_encoding),
        ("datestyle", &database.datestyle),
        ("timezone", &database.timezone),
    ];
    let set = |(name, value): (&str, &Option<String>)| Some((name.to_owned(), value.clone()?));
    configured.into_iter().filter_map(set).collect()
}

/// The password of the user that the command line names.
pub(crate) fn password_of_environment() -> Option<PlainPassword> {
    std::env::var("PGPASSWORD").ok().map(PlainPassword::new)
}

/// Tries all logins, several at once; the outcomes are in the order of the targets.
pub(crate) fn log_in(targets: Vec<Target>, with_limits: bool) -> Vec<Login> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some((place, target)) = {
            let place = next.fetch_add(1, Ordering::Relaxed);
            targets.get(place).map(|target| (place, target))
        } {
            let began = Instant::now();
            let outcome = try_one(target, with_limits);
            let login = Login { target: target.clone(), outcome, took: began.elapsed() };
            done.lock().expect("no login panics").push((place, login));
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(targets.len()) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().expect("no login panics");
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, login)| login).collect()
}

fn try_one(target: &Target, with_limits: bool) -> Outcome {
    let mut client = match target.log_in() {
        Ok(client) => client,
        Err(error) => return refused(target, &error),
    };
    let version = client.parameter("server_version").unwrap_or_default().to_owned();
    let version = version.split(' ').next().unwrap_or_default().to_owned();
    if let Some(query) = &target.auth_query {
        return match ask_for_user(&mut client, query, &target.user) {
            Ok(remark) => Outcome::Accepted { version, limits: None, remark },
            Err(why) => Outcome::Failed(format!("auth_query: {why}")),
        };
    }
    let remark = match &target.connect_query {
        Some(query) => client.query(query).err().map(|error| format!("connect_query: {}", why(&error))),
        None => None,
    };
    let limits =
        if with_limits { client.query(LIMITS_QUERY).ok().and_then(|rows| limits(&rows)) } else { None };
    Outcome::Accepted { version, limits, remark: remark.unwrap_or_default() }
}

fn refused(target: &Target, error: &io::Error) -> Outcome {
    let knows_password = match &target.server.credential {
        Credential::Secret(secret) => proves(secret),
        Credential::Password(_) => true,
        Credential::None | Credential::ScramKeys(_) => false,
    };
    let proof = error.get_ref().and_then(|inner| inner.downcast_ref::<ProverError>());
    match proof {
        Some(ProverError::WrongPasswordType) if !knows_password => Outcome::Untested(format!(
            "PostgreSQL asks for the password of {}, which only clients know; give it in PGPASSWORD with --user",
            target.user
        )),
        _ => Outcome::Failed(why(error)),
    }
}

/// What PostgreSQL said, with its SQLSTATE; or the operating system.
pub(crate) fn why(error: &io::Error) -> String {
    match ServerError::of(error) {
        Some(ServerError { code, message }) => format!("{message} (SQLSTATE {code})"),
        None if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            "timeout: no answer".to_owned()
        }
        None => error.to_string(),
    }
}

/// Runs `auth_query` for the user that runs it; gives a remark, or what is wrong.
fn ask_for_user(client: &mut Client, query: &str, user: &str) -> Result<String, String> {
    let (columns, rows) = client.ask(query, user).map_err(|error| why(&error))?;
    if columns != 2 {
        return Err(format!("it gives {columns} columns, and must give 2: a name and a secret"));
    }
    Ok(match rows.as_slice() {
        [] => format!("auth_query has no row for {user}"),
        _ => "auth_query gives a row".to_owned(),
    })
}

fn limits(rows: &[Vec<String>]) -> Option<Limits> {
    let row = rows.first()?;
    let number = |place: usize| row.get(place)?.parse::<i64>().ok();
    let whole = |place: usize| number(place).and_then(|number| u64::try_from(number).ok());
    Some(Limits {
        max_connections: whole(0)?,
        superuser_reserved: whole(1)?,
        reserved: whole(2)?,
        role_max: whole(3),
        database_max: whole(4),
        idle_in_transaction_timeout_ms: whole(5)?,
        idle_session_timeout_ms: whole(6)?,
        statement_timeout_ms: whole(7)?,
        connection_check_ms: whole(8),
        idle_in_transaction: whole(9)?,
        idle_in_transaction_oldest_s: whole(10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(databases: &str, main: &str, users: &str, user: Option<&str>) -> Vec<String> {
        let text = format!("[databases]\n{databases}\n[pgbouncer]\n{main}\n");
        let config = Config::load("t.ini", &mut |_| Ok(text.clone())).expect("a good file");
        let (users, _) = UserList::parse(users);
        let say = |target: Result<Target, String>| match target {
            Ok(Target { database, host, port, user, auth_query, server, .. }) => {
                let ask = auth_query.map(|query| format!(" asks {query}")).unwrap_or_default();
                format!("{database}: {user}@{host}:{port}/{}{ask}", server.database)
            }
            Err(why) => why,
        };
        let tls = TlsConfigs::default();
        let logins = Logins { config: &config, users: &users, tls: &tls, user, password: None };
        logins.targets().into_iter().map(say).collect()
    }

    const USERS: &str = "\"admin\" \"x\"\n\"bob\" \"y\"\n\"carol\" \"z\"\n";

    #[test]
    fn one_login_for_each_host_of_each_database() {
        let found = of(
            "a = host=h1,h2 port=7 dbname=real\nb = user=fixed\n* = host=h3",
            "admin_users = admin",
            USERS,
            None,
        );
        assert_eq!(
            found,
            ["a: bob@h1:7/real", "a: bob@h2:7/real", "b: fixed@:5432/b", "*: bob@h3:5432/postgres"]
        );
        assert_eq!(of("a = host=h", "", USERS, Some("carol")), ["a: carol@h:5432/a"]);
    }

    #[test]
    fn a_user_whose_password_is_known_goes_first() {
        let scram = "\"a\" \"SCRAM-SHA-256$4096:AAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"\n\"b\" \"\"\n\"c\" \"md50123456789abcdef0123456789abcdef\"\n";
        assert_eq!(of("d = host=h", "", scram, None), ["d: c@h:5432/d"]);
        assert_eq!(of("d = host=h", "admin_users = c", scram, None), ["d: c@h:5432/d"], "rather than none");
        let found = of("d = host=h", "", "", None);
        assert_eq!(found, ["database d: there is no user in auth_file to log in as; name one with --user"]);
    }

    #[test]
    fn a_password_is_that_of_the_database_of_the_command_line_or_of_the_list() {
        let text = "[databases]\na = host=h\nb = host=h user=bob password=forced\n[pgbouncer]\n";
        let config = Config::load("t.ini", &mut |_| Ok(text.to_owned())).expect("a good file");
        let (users, _) = UserList::parse(USERS);
        let tls = TlsConfigs::default();
        let given = PlainPassword::new("given");
        let logins =
            Logins { config: &config, users: &users, tls: &tls, user: Some("bob"), password: Some(given) };
        let of = |database: &str, user: &str| match logins.credential(&config.databases[database], user) {
            Credential::Secret(Secret::Plain(password)) | Credential::Password(password) => {
                String::from_utf8_lossy(password.as_bytes()).into_owned()
            }
            _ => String::new(),
        };
        assert_eq!(
            [of("a", "bob"), of("a", "carol"), of("b", "bob"), of("b", "eve")],
            ["given", "z", "forced", ""]
        );
    }

    #[test]
    fn each_auth_query_is_asked_once() {
        let main = "auth_user = asker\nauth_query = Q $1\nauth_dbname = b";
        let found = of("a = host=h\nb = host=k\nc = host=h auth_query='R $1'", main, "", None);
        assert_eq!(
            found,
            [
                "a: asker@h:5432/a",
                "b: asker@k:5432/b asks Q $1",
                "b: asker@k:5432/b",
                "c: asker@h:5432/c",
                "b: asker@k:5432/b asks R $1"
            ]
        );
        let found = of("a = host=h", "auth_user = asker\nauth_query = Q $1\nauth_dbname = none", "", None);
        assert_eq!(found[1], "authentication database none is not configured");
        let found = of("a = host=h", "auth_user = asker\nauth_query =", "", None);
        assert_eq!(found, ["a: asker@h:5432/a"], "switched off");
    }

    #[test]
    fn limits_are_read_from_a_row() {
        let row = |text: &str| vec![text.split(' ').map(str::to_owned).collect::<Vec<_>>()];
        let read = limits(&row("100 3 0 -1 40 60000 0 30000 0 2 17")).expect("whole");
        assert_eq!((read.max_connections, read.role_max, read.database_max), (100, None, Some(40)));
        assert_eq!((read.idle_in_transaction, read.idle_in_transaction_oldest_s), (2, 17));
        assert_eq!(limits(&row("100 3")), None);
        assert_eq!(limits(&[]), None);
    }
}
