//! The definition of a setting: one row with its name, type, default, and the way it can be changed.
//!
//! The tables below this file hold the rows. Everything else comes from them: the typed structs, the parser,
//! `SHOW CONFIG`, `SET`, the reload diff and the reference page. Nothing outside the tables may name a
//! setting's default or range a second time.

use std::ops::RangeInclusive;

use crate::syntax::number;

mod cache;
mod clusters;
mod databases;
mod nodes;
mod peers;
mod pgbouncer;
mod routes;
mod users;

pub use cache::{CACHE_ROWS, CacheRule};
pub use clusters::{CLUSTER_ROWS, ClusterOptions};
pub use databases::{DATABASE_ROWS, Database};
pub use nodes::{NODE_ROWS, NodeOptions};
pub(crate) use peers::PEER_ID_MAX;
pub use peers::{PEER_ROWS, Peer};
pub use pgbouncer::{MAIN_ROWS, Main};
pub use routes::{ROUTE_ROWS, RouteLine};
pub use users::{USER_ROWS, UserOptions};

/// The kind of text that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 0 or 1; the words on, off, true, false, yes and no are accepted, too.
    Bool,
    /// A whole number in this range.
    Count(i64, i64),
    /// A whole number for which 0 (and any number below it) means that there is no limit.
    Limit,
    /// A size in bytes in this range; units are taken.
    Bytes(i64, i64),
    /// A file mode, octal when it starts with 0.
    Mode,
    /// A time in decimal seconds, or with a unit.
    Seconds,
    /// A time that has to be a whole number of seconds, at least this one.
    WholeSeconds(u64),
    /// A time in milliseconds, or with a unit.
    Milliseconds,
    /// Any text.
    Text,
    /// A file or a directory.
    Path,
    /// The name of a database; `pgbouncer` is refused.
    AuthDatabase,
    /// Texts with commas between them.
    List,
    /// Names with commas or blanks between them.
    Names,
    /// A word from this list.
    Choice(&'static [&'static str]),
    /// A secret.
    Secret,
    /// A text that can contain a secret.
    TextWithSecret,
    /// A size of a database or a user: below zero means "the global one".
    OwnSize,
    /// A limit of a database or a user: zero and below mean "the global one".
    OwnLimit,
    /// A lifetime of a database: zero means "the global one".
    OwnLifetime,
    /// A timeout of a database or a user: zero and below mean "no limit", whatever the global one is.
    OwnSeconds,
}

/// The largest count: PgBouncer's counts are C's `int`.
pub(crate) const COUNT_MAX: i64 = i32::MAX as i64;

impl Kind {
    /// Returns the whole numbers that are in range. It has no meaning for kinds that are not whole numbers.
    pub fn range(self) -> RangeInclusive<i64> {
        match self {
            Kind::Count(min, max) | Kind::Bytes(min, max) => min..=max,
            Kind::Mode => 0..=0o7777,
            _ => 0..=COUNT_MAX,
        }
    }

    /// Returns a description of the values that the setting takes, for people.
    pub fn describe(self) -> String {
        match self {
            Kind::Bool => "0 or 1".to_owned(),
            Kind::Count(min, COUNT_MAX) => format!("whole number from {min}"),
            Kind::Count(min, max) => format!("whole number, {min} to {max}"),
            Kind::Limit => "whole number, 0 = no limit".to_owned(),
            Kind::Bytes(min, COUNT_MAX) => format!("bytes from {min}"),
            Kind::Bytes(min, max) => format!("bytes, {min} to {max}"),
            Kind::Mode => "file mode, octal with a leading 0".to_owned(),
            Kind::Seconds | Kind::OwnSeconds => "seconds".to_owned(),
            Kind::OwnLifetime => "seconds, 0 = the global value".to_owned(),
            Kind::WholeSeconds(0) => "whole seconds".to_owned(),
            Kind::WholeSeconds(min) => format!("whole seconds from {min}"),
            Kind::Milliseconds => "milliseconds".to_owned(),
            Kind::Text | Kind::TextWithSecret => "text".to_owned(),
            Kind::Path => "path".to_owned(),
            Kind::AuthDatabase => "database name".to_owned(),
            Kind::List => "list with commas".to_owned(),
            Kind::Names => "names with commas or blanks".to_owned(),
            Kind::Choice(words) => words.join(", "),
            Kind::Secret => "secret".to_owned(),
            Kind::OwnSize => "whole number, -1 = the global value".to_owned(),
            Kind::OwnLimit => "whole number, 0 = the global value".to_owned(),
        }
    }

    /// Returns whether this text means "as if it were not set".
    pub(crate) fn inherits(self, text: &str) -> bool {
        let number = || number::whole(text);
        match self {
            Kind::OwnSize => number().is_ok_and(|n| n < 0),
            Kind::OwnLimit => number().is_ok_and(|n| n <= 0),
            Kind::OwnLifetime => number::time(text, number::SECOND_US).is_ok_and(|t| t.is_zero()),
            _ => false,
        }
    }
}

