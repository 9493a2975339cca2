//! Authentication as state machines over message bodies, in both roles.
//!
//! [`Guard`] checks that a client is the user it claims to be, [`Prover`] logs in to a server, [`UserList`]
//! reads PgBouncer's `auth_file`, [`Access`] finds the method for a client (`auth_type = hba`), and
//! [`Secret`] is a stored password. The methods are trust, cleartext, md5 and SCRAM-SHA-256 (RFC 5802, RFC
//! 7677), as PostgreSQL implements them.
//!
//! The crate must never read a socket, a clock or a random number generator (randomness is passed in), keep
//! global state, or put a secret into a log line or a `Debug` text.
//!
//! Both peers are hostile: every length is checked against a name in [`limits`] before it is used, and a
//! message that does not fit the state ends the exchange.

mod access;
mod crypto;
mod fault;
mod guard;
mod ldap_options;
pub mod limits;
mod password;
mod prover;
mod scram;
mod secret;
mod user_list;

pub use access::{Access, Arrival, Hba, HbaMethod, HbaRule, IdentMaps, Way};
pub use crypto::sha256;
pub use fault::ProtocolFault;
pub use guard::{Guard, GuardEnv, Learned, Method, Refusal, Verdict, ask_for_password, read_password};
pub use ldap_options::{LdapOptions, LdapOptionsError, LdapScope, LdapWay, Secretive};
pub use password::PlainPassword;
pub use prover::{Credential, Proof, Prover, ProverError};
pub use scram::{ScramKeys, ScramSecret};
pub use secret::{Md5Secret, Secret};
pub use user_list::UserList;
