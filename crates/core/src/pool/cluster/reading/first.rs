//! Which transactions read at a standby: what their BEGIN, their session and their first group say.

use pgweir_settings::Route;
use pgweir_sql::{Hint, Isolation, TransactionModes, begin_modes, hint, sets_locally};
use pgweir_wire::frontend::{BindHead, Describe, Parse, Query, Target, tag};

use super::FirstGroup;
use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::Pool;
use crate::pool::client::state::Account;
use crate::pool::cluster::route::Aim;
use crate::pool::relay::group::whole_messages;

impl Pool {
    /// A BEGIN after which the client's first group says where the transaction runs: no server is taken for it.
    pub(crate) fn awaits_first_group(&mut self, env: &Env, id: ClientId, begin: &[u8]) -> bool {
        if self.state.cluster.is_none() || matches!(hint(begin), Some(Hint::Primary | Hint::Standby)) {
            return false;
        }
        let is_auto = self.aim_of(env, id).is_some_and(|Aim { route, .. }| route == Route::Auto);
        is_auto && self.begins_reading(env, id, begin)
    }

    /// A transaction that begins so may read at a standby.
    fn begins_reading(&self, env: &Env, id: ClientId, begin: &[u8]) -> bool {
        let Some(modes) = begin_modes(begin) else { return false };
        self.clients.get(id).is_some_and(|client| reads(env, &client.account, modes))
    }

    /// Its first group, if a standby may run it. While it is not known what names stand for on a standby, none may.
    pub(super) fn first_group(
        &mut self,
        env: &mut Env,
        id: ClientId,
        begin: &[u8],
        bytes: &[u8],
    ) -> Option<FirstGroup> {
        if !self.begins_reading(env, id, begin) || self.clients.get(id)?.account.unnamed.is_some() {
            return None;
        }
        let group = self.group_of(env, id, bytes);
        if let Some(group) = self.certain_read(env, group.as_ref()) {
            return Some(FirstGroup { len: group.len, statement: Some(group.statement) });
        }
        let len = self.locals_at_front(env, id, bytes).filter(|_| self.knows_names(env))?;
        Some(FirstGroup { len, statement: None })
    }

    /// The length of the group at the front, if it is whole and does nothing but set something for its transaction.
    fn locals_at_front(&self, env: &Env, id: ClientId, bytes: &[u8]) -> Option<u32> {
        let account = &self.clients.get(id)?.account;
        let named = |name: &[u8]| Some(&*env.statements.get(account.statement(name)?)?.query);
        // The unnamed statement, if the group prepares it; and whether anything was bound that is then executed.
        let (mut unnamed_is_local, mut binds, mut executes) = (false, false, false);
        for (header, body, end) in whole_messages(bytes) {
            match header.tag {
                tag::QUERY if end == header.total() => {
                    return sets_locally(Query::parse(body).ok()?.text).then_some(end as u32);
                }
                tag::PARSE => {
                    let parse = Parse::parse(body).ok().filter(|parse| parse.name.is_empty())?;
                    unnamed_is_local = sets_locally(parse.query).then_some(true)?;
                }
                tag::BIND => {
                    let name = BindHead::parse_prefix(body)?.statement;
                    let is_local = match name {
                        b"" => unnamed_is_local,
                        _ => sets_locally(named(name)?),
                    };
                    binds = is_local.then_some(true)?;
                }
                tag::DESCRIBE => match Describe::parse(body).ok()? {
                    Describe { target: Target::Statement, name } if !name.is_empty() => {
                        sets_locally(named(name)?).then_some(())?;
                    }
                    _ => {}
                },
                tag::EXECUTE => executes = true,
                tag::SYNC if executes && binds => return Some(end as u32),
                _ => return None,
            }
        }
        None
    }
}

/// Its modes, or those that the session has otherwise, are read-only and below SERIALIZABLE.
fn reads(env: &Env, account: &Account, modes: TransactionModes) -> bool {
    let is_read_only = || setting(env, account, b"default_transaction_read_only").is_some_and(says_true);
    let is_serializable = || {
        setting(env, account, b"default_transaction_isolation")
            .is_some_and(|level| level.eq_ignore_ascii_case(b"serializable"))
    };
    modes.read_only.unwrap_or_else(is_read_only)
        && modes.isolation.map_or_else(|| !is_serializable(), |level| level != Isolation::Serializable)
}

/// What a client's session has set, as far as pgweir keeps it.
fn setting<'a>(env: &Env, account: &'a Account, name: &[u8]) -> Option<&'a [u8]> {
    match env.tracked.position(name) {
        Some(position) => account.params.get(position),
        None => account.session.get(name),
    }
}

/// As PostgreSQL reads a Boolean setting; a word that it does not know says nothing.
fn says_true(value: &[u8]) -> bool {
    [&b"on"[..], b"true", b"yes", b"1", b"t", b"y"].iter().any(|word| value.eq_ignore_ascii_case(word))
}
