//! SHOW ROUTE: where a statement would run, and what decides it. It asks in the order in which a request is decided (`route.rs`).

use pgweir_settings::{BeginUndeclared, Route};
use pgweir_sql::{Hint, Isolation, TransactionModes, begin_modes, hint};

use crate::context::Env;
use crate::limits::GROUP_BYTES_MAX;
use crate::pool::catalog::reach::Reads;
use crate::pool::policy::BeginsWithoutServer;
use crate::pool::session::pins::is_notable;
use crate::pool::{Gate, Pool};

/// The answer.
pub(crate) struct Explained {
    /// The route of the pool's user, in a session that says none.
    pub(crate) route: Route,
    pub(crate) runs_on: &'static str,
    pub(crate) decided_by: &'static str,
    /// The word that decides, if one does.
    pub(crate) word: Option<String>,
}

impl Pool {
    /// Explains the route of a text outside a transaction, or of a BEGIN, for a client of this pool without settings of its own.
    pub(crate) fn explain_route(&self, env: &Env, text: &[u8]) -> Explained {
        let pool = &self.state;
        let route = env.rules.config.route(&pool.config, &pool.user);
        let found = |runs_on, decided_by| Explained { route, runs_on, decided_by, word: None };
        let hinted = hint(text).filter(|_| !pool.policy.keeps_server());
        match (hinted, route) {
            (Some(Hint::Primary), _) => return found(PRIMARY, "the hint"),
            (Some(Hint::Standby), _) => return found(STANDBY, "the hint"),
            (_, Route::Primary) => return found(PRIMARY, "the route"),
            (_, Route::Standby | Route::PreferStandby) => return found(STANDBY, "the route"),
            (_, Route::Any) => return found("any node", "the route"),
            (_, Route::Auto) => {}
        }
        let begins = begin_modes(text);
        let kept = match begins {
            Some(modes) => self.keeps_transaction_at_primary(env, modes).map(|decided_by| (decided_by, None)),
            None => self.keeps_at_primary(env, text),
        };
        if let Some((decided_by, word)) = kept {
            let word = word.filter(|word| !word.is_empty());
            let word = word.map(|word| String::from_utf8_lossy(word).into_owned());
            return Explained { word, ..found(PRIMARY, decided_by) };
        }
        let now_us = env.now.mono_us;
        let takes_reads = |branch| {
            let share = pool
                .standby_at(branch)
                .and_then(|standby| standby.standby.as_ref())
                .map_or(0, |own| own.share);
            share > 0 && pool.gate_at(branch) == Gate::Open && !pool.rests(branch, now_us)
        };
        match pool.standby_branches().any(takes_reads) {
            true if begins.is_some_and(|modes| modes.read_only == Some(true)) => {
                found(STANDBY, "READ ONLY, if the first statement certainly reads or sets something locally")
            }
            true if begins.is_some() => {
                found(STANDBY, "begin_undeclared, until a statement does not certainly read")
            }
            true => found(STANDBY, "it certainly reads"),
            false => found(PRIMARY, "no standby takes reads"),
        }
    }

    /// Why `route=auto` keeps a transaction at the primary that a BEGIN with these modes begins.
    fn keeps_transaction_at_primary(&self, env: &Env, modes: TransactionModes) -> Option<&'static str> {
        let pool = &self.state;
        let is_due = !pool.routines.are_current(env.shared.routines());
        match modes {
            _ if pool.policy.keeps_server() => Some("session pooling"),
            _ if pool.policy.without_server == BeginsWithoutServer::None => Some("defer_begin"),
            TransactionModes { isolation: Some(Isolation::Serializable), .. } => Some("SERIALIZABLE"),
            TransactionModes { read_only: Some(true), .. } if is_due || !pool.reach.knows_standbys() => {
                Some("the catalog, which is still to be read")
            }
            TransactionModes { read_only: Some(true), .. } => None,
            TransactionModes {
                isolation: None | Some(Isolation::ReadCommitted), read_only: None, ..
            } if env.rules.config.begin_undeclared(&pool.config, &pool.user) == BeginUndeclared::First => {
                match () {
                    () if is_due || !pool.reach.knows_standbys() => {
                        Some("the catalog, which is still to be read")
                    }
                    () if modes.isolation.is_none() && !pool.reach.begins_read_committed => {
                        Some("default_transaction_isolation")
                    }
                    () => None,
                }
            }
            TransactionModes { .. } => Some("a transaction that may write"),
        }
    }

    /// Why `route=auto` keeps a statement at the primary, and the word that decides it.
    fn keeps_at_primary<'a>(&self, env: &Env, text: &'a [u8]) -> Option<(&'static str, Option<&'a [u8]>)> {
        let pool = &self.state;
        let traits = pgweir_sql::traits(text);
        let is_due = !pool.routines.are_current(env.shared.routines());
        if pool.policy.keeps_server() {
            return Some(("session pooling", None));
        }
        if text.len() > GROUP_BYTES_MAX {
            return Some(("its length", None));
        }
        if is_due || !pool.reach.knows_standbys() {
            return Some(("the catalog, which is still to be read", None));
        }
        match pool.reach.doubt(text) {
            Some((Reads::AtPrimary, word)) => {
                return Some(("a word that means something else on a standby", Some(word)));
            }
            Some((_, word)) => return Some(("a word that may do more than read", Some(word))),
            None => {}
        }
        let touches = is_notable(traits.marks) || pool.routines.are_named_in(text);
        if !traits.certainly_self_contained || pool.policy.keeps_sessions() && touches {
            return Some(("what it may do to the session", None));
        }
        pool.reach.is_barred(traits.fingerprint).then_some(("a standby, which refused it as a change", None))
    }
}

const PRIMARY: &str = "primary";
const STANDBY: &str = "standby";
