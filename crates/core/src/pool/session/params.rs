//! The parameters that a server reports by itself (ParameterStatus) and that must be each client's own:
//! application_name, TimeZone and similar ones. What a client wants and what a server has are both a
//! [`Params`]; if the two are the same object, nothing needs to be compared.

use std::sync::Arc;

use pgweir_settings::{CompatibleWith, Main, SessionState};
use pgweir_wire::backend::encode_parameter_status;

/// The parameters that are always kept true per client, as PgBouncer does; `track_extra_parameters` adds to them.
pub const ALWAYS_TRACKED: [&str; 5] =
    ["DateStyle", "client_encoding", "TimeZone", "standard_conforming_strings", "application_name"];

/// The parameters that PgBouncer 1.26 tracks besides: those that clients can change and PostgreSQL reports (`search_path` since
/// PostgreSQL 18, `scram_iterations` since 16, `default_transaction_read_only` since 14). `session_authorization` is not among them: a
/// SET of it also resets the role, so it can only be kept together with the role, as `session_state=preserve` does.
const TRACKED_SINCE_1_26: [&str; 4] =
    ["default_transaction_read_only", "IntervalStyle", "scram_iterations", "search_path"];

/// The parameters that are tracked. They are fixed for the life of the process.
#[derive(Debug, PartialEq, Eq)]
pub struct Tracked {
    names: Vec<Box<str>>,
}

impl Tracked {
    /// Returns the parameters that the settings name. If sessions are preserved, those of PgBouncer 1.26 need not be tracked: each session
    /// has its own values of all parameters, whether PostgreSQL reports them or not.
    #[must_use]
    pub fn of(main: &Main) -> Tracked {
        let as_1_26 =
            main.compatible_with == CompatibleWith::V1_26 && main.session_state == SessionState::Pgbouncer;
        let since_1_26 = TRACKED_SINCE_1_26.into_iter().filter(|_| as_1_26);
        Tracked::new(since_1_26.chain(main.track_extra_parameters.iter().map(String::as_str)))
    }

    /// Returns [`ALWAYS_TRACKED`] and `extra`, without duplicates.
    pub fn new<'a>(extra: impl IntoIterator<Item = &'a str>) -> Tracked {
        let mut names: Vec<Box<str>> = Vec::new();
        for name in ALWAYS_TRACKED.into_iter().chain(extra) {
            if !name.is_empty() && !names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                names.push(name.into());
            }
        }
        Tracked { names }
    }

    /// Returns the place of a parameter, by name in any case.
    #[must_use]
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.names.iter().position(|known| known.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns the names as they are spelled in ParameterStatus.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(AsRef::as_ref)
    }

    /// Returns the number of parameters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are no parameters, which never happens because of [`ALWAYS_TRACKED`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// The values of the tracked parameters, by their place in [`Tracked`]. `None` if the value is not known.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Params {
    values: Vec<Option<Arc<[u8]>>>,
}

impl Params {
    /// Returns parameters without known values.
    #[must_use]
    pub fn unknown(tracked: &Tracked) -> Params {
        Params { values: vec![None; tracked.len()] }
    }

    /// Returns the value at a place of [`Tracked`].
    #[must_use]
    pub fn get(&self, position: usize) -> Option<&[u8]> {
        self.values.get(position)?.as_deref()
    }

    /// Returns the values that are known, with their places.
    pub(crate) fn known(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.values.iter().enumerate().filter_map(|(position, value)| Some((position, value.as_deref()?)))
    }

    /// Appends ParameterStatus messages of all values that are known.
    pub fn encode(&self, out: &mut Vec<u8>, tracked: &Tracked) {
        for (position, name) in tracked.names().enumerate() {
            if let Some(value) = self.get(position) {
                encode_parameter_status(out, name.as_bytes(), value);
            }
        }
    }

    /// Sets the value at a place.
    pub fn set(&mut self, position: usize, value: &[u8]) {
        if let Some(place) = self.values.get_mut(position) {
            *place = Some(value.into());
        }
    }

    /// Forgets the value at a place.
    pub fn unset(&mut self, position: usize) {
        if let Some(place) = self.values.get_mut(position) {
            *place = None;
        }
    }

    /// Returns these values, with those of `other` for places that are not known here.
    #[must_use]
    pub fn or(&self, other: &Params) -> Params {
        let values =
            self.values.iter().zip(&other.values).map(|(own, their)| own.clone().or_else(|| their.clone()));
        Params { values: values.collect() }
    }

    /// Returns the places at which both values are known and differ.
    pub fn differences<'a>(&'a self, other: &'a Params) -> impl Iterator<Item = usize> + 'a {
        self.values.iter().zip(&other.values).enumerate().filter_map(|(position, pair)| match pair {
            (Some(own), Some(their)) if own != their => Some(position),
            _ => None,
        })
    }
}

/// Returns `SET a='x';` for each value in which a server with `has` differs from `wanted`.
#[must_use]
pub fn sync_statements(tracked: &Tracked, wanted: &Params, has: &Params) -> Vec<Vec<u8>> {
    let mut statements = Vec::new();
    for position in wanted.differences(has) {
        let (Some(name), Some(value)) = (tracked.names().nth(position), wanted.get(position)) else {
            continue;
        };
        let mut text = [b"SET ", name.as_bytes(), b"="].concat();
        if name.eq_ignore_ascii_case("search_path") {
            // A list of identifiers that the server quoted itself when it reported it.
            text.extend_from_slice(value);
        } else {
            quote_literal(&mut text, value);
        }
        text.push(b';');
        statements.push(text);
    }
    statements
}

/// Appends a string literal that means the same whatever standard_conforming_strings says (as libpq's
/// PQescapeLiteral: `E''` if a backslash occurs).
pub(crate) fn quote_literal(out: &mut Vec<u8>, value: &[u8]) {
    if value.contains(&b'\\') {
        out.extend_from_slice(b" E");
    }
    out.push(b'\'');
    for &byte in value {
        if byte == b'\'' || byte == b'\\' {
            out.push(byte);
        }
        out.push(byte);
    }
    out.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracked() -> Tracked {
        Tracked::new(["IntervalStyle", "timezone"])
    }

    fn with(pairs: &[(&str, &str)]) -> Params {
        let tracked = tracked();
        let mut params = Params::unknown(&tracked);
        for (name, value) in pairs {
            params.set(tracked.position(name.as_bytes()).expect("tracked"), value.as_bytes());
        }
        params
    }

    #[test]
    fn extra_parameters_are_added_once() {
        assert_eq!(tracked().len(), 6, "TimeZone is tracked already, whatever its case");
    }

    #[test]
    fn only_what_both_know_and_differs_is_set() {
        let wanted = with(&[("application_name", "a'b\\c"), ("TimeZone", "UTC"), ("DateStyle", "ISO, MDY")]);
        let has = with(&[("application_name", "A'b\\c"), ("TimeZone", "UTC")]);
        let text = sync_statements(&tracked(), &wanted, &has).concat();
        assert_eq!(String::from_utf8_lossy(&text), r"SET application_name= E'a''b\\c';");
        assert!(sync_statements(&tracked(), &has, &has).is_empty());
    }

    #[test]
    fn unknown_values_are_filled_from_the_server() {
        let filled = with(&[("TimeZone", "UTC")]).or(&with(&[("TimeZone", "GMT"), ("IntervalStyle", "iso")]));
        assert_eq!(filled, with(&[("TimeZone", "UTC"), ("IntervalStyle", "iso")]));
    }
}
