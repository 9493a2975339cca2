//! Groups that stand alone. A client sends one between two transactions, and it is looked at as a whole before any of it is sent.
//!
//! This file finds the groups that are certainly over when they are answered: such a group opens no transaction, begins no COPY, leaves
//! nothing in the session, and needs nothing that another group left there. Only such a group may share a server connection with the groups
//! of other clients. This file must reject a group when in doubt: a rejected group costs speed, never correctness.

use pgweir_sql::{Statements, Traits, Verb};
use pgweir_wire::frontend::{BindHead, Close, Describe, Execute, Parse, Query, Target, tag};
use pgweir_wire::{HEADER_LEN, Header};

use super::whole_messages;
use crate::ids::PoolId;
use crate::limits::GROUP_BYTES_MAX;
use crate::pool::catalog::reach::{Reach, Reads};
use crate::pool::prepared::texts::Texts;
use crate::pool::sequences::state::{asks, draws};
use crate::pool::session::pins::is_notable;
use crate::stats::obstacle::Obstacle;

/// A bit of the fingerprint: the group uses statements that were prepared before. Such a group and the same text in a Query have separate
/// estimates.
const PREPARED_BEFORE: u64 = 1;
/// A bit of the fingerprint: the group prepares the statement that it uses. Such a group has an estimate of its own, too.
const PREPARED_WITH: u64 = 2;

/// A whole group that is certainly over with its own answer: one Query, or messages of the extended protocol that end in Sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    /// The length of the group, which is at the front of the bytes that its client sent.
    pub(crate) len: u32,
    /// The fingerprint of all statements of the group.
    pub(crate) fingerprint: u64,
    /// The fingerprint of the first statement's text alone.
    pub(crate) statement: u64,
    traits: GroupTraits,
}

/// The set of effects that a group's statements may have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct GroupTraits(u16);

impl GroupTraits {
    const MAY_WRITE: GroupTraits = GroupTraits(1);
    const NAMES_STATEMENTS: GroupTraits = GroupTraits(2);
    const MAY_TOUCH: GroupTraits = GroupTraits(4);
    const DRAWS: GroupTraits = GroupTraits(8);
    const ASKS: GroupTraits = GroupTraits(16);
    const AT_PRIMARY: GroupTraits = GroupTraits(32);
    const SEVERAL: GroupTraits = GroupTraits(64);
    const LEAVES_PORTAL: GroupTraits = GroupTraits(128);
    const NAMES_SEVERAL: GroupTraits = GroupTraits(256);

    /// Adds the other traits to the set if `is_so` is true.
    #[inline]
    fn add(&mut self, other: GroupTraits, is_so: bool) {
        self.0 |= if is_so { other.0 } else { 0 };
    }

    /// Adds the effects of one statement with these traits.
    #[inline]
    fn note(&mut self, traits: &Traits, reads: Reads) {
        self.add(GroupTraits::MAY_WRITE, reads == Reads::InDoubt);
        self.add(GroupTraits::AT_PRIMARY, reads == Reads::AtPrimary);
        self.add(GroupTraits::MAY_TOUCH, is_notable(traits.marks));
        self.add(GroupTraits::DRAWS, !reads.certainly() && draws(traits));
        self.add(GroupTraits::ASKS, asks(traits.marks));
    }

    #[inline]
    fn has(self, other: GroupTraits) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns why the answer to statements with these effects does not follow from the data and the session's settings alone; `None` if it
    /// does. This is the rule of the query cache, for groups and for texts.
    fn obstacle(self) -> Option<Obstacle> {
        let of = |others: &[GroupTraits]| others.iter().any(|other| self.has(*other));
        match () {
            () if of(&[GroupTraits::SEVERAL, GroupTraits::NAMES_SEVERAL]) => Some(Obstacle::Several),
            () if of(&[GroupTraits::ASKS, GroupTraits::MAY_TOUCH]) => Some(Obstacle::Session),
            () if of(&[GroupTraits::MAY_WRITE, GroupTraits::DRAWS]) => Some(Obstacle::MayWrite),
            () => None,
        }
    }
}

