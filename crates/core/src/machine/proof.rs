//! How a client proves who it is: which method holds for it, where its secret comes from, and the exchange itself.
//!
//! Until it is proven, nothing that it is told or that it can measure here says whether a user or a database exists.

use std::sync::Arc;

use pgweir_auth::{Guard, GuardEnv, Learned, Method, Verdict};
use pgweir_settings::{AuthType, Database};
use pgweir_wire::frontend::tag;
use pgweir_wire::header::{HEADER_LEN, Header};

use super::{Machine, Step};
use crate::client::{
    Attempt, Authenticating, AwaitingAnswer, ClientState, Greeting, Record, Target, printable,
};
use crate::driver::Driver;
use crate::errors::{Fault, Unproven};
use crate::ids::ClientId;
use crate::inquiry::{Answer, Lookup, Obstacle};
use crate::limits::PASSWORD_BYTES_MAX;
use crate::luggage::Login;

/// What a client has to do to prove itself.
enum Way {
    /// Nothing: whoever it is.
    Free,
    /// An exchange that its stored secret decides.
    Exchange(Method),
}

impl Machine {
    /// Finds out how this client has to prove itself, and begins.
    pub(super) fn begin_proof<D: Driver>(&mut self, d: &mut D, id: ClientId, attempt: Attempt) -> Step {
        let method = match self.way(&attempt.login, attempt.target) {
            Ok(Way::Exchange(method)) => method,
            Ok(Way::Free) => {
                let verdict = Verdict::Proven { send: Vec::new(), learned: Learned::Nothing };
                return self.follow_verdict(d, id, attempt, verdict);
            }
            Err(fault) => return self.refuse_login(d, id, attempt.login, &attempt.counted, &fault),
        };
        let listed = self.rules.users.get(&attempt.login.user).is_some();
        match self.lookup_for(id, &attempt) {
            Some(lookup) if !listed => {
                let asked = (Arc::clone(&lookup.database), Arc::clone(&lookup.auth_user));
                if let Some(client) = self.clients.get_mut(id) {
                    let waiting = AwaitingAnswer { attempt, method, asked };
                    client.state = ClientState::AwaitingAnswer(Box::new(waiting));
                }
                self.look_up(d, lookup);
                Step::Used(0)
            }
            _ => self.begin_exchange(d, id, attempt, method),
        }
    }

    fn way(&self, login: &Login, target: Target) -> Result<Way, Fault> {
        let method = match self.rules.config.main.auth_type {
            AuthType::Any => {
                let forced =
                    || self.rules.config.database(&login.database).is_some_and(|db| db.user.is_some());
                if target == Target::Database && !forced() {
                    return Err(Fault::NoForcedUser);
                }
                return Ok(Way::Free);
            }
            AuthType::Trust => Method::Trust,
            AuthType::Plain => Method::Plain,
            AuthType::Md5 => Method::Md5,
            AuthType::ScramSha256 => Method::ScramSha256,
            other => return Err(Fault::MethodNotBuilt(other.as_str())),
        };
        Ok(Way::Exchange(method))
    }

    /// The question that `auth_query` puts for this user, where it is configured: the database's own settings go before the global
    /// ones. Where there is no database to ask (the console, a database that does not exist, without `auth_dbname`), there is no
    /// question, and the user stays unknown.
    fn lookup_for(&self, id: ClientId, attempt: &Attempt) -> Option<Box<Lookup>> {
        let (config, login) = (&self.rules.config, &attempt.login);
        let database = config.database(&login.database);
        let of_database = |pick: fn(&Database) -> &Option<String>| {
            database.as_deref().and_then(|database| pick(database).as_deref())
        };
        let auth_user = of_database(|database| &database.auth_user).or(config.main.auth_user.as_deref())?;
        let own = (attempt.target == Target::Database).then_some(&*login.database);
        let place =
            of_database(|database| &database.auth_dbname).or(config.main.auth_dbname.as_deref()).or(own)?;
        let query = of_database(|database| &database.auth_query).unwrap_or(&config.main.auth_query);
        if auth_user.is_empty() || query.is_empty() {
            return None;
        }
        Some(Box::new(Lookup {
            from: self.worker,
            client: id,
            database: place.into(),
            auth_user: auth_user.into(),
            query: query.into(),
            user: Arc::clone(&login.user),
        }))
    }

    /// Answers that came in since the last tick: those logins go on.
    pub(super) fn deliver_answers<D: Driver>(&mut self, d: &mut D) -> bool {
        let answers = std::mem::take(&mut self.answers);
        let any = !answers.is_empty();
        for (id, answer) in answers {
            self.answered(d, id, answer);
            self.client_resume(d, id);
        }
        any
    }

