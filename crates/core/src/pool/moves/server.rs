//! The moves of a server connection between its states, the lists that follow, and its end.

use pgweir_wire::backend::tag;

use crate::context::Cx;
use crate::driver::{CloseMode, Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::pool::choose::reasons::LIFETIME_OVER;
use crate::pool::listen::notify_listener::NotifyListener;
use crate::pool::lookup::answer_lookup;
use crate::pool::relay::ledger::Purpose;
use crate::pool::server::asked::{AskedServer, ServerQuestion};
use crate::pool::server::state::{LinkedServer, Server, ServerState, ServerTask};
use crate::pool::{Branch, Pool, PoolState, ServerKind};
use crate::stats::rare_path::RarePath;
use crate::worker::login::inquiry::{Answer, Obstacle};

impl PoolState {
    /// The one way to change a server's state: lists and numbers follow.
    // Inlined for the reason of `move_client`: the new state is written in place, and its number is known.
    #[inline(always)]
    pub(crate) fn move_server(&mut self, id: ServerId, server: &mut Server, state: ServerState) {
        let (from, to) = (server.state.kind(), state.kind());
        debug_assert!(is_legal(&server.state, &state), "a server cannot make this move");
        server.state = state;
        if from != to {
            self.node_at_mut(server.branch).list(id, Some(from), Some(to));
        }
        if from == ServerKind::Login && to != ServerKind::Login {
            self.counts_of(server.branch).iter().for_each(|counts| counts.logins.give_back());
        }
    }

    /// Gives a server that serves a client, or drains, to the next client, whose turn has come.
    #[inline]
    pub(crate) fn pass_server_on(&mut self, id: ServerId, server: &mut Server, next: ClientId) {
        match &mut server.state {
            ServerState::Linked(LinkedServer { client, task: ServerTask::Serving }) => *client = next,
            _ => self.move_server(id, server, ServerState::serving(next)),
        }
    }
}

impl Pool {
    /// Sets the state of the server with this id, as [`PoolState::move_server`] does.
    #[inline(always)]
    pub(crate) fn set_server_state(&mut self, id: ServerId, state: ServerState) {
        let Some(server) = self.servers.get_mut(id) else { return };
        self.state.move_server(id, server, state);
    }

    /// Asks a question of a server that no client has. The answer is handled in `asked.rs`.
    pub(crate) fn ask_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        question: ServerQuestion,
        text: &[u8],
    ) {
        self.begin_question(cx, id, question);
        self.send_question(cx, id, text);
    }

    /// Moves a server that no client has to the state of being asked. The caller must send the question next, or end it.
    pub(crate) fn begin_question<D: Driver>(
        &mut self,
        cx: &Cx<'_, D>,
        id: ServerId,
        question: ServerQuestion,
    ) {
        self.set_server_state(id, ServerState::Asked(AskedServer::new(question)));
        self.servers[id].active_us = cx.env.now.mono_us;
    }

    /// Sends the question that has begun. Also sends it again after an error.
    pub(crate) fn send_question<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, text: &[u8]) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let ServerState::Asked(asked) = &mut server.state else { return };
        asked.attempts += 1;
        server.active_us = cx.env.now.mono_us;
        self.send_hidden(cx, id, Purpose::Question, text);
    }

    /// Runs `server_check_query` on a free server.
    pub(crate) fn check_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let query = &cx.env.rules.config.main.server_check_query;
        let text =
            if query.eq_ignore_ascii_case("<empty>") { Vec::new() } else { query.clone().into_bytes() };
        self.ask_server(cx, id, ServerQuestion::Check, &text);
    }

    /// Closes a server connection and forgets it. A client that was linked to it must be dealt with before.
    pub(crate) fn close_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        reason: &str,
        mode: CloseMode,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        if cx.env.rules.config.main.log_disconnections && cx.driver.log_reaches_anybody(Level::Log) {
            let age_s = cx.env.now.mono_us.saturating_sub(server.at.since.mono_us) / 1_000_000;
            let line = format!("{} closing because: {reason} (age={age_s}s)", self.server_log_name(server));
            cx.log(server.log_level(Level::Log), &line);
        }
        self.put_back_queued(cx, id);
        self.leave_short(id);
        self.set_unlisted(id);
        let Some(mut server) = self.servers.remove(id) else { return };
        cx.env.clear_role(server.conn);
        // Before the login is over, this would be no message but the first byte of another one.
        let logged_in = server.state.kind() != ServerKind::Login;
        if mode == CloseMode::Flush && logged_in && server.is_at_rest() {
            cx.env.scratch.clear();
            pgweir_wire::frontend::encode_terminate(&mut cx.env.scratch);
            cx.driver.send(server.conn, &cx.env.scratch);
        }
        let still_counts = self.counts_until_closed(cx.env, &server);
        if !still_counts {
            cx.driver.close(server.conn, mode);
        }
        cx.env.buffers.give_back(std::mem::take(&mut server.incoming.inbox));
        server.attempt.end(true, &mut cx.env.buffers);
        if let ServerState::Inquiring(inquiring) = &server.state {
            answer_lookup(cx, &inquiring.lookup, Answer::Unavailable(Obstacle::Unreachable));
        }
        if let Some(ServerQuestion::Position { .. }) = server.state.question() {
            self.location_lost(cx.env.now.mono_us, server.branch);
        }
        if let Some(ServerQuestion::Backends { number, .. }) = server.state.question() {
            self.state.node_at_mut(server.branch).backends.fail(*number);
        }
        for statement in server.statements.drain() {
            cx.env.statements.give_back(statement);
        }
        for entry in server.ledger.drain() {
            self.statement_evicted(cx.env, entry);
        }
        if reason == LIFETIME_OVER {
            self.state.node_at_mut(server.branch).aged_us = cx.env.now.mono_us;
        }
        match still_counts {
            true => self.close_and_count(cx, &server, mode),
            false => {
                if !logged_in {
                    self.state.counts_of(server.branch).iter().for_each(|counts| counts.logins.give_back());
                }
                self.give_back_server(cx, server.branch);
            }
        }
        let is_listener = |listener: &mut Box<NotifyListener>| listener.server == id;
        if let Some(lost) = self.state.notify_listener.take_if(is_listener) {
            self.state.due.lost_listener = Some(lost);
        }
        self.notice();
    }

    /// Takes a server out of its list before it is removed.
    pub(crate) fn set_unlisted(&mut self, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let (branch, kind) = (server.branch, server.state.kind());
        let pool = &mut self.state;
        pool.drawn.affinities.end(id);
        pool.node_at_mut(branch).list(id, Some(kind), None);
    }

    /// One server fewer counts towards the limits that span pools; pools that starved by them may try again.
    pub(crate) fn give_back_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        let [by_database, by_user] = self.state.counts_of(branch);
        cx.env.give_back_places([by_database, by_user], self.state.policy.is_limited);
    }

    /// Stops reading from a server if its client does not keep up.
    pub(crate) fn pause_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        if let Some(server) = self.servers.get_mut(id)
            && server.incoming.paused_us.is_none()
        {
            server.note_pause(cx.env.now.mono_us);
            cx.driver.reached(RarePath::ClientBacklog);
            cx.driver.pause_reads(server.conn);
            self.state.look_at_passed_over();
        }
    }

    /// Reads from a server again, if its client keeps up (or it has none).
    pub(crate) fn server_unpause<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        if server.incoming.paused_us.is_none() {
            return;
        }
        let client = server.state.client().and_then(|client| self.clients.get(client));
        if client.is_some_and(|client| cx.driver.backlog(client.conn) > cx.env.limits.backlog_bytes) {
            return;
        }
        let conn = server.conn;
        self.servers[id].note_unpause(cx.env.now.mono_us);
        cx.driver.resume_reads(conn);
    }

    /// Takes a server off the list of those that take further statements.
    pub(crate) fn leave_short(&mut self, id: ServerId) {
        let Some(branch) = self.servers.get(id).map(|server| server.branch) else { return };
        let short = &mut self.state.node_at_mut(branch).short;
        if let Some(place) = short.iter().position(|&other| other == id) {
            short.remove(place);
        }
    }
}

