//! Readers of the HTTP server, and their rights: anonymous readers, console users by session or by basic
//! authentication, and sign-in.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, ORIGIN};
use pgweir_auth::{Guard, GuardEnv, Method, Secret, UserList, Verdict};
use pgweir_core::mail::Rules;
use pgweir_settings::{Anonymous, Main};

use super::failures::Failures;
use super::limits::{SESSION_AGE_MAX, SESSION_IDLE, SESSIONS_MAX};
use super::reply::Refusal;

/// The cookie's name.
const COOKIE_NAME: &str = "pgweir_session";

/// The number of credentials whose check is remembered: Prometheus sends the same with every scrape, and a
/// SCRAM secret costs milliseconds to check.
const VERIFIED_MAX: usize = 16;

/// The rights of a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Anonymous,
    Stats,
    Admin,
}

/// The reader that sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reader {
    pub(super) role: Role,
    pub(super) user: Option<String>,
    /// The token that changing requests of this session must carry; `None` without a session.
    pub(super) csrf: Option<String>,
    anonymous: Anonymous,
}

impl Reader {
    /// Returns whether names, addresses and SQL are shown.
    pub(super) fn sees_names(&self) -> bool {
        self.role != Role::Anonymous || self.anonymous == Anonymous::All
    }

    /// Returns whether anything is shown at all.
    pub(super) fn sees_anything(&self) -> bool {
        self.role != Role::Anonymous || self.anonymous != Anonymous::Nothing
    }
}

struct Session {
    token: String,
    csrf: String,
    user: String,
    /// The secret that the password was checked against. If the user gets another one, the session ends.
    secret: Secret,
    began: Instant,
    used: Instant,
}

/// Credentials that were correct for a list of users.
struct Verified {
    users: Arc<UserList>,
    digests: VecDeque<[u8; 32]>,
}

/// The sessions, and the failed logins.
pub(super) struct Authenticator {
    sessions: RefCell<VecDeque<Session>>,
    failures: Failures,
    verified: RefCell<Option<Verified>>,
    random: SystemRandom,
    seed: [u8; 32],
}

impl Authenticator {
    pub(super) fn new() -> Authenticator {
        let random = SystemRandom::new();
        let mut seed = [0; 32];
        // Without randomness no session can be made either (see `token`); the seed only keeps digests apart.
        let _ = random.fill(&mut seed);
        Authenticator {
            sessions: RefCell::default(),
            failures: Failures::default(),
            verified: RefCell::new(None),
            random,
            seed,
        }
    }

