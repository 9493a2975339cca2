//! `auth_type` `hba` and `cert`: which proof each client is asked for, and what the control plane is asked.

use std::sync::Arc;

use pgweir_core::driver::{TlsInfo, WorkerId};
use pgweir_core::ids::UnpooledId;
use pgweir_core::inquiry::{About, Answer, Checker, Obstacle};
use pgweir_core::mail::{Mail, Question};

use crate::rig::{End, Rig, be, fe};

const TLS: &str = "client_tls_sslmode = allow\nclient_tls_key_file = k\nclient_tls_cert_file = c";

fn rig(hba: &str, ident: &str) -> Rig {
    let mut rig = Rig::new("");
    rig.reload_access(TLS, hba, ident);
    rig
}

fn knock_unix(rig: &mut Rig, uid: u32, user: &str) -> End {
    let client = rig.accept_unix(uid);
    rig.send(client, &fe::startup(&[("user", user), ("database", "app")]));
    client
}

/// A client with a certificate that was verified, of these names.
fn knock_tls(rig: &mut Rig, names: &[&str], user: &str) -> End {
    let client = rig.accept();
    rig.send(client, &fe::ssl_request());
    rig.raw(client);
    let peer_names = names.iter().map(|name| (*name).to_owned()).collect();
    rig.secure(client, TlsInfo { description: "TLSv1.3/X".to_owned(), peer_names, end_point: None });
    rig.send(client, &fe::startup(&[("user", user), ("database", "app")]));
    client
}

/// What the control plane was asked, and for which client.
fn question(rig: &mut Rig) -> (UnpooledId, About) {
    let mut asked = rig.asked();
    let Some(Question::Login(inquiry)) = asked.pop() else { panic!("{asked:?}") };
    assert!(asked.is_empty() && inquiry.from == WorkerId(0));
    (inquiry.client, inquiry.about)
}

fn is_in(rig: &mut Rig, client: End) -> bool {
    if rig.new_dials() > 0 {
        let server = rig.dialed();
        rig.greet(server);
    }
    rig.gets(client).last().is_some_and(|last| last == "Ready I")
}

