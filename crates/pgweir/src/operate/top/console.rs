//! The connection to the console, on a separate thread: it reads the tables in turn, and enters again when the pooler was away.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use pgweir_client::{Client, Login, ServerError};
use pgweir_settings::ADMIN_DATABASE;

use super::model::{Reading, Row};
use super::options::Options;
use crate::doctor::console::place;
use crate::operate::ctl::Way;

/// The application_name of the connections, which the log and SHOW CLIENTS have.
const APPLICATION_NAME: &str = "pgweir top";

/// The shortest time between two attempts to enter the console.
const ENTER_EVERY: Duration = Duration::from_secs(1);

/// With more clients and servers than this, their tables are read only if a view shows them.
const CONNECTIONS_MAX: u64 = 2000;

/// The facts about the pooler and the console's user that are read when the console is entered.
#[derive(Clone, Debug)]
pub(super) struct Entered {
    /// The login that was accepted, for orders.
    pub(super) login: Login,
    /// The address of the console.
    pub(super) place: String,
    pub(super) user: String,
    /// Whether the user may change anything: it is in `admin_users`, or the user of the unix socket.
    pub(super) may_change: bool,
    /// `max_client_conn`
    pub(super) clients_max: u64,
}

/// News of the console.
pub(super) enum Report {
    Entered(Box<Entered>),
    Reading(Box<Reading>),
    /// The connection is lost, or could not be made again: the reason.
    Lost(String),
    /// An order was answered: its text, and the answer's tag or the refusal.
    Done(String, Result<String, String>),
}

/// A question to the thread: read now. `true`: with clients and servers, whatever their number.
pub(super) type Request = bool;

/// A console that was entered.
pub(super) struct Console {
    client: Client,
    pub(super) entered: Entered,
    /// The program's start, from which readings count.
    began: Instant,
}

impl Console {
    /// Logs in, and reads what the user may do.
    pub(super) fn enter(options: &Options, began: Instant) -> Result<Console, String> {
        let way =
            Way { url: options.url.as_deref(), config: options.config.as_deref(), overlay: &options.overlay };
        let (mut client, login) = way.enter(APPLICATION_NAME)?;
        let config = show(&mut client, "CONFIG").map_err(|error| error.to_string())?;
        let setting = |name: &str| {
            let row = config.iter().find(|row| row.text("key") == name);
            row.map(|row| row.text("value").to_owned()).unwrap_or_default()
        };
        let is_in = |list: String| list.split(',').any(|user| user.trim() == login.user);
        let may_change = is_in(setting("admin_users")) || !is_in(setting("stats_users"));
        let clients_max = setting("max_client_conn").parse().unwrap_or_default();
        let entered =
            Entered { place: place(&login), user: login.user.clone(), may_change, clients_max, login };
        Ok(Console { client, entered, began })
    }

    /// Reads all tables; those of clients and servers if they are wanted, or are short.
    pub(super) fn read(&mut self, wants_connections: bool) -> io::Result<Reading> {
        let taken = self.began.elapsed();
        let mut pools = self.table("POOLS_EXTENDED")?;
        if pools.is_empty() {
            pools = self.table("POOLS")?;
        }
        let mut reading = Reading {
            taken,
            state: self.table("STATE")?,
            pools: without_console(pools, "database"),
            databases: without_console(self.table("DATABASES")?, "name"),
            users: self.table("USERS")?,
            stats: without_console(self.table("STATS_EXTENDED")?, "database"),
            statements: self.table("STATEMENTS")?,
            clusters: self.table("CLUSTERS")?,
            nodes: self.table("NODES")?,
            clients: None,
            servers: None,
        };
        let columns = ["cl_active", "cl_waiting", "sv_active", "sv_idle"];
        let of_pool = |pool: &Row| columns.iter().map(|column| pool.number(column)).sum::<u64>();
        if wants_connections || reading.pools.iter().map(of_pool).sum::<u64>() <= CONNECTIONS_MAX {
            reading.clients = Some(without_console(self.table("CLIENTS_EXTENDED")?, "database"));
            reading.servers = Some(self.table("SERVERS_EXTENDED")?);
        }
        Ok(reading)
    }

    /// A table; empty if the console refuses it.
    fn table(&mut self, topic: &str) -> io::Result<Vec<Row>> {
        match show(&mut self.client, topic) {
            Err(error) if ServerError::of(&error).is_some() => Ok(Vec::new()),
            other => other,
        }
    }
}

fn show(client: &mut Client, topic: &str) -> io::Result<Vec<Row>> {
    let answer = client.answer(&format!("SHOW {topic}"))?;
    let names: Arc<[String]> = answer.columns.into_iter().map(|(name, _)| name).collect();
    Ok(answer.rows.into_iter().map(|cells| Row::new(Arc::clone(&names), cells)).collect())
}

/// The console's own pool and clients are not what anybody looks for.
fn without_console(mut rows: Vec<Row>, column: &str) -> Vec<Row> {
    rows.retain(|row| row.text(column) != ADMIN_DATABASE);
    rows
}

/// Reads the console at each interval from now on, and at each request; ends when nothing listens to it.
pub(super) fn follow(console: Console, options: Arc<Options>, reports: Sender<Report>) -> Sender<Request> {
    let (requests, asked) = channel();
    thread::spawn(move || read_on(console, &options, &reports, &asked));
    requests
}

fn read_on(console: Console, options: &Options, reports: &Sender<Report>, asked: &Receiver<Request>) {
    let began = console.began;
    let mut wants_connections = false;
    let mut open = Some(console);
    loop {
        let looked = Instant::now();
        let report = match &mut open {
            Some(console) => match console.read(wants_connections) {
                Ok(reading) => Report::Reading(Box::new(reading)),
                Err(error) => {
                    open = None;
                    Report::Lost(crate::probe::why(&error))
                }
            },
            None => match Console::enter(options, began) {
                Ok(console) => {
                    let entered = console.entered.clone();
                    open = Some(console);
                    if reports.send(Report::Entered(Box::new(entered))).is_err() {
                        return;
                    }
                    continue;
                }
                Err(why) => Report::Lost(why),
            },
        };
        if reports.send(report).is_err() {
            return;
        }
        let pause = if open.is_some() { options.interval } else { ENTER_EVERY };
        match asked.recv_timeout(pause.saturating_sub(looked.elapsed())) {
            Ok(wants) => wants_connections = wants,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Ok(wants) = asked.try_recv() {
            wants_connections = wants;
        }
    }
}

/// Sends an order over a separate connection, since PAUSE and SWITCHOVER answer when they are done; reports the answer.
pub(super) fn send(login: Login, text: String, reports: Sender<Report>) {
    thread::spawn(move || {
        let answer = Client::log_in(&login).and_then(|mut client| {
            client.wait_without_limit()?;
            client.answer(&text)
        });
        let result = match answer {
            Ok(answer) => Ok(answer.notices.into_iter().chain([answer.tag]).collect::<Vec<_>>().join("; ")),
            Err(error) => Err(ServerError::of(&error)
                .map_or_else(|| format!("the console was lost: {error}"), |refused| refused.message.clone())),
        };
        let _ = reports.send(Report::Done(text, result));
    });
}
