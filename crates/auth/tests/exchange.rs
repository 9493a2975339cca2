//! Guard and Prover talk to each other: every kind of stored secret, every method, every credential, and
//! every message of theirs broken on the way.

use pgweir_auth::{
    Credential, Guard, GuardEnv, Learned, Md5Secret, Method, PlainPassword, Proof, ProtocolFault, Prover,
    Refusal, ScramSecret, Secret, Verdict,
};
use pgweir_wire::HEADER_LEN;
use pgweir_wire::backend::Authentication;
use proptest::prelude::*;

const USER: &str = "user";
const METHODS: [Method; 3] = [Method::Plain, Method::Md5, Method::ScramSha256];
const SALT: &[u8] = b"0123456789abcdef";
/// Few, so that thousands of exchanges take no time.
const ITERATIONS: u32 = 3;

/// What the guard said in the end; `None` if the prover gave up before.
type Outcome = Option<Result<Learned, Refusal>>;

/// Both ends of an exchange, and what happens to the messages between them.
struct Rig<'a> {
    /// The state of a random number generator (SplitMix64), so that a run repeats.
    random_state: u64,
    /// Changes the body of the n-th message (both directions count, from 0).
    tamper: &'a mut dyn FnMut(usize, &mut Vec<u8>),
    messages: usize,
    /// The hash of the certificate that each side saw: the guard, the prover.
    seen: (Option<&'a [u8]>, Option<&'a [u8]>),
}

impl<'a> Rig<'a> {
    fn new(tamper: &'a mut dyn FnMut(usize, &mut Vec<u8>)) -> Self {
        Self { random_state: 1, tamper, messages: 0, seen: (None, None) }
    }

    fn random(state: &mut u64, out: &mut [u8]) {
        for byte in out {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            *byte = (mixed >> 56) as u8;
        }
    }

    /// Takes the header off, which must fit, and lets the body through the network.
    fn carry(&mut self, message: &[u8]) -> Vec<u8> {
        let len = u32::from_be_bytes(message[1..HEADER_LEN].try_into().expect("four bytes"));
        assert_eq!(len as usize + 1, message.len(), "a message has the length it says");
        let mut body = message[HEADER_LEN..].to_vec();
        (self.tamper)(self.messages, &mut body);
        self.messages += 1;
        body
    }

    /// Runs to the end: `(what the guard said, whether the prover is in)`.
    fn run(&mut self, method: Method, secret: Option<&Secret>, credential: Credential) -> (Outcome, bool) {
        let mut state = self.random_state;
        let mut random = |out: &mut [u8]| Self::random(&mut state, out);
        let env = GuardEnv { mock_seed: &[7; 32], scram_iterations: ITERATIONS, end_point: self.seen.0 };
        let mut verdict = Guard::begin(method, USER, secret, &env, &mut random);
        let mut prover = Prover::new(USER, credential).bound_to(self.seen.1.map(Box::from));
        loop {
            let (guard, question) = match verdict {
                Verdict::Ask(guard, question) => (guard, question),
                Verdict::Proven { send, learned } => return (Some(Ok(learned)), self.finish(prover, &send)),
                Verdict::Refused(refusal) => return (Some(Err(refusal)), false),
            };
            let body = self.carry(&question);
            let Ok(request) = Authentication::parse(&body) else { return (None, false) };
            match prover.handle(request, &mut random) {
                Proof::Reply(next, answer) => {
                    prover = next;
                    verdict = guard.handle(&self.carry(&answer), &mut random);
                }
                Proof::Waiting(_) | Proof::Failed(_) => return (None, false),
                Proof::Done => return (None, true),
            }
        }
    }

    /// The guard is content; is the prover too?
    fn finish(&mut self, mut prover: Prover, send: &[u8]) -> bool {
        let mut no_random = |_: &mut [u8]| panic!("the end of an exchange needs no randomness");
        if !send.is_empty() {
            let body = self.carry(send);
            let Ok(request) = Authentication::parse(&body) else { return false };
            prover = match prover.handle(request, &mut no_random) {
                Proof::Waiting(next) => next,
                Proof::Reply(..) => panic!("nothing is left to reply to"),
                Proof::Done => return true,
                Proof::Failed(_) => return false,
            };
        }
        matches!(prover.handle(Authentication::Ok, &mut no_random), Proof::Done)
    }
}

