//! The side of a login that checks a client.
//!
//! [`Guard::begin`] returns the first verdict. While it is [`Verdict::Ask`], the driver sends the message,
//! waits for the client's `p` message and passes its body to [`Guard::handle`].
//!
//! An unknown user, or one whose stored secret does not suit the method, is taken through the exchange to its
//! end and refused with the error for a wrong password. Some things still reveal which users exist, as in
//! PostgreSQL: with method md5, a user with a stored SCRAM secret is asked for SCRAM; a stored SCRAM secret
//! may have another iteration count or salt length than a mock; and with method plain, checking a password
//! against a stored SCRAM secret takes time that an unknown user's does not. Deriving the keys of a stored
//! password at the first proof would reveal it in the same way, so that is done before: see
//! [`Guard::prepare`].

mod sasl;

use crate::crypto::same;
use crate::fault::ProtocolFault;
use crate::limits::SECRET_LEN_MAX;
use crate::password::PlainPassword;
use crate::scram::ScramKeys;
use crate::secret::{Md5Secret, Secret};
use pgweir_wire::backend;
use pgweir_wire::frontend::Password;
use sasl::{ExpectClientFinal, ExpectClientFirst, ExpectInitialResponse};
use std::fmt;

/// The way in which a client has to prove who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// No proof, but the user must be known.
    Trust,
    /// The password in clear. It can be checked against every kind of stored secret.
    Plain,
    /// PostgreSQL's md5 challenge. A user with a stored SCRAM secret gets the SCRAM exchange instead.
    Md5,
    /// SCRAM-SHA-256, over TLS also with channel binding. A stored md5 hash never verifies.
    ScramSha256,
}

/// The facts about the process that a guard needs.
#[derive(Clone, Copy)]
pub struct GuardEnv<'a> {
    /// Random bytes drawn once per process; a secret. Salts for users without a stored SCRAM secret are made
    /// from it, so that they are the same at every login, like real ones.
    pub mock_seed: &'a [u8; 32],
    /// The setting `scram_iterations`: the count for users without a stored SCRAM secret. It is limited to 1
    /// up to [`DERIVE_ITERATIONS_MAX`](crate::limits::DERIVE_ITERATIONS_MAX).
    pub scram_iterations: u32,
    /// The hash of the certificate that the client was shown, for `tls-server-end-point` (RFC 5929 section
    /// 4); `None` without TLS. If it is set, SCRAM-SHA-256-PLUS is offered, too.
    pub end_point: Option<&'a [u8]>,
}

/// The result of a step of a guard.
pub enum Verdict {
    /// Send this complete message, and pass the body of the client's `p` message to the guard.
    Ask(Guard, Vec<u8>),
    /// The client has proved its user name.
    Proven {
        /// Bytes to send before AuthenticationOk (which they do not include): the last SASL message, or
        /// nothing.
        send: Vec<u8>,
        /// The knowledge from this login that helps to log in to a server as this user.
        learned: Learned,
    },
    /// The client may not log in.
    Refused(Refusal),
}

/// The secret that a proven client has revealed, with which pgweir can log in to a server as that user.
#[derive(Debug, Clone)]
pub enum Learned {
    /// Nothing of use (trust, md5, or SCRAM against a plain password that is stored here anyway).
    Nothing,
    /// The client's password.
    Password(PlainPassword),
    /// The keys of the SCRAM secret that is stored for the client.
    ScramKeys(ScramKeys),
    /// The client's stored secret, which was fetched from elsewhere for this login: a password or an md5
    /// hash. The login itself revealed nothing.
    Secret(Secret),
}

/// The reason why a client may not log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The password, or its hash, is wrong, or the user is unknown.
    WrongPassword,
    /// The SCRAM proof is wrong, or the user is unknown.
    Sasl,
    /// SCRAM was asked for, but the stored secret is an md5 hash, which cannot check it. The client gets the
    /// same error as for `Sasl`.
    SaslForMd5,
    /// The client sent an empty password, which never matches.
    EmptyPassword,
    /// The method is trust, and the user is unknown.
    UnknownUser,
    /// PAM did not accept the password.
    Pam,
    /// A cleartext or md5 password message breaks the protocol.
    PasswordMessage(ProtocolFault),
    /// A SASL message breaks the protocol.
    SaslMessage(ProtocolFault),
}

