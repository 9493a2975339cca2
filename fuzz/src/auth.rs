//! Authentication, in both roles, and the file of users.

use std::sync::LazyLock;

use pgweir_auth::{
    Credential, Guard, GuardEnv, Md5Secret, Method, PlainPassword, Proof, Prover, ScramKeys, ScramSecret,
    Secret, UserList, Verdict, limits,
};
use pgweir_wire::backend::{self, Authentication};
use pgweir_wire::{HEADER_LEN, Header};

/// Who logs in.
const USER: &str = "alice";
/// A password that no input can know: it is in no corpus, and nothing leads to it step by step.
const PASSWORD: &str = "tZ6#wq-9Lm;vR2@xK8_hB4";
/// Messages of one exchange at most: nothing honest needs more than three.
const MESSAGES_MAX: usize = 16;

/// The input is an `auth_file`, and each line of it a stored secret.
pub fn auth_user_list(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (list, warnings) = UserList::parse(data);
    assert!(warnings.len() <= 1, "a bad line ends the reading");
    assert!(list.len() <= text.lines().count());
    assert_eq!(list.len(), list.names().count());
    for name in list.names() {
        assert!(name.len() <= limits::USER_LEN_MAX);
        assert!(list.get(name).is_some_and(|secret| format!("{secret:?}").ends_with("(redacted)")));
    }
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let file: String = list.names().map(|name| format!("{} \"x\"\n", quoted(name))).collect();
    let again = UserList::parse(&file);
    assert!(again.1.is_empty() && again.0.names().eq(list.names()), "names survive being written");
    for line in text.lines() {
        stored_secret(line);
    }
}

fn stored_secret(text: &str) {
    match Secret::parse(text) {
        Secret::Plain(password) => assert_eq!(password.as_bytes(), text.as_bytes()),
        Secret::Md5(secret) => assert_eq!(secret.format(), text),
        Secret::Scram(secret) => {
            assert!((1..=limits::SALT_LEN_MAX).contains(&secret.salt().len()));
            assert!((1..=limits::ITERATIONS_MAX).contains(&secret.iterations()));
            let written = secret.format();
            let again = ScramSecret::parse(&written).expect("what we write is what we read");
            assert_eq!(again.format(), written);
        }
    }
}

/// What a server stores for [`USER`], of each kind; with few iterations, because each run derives.
static SECRETS: LazyLock<[Option<Secret>; 5]> = LazyLock::new(|| {
    let password = PlainPassword::new(PASSWORD);
    let scram = ScramSecret::derive(&password, b"0123456789abcdef", 2).expect("two iterations are computed");
    [
        None,
        Some(Secret::Plain(password.clone())),
        Some(Secret::Md5(Md5Secret::derive(&password, USER))),
        Some(Secret::Scram(scram)),
        Some(Secret::Plain(PlainPassword::new(""))),
    ]
});

/// The input is a byte that selects method and stored secret, and then what a client sends that does not know the
/// password. It must not get in.
pub fn auth_guard(data: &[u8]) {
    const METHODS: [Method; 3] = [Method::Plain, Method::Md5, Method::ScramSha256];
    let Some((&selector, sent)) = data.split_first() else { return };
    let method = METHODS[usize::from(selector) % METHODS.len()];
    let secret = &SECRETS[usize::from(selector) / METHODS.len() % SECRETS.len()];
    let env = GuardEnv { mock_seed: &[7; 32], scram_iterations: 2, end_point: None };
    let mut verdict = Guard::begin(method, USER, secret.as_ref(), &env, &mut predictable);
    for body in bodies(sent) {
        verdict = match verdict {
            Verdict::Ask(guard, message) => {
                assert_eq!(
                    Header::peek(&message).ok().flatten().map(|header| header.total()),
                    Some(message.len())
                );
                guard.handle(body, &mut predictable)
            }
            Verdict::Refused(refusal) => {
                assert!(!refusal.text().is_empty());
                return;
            }
            Verdict::Proven { .. } => break,
        };
    }
    assert!(!matches!(verdict, Verdict::Proven { .. }), "proven by {}", data.escape_ascii());
}

/// The input is a byte that selects what we log in with, and then what a server sends. A server that does not know the
/// password cannot end a SCRAM exchange in our favour, and gets the password in clear only by asking for it.
pub fn auth_prover(data: &[u8]) {
    let Some((&selector, sent)) = data.split_first() else { return };
    let password = || PlainPassword::new(PASSWORD);
    let credential = match selector % 5 {
        0 => Credential::None,
        1 => Credential::Password(password()),
        2 => Credential::ScramKeys(ScramKeys::new([1; 32], [2; 32], b"0123456789abcdef", 4096)),
        3 => Credential::Secret(Secret::Md5(Md5Secret::derive(&password(), USER))),
        _ => Credential::Secret(Secret::Plain(password())),
    };
    let mut prover = Prover::new(USER, credential);
    let (mut asked_in_clear, mut in_scram) = (false, false);
    for body in bodies(sent) {
        let Ok(request) = Authentication::parse(body) else { return };
        asked_in_clear |= matches!(request, Authentication::Cleartext);
        let begins_scram = matches!(request, Authentication::Sasl { .. });
        prover = match prover.handle(request, &mut predictable) {
            Proof::Reply(prover, message) => {
                in_scram |= begins_scram;
                let shows = message.windows(PASSWORD.len()).any(|part| part == PASSWORD.as_bytes());
                assert!(!shows || (asked_in_clear && !in_scram), "the password was told unasked");
                prover
            }
            Proof::Waiting(prover) => prover,
            Proof::Done => {
                assert!(
                    !in_scram,
                    "a server that does not know the password passed: {}",
                    data.escape_ascii()
                );
                return;
            }
            Proof::Failed(error) => {
                assert!(!error.text().contains(PASSWORD));
                return;
            }
        };
    }
}

/// The bodies of the messages that `data` begins with: a password message's for us as a server, an Authentication
/// message's for us as a client.
fn bodies(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let next = move || {
        let header = Header::peek(data).ok().flatten()?;
        let (message, rest) = data.split_at_checked(header.total())?;
        data = rest;
        Some((header.tag, &message[HEADER_LEN..]))
    };
    std::iter::from_fn(next)
        .filter(|(tag, _)| {
            matches!(*tag, pgweir_wire::frontend::tag::PASSWORD | backend::tag::AUTHENTICATION)
        })
        .map(|(_, body)| body)
        .take(MESSAGES_MAX)
}

/// Nonces and salts that a corpus can know: an input then comes further than guessing would take it.
fn predictable(out: &mut [u8]) {
    out.fill(7);
}
