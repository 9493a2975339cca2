//! The server's side of SCRAM-SHA-256, with one struct for each message that is awaited.

use super::{Expect, Guard, GuardEnv, Learned, Refusal, Verdict};
use crate::crypto::{Key, hmac_sha256};
use crate::fault::ProtocolFault;
use crate::limits::{DERIVE_ITERATIONS_MAX, SALT_LEN, SASL_MESSAGE_LEN_MAX};
use crate::password::PlainPassword;
use crate::scram::message::{
    Binding, ClientFinal, ClientFirst, ServerFinal, ServerFirst, auth_message, nonce,
};
use crate::scram::{MECHANISM, MECHANISM_PLUS, ScramSecret};
use crate::secret::Secret;
use pgweir_wire::backend;
use pgweir_wire::frontend::SaslInitial;

/// The secret that a proof is checked against.
enum Material {
    /// The user's stored SCRAM secret.
    Stored(ScramSecret),
    /// The user's stored password. Its secret is derived beforehand ([`prepare`]), or when a proof has to be
    /// checked; not for every client that asks.
    Password { password: PlainPassword, salt: [u8; SALT_LEN], iterations: u32 },
    /// A made-up secret: the exchange goes on to its end, and fails for this reason.
    Mock(ScramSecret, Refusal),
}

impl Material {
    /// Chooses the material for a user. A password gets the salt of a mock, which is the same at every login
    /// and whether the user exists or not, so the first messages do not reveal which users are known.
    fn new(user: &str, secret: Option<&Secret>, env: &GuardEnv<'_>) -> Self {
        let seeded = |purpose: &[u8]| hmac_sha256(env.mock_seed, &[purpose, b"\0", user.as_bytes()]);
        let mut salt = [0; SALT_LEN];
        salt.copy_from_slice(&seeded(b"salt").as_bytes()[..SALT_LEN]);
        let iterations = env.scram_iterations.clamp(1, DERIVE_ITERATIONS_MAX);
        match secret {
            Some(Secret::Scram(stored)) => Self::Stored(stored.clone()),
            Some(Secret::Plain(password)) => Self::Password { password: password.clone(), salt, iterations },
            // An md5 hash cannot check SCRAM. The client sees the same exchange as for an unknown user.
            Some(Secret::Md5(_)) | None => {
                let mock = ScramSecret::unknowable(seeded(b"stored key"), &salt, iterations);
                Self::Mock(mock, if secret.is_some() { Refusal::SaslForMd5 } else { Refusal::Sasl })
            }
        }
    }

    fn salt(&self) -> &[u8] {
        match self {
            Self::Stored(secret) | Self::Mock(secret, _) => secret.salt(),
            Self::Password { salt, .. } => salt,
        }
    }

    fn iterations(&self) -> u32 {
        match self {
            Self::Stored(secret) | Self::Mock(secret, _) => secret.iterations(),
            Self::Password { iterations, .. } => *iterations,
        }
    }

    /// Returns the reason for refusing a client whose proof is wrong.
    fn refusal(&self) -> Refusal {
        match self {
            Self::Stored(_) | Self::Password { .. } => Refusal::Sasl,
            Self::Mock(_, refusal) => *refusal,
        }
    }

    /// Checks a proof. If it is right, returns the server's signature and what was learned.
    fn check(&self, proof: &Key, auth_message: &[&[u8]]) -> Option<(Key, Learned)> {
        match self {
            Self::Stored(secret) => {
                let keys = secret.check(proof, auth_message)?;
                Some((keys.server_signature(auth_message), Learned::ScramKeys(keys)))
            }
            Self::Password { password, salt, iterations } => {
                let secret = ScramSecret::derive(password, salt, *iterations)?;
                let keys = secret.check(proof, auth_message)?;
                Some((keys.server_signature(auth_message), Learned::Nothing))
            }
            Self::Mock(secret, _) => {
                // A mock costs the same work as a real secret; its result does not matter.
                secret.check(proof, auth_message).and(None)
            }
        }
    }
}

/// Derives the keys that [`Material::check`] would need. Returns whether there was anything to do.
pub(super) fn prepare(user: &str, secret: &Secret, env: &GuardEnv<'_>) -> bool {
    match Material::new(user, Some(secret), env) {
        Material::Password { password, salt, iterations } => {
            !password.has_scram_keys(&salt, iterations) && password.scram_keys(&salt, iterations).is_some()
        }
        Material::Stored(_) | Material::Mock(..) => false,
    }
}

/// The state that waits for the client's choice of mechanism.
pub(super) struct ExpectInitialResponse {
    material: Material,
    end_point: Option<Box<[u8]>>,
}

