//! The side of a login that proves who it is: pgweir logs in to a server.
//!
//! The driver passes every Authentication message of the server to [`Prover::handle`] and does what the
//! [`Proof`] says, until `Done` or `Failed`. The server is as hostile as any peer: it gets a password in
//! clear only if it asks for one and one is known; with SCRAM it must know our secret (its signature is
//! checked before AuthenticationOk counts); and it cannot make us compute more than [`DERIVE_ITERATIONS_MAX`]
//! iterations.

use crate::crypto::Key;
use crate::fault::ProtocolFault;
use crate::limits::DERIVE_ITERATIONS_MAX;
use crate::password::PlainPassword;
use crate::scram::message::{
    Binding, ClientFinal, ClientFirst, ServerFinal, ServerFirst, auth_message, nonce,
};
use crate::scram::{MECHANISM, MECHANISM_PLUS, ScramKeys};
use crate::secret::{Md5Secret, Secret};
use pgweir_wire::backend::Authentication;
use pgweir_wire::frontend;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The credential for a login to a server.
#[derive(Debug, Clone)]
pub enum Credential {
    /// No credential: only a server that trusts us accepts the login.
    None,
    /// The secret that is stored for the user. A plain password answers every method, an md5 hash answers
    /// md5, and a SCRAM secret answers nothing, because it only checks passwords.
    Secret(Secret),
    /// A password.
    Password(PlainPassword),
    /// The keys that a client revealed when it logged in. They answer SCRAM, and the server accepts the
    /// answer if its secret has the same salt and iterations.
    ScramKeys(ScramKeys),
}

impl Credential {
    /// Returns the password, if there is one to send or to derive keys from.
    fn password(&self) -> Option<&PlainPassword> {
        match self {
            Self::Secret(Secret::Plain(password)) | Self::Password(password) => {
                Some(password).filter(|password| !password.is_empty())
            }
            Self::None | Self::Secret(_) | Self::ScramKeys(_) => None,
        }
    }

    /// Returns the reason why this credential may not answer what a server asks for. The text follows the
    /// user's name in a sentence for the administrator.
    #[must_use]
    pub fn shortcoming(&self) -> &'static str {
        match self {
            Self::None => "no password of it is known",
            Self::Secret(Secret::Md5(_)) => "its entry is an md5 hash, which answers md5 only",
            Self::Secret(Secret::Scram(_)) => {
                "its entry is a SCRAM secret, which only checks passwords until a client has logged in with scram-sha-256"
            }
            Self::ScramKeys(_) => {
                "only the SCRAM keys of a client's login are known, which answer SCRAM only"
            }
            Self::Secret(Secret::Plain(_)) | Self::Password(_) => "its password is empty or has a zero byte",
        }
    }

    fn suits_scram(&self) -> bool {
        self.password().is_some() || matches!(self, Self::ScramKeys(_))
    }

    /// Returns the keys for the server's salt and iterations.
    fn scram_keys(&self, salt: &[u8], iterations: u32) -> Result<Arc<ScramKeys>, ProverError> {
        match (self, self.password()) {
            (_, Some(password)) => {
                password.scram_keys(salt, iterations).ok_or(ProverError::TooManyIterations { iterations })
            }
            // If the keys are for another secret than the server's, the server refuses them with its own
            // error, like a wrong password.
            (Self::ScramKeys(keys), _) => Ok(Arc::new(keys.clone())),
            _ => Err(ProverError::WrongPasswordType),
        }
    }
}

/// The next step after a server's Authentication message.
pub enum Proof {
    /// Send this complete message and wait for the next Authentication message.
    Reply(Prover, Vec<u8>),
    /// Nothing to send; wait for the next Authentication message.
    Waiting(Prover),
    /// The login has succeeded.
    Done,
    /// The login has failed: close the connection.
    Failed(ProverError),
}