/// The event at which a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `RELOAD` or `SET`.
    Reload,
    /// The next start of the process only.
    Restart,
    /// `RELOAD`, which then also replaces the database's server connections.
    Recycle,
}

/// The origin of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A setting of PgBouncer's, with the same name and meaning.
    PgBouncer,
    /// A setting that only pgweir has.
    Ours,
}

/// The extent to which a setting works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The setting does what its documentation says.
    InEffect,
    /// The setting is read and checked, and has no effect; loading it gives a warning.
    NotYet,
}

/// One setting of the options struct `T`.
#[derive(Debug)]
pub struct Row<T: 'static> {
    /// The key in the file.
    pub name: &'static str,
    /// The heading that the setting belongs to.
    pub group: &'static str,
    /// The kind of text that the setting takes.
    pub kind: Kind,
    /// The default as a text of the file; `None` is PgBouncer's NULL, "not set".
    pub default: Option<&'static str>,
    /// The event at which a change takes effect.
    pub change: Change,
    /// The origin of the setting.
    pub origin: Origin,
    /// The extent to which the setting works.
    pub status: Status,
    /// The setting's documentation; Markdown, lines separated by a blank.
    pub doc: &'static str,
    pub(crate) assign: fn(&mut T, &str, Kind) -> Result<(), String>,
    pub(crate) render: fn(&T, Kind) -> Option<String>,
    pub(crate) adopt: fn(&mut T, &T),
    pub(crate) same: fn(&T, &T) -> bool,
}

impl<T> Row<T> {
    /// Reads `text` into the field. The error says which values the setting takes.
    pub(crate) fn assign(&self, to: &mut T, text: &str) -> Result<(), String> {
        (self.assign)(to, text, self.kind)
    }

    /// Returns the field's value as `SHOW CONFIG` writes it; `None` is NULL.
    pub fn render(&self, from: &T) -> Option<String> {
        (self.render)(from, self.kind)
    }

    /// Copies the field from another struct.
    pub(crate) fn adopt(&self, to: &mut T, from: &T) {
        (self.adopt)(to, from);
    }

    /// Returns whether the field is equal in both structs.
    pub(crate) fn same(&self, one: &T, other: &T) -> bool {
        (self.same)(one, other)
    }
}

/// Returns the row with this name. Names must match exactly, as in PgBouncer.
pub fn row<T>(rows: &'static [Row<T>], name: &str) -> Option<&'static Row<T>> {
    rows.iter().find(|row| row.name == name)
}

/// Declares one options struct and its table of rows. A row is `field [as "key"]: Type = default, kind,
/// change, origin, status;`, with its documentation above it; the default is `NULL` or a text.
macro_rules! settings {
    (
        $(#[doc = $struct_doc:literal])+
        struct $Struct:ident, $ROWS:ident;
        $(extra { $( $(#[doc = $extra_doc:literal])+ $extra:ident: $Extra:ty; )+ })?
        $(group $group:literal { $(
            $(#[doc = $doc:literal])+
            $field:ident $(as $key:literal)?: $Type:ty = $default:tt, $kind:expr, $change:ident, $origin:ident, $status:ident;
        )+ })+
    ) => {
        $(#[doc = $struct_doc])+
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Struct {
            $($( $(#[doc = $extra_doc])+ pub $extra: $Extra, )+)?
            $($( $(#[doc = $doc])+ pub $field: $Type, )+)+
        }

        impl Default for $Struct {
            fn default() -> Self {
                Self {
                    $($( $extra: Default::default(), )+)?
                    $($( $field: $crate::syntax::value::initial($crate::table::default_text!($default), $kind), )+)+
                }
            }
        }

        #[doc = concat!("The rows of [`", stringify!($Struct), "`], in the order of the documentation.")]
        pub static $ROWS: &[$crate::table::Row<$Struct>] = &[$($(
            $crate::table::Row {
                name: $crate::table::key!($field $(, $key)?),
                group: $group,
                kind: $kind,
                default: $crate::table::default_text!($default),
                change: $crate::table::Change::$change,
                origin: $crate::table::Origin::$origin,
                status: $crate::table::Status::$status,
                doc: concat!($($doc),+),
                assign: |to, text, kind| {
                    to.$field = $crate::syntax::value::Value::parse(text, kind)?;
                    Ok(())
                },
                render: |from, kind| $crate::syntax::value::Value::show(&from.$field, kind),
                adopt: |to, from| to.$field.clone_from(&from.$field),
                same: |one, other| one.$field == other.$field,
            },
        )+)+];
    };
}

macro_rules! default_text {
    (NULL) => {
        None
    };
    ($text:literal) => {
        Some($text)
    };
}

macro_rules! key {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident, $key:literal) => {
        $key
    };
}

use {default_text, key, settings};
