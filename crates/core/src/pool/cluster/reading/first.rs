//! Which transactions read at a standby: what their BEGIN, their session and their first group say.

use pgweir_settings::{BeginUndeclared, DeferBegin, Route};
use pgweir_sql::{Hint, Isolation, TransactionModes, begin_modes, hint};

use super::FirstGroup;
use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::Pool;
use crate::pool::client::isolation::{default_isolation, is_read_committed, setting};
use crate::pool::client::state::{Account, ClientState};
use crate::pool::cluster::route::Aim;
use crate::pool::relay::exchange::locals::locals_at_front;
use crate::pool::relay::exchange::{first_text, is_partial_group};

/// The messages that follow a BEGIN in the bytes that are here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BehindBegin {
    /// A group that a standby may run.
    FirstGroup,
    /// The rest of the group has not come, or no group at all. The complete group decides where the transaction runs.
    Partial,
    /// The transaction is the primary's.
    Other,
}

impl Pool {
    /// Looks at the bytes that a client has sent after its BEGIN.
    pub(crate) fn behind_begin(
        &mut self,
        env: &mut Env,
        id: ClientId,
        begin: &[u8],
        behind: &[u8],
    ) -> BehindBegin {
        match () {
            () if !self.awaits_first_group(env, id, begin) => BehindBegin::Other,
            () if is_partial_group(behind) => BehindBegin::Partial,
            () if self.first_group(env, id, begin, behind).is_some() => BehindBegin::FirstGroup,
            () => BehindBegin::Other,
        }
    }

    /// A client without a server has sent the beginning of a group: with that one its transaction begins, or it was told that it has begun.
    /// Where it runs is known when all of the group is here.
    pub(crate) fn awaits_rest_of_first_group(&mut self, env: &Env, id: ClientId, bytes: &[u8]) -> bool {
        if !is_partial_group(bytes) {
            return false;
        }
        let Some(client) = self.clients.get_mut(id) else { return false };
        let is_begun = matches!(client.state, ClientState::DeferredBegin(_));
        let begin = match &mut client.state {
            ClientState::DeferredBegin(deferred) => std::mem::take(&mut deferred.text),
            _ => {
                let named = |name: &[u8]| client.account.text_of(&env.statements, name);
                first_text(bytes, named).map(<[u8]>::to_vec).unwrap_or_default()
            }
        };
        let awaits = (is_begun || self.defers_begin(env, id) != DeferBegin::Off)
            && self.awaits_first_group(env, id, &begin);
        if let Some(ClientState::DeferredBegin(deferred)) =
            self.clients.get_mut(id).map(|client| &mut client.state)
        {
            deferred.text = begin;
        }
        awaits
    }

    /// Whether the client's first group after this BEGIN decides where the transaction runs. No server is taken for the BEGIN then.
    pub(crate) fn awaits_first_group(&mut self, env: &Env, id: ClientId, begin: &[u8]) -> bool {
        if self.state.cluster.is_none() || matches!(hint(begin), Some(Hint::Primary | Hint::Standby)) {
            return false;
        }
        let Some(client) = self.clients.get_mut(id) else { return false };
        let Aim { route, .. } = self.state.aim_of(env, client);
        route == Route::Auto && self.begins_reading(env, id, begin).is_some()
    }

    /// Returns what the modes of a BEGIN, and the session's settings if it names none, declare of its transaction. `None` if the
    /// transaction must run on the primary.
    pub(super) fn begins_reading(&self, env: &Env, id: ClientId, begin: &[u8]) -> Option<Declared> {
        let modes = begin_modes(begin)?;
        let account = &self.clients.get(id)?.account;
        let undeclared = env.rules.config.begin_undeclared(&self.state.config, &account.user);
        // Otherwise the transaction's snapshot would stay behind at the standby.
        let is_first = || {
            undeclared == BeginUndeclared::First && is_read_committed(env, account, modes, &self.state.reach)
        };
        declared(env, account, modes).filter(|declared| *declared == Declared::ReadOnly || is_first())
    }

    /// Returns the first group of a transaction after its BEGIN if a standby may run that group. Returns `None` as long as pgweir
    /// does not know what the names in texts refer to on a standby.
    pub(super) fn first_group(
        &mut self,
        env: &mut Env,
        id: ClientId,
        begin: &[u8],
        bytes: &[u8],
    ) -> Option<FirstGroup> {
        let declared = self.begins_reading(env, id, begin)?;
        if self.clients.get(id)?.account.unnamed.is_some() {
            return None;
        }
        let group = self.group_of(env, id, bytes);
        if let Some(group) = self.state.certain_read(env, group.as_ref())
            && (declared == Declared::ReadOnly || !group.leaves_portal())
        {
            return Some(FirstGroup { len: group.len, statement: Some(group.statement) });
        }
        if declared == Declared::Nothing {
            return None;
        }
        let account = &self.clients.get(id)?.account;
        let named = |name: &[u8]| account.text_of(&env.statements, name);
        let len = locals_at_front(bytes, named).filter(|_| self.state.knows_names(env))?;
        Some(FirstGroup { len, statement: None })
    }
}

/// The access mode that a transaction has declared which may read at a standby.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Declared {
    /// READ ONLY, below SERIALIZABLE.
    ReadOnly,
    /// The transaction does not name an access mode, and its session has none. Its level is below SERIALIZABLE.
    Nothing,
}

/// Returns what a transaction declares by its modes; a mode that BEGIN does not name is taken from the session's settings. `None`:
/// the transaction must run on the primary.
fn declared(env: &Env, account: &Account, modes: TransactionModes) -> Option<Declared> {
    let is_read_only = || setting(env, account, b"default_transaction_read_only").is_some_and(says_true);
    let level = modes.isolation.unwrap_or_else(|| default_isolation(env, account));
    match (modes.read_only.unwrap_or_else(is_read_only), modes.read_only, level) {
        (_, _, Isolation::Serializable) => None,
        (true, _, _) => Some(Declared::ReadOnly),
        (false, None, _) => Some(Declared::Nothing),
        (false, Some(_), _) => None,
    }
}

/// Whether a Boolean setting's value means true, as PostgreSQL reads it. Unknown words count as false.
fn says_true(value: &[u8]) -> bool {
    [&b"on"[..], b"true", b"yes", b"1", b"t", b"y"].iter().any(|word| value.eq_ignore_ascii_case(word))
}
