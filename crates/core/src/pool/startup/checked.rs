//! The outcomes of startup parameters that a server was asked about: clients that ask for the same are told the same, without asking a
//! server again. Values only.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::limits::STARTUP_CHECKS_MAX;
use crate::pool::session::content::{IDENTITY, Session};
use crate::pool::session::params::{Params, Tracked};

/// The part of a startup packet about which a server must decide.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    params: Params,
    session: Session,
}

impl Asked {
    /// Returns this part of a startup packet. An `application_name` that every server takes unchanged makes no difference.
    pub(crate) fn new(tracked: &Tracked, params: &Params, session: &Session) -> Asked {
        let mut params = params.clone();
        if let Some(position) = tracked.position(b"application_name")
            && params.get(position).is_some_and(is_plain_name)
        {
            params.unset(position);
        }
        Asked { params, session: session.clone() }
    }

    /// Returns the parameters that are not tracked, as the client asked for them.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the parameters of a server that was opened in this way: those at its login if the startup packet asked for them, else the
    /// present ones.
    pub(crate) fn params_of(&self, at_login: &Params, now: &Params) -> Params {
        let mut params = now.clone();
        for (position, value) in self.params.known() {
            params.set(position, at_login.get(position).unwrap_or(value));
        }
        params
    }

    /// Whether the client asks for nothing that a server with these parameters does not have.
    pub(crate) fn is_nothing(&self, tracked: &Tracked, has: &Params) -> bool {
        let same = |position: usize| {
            self.params.get(position).is_none_or(|wanted| has.get(position) == Some(wanted))
        };
        self.session.is_plain() && (0..tracked.len()).all(same)
    }
}

/// The parameters that a server was opened with and that not all servers of its pool have. Its RESET goes back to them, so a client that
/// gets the server later must have asked for the same. Also the parameters that a client asks such a server to have.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Opened {
    /// The parameters, except for the `application_name`; `None` if servers have them all.
    pub(crate) asked: Option<Asked>,
    /// The `application_name`, which may be another one for each client.
    pub(crate) named: Option<Box<[u8]>>,
}

impl Opened {
    /// Returns these parameters of a startup packet, in a pool with servers that have the parameters `has`.
    pub(crate) fn new(tracked: &Tracked, has: &Params, params: &Params, session: &Session) -> Opened {
        let asked = Asked::new(tracked, params, session);
        let named = tracked.position(b"application_name").and_then(|position| params.get(position));
        Opened { asked: (!asked.is_nothing(tracked, has)).then_some(asked), named: named.map(Box::from) }
    }

    /// Whether a server that was opened in this way is right for a client that asks for `wanted`.
    pub(crate) fn fits(&self, wanted: &Opened) -> bool {
        self.asked == wanted.asked && (self.named.is_none() || wanted.named.is_some())
    }

    /// Whether the parameter may have another value on this server because a client asked for that.
    pub(crate) fn decides(&self, tracked: &Tracked, name: &[u8]) -> bool {
        if name == b"application_name" {
            return !self.is_plain();
        }
        let Some(asked) = &self.asked else { return false };
        // A role's rights are reported as is_superuser.
        let follows_role = matches!(name, b"is_superuser" | b"session_authorization");
        let has_role = IDENTITY.iter().any(|identity| asked.session.get(identity).is_some());
        tracked.position(name).is_some_and(|position| asked.params.get(position).is_some())
            || asked.session.get(name).is_some()
            || follows_role && has_role
    }

    /// Whether the server is opened as any other server of the pool.
    pub(crate) fn is_plain(&self) -> bool {
        self.asked.is_none() && self.named.is_none()
    }
}

/// The outcome of startup parameters on a server.
pub(crate) struct CheckedStartup {
    /// The tracked parameters, as the server reported them.
    pub(crate) params: Arc<Params>,
    /// The other parameters, as the server spells them.
    pub(crate) session: Arc<Session>,
    /// The ParameterStatus messages of parameters that are not tracked and have changed.
    pub(crate) reported: Vec<u8>,
}

/// The outcomes that a pool remembers, the newest at the end.
#[derive(Default)]
pub(crate) struct StartupChecks {
    known: VecDeque<(Asked, Arc<CheckedStartup>)>,
}

impl StartupChecks {
    /// Returns the outcome of these parameters, if it is remembered.
    pub(crate) fn get(&self, asked: &Asked) -> Option<Arc<CheckedStartup>> {
        let known = self.known.iter().rev().find(|(known, _)| known == asked);
        known.map(|(_, checked)| Arc::clone(checked))
    }

    pub(crate) fn insert(&mut self, asked: Asked, checked: Arc<CheckedStartup>) {
        if self.known.len() >= STARTUP_CHECKS_MAX {
            self.known.pop_front();
        }
        self.known.push_back((asked, checked));
    }

    /// Forgets all outcomes: servers may spell values in another way from here on.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }
}

/// Whether PostgreSQL takes the name unchanged. It cuts names at 63 bytes and replaces what is not printable ASCII.
pub(crate) fn is_plain_name(name: &[u8]) -> bool {
    name.len() < 64 && name.iter().all(|byte| (0x20..0x7f).contains(byte))
}
