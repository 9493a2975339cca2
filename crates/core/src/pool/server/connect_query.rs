//! `connect_query`: the statements that the operator has run on each new server connection. The state that they leave in the
//! server's session is the beginning of the session of every client of the pool. So pgweir asks the server for that state, and
//! welcomes no client before it is known. A reset of a server takes this state away with the rest: `connect_query` runs again
//! then, and the server is asked again.
//!
//! No client ever has a server here. A client's own wishes must never be decided here, nor be mixed up with what
//! `connect_query` left: a client's RESET goes back to the client's own wishes alone.

use std::sync::Arc;

use pgweir_sql::{SettingNames, assignments};

use crate::context::{Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::ServerId;
use crate::limits::SESSION_BYTES_MAX;
use crate::pool::Pool;
use crate::pool::server::asked::{AtLogin, Replies, ServerQuestion};
use crate::pool::server::greeting::{IN_HOT_STANDBY, ServerGreeting, TOLD_AGAIN};
use crate::pool::session::content::Session;
use crate::pool::session::pins::Touched;

impl Pool {
    /// Runs `connect_query` on a server that is logged in, or begins its session at once if there is none.
    pub(crate) fn first_statement<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, login: AtLogin) {
        match self.state.connect_query() {
            Some(_) => self.run_connect_query(cx, id, Some(Box::new(login))),
            None => self.session_begins(cx, id, Some(&login), Session::default()),
        }
    }

    /// Prepares a server that was reset for its next client: `connect_query` runs again if there is one.
    pub(crate) fn cleaned<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let closes = self.reason_to_close(cx.env, id).is_some();
        let Some(server) = self.servers.get_mut(id) else { return };
        let pool = &mut self.state;
        server.session = pool.known.sessions.share(Session::default());
        if closes || !pool.policy.tries_startup() || pool.connect_query().is_none() {
            if closes || !self.reads_catalog(cx, id) {
                self.free_server(cx, id);
            }
            return;
        }
        if server.cancels > 0 {
            // A cancel on its way is not meant for it: it goes on when that is over.
            return;
        }
        self.run_connect_query(cx, id, None);
    }

    fn run_connect_query<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        login: Option<Box<AtLogin>>,
    ) {
        let query = self.state.connect_query().unwrap_or_default().to_owned();
        self.ask_server(cx, id, ServerQuestion::ConnectQuery(login), query.as_bytes());
    }

    /// Handles the answer to `connect_query`. `login` is what the server reported at its login, if that ends now.
    pub(crate) fn connect_query_ended<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        login: Option<Box<AtLogin>>,
    ) {
        if !self.state.policy.tries_startup() {
            // This pool keeps no session of its clients (`session_state=pgbouncer`): what the query sets stays on the server.
            return self.session_begins(cx, id, login.as_deref(), Session::default());
        }
        self.begin_question(cx, id, ServerQuestion::AfterConnectQuery(login));
        self.ask_what_is_left(cx, id);
    }

    /// Asks the server for the contents of its session.
    pub(crate) fn ask_what_is_left<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let names = custom_names(self.state.connect_query().unwrap_or_default().as_bytes());
        let text = self.everything_of(cx.env, id, &names);
        self.send_question(cx, id, &text);
    }

    /// Handles the server's answer about the state that `connect_query` left, which may be an error.
    pub(crate) fn learnt<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        mut login: Option<Box<AtLogin>>,
        answer: &Replies,
    ) {
        self.learn_routines(answer);
        let session = match &answer.failed {
            Some((_, text)) => Err(text.clone()),
            None => {
                self.what_is_left(cx.env, id, answer).ok_or_else(|| "its answer cannot be read".to_owned())
            }
        };
        let session = session.unwrap_or_else(|why| {
            login.iter_mut().for_each(|login| login.in_doubt = true);
            let name = self.server_log_name(&self.servers[id]);
            cx.log(Level::Warning, &format!("{name} does not tell what its session holds: {why}"));
            Session::default()
        });
        self.session_begins(cx, id, login.as_deref(), session);
    }

    /// Returns the part of the state that can move to another server. The rest (temporary tables, locks) is this server's alone: a client
    /// that touches it finds out, and keeps the server.
    fn what_is_left(&mut self, env: &mut Env, id: ServerId, answer: &Replies) -> Option<Session> {
        let (mut session, _) = self.read_everything(env, id, answer, false)?;
        let params = Arc::clone(&self.servers.get(id)?.params);
        let known = env.parse_contexts.find(self.id, &env.tracked, &params, &Arc::new(session.clone()));
        let parse_context = known.parse_context().unwrap_or_else(|| env.parse_contexts.alone());
        session.reread(|_| parse_context);
        // No client asked for its notifications.
        session.listen(Vec::new());
        (session.bytes() <= SESSION_BYTES_MAX).then_some(session)
    }

    /// Notes the session that this server begins with. The pool's first server decides what its clients begin with, or the next server if
    /// the first could not say. New clients are told the parameters as the newest server reports them.
    fn session_begins<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        login: Option<&AtLogin>,
        session: Session,
    ) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let pool = &mut self.state;
        server.session = pool.known.sessions.share(session);
        if let Some(login) = login {
            let (params, session) = (Arc::clone(&server.params), Arc::clone(&server.session));
            let (fixed, in_doubt) = (login.messages(), login.in_doubt);
            let greeting = ServerGreeting { fixed, params, session, in_doubt };
            // What a standby's clients are told is added for them alone.
            let as_primary = (!server.branch.is_primary()).then(|| greeting.telling(IN_HOT_STANDBY, b"off"));
            let greeting = Arc::new(as_primary.flatten().unwrap_or(greeting));
            let lacks = pool.greeting.as_ref().is_none_or(|known| known.in_doubt && !in_doubt);
            // Other servers were started with a client's own parameters.
            if lacks && server.opened.is_plain() {
                pool.greeting_with(Arc::clone(&greeting));
            } else if server.branch.is_primary() && !in_doubt {
                pool.greeting_renewed(&greeting, &cx.env.tracked, &server.opened);
            }
            if server.branch.is_primary() {
                pool.freshness.confirm(cx.env.now.mono_us);
            }
            for name in TOLD_AGAIN {
                greeting.told(name).into_iter().for_each(|value| pool.greeting_telling(name, value));
            }
            self.learn_opened(id, &greeting, &login.params);
            self.notice();
        }
        let is_asked = login.is_some() && self.asks_node(cx, id);
        if !is_asked && !self.reads_catalog(cx, id) {
            self.free_server(cx, id);
        }
    }
}

/// Returns the settings `a.b` that a text may be about: no list of PostgreSQL shows them.
fn custom_names(text: &[u8]) -> Vec<Box<[u8]>> {
    let mut touched = Touched::default();
    touched.learn(&SettingNames::of(text, true));
    // Text that cannot be read is the same in the sessions of all servers.
    let _ = assignments(text, |assignment| {
        assignment.name.iter().filter(|name| name.contains(&b'.')).for_each(|name| touched.name(name));
    });
    touched.names
}