/// Over TLS, where each side has seen a certificate.
fn bound(
    guard: Option<&[u8]>,
    prover: Option<&[u8]>,
    tamper: &mut dyn FnMut(usize, &mut Vec<u8>),
) -> (Outcome, bool) {
    let secret = Secret::Scram(scram("pencil"));
    let mut rig = Rig::new(tamper);
    rig.seen = (guard, prover);
    rig.run(Method::ScramSha256, Some(&secret), Credential::Password(PlainPassword::new("pencil")))
}

#[test]
fn channel_binding_wants_both_to_have_seen_the_same_certificate() {
    for (guard, prover) in
        [(Some(&b"hash"[..]), Some(&b"hash"[..])), (None, None), (Some(b"hash"), None), (None, Some(b"hash"))]
    {
        let (outcome, in_) = bound(guard, prover, &mut |_, _| ());
        assert!(matches!(outcome, Some(Ok(Learned::ScramKeys(_)))) && in_, "{guard:?} {prover:?}");
    }
    let (outcome, _) = bound(Some(b"hash"), Some(b"another"), &mut |_, _| ());
    let mismatch = Refusal::SaslMessage(ProtocolFault::BindingMismatch);
    assert!(matches!(outcome, Some(Err(refusal)) if refusal == mismatch), "an attacker stands in between");
}

#[test]
fn removing_the_offer_of_channel_binding_is_noticed() {
    let (outcome, in_) = bound(Some(b"hash"), Some(b"hash"), &mut |number, body| {
        if number == 0 {
            let plus = b"SCRAM-SHA-256-PLUS\0";
            let at = body.windows(plus.len()).position(|window| window == plus).expect("it is offered");
            body.drain(at..at + plus.len());
        }
    });
    let downgrade = Refusal::SaslMessage(ProtocolFault::BindingDowngrade);
    assert!(matches!(outcome, Some(Err(refusal)) if refusal == downgrade) && !in_);
}

fn exchange(method: Method, secret: Option<&Secret>, credential: Credential) -> (Outcome, bool) {
    Rig::new(&mut |_, _| ()).run(method, secret, credential)
}

fn scram(password: &str) -> ScramSecret {
    ScramSecret::derive(&PlainPassword::new(password), SALT, ITERATIONS).expect("few iterations are computed")
}

fn md5(password: &str) -> Md5Secret {
    Md5Secret::derive(&PlainPassword::new(password), USER)
}

/// The three ways to store a password.
fn stored(password: &str) -> [Secret; 3] {
    [
        Secret::Plain(PlainPassword::new(password)),
        Secret::parse(&md5(password).format()),
        Secret::parse(&scram(password).format()),
    ]
}

/// The ways to know a password.
fn credentials(password: &str) -> [Credential; 4] {
    let [plain, md5, scram] = stored(password);
    [
        Credential::Password(PlainPassword::new(password)),
        Credential::Secret(plain),
        Credential::Secret(md5),
        Credential::Secret(scram),
    ]
}

/// Whether a client that has the password in this form gets in if it is stored in that form.
fn gets_in(method: Method, secret: &Secret, credential: &Credential) -> bool {
    let knows_password = matches!(credential, Credential::Password(_) | Credential::Secret(Secret::Plain(_)));
    let knows_md5 = knows_password || matches!(credential, Credential::Secret(Secret::Md5(_)));
    match (method, secret) {
        (Method::Trust, _) => true,
        (Method::Plain, _) | (Method::Md5, Secret::Scram(_)) => knows_password,
        (Method::Md5, Secret::Plain(_) | Secret::Md5(_)) => knows_md5,
        (Method::ScramSha256, Secret::Md5(_)) => false,
        (Method::ScramSha256, Secret::Plain(_) | Secret::Scram(_)) => knows_password,
    }
}

