use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> (Hba, Vec<String>) {
    Hba::parse(text, &mut |path| match path {
        "names" => Ok("alice, bob\n# nobody\n\"all\"\n".to_owned()),
        "nested" => Ok("@names\n".to_owned()),
        _ => Err("no such file".to_owned()),
    })
}

fn good(text: &str) -> Hba {
    let (hba, warnings) = parse(text);
    assert_eq!(warnings, Vec::<String>::new());
    hba
}

fn tcp(address: &str, tls: bool) -> Way {
    Way::Tcp { address: address.parse().expect("an address"), tls }
}

/// The line that decides.
fn line(hba: &Hba, way: Way, database: &str, user: &str) -> Option<u32> {
    hba.rule_for(&Arrival { way, database, user, physical: false }).map(|rule| rule.line)
}

#[test]
fn the_first_match_wins() {
    let hba = good(
        "local all all peer\nhostssl a,b alice 10.0.0.0/8 cert map=m\nhostnossl all all 10.1.0.0 255.255.0.0 reject\n\
         host all bob all md5 # comment\nhost sameuser all ::1/128 trust\n",
    );
    assert_eq!(line(&hba, Way::Local, "x", "y"), Some(1));
    assert_eq!(line(&hba, tcp("10.9.9.9", true), "b", "alice"), Some(2));
    assert_eq!(line(&hba, tcp("10.9.9.9", false), "b", "alice"), None);
    assert_eq!(line(&hba, tcp("11.9.9.9", true), "b", "alice"), None);
    assert_eq!(line(&hba, tcp("10.1.9.9", false), "b", "bob"), Some(3));
    assert_eq!(line(&hba, tcp("10.1.9.9", true), "b", "bob"), Some(4));
    assert_eq!(line(&hba, tcp("::1", true), "carol", "carol"), Some(5));
    assert_eq!(line(&hba, tcp("::1", true), "carol", "dora"), None);
    assert_eq!(line(&hba, tcp("::2", true), "carol", "carol"), None);
    assert_eq!(hba.rules()[1].map.as_deref(), Some("m"));
    assert_eq!(hba.rules()[1].method, HbaMethod::Cert);
}

#[test]
fn an_address_of_four_bytes_in_sixteen_is_one_of_four() {
    let hba = good("host all all 10.0.0.0/8 trust\nhost all all ::/0 md5\n");
    assert_eq!(line(&hba, tcp("::ffff:10.1.1.1", false), "a", "u"), Some(1));
    assert_eq!(line(&hba, tcp("::ffff:11.1.1.1", false), "a", "u"), None, "no IPv6 rule is about it");
    assert_eq!(line(&hba, tcp("fe80::1", false), "a", "u"), Some(2));
    let every = good("host all all 0.0.0.0/0 trust\n");
    assert_eq!(line(&every, tcp("1.2.3.4", false), "a", "u"), Some(1));
    assert_eq!(line(&every, tcp("fe80::1", false), "a", "u"), None);
}

#[test]
fn physical_replication_has_its_own_word() {
    let hba = good("host all all all trust\nhost replication repl all md5\n");
    let arrival = Arrival { way: tcp("10.0.0.1", false), database: "app", user: "repl", physical: true };
    assert_eq!(hba.rule_for(&arrival).map(|rule| rule.line), Some(2));
    assert_eq!(line(&hba, tcp("10.0.0.1", false), "replication", "repl"), Some(1));
    let only = good("host replication all all trust\n");
    assert_eq!(line(&only, tcp("10.0.0.1", false), "replication", "u"), None, "a database of that name");
    assert_eq!(
        line(&good("host \"replication\" all all trust\n"), tcp("10.0.0.1", false), "replication", "u"),
        Some(1)
    );
}

#[test]
fn quoted_keywords_are_names() {
    let hba = good("local \"all\" \"all\" trust\n");
    assert_eq!(line(&hba, Way::Local, "app", "alice"), None);
    assert_eq!(line(&hba, Way::Local, "all", "all"), Some(1));
}

