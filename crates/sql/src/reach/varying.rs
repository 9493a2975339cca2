//! Functions whose calls must each have another result: random numbers, and unique names.

use super::find_name;

/// The functions in alphabetical order, with those of the extensions uuid-ossp and pgcrypto.
const VARYING: [&str; 12] = [
    "array_sample",
    "array_shuffle",
    "gen_random_bytes",
    "gen_random_uuid",
    "gen_salt",
    "random",
    "random_normal",
    "uuid_generate_v1",
    "uuid_generate_v1mc",
    "uuid_generate_v4",
    "uuidv4",
    "uuidv7",
];

/// Returns whether `sql` names such a function. The answer must then not be given to another statement.
#[must_use]
pub fn names_varying(sql: &[u8]) -> bool {
    find_name(sql, |name| VARYING.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_no_chance() {
        for (sql, expected) in [
            ("select now(), current_date", false),
            ("select Random()", true),
            ("select pg_catalog.\"gen_random_uuid\"()", true),
            ("select 'random()'", false),
        ] {
            assert_eq!(names_varying(sql.as_bytes()), expected, "{sql}");
        }
    }
}