impl Refusal {
    /// Returns the error for the client, in PgBouncer's words. (PgBouncer sends it with SQLSTATE 08P01;
    /// PostgreSQL would use 28P01 for a wrong password.)
    pub fn text(&self) -> &'static str {
        match self {
            Self::WrongPassword => "password authentication failed",
            Self::Sasl | Self::SaslForMd5 | Self::SaslMessage(_) => "SASL authentication failed",
            Self::EmptyPassword => "empty password returned by client",
            Self::UnknownUser => "\"trust\" authentication failed",
            Self::Pam => "PAM authentication failed",
            Self::PasswordMessage(_) => "malformed password message",
        }
    }

    /// Returns the reason for the log; `None` if the client's text is enough.
    #[must_use]
    pub fn log_text(&self) -> Option<String> {
        match self {
            Self::Sasl => Some("password authentication failed".to_owned()),
            Self::SaslForMd5 => Some("SCRAM authentication failed: user has MD5 secret".to_owned()),
            Self::PasswordMessage(fault) | Self::SaslMessage(fault) => Some(fault.to_string()),
            Self::WrongPassword | Self::EmptyPassword | Self::UnknownUser | Self::Pam => None,
        }
    }

    /// Returns the fault of the client's message, for the log.
    pub fn fault(&self) -> Option<ProtocolFault> {
        match self {
            Self::PasswordMessage(fault) | Self::SaslMessage(fault) => Some(*fault),
            Self::WrongPassword
            | Self::Sasl
            | Self::SaslForMd5
            | Self::EmptyPassword
            | Self::UnknownUser
            | Self::Pam => None,
        }
    }
}

/// An exchange with a client, which waits for the client's next `p` message.
pub struct Guard(Expect);

enum Expect {
    Cleartext(ExpectCleartext),
    Md5(ExpectMd5),
    InitialResponse(ExpectInitialResponse),
    ClientFirst(ExpectClientFirst),
    ClientFinal(ExpectClientFinal),
}

impl Guard {
    /// Begins an exchange with a client that claims to be `user`.
    ///
    /// `secret` is the secret that is stored for that user, and `None` if the user is unknown. A user that is
    /// known without a secret has the empty one, which passes trust and nothing else.
    pub fn begin(
        method: Method,
        user: &str,
        secret: Option<&Secret>,
        env: &GuardEnv<'_>,
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Verdict {
        let usable = secret.filter(|secret| secret.can_match());
        match (method, usable) {
            (Method::Trust, _) if secret.is_some() => proven(Learned::Nothing),
            (Method::Trust, _) => Verdict::Refused(Refusal::UnknownUser),
            (Method::Plain, _) => ExpectCleartext::ask(user, usable),
            // A SCRAM secret cannot check an md5 answer, so PostgreSQL asks for SCRAM, too.
            (Method::Md5, Some(Secret::Scram(_))) | (Method::ScramSha256, _) => {
                ExpectInitialResponse::ask(user, usable, env)
            }
            (Method::Md5, _) => ExpectMd5::ask(user, usable, random),
        }
    }

    /// Derives the keys of a stored password, so that the user's first proof by SCRAM need not wait for it
    /// (about a millisecond). Returns whether there was anything to do.
    pub fn prepare(user: &str, secret: &Secret, env: &GuardEnv<'_>) -> bool {
        secret.can_match() && sasl::prepare(user, secret, env)
    }

    /// Takes the body of the client's `p` message.
    pub fn handle(self, password_message_body: &[u8], random: &mut dyn FnMut(&mut [u8])) -> Verdict {
        match self.0 {
            Expect::Cleartext(state) => state.handle(password_message_body),
            Expect::Md5(state) => state.handle(password_message_body),
            Expect::InitialResponse(state) => state.handle(password_message_body, random),
            Expect::ClientFirst(state) => state.handle(password_message_body, random),
            Expect::ClientFinal(state) => state.handle(password_message_body),
        }
    }
}

/// Returns the message that asks a client for its password in clear, for a check by PAM or LDAP instead of
/// this crate.
pub fn ask_for_password() -> Vec<u8> {
    let mut message = Vec::new();
    backend::encode_auth_cleartext(&mut message);
    message
}

/// Returns the password in the body of a client's `p` message. It is neither empty nor longer than
/// [`SECRET_LEN_MAX`].
///
/// # Errors
///
/// The body has no password, or is malformed.
pub fn read_password(password_message_body: &[u8]) -> Result<PlainPassword, Refusal> {
    password_string(password_message_body).map(PlainPassword::new)
}

fn proven(learned: Learned) -> Verdict {
    Verdict::Proven { send: Vec::new(), learned }
}

/// The state that waits for a password in clear.
struct ExpectCleartext {
    user: Box<str>,
    secret: Option<Secret>,
}

impl ExpectCleartext {
    fn ask(user: &str, secret: Option<&Secret>) -> Verdict {
        let message = ask_for_password();
        let state = Self { user: user.into(), secret: secret.cloned() };
        Verdict::Ask(Guard(Expect::Cleartext(state)), message)
    }

