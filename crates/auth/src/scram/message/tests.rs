use super::*;
use crate::crypto::KEY_LEN;
use crate::limits::SALT_LEN_MAX;
use crate::scram::{ScramKeys, ScramSecret};
use proptest::prelude::*;
use std::num::NonZeroU32;

/// The exchange of RFC 7677 section 3: user "user", password "pencil".
const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const SERVER_FIRST: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                            p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

const NONCE: &[u8] = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";

fn expected(letter: char) -> ProtocolFault {
    ProtocolFault::ExpectedAttribute { expected: letter }
}

#[test]
fn the_exchange_of_rfc_7677_from_both_sides() {
    let client_first = ClientFirst::parse(CLIENT_FIRST.as_bytes()).expect("RFC 7677");
    let server_first = ServerFirst::parse(SERVER_FIRST.as_bytes(), client_first.nonce).expect("RFC 7677");
    assert_eq!((server_first.nonce, server_first.iterations), (NONCE, 4096));
    let client_final =
        ClientFinal::parse(CLIENT_FINAL.as_bytes(), &client_first.binding.echo(&[]), server_first.nonce)
            .expect("RFC 7677");

    let conversation = auth_message(client_first.bare, SERVER_FIRST.as_bytes(), client_final.without_proof);
    let iterations = NonZeroU32::new(server_first.iterations).expect("4096 is not 0");
    let keys = ScramKeys::derive(b"pencil", &server_first.salt, iterations);
    let nonce = std::str::from_utf8(NONCE).expect("ASCII");
    let without_proof = ClientFinal::encode_without_proof("biws", nonce);
    assert_eq!(ClientFinal::encode(&without_proof, &keys.proof(&conversation)), CLIENT_FINAL);
    assert_eq!(ServerFinal::encode(&keys.server_signature(&conversation)), SERVER_FINAL);

    let password = crate::PlainPassword::new("pencil");
    let secret = ScramSecret::derive(&password, &server_first.salt, 4096).expect("4096 are computed");
    let learned = secret.check(&client_final.proof, &conversation).expect("the proof is right");
    assert_eq!(learned.client_key(), keys.client_key());
    assert_eq!(learned.server_key(), keys.server_key());
    let ServerFinal::Signature(signature) = ServerFinal::parse(SERVER_FINAL.as_bytes()).expect("RFC 7677")
    else {
        panic!("not an error");
    };
    assert!(signature.same(&learned.server_signature(&conversation)));
}

#[test]
fn our_first_messages_read_back() {
    let (header, bare) = ClientFirst::encode(Binding::Unsupported, "abc");
    let message = format!("{header}{bare}");
    let read = ClientFirst::parse(message.as_bytes()).expect("our own");
    assert_eq!((read.binding, read.nonce, read.bare), (Binding::Unsupported, &b"abc"[..], bare.as_bytes()));
    let message = ServerFirst::encode("abcd", b"salt", 17);
    let read = ServerFirst::parse(message.as_bytes(), b"abc").expect("our own");
    assert_eq!((read.nonce, &*read.salt, read.iterations), (&b"abcd"[..], &b"salt"[..], 17));
}

#[test]
fn client_first_accepts_what_rfc_5802_lets_in() {
    for (message, binding) in [
        ("n,,n=,r=abc", Binding::Unsupported),
        ("y,,n=,r=abc", Binding::NotOffered),
        ("n,,n=a=2Cb,r=abc,x=1,Y=", Binding::Unsupported),
        ("p=tls-server-end-point,,n=,r=abc", Binding::EndPoint),
    ] {
        let read = ClientFirst::parse(message.as_bytes()).expect(message);
        assert_eq!((read.binding, read.nonce), (binding, &b"abc"[..]), "{message}");
    }
}

