//! The log's lines on logins: that a client tries, and why its login failed. The texts are PgBouncer's, which log analysers
//! know. Nothing here says anything to a client.

use pgweir_auth::Refusal;

use crate::client_handoff::{Login, Replication};
use crate::context::Cx;
use crate::driver::{Driver, Level};
use crate::errors::Fault;
use crate::ids::UnpooledId;
use crate::pool::Step;
use crate::pool::client::state::{log_name, printable};
use crate::worker::Worker;
use crate::worker::unpooled::UnpooledState;

impl Worker {
    /// Logs `login attempt`: the client and the database and user it asks for, before any proof.
    pub(crate) fn log_attempt<D: Driver>(&self, cx: &mut Cx<'_, D>, id: UnpooledId, login: &Login) {
        if !cx.env.rules.config.main.log_connections || !cx.driver.log_reaches_anybody(Level::Log) {
            return;
        }
        let Some(client) = self.unpooled.get(id) else { return };
        let tls = client.origin.tls.as_ref().map_or("no", |tls| &*tls.description);
        let replication = match login.replication {
            Replication::None => "no",
            Replication::Physical => "yes",
            Replication::Logical => "database",
        };
        let (database, user) = names(login);
        let line = format!("login attempt: db={database} user={user} tls={tls} replication={replication}");
        self.log_of_login(cx, id, login, &line);
    }

    /// Logs `login failed`, with the part of the reason that only the log may know.
    pub(crate) fn log_refusal<D: Driver>(
        &self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        login: &Login,
        refusal: Refusal,
    ) {
        let (database, user) = names(login);
        if let Some(reason) = refusal.log_text() {
            let Some(client) = self.unpooled.get(id) else { return };
            let line = format!(
                "{} {reason}",
                log_name(client.serial, &login.database, &login.user, &client.origin.peer)
            );
            cx.log(Level::Error, &line);
        }
        if cx.env.rules.config.main.log_connections {
            self.log_of_login(cx, id, login, &format!("login failed: db={database} user={user}"));
        }
    }

    /// A line that begins with the name the client will have once it is in.
    pub(crate) fn log_of_login<D: Driver>(
        &self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        login: &Login,
        text: &str,
    ) {
        if !cx.driver.log_reaches_anybody(Level::Log) {
            return;
        }
        let Some(client) = self.unpooled.get(id) else { return };
        let line =
            format!("{} {text}", log_name(client.serial, &login.database, &login.user, &client.origin.peer));
        cx.log(Level::Log, &line);
    }

    /// Ends a login, and logs whose login it was.
    pub(crate) fn refuse_login<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        login: Login,
        fault: &Fault,
    ) -> Step {
        if matches!(fault, Fault::NoSuchDatabase(_)) && cx.env.rules.config.main.log_connections {
            let (database, user) = names(&login);
            self.log_of_login(cx, id, &login, &format!("login failed: db={database} user={user}"));
        }
        if let Some(client) = self.unpooled.get_mut(id) {
            client.state = UnpooledState::Refused(Box::new(login));
        }
        self.refuse_unpooled(cx, id, fault)
    }
}

fn names(login: &Login) -> (String, String) {
    (printable(login.database.as_bytes()), printable(login.user.as_bytes()))
}
