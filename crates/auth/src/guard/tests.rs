use super::*;
use crate::limits::{DERIVE_ITERATIONS_MAX, SASL_MESSAGE_LEN_MAX};
use crate::scram::ScramSecret;
use crate::scram::message::ServerFirst;
use pgweir_wire::backend::Authentication;

const SEED: [u8; 32] = [9; 32];

fn env() -> GuardEnv<'static> {
    GuardEnv { mock_seed: &SEED, scram_iterations: 3, end_point: None }
}

/// A source of bytes that never repeats.
fn counter() -> impl FnMut(&mut [u8]) {
    let mut next = 0;
    move |out: &mut [u8]| {
        for byte in out {
            next = u8::wrapping_add(next, 1);
            *byte = next;
        }
    }
}

fn begin(method: Method, secret: Option<&Secret>) -> Verdict {
    Guard::begin(method, "user", secret, &env(), &mut counter())
}

fn asked(verdict: Verdict) -> (Guard, Vec<u8>) {
    match verdict {
        Verdict::Ask(guard, message) => (guard, message[pgweir_wire::HEADER_LEN..].to_vec()),
        other => panic!("expected Ask, got {other:?}"),
    }
}

fn refused(verdict: Verdict) -> Refusal {
    match verdict {
        Verdict::Refused(refusal) => refusal,
        other => panic!("expected Refused, got {other:?}"),
    }
}

fn initial_response(message: &str) -> Vec<u8> {
    [b"SCRAM-SHA-256\0", &(message.len() as u32).to_be_bytes()[..], message.as_bytes()].concat()
}

/// The server's first SCRAM message to `user`.
fn challenge(user: &str, secret: Option<&Secret>, scram_iterations: u32) -> String {
    let env = GuardEnv { mock_seed: &SEED, scram_iterations, end_point: None };
    let (guard, _) = asked(Guard::begin(Method::ScramSha256, user, secret, &env, &mut counter()));
    let (_, body) = asked(guard.handle(&initial_response("n,,n=,r=abc"), &mut counter()));
    match Authentication::parse(&body) {
        Ok(Authentication::SaslContinue(message)) => String::from_utf8(message.to_vec()).expect("ASCII"),
        other => panic!("expected SASLContinue, got {other:?}"),
    }
}

fn scram_secret(password: &str) -> Secret {
    let password = PlainPassword::new(password);
    Secret::Scram(ScramSecret::derive(&password, b"stored salt", 5).expect("5 are computed"))
}

#[test]
fn trust_lets_known_users_in() {
    for text in ["", "pencil", "md50123456789abcdef0123456789abcdef"] {
        let secret = Secret::parse(text);
        let verdict = begin(Method::Trust, Some(&secret));
        assert!(
            matches!(verdict, Verdict::Proven { ref send, learned: Learned::Nothing } if send.is_empty())
        );
    }
    let refusal = refused(begin(Method::Trust, None));
    assert_eq!(refusal.text(), "\"trust\" authentication failed");
}

#[test]
fn each_method_asks_its_question() {
    let plain = Secret::parse("pencil");
    for secret in [None, Some(&plain), Some(&scram_secret("pencil"))] {
        let (_, body) = asked(begin(Method::Plain, secret));
        assert!(matches!(Authentication::parse(&body), Ok(Authentication::Cleartext)));
        let (_, body) = asked(begin(Method::ScramSha256, secret));
        let Ok(Authentication::Sasl { mechanisms }) = Authentication::parse(&body) else {
            panic!("{body:?}")
        };
        assert_eq!(mechanisms, [b"SCRAM-SHA-256"]);
    }
    for secret in [None, Some(&plain)] {
        let (_, body) = asked(begin(Method::Md5, secret));
        assert!(matches!(Authentication::parse(&body), Ok(Authentication::Md5 { salt: [1, 2, 3, 4] })));
    }
    let (_, body) = asked(begin(Method::Md5, Some(&scram_secret("pencil"))));
    assert!(
        matches!(Authentication::parse(&body), Ok(Authentication::Sasl { .. })),
        "md5 with a SCRAM secret"
    );
}

#[test]
fn what_is_prepared_is_what_the_proof_needs() {
    let secret = Secret::parse("pencil");
    assert!(Guard::prepare("user", &secret, &env()) && !Guard::prepare("user", &secret, &env()));
    assert!(Guard::prepare("another", &secret, &env()), "each user has its salt");
    for nothing in
        [Secret::parse(""), Secret::parse("md50123456789abcdef0123456789abcdef"), scram_secret("pencil")]
    {
        assert!(!Guard::prepare("user", &nothing, &env()), "{nothing:?}");
    }
    let challenge = challenge("user", Some(&secret), 3);
    let challenge = ServerFirst::parse(challenge.as_bytes(), b"abc").expect("well-formed");
    let Secret::Plain(password) = &secret else { panic!("it is one") };
    assert!(password.has_scram_keys(&challenge.salt, challenge.iterations), "nothing is left to derive");
}

#[test]
fn password_messages_are_one_string_to_the_last_byte() {
    let secret = Secret::parse("pencil");
    let shape = Refusal::PasswordMessage(ProtocolFault::PasswordShape);
    let too_long = Refusal::PasswordMessage(ProtocolFault::PasswordTooLong { len: SECRET_LEN_MAX + 1 });
    let long = [vec![b'x'; SECRET_LEN_MAX + 1], vec![0]].concat();
    let longest = [vec![b'x'; SECRET_LEN_MAX], vec![0]].concat();
    for method in [Method::Plain, Method::Md5] {
        for (body, expected) in [
            (&b""[..], shape),
            (b"\0", Refusal::EmptyPassword),
            (b"pencil", shape),
            (b"pencil\0\0", shape),
            (b"pencil\0x", shape),
            (b"pen\0cil\0", shape),
            (b"Pencil\0", Refusal::WrongPassword),
            (&long, too_long),
            (&longest, Refusal::WrongPassword),
        ] {
            let (guard, _) = asked(begin(method, Some(&secret)));
            assert_eq!(refused(guard.handle(body, &mut counter())), expected, "{method:?}");
        }
    }
}

