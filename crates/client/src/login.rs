//! Where a client connects, as whom, and how it proves that.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use pgweir_auth::{Credential, PlainPassword, Prover};
use pgweir_wire::frontend::encode_startup;

use crate::stream::Tls;

/// What the tools' clients speak.
const PROTOCOL: (u16, u16) = (3, 0);

/// How long a client waits for a server that is expected to answer.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Where a server or pooler listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port on 127.0.0.1.
    Loopback(u16),
    /// A TCP port of a host.
    Tcp(String, u16),
    /// A unix socket in this directory, for this port.
    Unix(PathBuf, u16),
}

impl Address {
    /// What `--host` and `--port` of PostgreSQL's programs take.
    #[must_use]
    pub fn host_and_port(&self) -> (String, String) {
        match self {
            Self::Loopback(port) => ("127.0.0.1".to_owned(), port.to_string()),
            Self::Tcp(host, port) => (host.clone(), port.to_string()),
            Self::Unix(directory, port) => (directory.display().to_string(), port.to_string()),
        }
    }
}

/// Everything that a client needs to get in.
#[derive(Clone)]
pub struct Login {
    /// Where.
    pub address: Address,
    /// The role.
    pub user: String,
    /// The database.
    pub database: String,
    /// What proves that the client is this role; nothing where the server trusts.
    pub credential: Credential,
    /// By which it is known in `pg_stat_activity`.
    pub application_name: String,
    /// The schema that unqualified names mean; the server's default if none.
    pub search_path: Option<String>,
    /// Further parameters of the session.
    pub parameters: Vec<(String, String)>,
    /// TLS, over TCP; without it, the client does not ask for it.
    pub tls: Option<Tls>,
    /// No single wait (for the connection, for a message) lasts longer.
    pub wait_max: Duration,
}

impl Login {
    /// A login without a password.
    #[must_use]
    pub fn trusted(address: Address, user: &str, database: &str, application_name: &str) -> Self {
        Self {
            address,
            user: user.to_owned(),
            database: database.to_owned(),
            credential: Credential::None,
            application_name: application_name.to_owned(),
            search_path: None,
            parameters: Vec::new(),
            tls: None,
            wait_max: WAIT_MAX,
        }
    }

    /// The same under another application_name.
    #[must_use]
    pub fn named(&self, application_name: &str) -> Self {
        Self { application_name: application_name.to_owned(), ..self.clone() }
    }

    /// Its password, if that is what it logs in with.
    #[must_use]
    pub fn password(&self) -> Option<&PlainPassword> {
        match &self.credential {
            Credential::Password(password) => Some(password),
            _ => None,
        }
    }

    /// The startup packet.
    #[must_use]
    pub fn startup(&self) -> Vec<u8> {
        let options = self.search_path.as_ref().map(|path| format!("-c search_path={path}"));
        let mut parameters: Vec<(&[u8], &[u8])> = vec![
            (b"user", self.user.as_bytes()),
            (b"database", self.database.as_bytes()),
            (b"application_name", self.application_name.as_bytes()),
        ];
        parameters.extend(options.as_ref().map(|options| (&b"options"[..], options.as_bytes())));
        parameters.extend(self.parameters.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        let mut packet = Vec::new();
        encode_startup(&mut packet, PROTOCOL, &parameters);
        packet
    }

    /// Answers the server's questions.
    #[must_use]
    pub fn prover(&self) -> Prover {
        Prover::new(&self.user, self.credential.clone())
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({}@{:?}/{})", self.user, self.address, self.database)
    }
}

/// Random bytes for nonces.
///
/// # Panics
/// The system has none.
pub fn random(out: &mut [u8]) {
    use aws_lc_rs::rand::SecureRandom;
    aws_lc_rs::rand::SystemRandom::new().fill(out).expect("the system has random bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let mut login = Login::trusted(Address::Loopback(1), "u", "d", "a");
        login.credential = Credential::Password(PlainPassword::new("secret"));
        assert!(!format!("{login:?}").contains("secret"));
    }

    #[test]
    fn the_startup_packet_names_role_database_and_schema() {
        let mut login = Login::trusted(Address::Loopback(1), "u", "d", "a");
        login.search_path = Some("s".to_owned());
        let packet = String::from_utf8_lossy(&login.startup()).into_owned();
        for part in ["user\0u\0", "database\0d\0", "application_name\0a\0", "options\0-c search_path=s\0"] {
            assert!(packet.contains(part), "{packet:?}");
        }
    }
}