    fn handle(self, body: &[u8]) -> Verdict {
        let password = match password_string(body) {
            Ok(bytes) => PlainPassword::new(bytes),
            Err(refusal) => return Verdict::Refused(refusal),
        };
        let Some(secret) = self.secret.filter(|secret| secret.verify(&self.user, &password)) else {
            return Verdict::Refused(Refusal::WrongPassword);
        };
        match secret {
            // The stored password is used, not the client's: it keeps derived keys across logins.
            Secret::Plain(stored) => proven(Learned::Password(stored)),
            Secret::Md5(_) | Secret::Scram(_) => proven(Learned::Password(password)),
        }
    }
}

/// The state that waits for the answer to an md5 challenge.
struct ExpectMd5 {
    /// The right answer; `None` if no answer is right.
    answer: Option<[u8; 35]>,
}

impl ExpectMd5 {
    fn ask(user: &str, secret: Option<&Secret>, random: &mut dyn FnMut(&mut [u8])) -> Verdict {
        let mut salt = [0; 4];
        random(&mut salt);
        let mut message = Vec::new();
        backend::encode_auth_md5(&mut message, salt);
        let answer = match secret {
            Some(Secret::Plain(password)) => Some(Md5Secret::derive(password, user).answer(salt)),
            Some(Secret::Md5(stored)) => Some(stored.answer(salt)),
            Some(Secret::Scram(_)) | None => None,
        };
        Verdict::Ask(Guard(Expect::Md5(Self { answer })), message)
    }

    fn handle(self, body: &[u8]) -> Verdict {
        match password_string(body) {
            Ok(answer) if self.answer.is_some_and(|right| same(&right, answer)) => proven(Learned::Nothing),
            Ok(_) => Verdict::Refused(Refusal::WrongPassword),
            Err(refusal) => Verdict::Refused(refusal),
        }
    }
}

/// Returns the string in a cleartext or md5 password message, which is not empty.
fn password_string(body: &[u8]) -> Result<&[u8], Refusal> {
    if body.len() > SECRET_LEN_MAX + 1 {
        return Err(Refusal::PasswordMessage(ProtocolFault::PasswordTooLong { len: body.len() - 1 }));
    }
    match Password::parse(body) {
        Ok(Password { text: b"" }) => Err(Refusal::EmptyPassword),
        Ok(password) => Ok(password.text),
        Err(_) => Err(Refusal::PasswordMessage(ProtocolFault::PasswordShape)),
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Expect::Cleartext(_) => "Guard(expects a password)",
            Expect::Md5(_) => "Guard(expects an md5 answer)",
            Expect::InitialResponse(_) => "Guard(expects SASLInitialResponse)",
            Expect::ClientFirst(_) => "Guard(expects the first SCRAM message)",
            Expect::ClientFinal(_) => "Guard(expects the final SCRAM message)",
        })
    }
}

impl fmt::Debug for GuardEnv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardEnv").field("scram_iterations", &self.scram_iterations).finish_non_exhaustive()
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(guard, _) => f.debug_tuple("Ask").field(guard).finish_non_exhaustive(),
            Self::Proven { learned, .. } => {
                f.debug_struct("Proven").field("learned", learned).finish_non_exhaustive()
            }
            Self::Refused(refusal) => f.debug_tuple("Refused").field(refusal).finish(),
        }
    }
}

#[cfg(test)]
mod tests;
