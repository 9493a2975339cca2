//! `pgweir demo --cluster`: a primary with two standbys under load, whose primary is killed. What clients lose by that, counted.
//! Clients change through one database, and read through another whose `route` is the standbys.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::ledger::{self, Book, Found, Load, Told};
use super::{Options, page_settings, prepare};
use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::scratch::Scratch;
use crate::report::progress::{Progress, say};
use crate::report::stats::{median, short};
use crate::report::table::Table;
use crate::servers::cluster::{Cluster, ClusterOptions, Entry, free_port};
use crate::servers::pooler::{Pooler, PoolerOptions, PoolerProgram, read_only};
use pgweir_client::{Client, Login};

const SHARED_BUFFERS_MB: u32 = 64;
/// A standby refuses to start with less than the folder was made with.
const MAX_CONNECTIONS: u32 = 100;
const POOL_SIZE: u32 = 20;
const STANDBYS: usize = 2;
/// So long after the primary's death a standby is promoted: tools that promote want to be sure, too.
const PROMOTED_AFTER: Duration = Duration::from_secs(1);
/// Clients have two threads each.
const CLIENTS_MAX: u32 = 1000;
/// Until the pooler has found a primary, in the beginning and after the promotion.
const PRIMARY_LIMIT: Duration = Duration::from_secs(30);

/// Everything that was started. The fields go in this order: clients, pooler, servers, files.
struct Stage {
    load: Option<Load>,
    pooler: Pooler,
    nodes: Vec<Cluster>,
    interrupt: Interrupt,
    _scratch: Scratch,
}

/// When what happened.
struct Moments {
    killed: Instant,
    promoted: Instant,
    /// The pooler sends clients to the new primary.
    found: Instant,
}

/// Runs it; ends by itself.
pub(super) fn run(options: &Options) -> Result<(), BenchError> {
    if options.clients > CLIENTS_MAX {
        return Err(BenchError::Usage(format!("--clients takes at most {CLIENTS_MAX} with --cluster")));
    }
    let mut progress = Progress::new();
    let mut stage = Stage::set(options, &mut progress)?;
    let moments = stage.lose_primary(options, &mut progress)?;
    progress.phase("comparing what clients were told with the new primary");
    let books = stage.load.take().map(Load::end).unwrap_or_default();
    let rows = stage.ledger()?;
    let found = ledger::compare(&books, &rows);
    progress.done(&format!("{} changes", rows.len()));
    drop(progress);
    let ports: Vec<u16> = stage.nodes.iter().map(Cluster::port).collect();
    say!("\n{}", table(&books, &found, &moments, &ports));
    let of = |told: Told| found.get(told.name()).copied().unwrap_or_default();
    let (committed, rolled_back) = (of(Told::Committed), of(Told::RolledBack));
    let wrong = committed.changes - committed.there + rolled_back.there;
    let doubled: u64 = found.values().map(|one| one.doubled).sum();
    if wrong + doubled > 0 {
        return Err(BenchError::failed("clients were told what is not so", "see the table"));
    }
    Ok(())
}

impl Stage {
    fn set(options: &Options, progress: &mut Progress) -> Result<Stage, BenchError> {
        let (interrupt, tools, scratch) = prepare(options, progress)?;
        progress.phase("starting a throw-away PostgreSQL with two standbys");
        let cluster_options = ClusterOptions {
            max_connections: MAX_CONNECTIONS,
            shared_buffers_mb: SHARED_BUFFERS_MB,
            entry: Entry::Trust,
        };
        let nodes = Cluster::start_set(STANDBYS, &tools, &scratch, cluster_options, &interrupt)?;
        let ports: Vec<u16> = nodes.iter().map(Cluster::port).collect();
        progress.done(&format!("m1 is the primary, m2 its synchronous standby; ports {ports:?}"));
        progress.phase("starting the pooler");
        let page_port = free_port()?;
        let pooler_options = PoolerOptions {
            pool_size: POOL_SIZE,
            max_client_conn: 2 * options.clients + 100,
            port: options.port,
            settings: page_settings(page_port),
            nodes: ports,
            ..PoolerOptions::default()
        };
        let program = options.pooler.clone().map_or_else(PoolerProgram::own, Ok)?;
        let pooler = Pooler::start(&program, &pooler_options, &nodes[0].login(), &scratch, &interrupt)?;
        let stage = Stage { load: None, pooler, nodes, interrupt, _scratch: scratch };
        stage.wait_for_standbys()?;
        progress.done(&format!("port {}, cluster=main, pool of {POOL_SIZE}", stage.pooler.port()));
        progress.phase("what happens, while it happens");
        progress.done(&format!("http://127.0.0.1:{page_port}/#/clusters"));
        Ok(stage)
    }