impl ExpectInitialResponse {
    pub(super) fn ask(user: &str, secret: Option<&Secret>, env: &GuardEnv<'_>) -> Verdict {
        let mut message = Vec::new();
        match env.end_point {
            Some(_) => backend::encode_auth_sasl(&mut message, &[MECHANISM_PLUS, MECHANISM]),
            None => backend::encode_auth_sasl(&mut message, &[MECHANISM]),
        }
        let state =
            Self { material: Material::new(user, secret, env), end_point: env.end_point.map(Box::from) };
        Verdict::Ask(Guard(Expect::InitialResponse(state)), message)
    }

    pub(super) fn handle(self, body: &[u8], random: &mut dyn FnMut(&mut [u8])) -> Verdict {
        let (chosen, message) = match initial_response(body, self.end_point.is_some()) {
            Ok(read) => read,
            Err(fault) => return Verdict::Refused(Refusal::SaslMessage(fault)),
        };
        let next = ExpectClientFirst { material: self.material, end_point: self.end_point, chosen };
        match message {
            Some(message) => next.handle(message, random),
            // As in PostgreSQL, an empty challenge asks for the message that the client could have sent
            // along.
            None => ask_with(Expect::ClientFirst(next), b""),
        }
    }
}

/// The mechanism that the client has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chosen {
    Plain,
    Plus,
}

/// The state that waits for the first SCRAM message.
pub(super) struct ExpectClientFirst {
    material: Material,
    end_point: Option<Box<[u8]>>,
    chosen: Chosen,
}

impl ExpectClientFirst {
    pub(super) fn handle(self, message: &[u8], random: &mut dyn FnMut(&mut [u8])) -> Verdict {
        let client_first = match ClientFirst::parse(message) {
            Ok(client_first) => client_first,
            Err(fault) => return Verdict::Refused(Refusal::SaslMessage(fault)),
        };
        if let Err(fault) = check_binding(self.chosen, client_first.binding, self.end_point.is_some()) {
            return Verdict::Refused(Refusal::SaslMessage(fault));
        }
        let client_nonce = std::str::from_utf8(client_first.nonce).expect("a checked nonce is ASCII");
        let nonce = format!("{client_nonce}{}", nonce(random));
        let server_first = ServerFirst::encode(&nonce, self.material.salt(), self.material.iterations());
        let state = ExpectClientFinal {
            echo: client_first.binding.echo(self.end_point.as_deref().unwrap_or_default()),
            client_first_bare: client_first.bare.into(),
            server_first,
            nonce,
            material: self.material,
        };
        let challenge = state.server_first.clone();
        ask_with(Expect::ClientFinal(state), challenge.as_bytes())
    }
}

/// The state that waits for the client's proof.
pub(super) struct ExpectClientFinal {
    /// The channel binding that the client has to repeat.
    echo: String,
    client_first_bare: Box<[u8]>,
    server_first: String,
    /// The nonce with both halves.
    nonce: String,
    material: Material,
}

impl ExpectClientFinal {
    pub(super) fn handle(self, message: &[u8]) -> Verdict {
        let client_final = match ClientFinal::parse(message, &self.echo, self.nonce.as_bytes()) {
            Ok(client_final) => client_final,
            Err(fault) => return Verdict::Refused(Refusal::SaslMessage(fault)),
        };
        let conversation =
            auth_message(&self.client_first_bare, self.server_first.as_bytes(), client_final.without_proof);
        match self.material.check(&client_final.proof, &conversation) {
            Some((signature, learned)) => {
                let mut send = Vec::new();
                backend::encode_auth_sasl_final(&mut send, ServerFinal::encode(&signature).as_bytes());
                Verdict::Proven { send, learned }
            }
            None => Verdict::Refused(self.material.refusal()),
        }
    }
}

fn ask_with(state: Expect, challenge: &[u8]) -> Verdict {
    let mut message = Vec::new();
    backend::encode_auth_sasl_continue(&mut message, challenge);
    Verdict::Ask(Guard(state), message)
}

/// Reads SASLInitialResponse: the mechanism, and the SCRAM message, or `None` if the client did not send it
/// along.
fn initial_response(body: &[u8], plus_offered: bool) -> Result<(Chosen, Option<&[u8]>), ProtocolFault> {
    if body.len() > SASL_MESSAGE_LEN_MAX {
        return Err(ProtocolFault::MessageTooLong { len: body.len() });
    }
    let initial = SaslInitial::parse(body).map_err(|_| ProtocolFault::InitialShape)?;
    let chosen = if initial.mechanism == MECHANISM.as_bytes() {
        Chosen::Plain
    } else if plus_offered && initial.mechanism == MECHANISM_PLUS.as_bytes() {
        Chosen::Plus
    } else {
        return Err(ProtocolFault::MechanismNotOffered);
    };
    Ok((chosen, initial.data))
}