/// Whether a server may move from one state to the other.
fn is_legal(from: &ServerState, to: &ServerState) -> bool {
    use ServerState as S;
    match (from, to) {
        (S::Asked(from), to) => may_follow(&from.question, to),
        (from, S::Asked(to)) => may_be_asked(from, &to.question),
        // The other tasks begin and end on a server that serves the client.
        (S::Linked(_), S::Linked(_)) => from.is_serving() || to.is_serving(),
        (S::Linked(_), S::Draining | S::Idle | S::HeldForCancel) => from.is_serving(),
        (S::Draining, S::Linked(_)) => to.is_serving() || to.syncing().is_some(),
        (S::LoggingIn(_) | S::Idle, S::Linked(_)) => to.is_serving(),
        (from, to) => matches!(
            (from, to),
            (S::Dialing(_), S::SecuringTls(_) | S::LoggingIn(_))
                | (S::SecuringTls(_), S::LoggingIn(_))
                | (S::LoggingIn(_), S::Idle | S::Listening | S::Watching(_))
                | (S::Inquiring(_), S::Idle | S::HeldForCancel)
                | (S::Draining, S::Draining | S::Idle | S::HeldForCancel)
                | (S::Idle, S::Inquiring(_))
                | (S::HeldForCancel, S::Idle)
        ),
    }
}

