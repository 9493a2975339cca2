//! The rules for who may log in from where, and how: those of `auth_hba_file` and the maps of
//! `auth_ident_file`, in PgBouncer's dialect of PostgreSQL's `pg_hba.conf` and `pg_ident.conf` (chapter
//! "Client Authentication").

mod hba;
mod ident;
mod tokens;

use crate::ldap_options::LdapOptions;
use std::sync::Arc;

pub(crate) use tokens::options;

pub use hba::{Arrival, Hba, HbaMethod, HbaRule, Way};
pub use ident::IdentMaps;

/// The settings behind `auth_type` `hba` and `ldap`. Without any rule all logins are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The rules; the first one that applies counts.
    pub hba: Hba,
    /// The maps that rules name.
    pub ident: IdentMaps,
    /// The options of `auth_type = ldap`; `None` for other types.
    pub ldap: Option<Arc<LdapOptions>>,
}
