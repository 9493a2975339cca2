//! The knowledge of a pool about parameters, sessions and settings: objects that clients and servers share, and answers of its database.

use std::collections::VecDeque;
use std::sync::Arc;

use pgweir_auth::Learned;

use crate::limits::{KNOWN_PARAMS_MAX, SETTABLE_MAX};
use crate::pool::session::content::KnownSessions;
use crate::pool::session::known_sets::KnownSets;
use crate::pool::session::params::{Params, Tracked};
use crate::pool::startup::checked::StartupChecks;

/// The knowledge of a pool about parameters, sessions and settings.
pub(crate) struct Known {
    /// The sets of parameters seen last, the newest at the end.
    params: VecDeque<KnownParams>,
    pub(crate) sessions: KnownSessions,
    /// The settings that were found set in a session: the pool's user may set them, and take them back.
    pub(crate) settable: Vec<Box<[u8]>>,
    pub(crate) known_sets: KnownSets,
    pub(crate) startup_checks: StartupChecks,
    /// The secret that a client's login has revealed and that logs in to servers (the pool's user is the client's own).
    pub(crate) learned: Learned,
}

/// A set of parameters that clients or servers of the pool have.
struct KnownParams {
    params: Arc<Params>,
    /// The ParameterStatus messages of the whole set; empty until a client was told them.
    told: Box<[u8]>,
}

impl Default for Known {
    fn default() -> Known {
        Known {
            params: VecDeque::new(),
            sessions: KnownSessions::default(),
            settable: Vec::new(),
            known_sets: KnownSets::default(),
            startup_checks: StartupChecks::default(),
            learned: Learned::Nothing,
        }
    }
}

impl Known {
    /// Returns the shared object for a set of parameters: clients and servers that have the same object need no comparing.
    pub(crate) fn share_params(&mut self, params: Params) -> Arc<Params> {
        if let Some(known) = self.params.iter().rev().find(|known| *known.params == params) {
            return Arc::clone(&known.params);
        }
        if self.params.len() >= KNOWN_PARAMS_MAX {
            self.params.pop_front();
        }
        let params = Arc::new(params);
        self.params.push_back(KnownParams { params: Arc::clone(&params), told: Box::default() });
        params
    }

    /// Appends ParameterStatus messages of all values that are known in these parameters.
    pub(crate) fn tell_params(&mut self, out: &mut Vec<u8>, tracked: &Tracked, params: &Arc<Params>) {
        let known = self.params.iter_mut().rev().find(|known| Arc::ptr_eq(&known.params, params));
        let Some(known) = known else { return params.encode(out, tracked) };
        if known.told.is_empty() {
            let mut told = Vec::new();
            params.encode(&mut told, tracked);
            known.told = told.into();
        }
        out.extend_from_slice(&known.told);
    }

    /// Notes settings that were set in a session.
    pub(crate) fn note_settable<'a>(&mut self, names: impl Iterator<Item = &'a Box<[u8]>>) {
        for name in names {
            let room = self.settable.len() < SETTABLE_MAX;
            if room && !name.contains(&b'.') && !self.settable.contains(name) {
                self.settable.push(name.clone());
            }
        }
    }
}
