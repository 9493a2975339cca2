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

/// Returns the first name of such a function in `sql`, as it is written there. If there is one, the answer to
/// `sql` must not be given to another statement.
#[must_use]
pub fn varying_name(sql: &[u8]) -> Option<&[u8]> {
    find_name(sql, |name| VARYING.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_no_chance() {
        for (sql, expected) in [
            ("select now(), current_date", None),
            ("select Random()", Some("Random")),
            ("select pg_catalog.\"gen_random_uuid\"()", Some("gen_random_uuid")),
            ("select 'random()'", None),
        ] {
            assert_eq!(varying_name(sql.as_bytes()), expected.map(str::as_bytes), "{sql}");
        }
    }
}
