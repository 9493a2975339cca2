//! The possible effects of a client's transaction on its session, and the reasons that keep a client on its server when its transaction is
//! over: state that lives in one server process and cannot move. Values only; `audit.rs` and `pin.rs` decide by them.

use pgweir_sql::{Marks, SettingNames, keeps_parse_context};

use crate::limits::{CUSTOM_NAME_BYTES_MAX, TOUCHED_NAMES_MAX, TOUCHED_SETS_MAX};
use crate::pool::catalog::routines::Routines;
use crate::pool::session::known_sets::PlainSet;
use crate::pool::session::partial_text::PartReader;

/// The reasons for which a client keeps its server, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Reasons(u16);

impl Reasons {
    pub(crate) const NONE: Reasons = Reasons(0);
    pub(crate) const TEMPORARY: Reasons = Reasons(1);
    pub(crate) const CURSORS: Reasons = Reasons(1 << 1);
    pub(crate) const LOCKS: Reasons = Reasons(1 << 2);
    pub(crate) const LISTENS: Reasons = Reasons(1 << 3);
    pub(crate) const PREPARED: Reasons = Reasons(1 << 4);
    pub(crate) const SLOTS: Reasons = Reasons(1 << 5);
    pub(crate) const HAND: Reasons = Reasons(1 << 6);
    pub(crate) const LIBRARY: Reasons = Reasons(1 << 7);
    pub(crate) const SEED: Reasons = Reasons(1 << 8);
    pub(crate) const UNKNOWN: Reasons = Reasons(1 << 9);
    /// The client may ask for the values that it drew from sequences.
    pub(crate) const SEQUENCES: Reasons = Reasons(1 << 10);
    /// The session has more settings than follow a client from server to server.
    pub(crate) const SETTINGS: Reasons = Reasons(1 << 11);
    /// The session may have settings whose names are not known: no server can be asked for them.
    pub(crate) const UNKNOWN_NAMES: Reasons = Reasons(1 << 12);
    /// The reasons that cannot be seen from outside. They stay until the client leaves, and its server is closed then.
    pub(crate) const STICKY: Reasons = Reasons(Self::LIBRARY.0 | Self::SEED.0);

    /// The reasons under which a text may have another meaning than in other sessions.
    pub(crate) const READS_ALONE: Reasons = Reasons(Self::TEMPORARY.0 | Self::LIBRARY.0 | Self::UNKNOWN.0);

    /// The reasons that no answer of the server takes back.
    pub(crate) const LASTING: Reasons = Reasons(Self::STICKY.0 | Self::SEQUENCES.0 | Self::UNKNOWN_NAMES.0);

    const NAMES: [(Reasons, &'static str); 13] = [
        (Reasons::TEMPORARY, "temporary objects"),
        (Reasons::CURSORS, "held cursors"),
        (Reasons::LOCKS, "advisory locks"),
        (Reasons::LISTENS, "listening"),
        (Reasons::PREPARED, "prepared statements"),
        (Reasons::SLOTS, "temporary replication slots"),
        (Reasons::HAND, "pgweir.pin"),
        (Reasons::LIBRARY, "loaded libraries"),
        (Reasons::SEED, "random seed"),
        (Reasons::UNKNOWN, "unknown state"),
        (Reasons::SEQUENCES, "sequences"),
        (Reasons::SETTINGS, "many settings"),
        (Reasons::UNKNOWN_NAMES, "settings of unknown names"),
    ];

    pub(crate) fn is_none(self) -> bool {
        self == Reasons::NONE
    }

    pub(crate) fn has(self, other: Reasons) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn with(self, other: Reasons) -> Reasons {
        Reasons(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Reasons) -> Reasons {
        Reasons(self.0 & !other.0)
    }

    pub(crate) fn only(self, other: Reasons) -> Reasons {
        Reasons(self.0 & other.0)
    }

    /// Returns the names of the reasons for SHOW and log lines.
    pub(crate) fn text(self) -> String {
        let named = Self::NAMES.iter().filter(|(reason, _)| self.has(*reason));
        named.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }

    /// Returns the reasons for which a mark alone is enough.
    pub(crate) fn of_marks(marks: Marks) -> Reasons {
        let library = if marks.contains(Marks::LIBRARY) { Reasons::LIBRARY } else { Reasons::NONE };
        let seed = if marks.contains(Marks::SEED) { Reasons::SEED } else { Reasons::NONE };
        library.with(seed)
    }
}

/// Whether a text with these marks may leave something on a server, even if nothing is held there: only then
/// is the server asked.
pub(crate) fn may_touch(marks: Marks) -> bool {
    !marks.without(LEAVES_NOTHING.and(Marks::ENDS)).is_empty()
}

/// The marks of effects that end with their transaction, or change nothing.
const LEAVES_NOTHING: Marks =
    Marks::ASKS_SEQUENCE.and(Marks::DRAWS_SEQUENCE).and(Marks::SHOWS_PREPARED).and(Marks::READS_LOCALLY);

/// Whether a text with these marks must be noted, for its session or for its transaction.
pub(crate) fn is_notable(marks: Marks) -> bool {
    may_touch(marks) || marks.intersects(Marks::READS_LOCALLY)
}

/// The marks of texts that may change the parse context: settings, and tables that hide others.
const CHANGES_PARSE_CONTEXT: Marks = Marks::SETTINGS
    .and(Marks::RESETS)
    .and(Marks::CALLS_SETTINGS)
    .and(Marks::DISCARDS)
    .and(Marks::ROUTINES)
    .and(Marks::TEMPORARY)
    .and(Marks::LIBRARY);

/// Whether a text with these marks may end the reasons that keep a client on its server, or add to them.
pub(crate) fn may_change_pin(marks: Marks) -> bool {
    !marks.without(LEAVES_NOTHING).is_empty()
}

/// The state of a client that keeps its server.
pub(crate) struct Pin {
    pub(crate) reasons: Reasons,
    /// The time since which the client has kept the server (monotonic, µs).
    pub(crate) since_us: u64,
    /// Whether it was logged that the client keeps the server for long (`pin_warn_after`).
    pub(crate) logged: bool,
}

/// The possible effects of a transaction on its session.
#[derive(Default)]
pub(crate) struct Touched {
    pub(crate) marks: Marks,
    /// The settings that its SET statements were about, letters in lower case.
    pub(crate) names: Vec<Box<[u8]>>,
    /// Whether there may be settings that are not among the names: the server is asked for all that it lists.
    pub(crate) more: bool,
    /// The knowledge of settings that no server lists.
    pub(crate) told: Told,
    /// The numbers of the parameters, counted from 1, whose values are names of settings.
    pub(crate) parameters: Vec<usize>,
    /// The possible meaning of values that are bound.
    pub(crate) values: Values,
    /// The reader of a message of which not all has come yet.
    pub(crate) part: PartReader,
    pub(crate) sets: Sets,
    /// Whether the transaction changed tables or other objects: a statement that was prepared before may not be prepared again on another
    /// server.
    pub(crate) reshaped: bool,
    /// The settings that go back to the client's startup values, when the server would go back to its own. They belong to the group of
    /// messages that is being sent.
    pub(crate) restore: Vec<(Box<[u8]>, PutBack)>,
}

/// The way in which a startup value is put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PutBack {
    /// The value was reset for the session.
    Session,
    /// The value was reset until the transaction ends.
    Transaction,
    /// Only PostgreSQL knows whether the value was reset: no word tells it, or a statement after the RESET failed.
    IfReset,
}

impl Touched {
    /// Whether the session certainly reads texts as it did before, whatever effects the statements had.
    pub(crate) fn keeps_parse_context(&self) -> bool {
        let changing = self.marks.only(CHANGES_PARSE_CONTEXT);
        let names = || !self.more && self.names.iter().all(|name| keeps_parse_context(name));
        changing.is_empty() || changing == Marks::SETTINGS && names()
    }

