//! The sampled audit: after some releases the server is asked for the contents of its session, which are compared with the
//! expected contents. The scan goes by words; it cannot see a user's function that changes its session without a telling word.
//! The sampled audit notices such changes, and shows how often they happen.
//!
//! The server belongs to no client meanwhile. A difference closes it, so that no client gets it; and the statement, if it is
//! known, is asked about each time from then on.

use pgweir_sql::{Verb, traits};

use crate::context::{Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::ServerId;
use crate::pool::Pool;
use crate::pool::client::state::printable;
use crate::pool::server::asked::{Replies, SampledSession, ServerQuestion};

impl Pool {
    /// Asks a released server for the contents of its session, and plans the next check. Returns whether the server is asked.
    #[cold]
    pub(crate) fn check_session<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        let mut random = [0; 4];
        cx.driver.random(&mut random);
        let Some(server) = self.servers.get(id) else { return false };
        self.state.session_checks.plan(u32::from_le_bytes(random));
        let is_sound = server.is_at_rest() && server.opened.is_plain() && server.cancels == 0;
        if !is_sound || self.reason_to_close(cx.env, id).is_some() {
            return false;
        }
        let statements = cx.env.measured.stats.recent(&server.work.recent);
        let server = &mut self.servers[id];
        let transactions = std::mem::take(&mut server.work.unseen);
        server.work.recent = crate::stats::statements::Recent::default();
        let sampled = SampledSession { transactions, statements };
        self.begin_question(cx, id, ServerQuestion::Session(Box::new(sampled)));
        self.ask_for_look(cx, id);
        self.server_unpause(cx, id);
        true
    }

    /// Sends the server the query for the contents of its session, for the first time or again.
    pub(crate) fn ask_for_look<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        self.state.numbers.continuity.session_checks += 1;
        // Settings that it should have are asked for by name: a value that was given back to its former value has no trace.
        let names: Vec<Box<[u8]>> = server.session.settings().map(|setting| setting.name.clone()).collect();
        let text = self.everything_of(cx.env, id, &names);
        self.send_question(cx, id, &text);
    }

    /// The answer is complete.
    pub(crate) fn session_checked<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        sampled: SampledSession,
        answer: &Replies,
    ) {
        self.learn_routines(answer);
        let found = match &answer.failed {
            Some((_, text)) => Err(text.clone()),
            None => {
                self.differences(cx.env, id, answer).ok_or_else(|| "its answer cannot be read".to_owned())
            }
        };
        match found {
            Ok(differences) if differences.is_empty() => {}
            Ok(differences) => self.session_differs(cx, id, sampled, &differences),
            // Perhaps no PostgreSQL: that says nothing of its session.
            Err(why) => {
                let server = &mut self.servers[id];
                server.retire("session could not be looked at");
                let name = self.server_log_name(&self.servers[id]);
                cx.log(Level::Warning, &format!("{name} does not tell what its session holds: {why}"));
            }
        }
        self.free_server(cx, id);
    }

    /// The contents that the server's session has and should not have, or the other way round; by name, without values.
    /// `None` if the answer is not of the form that was asked for.
    fn differences(&self, env: &Env, id: ServerId, answer: &Replies) -> Option<Vec<String>> {
        let server = self.servers.get(id)?;
        let (found, reasons) = self.read_everything(env, id, answer, false)?;
        // If a custom setting is taken back, an empty value or the value of a new connection is left.
        let is_nothing = |name: &[u8]| {
            let beyond = |value: &&[u8]| !value.is_empty() && answer.default_of(name) != Some(*value);
            name.contains(&b'.') && found.get(name).filter(beyond) == server.session.get(name).filter(beyond)
        };
        let changed = server.session.changed(&found);
        let settings = changed.iter().filter(|name| !is_nothing(name));
        let mut differences: Vec<String> =
            settings.map(|name| format!("setting {}", printable(name))).collect();
        if !server.session.prepared().eq(found.prepared()) {
            differences.push("statements prepared by SQL".to_owned());
        }
        if server.session.channels() != found.channels() {
            differences.push("channels listened to".to_owned());
        }
        if !reasons.is_none() {
            differences.push(reasons.text());
        }
        Some(differences)
    }

    fn session_differs<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        SampledSession { transactions, statements }: SampledSession,
        differences: &[String],
    ) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.retire("session is not what it should be");
        let pool = &mut self.state;
        pool.numbers.continuity.differences += 1;
        let ends_block = |text: &str| {
            matches!(
                traits(text.as_bytes()).verb,
                Verb::Begin | Verb::Commit | Verb::Rollback | Verb::Savepoint
            )
        };
        let suspects: Vec<_> = statements.into_iter().filter(|(_, text)| !ends_block(text)).collect();
        let texts: Vec<&str> = suspects.iter().map(|(_, text)| &**text).collect();
        let whose = match (texts.as_slice(), transactions) {
            ([], _) => "the statement is not known".to_owned(),
            ([text], 0 | 1) => format!("changed unseen by: {text}"),
            (texts, 0 | 1) => format!("changed unseen by one of: {}", texts.join("; ")),
            (texts, more) => {
                pool.session_checks.raise_alert();
                format!(
                    "changed unseen in one of {more} transactions; the last statements: {}",
                    texts.join("; ")
                )
            }
        };
        if transactions <= 1 {
            suspects.iter().for_each(|(fingerprint, _)| cx.env.watched.insert(self.id, *fingerprint));
        }
        let line = format!(
            "{} has a session that is not what it should be ({}), {whose}",
            self.server_log_name(&self.servers[id]),
            differences.join(", ")
        );
        cx.log(Level::Warning, &line);
    }
}