/// Returns why the answer to a text with these traits does not follow from the data and the session's settings alone, as
/// [`Group::obstacle`] does for a group that is this text.
pub(crate) fn obstacle_of_text(traits: &Traits, reads: Reads) -> Option<Obstacle> {
    let is_query = matches!(traits.verb, Verb::Select | Verb::Values | Verb::Table | Verb::With);
    let mut effects = GroupTraits::default();
    effects.note(traits, reads);
    match traits.statements {
        Statements::Many => Some(Obstacle::Several),
        _ if !is_query => Some(Obstacle::NotASelect),
        // `group_at_front` finds no group then.
        _ if !traits.certainly_self_contained => effects.obstacle().or(Some(Obstacle::Session)),
        _ => effects.obstacle(),
    }
}

impl Group {
    /// Returns the key of the group among the estimates: the same text is another statement in another pool.
    #[inline]
    pub(crate) fn estimate_key(&self, pool: PoolId) -> u64 {
        use slotmap::Key;
        self.fingerprint ^ pool.data().as_ffi().wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Whether the group changes nothing, waits for no row lock and runs no code of users. Other groups may be queued after such a group,
    /// and it may run a second time if its client has not seen the first answer.
    #[inline]
    pub(crate) fn certainly_reads(&self) -> bool {
        !self.traits.has(GroupTraits::MAY_WRITE)
    }

    /// Whether the group is one statement that certainly reads, and that a standby with the same data answers in the same way.
    pub(crate) fn reads_anywhere(&self) -> bool {
        !self.traits.has(GroupTraits::MAY_WRITE)
            && !self.traits.has(GroupTraits::AT_PRIMARY)
            && !self.traits.has(GroupTraits::SEVERAL)
            && !self.names_several()
    }

    /// Whether the group uses another statement besides the prepared statement that it names.
    #[inline]
    pub(crate) fn names_several(&self) -> bool {
        self.traits.has(GroupTraits::NAMES_SEVERAL)
    }

    /// Whether a later group of the same transaction block may use a portal of this group: the portal has a name, or rows that were not
    /// asked for.
    pub(crate) fn leaves_portal(&self) -> bool {
        self.traits.has(GroupTraits::LEAVES_PORTAL)
    }

    /// Whether the group names prepared statements.
    #[inline]
    pub(crate) fn names_statements(&self) -> bool {
        self.traits.has(GroupTraits::NAMES_STATEMENTS)
    }

    /// Whether the group may touch its session in a way that only an audit of the server could find.
    #[inline]
    pub(crate) fn may_touch(&self) -> bool {
        self.traits.has(GroupTraits::MAY_TOUCH)
    }

    /// Whether the group may draw values from sequences.
    #[inline]
    pub(crate) fn draws(&self) -> bool {
        self.traits.has(GroupTraits::DRAWS)
    }

    /// Whether the group asks for values that were drawn from sequences.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.traits.has(GroupTraits::ASKS)
    }

    /// Returns why the answer to the group does not follow from the data and the session's settings alone: the group may do more than read, asks
    /// for what the session did before, or is not certainly one statement. `None` if the query cache may keep the answer.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        self.traits.obstacle().or((!self.is_one_statement()).then_some(Obstacle::Several))
    }

    /// Whether the group executes exactly one statement (Describe and Close do not count). Only `true` is reliable: a group of one
    /// statement can return `false`.
    pub(crate) fn is_one_statement(&self) -> bool {
        matches!(self.fingerprint ^ self.statement, 0 | PREPARED_BEFORE | PREPARED_WITH)
    }
}

/// Returns the group at the front of `bytes`, if all of it is there and it is certainly over with its own answer. For the client's name of
/// a prepared statement, `statement` returns the traits of the statement's text, and whether the statement only reads.
#[inline]
pub(crate) fn group_at_front<'a>(
    bytes: &[u8],
    texts: &mut Texts,
    reach: &Reach,
    statement: impl Fn(&[u8]) -> Option<(&'a Traits, Reads)>,
) -> Option<Group> {
    let header = Header::peek(bytes).ok()??;
    if header.tag != tag::QUERY {
        return Extended::default().read(bytes, texts, reach, statement);
    }
    let message = bytes.get(..header.total()).filter(|message| message.len() <= GROUP_BYTES_MAX)?;
    let query = Query::parse(message.get(HEADER_LEN..)?).ok()?;
    texts.look(query.text, |traits, verdict| {
        traits.certainly_self_contained.then(|| {
            let mut group = GroupTraits::default();
            group.note(traits, reach.reads(query.text, traits, verdict));
            Group {
                len: message.len() as u32,
                fingerprint: traits.fingerprint,
                statement: traits.fingerprint,
                traits: group,
            }
        })
    })
}

