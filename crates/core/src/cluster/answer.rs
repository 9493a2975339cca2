//! A node's report about itself: the question of each check, and its answer.

use crate::cluster::Run;

/// The question of a check; its answer is one row. It is asked of servers in any role, by a user without privileges. Names are qualified,
/// because a role can have any `search_path`.
///
/// The timeline of a primary is that of the file that it writes: after a promotion the control file has the old one until the next
/// checkpoint (PostgreSQL's `xlogfuncs.c` and `xlog.c`). The timeline of a standby is at least the highest of three: where it would
/// restart, how far it must recover at least, and what it receives; only members of `pg_read_all_stats` see the last one.
pub(crate) const QUESTION: &str = "SELECT r::text, \
    (CASE WHEN r THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END)::text, \
    pg_catalog.pg_last_wal_receive_lsn()::text, pg_catalog.pg_last_wal_replay_lsn()::text, \
    CASE WHEN r THEN pg_catalog.to_hex(GREATEST((SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()), \
    (SELECT min_recovery_end_timeline FROM pg_catalog.pg_control_recovery()), \
    (SELECT received_tli FROM pg_catalog.pg_stat_get_wal_receiver()))) \
    ELSE pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) END, \
    (SELECT system_identifier FROM pg_catalog.pg_control_system())::text, \
    (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint::text, \
    pg_catalog.current_setting('server_version_num'), \
    CASE WHEN NOT r THEN 'none' WHEN pg_catalog.pg_is_wal_replay_paused() THEN 'paused' \
    WHEN pg_catalog.current_setting('default_transaction_isolation') OPERATOR(pg_catalog.=) 'serializable' THEN 'serializable' \
    ELSE 'none' END FROM pg_catalog.pg_is_in_recovery() AS r";

/// A condition in which a standby answers its checks but serves its clients badly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hindrance {
    /// The standby's replay is paused: `pg_wal_replay_pause` was called.
    Paused,
    /// New sessions are SERIALIZABLE, in which PostgreSQL refuses every read at a standby. The question itself is asked in another
    /// isolation level.
    Serializable,
}

impl Hindrance {
    /// The text for an administrator.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Hindrance::Paused => {
                "its replay is paused, so its reads get older; pg_wal_replay_resume() ends that"
            }
            Hindrance::Serializable => {
                "sessions begin with default_transaction_isolation=serializable, so their reads fail: cannot use serializable mode in a \
                 hot standby (SQLSTATE 0A000)"
            }
        }
    }
}

/// A position in the write-ahead log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Lsn(pub(crate) u64);

/// The answer of a node to [`QUESTION`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) in_recovery: bool,
    /// A primary's insert position, a standby's replay position.
    pub(crate) position: Option<Lsn>,
    pub(crate) received: Option<Lsn>,
    /// The position of recovery in a standby, and the end of recovery in a primary; `None` after a clean start.
    pub(crate) replayed: Option<Lsn>,
    pub(crate) run: Run,
    /// The server's version, as `server_version_num` has it.
    pub(crate) version: u32,
    /// The reason why a standby serves its clients badly; `None` if there is none, and for a primary.
    pub(crate) hindrance: Option<Hindrance>,
}

impl Answer {
    /// Reads the columns of the answer. The bytes come from a server: anything may be in them.
    ///
    /// # Errors
    /// The name of the column that has an unexpected value.
    pub(crate) fn read(columns: &[Option<Box<[u8]>>]) -> Result<Answer, &'static str> {
        let [role, position, received, replayed, timeline, identifier, started, version, hindrance] = columns
        else {
            return Err("number of columns");
        };
        let text = |column: &Option<Box<[u8]>>| {
            column.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok().map(str::to_owned))
        };
        let lsn = |column: &Option<Box<[u8]>>, name| match column {
            None => Ok(None),
            Some(_) => text(column).and_then(|text| Lsn::parse(&text)).map(Some).ok_or(name),
        };
        let in_recovery = boolean(text(role).as_deref()).ok_or("pg_is_in_recovery")?;
        let run = Run {
            system_identifier: number(text(identifier).as_deref()).ok_or("system_identifier")?,
            timeline: text(timeline)
                .and_then(|text| u32::from_str_radix(&text, 16).ok())
                .ok_or("timeline")?,
            started_us: number(text(started).as_deref()).ok_or("pg_postmaster_start_time")?,
        };
        Ok(Answer {
            in_recovery,
            position: lsn(position, "position")?,
            received: lsn(received, "received position")?,
            replayed: lsn(replayed, "replay position")?,
            run,
            version: number(text(version).as_deref()).ok_or("server_version_num")?,
            hindrance: match text(hindrance).as_deref() {
                Some("none") => None,
                Some("paused") => Some(Hindrance::Paused),
                Some("serializable") => Some(Hindrance::Serializable),
                _ => return Err("hindrance"),
            },
        })
    }
}

