//! What a client asked its server first, kept until it is answered. It can be asked once more if PostgreSQL
//! refused to run an outdated statement before anything was done ("cached plan must not change result type").
//!
//! What this file is for: to keep those bytes, and to say whether asking again is right. It is, if the client
//! learns the columns again in the same group, and if its values mean the same whatever types PostgreSQL
//! finds this time. In doubt it must say no: the client is told PostgreSQL's error then, as on a connection
//! without a pooler.

use pgweir_wire::frontend::{BindHead, BindTail, Close, Describe, Target, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::buffer_pool::BufferPool;
use crate::ledger::Unexpected;
use crate::limits::GROUP_BYTES_MAX;
use crate::pool::moves::server::comes_unasked;
use crate::pool::prepared::shape::{keeps_values, wants_any_columns};
use crate::pool::relay::ledger::Kind;
use crate::pool::{Pool, ServerId};

/// A whole Sync message.
const SYNC: [u8; 5] = [tag::SYNC, 0, 0, 0, 4];

/// What was sent to a server since it owed nothing.
#[derive(Default)]
pub(crate) enum FirstAsk {
    /// Nothing.
    #[default]
    Nothing,
    /// This.
    Kept(Kept),
    /// More than one group, too much, or nothing that could be asked again.
    Lost,
}

/// What a client asked first.
#[derive(Default)]
pub(crate) struct Kept {
    /// The BEGIN that was answered before and went in front.
    pub(crate) begin: Option<Vec<u8>>,
    /// The bytes as the client sent them.
    pub(crate) bytes: Vec<u8>,
    /// All of it is kept, whatever it is: the client's session went ahead of it, and may be refused.
    pub(crate) behind_replay: bool,
    /// All of it is kept, whatever it is: it runs again if the server is lost.
    outlives_server: bool,
}

impl FirstAsk {
    /// A BEGIN that was answered already is sent.
    pub(crate) fn note_begin(&mut self, text: Vec<u8>) {
        let behind_replay = self.keeps_all();
        *self = FirstAsk::Kept(Kept { begin: Some(text), behind_replay, ..Kept::default() });
    }

    /// What the client asks for is kept, to be asked on another server if this one is lost.
    pub(crate) fn keep_all(&mut self) {
        if matches!(self, FirstAsk::Nothing) {
            *self = FirstAsk::Kept(Kept { outlives_server: true, ..Kept::default() });
        }
    }

    /// The client's session is sent: what the client asks for after it can be asked on another server, if this one refuses it.
    pub(crate) fn note_replay(&mut self) {
        *self = FirstAsk::Kept(Kept { behind_replay: true, ..Kept::default() });
    }

    /// See [`Kept::behind_replay`] and [`Kept::outlives_server`].
    #[inline]
    pub(crate) fn keeps_all(&self) -> bool {
        matches!(self, FirstAsk::Kept(kept) if kept.behind_replay | kept.outlives_server)
    }

    /// So much of what the client sent was passed on.
    #[inline]
    pub(crate) fn note(&mut self, passed: &[u8], buffers: &mut BufferPool) {
        let fits = match self {
            FirstAsk::Lost => return,
            FirstAsk::Nothing => names_statement(passed),
            FirstAsk::Kept(kept) if kept.behind_replay | kept.outlives_server => true,
            FirstAsk::Kept(kept) if kept.bytes.is_empty() => names_statement(passed),
            FirstAsk::Kept(kept) => !kept.bytes.ends_with(&SYNC),
        };
        if !fits {
            return self.end(false, buffers);
        }
        if matches!(self, FirstAsk::Nothing) {
            *self = FirstAsk::Kept(Kept::default());
        }
        if let FirstAsk::Kept(kept) = self
            && kept.bytes.len() + passed.len() <= GROUP_BYTES_MAX
        {
            if kept.bytes.capacity() == 0 {
                kept.bytes = buffers.take();
            }
            kept.bytes.extend_from_slice(passed);
        } else {
            self.end(false, buffers);
        }
    }

    /// An answer came. `all`: nothing else is owed.
    #[inline]
    pub(crate) fn end(&mut self, all: bool, buffers: &mut BufferPool) {
        let next = if all { FirstAsk::Nothing } else { FirstAsk::Lost };
        if let FirstAsk::Kept(kept) = std::mem::replace(self, next) {
            buffers.give_back(kept.bytes);
            kept.begin.into_iter().for_each(|text| buffers.give_back(text));
        }
    }
}

/// A Bind or a Describe of a statement that has a name comes first.
#[inline]
fn names_statement(bytes: &[u8]) -> bool {
    let Some(body) = bytes.get(HEADER_LEN..) else { return false };
    match bytes[0] {
        tag::BIND => BindHead::parse_prefix(body).is_some_and(|head| !head.statement.is_empty()),
        tag::DESCRIBE => matches!(body, [b'S', first, ..] if *first != 0),
        _ => false,
    }
}

/// The name of the statement that failed as outdated, if `bytes` are one whole group about it which may be asked again. `failed` is
/// what PostgreSQL answered with that error; `None`: it was what pgweir sent ahead of the group. `types` knows the parameter types that
/// the client named for a statement, four bytes each.
pub(crate) fn outdated_name<'a, 'b>(
    bytes: &'a [u8],
    failed: Option<Kind>,
    types: impl Fn(&[u8]) -> Option<&'b [u8]>,
) -> Option<&'a [u8]> {
    // Only then nothing of the group was answered.
    let first = if bytes.first() == Some(&tag::BIND) { Kind::Bind } else { Kind::DescribeStatement };
    if failed.is_some_and(|failed| failed != first) {
        return None;
    }
    let (mut name, mut bound, mut described, mut at) = (None, false, false, 0);
    loop {
        let rest = bytes.get(at..)?;
        let header = Header::peek(rest).ok()??;
        let body = rest.get(HEADER_LEN..header.total())?;
        at += header.total();
        match header.tag {
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
                if bound || !same || !keeps_its_meaning(&tail, types(head.statement)?) {
                    return None;
                }
                bound = true;
            }
            // A client that does not ask for the columns relies on those that it was told of before.
            tag::EXECUTE if bound && described => {}
            tag::CLOSE if Close::parse(body).ok()?.target == Target::Portal => {}
            tag::FLUSH => {}
            tag::SYNC => return name.filter(|_| at == bytes.len()),
            _ => return None,
        }
    }
}

