//! Queries that read rows of one table by the values of columns: `SELECT ... FROM one_table WHERE a = $1 AND b = 'x'`. The scanner tells whether a
//! text is certainly of this form, and which columns are compared with which values. In doubt the answer is no.
//!
//! The form has no subquery, no join, no OR and no NOT: each row of the answer comes from rows of the table for which all comparisons hold. The
//! meaning of names, types and of the operator `=` is for PostgreSQL to say.

use std::iter::Peekable;

use crate::lexer::{Kind, Lexeme, Lexer};

/// Words that begin a query inside of a query, or lead to another table.
const OTHER_QUERIES: [&[u8]; 9] =
    [b"except", b"intersect", b"into", b"join", b"select", b"table", b"union", b"values", b"with"];

/// Key words for types that no `search_path` and no type of a user can give another meaning, and that keep a value as it is.
const CAST_TYPES: [&[u8]; 5] = [b"bigint", b"int", b"integer", b"smallint", b"varchar"];

/// The largest depth of parentheses that the scanner follows.
const DEPTH_MAX: u32 = 64;

/// A comparison of a column with a value, which holds for each row that the query reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Equality<'a> {
    /// The column's name as it is written in the text, without quotes and without the name of the table.
    pub column: &'a [u8],
    /// Whether the name is in quotes, so that its letters are not folded to lower case.
    pub is_quoted: bool,
    /// The value.
    pub value: ComparedValue<'a>,
}