fn boolean(text: Option<&str>) -> Option<bool> {
    match text? {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn number<T: std::str::FromStr>(text: Option<&str>) -> Option<T> {
    text?.parse().ok()
}

impl Lsn {
    /// Reads a position as PostgreSQL writes it (`0/1A2B3C4D`).
    pub(crate) fn parse(text: &str) -> Option<Lsn> {
        let (high, low) = text.split_once('/')?;
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let half = |text: &str| u32::from_str_radix(text, 16).ok().filter(|_| is_hex(text));
        Some(Lsn(u64::from(half(high)?) << 32 | u64::from(half(low)?)))
    }
}

impl std::fmt::Display for Lsn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn columns(texts: [&str; 9]) -> Vec<Option<Box<[u8]>>> {
        texts.iter().map(|text| (*text != "-").then(|| text.as_bytes().into())).collect()
    }

    const PRIMARY: [&str; 9] = [
        "false",
        "0/3000060",
        "-",
        "-",
        "0000000A",
        "7612345678901234567",
        "1700000000000001",
        "150003",
        "none",
    ];

    #[test]
    fn a_primary_and_a_standby_are_read() {
        let primary = Answer::read(&columns(PRIMARY)).expect("a good row");
        assert!(!primary.in_recovery && primary.replayed.is_none());
        assert_eq!((primary.run.timeline, primary.version), (10, 150_003));
        assert_eq!(primary.position.map(|lsn| lsn.to_string()).as_deref(), Some("0/3000060"));
        let standby = ["true", "1/2", "1/3", "1/2", "a", "7612345678901234567", "-5", "180000", "paused"];
        let standby = Answer::read(&columns(standby)).expect("a good row");
        assert!(standby.in_recovery && standby.received > standby.replayed);
        assert_eq!((standby.run.timeline, standby.run.started_us), (10, -5));
        assert_eq!((primary.hindrance, standby.hindrance), (None, Some(Hindrance::Paused)));
    }

    #[test]
    fn a_row_that_is_none_says_which_column_is_wrong() {
        for (at, wrong, said) in [
            (0, "t", "pg_is_in_recovery"),
            (0, "-", "pg_is_in_recovery"),
            (1, "0-3", "position"),
            (4, "x", "timeline"),
            (4, "100000000", "timeline"),
            (5, "-1", "system_identifier"),
            (6, "1.5", "pg_postmaster_start_time"),
            (7, "", "server_version_num"),
            (8, "?", "hindrance"),
        ] {
            let mut row = PRIMARY;
            row[at] = wrong;
            assert_eq!(Answer::read(&columns(row)), Err(said), "{wrong}");
        }
        assert!(Answer::read(&columns(PRIMARY)[..8]).is_err());
    }

    proptest! {
        #[test]
        fn any_row_is_read_without_panic(row in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), 0..10)) {
            let row: Vec<Option<Box<[u8]>>> = row.into_iter().map(|column| column.map(Into::into)).collect();
            let _ = Answer::read(&row);
        }

        #[test]
        fn a_position_comes_back(value in any::<u64>()) {
            prop_assert_eq!(Lsn::parse(&Lsn(value).to_string()), Some(Lsn(value)));
        }
    }
}
