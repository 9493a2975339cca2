//! The watch connections: one to each node of a cluster that this worker watches, asked at each interval.
//!
//! Evidence against a node is a new connection that fails, or a question that is not answered in time. If a connection that had served ends,
//! the next one is opened at once, and that one's failure counts.

use std::sync::Arc;
use std::time::Duration;

use pgweir_settings::{Config, Database};
use pgweir_wire::error::SqlState;

use crate::cluster::lag::ToldLag;
use crate::cluster::node::Observation;
use crate::cluster::{APART_US_MIN, NodeId};
use crate::context::{Cx, Env, Role, duration_us};
use crate::driver::Driver;
use crate::ids::{PoolId, ServerId, WatchId};
use crate::mail::{LagRequest, Question};
use crate::pool::server::watching::WatchState;
use crate::pool::{Failure, Pool, PoolState};
use crate::shared::Counts;
use crate::worker::Worker;

/// The minimum time between two checks of a node if each opens a new connection.
const RECONNECTS_APART_US_MIN: u64 = 100_000;

/// The watch of one node.
pub(crate) struct NodeWatch {
    cluster: Arc<str>,
    node: NodeId,
    /// The pool of the watch, which has at most one server connection and no client.
    pool: Pool,
    phase: Phase,
    /// The next check opens a new connection.
    reconnects: bool,
    /// The time of the next action: to ask, to connect, or to stop waiting (monotonic, µs).
    pub(crate) due_us: u64,
    /// The time at which the next check begins if the node is being asked for its lag (monotonic, µs).
    next_us: u64,
    /// The time at which the last check began (monotonic, µs).
    began_us: u64,
    /// `lag_command` is running for this node.
    is_measured: bool,
}

/// The present activity of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The watch waits until the next check is due.
    Resting,
    /// The watch connects to the node, and then sends the question.
    Connecting,
    /// The watch has sent the question and waits for the answer.
    Asking,
    /// The check is over, and the watch waits for the answer to `lag_query`. Whatever the answer is, it is no evidence against the node.
    AskingLag,
}

