//! `auth_query`, on the side of the pool that is asked: questions queue for a server as clients do, go through the ledger as
//! hidden statements do, and every one is answered, even if its server fails.
//!
//! Of an unproven client's bytes only the user's name reaches that server, as the value of a parameter: no startup parameter,
//! no option, no text of a statement.

use pgweir_auth::{PlainPassword, Secret};
use pgweir_wire::backend::DataRow;
use pgweir_wire::frontend;
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::{Cx, Effect};
use crate::driver::{Driver, Level};
use crate::ids::ServerId;
use crate::limits::LOOKUP_ROW_BYTES_MAX;
use crate::mail::Mail;
use crate::pool::Pool;
use crate::pool::client::state::printable;
use crate::pool::relay::ledger::{Entry, Kind, Owner, Purpose};
use crate::pool::server::state::{Inquiring, ServerState};
use crate::worker::login::inquiry::{Answer, Lookup, Obstacle};

/// The result of (part of) a row of `auth_query`.
pub(crate) enum Row {
    /// The row has not come as a whole.
    Part,
    /// The row was read; the value is its number of bytes.
    Read(usize),
    /// The row is longer than any that `auth_query` may return.
    TooLong,
}

impl Pool {
    /// A question waits for a server.
    pub(crate) fn queue_lookup<D: Driver>(&mut self, cx: &mut Cx<'_, D>, lookup: Box<Lookup>) {
        if self.known_failure(cx.env, self.state.asks_at).is_some() {
            return answer_lookup(cx, &lookup, Answer::Unavailable(Obstacle::Failing));
        }
        self.state.empty_us = cx.env.now.mono_us;
        self.state.queue.lookups.push_back(lookup);
        self.notice();
    }

    /// Free servers to the questions that wait; before clients, as those could not even log in otherwise.
    pub(crate) fn serve_lookups<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let branch = self.state.asks_at;
        if !self.state.queue.lookups.is_empty() && self.known_failure(cx.env, branch).is_some() {
            return self.refuse_lookups(cx, Obstacle::Unreachable);
        }
        while !self.state.queue.lookups.is_empty() {
            let Some(server) = self.choose_free(cx, branch, None) else {
                return;
            };
            let Some(lookup) = self.state.queue.lookups.pop_front() else { return };
            self.begin_lookup(cx, server, lookup);
        }
    }

    fn begin_lookup<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, lookup: Box<Lookup>) {
        self.make_plain(cx, id);
        let mut tail = Vec::new();
        // No format codes: text. One value. Results as text.
        tail.extend_from_slice(&[0, 0, 0, 1]);
        tail.extend_from_slice(&u32::try_from(lookup.user.len()).unwrap_or(0).to_be_bytes());
        tail.extend_from_slice(lookup.user.as_bytes());
        tail.extend_from_slice(&[0, 0]);
        let out = &mut cx.env.scratch;
        out.clear();
        frontend::encode_parse(out, b"", lookup.query.as_bytes(), b"");
        frontend::encode_bind_head(out, b"", b"", tail.len());
        out.extend_from_slice(&tail);
        frontend::encode_execute(out, b"", 0);
        frontend::encode_sync(out);
        let server = &mut self.servers[id];
        for kind in [Kind::Parse, Kind::Bind, Kind::Execute, Kind::Sync] {
            server.ledger.push(Entry::new(Owner::Hidden(Purpose::AuthQuery), kind));
        }
        server.active_us = cx.env.now.mono_us;
        server.work.used = true;
        cx.driver.send(server.conn, &cx.env.scratch);
        let inquiring = Inquiring { lookup, answer: Answer::NoUser };
        self.set_server_state(id, ServerState::Inquiring(Box::new(inquiring)));
    }

    /// Takes a row that answers a question. The row is read as a whole here: no other code may see it.
    pub(crate) fn lookup_row(&mut self, id: ServerId, bytes: &[u8], header: Header) -> Row {
        if header.total() > LOOKUP_ROW_BYTES_MAX {
            return Row::TooLong;
        }
        let Some(body) = bytes.get(HEADER_LEN..header.total()) else { return Row::Part };
        if let Some(ServerState::Inquiring(inquiring)) =
            self.servers.get_mut(id).map(|server| &mut server.state)
        {
            inquiring.answer = read_row(body).unwrap_or(Answer::Unavailable(Obstacle::Misconfigured));
        }
        Row::Read(header.total())
    }

    /// Notes that the server refused the question with an error.
    pub(crate) fn lookup_refused(&mut self, id: ServerId) {
        if let Some(ServerState::Inquiring(inquiring)) =
            self.servers.get_mut(id).map(|server| &mut server.state)
        {
            inquiring.answer = Answer::Unavailable(Obstacle::Misconfigured);
        }
    }

    /// The answer is complete, and the server at rest.
    pub(crate) fn lookup_ended<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let ServerState::Inquiring(inquiring) = &mut server.state else { return };
        let answer = std::mem::replace(&mut inquiring.answer, Answer::NoUser);
        let lookup = inquiring.lookup.clone();
        let mode = self.state.policy.mode;
        if matches!(answer, Answer::Unavailable(_)) {
            let line = format!(
                "{} auth_query gave no answer for user {}: it must give one row of a name and a secret",
                self.server_log_name(&self.servers[id]),
                printable(lookup.user.as_bytes())
            );
            cx.log(Level::Error, &line);
        }
        answer_lookup(cx, &lookup, answer);
        self.release_server(cx, id, mode);
    }
}

/// Takes the answer to the client that asked, wherever that is.
pub(crate) fn answer_lookup<D: Driver>(cx: &mut Cx<'_, D>, lookup: &Lookup, answer: Answer) {
    if lookup.from == cx.env.worker {
        cx.env.want(Effect::Answered(lookup.client, answer));
    } else {
        cx.driver.mail(lookup.from, Mail::Answered { client: lookup.client, answer });
    }
}

/// Name and secret. A secret that is NULL, or no text, matches nothing; a row of another form is no answer.
fn read_row(body: &[u8]) -> Option<Answer> {
    let row = DataRow::parse(body).ok()?;
    let mut columns = row.columns();
    let (name, secret) = (columns.next()??, columns.next()?);
    if row.len() != 2 {
        return None;
    }
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
    let secret = secret.and_then(|secret| std::str::from_utf8(secret).ok());
    let secret = secret.map_or_else(|| Secret::Plain(PlainPassword::new("")), Secret::parse);
    Some(Answer::User { name: name.into(), secret })
}
