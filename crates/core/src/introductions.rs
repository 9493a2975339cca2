//! What became of startup parameters that a server was asked about: clients that ask for the same are told the same, without
//! asking a server again. Values only.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::limits::INTRODUCTIONS_MAX;
use crate::params::{Params, Tracked};
use crate::session::Session;

/// What a client asked for in its startup packet, as far as a server has to say whether it may.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    params: Params,
    session: Session,
}

impl Asked {
    /// Of a startup packet. An `application_name` that every server takes as it is makes no difference.
    pub(crate) fn new(tracked: &Tracked, params: &Params, session: &Session) -> Asked {
        let mut params = params.clone();
        if let Some(position) = tracked.position(b"application_name")
            && params.get(position).is_some_and(is_plain_name)
        {
            params.unset(position);
        }
        Asked { params, session: session.clone() }
    }

    /// It asks for nothing that a server with these parameters does not have.
    pub(crate) fn is_nothing(&self, tracked: &Tracked, has: &Params) -> bool {
        let same = |position: usize| {
            self.params.get(position).is_none_or(|wanted| has.get(position) == Some(wanted))
        };
        self.session.is_plain() && (0..tracked.len()).all(same)
    }
}

/// What a server made of it.
pub(crate) struct Introduced {
    /// The tracked parameters as it reported them.
    pub(crate) params: Arc<Params>,
    /// The others, as it spells them.
    pub(crate) session: Arc<Session>,
    /// ParameterStatus of parameters that are not tracked and changed by it.
    pub(crate) reported: Vec<u8>,
}

/// The outcomes that a pool remembers, the newest at the end.
#[derive(Default)]
pub(crate) struct Introductions {
    known: VecDeque<(Asked, Arc<Introduced>)>,
}

impl Introductions {
    pub(crate) fn get(&self, asked: &Asked) -> Option<Arc<Introduced>> {
        let known = self.known.iter().rev().find(|(known, _)| known == asked);
        known.map(|(_, introduced)| Arc::clone(introduced))
    }

    pub(crate) fn insert(&mut self, asked: Asked, introduced: Arc<Introduced>) {
        if self.known.len() >= INTRODUCTIONS_MAX {
            self.known.pop_front();
        }
        self.known.push_back((asked, introduced));
    }

    /// Servers may spell things in another way from here on.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }
}

/// PostgreSQL cuts names at 63 bytes and replaces what is not printable ASCII.
pub(crate) fn is_plain_name(name: &[u8]) -> bool {
    name.len() < 64 && name.iter().all(|byte| (0x20..0x7f).contains(byte))
}
