//! The greeting: the values that new clients of a pool are told of its servers, and begin with. This file has values only: `freshness.rs` says when they must be
//! confirmed, and `look.rs` has a server confirm them.

pub(crate) mod freshness;
pub(crate) mod look;

use std::sync::Arc;

use pgweir_wire::backend::{ParameterStatus, encode_parameter_status};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::pool::session::content::Session;
use crate::pool::session::params::{Params, Tracked};
use crate::pool::startup::checked::Opened;

/// The parameter that says whether a server is a standby (PostgreSQL 14 on). No client can change it: a promotion does, and each server
/// connection reports that with its next answer.
pub(crate) const IN_HOT_STANDBY: &[u8] = b"in_hot_standby";

/// The parameters for which a server that is opened later may report other values, and which new clients are told as that server reports
/// them: a name or an address may lead to another PostgreSQL now, or to the same one, promoted or upgraded.
pub(crate) const TOLD_AGAIN: [&[u8]; 2] = [IN_HOT_STANDBY, b"server_version"];

/// The state of a server when it was ready for its first client.
pub(crate) struct ServerGreeting {
    /// The ParameterStatus messages of the parameters that are not tracked, ready to be sent.
    pub(crate) fixed: Vec<u8>,
    /// The values of the tracked parameters.
    pub(crate) params: Arc<Params>,
    /// The rest of the session's contents after `connect_query`.
    pub(crate) session: Arc<Session>,
    /// Whether another server may know better: see [`crate::pool::server::asked::AtLogin`].
    pub(crate) in_doubt: bool,
}

impl ServerGreeting {
    /// Whether servers report this parameter by themselves without its being tracked.
    pub(crate) fn reports(&self, name: &[u8]) -> bool {
        messages(&self.fixed).filter_map(status_of).any(|status| status.name.eq_ignore_ascii_case(name))
    }

    /// Returns the greeting with another value of a parameter that servers report; `None` if the greeting has this value, or no value of
    /// the parameter.
    pub(crate) fn telling(&self, name: &[u8], value: &[u8]) -> Option<ServerGreeting> {
        let other = |message| status_of(message).is_some_and(|told| told.name == name && told.value != value);
        if !messages(&self.fixed).any(other) {
            return None;
        }
        let mut fixed = Vec::with_capacity(self.fixed.len() + value.len());
        for message in messages(&self.fixed) {
            match other(message) {
                true => encode_parameter_status(&mut fixed, name, value),
                false => fixed.extend_from_slice(message),
            }
        }
        Some(ServerGreeting {
            fixed,
            params: Arc::clone(&self.params),
            session: Arc::clone(&self.session),
            in_doubt: self.in_doubt,
        })
    }

    /// Returns the greeting with the values that a newer server reports, except for those that a client asked for when that server was
    /// opened. The rest of the session that `connect_query` left stays. `None` if nothing changes.
    pub(crate) fn renewed_by(
        &self,
        now: &ServerGreeting,
        tracked: &Tracked,
        opened: &Opened,
    ) -> Option<ServerGreeting> {
        let mut fixed = Vec::with_capacity(now.fixed.len());
        for message in messages(&now.fixed) {
            let name = status_of(message).map(|status| status.name).unwrap_or_default();
            match self.told(name) {
                Some(old) if opened.decides(tracked, name) => encode_parameter_status(&mut fixed, name, old),
                _ => fixed.extend_from_slice(message),
            }
        }
        let mut params = (*now.params).clone();
        for (position, name) in tracked.names().enumerate() {
            if let Some(old) = self.params.get(position).filter(|_| opened.decides(tracked, name.as_bytes()))
            {
                params.set(position, old);
            }
        }
        (fixed != self.fixed || params != *self.params).then(|| ServerGreeting {
            fixed,
            params: Arc::new(params),
            session: Arc::clone(&self.session),
            in_doubt: now.in_doubt,
        })
    }

    /// Returns the names and values of all parameters that clients are told.
    pub(crate) fn all<'a>(&'a self, tracked: &'a Tracked) -> Vec<(&'a [u8], &'a [u8])> {
        let fixed = messages(&self.fixed).filter_map(status_of).map(|status| (status.name, status.value));
        let params = tracked.names().enumerate();
        let params =
            params.filter_map(|(position, name)| Some((name.as_bytes(), self.params.get(position)?)));
        fixed.chain(params).collect()
    }

    /// Returns the messages of `now` that differ from those of this greeting.
    pub(crate) fn changes(&self, now: &ServerGreeting) -> Vec<u8> {
        let known: Vec<&[u8]> = messages(&self.fixed).collect();
        messages(&now.fixed).filter(|message| !known.contains(message)).flatten().copied().collect()
    }

    /// Returns the value that clients are told of a parameter that is not tracked.
    pub(crate) fn told(&self, name: &[u8]) -> Option<&[u8]> {
        messages(&self.fixed)
            .filter_map(status_of)
            .find(|status| status.name == name)
            .map(|status| status.value)
    }
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let header = Header::peek(bytes).ok().flatten()?;
        let (message, rest) = bytes.split_at_checked(header.total())?;
        bytes = rest;
        Some(message)
    })
}

fn status_of(message: &[u8]) -> Option<ParameterStatus<'_>> {
    ParameterStatus::parse(message.get(HEADER_LEN..)?).ok()
}
