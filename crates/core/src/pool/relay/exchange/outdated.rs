//! Groups about one prepared statement that a server refuses as outdated ("cached plan must not change result type").
//!
//! Such a group may be sent again if the client learns the columns again in it, and if the client's values mean the same whatever types
//! PostgreSQL finds this time: binary values have types that the client named, or pgweir compares the types with those that the client was
//! told before the group runs. In doubt the client is told PostgreSQL's error, as on a connection without a pooler.
//!
//! The end of the group need not be there: PostgreSQL does not wait for a Sync before it tells an error. What follows goes on behind the
//! messages that are sent again.

use pgweir_wire::Messages;
use pgweir_wire::frontend::{BindHead, BindTail, Close, Describe, Target, tag};

use crate::pool::prepared::shape::{keeps_values, wants_any_columns};
use crate::pool::relay::ledger::Kind;

/// A statement that a server refuses as outdated.
#[derive(Clone, Copy)]
pub(crate) struct Outdated<'a> {
    /// The parameter types that the client named, four bytes each.
    pub(crate) types: &'a [u8],
    /// Whether the parameter types that the client was told are compared before the statement runs again.
    pub(crate) is_compared: bool,
}

/// Returns the name of the statement that failed as outdated, if `bytes` are one group about it that may run again, or the beginning of
/// one. `failed` is the message that PostgreSQL answered with that error; `None` if pgweir sent that message ahead of the group. `known` finds a statement by the
/// client's name.
pub(crate) fn outdated_name<'a, 'b>(
    bytes: &'a [u8],
    failed: Option<Kind>,
    known: impl Fn(&[u8]) -> Option<Outdated<'b>>,
) -> Option<&'a [u8]> {
    // Only then nothing of the group was answered.
    let first = if bytes.first() == Some(&tag::BIND) { Kind::Bind } else { Kind::DescribeStatement };
    if failed.is_some_and(|failed| failed != first) {
        return None;
    }
    let (mut name, mut bound, mut described) = (None, false, false);
    for message in Messages::of(bytes).whole() {
        let body = message.body();
        match message.tag() {
            tag::DESCRIBE => {
                let describe = Describe::parse(body).ok()?;
                let same = match describe.target {
                    Target::Statement => *name.get_or_insert(describe.name) == describe.name,
                    Target::Portal => bound,
                };
                described = same.then_some(true)?;
            }
            tag::BIND => {
                let head = BindHead::parse_prefix(body)?;
                let tail = BindTail::parse(body.get(head.tail..)?).ok()?;
                let same = *name.get_or_insert(head.statement) == head.statement;
                let Outdated { types, is_compared } = known(head.statement)?;
                let keeps_meaning = is_compared || keeps_values(&tail, types);
                if bound || !same || !keeps_meaning || !wants_any_columns(&tail) {
                    return None;
                }
                bound = true;
            }
            // A client that does not ask for the columns relies on those that it was told of before.
            tag::EXECUTE if bound && described => {}
            tag::CLOSE if Close::parse(body).ok()?.target == Target::Portal => {}
            tag::FLUSH => {}
            tag::SYNC if message.end() == bytes.len() => {}
            _ => return None,
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use pgweir_wire::frontend;

    use super::*;

    const TEXT_OF_ANY_TYPE: [u8; 4] = [0; 4];
    const INT4: [u8; 4] = [0, 0, 0, 23];

    fn bind(name: &[u8], tail: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_bind_head(&mut out, b"", name, tail.len());
        out.extend_from_slice(tail);
        out
    }

    fn describe(target: Target, name: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_describe(&mut out, target, name);
        out
    }

    fn execute() -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_execute(&mut out, b"", 0);
        out
    }

    fn outdated<'a>(bytes: &'a [u8], failed: Kind, types: &[u8]) -> Option<&'a [u8]> {
        let known = Outdated { types, is_compared: false };
        outdated_name(bytes, Some(failed), |name| (name == b"s").then_some(known))
    }

    /// Encodes the end of a Bind with one parameter of four bytes in this format, and with these result formats.
    fn tail(format: u8, results: &[u8]) -> Vec<u8> {
        let mut out = vec![0, 1, 0, format, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4, 0, results.len() as u8];
        results.iter().for_each(|format| out.extend([0, *format]));
        out
    }

    const SYNC: [u8; 5] = [tag::SYNC, 0, 0, 0, 4];
    const PLAIN: [u8; 6] = [0; 6];

    #[test]
    fn a_group_that_learns_its_columns_is_asked_again() {
        let portal = describe(Target::Portal, b"");
        let group = [bind(b"s", &PLAIN), portal.clone(), execute(), SYNC.to_vec()].concat();
        assert_eq!(outdated(&group, Kind::Bind, &[]), Some(&b"s"[..]));
        let statement = describe(Target::Statement, b"s");
        let group = [statement.clone(), bind(b"s", &PLAIN), execute(), SYNC.to_vec()].concat();
        assert_eq!(outdated(&group, Kind::DescribeStatement, &[]), Some(&b"s"[..]));
        assert_eq!(outdated(&group, Kind::Bind, &[]), None, "the first answer was given");
        let group = [statement, SYNC.to_vec()].concat();
        assert_eq!(outdated(&group, Kind::DescribeStatement, &[]), Some(&b"s"[..]));
        for beginning in [vec![bind(b"s", &PLAIN)], vec![bind(b"s", &PLAIN), portal.clone(), execute()]] {
            assert_eq!(outdated(&beginning.concat(), Kind::Bind, &[]), Some(&b"s"[..]), "no Sync yet");
        }
        assert_eq!(outdated(&[bind(b"s", &PLAIN), execute()].concat(), Kind::Bind, &[]), None);
    }

    #[test]
    fn a_group_that_goes_by_what_its_client_knows_is_not() {
        let portal = describe(Target::Portal, b"");
        let no_columns = [bind(b"s", &PLAIN), execute(), SYNC.to_vec()].concat();
        let two = [bind(b"s", &PLAIN), portal.clone(), bind(b"s", &PLAIN), SYNC.to_vec()].concat();
        let others = [describe(Target::Statement, b"s"), bind(b"t", &PLAIN), SYNC.to_vec()].concat();
        let unknown = [bind(b"t", &PLAIN), portal.clone(), execute(), SYNC.to_vec()].concat();
        let more = [bind(b"s", &PLAIN), portal, execute(), SYNC.to_vec(), SYNC.to_vec()].concat();
        for group in [no_columns, two, others, unknown, more] {
            for failed in [Kind::Bind, Kind::DescribeStatement] {
                assert_eq!(outdated(&group, failed, &[]), None);
            }
        }
    }

    #[test]
    fn values_and_columns_must_not_be_taken_for_others() {
        let group = |tail: &[u8]| {
            let portal = describe(Target::Portal, b"");
            [bind(b"s", tail), portal, execute(), SYNC.to_vec()].concat()
        };
        for (tail, types, again) in [
            (tail(0, &[]), TEXT_OF_ANY_TYPE, true),
            (tail(1, &[]), TEXT_OF_ANY_TYPE, false),
            (tail(1, &[]), INT4, true),
            (tail(1, &[1]), INT4, true),
            (tail(0, &[0, 1]), INT4, false),
        ] {
            let group = group(&tail);
            assert_eq!(outdated(&group, Kind::Bind, &types).is_some(), again, "{tail:?} {types:?}");
        }
        assert_eq!(outdated(&group(&tail(1, &[])), Kind::Bind, &[]), None, "no type was named");
    }

    #[test]
    fn values_whose_types_are_compared_may_be_of_any_type() {
        let known = Outdated { types: &[], is_compared: true };
        let again = |group: &[u8]| outdated_name(group, Some(Kind::Bind), |_| Some(known)).is_some();
        let portal = describe(Target::Portal, b"");
        assert!(again(&[bind(b"s", &tail(1, &[])), portal.clone(), execute(), SYNC.to_vec()].concat()));
        assert!(!again(&[bind(b"s", &tail(1, &[0, 1])), portal, execute(), SYNC.to_vec()].concat()));
        assert!(!again(&[bind(b"s", &tail(1, &[])), execute(), SYNC.to_vec()].concat()));
    }
}
