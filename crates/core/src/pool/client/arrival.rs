//! A proven client comes into its pool: it is told everything at once if the pool knows what to say, or waits for a server.

use std::sync::Arc;

use pgweir_auth::Learned;
use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::error::{Report, SqlState, encode_notice};

use crate::client_handoff::{ClientHandoff, Login, Replication};
use crate::context::{Activity, Cx, Env, KeyOwner, Role};
use crate::driver::{ConnId, Driver};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::pool::cache::ProbeWait;
use crate::pool::client::state::{Account, Client, ClientState, Request};
use crate::pool::cluster::route::Asking;
use crate::pool::server::greeting::{IN_HOT_STANDBY, ServerGreeting};
use crate::pool::startup::check::Known;
use crate::pool::startup::checked::CheckedStartup;
use crate::pool::{Branch, Pool};

/// The next step for a client that logs in.
pub(crate) enum Admission {
    /// The client gets this greeting, with the outcome of its startup parameters if it has some.
    Greet(Arc<ServerGreeting>, Option<Arc<CheckedStartup>>),
    /// The client gets this error, because no server can be opened that would tell the greeting.
    Refuse(Fault),
    /// The client waits for a server to tell the greeting.
    Wait,
}

impl Pool {
    /// A proven client: `None` if it was refused.
    pub(crate) fn join_pool<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        conn: ConnId,
        handoff: ClientHandoff,
        reads_paused: bool,
    ) -> Option<ClientId> {
        let ClientHandoff { serial, origin, login, counted, unread } = handoff;
        cx.env.shared.note_client(cx.env.worker, true);
        self.learn(&login);
        let (replication, minor) = (login.replication, login.minor);
        let pool = &self.state;
        // Most clients are the pool's user: one text serves all.
        let user = if login.user == pool.user { Arc::clone(&pool.user) } else { Arc::clone(&login.user) };
        let now_us = cx.env.now.mono_us;
        let pool_id = self.id;
        let id = self.clients.insert_with_key(|id| Client {
            conn,
            serial,
            state: ClientState::AwaitingServer(Box::new(login)),
            inbox: unread,
            skip: 0,
            reads_paused,
            departed: false,
            origin: Box::new(origin),
            account: Account {
                user,
                replication,
                params: Arc::default(),
                session: Arc::default(),
                startup: None,
                own: None,
                listener: None,
                statements: None,
                unnamed: None,
                refused_servers: 0,
                branch: Branch::PRIMARY,
                routing: None,
                must_see: None,
                parse_context: None,
                wrote_us: 0,
                redefined_us: 0,
                seen_probe: 0,
                probe_wait: ProbeWait::No,
                reader: None,
                draws: crate::pool::sequences::state::Draws::default(),
                cancel_key: cx.new_cancel_key(KeyOwner::Client(pool_id, id), minor, None),
                request: Request { since_us: now_us, ..Request::default() },
                active_us: now_us,
                _counted: counted,
            },
        });
        cx.env.set_role(conn, Role::Client(self.id, id));
        if cx.env.activity == Activity::Suspended {
            self.pause_client(cx, id);
        }
        let pool = &mut self.state;
        pool.numbers.stats.client_logins += 1;
        if replication != Replication::None {
            self.request_replication(cx, id);
            return self.clients.contains_key(id).then_some(id);
        }
        let branch = self.branch_of_request(cx.env, id, Asking::default());
        let waits = self.awaits_greeting(cx.env, branch) || self.state.gets_own_server();
        let greeting = self.state.greeting.clone().filter(|_| !waits);
        match self.admission(cx.env, branch, id, greeting.as_ref()) {
            Admission::Greet(greeting, checked) => {
                self.greet_client(cx, id, &greeting, checked.as_deref(), None);
            }
            Admission::Refuse(fault) => {
                self.refuse_client(cx, id, &fault);
                return None;
            }
            Admission::Wait => {
                self.state.node_at_mut(branch).awaiting.push(id);
                self.notice();
            }
        }
        Some(id)
    }

    /// The next step for a client that logs in at this node now. `greeting` is what clients are told; `None`: no server has told it yet.
    pub(crate) fn admission(
        &mut self,
        env: &Env,
        branch: Branch,
        id: ClientId,
        greeting: Option<&Arc<ServerGreeting>>,
    ) -> Admission {
        if let Some(Err(fault)) = greeting.map(|greeting| self.sort_startup(env, id, greeting)) {
            return Admission::Refuse(fault);
        }
        match greeting.map(|greeting| (greeting, self.known_startup(env, id, greeting))) {
            Some((greeting, Known::Plain)) => Admission::Greet(Arc::clone(greeting), None),
            Some((greeting, Known::CheckedStartup(known))) => {
                Admission::Greet(Arc::clone(greeting), Some(known))
            }
            Some((_, Known::Unknown)) | None => {
                self.known_failure(env, branch).map_or(Admission::Wait, Admission::Refuse)
            }
        }
    }

    /// The secret that the client proved itself with may serve to log in to servers, if the client is the pool's user.
    fn learn(&mut self, login: &Login) {
        let pool = &mut self.state;
        if login.user == pool.user && !matches!(login.learned, Learned::Nothing) {
            pool.known.learned = login.learned.clone();
        }
    }

    /// Everything a client must know, in one burst. If the client has its own server, it is told of that server's process.
    pub(crate) fn greet_client<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        greeting: &ServerGreeting,
        checked: Option<&CheckedStartup>,
        server: Option<ServerId>,
    ) {
        self.begin_session(cx.env, id, greeting, checked);
        let notices = server.map(|server| self.show_process(cx, id, server)).unwrap_or_default();
        let Some(client) = self.clients.get_mut(id) else { return };
        let account = &mut client.account;
        if !matches!(client.state, ClientState::AwaitingServer(_)) {
            return;
        }
        account.active_us = cx.env.now.mono_us;
        let at_standby = !account.branch.is_primary();
        let of_standby = at_standby.then(|| greeting.telling(IN_HOT_STANDBY, b"on")).flatten();
        let out = &mut cx.env.scratch;
        out.clear();
        backend::encode_auth_ok(out);
        out.extend_from_slice(&of_standby.as_ref().unwrap_or(greeting).fixed);
        out.extend_from_slice(checked.map_or(&[][..], |checked| &checked.reported));
        self.state.known.tell_params(out, &cx.env.tracked, &account.params);
        let key = &account.cancel_key;
        backend::encode_backend_key_data(out, key.pid(), &key.secret());
        out.extend_from_slice(&notices);
        let notice = &cx.env.rules.config.main.login_notify_message;
        if !notice.is_empty() {
            encode_notice(out, &Report::notice(SqlState::SUCCESSFUL_COMPLETION, notice));
        }
        backend::encode_ready(out, TxStatus::Idle);
        cx.env.counters.login.record(cx.env.now.mono_us.saturating_sub(client.origin.since.mono_us));
        cx.driver.send(client.conn, &cx.env.scratch);
        self.set_client_state(id, ClientState::Idle);
    }
}
