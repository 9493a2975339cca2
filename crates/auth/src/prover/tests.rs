use super::*;
use crate::crypto::base64_encode;
use proptest::prelude::*;

/// Challenge to a client whose nonce came from zero bytes.
const ZERO_NONCE: &str = "AAAAAAAAAAAAAAAAAAAAAAAA";

fn zeros(out: &mut [u8]) {
    out.fill(0);
}

fn password() -> Credential {
    Credential::Password(PlainPassword::new("pencil"))
}

fn keys(iterations: u32) -> ScramKeys {
    ScramKeys::new([1; 32], [2; 32], b"salt", iterations)
}

fn handle(prover: Prover, request: Authentication<'_>) -> Proof {
    prover.handle(request, &mut zeros)
}

fn first(credential: Credential, request: Authentication<'_>) -> Proof {
    handle(Prover::new("user", credential), request)
}

fn sasl() -> Authentication<'static> {
    Authentication::Sasl { mechanisms: vec![b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"] }
}

fn replied(proof: Proof) -> (Prover, Vec<u8>) {
    match proof {
        Proof::Reply(prover, message) => (prover, message[pgweir_wire::HEADER_LEN..].to_vec()),
        other => panic!("expected Reply, got {other:?}"),
    }
}

fn failed(proof: Proof) -> ProverError {
    match proof {
        Proof::Failed(error) => error,
        other => panic!("expected Failed, got {other:?}"),
    }
}

/// A prover that has answered the challenge `r=<its nonce>xyz,s=c2FsdA==,i=<iterations>`.
fn challenged(credential: Credential, iterations: u32) -> Proof {
    let (prover, _) = replied(first(credential, sasl()));
    let challenge = format!("r={ZERO_NONCE}xyz,s=c2FsdA==,i={iterations}");
    handle(prover, Authentication::SaslContinue(challenge.as_bytes()))
}

#[test]
fn a_server_that_trusts_us_lets_us_in() {
    assert!(matches!(first(Credential::None, Authentication::Ok), Proof::Done));
    assert!(matches!(first(password(), Authentication::Ok), Proof::Done));
}

#[test]
fn a_cleartext_question_gets_the_password() {
    for credential in [password(), Credential::Secret(Secret::parse("pencil"))] {
        let (prover, body) = replied(first(credential, Authentication::Cleartext));
        assert_eq!(body, b"pencil\0");
        assert!(matches!(handle(prover, Authentication::Ok), Proof::Done));
    }
}

#[test]
fn an_md5_challenge_gets_postgresqls_answer() {
    // 'md5' || md5(md5('pencil' || 'user') || 'salt')
    let expected = b"md5d3d9bcccbaa2fb5234570d4d0f22b055\0";
    let stored = Secret::parse("md520c46e3762c864548e296b33c3406aa9");
    for credential in [password(), Credential::Secret(stored)] {
        let (prover, body) = replied(first(credential, Authentication::Md5 { salt: *b"salt" }));
        assert_eq!(body, expected);
        assert!(matches!(handle(prover, Authentication::Ok), Proof::Done));
    }
}

#[test]
fn what_a_credential_cannot_answer_is_the_wrong_type() {
    let stored_md5 = || Credential::Secret(Secret::parse("md520c46e3762c864548e296b33c3406aa9"));
    let stored_scram = || {
        let secret = crate::ScramSecret::derive(&PlainPassword::new("pencil"), b"salt", 1);
        Credential::Secret(Secret::Scram(secret.expect("1 is computed")))
    };
    let md5 = || Authentication::Md5 { salt: *b"salt" };
    for (credential, request) in [
        (Credential::None, Authentication::Cleartext),
        (Credential::None, md5()),
        (Credential::None, sasl()),
        (Credential::Password(PlainPassword::new("")), Authentication::Cleartext),
        (Credential::Secret(Secret::parse("")), md5()),
        (Credential::Secret(Secret::parse("")), sasl()),
        (Credential::Password(PlainPassword::new("pen\0cil")), Authentication::Cleartext),
        (stored_md5(), Authentication::Cleartext),
        (stored_md5(), sasl()),
        (stored_scram(), Authentication::Cleartext),
        (stored_scram(), md5()),
        (stored_scram(), sasl()),
        (Credential::ScramKeys(keys(1)), Authentication::Cleartext),
        (Credential::ScramKeys(keys(1)), md5()),
    ] {
        let shown = format!("{credential:?} {request:?}");
        let error = failed(first(credential, request));
        assert_eq!(
            (error, &*error.text()),
            (ProverError::WrongPasswordType, "wrong password type"),
            "{shown}"
        );
    }
}

#[test]
fn the_first_scram_message_is_libpqs() {
    let (_, body) = replied(first(password(), sasl()));
    let message = format!("n,,n=,r={ZERO_NONCE}");
    let expected =
        [b"SCRAM-SHA-256\0", &(message.len() as u32).to_be_bytes()[..], message.as_bytes()].concat();
    assert_eq!(body, expected);
}

#[test]
fn only_scram_sha_256_is_chosen() {
    for mechanisms in [vec![], vec![&b"SCRAM-SHA-256-PLUS"[..], b"OAUTHBEARER", b"", b"SCRAM-SHA-1"]] {
        let error = failed(first(password(), Authentication::Sasl { mechanisms }));
        assert_eq!(error, ProverError::UnsupportedMechanisms);
    }
    let error = failed(first(password(), Authentication::Unsupported(7)));
    assert_eq!(error.text(), "server requests authentication method 7, which is not supported");
}

#[test]
fn keys_are_passed_through_and_the_server_judges_them() {
    let (prover, _) = replied(challenged(Credential::ScramKeys(keys(4)), 4));
    assert_eq!(prover.remark(), None);
    let other_salt = ScramKeys::new([1; 32], [2; 32], b"pepper", 4);
    for (keys, iterations) in [(keys(4), 5), (other_salt, 4)] {
        let (prover, _) = replied(challenged(Credential::ScramKeys(keys), iterations));
        assert!(prover.remark().is_some_and(|remark| remark.contains("SCRAM secret")), "for the log");
    }
    let many = DERIVE_ITERATIONS_MAX + 1;
    replied(challenged(Credential::ScramKeys(keys(many)), many));
}

#[test]
fn a_server_cannot_make_us_work_for_long() {
    let iterations = DERIVE_ITERATIONS_MAX + 1;
    assert_eq!(failed(challenged(password(), iterations)), ProverError::TooManyIterations { iterations });
}

#[test]
fn a_wrong_signature_ends_it() {
    let wrong = format!("v={}", base64_encode(&[0; 32]));
    for (message, expected) in [
        (wrong.as_str(), ProverError::ServerSignature),
        ("e=other-error", ProverError::ServerReportedError),
        ("", ProverError::Protocol(ProtocolFault::ExpectedAttribute { expected: 'v' })),
    ] {
        let (prover, _) = replied(challenged(password(), 4));
        assert_eq!(failed(handle(prover, Authentication::SaslFinal(message.as_bytes()))), expected);
    }
}

#[test]
fn ok_before_the_signature_is_no_login() {
    let (prover, _) = replied(first(password(), sasl()));
    assert_eq!(failed(handle(prover, Authentication::Ok)), ProverError::SignatureMissing);
    let (prover, _) = replied(challenged(password(), 4));
    assert_eq!(failed(handle(prover, Authentication::Ok)), ProverError::SignatureMissing);
}

#[test]
fn after_the_signature_only_ok_may_come() {
    let verified = || {
        let conversation = auth_message(
            concat!("n=,r=", "AAAAAAAAAAAAAAAAAAAAAAAA").as_bytes(),
            concat!("r=", "AAAAAAAAAAAAAAAAAAAAAAAA", "xyz,s=c2FsdA==,i=4").as_bytes(),
            concat!("c=biws,r=", "AAAAAAAAAAAAAAAAAAAAAAAA", "xyz").as_bytes(),
        );
        let message = ServerFinal::encode(&keys(4).server_signature(&conversation));
        let (prover, _) = replied(challenged(Credential::ScramKeys(keys(4)), 4));
        match handle(prover, Authentication::SaslFinal(message.as_bytes())) {
            Proof::Waiting(prover) => prover,
            other => panic!("expected Waiting, got {other:?}"),
        }
    };
    assert!(matches!(handle(verified(), Authentication::Ok), Proof::Done));
    assert_eq!(failed(handle(verified(), Authentication::Cleartext)), ProverError::OutOfOrder);
    assert_eq!(failed(handle(verified(), sasl())), ProverError::OutOfOrder);
    assert_eq!(failed(handle(verified(), Authentication::SaslFinal(b"v="))), ProverError::OutOfOrder);
}

#[test]
fn a_server_does_not_ask_twice() {
    for again in [Authentication::Cleartext, Authentication::Md5 { salt: [0; 4] }, sasl()] {
        let (prover, _) = replied(first(password(), Authentication::Cleartext));
        assert_eq!(failed(handle(prover, again.clone())), ProverError::OutOfOrder);
        let (prover, _) = replied(first(password(), sasl()));
        assert_eq!(failed(handle(prover, again.clone())), ProverError::OutOfOrder);
        let (prover, _) = replied(challenged(password(), 4));
        assert_eq!(failed(handle(prover, again)), ProverError::OutOfOrder);
    }
    for early in [Authentication::SaslContinue(b"r=x"), Authentication::SaslFinal(b"v=x")] {
        assert_eq!(failed(first(password(), early)), ProverError::OutOfOrder);
    }
}

#[test]
fn debug_shows_no_secret() {
    let proof = first(password(), Authentication::Cleartext);
    let shown = format!("{proof:?} {:?} {:?}", password(), Credential::ScramKeys(keys(1)));
    assert!(!shown.contains("pencil") && !shown.contains("112") && !shown.contains("1, 1"), "{shown}");
}

fn any_request() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let text =
        proptest::string::string_regex("([rsive]=(AAAAAAAAAAAAAAAAAAAAAAAA)?[a-zA-Z0-9=+/]{0,9},?){0,4}")
            .expect("a regular expression");
    prop_oneof![
        (0..6u8, text.prop_map(String::into_bytes)),
        (0..6u8, proptest::collection::vec(any::<u8>(), 0..80)),
    ]
}

proptest! {
    /// Once SCRAM has begun, a server that does not know the secret never gets us to believe it.
    #[test]
    fn no_sequence_of_messages_passes_for_the_right_server(
        requests in proptest::collection::vec(any_request(), 1..6)
    ) {
        let (mut prover, _) = replied(first(password(), sasl()));
        for (kind, bytes) in &requests {
            let request = match kind {
                0 => Authentication::Ok,
                1 => Authentication::Cleartext,
                2 => Authentication::Md5 { salt: [1; 4] },
                3 => sasl(),
                4 => Authentication::SaslContinue(bytes),
                _ => Authentication::SaslFinal(bytes),
            };
            prover = match handle(prover, request) {
                Proof::Reply(prover, _) => prover,
                Proof::Failed(_) => return Ok(()),
                proof => return Err(TestCaseError::fail(format!("{proof:?}"))),
            };
        }
    }
}
