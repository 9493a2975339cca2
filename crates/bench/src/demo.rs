//! `pgweir demo`: what a pooler is good for, seen on one's own machine in a minute.
//!
//! A throw-away PostgreSQL with 100 connections; the number of clients that was asked for is refused there; as many as fit
//! run a load directly, then all of them through pgweir, which uses a handful of connections.

mod cache;
mod cluster;
mod dated;
mod ledger;
mod rounds;

use std::ffi::OsString;
use std::time::Duration;

use lexopt::prelude::*;

use crate::error::BenchError;
use crate::pgbench::{Load, Outcome, Pgbench, Protocol};
use crate::processes::interrupt::Interrupt;
use crate::processes::machine::{self, Business};
use crate::processes::sampler::{ConnectionCounter, CpuMark};
use crate::processes::scratch::{RunAs, Scratch};
use crate::processes::tools::{self, PostgresTools};
use crate::report::progress::{Progress, say};
use crate::report::stats::made;
use crate::servers::cluster::{
    Cluster, ClusterOptions, DATABASE, Entry, RESERVED, USER, free_port, port_is_free,
};
use crate::servers::pooler::{Pooler, PoolerOptions, PoolerProgram};
use pgweir_client::{Address, Client};
use rounds::{Run, SCRIPTS, Through, title_of};

const HELP: &str = "\
usage: pgweir demo [options]

Starts a throw-away PostgreSQL and a pgweir that connects to it, runs the same pgbench load directly and
through pgweir, prints a table, and serves until Ctrl-C. Everything is removed at the end.

options:
  --seconds N   how long each load runs each way, in three rounds that take turns (default 12)
  --clients N   clients through pgweir (default 200; PostgreSQL has 100 connections)
  --port N      port that pgweir listens on (default: a free one)
  --once        end after the table
  --cluster     instead: a primary with two standbys, whose primary is killed under a load of 40 clients (or --clients), for
                --seconds before and after; says what clients were told and what happened to their changes, and ends
  --cache       instead: hot reads without and with the query cache, of 20 clients (or --clients), for --seconds each, while a
                writer changes the rows without pgweir; checks how old the answers are, and ends
  -h, --help    this text

exit codes: 0 done, 1 something failed, 2 wrong option, 3 a program is missing, 4 the port is in use,
            5 the disk is full, 130 interrupted before the table was complete
";

const MAX_CONNECTIONS: u32 = 100;
/// The direct load leaves some connections to other clients, as an application would.
const DIRECT_CLIENTS: u32 = MAX_CONNECTIONS - RESERVED - 7;
const POOL_SIZE: u32 = 20;
/// Clients through pgweir, those of a cluster, and those of the query cache.
const CLIENTS: u32 = 200;
const CLUSTER_CLIENTS: u32 = 40;
const CACHE_CLIENTS: u32 = 20;
/// 1,000,000 accounts, about 150 MB.
const SCALE: u32 = 10;
const SHARED_BUFFERS_MB: u32 = 256;
/// Tables, WAL and logs of a demo, also of one with three servers.
const NEEDED_MB: u64 = 1000;
/// Each load runs each way so often; the ways take turns, so that other work on the machine hinders both.
const ROUNDS: u32 = 3;
const SECONDS: u32 = 12;
/// More clients than this would need more than the load generator's threads can drive.
const CLIENTS_MAX: u32 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    seconds: u32,
    clients: u32,
    port: Option<u16>,
    once: bool,
    /// The other demo: a primary is lost.
    cluster: bool,
    /// The third demo: the query cache.
    cache: bool,
    pooler: Option<PoolerProgram>,
}

/// Everything that the demo has started. The fields go in this order: pooler, server, files.
struct Stage {
    pooler: Pooler,
    cluster: Cluster,
    pgbench: Pgbench,
    tools: PostgresTools,
    options: Options,
    interrupt: Interrupt,
    /// The port of pgweir's page; `None` with another program in its place.
    page_port: Option<u16>,
    _scratch: Scratch,
}

/// Runs the demo; see [`crate::demo`].
pub(crate) fn run(args: Vec<OsString>) -> Result<(), BenchError> {
    let Some(options) = parse(args)? else {
        say!("{HELP}");
        return Ok(());
    };
    if options.cluster {
        return cluster::run(&options);
    }
    if options.cache {
        return cache::run(&options);
    }
    let once = options.once;
    let mut progress = Progress::new();
    let mut stage = Stage::set(options, &mut progress)?;
    let table = stage.compare(&mut progress)?;
    drop(progress);
    say!("\n{table}");
    if once { Ok(()) } else { stage.serve() }
}

