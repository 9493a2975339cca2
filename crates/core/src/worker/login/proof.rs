//! How a client proves its user: which method holds for it, where its secret comes from, and the exchange itself.
//!
//! Until the user is proven, no answer and no time that the client can measure here says whether a user or a database
//! exists.

use std::sync::Arc;

use pgweir_auth::{Arrival, Guard, GuardEnv, HbaMethod, Learned, Verdict, ask_for_password};
use pgweir_settings::{AuthType, Database};
use pgweir_wire::backend::encode_auth_ok;
use pgweir_wire::frontend::tag;
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::client_handoff::{Login, Replication};
use crate::context::{Cx, Env};
use crate::driver::{Driver, Peer};
use crate::errors::{Fault, Unproven};
use crate::ids::UnpooledId;
use crate::limits::PASSWORD_BYTES_MAX;
use crate::mail::Question;
use crate::pool::Step;
use crate::pool::client::state::printable;
use crate::worker::Worker;
use crate::worker::login::exchange::{Exchange, Input, Next, Way, unavailable};
use crate::worker::login::inquiry::{About, Answer, Inquiry, Lookup};
use crate::worker::unpooled::{
    Asked, Authenticating, AwaitingAnswer, Greeting, LoginAttempt, Proven, Record, Target, Then,
    UnpooledState,
};

/// The database that PostgreSQL's tools connect to if they are told none.
const MAINTENANCE_DATABASE: &str = "postgres";