impl Worker {
    /// Begins to watch nodes that are new, and ceases to watch those that are gone.
    pub(crate) fn follow_nodes<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let config = Arc::clone(&cx.env.rules.config);
        let is_known = |watch: &NodeWatch| {
            let watched = self.clusters.watched.get(&watch.cluster);
            watched.is_some_and(|watched| watched.cluster.node(watch.node).is_some())
        };
        let gone: Vec<WatchId> = self
            .clusters
            .watches
            .iter()
            .filter(|(_, watch)| !is_known(watch) || watch.has_changed(&config))
            .map(|(id, _)| id)
            .collect();
        for id in gone {
            if let Some(mut watch) = self.clusters.watches.remove(id) {
                watch.pool.end_watch(cx, "the node is not watched any more");
            }
        }
        for (name, watched) in &self.clusters.watched {
            for node in &watched.cluster.nodes {
                if self.clusters.watches.values().any(|watch| watch.node == node.id && watch.cluster == *name)
                {
                    continue;
                }
                let Some(database) = database_of(&config, name, &node.host, node.port) else { continue };
                let watch = NodeWatch::new(cx.env, Arc::clone(name), node.id, database);
                self.clusters.watches.insert(watch);
            }
        }
        self.clusters.rearm(cx.env.now.mono_us);
        self.check_clusters(cx);
    }

    /// Carries out the actions that are due.
    pub(crate) fn check_clusters<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if self.clusters.due_us > cx.env.now.mono_us {
            return;
        }
        let now_us = cx.env.now.mono_us;
        self.count_drains(cx);
        let due = self.clusters.watches.iter().filter(|(_, watch)| watch.due_us <= now_us);
        let due: Vec<WatchId> = due.map(|(id, _)| id).collect();
        due.into_iter().for_each(|id| self.act(cx, id));
        for watched in self.clusters.watched.values_mut() {
            watched.cluster.expire(now_us);
        }
        self.clusters.rearm(now_us);
        self.tell_views(cx);
    }

    /// Begins checks of all nodes of a cluster as soon as possible; on new connections if `reconnects`.
    pub(crate) fn hurry_checks(&mut self, env: &Env, cluster: &str, reconnects: bool) {
        let now_us = env.now.mono_us;
        for watch in self.clusters.watches.values_mut() {
            let next_us = match watch.phase {
                Phase::Resting => &mut watch.due_us,
                Phase::AskingLag => &mut watch.next_us,
                Phase::Connecting | Phase::Asking => continue,
            };
            if *watch.cluster == *cluster {
                watch.reconnects |= reconnects;
                let apart_us = if reconnects { RECONNECTS_APART_US_MIN } else { APART_US_MIN };
                *next_us = (*next_us).min(now_us.max(watch.began_us + apart_us));
            }
        }
        self.clusters.rearm(now_us);
    }

    /// Lets the pool of a watch act, and then checks whether the watch has a result.
    pub(crate) fn in_watch<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: WatchId,
        act: impl FnOnce(&mut Pool, &mut Cx<'_, D>, ServerId),
    ) {
        let Some(watch) = self.clusters.watches.get_mut(id) else { return };
        let Some(server) = watch.pool.servers.keys().next() else { return };
        act(&mut watch.pool, cx, server);
        self.look_at_watch(cx, id);
        self.clusters.rearm(cx.env.now.mono_us);
    }

    /// Begins a check that is due, or ends one that has taken too long.
    fn act<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: WatchId) {
        let now_us = cx.env.now.mono_us;
        let Some(watch) = self.clusters.watches.get_mut(id) else { return };
        let Some(watched) = self.clusters.watched.get(&watch.cluster) else { return };
        let timeout_us = watched.cluster.limits().timeout_us;
        match (watch.phase, watch.pool.watch_state()) {
            (Phase::Resting, WatchState::Answered) if !watch.reconnects => {
                watch.begin(Phase::Asking, now_us, timeout_us);
                watch.pool.ask_watch(cx);
            }
            (Phase::Resting, _) => {
                watch.pool.end_watch(cx, "the node is asked on a new connection");
                watch.reconnects = false;
                watch.begin(Phase::Connecting, now_us, timeout_us);
                if let Some(conn) = watch.pool.dial_watch(cx) {
                    cx.env.set_role(conn, Role::Watch(id));
                }
            }
            (Phase::Connecting | Phase::Asking, _) => {
                watch.pool.end_watch(cx, "the node did not answer in time (check_timeout_ms)");
                let text = "no answer in time (check_timeout_ms)".to_owned();
                self.observed(cx, id, &Observation::Failed(text));
            }
            (Phase::AskingLag, _) => {
                watch.pool.end_watch(cx, "lag_query was not answered in time (check_timeout_ms)");
                let text = "lag_query was not answered in time (check_timeout_ms)".to_owned();
                self.lag_told(cx, id, Err(text));
            }
        }
    }

    /// Records the result of a watch's check if the check has ended.
    fn look_at_watch<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: WatchId) {
        let Some(watch) = self.clusters.watches.get_mut(id) else { return };
        match (watch.phase, watch.pool.watch_state()) {
            (Phase::Connecting, WatchState::Asked) => watch.phase = Phase::Asking,
            (Phase::Connecting, WatchState::Apart) => {
                let observation = match watch.pool.state.node.failure.take() {
                    Some(failure) => failed(&failure),
                    None => Observation::Failed("the connection ended".to_owned()),
                };
                self.observed(cx, id, &observation);
            }
            (Phase::Connecting | Phase::Asking, WatchState::Answered) => {
                if let Some(observation) = watch.pool.watch_answer() {
                    self.observed(cx, id, &observation);
                }
            }
            (Phase::AskingLag, WatchState::Answered) => {
                if let Some(told) = watch.pool.lag_answer() {
                    self.lag_told(cx, id, told);
                }
            }
            (Phase::AskingLag, WatchState::Apart) => {
                watch.next_us = cx.env.now.mono_us.max(watch.began_us + APART_US_MIN);
                let why = watch.pool.state.node.failure.take().map(|failure| failure.text);
                let why = why.unwrap_or_else(|| "the connection ended".to_owned());
                self.lag_told(cx, id, Err(format!("lag_query was not answered: {why}")));
            }
            // It had served: another connection is to say what that means.
            (Phase::Resting | Phase::Asking, WatchState::Apart) => {
                watch.phase = Phase::Resting;
                watch.due_us = cx.env.now.mono_us.max(watch.began_us + APART_US_MIN);
            }
            (Phase::Connecting | Phase::Asking | Phase::AskingLag | Phase::Resting, _) => {}
        }
    }

    fn observed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: WatchId, observation: &Observation) {
        let now_us = cx.env.now.mono_us;
        let Some(watch) = self.clusters.watches.get_mut(id) else { return };
        let Some(watched) = self.clusters.watched.get_mut(&watch.cluster) else { return };
        let hurried = watched.cluster.hurries();
        watched.cluster.observe(watch.node, observation, now_us);
        let hurries = watched.cluster.hurries();
        let pause_us = watched.cluster.pause_us(watch.node, now_us);
        watch.next_us =
            now_us.max(watch.began_us.saturating_add(pause_us)).max(watch.began_us + APART_US_MIN);
        (watch.phase, watch.due_us) = (Phase::Resting, watch.next_us);
        let cluster = Arc::clone(&watch.cluster);
        if matches!(observation, Observation::Answered(_)) {
            self.ask_lag(cx, id);
        }
        self.tell_views(cx);
        if hurries && !hurried {
            self.hurry_checks(cx.env, &cluster, false);
        }
    }

    /// Asks a node for its lag after a check, with `lag_query` or `lag_command`, if the node is a standby.
    fn ask_lag<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: WatchId) {
        let Some(watch) = self.clusters.watches.get_mut(id) else { return };
        let Some(watched) = self.clusters.watched.get(&watch.cluster) else { return };
        let config = Arc::clone(&cx.env.rules.config);
        let Some(options) = config.clusters.get(&*watch.cluster) else { return };
        if !watched.cluster.wants_lag(watch.node) {
            return;
        }
        if let Some(text) = &options.lag_query {
            watch.phase = Phase::AskingLag;
            watch.due_us = cx.env.now.mono_us.saturating_add(watched.cluster.limits().timeout_us);
            watch.pool.ask_lag(cx, text);
        } else if let (Some(command), Some(node)) = (&options.lag_command, watched.cluster.node(watch.node))
            && !std::mem::replace(&mut watch.is_measured, true)
        {
            cx.driver.ask(Question::MeasureLag(Box::new(LagRequest {
                cluster: Arc::clone(&watch.cluster),
                node: Arc::clone(&node.name),
                host: Arc::clone(&node.host),
                port: node.port,
                command: command.clone(),
                limit: options.lag_command_timeout,
            })));
        }
    }

    /// Takes the result of `lag_command`. The control plane sends it to all workers; only the one that watches the cluster uses it.
    pub(crate) fn take_measured_lag<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        cluster: &str,
        node: &str,
        told: Result<Duration, String>,
    ) {
        let Some(watched) = self.clusters.watched.get_mut(cluster) else { return };
        let Some(id) = watched.cluster.node_named(node).map(|node| node.id) else { return };
        let watches = self.clusters.watches.values_mut();
        watches.filter(|watch| watch.node == id && *watch.cluster == *cluster).for_each(|watch| {
            watch.is_measured = false;
        });
        let options = cx.env.rules.config.clusters.get(cluster);
        if options.is_some_and(|options| options.lag_command.is_some()) {
            watched.cluster.take_lag(id, told.map(duration_us), cx.env.now.mono_us);
            self.tell_views(cx);
        }
    }

    /// Takes the result of `lag_query`, or the error that there was no answer in time. The check itself was over before.
    fn lag_told<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: WatchId, told: ToldLag) {
        let now_us = cx.env.now.mono_us;
        let Some(watch) = self.clusters.watches.get_mut(id) else { return };
        let Some(watched) = self.clusters.watched.get_mut(&watch.cluster) else { return };
        watched.cluster.take_lag(watch.node, told, now_us);
        (watch.phase, watch.due_us) = (Phase::Resting, watch.next_us.max(now_us));
        self.tell_views(cx);
    }
}