    /// The load, in whose middle the primary is killed and a standby promoted.
    fn lose_primary(&mut self, options: &Options, progress: &mut Progress) -> Result<Moments, BenchError> {
        let seconds = Duration::from_secs(options.seconds.into());
        let mut owner = Client::log_in(self.pooler.login()).map_err(BenchError::io("logging in"))?;
        owner.query(ledger::TABLE).map_err(BenchError::io("making the ledger"))?;
        drop(owner);
        progress.phase(&format!("{} clients, each with a ledger of its changes", options.clients));
        let login = self.pooler.login().named("ledger");
        let read_login = Login { database: read_only(&login.database), ..login.clone() };
        self.load = Some(Load::start(options.clients, &login, &read_login));
        self.rest(seconds)?;
        progress.done(&format!("for {} s", options.seconds));

        progress.phase("killing the primary");
        let killed = Instant::now();
        self.nodes[0].kill(&self.interrupt);
        progress.done("SIGKILL");
        progress.phase("clients wait for another one");
        self.interrupt.sleep(PROMOTED_AFTER)?;
        progress.done(&format!("for {} s", PROMOTED_AFTER.as_secs()));
        progress.phase("promoting m2");
        let promoted = Instant::now();
        self.nodes[1].promote()?;
        self.nodes[1].lead(&self.nodes[2], "m3")?;
        let found = self.wait_for_primary("m2")?;
        progress.done(&format!("after {} s clients are sent to it", short((found - promoted).as_secs_f64())));
        progress.phase("the same clients go on");
        self.rest(seconds)?;
        progress.done(&format!("for {} s", options.seconds));
        Ok(Moments { killed, promoted, found })
    }

    /// Waits, and looks whether everything that should lives.
    fn rest(&mut self, duration: Duration) -> Result<(), BenchError> {
        let until = Instant::now() + duration;
        while Instant::now() < until {
            self.interrupt.sleep(Duration::from_millis(100).min(until - Instant::now()))?;
            self.pooler.check()?;
            self.nodes[1].check()?;
        }
        Ok(())
    }

    /// Until pgweir knows them, the primary has their reads.
    fn wait_for_standbys(&self) -> Result<Instant, BenchError> {
        let is_standby =
            |node: &&HashMap<String, String>| node.get("state").is_some_and(|state| state == "standby");
        self.wait_until("pgweir does not find the standbys", || {
            Ok(self.show("SHOW NODES")?.iter().filter(is_standby).count() == STANDBYS)
        })
    }

    fn wait_for_primary(&self, node: &str) -> Result<Instant, BenchError> {
        self.wait_until("pgweir does not follow the new primary", || {
            Ok(self.cluster()?.get("primary").is_some_and(|primary| primary == node))
        })
    }

    /// When it is so.
    fn wait_until(
        &self,
        problem: &str,
        is_so: impl Fn() -> Result<bool, BenchError>,
    ) -> Result<Instant, BenchError> {
        let until = Instant::now() + PRIMARY_LIMIT;
        loop {
            if is_so()? {
                return Ok(Instant::now());
            }
            if Instant::now() >= until {
                return Err(BenchError::failed(problem, ""));
            }
            self.interrupt.sleep(Duration::from_millis(10))?;
        }
    }

    /// The row of SHOW CLUSTERS.
    fn cluster(&self) -> Result<HashMap<String, String>, BenchError> {
        Ok(self.show("SHOW CLUSTERS")?.into_iter().next().unwrap_or_default())
    }