fn parse(args: Vec<OsString>) -> Result<Option<Options>, BenchError> {
    let mut options = Options {
        seconds: SECONDS,
        clients: 0,
        port: None,
        once: false,
        cluster: false,
        cache: false,
        pooler: None,
    };
    let mut clients = None;
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("seconds") => options.seconds = parser.value()?.parse()?,
            Long("clients") => clients = Some(parser.value()?.parse()?),
            Long("port") => options.port = Some(parser.value()?.parse()?),
            Long("once") => options.once = true,
            Long("cluster") => options.cluster = true,
            Long("cache") => options.cache = true,
            // For developing the demo itself: another program in pgweir's place.
            Long("pooler") => {
                options.pooler =
                    Some(PoolerProgram { name: "pooler".to_owned(), path: parser.value()?.into() });
            }
            _ => return Err(arg.unexpected().into()),
        }
    }
    options.clients = clients.unwrap_or(match &options {
        Options { cluster: true, .. } => CLUSTER_CLIENTS,
        Options { cache: true, .. } => CACHE_CLIENTS,
        _ => CLIENTS,
    });
    if options.cluster && options.cache {
        return Err(BenchError::Usage("--cluster and --cache are two demos".to_owned()));
    }
    if !(1..=3600).contains(&options.seconds) {
        return Err(BenchError::Usage("--seconds takes 1 to 3600".to_owned()));
    }
    if !(1..=CLIENTS_MAX).contains(&options.clients) {
        return Err(BenchError::Usage(format!("--clients takes 1 to {CLIENTS_MAX}")));
    }
    Ok(Some(options))
}

/// What each demo begins with: the machine is fit for it, PostgreSQL's programs are found, and there is a folder for its files.
fn prepare(
    options: &Options,
    progress: &mut Progress,
) -> Result<(Interrupt, PostgresTools, Scratch), BenchError> {
    let interrupt = Interrupt::install()?;
    if let Some(port) = options.port.filter(|port| !port_is_free(*port)) {
        return Err(BenchError::PortInUse { port });
    }
    machine::raise_file_limit(options.clients)?;
    progress.phase("looking for PostgreSQL");
    let tools = tools::find_or_install(&interrupt, &mut |what| progress.detail(what))?;
    progress.done(&tools::version_of(&tools.postgres));
    let scratch = Scratch::create(RunAs::detect()?, NEEDED_MB)?;
    Ok((interrupt, tools, scratch))
}

impl Stage {
    fn set(options: Options, progress: &mut Progress) -> Result<Self, BenchError> {
        let (interrupt, tools, scratch) = prepare(&options, progress)?;
        progress.phase("starting a throw-away PostgreSQL");
        let cluster_options = ClusterOptions {
            max_connections: MAX_CONNECTIONS,
            shared_buffers_mb: SHARED_BUFFERS_MB,
            entry: Entry::Trust,
        };
        let mut cluster = Cluster::start(&tools, &scratch, cluster_options, &interrupt)?;
        progress.done(&format!("port {}, max_connections {MAX_CONNECTIONS}", cluster.port()));
        progress.phase("filling pgbench's tables");
        cluster.fill(&tools, SCALE, &interrupt, &mut |done| progress.detail(done))?;
        progress.done(&format!("scale {SCALE}"));
        progress.phase("starting the pooler");
        let program = options.pooler.clone().map_or_else(PoolerProgram::own, Ok)?;
        // Another program in pgweir's place may not know of pages.
        let page_port = options.pooler.is_none().then(free_port).transpose()?;
        let pooler_options = PoolerOptions {
            pool_size: POOL_SIZE,
            max_client_conn: options.clients + 100,
            port: options.port,
            settings: page_port.map(page_settings).unwrap_or_default(),
            ..PoolerOptions::default()
        };
        let pooler = Pooler::start(&program, &pooler_options, &cluster.login(), &scratch, &interrupt)?;
        progress.done(&format!("port {}, transaction pooling, pool of {POOL_SIZE}", pooler.port()));
        if let Some(port) = page_port {
            progress.phase("what happens, while it happens");
            progress.done(&page_address(port));
        }
        let pgbench = Pgbench::new(&tools.pgbench, &scratch)?;
        Ok(Self { pooler, cluster, pgbench, tools, options, interrupt, page_port, _scratch: scratch })
    }

    /// Runs every load both ways, in rounds; returns the table and the sentence under it.
    fn compare(&mut self, progress: &mut Progress) -> Result<String, BenchError> {
        let clients = self.options.clients;
        let direct_clients = clients.min(DIRECT_CLIENTS);
        let business = Business::look();
        if clients > direct_clients {
            progress.phase(&format!("{clients} clients directly"));
            let refusal = self.pgbench.refusal(clients, &self.cluster.address(), &self.interrupt)?;
            progress.done(
                &refusal.map_or_else(|| "not refused".to_owned(), |reason| format!("refused, \"{reason}\"")),
            );
        }
        let rounds = ROUNDS.min(self.options.seconds);
        let seconds = self.options.seconds / rounds;
        let mut runs = Vec::new();
        for round in 1..=rounds {
            for script in SCRIPTS {
                for (through, clients) in [(Through::Direct, direct_clients), (Through::Pooler, clients)] {
                    let load =
                        Load { script, protocol: Protocol::Simple, clients, reconnect: false, seconds };
                    let place = format!("round {round} of {rounds}");
                    runs.push(self.run_load(&load, through, &place, progress)?);
                }
                self.let_go()?;
            }
        }
        let workers = self.pooler.workers().map(rounds::workers).unwrap_or_default();
        Ok(format!("{}\n{}\n{workers}", rounds::table(&runs), rounds::sentence(&runs, business)))
    }