    /// Returns the reader that sends these headers from this address. Wrong credentials are refused; they do
    /// not make an anonymous reader.
    pub(super) fn reader(&self, headers: &HeaderMap, from: IpAddr, rules: &Rules) -> Result<Reader, Refusal> {
        let main = &rules.config.main;
        let anonymous =
            Reader { role: Role::Anonymous, user: None, csrf: None, anonymous: main.http_anonymous };
        if let Some(value) = headers.get(AUTHORIZATION) {
            let (user, password) = value.to_str().ok().and_then(basic).ok_or(Refusal::WrongPassword)?;
            let role = self.check(&user, &password, from, rules)?;
            return Ok(Reader { role, user: Some(user), ..anonymous });
        }
        let Some(token) = cookie(headers) else { return Ok(anonymous) };
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|session| {
            session.used.elapsed() < SESSION_IDLE
                && session.began.elapsed() < SESSION_AGE_MAX
                && rules.users.get(&session.user).is_some_and(|secret| secret.is_same(&session.secret))
        });
        let found = sessions.iter_mut().find(|session| is_same(&session.token, &token));
        let Some(session) = found else { return Ok(anonymous) };
        // The user's rights may have been removed since the sign-in.
        let Some(role) = role(main, &session.user) else { return Ok(anonymous) };
        session.used = Instant::now();
        let (user, csrf) = (Some(session.user.clone()), Some(session.csrf.clone()));
        Ok(Reader { role, user, csrf, ..anonymous })
    }

    /// Begins a session. Returns the reader, and the cookie's value.
    pub(super) fn sign_in(
        &self,
        user: &str,
        password: &str,
        from: IpAddr,
        rules: &Rules,
    ) -> Result<(Reader, String), Refusal> {
        let role = self.check(user, password, from, rules)?;
        let secret = rules.users.get(user).cloned().ok_or(Refusal::WrongPassword)?;
        let (token, csrf) = (self.token()?, self.token()?);
        let now = Instant::now();
        let session = Session {
            token: token.clone(),
            csrf: csrf.clone(),
            user: user.to_owned(),
            secret,
            began: now,
            used: now,
        };
        let mut sessions = self.sessions.borrow_mut();
        // The oldest session ends; sessions are in the order in which they began.
        if sessions.len() >= SESSIONS_MAX {
            sessions.pop_front();
        }
        sessions.push_back(session);
        let anonymous = rules.config.main.http_anonymous;
        Ok((Reader { role, user: Some(user.to_owned()), csrf: Some(csrf), anonymous }, token))
    }

    /// Ends the session that these headers belong to.
    pub(super) fn sign_out(&self, headers: &HeaderMap) {
        if let Some(token) = cookie(headers) {
            self.sessions.borrow_mut().retain(|session| !is_same(&session.token, &token));
        }
    }

    fn token(&self) -> Result<String, Refusal> {
        let mut bytes = [0; 32];
        self.random.fill(&mut bytes).map_err(|_| Refusal::Unavailable("no random numbers"))?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the role of a console user with this password. A user without rights on the console gets the
    /// same answer as one with a wrong password.
    fn check(&self, user: &str, password: &str, from: IpAddr, rules: &Rules) -> Result<Role, Refusal> {
        let digest = self.digest(user, password);
        let role = role(&rules.config.main, user);
        if let Some(role) = role.filter(|_| self.is_verified(&digest, &rules.users)) {
            // A user that was let in before is not slowed down by other clients' wrong guesses.
            return Ok(role);
        }
        // The wait comes before the password is checked: checking costs the time that guessing must not get.
        if let Some(wait) = self.failures.wait(from) {
            return Err(Refusal::SlowDown(wait.as_secs() + 1));
        }
        let fits = self.password_fits(user, password, rules);
        if let Some(role) = role.filter(|_| fits) {
            self.remember(digest, &rules.users);
            return Ok(role);
        }
        self.failures.note(from);
        Err(Refusal::WrongPassword)
    }

    fn password_fits(&self, user: &str, password: &str, rules: &Rules) -> bool {
        if password.contains('\0') {
            return false;
        }
        let scram_iterations = rules.config.main.scram_iterations;
        let env = GuardEnv { mock_seed: &self.seed, scram_iterations, end_point: None };
        let mut random = |out: &mut [u8]| {
            // The result does not matter: comparing a cleartext password needs no randomness.
            let _ = self.random.fill(out);
        };
        let asked = Guard::begin(Method::Plain, user, rules.users.get(user), &env, &mut random);
        let Verdict::Ask(guard, _) = asked else { return false };
        let mut message = password.as_bytes().to_vec();
        message.push(0);
        matches!(guard.handle(&message, &mut random), Verdict::Proven { .. })
    }

    fn digest(&self, user: &str, password: &str) -> [u8; 32] {
        let mut text = self.seed.to_vec();
        text.extend_from_slice(&(user.len() as u64).to_be_bytes());
        text.extend_from_slice(user.as_bytes());
        text.extend_from_slice(password.as_bytes());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, &text).as_ref());
        bytes
    }

    fn is_verified(&self, digest: &[u8; 32], users: &Arc<UserList>) -> bool {
        self.verified
            .borrow()
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(&known.users, users) && known.digests.contains(digest))
    }

    fn remember(&self, digest: [u8; 32], users: &Arc<UserList>) {
        let mut verified = self.verified.borrow_mut();
        let known = match verified.take() {
            Some(known) if Arc::ptr_eq(&known.users, users) => known,
            _ => Verified { users: Arc::clone(users), digests: VecDeque::new() },
        };
        let known = verified.insert(known);
        if known.digests.len() >= VERIFIED_MAX {
            known.digests.pop_front();
        }
        known.digests.push_back(digest);
    }
}

/// Checks that a changing request comes from a page of ours, or from a program that is no page.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, rest)| rest);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    if authority.is_some() && authority == host {
        Ok(())
    } else {
        Err(Refusal::Forbidden("The request comes from another site's page."))
    }
}