    fn show(&self, command: &str) -> Result<Vec<HashMap<String, String>>, BenchError> {
        let login = self.pooler.console().expect("pgweir has a console");
        let mut console = Client::log_in(&login).map_err(BenchError::io("the pooler's console"))?;
        let (columns, rows) = console.table(command).map_err(BenchError::io(command))?;
        Ok(rows.into_iter().map(|row| columns.iter().cloned().zip(row).collect()).collect())
    }

    /// What the new primary has: client, number, how often.
    fn ledger(&self) -> Result<Vec<Vec<String>>, BenchError> {
        let mut client = Client::log_in(&self.nodes[1].login()).map_err(BenchError::io("the new primary"))?;
        let question = "SELECT client, n, count(*) FROM ledger GROUP BY client, n";
        client.query(question).map_err(BenchError::io("reading the ledger"))
    }
}

fn table(books: &[Book], found: &HashMap<&'static str, Found>, moments: &Moments, ports: &[u16]) -> String {
    let of = |told: Told| found.get(told.name()).copied().unwrap_or_default();
    let (committed, rolled_back) = (of(Told::Committed), of(Told::RolledBack));
    let doubled: u64 = found.values().map(|one| one.doubled).sum();
    let mut table = Table::new(&["what clients were told", "changes", "what happened to them"], 3);
    let mut row = |what: &str, changes: u64, became: String| {
        table.row(vec![what.to_owned(), changes.to_string(), became]);
    };
    let lost = committed.changes - committed.there;
    row("committed", committed.changes, format!("{lost} lost, {doubled} doubled"));
    row(
        "rolled back (40001), or not begun (57P03)",
        rolled_back.changes,
        format!("{} are there", rolled_back.there),
    );
    let outcome = |one: Found| format!("{} took effect, {} did not", one.there, one.changes - one.there);
    row("outcome unknown (08007)", of(Told::Unknown).changes, outcome(of(Told::Unknown)));
    row("PostgreSQL ended the connection (57P01)", of(Told::Ended).changes, outcome(of(Told::Ended)));
    row("another error", of(Told::Broken).changes, outcome(of(Told::Broken)));
    format!("{}\n{}", table.render(), summary(books, moments, ports))
}

fn summary(books: &[Book], moments: &Moments, ports: &[u16]) -> String {
    // What was under way when the standby was promoted can have been answered by the new primary alone.
    let held: Vec<f64> = books
        .iter()
        .filter_map(|book| book.longest)
        .filter(|wait| wait.from < moments.promoted && wait.to > moments.promoted)
        .map(|wait| wait.duration().as_secs_f64())
        .collect();
    let longest = held.iter().copied().fold(0.0, f64::max);
    let waits = median(&held)
        .map_or_else(String::new, |p50| format!(", p50 {} s, longest {} s", short(p50), short(longest)));
    let errors: usize = books.iter().map(|book| book.errors.len()).sum();
    let mut text = format!(
        "  without a primary   {} s from the kill to the promotion, {} s from there until clients were sent to m2\n  \
         clients held        {} of {}{waits}\n  \
         reads               {}\n",
        short((moments.promoted - moments.killed).as_secs_f64()),
        short((moments.found - moments.promoted).as_secs_f64()),
        held.len(),
        books.len(),
        reads(books, moments, ports),
    );
    if let Some(first) = books.iter().find_map(|book| book.errors.first()) {
        text.push_str(&format!("  other errors        {errors}, the first: {first}\n"));
    }
    text
}

/// Which nodes answered the reads, also while there was no primary, and what they did not show yet.
fn reads(books: &[Book], moments: &Moments, ports: &[u16]) -> String {
    let all = || books.iter().flat_map(|book| &book.reads);
    let by_node = (1..).zip(ports).map(|(number, port)| {
        let count = all().filter(|read| read.port == *port).count();
        format!("m{number} {count}")
    });
    let by_node = by_node.collect::<Vec<_>>().join(", ");
    let meanwhile = all().filter(|read| read.at > moments.killed && read.at < moments.promoted).count();
    let behind = all().filter(|read| read.is_behind).count();
    format!(
        "{} with route=prefer-standby: {by_node}; {meanwhile} of them while there was no primary;\n                      \
         {behind} came before the standby had the client's last change",
        all().count()
    )
}