impl Worker {
    /// Finds out how this client must prove its user, and begins.
    pub(crate) fn begin_proof<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        attempt: LoginAttempt,
    ) -> Step {
        match self.way(cx.env, id, &attempt) {
            Err(fault) => self.refuse_attempt(cx, id, attempt, &fault),
            Ok(Way::Free) => {
                let verdict = Verdict::Proven { send: Vec::new(), learned: Learned::Nothing };
                self.follow(cx, id, attempt, Next::Decided(verdict))
            }
            Ok(Way::Secret(method)) => self.go_on(cx, id, attempt, Then::Exchange(method)),
            Ok(Way::Certificate(map)) => {
                let names = self.certificate_names(id);
                if names.iter().any(|name| self.is_mapped(cx.env, map.as_deref(), name, &attempt.login.user))
                {
                    return self.go_on(cx, id, attempt, Then::Admit);
                }
                self.refuse_attempt(
                    cx,
                    id,
                    attempt,
                    &Fault::NotAllowedIn("certificate authentication failed"),
                )
            }
            Ok(Way::OsUser(map)) => {
                let peer = self.unpooled.get(id).map(|client| client.origin.peer.clone());
                let Some(Peer::Unix { uid, .. }) = peer else {
                    return self.refuse_attempt(cx, id, attempt, &Fault::NotAllowedIn(PEER_REJECTED));
                };
                self.follow(cx, id, attempt, Next::Ask(About::OsUser { uid }, Exchange::OsUser(map)))
            }
            Ok(Way::Service(checker)) => {
                let next = Next::Say(ask_for_password(), Exchange::Password(checker));
                self.follow(cx, id, attempt, next)
            }
        }
    }

    fn way(&self, env: &Env, id: UnpooledId, attempt: &LoginAttempt) -> Result<Way, Fault> {
        let method = match env.rules.config.main.auth_type {
            AuthType::Any => {
                let database = env.rules.config.database(&attempt.login.database);
                if attempt.target == Target::Database && database.is_some_and(|db| db.user.is_none()) {
                    return Err(Fault::NoForcedUser);
                }
                return Ok(Way::Free);
            }
            AuthType::Hba => return self.way_by_rule(env, id, &attempt.login),
            AuthType::Trust => HbaMethod::Trust,
            AuthType::Plain => HbaMethod::Password,
            AuthType::Md5 => HbaMethod::Md5,
            AuthType::ScramSha256 => HbaMethod::ScramSha256,
            AuthType::Cert => HbaMethod::Cert,
            AuthType::Pam => HbaMethod::Pam,
            AuthType::Ldap => HbaMethod::Ldap(env.rules.access.ldap.clone().ok_or(Fault::NoForcedUser)?),
        };
        Way::of(&method, None)
    }

    fn way_by_rule(&self, env: &Env, id: UnpooledId, login: &Login) -> Result<Way, Fault> {
        let none = Fault::NotAllowedIn("no authentication method is found");
        let Some(client) = self.unpooled.get(id) else { return Err(none) };
        let way = match &client.origin.peer {
            Peer::Unix { .. } => pgweir_auth::Way::Local,
            Peer::Tcp { remote, .. } => {
                pgweir_auth::Way::Tcp { address: remote.ip(), tls: client.origin.tls.is_some() }
            }
        };
        let physical = login.replication == Replication::Physical;
        let arrival = Arrival { way, database: &login.database, user: &login.user, physical };
        let rule = env.rules.access.hba.rule_for(&arrival).ok_or(none)?;
        Way::of(&rule.method, rule.map.as_deref())
    }

    /// Names of the certificate that the client has shown and that was verified.
    fn certificate_names(&self, id: UnpooledId) -> Vec<String> {
        let tls = self.unpooled.get(id).and_then(|client| client.origin.tls.as_deref());
        tls.map(|tls| tls.peer_names.clone()).unwrap_or_default()
    }

    /// A user with this outside name may be this user here: of the same name, or as the map says.
    fn is_mapped(&self, env: &Env, map: Option<&str>, outside: &str, user: &str) -> bool {
        match map {
            Some(map) => env.rules.access.ident.allows(map, outside, user),
            None => outside == user,
        }
    }

    /// The next step is known, but the user's secret may not be: then it is fetched first.
    fn go_on<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        attempt: LoginAttempt,
        then: Then,
    ) -> Step {
        let listed = cx.env.rules.users.get(&attempt.login.user).is_some();
        match self.lookup_for(cx.env, id, &attempt) {
            Some(lookup) if !listed && cx.env.shared.switches(&lookup.database).disabled => {
                let fault = Fault::AuthDatabaseDisabled(lookup.database.to_string());
                self.refuse_attempt(cx, id, attempt, &fault)
            }
            Some(lookup) if !listed => {
                let since_us = cx.env.now.mono_us;
                let pool = (Arc::clone(&lookup.database), Arc::clone(&lookup.auth_user));
                self.await_answer(id, attempt, Asked::Secret { pool, since_us, then });
                self.look_up(cx, lookup);
                Step::Used(0)
            }
            _ => self.begin_exchange(cx, id, attempt, then),
        }
    }

    fn await_answer(&mut self, id: UnpooledId, attempt: LoginAttempt, asked: Asked) {
        if let Some(client) = self.unpooled.get_mut(id) {
            client.state = UnpooledState::AwaitingAnswer(Box::new(AwaitingAnswer { attempt, asked }));
        }
    }

    fn refuse_attempt<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        attempt: LoginAttempt,
        fault: &Fault,
    ) -> Step {
        self.refuse_login(cx, id, attempt.login, fault)
    }

    /// The question that `auth_query` puts for this user, if it is configured: the database's own settings take precedence over
    /// the global ones. If there is no database to ask (the console, a database that does not exist, without `auth_dbname`),
    /// there is no question, and the user stays unknown.
    fn lookup_for(&self, env: &Env, id: UnpooledId, attempt: &LoginAttempt) -> Option<Box<Lookup>> {
        let (config, login) = (&env.rules.config, &attempt.login);
        let database = config.database(&login.database);
        let of_database = |pick: fn(&Database) -> &Option<String>| {
            database.as_deref().and_then(|database| pick(database).as_deref())
        };
        let auth_user = of_database(|database| &database.auth_user).or(config.main.auth_user.as_deref())?;
        // libpq names a database that does not exist if it asks for physical replication (`pg_basebackup`): PostgreSQL needs none.
        let names_none =
            login.replication == Replication::Physical && !config.databases.contains_key(&*login.database);
        let own = if names_none { MAINTENANCE_DATABASE } else { &*login.database };
        let own = (attempt.target == Target::Database).then_some(own);
        let place =
            of_database(|database| &database.auth_dbname).or(config.main.auth_dbname.as_deref()).or(own)?;
        let query = of_database(|database| &database.auth_query).unwrap_or(&config.main.auth_query);
        if auth_user.is_empty() || query.is_empty() {
            return None;
        }
        Some(Box::new(Lookup {
            from: env.worker,
            client: id,
            database: place.into(),
            auth_user: auth_user.into(),
            query: query.into(),
            user: Arc::clone(&login.user),
        }))
    }

    pub(crate) fn answered<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, answer: Answer) {
        let Some(client) = self.unpooled.get_mut(id) else { return };
        let state = std::mem::replace(&mut client.state, UnpooledState::Greeting(Greeting::default()));
        let UnpooledState::AwaitingAnswer(waiting) = state else {
            client.state = state;
            return;
        };
        let AwaitingAnswer { mut attempt, asked } = *waiting;
        match (asked, answer) {
            (Asked::Secret { then, .. }, Answer::User { name, secret }) => {
                attempt.login.user = name;
                attempt.record = Record::Found(secret);
                self.begin_exchange(cx, id, attempt, then);
            }
            (Asked::Secret { then, .. }, Answer::NoUser) => {
                attempt.record = Record::Missing;
                self.begin_exchange(cx, id, attempt, then);
            }
            (Asked::Secret { .. }, answer) => {
                self.refuse_attempt(cx, id, attempt, &unavailable(&answer));
            }
            (Asked::Exchange(exchange), answer) => {
                let next = self.step(cx, id, &attempt, exchange, Input::Answer(answer));
                self.follow(cx, id, attempt, next);
            }
        }
    }

    /// A step of an exchange.
    fn step<D: Driver>(
        &self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        attempt: &LoginAttempt,
        exchange: Exchange,
        input: Input<'_>,
    ) -> Next {
        let address = self.unpooled.get(id).and_then(|client| client.origin.peer.ip());
        exchange.handle(input, &attempt.login.user, address, &mut |out| cx.driver.random(out))
    }

    fn begin_exchange<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        attempt: LoginAttempt,
        then: Then,
    ) -> Step {
        let user = &attempt.login.user;
        let is_known = match &attempt.record {
            Record::Found(_) => true,
            Record::NotAsked => cx.env.rules.users.get(user).is_some(),
            Record::Missing => false,
        };
        if !is_known {
            let text = format!("no such user: {}", printable(user.as_bytes()));
            self.log_of_login(cx, id, &attempt.login, &text);
        }
        let tls = self.unpooled.get(id).and_then(|client| client.origin.tls.as_deref());
        let env = GuardEnv {
            mock_seed: &cx.env.shared.mock_seed,
            scram_iterations: cx.env.rules.config.main.scram_iterations,
            end_point: tls.and_then(|tls| tls.end_point.as_deref()),
        };
        let secret = match &attempt.record {
            Record::Found(secret) => Some(secret),
            Record::NotAsked => cx.env.rules.users.get(user),
            Record::Missing => None,
        };
        let verdict = match then {
            Then::Exchange(method) => {
                Guard::begin(method, user, secret, &env, &mut |out: &mut [u8]| cx.driver.random(out))
            }
            // As with trust, only known users come in by certificate or by the operating system's word.
            Then::Admit if secret.is_none() => {
                return self.refuse_attempt(cx, id, attempt, &Fault::NotAllowedIn("no such user"));
            }
            Then::Admit => Verdict::Proven { send: Vec::new(), learned: Learned::Nothing },
        };
        self.follow(cx, id, attempt, Next::of(verdict))
    }

    /// A password or SASL message.
    pub(crate) fn authenticate<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        bytes: &[u8],
    ) -> Step {
        let header = match Header::peek(bytes) {
            Ok(Some(header)) => header,
            Ok(None) => return Step::Wait,
            Err(error) => return self.refuse_unpooled(cx, id, &Fault::Protocol(error.to_string().into())),
        };
        if header.tag == tag::TERMINATE {
            return self.unpooled_left(cx, id, "client close request");
        }
        if header.tag != tag::PASSWORD {
            return self.refuse_unpooled(cx, id, &Fault::Protocol("expected a password message".into()));
        }
        if header.total() - HEADER_LEN > PASSWORD_BYTES_MAX {
            return self.refuse_unpooled(cx, id, &Fault::Protocol("malformed password message".into()));
        }
        let Some(body) = bytes.get(HEADER_LEN..header.total()) else { return Step::Wait };
        let Some(client) = self.unpooled.get_mut(id) else { return Step::Gone };
        let state = std::mem::replace(&mut client.state, UnpooledState::Greeting(Greeting::default()));
        let UnpooledState::Authenticating(state) = state else {
            client.state = state;
            return Step::Wait;
        };
        let Authenticating { attempt, exchange } = *state;
        let next = self.step(cx, id, &attempt, exchange, Input::Message(body));
        let step = self.follow(cx, id, attempt, next);
        match step {
            Step::Used(_) => Step::Used(header.total()),
            other => other,
        }
    }

    fn follow<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        attempt: LoginAttempt,
        next: Next,
    ) -> Step {
        let Some(client) = self.unpooled.get_mut(id) else { return Step::Gone };
        match next {
            Next::Say(message, exchange) => {
                cx.driver.send(client.conn, &message);
                client.state = UnpooledState::Authenticating(Box::new(Authenticating { attempt, exchange }));
                Step::Used(0)
            }
            Next::Ask(about, exchange) => {
                self.await_answer(id, attempt, Asked::Exchange(exchange));
                let inquiry = Inquiry { from: cx.env.worker, client: id, about };
                cx.driver.ask(Question::Login(Box::new(inquiry)));
                Step::Used(0)
            }
            Next::Named(name, map) => {
                let user = &attempt.login.user;
                if name.is_some_and(|name| self.is_mapped(cx.env, map.as_deref(), &name, user)) {
                    self.go_on(cx, id, attempt, Then::Admit)
                } else {
                    self.refuse_attempt(cx, id, attempt, &Fault::NotAllowedIn(PEER_REJECTED))
                }
            }
            Next::Decided(verdict) => self.decided(cx, id, attempt, verdict),
            Next::Failed(fault) => self.refuse_attempt(cx, id, attempt, &fault),
        }
    }

    fn decided<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        mut attempt: LoginAttempt,
        verdict: Verdict,
    ) -> Step {
        let Some(client) = self.unpooled.get_mut(id) else { return Step::Gone };
        match verdict {
            Verdict::Ask(guard, message) => {
                self.follow(cx, id, attempt, Next::Say(message, Exchange::Guard(guard)))
            }
            Verdict::Proven { send, learned } => {
                if !send.is_empty() {
                    cx.driver.send(client.conn, &send);
                }
                attempt.login.learned = match (learned, &attempt.record) {
                    // No other source could tell it again when a server asks for it.
                    (Learned::Nothing, Record::Found(secret)) if secret.opens_servers() => {
                        Learned::Secret(secret.clone())
                    }
                    (learned, _) => learned,
                };
                self.proven(cx, id, attempt)
            }
            Verdict::Refused(refusal) => {
                let unproven = match attempt.record {
                    Record::NotAsked => Unproven::Listed,
                    Record::Found(_) => Unproven::Found,
                    Record::Missing => Unproven::Missing,
                };
                self.log_refusal(cx, id, &attempt.login, refusal);
                self.refuse_attempt(cx, id, attempt, &Fault::Authentication(refusal.text(), unproven))
            }
        }
    }

    /// The client has proven its user; from now on it may be told which objects exist.
    pub(crate) fn proven<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        attempt: LoginAttempt,
    ) -> Step {
        let LoginAttempt { login, mut counted, target, record: _ } = attempt;
        if target == Target::Console {
            return match self.admit_to_console(cx.env, &login, &mut counted) {
                Ok(rights) => self.open_console(cx, id, &login, rights, counted),
                Err(fault) => self.refuse_proven(cx, id, login, &fault),
            };
        }
        let since_us = self.unpooled.get(id).map_or(u64::MAX, |client| client.origin.since.mono_us);
        if let Err(fault) = self.admit(cx.env, &login, target, since_us, &mut counted) {
            return self.refuse_proven(cx, id, login, &fault);
        }
        let to = cx.env.shared.owner(&login.database, &self.pool_user(cx.env, &login));
        if let Some(client) = self.unpooled.get_mut(id) {
            client.state = UnpooledState::Proven(Box::new(Proven { login, counted, to }));
        }
        // It stays here until its bytes that were not looked at yet are in its inbox.
        Step::Used(0)
    }

    /// The client has proven its user, and is refused for another reason. PostgreSQL says AuthenticationOk before; health checks
    /// that end there (HAProxy's `pgsql-check`) see that the server works.
    fn refuse_proven<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        login: Login,
        fault: &Fault,
    ) -> Step {
        if let Some(client) = self.unpooled.get(id) {
            cx.env.scratch.clear();
            encode_auth_ok(&mut cx.env.scratch);
            cx.driver.send(client.conn, &cx.env.scratch);
        }
        self.refuse_login(cx, id, login, fault)
    }
}

/// The error of a peer login that is rejected, in PgBouncer's words.
const PEER_REJECTED: &str = "unix socket login rejected";