/// The reason why a login to a server cannot go on. The text is fit for waiting clients ("server login
/// failed: …") and the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProverError {
    /// The server asks for something that our credential cannot answer.
    #[error("wrong password type")]
    WrongPasswordType,
    /// The server does not know our secret: it is not the server it claims to be.
    #[error("server signature is wrong")]
    ServerSignature,
    /// The server sent AuthenticationOk before it proved to know our secret.
    #[error("server ended the SCRAM exchange without its signature")]
    SignatureMissing,
    /// The server ended SCRAM with an error of SCRAM's own.
    #[error("server reported a SCRAM error")]
    ServerReportedError,
    /// The server asks for a method that is not supported (Kerberos, GSSAPI, SSPI, …).
    #[error("server requests authentication method {code}, which is not supported")]
    UnsupportedMethod {
        /// The number in the Authentication message.
        code: u32,
    },
    /// The server offers SASL mechanisms, but not SCRAM-SHA-256.
    #[error("server offers no supported SASL mechanism (SCRAM-SHA-256, over TLS also SCRAM-SHA-256-PLUS)")]
    UnsupportedMechanisms,
    /// The server asks for more iterations than are computed here.
    #[error("server requests {iterations} SCRAM iterations; at most {DERIVE_ITERATIONS_MAX} are computed")]
    TooManyIterations {
        /// The server's number of iterations.
        iterations: u32,
    },
    /// An Authentication message came that is not allowed at this point.
    #[error("server sent an authentication message out of order")]
    OutOfOrder,
    /// A SCRAM message of the server breaks the protocol.
    #[error("server's SCRAM message is bad: {0}")]
    Protocol(#[from] ProtocolFault),
}

impl ProverError {
    /// Returns the text for waiting clients and the log, which follows "server login failed: ".
    pub fn text(&self) -> String {
        self.to_string()
    }
}

/// A login to a server.
pub struct Prover(State);

enum State {
    /// The server has not sent a request yet.
    Fresh {
        user: Box<str>,
        credential: Credential,
        end_point: Option<Box<[u8]>>,
    },
    /// A password or an md5 answer was sent; only AuthenticationOk may come.
    Answered,
    ServerFirst(ExpectServerFirst),
    ServerFinal(ExpectServerFinal),
    /// The server has proved itself; only AuthenticationOk may come.
    Verified,
}

impl Prover {
    /// Begins a login as `user`.
    pub fn new(user: &str, credential: Credential) -> Self {
        Self(State::Fresh { user: user.into(), credential, end_point: None })
    }

    /// Binds a SCRAM exchange to the certificate that the server has shown, given its hash
    /// (`tls-server-end-point`, RFC 5929 section 4). If the server offers that, no attacker in between can
    /// pass the exchange on. Call it before the first message.
    #[must_use]
    pub fn bound_to(self, hash: Option<Box<[u8]>>) -> Self {
        match self.0 {
            State::Fresh { user, credential, .. } => Self(State::Fresh { user, credential, end_point: hash }),
            other => Self(other),
        }
    }

    /// Returns the reason why the server will refuse the login, for the log.
    pub fn remark(&self) -> Option<&'static str> {
        match &self.0 {
            State::ServerFinal(state) if state.is_other_secret => {
                Some("the SCRAM secret stored here is not the one the server has")
            }
            _ => None,
        }
    }

    /// Takes the next Authentication message of the server.
    pub fn handle(self, request: Authentication<'_>, random: &mut dyn FnMut(&mut [u8])) -> Proof {
        use Authentication as Request;
        let next = match (self.0, request) {
            (_, Request::Unsupported(code)) => Err(ProverError::UnsupportedMethod { code }),
            (State::Fresh { .. } | State::Answered | State::Verified, Request::Ok) => return Proof::Done,
            (State::ServerFirst(_) | State::ServerFinal(_), Request::Ok) => {
                Err(ProverError::SignatureMissing)
            }
            (State::Fresh { credential, .. }, Request::Cleartext) => cleartext(&credential),
            (State::Fresh { user, credential, .. }, Request::Md5 { salt }) => md5(&user, &credential, salt),
            (State::Fresh { credential, end_point, .. }, Request::Sasl { mechanisms }) => {
                ExpectServerFirst::begin(credential, end_point, &mechanisms, random)
            }
            (State::ServerFirst(state), Request::SaslContinue(message)) => state.handle(message),
            (State::ServerFinal(state), Request::SaslFinal(message)) => state.handle(message),
            _ => Err(ProverError::OutOfOrder),
        };
        match next {
            Ok((state, Some(message))) => Proof::Reply(Self(state), message),
            Ok((state, None)) => Proof::Waiting(Self(state)),
            Err(error) => Proof::Failed(error),
        }
    }
}

/// The next state, and a message to send.
type Step = Result<(State, Option<Vec<u8>>), ProverError>;

fn cleartext(credential: &Credential) -> Step {
    let password = credential.password().ok_or(ProverError::WrongPasswordType)?.as_bytes();
    // A zero byte would end the string in the message, and the server would check another password.
    if password.contains(&0) {
        return Err(ProverError::WrongPasswordType);
    }
    Ok((State::Answered, Some(encoded(|out| frontend::encode_password(out, password)))))
}

