//! Which names lead to code that changes sessions, or does more than read: the catalog is asked when a pool's first server is logged in,
//! before any client gets it, and at a release when other code was made through the pooler, or some time has passed. A text with a
//! name that leads to a change is looked at after its transaction as CALL is. Code that was made past the pooler meanwhile is left
//! to the looks (`session_check.rs`).

use crate::context::Cx;
use crate::driver::{Driver, Level};
use crate::ids::ServerId;
use crate::limits::SERVER_MESSAGE_BYTES_MAX;
use crate::pool::Pool;
use crate::pool::catalog::graph::Graph;
use crate::pool::catalog::question::catalog_question;
use crate::pool::catalog::reach::{NameLists, Reach};
use crate::pool::catalog::routines::SETTINGS_QUESTION;
use crate::pool::client::state::ClientState;
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::server::asked::{Replies, ServerQuestion};
use crate::pool::server::state::Server;

const TOO_MANY: &str =
    "has so much code that changes sessions that not all of it is known; each client keeps its server";

const NAMES_REFUSED: &str = "does not tell which names stand for more than a read";

const ROUTINES_REFUSED: &str = "does not tell which routines change their session";

impl Pool {
    /// A server is about to be free. `true` if the catalog is read before.
    #[inline]
    pub(crate) fn reads_catalog<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        self.state.routines.are_to_be_read(cx.env.now.mono_us, cx.env.shared.routines())
            && self.read_catalog(cx, id)
    }

    #[cold]
    fn read_catalog<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        // A standby may not have yet what the catalog of the primary has.
        let is_primary = self.servers[id].branch.is_primary();
        let at_standbys = self.state.balances && is_primary;
        let routines = self.state.session_checks.are_wanted();
        let is_cached = self.state.cache_obstacle(cx.env).is_none();
        let names = at_standbys || is_cached || self.multiplex_limits().is_some();
        let is_left_to_primary = self.state.balances && !is_primary && self.state.routines.are_read();
        if !routines && !names
            || is_left_to_primary
            || self.is_catalog_being_read()
            || self.is_notify_listener(id)
            || self.reason_to_close(cx.env, id).is_some()
        {
            return false;
        }
        let age = cx.env.shared.routines();
        let server = &self.servers[id];
        if !server.is_at_rest() || server.cancels > 0 {
            return false;
        }
        self.state.routines.begin_reading(cx.env.now.mono_us);
        let mut text = catalog_question(at_standbys).into_bytes();
        if routines {
            text.extend_from_slice(SETTINGS_QUESTION);
        }
        let text = own_settings::question(self.servers[id].at.version, Asks::Catalog, &text);
        self.ask_server(cx, id, ServerQuestion::Catalog { age }, &text);
        self.server_unpause(cx, id);
        true
    }

    /// Whether another server is being asked for the catalog, after a first answer. If many clients change tables and routines, each
    /// of their servers would otherwise ask the same.
    fn is_catalog_being_read(&self) -> bool {
        let is_asked =
            |server: &Server| matches!(server.state.question(), Some(ServerQuestion::Catalog { .. }));
        self.state.routines.are_read() && self.servers.values().any(is_asked)
    }

    /// The answer is complete. `age` is the age of routines at which the server was asked.
    pub(crate) fn catalog_read<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        age: u64,
        answer: &Replies,
    ) {
        let now_us = cx.env.now.mono_us;
        let news = match &answer.failed {
            None => {
                self.state.routines.read(now_us, age);
                self.learn_routines(answer);
                if self.state.columns.follow(&answer.rows) {
                    cx.env.shared.begin_age();
                }
                let pool = &mut self.state;
                let graph = Graph::of(&answer.rows);
                if pool.session_checks.are_wanted() {
                    pool.routines.learn(&graph);
                }
                if answer.bytes > SERVER_MESSAGE_BYTES_MAX {
                    pool.reach = Reach::default();
                    pool.routines.cut();
                } else {
                    let lists = match &pool.cluster {
                        Some(_) => NameLists::of(cx.env.rules.config.name_lists(&pool.config, &pool.user)),
                        None => NameLists::default(),
                    };
                    pool.reach.follow(Reach::of(&answer.rows, &graph, lists));
                }
                let cut = pool.routines.are_too_many();
                self.judge_waiting_again();
                cut.then(|| TOO_MANY.to_owned())
            }
            // Perhaps no PostgreSQL.
            Some((_, text)) => {
                let pool = &mut self.state;
                pool.reach = Reach::default();
                if pool.session_checks.are_wanted() {
                    let is_news = pool.routines.give_up(now_us, age);
                    self.judge_waiting_again();
                    is_news.then(|| format!("{ROUTINES_REFUSED}: {text}; each client keeps its server"))
                } else {
                    // It was asked for names only.
                    pool.routines.read(now_us, age);
                    Some(format!("{NAMES_REFUSED}: {text}; no statement is multiplexed"))
                }
            }
        };
        if self.state.balances && !self.servers[id].branch.is_primary() {
            self.state.routines.doubt();
        }
        if let Some(news) = news {
            let line = format!("{} {news}", self.server_log_name(&self.servers[id]));
            cx.log(Level::Warning, &line);
        }
        self.free_server(cx, id);
    }

    /// Looks again at the requests of waiting clients, which were judged by what was known before.
    fn judge_waiting_again(&mut self) {
        let pool = &self.state;
        if pool.routines.none_changes() {
            return;
        }
        for id in pool.nodes().flat_map(|node| &node.clients) {
            if let Some(ClientState::Waiting(waiting)) =
                self.clients.get_mut(*id).map(|client| &mut client.state)
            {
                waiting.group = None;
            }
        }
    }
}
