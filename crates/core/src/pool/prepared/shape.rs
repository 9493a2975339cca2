//! The shape of a statement: what PostgreSQL's answer to Describe says of it. A client goes by it when it reads rows and writes
//! values without asking again.
//!
//! This file compares shapes as PostgreSQL itself does before it runs a statement that was prepared earlier (`plancache.c`): by the
//! names, types and modifiers of the columns, and by the parameter types. It must never take two shapes for one: columns are compared
//! by a cryptographic digest, because users choose the names of columns.

use std::sync::Arc;

use pgweir_sql::{Traits, Verb};
use pgweir_wire::Messages;
use pgweir_wire::frontend::{BindHead, BindTail, Close, Describe, Target, tag};

/// The columns of a statement's result, as a digest of their names, types and modifiers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Columns([u8; COLUMNS_BYTES]);

/// The number of bytes in [`Columns`].
const COLUMNS_BYTES: usize = 16;

impl Columns {
    /// Returns the columns that the body of a RowDescription names. Their origin (table and column numbers) and the formats do not count.
    pub(crate) fn of(body: &[u8]) -> Columns {
        let mut told = Vec::with_capacity(body.len());
        let mut rest = body.get(2..).unwrap_or_default();
        while let Some(end) = rest.iter().position(|byte| *byte == 0)
            && let Some(numbers) = rest.get(end + 1..).and_then(<[u8]>::first_chunk::<COLUMN_NUMBERS>)
        {
            told.extend_from_slice(&rest[..=end]);
            told.extend_from_slice(&numbers[6..10]);
            told.extend_from_slice(&numbers[12..16]);
            rest = &rest[end + 1 + COLUMN_NUMBERS..];
        }
        // Of a message that is not of its form, every byte counts.
        told.extend_from_slice(rest);
        Columns::from_bytes(&pgweir_auth::sha256(&told)).unwrap_or(Columns([0; COLUMNS_BYTES]))
    }

    /// Returns the columns that another process has written.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Columns> {
        bytes.first_chunk().copied().map(Columns)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The numbers after a column's name: table, column (2 bytes), type, length (2 bytes), modifier, format (2 bytes).
const COLUMN_NUMBERS: usize = 18;

/// Parameters and columns of a statement, as PostgreSQL's answer to Describe tells them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// The type of each parameter, four bytes each: none is left open.
    pub(crate) params: Box<[u8]>,
    /// The columns of the result. `None` if the statement returns no rows, or if PostgreSQL does not compare its columns either (see
    /// [`has_fixed_columns`]).
    pub(crate) columns: Option<Columns>,
}

/// Knowledge that a client has of the parameters and columns of a statement.
#[derive(Clone, Default)]
pub(crate) enum Told {
    /// The client knows nothing: pgweir has answered its Parse without a server. The first server that runs the statement decides.
    AtParse,
    /// The client knows the shape of the statement that its name stands for.
    #[default]
    AsStatement,
    /// The client was told this shape, and its name has come to stand for another statement since.
    Shape(Arc<Shape>),
}

impl Told {
    /// Returns the knowledge of the client if its name stands for another statement from here on. `before` is the shape of the former
    /// statement.
    pub(crate) fn before_renewal(self, before: Option<&Arc<Shape>>) -> Told {
        match (self, before) {
            (Told::AsStatement, Some(shape)) => Told::Shape(Arc::clone(shape)),
            (told, _) => told,
        }
    }
}

/// Whether PostgreSQL compares the columns of such a statement before it runs it. It never does so for `SHOW`, `EXECUTE` and `FETCH`, which
/// may have other columns each time. `traits` is `None` if the text is too long to be looked at.
pub(crate) fn has_fixed_columns(query: &[u8], traits: Option<&Traits>) -> bool {
    let word = query.trim_ascii_start();
    let is = |verb: &[u8]| word.get(..verb.len()).is_some_and(|word| word.eq_ignore_ascii_case(verb));
    traits.is_none_or(|traits| match traits.verb {
        Verb::Show | Verb::Execute => false,
        Verb::Other => !is(b"fetch"),
        _ => true,
    })
}

/// Whether values keep their meaning if the statement's parameters have other types than the client was told: values in binary format are
/// of types that the client named itself in its Parse (`types`, four bytes each).
pub(crate) fn keeps_values(tail: &BindTail<'_>, types: &[u8]) -> bool {
    let (types, _) = types.as_chunks::<4>();
    let named = |at: usize| types.get(at).is_some_and(|oid| *oid != [0; 4]);
    tail.binary_parameters().enumerate().all(|(at, binary)| !binary || named(at))
}