fn md5(user: &str, credential: &Credential, salt: [u8; 4]) -> Step {
    let answer = match (credential, credential.password()) {
        (_, Some(password)) => Md5Secret::derive(password, user).answer(salt),
        (Credential::Secret(Secret::Md5(stored)), _) => stored.answer(salt),
        _ => return Err(ProverError::WrongPasswordType),
    };
    Ok((State::Answered, Some(encoded(|out| frontend::encode_password(out, &answer)))))
}

/// The state after SASLInitialResponse: the server's challenge must come.
struct ExpectServerFirst {
    credential: Credential,
    nonce: String,
    client_first_bare: String,
    /// The channel binding that the final message repeats.
    echo: String,
}

impl ExpectServerFirst {
    fn begin(
        credential: Credential,
        end_point: Option<Box<[u8]>>,
        mechanisms: &[&[u8]],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Step {
        let offers = |mechanism: &str| mechanisms.contains(&mechanism.as_bytes());
        let (mechanism, binding) = match &end_point {
            Some(_) if offers(MECHANISM_PLUS) => (MECHANISM_PLUS, Binding::EndPoint),
            // This flag tells the server that no offer of channel binding has arrived, in case it made one.
            Some(_) => (MECHANISM, Binding::NotOffered),
            None => (MECHANISM, Binding::Unsupported),
        };
        if !offers(mechanism) {
            return Err(ProverError::UnsupportedMechanisms);
        }
        if !credential.suits_scram() {
            return Err(ProverError::WrongPasswordType);
        }
        let nonce = nonce(random);
        let (header, client_first_bare) = ClientFirst::encode(binding, &nonce);
        let client_first = format!("{header}{client_first_bare}");
        let message =
            encoded(|out| frontend::encode_sasl_initial(out, mechanism.as_bytes(), client_first.as_bytes()));
        let echo = binding.echo(end_point.as_deref().unwrap_or_default());
        Ok((State::ServerFirst(Self { credential, nonce, client_first_bare, echo }), Some(message)))
    }

    fn handle(self, message: &[u8]) -> Step {
        let server_first = ServerFirst::parse(message, self.nonce.as_bytes())?;
        let keys = self.credential.scram_keys(&server_first.salt, server_first.iterations)?;
        let nonce = std::str::from_utf8(server_first.nonce).expect("a checked nonce is ASCII");
        let is_other_secret = matches!(&self.credential, Credential::ScramKeys(keys)
            if !keys.fits(&server_first.salt, server_first.iterations));
        let without_proof = ClientFinal::encode_without_proof(&self.echo, nonce);
        let conversation = auth_message(self.client_first_bare.as_bytes(), message, without_proof.as_bytes());
        let client_final = ClientFinal::encode(&without_proof, &keys.proof(&conversation));
        let state = ExpectServerFinal { signature: keys.server_signature(&conversation), is_other_secret };
        let message = encoded(|out| frontend::encode_sasl_response(out, client_final.as_bytes()));
        Ok((State::ServerFinal(state), Some(message)))
    }
}

/// The state after our proof: the server's must come.
struct ExpectServerFinal {
    signature: Key,
    /// `true` if our keys are for another secret than the server's, so that it will refuse the proof.
    is_other_secret: bool,
}

impl ExpectServerFinal {
    fn handle(self, message: &[u8]) -> Step {
        match ServerFinal::parse(message)? {
            ServerFinal::Signature(signature) if signature.same(&self.signature) => {
                Ok((State::Verified, None))
            }
            ServerFinal::Signature(_) => Err(ProverError::ServerSignature),
            ServerFinal::Error => Err(ProverError::ServerReportedError),
        }
    }
}

/// Returns a message in a new buffer.
fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

impl fmt::Debug for Prover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            State::Fresh { .. } => "Prover(fresh)",
            State::Answered => "Prover(answered)",
            State::ServerFirst(_) => "Prover(expects the server's first SCRAM message)",
            State::ServerFinal(_) => "Prover(expects the server's final SCRAM message)",
            State::Verified => "Prover(server is verified)",
        })
    }
}

/// Prints no bytes to send: there may be a password in them.
impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply(prover, _) => f.debug_tuple("Reply").field(prover).finish_non_exhaustive(),
            Self::Waiting(prover) => f.debug_tuple("Waiting").field(prover).finish(),
            Self::Done => f.write_str("Done"),
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

#[cfg(test)]
mod tests;
