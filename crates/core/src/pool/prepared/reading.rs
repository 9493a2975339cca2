//! How a client's session reads the texts that it prepares (`readings.rs`), and the case that its session reads a statement
//! in another way by now: the statement is prepared again under the current settings, and is another statement from then on.

use std::sync::Arc;

use crate::context::Env;
use crate::ids::{ClientId, ServerId, StatementId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::prepared::readings::Reading;
use crate::pool::session::content::Session;

impl Pool {
    /// How the client reads now; `None` if pgweir does not know: its transaction may have changed settings, which its server
    /// will be asked for when it is over, or the objects that statements are about.
    pub(crate) fn reading_of(&mut self, env: &mut Env, id: ClientId) -> Option<Reading> {
        match &self.clients.get(id)?.state {
            ClientState::Linked(link) if link.reads_alone() => None,
            _ => self.settled_reading(env, id),
        }
    }

    /// As [`Worker::reading_of`], by what was known of it before its transaction.
    pub(crate) fn settled_reading(&mut self, env: &mut Env, id: ClientId) -> Option<Reading> {
        let account = &mut self.clients.get_mut(id)?.account;
        let known = account.reading.as_ref();
        if let Some(reading) = known.and_then(|known| known.of(&account.params, &account.session)) {
            return reading;
        }
        let known = env.readings.find(&env.tracked, &account.params, &account.session);
        account.reading.insert(known).reading()
    }

    /// A client's statement is to be prepared on another server, under the settings that the client has now. If these are not
    /// the settings that it was prepared under before, no client with these settings may get it: the name stands for another
    /// statement then.
    pub(crate) fn reread_statement(
        &mut self,
        env: &mut Env,
        id: ClientId,
        name: &[u8],
        old: StatementId,
    ) -> StatementId {
        let reading = self.reading_of(env, id);
        let same = match reading {
            Some(reading) => env.statements.get(old).is_none_or(|known| known.reading == reading),
            None => env.statements.is_unshared(old),
        };
        if same {
            return old;
        }
        env.statements.enter_age(env.shared.age());
        let account = self.clients.get_mut(id).map(|client| &mut client.account);
        let Some(names) = account.and_then(|account| account.statements.as_deref_mut()) else { return old };
        let Some(new) = env.statements.take_anew(old, reading) else { return old };
        names.renew(name, new);
        env.statements.give_back(old);
        new
    }

    /// The same for a statement that the client prepared by SQL and this server lacks: the client's session, as it is from
    /// here on.
    pub(crate) fn reread_prepared(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        session: Arc<Session>,
    ) -> Arc<Session> {
        let has = Arc::clone(&self.servers[server_id].session);
        if has.lacking(&session).next().is_none() {
            return session;
        }
        let reading = self.settled_reading(env, id);
        let lacks = |prepared: &_| has.lacking(&session).any(|lacking| lacking == prepared);
        let mut reread = (*session).clone();
        reread.reread(|prepared| match reading {
            _ if !lacks(prepared) => prepared.reading,
            Some(reading) => reading,
            None => env.readings.alone(),
        });
        let account = self.clients.get_mut(id).map(|client| &mut client.account);
        match account.filter(|_| reread != *session) {
            Some(account) => {
                account.session = self.state.known.sessions.share(reread);
                Arc::clone(&account.session)
            }
            None => session,
        }
    }
}