#[test]
fn client_first_refuses_the_rest_and_says_why() {
    let long = format!("n,,n=,r={}", "x".repeat(NONCE_LEN_MAX + 1));
    let huge = format!("n,,n=,r=x,x={}", "x".repeat(SASL_MESSAGE_LEN_MAX));
    for (message, fault) in [
        ("", ProtocolFault::BindingFlag),
        ("x,,n=,r=abc", ProtocolFault::BindingFlag),
        ("p=tls-unique,,n=,r=abc", ProtocolFault::BindingType),
        ("n,a=root,n=,r=abc", ProtocolFault::AuthorizationIdentity),
        ("y,a=root,n=,r=abc", ProtocolFault::AuthorizationIdentity),
        ("n", expected('n')),
        ("n,", expected('n')),
        ("n,,", expected('n')),
        ("n,x,n=,r=abc", expected('n')),
        ("n,,r=abc", expected('n')),
        ("n,,m=x,n=,r=abc", ProtocolFault::MandatoryExtension),
        ("n,,n=", expected('r')),
        ("n,,n=,", expected('r')),
        ("n,,n=,x=1,r=abc", expected('r')),
        ("n,,n=,r=", ProtocolFault::Nonce),
        ("n,,n=,r=a b", ProtocolFault::Nonce),
        ("n,,n=,r=\u{e4}", ProtocolFault::Nonce),
        ("n,,n=,r=\u{7f}", ProtocolFault::Nonce),
        (long.as_str(), ProtocolFault::Nonce),
        ("n,,n=,r=abc,", ProtocolFault::ExtensionShape),
        ("n,,n=,r=abc,x", ProtocolFault::ExtensionShape),
        ("n,,n=,r=abc,1=x", ProtocolFault::ExtensionShape),
        ("n,,n=,r=abc\0", ProtocolFault::ZeroByte),
        (huge.as_str(), ProtocolFault::MessageTooLong { len: huge.len() }),
    ] {
        assert_eq!(ClientFirst::parse(message.as_bytes()).err(), Some(fault), "{message}");
    }
}

#[test]
fn server_first_refuses_hostile_values() {
    let long_nonce = format!("r=abc{},s=c2FsdA==,i=1", "x".repeat(NONCE_LEN_MAX - 2));
    let long_salt = format!("r=abcd,s={},i=1", base64_encode(&[7; SALT_LEN_MAX + 1]));
    for (message, fault) in [
        ("", expected('r')),
        ("m=x,r=abcd,s=c2FsdA==,i=1", ProtocolFault::MandatoryExtension),
        ("r=abc,s=c2FsdA==,i=1", ProtocolFault::NonceMismatch),
        ("r=abX,s=c2FsdA==,i=1", ProtocolFault::NonceMismatch),
        ("r=Xabc,s=c2FsdA==,i=1", ProtocolFault::NonceMismatch),
        (long_nonce.as_str(), ProtocolFault::Nonce),
        ("r=abcd", expected('s')),
        ("r=abcd,s=,i=1", ProtocolFault::Salt),
        ("r=abcd,s=c2FsdA=,i=1", ProtocolFault::Salt),
        ("r=abcd,s=!!!!,i=1", ProtocolFault::Salt),
        (long_salt.as_str(), ProtocolFault::Salt),
        ("r=abcd,s=c2FsdA==", expected('i')),
        ("r=abcd,s=c2FsdA==,i=", ProtocolFault::Iterations),
        ("r=abcd,s=c2FsdA==,i=0", ProtocolFault::Iterations),
        ("r=abcd,s=c2FsdA==,i=-1", ProtocolFault::Iterations),
        ("r=abcd,s=c2FsdA==,i=+1", ProtocolFault::Iterations),
        ("r=abcd,s=c2FsdA==,i=1x", ProtocolFault::Iterations),
        ("r=abcd,s=c2FsdA==,i=2147483648", ProtocolFault::Iterations),
        ("r=abcd,s=c2FsdA==,i=99999999999999999999999", ProtocolFault::Iterations),
        ("r=abcd,s=c2FsdA==,i=1,", ProtocolFault::ExtensionShape),
        ("r=abcd,s=c2FsdA==,i=1\0", ProtocolFault::ZeroByte),
    ] {
        assert_eq!(ServerFirst::parse(message.as_bytes(), b"abc").err(), Some(fault), "{message}");
    }
    assert!(ServerFirst::parse(b"r=abcd,s=c2FsdA==,i=2147483647,x=y", b"abc").is_ok());
}