/// A group of the extended protocol, while it is read.
#[derive(Default)]
struct Extended<'b> {
    /// The name of the statement that the group used first. The unnamed statement has an empty name.
    name: Option<&'b [u8]>,
    /// The traits of the unnamed statement, and whether it certainly only reads. `None` until the group has prepared the unnamed statement.
    unnamed: Option<(Traits, Reads)>,
    /// Whether the group has prepared the unnamed statement and not bound it since: a later group may use it.
    leaves_unnamed: bool,
    fingerprint: u64,
    statement: u64,
    executes: bool,
    /// A portal that outlives the group in a transaction block, and of which a later group may make use.
    portal: Option<&'b [u8]>,
    traits: GroupTraits,
}

/// Execute of the unnamed portal, for all rows.
const EXECUTE_ALL: [u8; 5] = [0; 5];

impl<'b> Extended<'b> {
    #[inline]
    fn read<'a>(
        mut self,
        bytes: &'b [u8],
        texts: &mut Texts,
        reach: &Reach,
        statement: impl Fn(&[u8]) -> Option<(&'a Traits, Reads)>,
    ) -> Option<Group> {
        for message in whole_messages(bytes) {
            let body = message.body();
            match message.tag() {
                tag::SYNC => {
                    return (self.executes && !self.leaves_unnamed).then(|| self.finish(message.end()));
                }
                tag::PARSE => self.parse(&Parse::parse(body).ok()?, texts, reach)?,
                tag::BIND => {
                    let BindHead { portal, statement: name, .. } = BindHead::parse_prefix(body)?;
                    if self.portal == Some(portal) {
                        self.portal = None;
                    }
                    if !portal.is_empty() {
                        self.leaves(portal);
                    }
                    self.leaves_unnamed &= !name.is_empty();
                    self.uses(name, &statement)?;
                }
                tag::DESCRIBE => match Describe::parse(body).ok()? {
                    Describe { target: Target::Statement, name } => self.uses(name, &statement)?,
                    Describe { target: Target::Portal, .. } => {}
                },
                tag::EXECUTE => {
                    self.executes = true;
                    if *body != EXECUTE_ALL {
                        let execute = Execute::parse(body).ok()?;
                        if execute.max_rows != 0 {
                            self.leaves(execute.portal);
                        }
                    }
                }
                // Outside of a transaction portals end with the group anyway; statements do not.
                tag::CLOSE => match Close::parse(body).ok()? {
                    Close { target: Target::Portal, name } => {
                        self.portal = self.portal.filter(|portal| *portal != name);
                    }
                    Close { .. } => return None,
                },
                _ => return None,
            }
        }
        None
    }

    /// Notes that the portal outlives the group unless it is closed. If there are two such portals, one is certainly left.
    #[cold]
    fn leaves(&mut self, portal: &'b [u8]) {
        let other = self.portal.replace(portal).is_some_and(|other| other != portal);
        self.traits.add(GroupTraits::LEAVES_PORTAL, other);
    }

    /// Reads a Parse. Returns `None` for a named statement, because it would outlive the group.
    fn parse(&mut self, parse: &Parse<'_>, texts: &mut Texts, reach: &Reach) -> Option<()> {
        if !parse.name.is_empty() {
            return None;
        }
        texts.look(parse.query, |traits, verdict| {
            let found = reach.reads(parse.query, traits, verdict);
            let reads =
                if pgweir_wire::types::are_built_in(parse.param_types) { found } else { Reads::InDoubt };
            self.unnamed = Some((*traits, reads));
        });
        self.leaves_unnamed = true;
        Some(())
    }

    fn uses<'a>(
        &mut self,
        name: &'b [u8],
        statement: impl Fn(&[u8]) -> Option<(&'a Traits, Reads)>,
    ) -> Option<()> {
        let unnamed;
        let (traits, reads) = if name.is_empty() {
            unnamed = self.unnamed?;
            (&unnamed.0, unnamed.1)
        } else {
            statement(name)?
        };
        if !traits.certainly_self_contained {
            return None;
        }
        self.traits.add(GroupTraits::NAMES_STATEMENTS, !name.is_empty());
        self.traits.add(GroupTraits::NAMES_SEVERAL, *self.name.get_or_insert(name) != name);
        self.traits.note(traits, reads);
        self.fingerprint = self.fingerprint.rotate_left(7) ^ traits.fingerprint;
        if self.statement == 0 {
            self.statement = traits.fingerprint;
        } else {
            self.traits.add(GroupTraits::SEVERAL, self.executes);
        }
        Some(())
    }

