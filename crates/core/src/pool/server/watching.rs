//! The watch of a cluster's node: a pool with one server and no client. pgweir asks that server what the node is. The server logs in
//! as any other does.

use crate::cluster::answer::{Answer, QUESTION};
use crate::cluster::lag::{ToldLag, read_seconds};
use crate::cluster::node::Observation;
use crate::context::Cx;
use crate::driver::{CloseMode, ConnId, Driver};
use crate::ids::ServerId;
use crate::pool::relay::ledger::Purpose;
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::server::asked::Replies;
use crate::pool::server::state::{ServerState, Serves, Watching};
use crate::pool::{Branch, Pool, ServerKind};

/// The state of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WatchState {
    /// The watch has no connection.
    Apart,
    Connecting,
    /// A question is not answered yet.
    Asked,
    /// The last question is answered.
    Answered,
}

impl Pool {
    /// Opens the connection of the watch. Returns `None` if there is no room for one.
    pub(crate) fn dial_watch<D: Driver>(&mut self, cx: &mut Cx<'_, D>) -> Option<ConnId> {
        if !self.take_watch_place(cx.env) {
            return None;
        }
        let id = self.dial_server(cx, Branch::PRIMARY, None);
        let server = self.servers.get_mut(id)?;
        server.serves = Serves::Watch;
        Some(server.conn)
    }

    /// Asks the server at once after its login.
    pub(crate) fn begin_watching<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        self.set_server_state(id, ServerState::Watching(Box::default()));
        self.ask_watch(cx);
    }

    /// Asks the server for the state of its node.
    pub(crate) fn ask_watch<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let version = self.servers.values().next().map_or(0, |server| server.at.version);
        let text = own_settings::question(version, Asks::Little, QUESTION.as_bytes());
        self.ask_node(cx, &text);
    }

    /// Asks a standby for its lag, by `lag_query`.
    pub(crate) fn ask_lag<D: Driver>(&mut self, cx: &mut Cx<'_, D>, text: &str) {
        self.ask_node(cx, text.as_bytes());
    }

    pub(crate) fn ask_node<D: Driver>(&mut self, cx: &mut Cx<'_, D>, text: &[u8]) {
        let Some((id, server)) = self.servers.iter_mut().next() else { return };
        let ServerState::Watching(watching) = &mut server.state else { return };
        **watching = Watching::default();
        self.send_hidden(cx, id, Purpose::Question, text);
    }

    pub(crate) fn watch_state(&self) -> WatchState {
        match self.servers.values().next().map(|server| &server.state) {
            None => WatchState::Apart,
            Some(ServerState::Watching(watching)) if watching.is_answered => WatchState::Answered,
            Some(ServerState::Watching(_)) => WatchState::Asked,
            Some(_) => WatchState::Connecting,
        }
    }

    /// Returns the answer, if it is complete.
    pub(crate) fn watch_answer(&self) -> Option<Observation> {
        match self.servers.values().next().map(|server| &server.state) {
            Some(ServerState::Watching(watching)) if watching.is_answered => Some(observed(&watching.answer)),
            _ => None,
        }
    }

    /// Returns the answer to `lag_query`, if it is complete.
    pub(crate) fn lag_answer(&self) -> Option<ToldLag> {
        match self.servers.values().next().map(|server| &server.state) {
            Some(ServerState::Watching(watching)) if watching.is_answered => Some(told_lag(&watching.answer)),
            _ => None,
        }
    }

    /// Closes the connection of the watch.
    pub(crate) fn end_watch<D: Driver>(&mut self, cx: &mut Cx<'_, D>, reason: &str) {
        let servers: Vec<ServerId> = self.servers.keys().collect();
        for id in servers {
            let logs_in = self.servers[id].state.kind() == ServerKind::Login;
            self.close_server(cx, id, reason, if logs_in { CloseMode::Now } else { CloseMode::Flush });
        }
    }
}

/// Returns the observation that an answer gives. Any answer shows that the node lives.
fn observed(answer: &Replies) -> Observation {
    if let Some((code, text)) = &answer.failed {
        let code = String::from_utf8_lossy(code.as_bytes()).into_owned();
        return Observation::Lives(format!("{text} (SQLSTATE {code})"));
    }
    match answer.rows.as_slice() {
        [row] => match Answer::read(row) {
            Ok(answer) => Observation::Answered(answer),
            Err(column) => Observation::Lives(format!("its answer cannot be read: {column}")),
        },
        rows => Observation::Lives(format!("its answer has {} rows", rows.len())),
    }
}

/// Returns the number of seconds in an answer to `lag_query`, which must be one row of one column.
fn told_lag(answer: &Replies) -> ToldLag {
    if let Some((code, text)) = &answer.failed {
        let code = String::from_utf8_lossy(code.as_bytes());
        return Err(format!("lag_query failed: {text} (SQLSTATE {code})"));
    }
    let [row] = answer.rows.as_slice() else {
        return Err(format!("lag_query gives {} rows, not one", answer.rows.len()));
    };
    match row.as_slice() {
        [None] => Err("lag_query gives NULL".to_owned()),
        [Some(text)] => read_seconds(text)
            .ok_or_else(|| "lag_query gives no number of seconds that is 0 or more".to_owned()),
        columns => Err(format!("lag_query gives {} columns, not one", columns.len())),
    }
}
