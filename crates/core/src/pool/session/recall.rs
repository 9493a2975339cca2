//! The session after a transaction that is committed and set only settings that the same SET statements were found to set before: its
//! server need not be asked.
//!
//! The method rests on a fact: a SET statement of the simple protocol runs once; if neither it nor any later statement failed or was rolled back,
//! its value is the session's. PostgreSQL was asked for the meaning of the text; it is not guessed.

use std::sync::Arc;

use crate::context::Env;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::server::state::Probe;
use crate::pool::session::known_sets::PlainSet;
use crate::pool::session::pins::Reasons;

/// The result of an attempt to know a session without asking its server.
pub(crate) enum Recalled {
    /// The session is the one that client and server had before.
    Same,
    /// The session is known. The client keeps the server for these reasons, if there are any.
    Kept(Reasons),
    /// The session is not known as a whole. The probe asks for an effect that is worth knowing the next time.
    Unknown(Option<Probe>),
}

impl Pool {
    /// Returns the session of a server on which these texts took effect, in this order, if they set all these names.
    pub(crate) fn recall(
        &mut self,
        env: &Env,
        id: ServerId,
        client_id: ClientId,
        names: &[Box<[u8]>],
        mut sets: Vec<PlainSet>,
    ) -> Recalled {
        let server = &self.servers[id];
        let pool = &mut self.state;
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            let Some(at) = sets.iter().rposition(|set| set.name == *name) else {
                return Recalled::Unknown(None);
            };
            let text = &sets[at].text;
            let Some(value) = pool.known.known_sets.get(text) else {
                let worth = pool.known.known_sets.note(text);
                return Recalled::Unknown(worth.then(|| Probe { set: sets.swap_remove(at), value: None }));
            };
            found.push((name, Box::<[u8]>::from(value)));
        }
        pool.numbers.continuity.remembered += 1;
        let same = found.iter().all(|(name, value)| server.session.get(name) == Some(value));
        let own = self.clients.get(client_id).map(|client| &client.account);
        if same && own.is_some_and(|account| Arc::ptr_eq(&account.session, &server.session)) {
            return Recalled::Same;
        }
        let mut session = (*server.session).clone();
        for (name, value) in &found {
            self.learn_value(env, &mut session, name, Some(value));
        }
        Recalled::Kept(self.keep_session(id, client_id, session, Reasons::NONE))
    }
}