/// Passwords people have: short ASCII, anything printable, and letters that SASLprep changes or refuses.
fn any_password() -> impl Strategy<Value = String> {
    let regex = |text| proptest::string::string_regex(text).expect("a regular expression");
    prop_oneof![
        regex("[a-zA-Z0-9]{1,12}"),
        regex("\\PC{1,12}"),
        regex("[a\u{AD}\u{AA}\u{2168}\u{A0}\u{627}\u{7}\u{e4}\u{1F600}]{1,6}"),
    ]
}

proptest! {
    #[test]
    fn only_a_client_that_knows_the_password_gets_in(password in any_password()) {
        let wrong = format!("{password}x");
        for method in METHODS {
            for secret in stored(&password) {
                for credential in credentials(&password) {
                    let expected = gets_in(method, &secret, &credential);
                    let shown = format!("{method:?} {secret:?} {credential:?} {password:?}");
                    let (outcome, done) = exchange(method, Some(&secret), credential);
                    prop_assert_eq!(matches!(outcome, Some(Ok(_))), expected, "guard: {}", shown);
                    prop_assert_eq!(done, expected, "prover: {}", shown);
                }
                for credential in credentials(&wrong) {
                    let (outcome, done) = exchange(method, Some(&secret), credential);
                    prop_assert!(!matches!(outcome, Some(Ok(_))) && !done, "{:?} {:?}", method, secret);
                }
            }
        }
    }

    #[test]
    fn a_client_that_sends_garbage_is_never_proven(bodies in proptest::collection::vec(garbage(), 1..4)) {
        for method in METHODS {
            for secret in stored("pencil") {
                let env = GuardEnv { mock_seed: &[7; 32], scram_iterations: ITERATIONS, end_point: None };
                let mut verdict = Guard::begin(method, USER, Some(&secret), &env, &mut |out| out.fill(1));
                for body in &bodies {
                    verdict = match verdict {
                        Verdict::Ask(guard, _) => guard.handle(body, &mut |out| out.fill(2)),
                        last => last,
                    };
                }
                let proven = matches!(verdict, Verdict::Proven { .. });
                prop_assert!(!proven);
            }
        }
    }
}

/// Bodies of `p` messages: any bytes, and such as get past the first checks.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let regex = |text| proptest::string::string_regex(text).expect("a regular expression");
    let initial = |message: String| {
        [b"SCRAM-SHA-256\0", &(message.len() as u32).to_be_bytes()[..], message.as_bytes()].concat()
    };
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..120),
        regex("[a-oq-z]{0,40}\0").prop_map(String::into_bytes),
        regex("[ny],,n=[a-z]{0,4},r=[a-z]{1,9}").prop_map(initial),
        regex("c=(biws|eSws),r=[a-zA-Z0-9+/]{1,33},p=[a-zA-Z0-9+/]{43}=").prop_map(String::into_bytes),
    ]
}

#[test]
fn an_unknown_user_fails_at_the_end_like_a_wrong_password() {
    let password = || Credential::Password(PlainPassword::new("pencil"));
    let [plain, md5, _] = stored("another");
    for (method, text) in [
        (Method::Plain, "password authentication failed"),
        (Method::Md5, "password authentication failed"),
        (Method::ScramSha256, "SASL authentication failed"),
    ] {
        for secret in [None, Some(&plain), Some(&md5), Some(&Secret::parse(""))] {
            let mut messages = 0;
            let mut count = |_: usize, _: &mut Vec<u8>| messages += 1;
            let (outcome, _) = Rig::new(&mut count).run(method, secret, password());
            let refusal = outcome.expect("the guard speaks last").expect_err("the login is refused");
            assert_eq!((refusal.text(), refusal.fault()), (text, None));
            assert_eq!(messages, if method == Method::ScramSha256 { 4 } else { 2 }, "{method:?} {secret:?}");
        }
    }
}

