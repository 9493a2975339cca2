//! The types of all columns in a pool's database, as one sum. pgweir knows by it that a column has got another type although the change was
//! not made through pgweir.
//!
//! PostgreSQL keeps the parameter types of a prepared statement. Most changes show in an error that leads to another statement
//! (`prepared/schema_version.rs`). A column that was made wider shows in none: a client that prepares the text afterwards would be told the
//! narrower type for as long as a server has the statement from before.

/// The sum of the database's last answer. `None` until a server has told one.
#[derive(Default)]
pub(crate) struct ColumnTypes(Option<Box<[u8]>>);

impl ColumnTypes {
    /// Takes in the catalog's answer. Returns whether a column has another type than in the answer before, or was added or dropped.
    pub(crate) fn follow(&mut self, rows: &[Vec<Option<Box<[u8]>>>]) -> bool {
        let told = rows.iter().find_map(|row| match row.as_slice() {
            [Some(kind), Some(sum), _] if **kind == *b"c" => Some(sum.clone()),
            _ => None,
        });
        let Some(told) = told else { return false };
        let before = self.0.replace(told);
        before.is_some() && before != self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_sum_is_a_change() {
        let mut types = ColumnTypes::default();
        let rows = |sum: &str| vec![vec![Some(Box::from(&b"c"[..])), Some(sum.as_bytes().into()), None]];
        assert!(!types.follow(&[]) && !types.follow(&rows("1")), "the first one");
        assert!(!types.follow(&rows("1")) && types.follow(&rows("2")) && !types.follow(&rows("2")));
        assert!(!types.follow(&[]) && !types.follow(&rows("2")), "an answer without a sum says nothing");
    }
}
