//! TLS towards servers: the certificates that each mode accepts.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use pgweir_core::driver::{Closed, Endpoint, TlsInfo, TlsRole};
use pgweir_settings::SslMode;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::certs::{Authority, Identity, self_signed, self_signed_until, towards_servers};
use super::toy::{Plan, Seen, World, World0, exchange, pattern, with_timeouts};
use crate::tls::{TlsConfigs, TlsSetupError};

const HOST: &str = "db.example";

/// A TLS server that echoes; it ends with the test process.
fn tls_upstream(config: Arc<ServerConfig>) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let config = Arc::clone(&config);
            thread::spawn(move || {
                let session = ServerConnection::new(config).unwrap();
                let mut stream = StreamOwned::new(session, with_timeouts(stream.unwrap()));
                let mut room = vec![0; 20_000];
                while let Ok(count @ 1..) = stream.read(&mut room) {
                    stream.write_all(&room[..count]).unwrap();
                    stream.flush().unwrap();
                }
            });
        }
    });
    Endpoint::Tcp { host: "127.0.0.1".into(), port }
}

fn attempt(server: Arc<ServerConfig>, tls: TlsConfigs, host: &str) -> Result<TlsInfo, Closed> {
    let plan = Plan {
        upstream: Some(tls_upstream(server)),
        tls_connect: Some(TlsRole::Connect { host: host.into() }),
        ..Plan::default()
    };
    let world = World::with(World0 { plan, tls, ..World0::default() });
    let client = world.connect();
    let result = world.await_seen(|seen| match seen {
        Seen::Established(info) => Some(Ok(info)),
        Seen::Closed(why) => Some(Err(why)),
        _ => None,
    });
    if result.is_ok() {
        let bytes = pattern(300_000);
        assert!(exchange(&client, &bytes) == bytes);
    }
    result
}

