//! The isolation level of a transaction: its BEGIN names it, or the session has set it, or the server has a default of its own.

use pgweir_sql::{Isolation, TransactionModes};

use crate::context::Env;
use crate::pool::catalog::reach::Reach;
use crate::pool::client::state::Account;

/// The setting that says which level a transaction has whose BEGIN names none.
const DEFAULT_ISOLATION: &[u8] = b"default_transaction_isolation";

/// Returns the level that the client's session has set; if none, PostgreSQL's own default. A server may have another one:
/// [`is_read_committed`].
pub(crate) fn default_isolation(env: &Env, account: &Account) -> Isolation {
    let level = setting(env, account, DEFAULT_ISOLATION).unwrap_or_default();
    match () {
        () if level.eq_ignore_ascii_case(b"serializable") => Isolation::Serializable,
        () if level.eq_ignore_ascii_case(b"repeatable read") => Isolation::RepeatableRead,
        () => Isolation::ReadCommitted,
    }
}

/// Returns the value of a setting in the client's session. `None` if the session has not set it, or pgweir does not track it.
pub(crate) fn setting<'a>(env: &Env, account: &'a Account, name: &[u8]) -> Option<&'a [u8]> {
    match env.tracked.position(name) {
        Some(position) => account.params.get(position),
        None => account.session.get(name),
    }
}

/// Whether each statement of a transaction with these modes certainly sees what was committed before it. If neither BEGIN nor the session
/// names a level, the catalog question has told what the server's new connections begin with.
pub(crate) fn is_read_committed(
    env: &Env,
    account: &Account,
    modes: TransactionModes,
    reach: &Reach,
) -> bool {
    let is_named = modes.isolation.is_some() || setting(env, account, DEFAULT_ISOLATION).is_some();
    let level = modes.isolation.unwrap_or_else(|| default_isolation(env, account));
    level == Isolation::ReadCommitted && (is_named || reach.begins_read_committed)
}
