//! What the catalog of a pool's database says of its routines, because no text of a client does: which of them ask for drawn values
//! inside of their bodies, so that a text that names one may ask; and which settings of the users' own (`app.tenant`) they set, as
//! PostgreSQL has no list of those that a session has. Values only; `machine/session/audit.rs` has the catalog asked, together with
//! what a session holds.

use crate::limits::{ROUTINES_AGE_US, ROUTINES_MAX};

/// Another part of the question for everything: names of such routines. Those of a body in standard SQL are found by its text.
pub(crate) const QUESTION: &[u8] =
    b" UNION ALL SELECT 'f', routine.name, NULL FROM (SELECT DISTINCT proname::pg_catalog.text AS name \
FROM pg_catalog.pg_proc WHERE prolang OPERATOR(pg_catalog.<>) ALL ('{12,13}'::pg_catalog.oid[]) \
AND CASE WHEN prosrc OPERATOR(pg_catalog.=) '' THEN pg_catalog.pg_get_functiondef(oid) ELSE prosrc END \
OPERATOR(pg_catalog.~*) '(currval|lastval)' LIMIT 100) AS routine";

/// Another part: settings of the users' own that routines set by a literal name, and their values in this session. No backslash
/// stands in it: what that means in a string is the session's own matter.
pub(crate) const SETTINGS_QUESTION: &[u8] =
    b" UNION ALL SELECT 'u', setting.name, pg_catalog.current_setting(setting.name, true) FROM (\
SELECT DISTINCT pg_catalog.lower(COALESCE(found.parts[1], found.parts[2])) AS name FROM pg_catalog.pg_proc, \
LATERAL pg_catalog.regexp_matches(CASE WHEN prosrc OPERATOR(pg_catalog.=) '' \
THEN pg_catalog.pg_get_functiondef(oid) ELSE prosrc END, \
'set_config[[:space:]]*[(][[:space:]]*''([a-z_][a-z0-9_$]*(?:[.][a-z_][a-z0-9_$]*)+)''\
|[[:<:]]set[[:space:]]+(?:session[[:space:]]+)?([a-z_][a-z0-9_$]*(?:[.][a-z_][a-z0-9_$]*)+)[[:space:]]*(?:=|to[[:>:]])', 'gi') \
AS found(parts) WHERE prolang OPERATOR(pg_catalog.<>) ALL ('{12,13}'::pg_catalog.oid[]) LIMIT 50) AS setting \
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_settings AS known \
WHERE pg_catalog.lower(known.name) OPERATOR(pg_catalog.=) setting.name)";

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Routines {
    names: Vec<Box<[u8]>>,
    asked_us: Option<u64>,
}

impl Routines {
    /// The catalog is to be asked again; it is taken as asked from here on, whatever comes of it.
    pub(crate) fn is_due(&mut self, now_us: u64) -> bool {
        let due = self.asked_us.is_none_or(|asked_us| now_us.saturating_sub(asked_us) >= ROUTINES_AGE_US);
        if due {
            self.asked_us = Some(now_us);
        }
        due
    }

    /// There is none that asks.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// This one asks.
    pub(crate) fn learn(&mut self, name: &[u8]) {
        if self.names.len() < ROUTINES_MAX
            && !name.is_empty()
            && !self.names.iter().any(|known| **known == *name)
        {
            self.names.push(name.into());
        }
    }

    /// A text, or what carries one, may call one of them.
    pub(crate) fn are_named_in(&self, bytes: &[u8]) -> bool {
        let names = |name: &[u8]| bytes.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name));
        self.names.iter().any(|name| names(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_names_one_is_found() {
        let mut routines = Routines::default();
        assert!(routines.is_due(5) && !routines.is_due(6) && routines.is_due(5 + ROUTINES_AGE_US));
        assert!(routines.is_empty() && !routines.are_named_in(b"select last_id()"));
        for name in [&b"last_id"[..], b"last_id", b""] {
            routines.learn(name);
        }
        assert!(routines.are_named_in(b"select app.LAST_ID()") && !routines.are_named_in(b"select last()"));
        (0..2 * ROUTINES_MAX).for_each(|number| routines.learn(format!("f{number}").as_bytes()));
        assert_eq!(routines.names.len(), ROUTINES_MAX);
    }
}