#[test]
fn names_may_come_from_files() {
    let hba = good("local @names @names,carol trust\n");
    assert_eq!(line(&hba, Way::Local, "alice", "carol"), Some(1));
    assert_eq!(line(&hba, Way::Local, "carol", "carol"), None);
    assert_eq!(line(&hba, Way::Local, "all", "bob"), Some(1), "quoted there too");
    for text in ["local @missing all trust", "local @nested all trust"] {
        assert_eq!(parse(text).1.len(), 1, "{text}");
    }
}

#[test]
fn methods_and_their_options() {
    for (word, method) in [
        ("trust", HbaMethod::Trust),
        ("reject", HbaMethod::Reject),
        ("password", HbaMethod::Password),
        ("md5", HbaMethod::Md5),
        ("scram-sha-256", HbaMethod::ScramSha256),
        ("peer", HbaMethod::Peer),
        ("pam", HbaMethod::Pam),
    ] {
        assert_eq!(good(&format!("local all all {word}\n")).rules()[0].method, method);
    }
    let ldap = |text: &str| HbaMethod::Ldap(Arc::new(LdapOptions::parse(text).expect("good options")));
    let options = "ldapserver=\"a b\" ldapbasedn=dc=a,dc=b ldapbindpasswd=x#y,z";
    let hba = good(&format!("host all all all ldap {options}\n"));
    assert_eq!(hba.rules()[0].method, ldap(options));
    let options = good("host ldap ldap all ldap ldapserver=h ldapprefix=x\n");
    assert_eq!(line(&options, tcp("10.0.0.1", false), "ldap", "ldap"), Some(1));
    assert_eq!(options.rules()[0].method, ldap("ldapserver=h ldapprefix=x"));
}

#[test]
fn what_is_not_understood_is_skipped_and_told() {
    for bad in [
        "locals all all trust",
        "local all",
        "local all all",
        "local all all gss",
        "local all all trust extra",
        "local all all ldap ldapserver=h",
        "local all all peer map=",
        "local samerole all trust",
        "local all +staff trust",
        "local all /^x trust",
        "host all all trust",
        "host all all 10.0.0.0/33 trust",
        "host all all 10.0.0.0 trust",
        "host all all 10.0.0.0 255.0.255.0 trust",
        "host all all 10.0.0.0 ff:: trust",
        "host all all samenet trust",
        "host all all db.example.org trust",
        "host all all 10.0.0.0/8,11.0.0.0/8 trust",
        "local \"all all trust",
    ] {
        let (hba, warnings) = parse(&format!("{bad}\nlocal all all reject\n"));
        assert_eq!(hba.rules().len(), 1, "{bad}");
        assert!(warnings[0].starts_with("could not parse hba config line 1: "), "{bad}: {warnings:?}");
    }
    let (hba, warnings) = parse("host all all 10.1.2.3/8 trust\n");
    assert_eq!((hba.rules().len(), warnings.len()), (1, 1), "bits beyond the mask are only told");
    assert_eq!(line(&hba, tcp("10.9.9.9", false), "a", "u"), Some(1));
}

#[test]
fn no_rule_matches_without_rules() {
    assert_eq!(line(&Hba::default(), Way::Local, "a", "u"), None);
    assert_eq!(line(&good("\n# only comments\n"), Way::Local, "a", "u"), None);
}

proptest! {
    #[test]
    fn any_text_is_read(text in "((local|host|hostssl) |all |[\"#,/@+a0-9:. \n]|trust\n|ldap |map=){0,60}") {
        let (hba, _) = parse(&text);
        prop_assert!(hba.rules().len() <= text.lines().count());
    }

    #[test]
    fn a_network_has_what_begins_like_it(address in any::<u32>(), other in any::<u32>(), length in 0_u32..=32) {
        let text = format!("host all all {}/{length} trust", std::net::Ipv4Addr::from(address));
        let (hba, _) = parse(&text);
        let same = (address ^ other).leading_zeros() >= length;
        let way = Way::Tcp { address: IpAddr::V4(other.into()), tls: false };
        prop_assert_eq!(line(&hba, way, "a", "u").is_some(), same);
    }
}