/// Whether the client leaves the format of the columns open, or chooses one format for all of them.
pub(crate) fn wants_any_columns(tail: &BindTail<'_>) -> bool {
    tail.binary_results().count() <= 1
}

/// Whether the messages after a Bind ask for the columns of that portal, or of that statement, before anything is executed.
pub(crate) fn describes_before_execute(bytes: &[u8], head: &BindHead<'_>) -> bool {
    for message in Messages::of(bytes).whole() {
        let body = message.body();
        match message.tag() {
            tag::DESCRIBE => match Describe::parse(body) {
                Ok(Describe { target: Target::Portal, name }) if name == head.portal => return true,
                Ok(Describe { target: Target::Statement, name }) if name == head.statement => return true,
                Ok(_) => {}
                Err(_) => return false,
            },
            tag::FLUSH => {}
            tag::CLOSE if Close::parse(body).is_ok_and(|close| close.name != head.portal) => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use pgweir_sql::traits;
    use pgweir_wire::frontend;

    use super::*;

    fn column(name: &str, table: u32, oid: u32, modifier: i32, format: u16) -> Vec<u8> {
        let numbers = [&table.to_be_bytes()[..], &[0, 1], &oid.to_be_bytes(), &[0, 4]].concat();
        [name.as_bytes(), b"\0", &numbers, &modifier.to_be_bytes(), &format.to_be_bytes()].concat()
    }

    fn of(columns: &[Vec<u8>]) -> Columns {
        let count = u16::try_from(columns.len()).expect("few columns").to_be_bytes();
        Columns::of(&[&count[..], &columns.concat()].concat())
    }

    #[test]
    fn columns_are_their_names_types_and_modifiers() {
        let plain = of(&[column("a", 7, 23, -1, 0), column("b", 7, 25, 9, 0)]);
        assert_eq!(of(&[column("a", 8, 23, -1, 1), column("b", 0, 25, 9, 1)]), plain);
        for other in [
            of(&[column("a", 7, 23, -1, 0)]),
            of(&[column("a", 7, 23, -1, 0), column("c", 7, 25, 9, 0)]),
            of(&[column("a", 7, 700, -1, 0), column("b", 7, 25, 9, 0)]),
            of(&[column("a", 7, 23, -1, 0), column("b", 7, 25, 10, 0)]),
            of(&[column("b", 7, 25, 9, 0), column("a", 7, 23, -1, 0)]),
        ] {
            assert_ne!(other, plain);
        }
        assert_ne!(Columns::of(b"\0\x01a"), Columns::of(b"\0\x01b"), "of no form");
        assert_eq!(Columns::from_bytes(plain.as_bytes()), Some(plain));
    }

    #[test]
    fn columns_that_postgresql_does_not_compare_are_not_compared() {
        for (text, compares) in [
            ("select 1", true),
            ("(select 1)", true),
            ("insert into t values (1) returning a", true),
            ("with a as (select 1) select * from a", true),
            ("explain select 1", true),
            ("call p()", true),
            ("fetch 10 from c", false),
            (" FETCH c", false),
            ("explain select 1", true),
            ("execute p(1)", false),
            ("show work_mem", false),
        ] {
            let text = text.as_bytes();
            let found = has_fixed_columns(text, Some(&traits(text)));
            assert_eq!(found, compares, "{}", text.escape_ascii());
        }
        assert!(has_fixed_columns(b"show work_mem", None));
    }

    #[test]
    fn a_description_counts_if_it_comes_before_the_execution() {
        let head = BindHead { portal: b"p", statement: b"s", tail: 0 };
        let describe = |target, name: &[u8]| {
            let mut out = Vec::new();
            frontend::encode_describe(&mut out, target, name);
            out
        };
        let mut execute = Vec::new();
        frontend::encode_execute(&mut execute, b"p", 0);
        let flush = [tag::FLUSH, 0, 0, 0, 4].to_vec();
        let portal = describe(Target::Portal, b"p");
        for (messages, describes) in [
            (vec![&portal, &execute], true),
            (vec![&flush, &portal], true),
            (vec![&describe(Target::Statement, b"s"), &execute], true),
            (vec![&describe(Target::Portal, b""), &execute], false),
            (vec![&execute, &portal], false),
            (vec![], false),
        ] {
            let bytes: Vec<u8> = messages.into_iter().flatten().copied().collect();
            assert_eq!(describes_before_execute(&bytes, &head), describes, "{bytes:?}");
        }
        assert!(!describes_before_execute(&portal[..portal.len() - 1], &head), "not all of it is there");
    }
}