#[test]
fn client_final_is_checked_against_the_agreement() {
    let proof = base64_encode(&[7; KEY_LEN]);
    let parse = |message: &str| {
        ClientFinal::parse(message.as_bytes(), "biws", b"abcd").map(|read| read.without_proof.to_vec())
    };
    assert_eq!(parse(&format!("c=biws,r=abcd,p={proof}")), Ok(b"c=biws,r=abcd".to_vec()));
    assert_eq!(parse(&format!("c=biws,r=abcd,x=1,p={proof}")), Ok(b"c=biws,r=abcd,x=1".to_vec()));
    for (message, fault) in [
        (format!("c=eSws,r=abcd,p={proof}"), ProtocolFault::BindingMismatch),
        (format!("c=,r=abcd,p={proof}"), ProtocolFault::BindingMismatch),
        (format!("r=abcd,p={proof}"), expected('c')),
        (format!("c=biws,r=abc,p={proof}"), ProtocolFault::NonceMismatch),
        (format!("c=biws,r=abcde,p={proof}"), ProtocolFault::NonceMismatch),
        (format!("c=biws,p={proof}"), expected('r')),
        ("c=biws,r=abcd".to_owned(), expected('p')),
        ("c=biws,r=abcd,".to_owned(), ProtocolFault::ExtensionShape),
        ("c=biws,r=abcd,p=".to_owned(), ProtocolFault::Proof),
        (format!("c=biws,r=abcd,p={}", &proof[1..]), ProtocolFault::Proof),
        (format!("c=biws,r=abcd,p={proof}="), ProtocolFault::Proof),
        (format!("c=biws,r=abcd,p={proof},x=1"), ProtocolFault::TrailingBytes),
        (format!("c=biws,r=abcd,p={proof},"), ProtocolFault::TrailingBytes),
        (format!("c=biws,r=abcd,p={proof}\0"), ProtocolFault::ZeroByte),
    ] {
        assert_eq!(parse(&message), Err(fault), "{message}");
    }
    let other = format!("c=eSws,r=a,p={proof}");
    assert!(ClientFinal::parse(other.as_bytes(), "eSws", b"a").is_ok());
}

#[test]
fn server_final_is_a_signature_or_an_error() {
    assert!(matches!(ServerFinal::parse(b"e=other-error"), Ok(ServerFinal::Error)));
    assert!(matches!(ServerFinal::parse(SERVER_FINAL.as_bytes()), Ok(ServerFinal::Signature(_))));
    for (message, fault) in [
        ("", expected('v')),
        ("v=", ProtocolFault::Proof),
        ("v=AAAA", ProtocolFault::Proof),
        ("x=y", expected('v')),
        ("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=,", ProtocolFault::ExtensionShape),
    ] {
        assert_eq!(ServerFinal::parse(message.as_bytes()).err(), Some(fault), "{message}");
    }
}

#[test]
fn our_nonces_are_printable_and_use_all_their_bytes() {
    let zeros = nonce(&mut |out| out.fill(0));
    let ones = nonce(&mut |out| out.fill(0xff));
    assert_eq!((zeros.len(), ones.len()), (24, 24));
    assert_ne!(zeros, ones);
    for nonce in [zeros, ones] {
        assert_eq!(check_nonce(nonce.as_bytes()), Ok(nonce.as_bytes()));
        assert!(!nonce.contains(','));
    }
}

proptest! {
    #[test]
    fn no_bytes_upset_a_reader(message in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = ClientFirst::parse(&message);
        let _ = ServerFirst::parse(&message, b"a");
        let _ = ClientFinal::parse(&message, "biws", b"a");
        let _ = ServerFinal::parse(&message);
    }

    #[test]
    fn no_nearly_right_message_upsets_a_reader(
        message in "([nyp],,)?([nrsicpvem]=[a-z0-9=+/]{0,12},?){0,6}"
    ) {
        if let Ok(read) = ClientFirst::parse(message.as_bytes()) {
            prop_assert!(message.as_bytes().ends_with(read.bare));
        }
        if let Ok(read) = ServerFirst::parse(message.as_bytes(), b"a") {
            prop_assert!(read.nonce.len() > 1 && !read.salt.is_empty() && read.iterations > 0);
        }
        let _ = ClientFinal::parse(message.as_bytes(), "biws", b"a");
        let _ = ServerFinal::parse(message.as_bytes());
    }
}