#[test]
fn the_log_knows_that_an_md5_hash_is_no_use_to_scram() {
    let [plain, md5, _] = stored("another");
    let reason = |secret| {
        let password = Credential::Password(PlainPassword::new("pencil"));
        let (outcome, _) = exchange(Method::ScramSha256, secret, password);
        outcome.expect("the guard speaks last").expect_err("the login is refused").log_text()
    };
    assert_eq!(reason(Some(&md5)).as_deref(), Some("SCRAM authentication failed: user has MD5 secret"));
    for secret in [None, Some(&plain)] {
        assert_eq!(reason(secret).as_deref(), Some("password authentication failed"));
    }
}

#[test]
fn keys_learned_from_a_client_pass_through_to_a_server_with_the_same_secret() {
    for method in [Method::Md5, Method::ScramSha256] {
        let secret = Secret::Scram(scram("pencil"));
        let (outcome, _) =
            exchange(method, Some(&secret), Credential::Password(PlainPassword::new("pencil")));
        let Some(Ok(Learned::ScramKeys(keys))) = outcome else { panic!("{outcome:?}") };
        let (outcome, done) = exchange(method, Some(&secret), Credential::ScramKeys(keys.clone()));
        assert!(matches!(outcome, Some(Ok(Learned::ScramKeys(_)))) && done);

        for (password, salt, iterations) in
            [("pencil", &b"another"[..], ITERATIONS), ("pencil", SALT, 4), ("other", SALT, ITERATIONS)]
        {
            let secret = ScramSecret::derive(&PlainPassword::new(password), salt, iterations);
            let secret = Secret::Scram(secret.expect("few iterations are computed"));
            let (outcome, done) = exchange(method, Some(&secret), Credential::ScramKeys(keys.clone()));
            assert!(!matches!(outcome, Some(Ok(_))) && !done, "{password} {iterations}");
        }
    }
}

/// One way to break a message.
#[derive(Debug, Clone, Copy)]
enum Breakage {
    Truncate { len: usize },
    Flip { at: usize, mask: u8 },
    Insert { at: usize, byte: u8 },
}

impl Breakage {
    /// All of them, for a message of this length.
    fn all(len: usize) -> impl Iterator<Item = Self> {
        let flips = [0x01, 0x02, 0x10, 0x20, 0x80, 0xff];
        let flips = (0..len).flat_map(move |at| flips.map(|mask| Self::Flip { at, mask }));
        let inserts = (0..=len).flat_map(|at| [0, b',', b'=', b'x'].map(|byte| Self::Insert { at, byte }));
        (0..len).map(|len| Self::Truncate { len }).chain(flips).chain(inserts)
    }

    fn apply(self, body: &mut Vec<u8>) {
        match self {
            Self::Truncate { len } => body.truncate(len),
            Self::Flip { at, mask } => body[at] ^= mask,
            Self::Insert { at, byte } => body.insert(at, byte),
        }
    }
}

#[test]
fn no_broken_message_of_a_client_proves_it_and_no_broken_message_of_a_server_convinces_us() {
    let client = Credential::Password(PlainPassword::new("pencil"));
    for method in METHODS {
        for secret in stored("pencil") {
            let mut lengths = Vec::new();
            let mut note = |_: usize, body: &mut Vec<u8>| lengths.push(body.len());
            let (_, done) = Rig::new(&mut note).run(method, Some(&secret), client.clone());
            assert_eq!(done, gets_in(method, &secret, &client));
            for (broken, len) in lengths.iter().enumerate() {
                for breakage in Breakage::all(*len) {
                    let mut tamper = |n: usize, body: &mut Vec<u8>| {
                        if n == broken {
                            breakage.apply(body);
                        }
                    };
                    let (outcome, done) = Rig::new(&mut tamper).run(method, Some(&secret), client.clone());
                    let shown = format!("{method:?} {secret:?}: {breakage:?} of message {broken}");
                    let proven = matches!(outcome, Some(Ok(_)));
                    let from_client = broken % 2 == 1;
                    assert!(!(from_client && proven), "{shown}");
                    // The question that begins everything is not protected by anything.
                    let in_scram = lengths.len() > 2 && broken > 0;
                    assert!(!(in_scram && done), "{shown}");
                }
            }
        }
    }
}