fn outcome(identity: &Identity, mode: SslMode, ca: Option<&str>, host: &str) -> Result<Vec<String>, String> {
    let tls = towards_servers(mode, ca, None).unwrap();
    match attempt(identity.server(), tls, host) {
        Ok(info) => Ok(info.peer_names),
        Err(Closed::Tls(text)) => Err(text),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn modes_without_verification_take_any_certificate() {
    let stranger = Authority::new("nobody knows").sign("elsewhere", &["elsewhere.example"]);
    for mode in [SslMode::Allow, SslMode::Prefer, SslMode::Require] {
        assert_eq!(outcome(&stranger, mode, None, HOST), Ok(Vec::new()));
        assert_eq!(outcome(&stranger, mode, None, "under_score and space"), Ok(Vec::new()));
    }
}

#[test]
fn verify_ca_looks_at_the_chain_and_verify_full_at_the_name_too() {
    let (ours, foreign) = (Authority::new("ours"), Authority::new("foreign"));
    let right = ours.sign("x", &[HOST]);
    let wrong = ours.sign(HOST, &["other.example"]);
    let stranger = foreign.sign(HOST, &[HOST]);
    let ca = Some(ours.cert.as_str());
    let names = |list: &[&str]| Ok(list.iter().map(ToString::to_string).collect());
    for mode in [SslMode::VerifyCa, SslMode::VerifyFull] {
        assert_eq!(outcome(&right, mode, ca, HOST), names(&["x", HOST]));
        let refused = outcome(&stranger, mode, ca, HOST);
        assert_eq!(
            refused,
            Err("handshake failed: certificate verify failed (invalid peer certificate: UnknownIssuer)"
                .to_owned())
        );
    }
    assert_eq!(outcome(&wrong, SslMode::VerifyCa, ca, HOST), names(&[HOST, "other.example"]));
    let refused = outcome(&wrong, SslMode::VerifyFull, ca, HOST).unwrap_err();
    assert!(refused.contains("not valid for name"), "{refused}");
}

#[test]
fn the_common_name_counts_where_there_is_no_other() {
    let ours = Authority::new("ours");
    let ca = Some(ours.cert.as_str());
    let full = SslMode::VerifyFull;
    assert!(outcome(&ours.sign(HOST, &[]), full, ca, HOST).is_ok());
    assert!(outcome(&ours.sign("*.db.example", &[]), full, ca, "a.db.example").is_ok());
    assert!(outcome(&ours.sign("127.0.0.1", &[]), full, ca, "127.0.0.1").is_ok());
    assert!(outcome(&ours.sign("y", &["127.0.0.1"]), full, ca, "127.0.0.1").is_ok());
    assert!(outcome(&ours.sign("else", &[]), full, ca, HOST).is_err());
    assert!(outcome(&ours.sign(HOST, &["127.0.0.1"]), full, ca, HOST).is_err());
}

#[test]
fn a_self_signed_certificate_that_is_listed_itself() {
    let own = self_signed(HOST, &[]);
    let ca = Some(own.cert.as_str());
    for mode in [SslMode::VerifyCa, SslMode::VerifyFull] {
        assert_eq!(outcome(&own, mode, ca, HOST), Ok(vec![HOST.to_owned()]));
        assert!(outcome(&self_signed(HOST, &[HOST]), mode, ca, HOST).is_err());
    }
    assert!(outcome(&own, SslMode::VerifyCa, ca, "other.example").is_ok());
    assert!(outcome(&own, SslMode::VerifyFull, ca, "other.example").is_err());
    let old = self_signed_until(HOST, &[HOST], 2001);
    let refused = outcome(&old, SslMode::VerifyCa, Some(&old.cert), HOST);
    assert_eq!(
        refused,
        Err("handshake failed: certificate verify failed (invalid peer certificate: Expired)".to_owned())
    );
}

#[test]
fn a_server_may_ask_for_our_certificate() {
    let authority = Authority::new("ours");
    let server = authority.sign("server", &[HOST]);
    let own = authority.sign("pooler", &[]);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.root()).unwrap();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider)).build().unwrap();
    let (chain, key) = server.der();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let with = towards_servers(SslMode::Require, None, Some(&own)).unwrap();
    assert!(attempt(Arc::clone(&config), with, HOST).is_ok());
    let without = towards_servers(SslMode::Require, None, None).unwrap();
    // In TLS 1.3 the client is done before the server has looked: the refusal comes after.
    let plan = Plan {
        upstream: Some(tls_upstream(config)),
        tls_connect: Some(TlsRole::Connect { host: HOST.into() }),
        ..Plan::default()
    };
    let world = World::with(World0 { plan, tls: without, ..World0::default() });
    let _client = world.connect();
    match world.await_closed() {
        Closed::Tls(text) => assert!(text.contains("CertificateRequired"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_name_that_no_certificate_has_is_refused_in_verify_full() {
    let ours = Authority::new("ours");
    let refused =
        outcome(&ours.sign("x", &[HOST]), SslMode::VerifyFull, Some(&ours.cert), "no such name").unwrap_err();
    assert_eq!(refused, "\"no such name\" is no host name that a certificate could have (verify-full)");
}

fn problem(result: Result<TlsConfigs, TlsSetupError>) -> String {
    match result {
        Ok(_) => panic!("it was built"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn what_is_missing_is_said() {
    let own = self_signed("x", &[]);
    assert_eq!(
        problem(towards_servers(SslMode::VerifyFull, None, None)),
        "server_tls_ca_file: server_tls_sslmode=verify-full needs the authorities' certificates to verify against"
    );
    assert_eq!(
        problem(super::certs::towards_clients(SslMode::VerifyCa, &own, None)),
        "client_tls_ca_file: client_tls_sslmode=verify-ca needs the authorities' certificates to verify against"
    );
    assert_eq!(
        problem(towards_servers(SslMode::VerifyCa, Some("nothing"), None)),
        "server_tls_ca_file: the file contains no certificate (PEM)"
    );
    let damaged = own.cert.replace("CERTIFICATE-----\n", "CERTIFICATE-----\n!!!\n");
    assert!(problem(towards_servers(SslMode::VerifyCa, Some(&damaged), None)).contains("is damaged"));
    let encrypted = Identity {
        cert: own.cert.clone(),
        key: "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n".to_owned(),
    };
    assert_eq!(
        problem(super::certs::towards_clients(SslMode::Require, &encrypted, None)),
        "client_tls_key_file: the key is protected by a passphrase; store it without one"
    );
    let mixed = Identity { cert: own.cert.clone(), key: self_signed("y", &[]).key };
    let text = problem(super::certs::towards_clients(SslMode::Require, &mixed, None));
    assert!(text.starts_with("client_tls_cert_file: "), "{text}");
}