    /// Notes custom settings (`a.b`), which no list of settings shows.
    pub(crate) fn learn(&mut self, found: &SettingNames) {
        found.names.iter().for_each(|name| self.name(name));
        for number in &found.parameters {
            if !self.parameters.contains(number) {
                self.parameters.push(*number);
            }
        }
        if found.unreadable {
            self.doubt_names();
        }
    }

    /// Reads another piece of a message whose text is not here as a whole.
    pub(crate) fn read_piece(&mut self, piece: &[u8], is_last: bool, routines: &Routines) {
        let (names, text) = self.part.pass(piece, is_last);
        self.learn(&names);
        if routines.hides_in(&text) {
            self.doubt_names();
        }
    }

    /// Notes that there may be settings with names that are not known.
    pub(crate) fn doubt_names(&mut self) {
        self.more = true;
        self.told = Told::Unknown;
    }

    /// Notes a SET statement that runs exactly once if nothing fails. `None` if something else runs.
    pub(crate) fn set(&mut self, set: Option<PlainSet>) {
        match (set, &mut self.sets) {
            (Some(set), Sets::Certain(sets)) if sets.len() < TOUCHED_SETS_MAX => sets.push(set),
            _ => self.sets = Sets::Unsure,
        }
    }

    /// Notes a setting.
    pub(crate) fn name(&mut self, name: &[u8]) {
        let name = name.to_ascii_lowercase().into_boxed_slice();
        if self.names.contains(&name) {
            return;
        }
        if name.len() > CUSTOM_NAME_BYTES_MAX || !name.is_ascii() {
            self.doubt_names();
        } else if self.names.len() < TOUCHED_NAMES_MAX {
            self.names.push(name);
        } else if name.contains(&b'.') {
            self.doubt_names();
        } else {
            self.more = true;
        }
    }
}

/// The SET statements of a transaction.
pub(crate) enum Sets {
    /// The SET statements that certainly took effect if the transaction is committed, in order. Nothing else had an effect.
    Certain(Vec<PlainSet>),
    /// The SET statements may not have taken effect, or not only they.
    Unsure,
}

impl Default for Sets {
    fn default() -> Sets {
        Sets::Certain(Vec::new())
    }
}

/// The possible meaning of the values that are bound to a statement.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Values {
    /// The values are data, or names of settings.
    #[default]
    Data,
    /// The values are SQL that is run.
    Run,
}

/// The knowledge of the names of the settings that a transaction may have set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Told {
    /// All names are known, or PostgreSQL lists the settings.
    #[default]
    Known,
    /// All names are known, and the former contents of the session are gone: the transaction ran DISCARD ALL or RESET ALL, and nothing
    /// else.
    Cleared,
    /// The names of some settings are not known.
    Unknown,
}