/// Checks the channel binding flag (RFC 5802 section 6). It has to suit the mechanism, and a client that
/// assumes that nothing was offered must not have had an offer.
fn check_binding(chosen: Chosen, binding: Binding, plus_offered: bool) -> Result<(), ProtocolFault> {
    match (chosen, binding) {
        (Chosen::Plus, Binding::EndPoint) | (Chosen::Plain, Binding::Unsupported) => Ok(()),
        (Chosen::Plain, Binding::NotOffered) if !plus_offered => Ok(()),
        (Chosen::Plain, Binding::NotOffered) => Err(ProtocolFault::BindingDowngrade),
        _ => Err(ProtocolFault::BindingMechanism),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::KEY_LEN;
    use crate::scram::ScramKeys;

    fn read(body: &[u8]) -> Result<Option<&[u8]>, ProtocolFault> {
        initial_response(body, false).map(|(chosen, message)| {
            assert_eq!(chosen, Chosen::Plain);
            message
        })
    }

    fn body(name: &[u8], len: i32, message: &[u8]) -> Vec<u8> {
        [name, b"\0", &len.to_be_bytes(), message].concat()
    }

    #[test]
    fn initial_response_is_read_exactly() {
        assert_eq!(read(&body(b"SCRAM-SHA-256", 3, b"abc")), Ok(Some(&b"abc"[..])));
        assert_eq!(read(&body(b"SCRAM-SHA-256", 0, b"")), Ok(Some(&b""[..])));
        assert_eq!(read(&body(b"SCRAM-SHA-256", -1, b"")), Ok(None));
    }

    #[test]
    fn a_length_that_lies_is_refused() {
        for len in [0, 2, 4, -1, -2, i32::MAX, i32::MIN] {
            let body = body(b"SCRAM-SHA-256", len, b"abc");
            assert_eq!(read(&body), Err(ProtocolFault::InitialShape), "{len}");
        }
        assert_eq!(read(b"SCRAM-SHA-256"), Err(ProtocolFault::InitialShape));
        assert_eq!(read(b"SCRAM-SHA-256\0\0\0\0"), Err(ProtocolFault::InitialShape));
        assert_eq!(read(b""), Err(ProtocolFault::InitialShape));
    }

    #[test]
    fn only_the_offered_mechanism_is_taken() {
        for name in [&b"SCRAM-SHA-256-PLUS"[..], b"SCRAM-SHA-1", b"scram-sha-256", b""] {
            assert_eq!(read(&body(name, 0, b"")), Err(ProtocolFault::MechanismNotOffered));
        }
    }

    #[test]
    fn a_long_message_is_refused_by_its_length() {
        let body = body(b"SCRAM-SHA-256", 0, &[b'x'; SASL_MESSAGE_LEN_MAX]);
        assert_eq!(read(&body), Err(ProtocolFault::MessageTooLong { len: body.len() }));
    }

    /// No client can know the key of a real mock; this one's is known, and must not help.
    #[test]
    fn a_mock_refuses_even_the_right_proof() {
        let conversation: [&[u8]; 1] = [b"conversation"];
        let keys = ScramKeys::new([1; KEY_LEN], [2; KEY_LEN], b"salt", 1);
        let secret = ScramSecret::unknowable(keys.stored_key(), b"salt", 1);
        let proof = keys.proof(&conversation);
        assert!(Material::Stored(secret.clone()).check(&proof, &conversation).is_some());
        assert!(Material::Mock(secret, Refusal::Sasl).check(&proof, &conversation).is_none());
    }

    #[test]
    fn channel_binding_is_taken_where_it_was_offered() {
        let plus = body(b"SCRAM-SHA-256-PLUS", 0, b"");
        assert_eq!(initial_response(&plus, false), Err(ProtocolFault::MechanismNotOffered));
        assert_eq!(initial_response(&plus, true), Ok((Chosen::Plus, Some(&b""[..]))));
        for (chosen, binding, offered, outcome) in [
            (Chosen::Plus, Binding::EndPoint, true, Ok(())),
            (Chosen::Plus, Binding::Unsupported, true, Err(ProtocolFault::BindingMechanism)),
            (Chosen::Plus, Binding::NotOffered, true, Err(ProtocolFault::BindingMechanism)),
            (Chosen::Plain, Binding::EndPoint, true, Err(ProtocolFault::BindingMechanism)),
            (Chosen::Plain, Binding::EndPoint, false, Err(ProtocolFault::BindingMechanism)),
            (Chosen::Plain, Binding::NotOffered, true, Err(ProtocolFault::BindingDowngrade)),
            (Chosen::Plain, Binding::NotOffered, false, Ok(())),
            (Chosen::Plain, Binding::Unsupported, true, Ok(())),
        ] {
            assert_eq!(check_binding(chosen, binding, offered), outcome, "{chosen:?} {binding:?} {offered}");
        }
    }
}