    fn run_load(
        &mut self,
        load: &Load,
        through: Through,
        place: &str,
        progress: &mut Progress,
    ) -> Result<Run, BenchError> {
        let (address, pooler): (Address, _) = match through {
            Through::Direct => (self.cluster.address(), None),
            Through::Pooler => (self.pooler.address(), Some(self.pooler.id())),
        };
        let name = through.name();
        progress.phase(&format!("{}, {} clients, {name}, {place}", title_of(load.script), load.clients));
        self.cluster.settle(&self.interrupt)?;
        let counter = ConnectionCounter::start(&self.cluster, name)?;
        let before = CpuMark::take(pooler, self.cluster.postmaster());
        let seconds = f64::from(load.seconds);
        let outcome = self.pgbench.run(load, name, &address, &self.interrupt, &mut |elapsed, tps| {
            progress.detail(&format!("{:.0} s left, {tps:.0} TPS", (seconds - elapsed).max(0.0)));
        });
        let after = CpuMark::take(pooler, self.cluster.postmaster());
        let servers = counter.peak();
        self.check()?;
        let outcome = outcome?;
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 transactions")]
        let ended = (outcome.transactions + outcome.failed) as f64;
        progress.done(&made(outcome.tps, ended));
        let pooler_us = before.pooler_us(&after).map(|used_us| used_us / transactions(&outcome));
        Ok(Run { script: load.script, through, clients: load.clients, servers, outcome, pooler_us })
    }

    /// Has the pooler close its server connections, as PAUSE does: the next direct clients need the places.
    fn let_go(&self) -> Result<(), BenchError> {
        let Some(login) = self.pooler.console() else { return Ok(()) };
        let mut console = Client::log_in(&login).map_err(BenchError::io("the pooler's console"))?;
        for command in ["PAUSE", "RESUME"] {
            console.query(command).map_err(BenchError::io(command))?;
        }
        Ok(())
    }

    /// An error if the server or the pooler has died.
    fn check(&mut self) -> Result<(), BenchError> {
        self.cluster.check()?;
        self.pooler.check()
    }

    /// Lets the user play until Ctrl-C, which is the regular end.
    fn serve(&mut self) -> Result<(), BenchError> {
        let psql = self.tools.psql.display();
        let (pooler, server) = (self.pooler.port(), self.cluster.port());
        let page = self
            .page_port
            .map(|port| format!("its dashboard   {}\n", page_address(port)))
            .unwrap_or_default();
        say!(
            "\nStill serving. In another terminal:\n\n\
             through pgweir  {psql} -h 127.0.0.1 -p {pooler} -U {USER} {DATABASE}\n\
             its console     {psql} -h 127.0.0.1 -p {pooler} -U {USER} pgbouncer -c 'SHOW POOLS'\n\
             direct          {psql} -h 127.0.0.1 -p {server} -U {USER} {DATABASE}\n{page}\n\
             Ctrl-C stops and removes everything.\n",
        );
        while self.interrupt.sleep(Duration::from_millis(500)).is_ok() {
            self.check()?;
        }
        say!("\n");
        Ok(())
    }
}

fn page_address(port: u16) -> String {
    format!("http://127.0.0.1:{port}/")
}

/// A page that shows what the pooler does; on this machine only, and the demo's users are no secret.
fn page_settings(port: u16) -> Vec<(String, String)> {
    let settings = [("http_listen", port.to_string()), ("http_anonymous", "all".to_owned())];
    settings.map(|(name, value)| (name.to_owned(), value)).into()
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 transactions")]
fn transactions(outcome: &Outcome) -> f64 {
    outcome.transactions.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> Result<Option<Options>, BenchError> {
        parse(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn options_are_read() {
        let read = options(&["--seconds", "3", "--clients=150", "--once", "--port", "6432"]).expect("valid");
        let expected = Options {
            seconds: 3,
            clients: 150,
            port: Some(6432),
            once: true,
            cluster: false,
            cache: false,
            pooler: None,
        };
        assert_eq!(read, Some(expected));
        let cluster = options(&["--cluster"]).expect("valid").expect("no help");
        assert!(cluster.cluster && cluster.clients == CLUSTER_CLIENTS);
        let cache = options(&["--cache"]).expect("valid").expect("no help");
        assert!(cache.cache && cache.clients == CACHE_CLIENTS);
        assert_eq!(options(&["--once", "--help"]).expect("valid"), None);
    }

    #[test]
    fn wrong_options_are_refused_with_code_2() {
        for words in [
            &["--seconds", "0"][..],
            &["--clients", "x"],
            &["--clients", "0"],
            &["--what"],
            &["word"],
            &["--cache", "--cluster"],
        ] {
            let error = options(words).expect_err("not valid");
            assert_eq!(error.exit_code(), 2, "{words:?}");
        }
    }
}