    fn answered<D: Driver>(&mut self, d: &mut D, id: ClientId, answer: Answer) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let state = std::mem::replace(&mut client.state, ClientState::Greeting(Greeting::default()));
        let ClientState::AwaitingAnswer(waiting) = state else {
            client.state = state;
            return;
        };
        let AwaitingAnswer { mut attempt, method, asked: _ } = *waiting;
        match answer {
            Answer::User { name, secret } => {
                attempt.login.user = name;
                attempt.record = Record::Found(secret);
            }
            Answer::NoUser => attempt.record = Record::Missing,
            Answer::Nobody(obstacle) => {
                let fault = match obstacle {
                    Obstacle::Misconfigured => Fault::NoForcedUser,
                    Obstacle::Unreachable => Fault::NobodyToAsk,
                    Obstacle::ShuttingDown => Fault::ServerShuttingDown,
                };
                self.refuse_login(d, id, attempt.login, &attempt.counted, &fault);
                return;
            }
        }
        self.begin_exchange(d, id, attempt, method);
    }

    fn begin_exchange<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        attempt: Attempt,
        method: Method,
    ) -> Step {
        let env = GuardEnv {
            mock_seed: &self.shared.mock_seed,
            scram_iterations: self.rules.config.main.scram_iterations,
        };
        let user = &attempt.login.user;
        let secret = match &attempt.record {
            Record::Found(secret) => Some(secret),
            Record::NotAsked => self.rules.users.get(user),
            Record::Missing => None,
        };
        if secret.is_none() {
            let text = format!("no such user: {}", printable(user.as_bytes()));
            self.log_of_login(d, id, &attempt.login, &text);
        }
        let verdict = Guard::begin(method, user, secret, &env, &mut |out: &mut [u8]| d.random(out));
        self.follow_verdict(d, id, attempt, verdict)
    }

    /// A password or SASL message.
    pub(super) fn authenticate<D: Driver>(&mut self, d: &mut D, id: ClientId, bytes: &[u8]) -> Step {
        let header = match Header::peek(bytes) {
            Ok(Some(header)) => header,
            Ok(None) => return Step::Wait,
            Err(error) => return self.refuse_client(d, id, &Fault::Protocol(error.to_string().into())),
        };
        if header.tag == tag::TERMINATE {
            return self.client_left(d, id, "client close request");
        }
        if header.tag != tag::PASSWORD || header.total() > PASSWORD_BYTES_MAX {
            let text = "expected a password message";
            return self.refuse_client(d, id, &Fault::Protocol(text.into()));
        }
        let Some(body) = bytes.get(HEADER_LEN..header.total()) else { return Step::Wait };
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        let state = std::mem::replace(&mut client.state, ClientState::Greeting(Greeting::default()));
        let ClientState::Authenticating(state) = state else {
            client.state = state;
            return Step::Wait;
        };
        let Authenticating { attempt, guard } = *state;
        let verdict = guard.handle(body, &mut |out: &mut [u8]| d.random(out));
        match self.follow_verdict(d, id, attempt, verdict) {
            Step::Used(_) => Step::Used(header.total()),
            other => other,
        }
    }

    fn follow_verdict<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        mut attempt: Attempt,
        verdict: Verdict,
    ) -> Step {
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        match verdict {
            Verdict::Ask(guard, message) => {
                d.send(client.conn, &message);
                client.state = ClientState::Authenticating(Box::new(Authenticating { attempt, guard }));
                Step::Used(0)
            }
            Verdict::Proven { send, learned } => {
                if !send.is_empty() {
                    d.send(client.conn, &send);
                }
                attempt.login.learned = match (learned, &attempt.record) {
                    // Nobody else could tell it again when a server asks for it.
                    (Learned::Nothing, Record::Found(secret)) => Learned::Secret(secret.clone()),
                    (learned, _) => learned,
                };
                self.proven(d, id, attempt)
            }
            Verdict::Refused(refusal) => {
                let unproven = match attempt.record {
                    Record::NotAsked => Unproven::Listed,
                    Record::Found(_) => Unproven::Found,
                    Record::Missing => Unproven::Missing,
                };
                let fault = Fault::Authentication(refusal.text(), unproven);
                self.log_refusal(d, id, &attempt.login, refusal);
                self.refuse_login(d, id, attempt.login, &attempt.counted, &fault)
            }
        }
    }
}
