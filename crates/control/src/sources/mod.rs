//! The sources of clusters: asks Patroni, etcd or a name server about the nodes at intervals, and mails the
//! answers to the workers.
//!
//! One thread asks for all clusters. Answers are hostile: each has bounds in size, depth, members and time,
//! and a host that a source names is used only if `allow_discovered_hosts` has it. Nothing here decides which
//! node is the primary.

mod dns;
mod etcd;
pub(crate) mod gateway;
pub(crate) mod http;
pub(crate) mod json;
mod patroni;
pub(crate) mod session;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use pgweir_core::driver::Level;
use pgweir_core::mail::Rules;
use pgweir_core::source::{SourceReport, SourceWord};
use pgweir_settings::{ClusterOptions, Config, Discovery, Main, Password, SourceUrl};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

use crate::log::Log;
use crate::order_thread::OrderThread;
use crate::plane::Event;
use crate::sources::http::Client;
use crate::trust::VerifyBy;

/// Finds the addresses of a host, by the rules of `resolv_conf`; it may block. The error is the reason why
/// there are none.
pub type LookUp = fn(&str, &str) -> Result<Vec<IpAddr>, String>;

/// The handle to the thread, which starts with the first cluster that has a source.
pub struct Sources {
    thread: OrderThread<Order>,
    events: Sender<Event>,
    log: Log,
    outside: Outside,
}

/// Functions of the data plane for names and certificates.
#[derive(Clone, Copy)]
struct Outside {
    look_up: LookUp,
    verify: VerifyBy,
}

enum Order {
    Follow(Arc<Config>),
    SwitchOver(Request),
    Hurry { cluster: Arc<str>, hurries: bool },
}

/// A request that Patroni makes `to` the primary instead of `from`.
pub(crate) struct Request {
    pub(crate) cluster: Arc<str>,
    pub(crate) number: u64,
    pub(crate) from: Arc<str>,
    pub(crate) to: Arc<str>,
}

impl Sources {
    /// Creates a handle without a thread. Answers come as events.
    #[must_use]
    pub fn new(events: Sender<Event>, log: &Log, look_up: LookUp, verify: VerifyBy) -> Sources {
        let thread = OrderThread::new("sources");
        Sources { thread, events, log: log.clone(), outside: Outside { look_up, verify } }
    }

    /// Asks the sources of this configuration from now on.
    pub(crate) fn follow(&mut self, rules: &Rules) {
        let has_source = |cluster: &ClusterOptions| cluster.discovery != Discovery::Sql;
        if !self.thread.takes_orders() && rules.config.clusters.values().any(has_source) {
            let (events, log, outside) = (self.events.clone(), self.log.clone(), self.outside);
            let serve = async move |orders| serve(orders, events, &log, outside).await;
            self.thread.start(&self.log, "that asks the sources of clusters", serve);
        }
        // This fails if there is no thread, which has logged the reason.
        let _ = self.thread.send(Order::Follow(Arc::clone(&rules.config)));
    }

    /// Asks Patroni for a switchover. The answer comes as an event.
    pub(crate) fn switch_over(&self, request: Request) {
        let Request { cluster, number, .. } = &request;
        let (cluster, number) = (Arc::clone(cluster), *number);
        if self.thread.send(Order::SwitchOver(request)).is_err() {
            let result = Err("no source is asked".to_owned());
            // This fails if the process is ending and the receiver is gone.
            let _ = self.events.send(Event::Switched { cluster, number, result });
        }
    }

    /// Asks the source of this cluster more often from now on, or at the usual interval.
    pub(crate) fn hurry(&self, cluster: Arc<str>, hurries: bool) {
        // This fails if there is no thread, which has logged the reason.
        let _ = self.thread.send(Order::Hurry { cluster, hurries });
    }
}

/// The source of one cluster, and how it is asked. If this changes, the task starts again.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Spec {
    cluster: Arc<str>,
    discovery: Discovery,
    interval: Duration,
    timeout: Duration,
    way: Way,
    /// The login for Patroni's REST API.
    login: Option<Login>,
    allowed: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Way {
    Dns { host: String, port: u16 },
    Patroni { agents: Vec<SourceUrl> },
    Etcd { endpoints: Vec<SourceUrl>, login: Option<Login>, prefix: String },
}

/// A user and its password.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Login {
    user: String,
    password: Password,
}

impl Login {
    /// Returns the login that two settings make; `None` if one of them is missing.
    pub(crate) fn of(user: Option<&String>, password: Option<&Password>) -> Option<Login> {
        user.zip(password).map(|(user, password)| Login { user: user.clone(), password: password.clone() })
    }
}

impl Spec {
    /// Returns the spec of a cluster; `None` if the cluster has no source.
    fn of(name: &str, cluster: &ClusterOptions, main: &Main) -> Option<Spec> {
        // An address that cannot be read was refused when the file was loaded. SET does not check it.
        let urls = |list: &[String]| list.iter().filter_map(|text| SourceUrl::parse(text).ok()).collect();
        let way = match cluster.discovery {
            Discovery::Sql => return None,
            Discovery::Dns => Way::Dns { host: cluster.host.clone()?, port: cluster.port },
            Discovery::Patroni => Way::Patroni { agents: urls(&cluster.patroni_api) },
            Discovery::Etcd => Way::Etcd {
                endpoints: urls(&main.etcd_endpoints),
                login: Login::of(main.etcd_user.as_ref(), main.etcd_password.as_ref()),
                prefix: format!("{}/", cluster.etcd_prefix.as_ref()?.trim_end_matches('/')),
            },
        };
        Some(Spec {
            cluster: name.into(),
            discovery: cluster.discovery,
            interval: Duration::from_millis(cluster.check_interval_ms.into()),
            timeout: Duration::from_millis(cluster.check_timeout_ms.into()),
            way,
            login: Login::of(cluster.patroni_user.as_ref(), cluster.patroni_password.as_ref()),
            allowed: main.allow_discovered_hosts.clone(),
        })
    }
}