impl NodeWatch {
    fn new(env: &Env, cluster: Arc<str>, node: NodeId, database: Database) -> NodeWatch {
        let config = &env.rules.config;
        let user: Arc<str> = database.user.as_deref().unwrap_or_default().into();
        let name: Arc<str> = database.name.as_str().into();
        // It counts towards no limit of others.
        let counts = (Arc::<Counts>::default(), Arc::<Counts>::default());
        let mut state = PoolState::new(name, user, Arc::new(database), counts, env.now.mono_us);
        state.follow(config);
        NodeWatch {
            cluster,
            node,
            pool: Pool::new(PoolId::default(), state),
            phase: Phase::Resting,
            reconnects: false,
            due_us: env.now.mono_us,
            next_us: env.now.mono_us,
            began_us: 0,
            is_measured: false,
        }
    }

    fn begin(&mut self, phase: Phase, now_us: u64, timeout_us: u64) {
        self.phase = phase;
        self.began_us = now_us;
        self.due_us = now_us.saturating_add(timeout_us);
    }

    /// Whether the configuration gives the node's connection other properties than it has now.
    fn has_changed(&self, config: &Config) -> bool {
        let own = &self.pool.state.config;
        let host = own.hosts.first().map(String::as_str).unwrap_or_default();
        database_of(config, &self.cluster, host, own.port).is_none_or(|database| database != **own)
    }
}

/// Returns the properties of the connection to a node as those of a database.
fn database_of(config: &Config, cluster: &str, host: &str, port: u16) -> Option<Database> {
    let options = config.clusters.get(cluster)?;
    Some(Database {
        name: options.check_dbname.clone(),
        hosts: vec![host.to_owned()],
        port,
        user: Some(config.check_user(options)?.to_owned()),
        password: options.check_password.clone(),
        application_name: Some("pgweir watch".to_owned()),
        ..Database::default()
    })
}

/// Returns the observation that follows from a failed connection to a node.
fn failed(failure: &Failure) -> Observation {
    let text = failure.text.clone();
    let own = ["Too many open files", "Cannot assign requested address", "No buffer space available"];
    match failure.code {
        Some(SqlState::CANNOT_CONNECT_NOW) => Observation::Starting(text),
        Some(SqlState::INVALID_CATALOG_NAME) => Observation::LoginRefused(text),
        Some(code) if code.as_bytes().starts_with(b"28") => Observation::LoginRefused(text),
        Some(_) => Observation::Lives(text),
        None if own.iter().any(|own| text.contains(own)) => Observation::OwnFault(text),
        None => Observation::Failed(text),
    }
}