#[test]
fn an_empty_stored_secret_never_matches() {
    let empty = Secret::parse("");
    let (guard, _) = asked(begin(Method::Plain, Some(&empty)));
    assert_eq!(refused(guard.handle(b"x\0", &mut counter())), Refusal::WrongPassword);
    let (guard, body) = asked(begin(Method::Md5, Some(&empty)));
    let Ok(Authentication::Md5 { salt }) = Authentication::parse(&body) else { panic!("{body:?}") };
    let answer = Md5Secret::derive(&PlainPassword::new(""), "user").answer(salt);
    let refusal = refused(guard.handle(&[&answer[..], b"\0"].concat(), &mut counter()));
    assert_eq!(refusal, Refusal::WrongPassword);
}

#[test]
fn a_cleartext_password_is_learned() {
    for secret in [Secret::parse("pencil"), scram_secret("pencil")] {
        let (guard, _) = asked(begin(Method::Plain, Some(&secret)));
        let verdict = guard.handle(b"pencil\0", &mut counter());
        let Verdict::Proven { send, learned: Learned::Password(password) } = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!((send.len(), password.as_bytes()), (0, &b"pencil"[..]));
    }
}

#[test]
fn salts_do_not_tell_which_users_exist() {
    let plain = Secret::parse("pencil");
    let other = Secret::parse("another");
    let md5 = Secret::parse("md50123456789abcdef0123456789abcdef");
    let empty = Secret::parse("");
    let unknown = challenge("alice", None, 3);
    for secret in [&plain, &other, &md5, &empty] {
        assert_eq!(challenge("alice", Some(secret), 3), unknown, "{secret:?}");
    }
    assert_ne!(challenge("bob", None, 3), unknown, "another user has another salt");
    assert!(unknown.ends_with(",i=3"), "{unknown}");
    assert!(challenge("alice", None, 0).ends_with(",i=1"));
    assert!(challenge("alice", None, u32::MAX).ends_with(&format!(",i={DERIVE_ITERATIONS_MAX}")));
}

#[test]
fn a_stored_secret_tells_its_own_salt_and_iterations() {
    let message = challenge("alice", Some(&scram_secret("pencil")), 3);
    assert!(message.ends_with(",s=c3RvcmVkIHNhbHQ=,i=5"), "{message}");
}

#[test]
fn the_servers_nonce_is_new_each_time() {
    let mut random = counter();
    let mut ask = || {
        let (guard, _) = asked(Guard::begin(Method::ScramSha256, "user", None, &env(), &mut random));
        asked(guard.handle(&initial_response("n,,n=,r=abc"), &mut random)).1
    };
    assert_ne!(ask(), ask());
}

#[test]
fn a_client_may_send_its_first_message_after_an_empty_challenge() {
    let (guard, _) = asked(begin(Method::ScramSha256, None));
    let (guard, body) = asked(guard.handle(b"SCRAM-SHA-256\0\xff\xff\xff\xff", &mut counter()));
    assert!(matches!(Authentication::parse(&body), Ok(Authentication::SaslContinue(b""))));
    let (_, body) = asked(guard.handle(b"n,,n=,r=abc", &mut counter()));
    assert!(
        matches!(Authentication::parse(&body), Ok(Authentication::SaslContinue(text)) if text.starts_with(b"r=abc"))
    );
}

#[test]
fn sasl_faults_are_told_in_general_and_logged_in_detail() {
    for (body, fault) in [
        (initial_response("p=tls-unique,,n=,r=abc"), ProtocolFault::BindingType),
        (initial_response("n,a=root,n=,r=abc"), ProtocolFault::AuthorizationIdentity),
        (b"SCRAM-SHA-256-PLUS\0\0\0\0\0".to_vec(), ProtocolFault::MechanismNotOffered),
        (b"pencil\0".to_vec(), ProtocolFault::InitialShape),
        (
            vec![b'x'; SASL_MESSAGE_LEN_MAX + 1],
            ProtocolFault::MessageTooLong { len: SASL_MESSAGE_LEN_MAX + 1 },
        ),
    ] {
        let (guard, _) = asked(begin(Method::ScramSha256, Some(&Secret::parse("pencil"))));
        let refusal = refused(guard.handle(&body, &mut counter()));
        assert_eq!((refusal.text(), refusal.fault()), ("SASL authentication failed", Some(fault)));
    }
}

#[test]
fn debug_shows_no_secret() {
    let secret = Secret::parse("pencil");
    for method in [Method::Plain, Method::Md5, Method::ScramSha256, Method::Trust] {
        let shown = format!("{:?}", begin(method, Some(&secret)));
        assert!(!shown.contains("pencil") && !shown.contains("112"), "{shown}");
    }
    let verdict =
        Verdict::Proven { send: b"v=secret".to_vec(), learned: Learned::Password(PlainPassword::new("x1y")) };
    let shown = format!("{verdict:?} {:?}", env());
    assert!(!shown.contains("x1y") && !shown.contains("9, 9"), "{shown}");
}