/// The parts that the tasks of the thread share.
struct World {
    client: Client,
    look_up: LookUp,
    resolv_conf: String,
    events: Sender<Event>,
}

/// Patroni's agents by the names of their nodes, as a source has named them.
type Agents = Rc<RefCell<BTreeMap<Arc<str>, SourceUrl>>>;

/// The workers' request to ask the source more often than at each interval.
#[derive(Default)]
struct Hurry {
    is_on: Cell<bool>,
    begins: Notify,
}

impl Hurry {
    fn set(&self, hurries: bool) {
        self.is_on.set(hurries);
        if hurries {
            self.begins.notify_waiters();
        }
    }

    /// Waits for this time, or until a hurry begins.
    async fn pause(&self, pause: Duration) {
        if self.is_on.get() {
            sleep(pause).await;
        } else {
            // The pause is over in either case.
            let _ = timeout(pause, self.begins.notified()).await;
        }
    }
}

/// The task that asks for one cluster.
struct Task {
    spec: Spec,
    world: Rc<World>,
    agents: Agents,
    hurry: Rc<Hurry>,
    handle: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

async fn serve(mut orders: UnboundedReceiver<Order>, events: Sender<Event>, log: &Log, outside: Outside) {
    let mut tasks: HashMap<Arc<str>, Task> = HashMap::new();
    while let Some(order) = orders.recv().await {
        match order {
            Order::Follow(config) => follow(&config, &mut tasks, &events, log, outside),
            Order::Hurry { cluster, hurries } => {
                if let Some(task) = tasks.get(&cluster) {
                    task.hurry.set(hurries);
                }
            }
            Order::SwitchOver(request) => {
                let task = tasks.get(&request.cluster);
                let asked = task.map(|task| {
                    let (spec, world) = (task.spec.clone(), Rc::clone(&task.world));
                    (spec, world, task.agents.borrow().get(&request.from).cloned())
                });
                let events = events.clone();
                spawn_local(async move {
                    let result = match asked {
                        Some((spec, world, Some(agent))) => {
                            patroni::switch_over(&spec, &world, &agent, &request.from, &request.to).await
                        }
                        _ => Err(format!("the agent of {} is not known", request.from)),
                    };
                    let Request { cluster, number, .. } = request;
                    // This fails if the process is ending and the receiver is gone.
                    let _ = events.send(Event::Switched { cluster, number, result });
                });
            }
        }
    }
}

/// Starts and ends tasks, so that the clusters of this configuration are asked for.
fn follow(
    config: &Config,
    tasks: &mut HashMap<Arc<str>, Task>,
    events: &Sender<Event>,
    log: &Log,
    Outside { look_up, verify }: Outside,
) {
    let main = &config.main;
    let client = Client::new(main, look_up, verify);
    if let Some(fault) = client.fault() {
        log.write(Level::Error, fault);
    }
    let resolv_conf = main.resolv_conf.clone();
    let world = Rc::new(World { client, look_up, resolv_conf, events: events.clone() });
    let specs = config.clusters.iter().filter_map(|(name, cluster)| Spec::of(name, cluster, main));
    let specs: Vec<Spec> = specs.collect();
    // Dropping a task ends its questions.
    tasks.retain(|name, _| specs.iter().any(|spec| spec.cluster == *name));
    for spec in specs {
        // Certificate files may have changed under their names, so tasks that use TLS start again.
        if tasks.get(&spec.cluster).is_none_or(|task| task.spec != spec || task.spec.uses_tls()) {
            let agents = Agents::default();
            let hurry = tasks.get(&spec.cluster).map(|task| Rc::clone(&task.hurry)).unwrap_or_default();
            let asking = ask(spec.clone(), Rc::clone(&world), Rc::clone(&agents), Rc::clone(&hurry));
            let handle = spawn_local(asking);
            let world = Rc::clone(&world);
            tasks.insert(Arc::clone(&spec.cluster), Task { spec, world, agents, hurry, handle });
        }
    }
}

impl Spec {
    fn uses_tls(&self) -> bool {
        match &self.way {
            Way::Dns { .. } => false,
            // Patroni's list may have addresses with TLS even if the configuration has none.
            Way::Patroni { .. } => true,
            Way::Etcd { endpoints, .. } => endpoints.iter().any(|url| url.tls),
        }
    }
}

/// Asks for one cluster until the task is ended.
async fn ask(spec: Spec, world: Rc<World>, agents: Agents, hurry: Rc<Hurry>) {
    match spec.way.clone() {
        Way::Dns { host, port } => dns::ask(&spec, &world, host, port).await,
        Way::Patroni { agents: configured } => {
            patroni::ask(&spec, &world, &configured, &agents, &hurry).await;
        }
        Way::Etcd { endpoints, login, prefix } => {
            etcd::ask(&spec, &world, &endpoints, login.as_ref(), &prefix, &agents).await;
        }
    }
}

impl World {
    fn report(&self, spec: &Spec, said: Result<SourceWord, String>) {
        let report = SourceReport { cluster: Arc::clone(&spec.cluster), discovery: spec.discovery, said };
        // This fails if the process is ending and the receiver is gone.
        let _ = self.events.send(Event::Source(Arc::new(report)));
    }

    /// Finds the addresses of a host without blocking the thread.
    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        http::addresses(self.look_up, self.resolv_conf.clone(), host.to_owned()).await
    }
}