/// A value as it is written in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparedValue<'a> {
    /// A number without sign.
    Number(&'a [u8]),
    /// A text between plain quotes, without them.
    Text(&'a [u8]),
    /// The digits of a parameter.
    Param(&'a [u8]),
}

/// One side of a comparison.
enum Operand<'a> {
    Column { name: &'a [u8], is_quoted: bool },
    Value(ComparedValue<'a>),
}

/// Returns whether `sql` is certainly one query that reads one table, and whose whole condition is comparisons with `=` that all must hold.
/// `found` gets each comparison of a column with a value. What `found` gets counts only if the result is `true`.
///
/// Takes time linear in the length of `sql` and allocates nothing.
#[must_use]
pub fn single_table_equalities<'a>(sql: &'a [u8], mut found: impl FnMut(Equality<'a>)) -> bool {
    let mut scan = Scan { lexemes: Lexer::new(sql).map(Result::ok).peekable(), depth: 0 };
    scan.read(&mut found).is_some()
}

struct Scan<'a, I: Iterator<Item = Option<Lexeme<'a>>>> {
    /// The lexemes; an item is `None` where the text cannot be read.
    lexemes: Peekable<I>,
    depth: u32,
}

impl<'a, I: Iterator<Item = Option<Lexeme<'a>>>> Scan<'a, I> {
    /// Returns `None` if the text is not of the form.
    fn read(&mut self, found: &mut impl FnMut(Equality<'a>)) -> Option<()> {
        self.word(b"select")?;
        self.skip_list()?;
        self.table()?;
        loop {
            self.comparison(found)?;
            if !self.takes_word(b"and") {
                break;
            }
        }
        self.end()
    }

    fn next(&mut self) -> Option<Lexeme<'a>> {
        self.lexemes.next()?
    }

    /// Takes the next lexeme if it is this one.
    fn takes(&mut self, kind: Kind, text: &[u8]) -> bool {
        let is_it = |next: &Option<Lexeme<'a>>| {
            next.is_some_and(|next| next.kind == kind && next.text.eq_ignore_ascii_case(text))
        };
        self.lexemes.next_if(is_it).is_some()
    }

    fn takes_word(&mut self, word: &[u8]) -> bool {
        self.takes(Kind::Word, word)
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.takes_word(word).then_some(())
    }

    /// Skips the list of what is selected, and FROM.
    fn skip_list(&mut self) -> Option<()> {
        // After these a word is no key word: `a.from`, `a as from`, `a is distinct from b`. A text with such a FROM is rare.
        let mut is_other = false;
        let mut depth = 0u32;
        loop {
            let next = self.next()?;
            let is = |words: &[&[u8]]| words.iter().any(|word| next.text.eq_ignore_ascii_case(word));
            match next.kind {
                Kind::UnicodeWord => return None,
                // Inside of parentheses FROM belongs to a function: `extract(year from a)`.
                Kind::Word if is(&[b"from"]) => return (depth == 0 && !is_other).then_some(()),
                Kind::Word if is(&OTHER_QUERIES) => return None,
                Kind::Symbol if is(&[b"("]) => depth += 1,
                Kind::Symbol if is(&[b")"]) => depth = depth.checked_sub(1)?,
                Kind::Symbol if is(&[b";"]) => return None,
                _ => {}
            }
            is_other = match next.kind {
                Kind::Word => is(&[b"as", b"distinct"]),
                Kind::Symbol => is(&[b"."]),
                _ => false,
            };
        }
    }

    /// Reads the name of a table, perhaps another name for it, and WHERE.
    fn table(&mut self) -> Option<()> {
        self.name()?;
        while self.takes(Kind::Symbol, b".") {
            self.name()?;
        }
        let has_as = self.takes_word(b"as");
        if has_as || !self.takes_word(b"where") {
            self.name()?;
            self.word(b"where")?;
        }
        Some(())
    }

    /// Reads a name; returns it, and whether it is in quotes. A FROM that stands here would mean that the list was read wrongly.
    fn name(&mut self) -> Option<(&'a [u8], bool)> {
        let next = self.next()?;
        match next.kind {
            Kind::Word if next.text.eq_ignore_ascii_case(b"from") => None,
            Kind::Word => Some((next.text, false)),
            Kind::QuotedWord => Some((next.text, true)),
            _ => None,
        }
    }

    /// Reads one comparison, with the parentheses around it.
    fn comparison(&mut self, found: &mut impl FnMut(Equality<'a>)) -> Option<()> {
        while self.takes(Kind::Symbol, b"(") {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return None;
            }
        }
        let left = self.operand()?;
        self.takes(Kind::Operator, b"=").then_some(())?;
        match (left, self.operand()?) {
            (Operand::Column { name, is_quoted }, Operand::Value(value))
            | (Operand::Value(value), Operand::Column { name, is_quoted }) => {
                found(Equality { column: name, is_quoted, value });
            }
            _ => {}
        }
        while self.takes(Kind::Symbol, b")") {
            self.depth = self.depth.checked_sub(1)?;
        }
        Some(())
    }

    fn operand(&mut self) -> Option<Operand<'a>> {
        let next = self.next()?;
        match next.kind {
            Kind::Number => Some(Operand::Value(ComparedValue::Number(next.text))),
            Kind::Text => Some(Operand::Value(ComparedValue::Text(next.text))),
            Kind::Param => {
                if self.takes(Kind::Symbol, b":") {
                    self.takes(Kind::Symbol, b":").then_some(())?;
                    CAST_TYPES.iter().any(|name| self.takes_word(name)).then_some(())?;
                }
                Some(Operand::Value(ComparedValue::Param(next.text)))
            }
            Kind::Word | Kind::QuotedWord if !next.text.eq_ignore_ascii_case(b"from") => {
                let (mut name, mut is_quoted) = (next.text, next.kind == Kind::QuotedWord);
                while self.takes(Kind::Symbol, b".") {
                    (name, is_quoted) = self.name()?;
                }
                Some(Operand::Column { name, is_quoted })
            }
            _ => None,
        }
    }

    /// Reads what may follow the condition: LIMIT and OFFSET.
    fn end(&mut self) -> Option<()> {
        if self.depth != 0 {
            return None;
        }
        while self.takes_word(b"limit") || self.takes_word(b"offset") {
            let count = self.next()?;
            matches!(count.kind, Kind::Number | Kind::Param).then_some(())?;
        }
        while self.takes(Kind::Symbol, b";") {}
        self.lexemes.next().is_none().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The comparisons of a text as `column=value`; `None` if the text is not of the form.
    fn equalities(sql: &str) -> Option<String> {
        let mut all = Vec::new();
        let is_one = single_table_equalities(sql.as_bytes(), |Equality { column, is_quoted, value }| {
            let quote = if is_quoted { "\"" } else { "" };
            let (mark, value) = match value {
                ComparedValue::Number(number) => ("", number),
                ComparedValue::Text(text) => ("'", text),
                ComparedValue::Param(digits) => ("$", digits),
            };
            let [column, value] = [column, value].map(String::from_utf8_lossy);
            all.push(format!("{quote}{column}={mark}{value}"));
        });
        is_one.then(|| all.join(" "))
    }

    #[test]
    fn comparisons_of_one_table_are_found() {
        for (sql, expected) in [
            ("select * from t where id = $1", "id=$1"),
            ("SELECT a, lower(b) FROM s.t AS x WHERE x.Id = 5 AND 'b' = x.b;", "Id=5 b='b"),
            ("SELECT \"users\".* FROM \"users\" WHERE \"users\".\"id\" = $1 LIMIT $2", "\"id=$1"),
            ("select u.id, u.name from users u where u.id=$1", "id=$1"),
            (
                "SELECT \"u\".\"id\" FROM \"public\".\"u\" WHERE (\"public\".\"u\".\"id\" = $1 AND 1=1) LIMIT $2 OFFSET $3",
                "\"id=$1",
            ),
            ("select * from t where ((a = 1) and (b = $1::INTEGER))", "a=1 b=$1"),
            ("select count(*) from t where a = b and c = 'x'", "c='x"),
            ("select a[1] from t where id = 1", "id=1"),
            ("select /* from x */ a -- from y\n from t where id = 1", "id=1"),
            ("select from t where id = 1", "id=1"),
        ] {
            assert_eq!(equalities(sql).as_deref(), Some(expected), "{sql}");
        }
    }

    #[test]
    fn a_text_of_another_form_is_none() {
        for sql in [
            "",
            "select 1",
            "select * from t",
            "select * from t where",
            "select * from t where id",
            "select * from t where id = 1 or id = 2",
            "select * from t where not id = 1",
            "select * from t where id = 1 and not a = 2",
            "select * from t where id <> 1",
            "select * from t where id = 1 + 1",
            "select * from t where id = -1",
            "select * from t where id = any($1)",
            "select * from t where id in (1)",
            "select * from t where (id, a) = (1, 2)",
            "select * from t where id = 1 is false",
            "select * from t where id = 1 = true",
            "select * from t where id operator(pg_catalog.=) 1",
            "select * from t where id = 1::bigint",
            "select * from t where id = '1'::text",
            "select * from t where id = $1::text",
            "select * from t where id = $1::varchar(3)",
            "select * from t where id = $1 collate \"x\"",
            "select * from t where id = E'1'",
            "select * from t where id = N'1'",
            "select * from t where id = date '2020-01-01'",
            "select * from t where id = (select 1)",
            "select * from t where (id = 1",
            "select * from t where id = 1)",
            "select * from t where (id = 1 limit 1)",
            "select * from t where id = 1 order by a",
            "select * from t where id = 1 group by a",
            "select * from t where id = 1 for update",
            "select * from t where id = 1 union select * from t",
            "select * from t where id = 1 limit (select 1)",
            "select * from t where id = 1; select * from t",
            "select * from t, u where id = 1",
            "select * from t join u on true where id = 1",
            "select * from t cross join u where id = 1",
            "select * from only (t) where id = 1",
            "select * from t x (id, a) where id = 1",
            "select * from t tablesample system (1) where id = 1",
            "select * from f() where id = 1",
            "select (select max(a) from t) from t where id = 1",
            "select (table t) from t where id = 1",
            "select array(values (1)) from t where id = 1",
            "with x as (select 1) select * from t where id = 1",
            "select * into u from t where id = 1",
            "select extract(year from a) from t where id = 1",
            "select a.from from t, u where id = 1",
            "select a.from t where id = 1",
            "select a as from t where id = 1",
            "select a is distinct from t where id = 1",
            "select U&\"a\" from t where id = 1",
            "select 'a from t where id = 1",
            "update t set a = 1 where id = 1",
        ] {
            assert_eq!(equalities(sql), None, "{sql}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_a_form_has_one_from(
            words in prop::collection::vec(prop::sample::select(vec![
                "select", "from", "t", "where", "id", "=", "$1", "'a'", "5", "and", "or", "not", "(", ")", ",", ".", "as",
                "limit", ";", "join", "::int", "*", "distinct", "\"q\"",
            ]), 0..16)
        ) {
            let sql = words.join(" ");
            if equalities(&sql).is_some() {
                prop_assert_eq!(words.iter().filter(|word| **word == "select").count(), 1);
                prop_assert_eq!(words.iter().filter(|word| **word == "from").count(), 1);
                prop_assert!(!words.contains(&"or") && !words.contains(&"join"));
            }
        }
    }
}