/// Checks the token of a changing request. In a session it has to be the session's; with basic authentication
/// any value will do, which another site's page cannot send.
pub(super) fn check_csrf(headers: &HeaderMap, reader: &Reader) -> Result<(), Refusal> {
    let sent = headers.get("x-csrf-token").and_then(|token| token.to_str().ok());
    let fits = match (&reader.csrf, sent) {
        (Some(csrf), Some(sent)) => is_same(csrf, sent),
        (None, Some(_)) => true,
        (_, None) => false,
    };
    if fits { Ok(()) } else { Err(Refusal::Forbidden("The header X-CSRF-Token is missing or wrong.")) }
}

/// Returns the cookie of a session.
pub(super) fn session_cookie(token: &str, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    format!("{COOKIE_NAME}={token}; Path=/; HttpOnly; SameSite=Strict{secure}")
}

/// Returns the cookie that removes the session's.
pub(super) fn no_session_cookie() -> String {
    format!("{COOKIE_NAME}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
}

/// Returns whether any user can sign in.
pub(super) fn may_any_user_sign_in(rules: &Rules) -> bool {
    let main = &rules.config.main;
    main.admin_users.iter().chain(&main.stats_users).any(|user| rules.users.get(user).is_some())
}

fn role(main: &Main, user: &str) -> Option<Role> {
    let among = |names: &[String]| names.iter().any(|name| name == user);
    if among(&main.admin_users) {
        Some(Role::Admin)
    } else if among(&main.stats_users) {
        Some(Role::Stats)
    } else {
        None
    }
}

fn basic(value: &str) -> Option<(String, String)> {
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

fn cookie(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('=').map(str::to_owned))
}

/// Compares secrets in a time that does not reveal where they differ.
fn is_same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use pgweir_settings::Config;

    use super::super::limits::FAILURES_MAX;
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn rules(anonymous: &str) -> Rules {
        let text = format!(
            "[databases]\nshop = host=127.0.0.1\n[pgbouncer]\nadmin_users = root\nstats_users = ann\n\
             http_anonymous = {anonymous}\n"
        );
        let config = Config::load("pgweir.ini", &mut |_: &str| Ok(text.clone())).expect("good");
        let users = "\"root\" \"secret\"\n\"ann\" \"wonder\"\n\"bob\" \"builder\"\n";
        Rules {
            config: Arc::new(config),
            users: Arc::new(UserList::parse(users).0),
            access: Arc::default(),
            server_tls_epoch: 0,
        }
    }

    fn headers(pairs: &[(&'static str, String)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
            .collect()
    }

    fn basic_header(text: &str) -> HeaderMap {
        headers(&[("authorization", format!("Basic {}", STANDARD.encode(text)))])
    }

    #[test]
    fn only_console_users_with_their_password_come_in() {
        let (authenticator, rules) = (Authenticator::new(), rules("numbers"));
        let role =
            |text: &str| authenticator.reader(&basic_header(text), HERE, &rules).map(|reader| reader.role);
        assert_eq!(role("root:secret"), Ok(Role::Admin));
        assert_eq!(role("root:secret"), Ok(Role::Admin), "remembered");
        assert_eq!(role("ann:wonder"), Ok(Role::Stats));
        for wrong in ["root:wonder", "bob:builder", "nobody:", "ann:wonder\0", "root"] {
            assert_eq!(role(wrong), Err(Refusal::WrongPassword), "{wrong}");
        }
        let other = headers(&[("authorization", "Bearer x".to_owned())]);
        assert_eq!(
            authenticator.reader(&other, HERE, &rules).map(|reader| reader.role),
            Err(Refusal::WrongPassword)
        );
    }

    #[test]
    fn guessing_is_slowed_down() {
        let (authenticator, rules) = (Authenticator::new(), rules("numbers"));
        for _ in 0..FAILURES_MAX {
            assert_eq!(
                authenticator.sign_in("root", "guess", HERE, &rules).map(|_| ()),
                Err(Refusal::WrongPassword)
            );
        }
        let refused = authenticator.sign_in("root", "secret", HERE, &rules).map(|_| ());
        assert!(matches!(refused, Err(Refusal::SlowDown(1..=61))), "{refused:?}");
        let elsewhere = "192.0.2.7".parse().expect("an address");
        assert!(authenticator.sign_in("root", "secret", elsewhere, &rules).is_ok(), "another address");

        let authenticator = Authenticator::new();
        authenticator.sign_in("ann", "wonder", HERE, &rules).expect("right");
        for _ in 0..FAILURES_MAX {
            assert!(authenticator.sign_in("root", "guess", HERE, &rules).is_err());
        }
        assert!(authenticator.sign_in("ann", "wonder", HERE, &rules).is_ok(), "known from before");
    }

    #[test]
    fn a_session_lives_until_it_is_ended_or_its_user_loses_the_rights() {
        let (authenticator, rules_now) = (Authenticator::new(), rules("none"));
        let (reader, token) = authenticator.sign_in("ann", "wonder", HERE, &rules_now).expect("right");
        assert!(reader.sees_names());
        let sent = headers(&[("cookie", format!("a=b; pgweir_session={token}"))]);
        assert_eq!(authenticator.reader(&sent, HERE, &rules_now), Ok(reader.clone()));
        let mut config = (*rules_now.config).clone();
        config.main.stats_users.clear();
        let fired = Rules { config: Arc::new(config), ..rules_now.clone() };
        let anonymous = authenticator.reader(&sent, HERE, &fired).expect("the request counts as anonymous");
        assert!(anonymous.role == Role::Anonymous && !anonymous.sees_anything());
        authenticator.sign_out(&sent);
        assert_eq!(
            authenticator.reader(&sent, HERE, &rules_now).map(|reader| reader.role),
            Ok(Role::Anonymous)
        );
    }

    #[test]
    fn another_password_ends_the_sessions_of_its_user() {
        let (authenticator, before) = (Authenticator::new(), rules("none"));
        let (_, anns) = authenticator.sign_in("ann", "wonder", HERE, &before).expect("right");
        let (_, roots) = authenticator.sign_in("root", "secret", HERE, &before).expect("right");
        let role = |token: &str, rules: &Rules| {
            let sent = headers(&[("cookie", format!("pgweir_session={token}"))]);
            authenticator.reader(&sent, HERE, rules).map(|reader| reader.role)
        };
        let with = |users: &str| Rules { users: Arc::new(UserList::parse(users).0), ..before.clone() };
        let same = with("\"root\" \"secret\"\n\"ann\" \"wonder\"\n");
        assert_eq!(role(&anns, &same), Ok(Role::Stats), "read again");
        let changed = with("\"root\" \"secret\"\n\"ann\" \"land\"\n");
        assert_eq!(role(&anns, &changed), Ok(Role::Anonymous));
        assert_eq!(role(&roots, &changed), Ok(Role::Admin));
        assert_eq!(role(&anns, &before), Ok(Role::Anonymous), "over is over");
        assert_eq!(role(&roots, &with("\"ann\" \"land\"\n")), Ok(Role::Anonymous), "no such user any more");
    }

    #[test]
    fn changing_requests_carry_the_token_and_come_from_our_own_pages() {
        let (authenticator, rules) = (Authenticator::new(), rules("numbers"));
        let (reader, _) = authenticator.sign_in("root", "secret", HERE, &rules).expect("right");
        let csrf = reader.csrf.clone().expect("a session has one");
        assert_eq!(check_csrf(&headers(&[("x-csrf-token", csrf)]), &reader), Ok(()));
        assert!(check_csrf(&headers(&[("x-csrf-token", "1".to_owned())]), &reader).is_err());
        assert!(check_csrf(&HeaderMap::new(), &reader).is_err());
        let origin = |origin: &str| {
            check_origin(&headers(&[("host", "127.0.0.1:80".to_owned()), ("origin", origin.to_owned())]))
        };
        assert_eq!(origin("http://127.0.0.1:80"), Ok(()));
        assert!(origin("http://evil.example").is_err() && origin("null").is_err());
    }

    #[test]
    fn anonymous_readers_see_what_the_setting_says() {
        for (word, anything, names) in [("none", false, false), ("numbers", true, false), ("all", true, true)]
        {
            let reader = Authenticator::new()
                .reader(&HeaderMap::new(), HERE, &rules(word))
                .expect("an anonymous reader");
            assert_eq!((reader.sees_anything(), reader.sees_names()), (anything, names));
        }
    }
}
