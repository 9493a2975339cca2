//! The parse context of a client's session (`parse_contexts.rs`), and the case that the context of a statement has changed: the statement
//! is prepared again under the current settings, and is another statement from then on.

use std::sync::Arc;

use crate::context::Env;
use crate::ids::{ClientId, ServerId, StatementId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::prepared::parse_contexts::ParseContext;
use crate::pool::prepared::statements::Statement;

impl Pool {
    /// Returns the client's present parse context. `None` if pgweir does not know it: the client's transaction may have changed settings,
    /// or the objects that statements are about. The server will be asked for the settings when the transaction is over.
    pub(crate) fn parse_context_of(&mut self, env: &mut Env, id: ClientId) -> Option<ParseContext> {
        match &self.clients.get(id)?.state {
            ClientState::Linked(link) if link.reads_alone() => None,
            _ => self.parse_context_before(env, id),
        }
    }

    /// Returns the client's parse context by what was known before its transaction.
    pub(crate) fn parse_context_before(&mut self, env: &mut Env, id: ClientId) -> Option<ParseContext> {
        let account = &mut self.clients.get_mut(id)?.account;
        let known = account.parse_context.as_ref();
        if let Some(parse_context) = known.and_then(|known| known.of(&account.params, &account.session)) {
            return parse_context;
        }
        let known = env.parse_contexts.find(self.id, &env.tracked, &account.params, &account.session);
        account.parse_context.insert(known).parse_context()
    }

    /// Returns the statement for a client's name that is to be prepared on another server, under the settings that the client has now. If
    /// the old statement was prepared under other settings, no client with the present settings may get it: the name stands for a new
    /// statement then.
    pub(crate) fn reread_statement(
        &mut self,
        env: &mut Env,
        id: ClientId,
        name: &[u8],
        old: StatementId,
    ) -> StatementId {
        let parse_context = self.parse_context_of(env, id);
        let same = match parse_context {
            Some(parse_context) => {
                env.statements.get(old).is_none_or(|known| known.parse_context == parse_context)
            }
            None => env.statements.is_unshared(old),
        };
        if same {
            return old;
        }
        env.statements.enter_age(env.shared.age());
        let account = self.clients.get_mut(id).map(|client| &mut client.account);
        let Some(names) = account.and_then(|account| account.statements.as_deref_mut()) else { return old };
        let Some(new) = env.statements.take_again(old, parse_context) else { return old };
        names.renew(name, new, env.statements.get(old).and_then(Statement::shape));
        env.statements.give_back_name(old);
        new
    }

    /// Handles statements that the client prepared by SQL and this server lacks. If their parse context has changed, they are other
    /// statements in the client's session from here on.
    pub(crate) fn reread_prepared(&mut self, env: &mut Env, id: ClientId, server_id: ServerId) {
        let Some(client) = self.clients.get(id) else { return };
        let session = Arc::clone(&client.account.session);
        let has = Arc::clone(&self.servers[server_id].session);
        if has.lacking(&session).next().is_none() {
            return;
        }
        let parse_context = self.parse_context_before(env, id);
        let lacks = |prepared: &_| has.lacking(&session).any(|lacking| lacking == prepared);
        let mut reread = (*session).clone();
        reread.reread(|prepared| match parse_context {
            _ if !lacks(prepared) => prepared.parse_context,
            Some(parse_context) => parse_context,
            None => env.parse_contexts.alone(),
        });
        if let Some(client) = self.clients.get_mut(id).filter(|_| reread != *session) {
            client.account.session = self.state.known.sessions.share(reread);
        }
    }
}
