//! The two seams for answers that need no server: a known answer may be given at once, and a listener (a *tap*) may read the answers of
//! servers. Nothing in this crate uses them yet; a query cache will. A worker without [`KnownAnswers`] pays one branch.

use pgweir_wire::backend::tag;
use pgweir_wire::header::Header;

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::Client;
use crate::pool::relay::group::Group;
use crate::pool::session::content::Session;
use crate::pool::session::params::Params;
use crate::pool::{Pool, PoolState, Step};

/// A group of messages that a client asks for outside of a transaction, and that certainly only reads.
pub struct Asked<'a> {
    /// The database as clients name it.
    pub database: &'a str,
    /// The user that servers run it as.
    pub user: &'a str,
    /// The messages of the group, up to the end of a Query or Sync.
    pub messages: &'a [u8],
    /// The client's tracked parameters. An answer depends on them.
    pub params: &'a Params,
    /// The rest of what the client's session holds. An answer depends on it.
    pub session: &'a Session,
}

/// Answers that need no server, and listeners to those that servers give.
pub trait KnownAnswers: Send {
    /// Returns the whole answer to a group, up to and with ReadyForQuery (idle), if it is known.
    fn answer(&mut self, asked: &Asked<'_>) -> Option<Vec<u8>>;

    /// Asks whether the answer to a group that goes to a server is wanted. Returns the number under which [`KnownAnswers::answered`] gets
    /// the answer, and the largest size of the answer in bytes.
    fn tap(&mut self, asked: &Asked<'_>) -> Option<(u64, usize)>;

    /// Takes an answer that was wanted, whole and in order, as the client got it: up to and with ReadyForQuery. The answer may be an error,
    /// and hold messages that servers send unasked (NoticeResponse, NotificationResponse, ParameterStatus). An answer that is too long, or
    /// whose server is lost meanwhile, never comes.
    fn answered(&mut self, number: u64, answer: &[u8]);
}

/// A listener to the answer of one group.
pub(crate) struct Tap {
    client: ClientId,
    number: u64,
    bytes_max: usize,
    bytes: Vec<u8>,
    /// The offset in `bytes` at which the next header begins.
    next: usize,
}

/// The state of a tap after it has heard further bytes.
#[derive(PartialEq, Eq, Debug)]
enum Heard {
    More,
    Whole,
    TooLong,
}

impl Tap {
    /// Whether the tap listens to the answer of this client.
    pub(crate) fn is_of(&self, client: ClientId) -> bool {
        self.client == client
    }

    /// Takes further bytes of the answer. Bytes after its end belong to the next answer.
    fn hear(&mut self, bytes: &[u8]) -> Heard {
        self.bytes.extend_from_slice(bytes);
        while let Ok(Some(header)) = Header::peek(self.bytes.get(self.next..).unwrap_or_default()) {
            let end = self.next + header.total();
            if header.tag != tag::READY {
                self.next = end;
                continue;
            }
            if end > self.bytes.len() {
                break;
            }
            self.bytes.truncate(end);
            return if end <= self.bytes_max { Heard::Whole } else { Heard::TooLong };
        }
        if self.bytes.len() > self.bytes_max { Heard::TooLong } else { Heard::More }
    }
}

impl Pool {
    /// Answers a group instead of a server, at the moment *request*. Returns `None` if a server must answer it.
    #[inline]
    pub(crate) fn answer_known<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        group: Option<&Group>,
        bytes: &[u8],
    ) -> Option<Step> {
        cx.env.answers.as_ref()?;
        let group = group.filter(|group| group.certainly_reads())?;
        let client = self.clients.get(id)?;
        let asked = asked(&self.state, client, group, bytes)?;
        let answer = cx.env.answers.as_mut()?.answer(&asked)?;
        cx.driver.send(client.conn, &answer);
        self.state.numbers.stats.queries += 1;
        Some(Step::Used(group.len as usize))
    }

    /// Begins to listen to the answer of a linked client's group, if the answer is wanted. The caller has sent the whole group, or the
    /// group's turn has come.
    #[inline]
    pub(crate) fn begin_tap(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        group: &Group,
        bytes: Option<&[u8]>,
    ) {
        if env.answers.is_some() && group.certainly_reads() {
            self.ask_for_tap(env, id, server_id, group, bytes);
        }
    }

    #[cold]
    fn ask_for_tap(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        group: &Group,
        bytes: Option<&[u8]>,
    ) {
        let Some(answers) = env.answers.as_mut() else { return };
        let (Some(client), Some(server)) = (self.clients.get(id), self.servers.get_mut(server_id)) else {
            return;
        };
        let asked = asked(&self.state, client, group, bytes.unwrap_or(&client.inbox));
        if let Some((number, bytes_max)) = asked.and_then(|asked| answers.tap(&asked)) {
            server.incoming.taps.retain(|tap| tap.client != id && self.clients.contains_key(tap.client));
            server.incoming.taps.push(Tap { client: id, number, bytes_max, bytes: Vec::new(), next: 0 });
        }
    }

    /// Passes bytes that a server sends to this client to the client's tap, if there is one.
    #[cold]
    pub(crate) fn tap(&mut self, env: &mut Env, id: ServerId, client: ClientId, bytes: &[u8]) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let Some(place) = server.incoming.taps.iter().position(|tap| tap.client == client) else { return };
        let heard = server.incoming.taps[place].hear(bytes);
        if heard == Heard::More {
            return;
        }
        let tap = server.incoming.taps.remove(place);
        if let (Heard::Whole, Some(answers)) = (heard, env.answers.as_mut()) {
            answers.answered(tap.number, &tap.bytes);
        }
    }
}

fn asked<'a>(pool: &'a PoolState, client: &'a Client, group: &Group, bytes: &'a [u8]) -> Option<Asked<'a>> {
    Some(Asked {
        database: &pool.database,
        user: &pool.user,
        messages: bytes.get(..group.len as usize)?,
        params: &client.account.params,
        session: &client.account.session,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I";

    fn tap(bytes_max: usize) -> Tap {
        Tap { client: ClientId::default(), number: 1, bytes_max, bytes: Vec::new(), next: 0 }
    }

    #[test]
    fn an_answer_ends_with_its_ready_for_query() {
        for piece in 1..ANSWER.len() {
            let mut tap = tap(100);
            let bytes = [ANSWER, b"C\0\0"].concat();
            let whole = bytes.chunks(piece).any(|piece| tap.hear(piece) == Heard::Whole);
            assert!(whole && tap.bytes == ANSWER, "{piece}");
        }
    }

    #[test]
    fn what_is_too_long_is_not_heard() {
        assert_eq!(tap(ANSWER.len() - 1).hear(ANSWER), Heard::TooLong);
        assert_eq!(tap(8).hear(&ANSWER[..10]), Heard::TooLong);
        assert_eq!(tap(ANSWER.len()).hear(ANSWER), Heard::Whole);
    }
}