    fn finish(&mut self, len: usize) -> Group {
        self.traits.add(GroupTraits::LEAVES_PORTAL, self.portal.is_some());
        Group {
            len: len as u32,
            // The same text costs something else when it need not be prepared, and in the simple protocol.
            fingerprint: self.fingerprint
                ^ if self.traits.has(GroupTraits::NAMES_STATEMENTS) {
                    PREPARED_BEFORE
                } else {
                    PREPARED_WITH
                },
            statement: self.statement,
            traits: self.traits,
        }
    }
}

#[cfg(test)]
mod tests {
    use pgweir_sql::traits;
    use pgweir_wire::frontend;

    use super::*;
    use crate::limits::GROUP_MESSAGES_MAX;

    fn query(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_query(&mut out, text.as_bytes());
        out
    }

    fn parse(name: &str, text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_parse(&mut out, name.as_bytes(), text.as_bytes(), &[]);
        out
    }

    fn bind(name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_bind_head(&mut out, b"", name.as_bytes(), 6);
        out.extend([0; 6]);
        out
    }

    fn execute() -> Vec<u8> {
        let mut out = vec![b'E'];
        out.extend(9u32.to_be_bytes());
        out.extend([0; 5]);
        out
    }

    const SYNC: [u8; 5] = [b'S', 0, 0, 0, 4];

    fn of(pieces: &[&[u8]]) -> Option<Group> {
        let (select, begin) = (traits(b"select 1"), traits(b"begin"));
        let known = |name: &[u8]| match name {
            b"s" => Some((&select, Reads::AtPrimary)),
            b"begin" => Some((&begin, Reads::InDoubt)),
            _ => None,
        };
        group_at_front(&pieces.concat(), &mut Texts::default(), &Reach::of_nothing_special(), known)
    }

    #[test]
    fn a_query_that_is_certain_is_a_group_whatever_follows() {
        let select = query("select 1");
        let group = of(&[&select, b"Q\0"]).expect("a group");
        assert_eq!((group.len as usize, group.certainly_reads()), (select.len(), true));
        assert!(!group.reads_anywhere(), "nothing is known of standbys");
        assert!(!of(&[&query("insert into t values (1)")]).expect("a group").certainly_reads());
        assert_eq!(of(&[&query("select 1; select 2")]), None);
        assert_eq!(of(&[&query("begin")]), None);
        assert_eq!(of(&[&query("")]), None);
        assert_eq!(of(&[&select[..select.len() - 1]]), None);
        assert_eq!(of(&[&query(&format!("select '{}'", "x".repeat(GROUP_BYTES_MAX)))]), None);
    }

    #[test]
    fn an_extended_group_is_one_when_its_sync_is_there() {
        let whole: [&[u8]; 4] = [&parse("", "select $1"), &bind(""), &execute(), &SYNC];
        assert!(of(&whole).is_some());
        assert_eq!(of(&whole[..3]), None);
        assert!(of(&[&bind("s"), &execute(), &SYNC]).expect("a group").names_statements());
    }

    #[test]
    fn what_reaches_beyond_its_sync_is_none() {
        let parse_and = |text: &str| of(&[&parse("", text), &bind(""), &execute(), &SYNC]);
        assert_eq!(parse_and("begin"), None);
        assert_eq!(parse_and("select set_config('a', 'b', false)"), None);
        assert_eq!(of(&[&bind(""), &execute(), &SYNC]), None, "prepared by an earlier group");
        assert_eq!(of(&[&bind("begin"), &execute(), &SYNC]), None);
        assert_eq!(of(&[&bind("unknown"), &execute(), &SYNC]), None);
        assert_eq!(of(&[&parse("s", "select 1"), &bind("s"), &execute(), &SYNC]), None);
        assert_eq!(of(&[&parse("", "select 1"), &query("select 1"), &SYNC]), None);
        assert_eq!(of(&[&SYNC]), None);
        assert_eq!(of(&[&parse("", "select 1"), &execute(), &SYNC]), None, "a later group may bind it");
        let many = execute().repeat(GROUP_MESSAGES_MAX);
        assert_eq!(of(&[&parse("", "select 1"), &bind(""), &many, &SYNC]), None);
    }
}
