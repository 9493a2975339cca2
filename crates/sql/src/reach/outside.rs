//! Names of PostgreSQL's own whose meaning depends on more than tables, the values and the settings of the session: the time, chance, the state
//! of the server and of the connection, names of objects, and the places of rows.

use crate::lexer::{Kind, Lexer};

/// Names that count wherever they stand, in alphabetical order. A name that begins with `pg_` counts, too, but `pg_catalog`.
#[rustfmt::skip]
const ANYWHERE: [&str; 34] = [
    "cmax", "cmin", "ctid", "current_catalog", "current_date", "current_role", "current_schema",
    "current_time", "current_timestamp", "current_user", "information_schema", "localtime",
    "localtimestamp", "regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper",
    "regoperator", "regproc", "regprocedure", "regrole", "regtype", "session_user", "system_user",
    "tableoid", "tablesample", "timetz", "txid_current", "user", "xmax", "xmin", "xmltable",
];

/// Names that count if they are called, in alphabetical order: of the built-in functions that only read, those whose result may depend on
/// anything else.
#[rustfmt::skip]
const CALLED: [&str; 32] = [
    "age", "array_sample", "array_shuffle", "clock_timestamp", "current_query",
    "current_setting", "enum_first", "enum_last", "enum_range", "format_type", "gen_random_uuid",
    "get_current_ts_config", "inet_client_addr", "inet_client_port", "now", "random", "random_normal",
    "statement_timestamp", "timeofday", "to_regcollation", "to_regnamespace", "to_regoper",
    "to_regoperator", "to_regproc", "to_regprocedure", "to_regrole", "to_regtype", "to_regtypemod",
    "transaction_timestamp", "ts_lexize", "uuidv4", "uuidv7",
];

/// Returns the first name in `sql`, as it is written there, for which the answer may depend on more than the tables that the text reads, its
/// values and the settings of the session. Functions of users are not looked at, nor are functions that do more than read.
#[must_use]
pub fn outside_name(sql: &[u8]) -> Option<&[u8]> {
    let mut before: Option<&[u8]> = None;
    for lexeme in Lexer::new(sql).map_while(Result::ok) {
        if let Some(name) = before.take() {
            let is_called = lexeme.text == b"(" && lexeme.kind == Kind::Symbol && is_among(&CALLED, name);
            // A time with time zone may depend on the date: in summer the zone may have another offset.
            let is_zoned = name.eq_ignore_ascii_case(b"time") && lexeme.text.eq_ignore_ascii_case(b"with");
            if is_called || is_zoned {
                return Some(name);
            }
        }
        if matches!(lexeme.kind, Kind::Word | Kind::QuotedWord) {
            let begins_as_own = lexeme.text.get(..3).is_some_and(|own| own.eq_ignore_ascii_case(b"pg_"));
            let is_schema = lexeme.text.eq_ignore_ascii_case(b"pg_catalog");
            if begins_as_own && !is_schema || is_among(&ANYWHERE, lexeme.text) {
                return Some(lexeme.text);
            }
            before = Some(lexeme.text);
        }
    }
    None
}

fn is_among(names: &[&str], name: &[u8]) -> bool {
    names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::built_in::FUNCTIONS;

    #[test]
    fn names_are_in_order_and_found() {
        assert!(ANYWHERE.is_sorted() && CALLED.is_sorted());
        for (sql, expected) in [
            ("select lower(a), regexp_replace(a, 'x', 'y'), age, region from t", None),
            ("select a from pg_catalog.int4(1)", None),
            ("select 'x'::RegClass", Some("RegClass")),
            ("select \"ctid\" from t", Some("ctid")),
            ("select pg_backend_pid()", Some("pg_backend_pid")),
            ("select Age /* of it */ (born) from t", Some("Age")),
            ("select \"now\"()", Some("now")),
            ("select 'now()'", None),
            ("select '10:00'::time with time zone", Some("time")),
            ("select a::timestamp with time zone, at::time from t", None),
            ("select a::timetz from t", Some("timetz")),
        ] {
            assert_eq!(outside_name(sql.as_bytes()), expected.map(str::as_bytes), "{sql}");
        }
    }

    #[test]
    fn each_called_name_is_one_that_only_reads() {
        for name in CALLED {
            assert!(FUNCTIONS.contains(&name), "{name} is refused anyway");
        }
    }
}