/// Values in binary are of types that the client named itself, and it does not say column by column how it wants the columns.
fn keeps_its_meaning(tail: &BindTail<'_>, types: &[u8]) -> bool {
    wants_any_columns(tail) && keeps_values(tail, types)
}

impl Pool {
    /// A server that owed nothing has sent this: it does not answer a request that was sent to the server only now.
    pub(crate) fn was_asked_first(&self, id: ServerId, mut behind: &[u8]) -> Result<(), Unexpected> {
        if self.servers.get(id).is_none_or(|server| server.ledger.is_at_rest()) {
            return Ok(());
        }
        while let Some(&tag) = behind.first() {
            if !comes_unasked(tag) {
                return Err(Unexpected { tag, expected: "nothing" });
            }
            let Ok(Some(header)) = Header::peek(behind) else { break };
            behind = behind.get(header.total()..).unwrap_or_default();
        }
        Ok(())
    }
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
        outdated_name(bytes, Some(failed), |name| (name == b"s").then_some(types))
    }

    /// One parameter of four bytes in this format, and the results in these.
    fn tail(format: u8, results: &[u8]) -> Vec<u8> {
        let mut out = vec![0, 1, 0, format, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4, 0, results.len() as u8];
        results.iter().for_each(|format| out.extend([0, *format]));
        out
    }

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
    }

    #[test]
    fn a_group_that_goes_by_what_its_client_knows_is_not() {
        let portal = describe(Target::Portal, b"");
        let no_columns = [bind(b"s", &PLAIN), execute(), SYNC.to_vec()].concat();
        let two = [bind(b"s", &PLAIN), portal.clone(), bind(b"s", &PLAIN), SYNC.to_vec()].concat();
        let others = [describe(Target::Statement, b"s"), bind(b"t", &PLAIN), SYNC.to_vec()].concat();
        let unknown = [bind(b"t", &PLAIN), portal.clone(), execute(), SYNC.to_vec()].concat();
        let no_end = [bind(b"s", &PLAIN), portal.clone(), execute()].concat();
        let more = [bind(b"s", &PLAIN), portal, execute(), SYNC.to_vec(), SYNC.to_vec()].concat();
        for group in [no_columns, two, others, unknown, no_end, more] {
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
    fn one_group_is_kept_and_no_more() {
        let mut buffers = BufferPool::default();
        let kept = |first: &FirstAsk| match first {
            FirstAsk::Kept(kept) => kept.bytes.len(),
            FirstAsk::Nothing | FirstAsk::Lost => 0,
        };
        let (bind, rest) = (bind(b"s", &PLAIN), [execute(), SYNC.to_vec()].concat());
        let mut first = FirstAsk::default();
        first.note(&bind, &mut buffers);
        first.note(&rest, &mut buffers);
        assert_eq!(kept(&first), bind.len() + rest.len());
        first.note(&bind, &mut buffers);
        assert_eq!(kept(&first), 0, "a second group");
        first.end(true, &mut buffers);
        first.note(&execute(), &mut buffers);
        first.note(&bind, &mut buffers);
        assert_eq!(kept(&first), 0, "it began with something else");
        first.end(true, &mut buffers);
        first.note(&bind, &mut buffers);
        first.note(&vec![b'd'; GROUP_BYTES_MAX], &mut buffers);
        assert_eq!(kept(&first), 0, "too much");
    }
}