/// Whether a server in this state may be asked this question.
fn may_be_asked(from: &ServerState, question: &ServerQuestion) -> bool {
    use ServerQuestion as Q;
    use ServerState as S;
    match from {
        S::LoggingIn(_) => matches!(question, Q::ConnectQuery(_) | Q::Node | Q::Catalog { .. }),
        S::Inquiring(_) => matches!(question, Q::Reset),
        S::Draining => matches!(question, Q::Check | Q::Reset),
        S::Idle => {
            let is_look = matches!(question, Q::Position { .. } | Q::Backends { .. } | Q::Greeting { .. });
            is_look || matches!(question, Q::Check | Q::Startup(_))
        }
        S::Linked(linked) => match linked.task {
            ServerTask::Serving => {
                matches!(question, Q::Check | Q::Reset | Q::Session(_) | Q::Catalog { .. } | Q::Tables(_))
            }
            ServerTask::Auditing(_) => matches!(question, Q::Reset),
            ServerTask::Syncing(_) => false,
        },
        _ => false,
    }
}

/// Whether a server may have this state next after it has answered this question.
fn may_follow(question: &ServerQuestion, to: &ServerState) -> bool {
    use ServerQuestion as Q;
    match to {
        ServerState::Idle | ServerState::HeldForCancel => true,
        ServerState::Listening => matches!(question, Q::ConnectQuery(_) | Q::AfterConnectQuery(_)),
        ServerState::Asked(next) => matches!(
            (question, &next.question),
            (Q::ConnectQuery(_), Q::AfterConnectQuery(_))
                | (Q::ConnectQuery(_) | Q::AfterConnectQuery(_), Q::Node | Q::Catalog { .. })
                | (Q::Reset, Q::ConnectQuery(_) | Q::Node | Q::Catalog { .. })
                | (Q::Node, Q::Catalog { .. })
                | (Q::Startup(_), Q::Reset)
        ),
        _ => false,
    }
}

/// Whether PostgreSQL may send such a message to a session at rest: "Asynchronous Operations" of its page on the message flow.
pub(crate) fn comes_unasked(tag: u8) -> bool {
    matches!(tag, tag::NOTICE | tag::NOTIFICATION | tag::PARAMETER_STATUS)
}