#[test]
fn an_unknown_user_does_not_come_in_by_certificate_or_peer() {
    let mut rig = rig("hostssl all all all cert\nlocal all all peer\n", "");
    let stranger = knock_tls(&mut rig, &["stranger"], "stranger");
    assert_eq!(rig.gets(stranger), ["FATAL 28000 no such user"]);
    let stranger = knock_unix(&mut rig, 1000, "stranger");
    let (client, _) = question(&mut rig);
    rig.mail(0, Mail::Answered { client, answer: Answer::OsUser(Some("stranger".into())) });
    assert_eq!(rig.gets(stranger), ["FATAL 28000 no such user"]);
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn each_rule_asks_in_its_own_way() {
    let hba = "host all alice 10.0.0.0/8 scram-sha-256\nhost all bob all md5\nhost all carol all password\n\
               host all admin all reject\nlocal all all trust\n";
    let mut rig = rig(hba, "");
    for (user, asked) in [
        ("alice", "Auth 10"),
        ("bob", "Auth 5"),
        ("carol", "Auth 3"),
        ("admin", "FATAL 28000 login rejected"),
        ("nobody", "FATAL 28000 no authentication method is found"),
    ] {
        let client = rig.knock(user, "app");
        assert_eq!(rig.gets(client), [asked], "{user}");
    }
    let local = knock_unix(&mut rig, 1000, "alice");
    assert!(is_in(&mut rig, local));
    rig.reload_access("", "", "");
    let client = rig.knock("alice", "app");
    assert_eq!(rig.gets(client), ["FATAL 28000 no authentication method is found"], "without rules nobody");
}

#[test]
fn rules_tell_encrypted_connections_apart() {
    let mut rig = rig("hostssl all all all trust\nhostnossl all all all reject\n", "");
    let plain = rig.knock("alice", "app");
    assert_eq!(rig.gets(plain), ["FATAL 28000 login rejected"]);
    let encrypted = knock_tls(&mut rig, &[], "alice");
    assert!(is_in(&mut rig, encrypted));
}

#[test]
fn the_operating_system_says_who_a_peer_is() {
    let mut rig = rig("local all all peer\nhost all all all peer\n", "");
    let client = knock_unix(&mut rig, 1000, "alice");
    let (id, about) = question(&mut rig);
    assert!(matches!(about, About::OsUser { uid: 1000 }));
    rig.mail(0, Mail::Answered { client: id, answer: Answer::OsUser(Some("alice".into())) });
    assert!(is_in(&mut rig, client));
    for answer in [Answer::OsUser(Some("bob".into())), Answer::OsUser(None)] {
        let client = knock_unix(&mut rig, 1000, "alice");
        let (id, _) = question(&mut rig);
        rig.mail(0, Mail::Answered { client: id, answer });
        assert_eq!(rig.gets(client), ["FATAL 28000 unix socket login rejected"]);
    }
    let remote = rig.knock("alice", "app");
    assert_eq!(rig.gets(remote), ["FATAL 28000 unix socket login rejected"]);
}

#[test]
fn an_answer_to_another_question_lets_no_client_in() {
    let wrong = [
        Answer::Password(true),
        Answer::User { name: "alice".into(), secret: pgweir_auth::Secret::parse("x") },
        Answer::NoUser,
        Answer::Unavailable(Obstacle::Misconfigured),
        Answer::Unavailable(Obstacle::Unreachable),
    ];
    for answer in wrong {
        let mut rig = rig("local all all peer\n", "");
        let client = knock_unix(&mut rig, 1000, "alice");
        let (id, _) = question(&mut rig);
        rig.mail(0, Mail::Answered { client: id, answer });
        assert!(rig.is_closed(client) && rig.new_dials() == 0);
        assert_eq!(rig.shared.clients.taken(), 0);
    }
}

#[test]
fn an_answer_that_comes_too_late_is_for_no_client() {
    let mut rig = rig("local all all peer\n", "");
    let gone = knock_unix(&mut rig, 1000, "alice");
    let (id, _) = question(&mut rig);
    rig.eof(gone);
    rig.mail(0, Mail::Answered { client: id, answer: Answer::OsUser(Some("alice".into())) });
    assert_eq!((rig.new_dials(), rig.shared.clients.taken()), (0, 0));
    let slow = knock_unix(&mut rig, 1000, "alice");
    let (id, _) = question(&mut rig);
    rig.pass_s(61);
    assert_eq!(rig.gets(slow), ["FATAL 08P01 client_login_timeout"]);
    rig.mail(0, Mail::Answered { client: id, answer: Answer::OsUser(Some("alice".into())) });
    assert_eq!(rig.shared.clients.taken(), 0);
}

#[test]
fn a_map_says_which_peer_may_be_which_user() {
    let mut rig =
        rig("local all all peer map=m\nhostssl all all all cert map=m\n", "m root alice\nm CN bob\n");
    for (uid_name, user, good) in
        [("root", "alice", true), ("root", "root", false), ("alice", "alice", false)]
    {
        let client = knock_unix(&mut rig, 0, user);
        let (id, _) = question(&mut rig);
        rig.mail(0, Mail::Answered { client: id, answer: Answer::OsUser(Some(uid_name.into())) });
        assert_eq!(is_in(&mut rig, client), good, "{uid_name} {user}");
    }
    let named = knock_tls(&mut rig, &["CN"], "bob");
    assert!(is_in(&mut rig, named));
    let other = knock_tls(&mut rig, &["CN"], "alice");
    assert_eq!(rig.gets(other), ["FATAL 28000 certificate authentication failed"]);
}

#[test]
fn a_certificate_has_to_have_the_users_name() {
    let mut rig = Rig::new(&format!("auth_type = cert\n{TLS}"));
    let named = knock_tls(&mut rig, &["other", "alice"], "alice");
    assert!(is_in(&mut rig, named));
    for names in [&["bob"][..], &[], &["*"], &["ALICE"]] {
        let other = knock_tls(&mut rig, names, "alice");
        assert_eq!(rig.gets(other), ["FATAL 28000 certificate authentication failed"], "{names:?}");
    }
    let plain = rig.knock("alice", "app");
    assert_eq!(rig.gets(plain), ["FATAL 28000 certificate authentication failed"]);
}

#[test]
fn passwords_that_others_know() {
    let mut rig = rig("host all all all pam\nlocal all all ldap ldapserver=h ldapprefix=x\n", "");
    let client = rig.knock("zoe", "app");
    assert_eq!(rig.gets(client), ["Auth 3"]);
    rig.send(client, &fe::password("right"));
    let (id, about) = question(&mut rig);
    let About::Password { user, password, address, by } = about else { panic!("{about:?}") };
    assert_eq!((&*user, password.as_bytes(), address.is_some()), ("zoe", &b"right"[..], true));
    assert!(matches!(by, Checker::Pam));
    rig.mail(0, Mail::Answered { client: id, answer: Answer::Password(true) });
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::auth_cleartext());
    assert_eq!(rig.raw(server), fe::password("right"), "servers are told it, too");
    let wrong = rig.knock("zoe", "app");
    rig.gets(wrong);
    rig.send(wrong, &fe::password("wrong"));
    let (id, _) = question(&mut rig);
    rig.mail(0, Mail::Answered { client: id, answer: Answer::Password(false) });
    assert_eq!(rig.gets(wrong), ["FATAL 28P01 PAM authentication failed"]);
    for answer in [Answer::Password(false), Answer::OsUser(Some(Arc::from("zoe")))] {
        let client = knock_unix(&mut rig, 1000, "zoe");
        rig.gets(client);
        rig.send(client, &fe::password("wrong"));
        let (id, about) = question(&mut rig);
        assert!(matches!(about, About::Password { by: Checker::Ldap(_), .. }));
        rig.mail(0, Mail::Answered { client: id, answer });
        assert!(rig.gets(client)[0].starts_with("FATAL ") && rig.is_closed(client));
    }
    let empty = rig.knock("zoe", "app");
    rig.send(empty, &fe::password(""));
    assert_eq!(
        rig.gets(empty).last().map(String::as_str),
        Some("FATAL 28P01 empty password returned by client")
    );
    assert!(rig.asked().is_empty(), "many directories take an empty password for no login at all");
    assert!(!rig.logged("right") && !rig.logged("wrong"));
}

#[test]
fn a_client_that_came_by_certificate_is_looked_up_for_its_servers() {
    let mut rig = Rig::new("");
    let main = format!("{TLS}\nauth_user = asker\nauth_query = select $1");
    rig.reload_access(&main, "hostssl all all all cert\n", "");
    let answer = |rows: Vec<u8>| {
        [be::parse_complete(), be::bind_complete(), rows, be::complete("SELECT"), be::ready('I')].concat()
    };
    let client = knock_tls(&mut rig, &["zoe"], "zoe");
    let server = rig.dialed();
    rig.greet(server);
    rig.send(server, &answer(be::row_values(&[Some(b"zoe"), Some(b"zoes")])));
    let own = rig.dialed();
    assert!(rig.connect(own).contains("user zoe"));
    rig.send(own, &be::auth_cleartext());
    assert_eq!(rig.raw(own), fe::password("zoes"));
    let unknown = knock_tls(&mut rig, &["yan"], "yan");
    rig.send(server, &answer(Vec::new()));
    assert_eq!(rig.gets(unknown), ["FATAL 28000 no such user"]);
    rig.gets_nothing(client);
}
